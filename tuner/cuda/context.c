/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/context.h"

void plan_variants_free(struct plan_variants *variants)
{
    for (uint32_t v = 0; v < variants->count; v++) device_plan_free(&variants->plans[v]);
    variants->count = 0;
}
