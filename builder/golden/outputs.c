/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/golden/outputs.h"

#include <stdlib.h>
#include <string.h>

void golden_outputs_free(struct golden_outputs *outputs)
{
    free((void *)outputs->prompt.prompt); /* the tokens follow */
    free((void *)outputs->prompt.logits);
    free((void *)outputs->plans.tokens);
    free((void *)outputs->plans.logits);
    golden_cases_free(&outputs->plans);
    memset(outputs, 0, sizeof *outputs);
}
