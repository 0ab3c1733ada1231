/* The engine file with every checksum recomputed after each mutation, so that the checks of structure are what is
 * tried, and behind them the checks of each op. */
#include <stdlib.h>

#include "kernels/op.h"
#include "tests/fuzz/engine_fix_up.h"

static void try_plans(const struct engine *engine)
{
    struct status status;
    for (size_t i = 0; i < engine->plan_count; i++)
        for (uint32_t launch = 0; launch < engine->plans[i].header.launch_count; launch++)
            op_verify(&engine->plans[i], launch, &engine->manifest.geometry, "plan", &status);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct engine engine;
    struct status status = {0};
    uint8_t *copy = test_engine_copy(data, size);
    if (!copy) return 0;
    if (engine_open_memory(&engine, copy, size, "engine", &status)) {
        test_engine_touch(&engine);
        try_plans(&engine);
        engine_verify_weights(&engine, 0, engine.weight_chunks, &status);
        engine_close(&engine);
    } else if (status.code == STATUS_OK || status.message[0] == '\0') {
        abort();
    }
    free(copy);
    return 0;
}
