/* SPDX-License-Identifier: Apache-2.0 */
/* Golden outputs, kept in the engine for --selftest: of a short prompt, and of every plan. The expected logits are computed, then
 * every plan and every variant of it is compared with them before the engine is written. */
#ifndef BUILDER_GOLDEN_OUTPUTS_H
#define BUILDER_GOLDEN_OUTPUTS_H

#include "formats/engine/golden.h"

struct golden_outputs {
    struct engine_golden prompt; /* token_count 0: the context is too short */
    struct golden_cases plans;
};
void golden_outputs_free(struct golden_outputs *outputs);

#endif
