/* SPDX-License-Identifier: Apache-2.0 */
/* What the two targets on engine files do with one input: open it, and use all of what opens. */
#pragma once

#include <stdlib.h>

#include "formats/engine/test_engine.h"
#include "kernels/op/op.h"

static void verify_ops(const struct plan *plan, const struct engine *engine)
{
    struct status status = {0};
    for (uint32_t launch = 0; launch < plan->header.launch_count; launch++)
        op_verify(plan, launch, engine->manifest.target, &engine->manifest.geometry, "plan", &status);
}

static int try_engine(const uint8_t *data, size_t size)
{
    struct engine engine;
    struct status status = {0};
    uint8_t *copy = test_engine_copy(data, size);
    if (!copy) return 0;
    if (engine_open_memory(&engine, copy, size, "engine", &status)) {
        test_engine_touch(&engine);
        for (size_t p = 0; p < engine.plan_count; p++) {
            verify_ops(&engine.plans[p], &engine);
            if (engine.library_plans) verify_ops(&engine.library_plans[p], &engine);
        }
        engine_verify_weights(&engine, 0, engine.weight_chunks, &status);
        engine_close(&engine);
    } else if (status.code == STATUS_OK || status.message[0] == '\0') {
        abort(); /* refused without a reason */
    }
    free(copy);
    return 0;
}
