/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/sample/sample.h"

#include "kernels/cuda/kernel.h"
#include "kernels/sample/sample_layout.cuh"

enum {
    MAX_VOCAB = 1 << 24,
    MAX_CLUSTER = 8,
};

_Static_assert((int)SAMPLE_OPTION_MIN_P == SAMPLER_MIN_P && (int)SAMPLE_OPTION_ADJUSTS == SAMPLER_ADJUSTS &&
                   (int)SAMPLE_OPTION_ALLOWS == SAMPLER_ALLOWS && (int)SAMPLE_BIAS_WORDS == PLAN_BIAS_WORDS &&
                   (int)SAMPLE_COUNT_BITS == PLAN_COUNT_BITS,
               "device code knows the same options");

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const int64_t rows = params[SAMPLE_ROWS], vocab = params[SAMPLE_VOCAB];
    const int64_t cluster = params[SAMPLE_DEVICE_CLUSTER], threads = params[SAMPLE_DEVICE_THREADS];
    const char *why = op_params_illegal(&op_sample, params);
    if (why) return why;
    if (vocab > MAX_VOCAB) return "parameter vocab is above 2^24";
    if (cluster < 1 || cluster > MAX_CLUSTER || (cluster & (cluster - 1))) return "CLUSTER is not 1, 2, 4 or 8";
    if (cluster > 1 && gpu->capability < 90) return "CLUSTER is not 1 on a GPU without clusters";
    if (threads < 128 || threads > 512 || threads % 32) return "THREADS is not a multiple of 32 in 128..512";
    const int64_t slice = sample_slice(vocab, cluster);
    const uint32_t shared_bytes = sample_is_staged(slice, cluster) ? (uint32_t)slice * (uint32_t)sizeof(uint32_t) : 0;
    if ((int64_t)shared_bytes + SAMPLE_STATIC_BYTES > gpu->shared_per_block)
        return "a slice of the vocabulary does not fit in shared memory";
    *geometry = (struct device_geometry){{(uint32_t)(rows * cluster), 1, 1},
                                         {(uint32_t)threads, 1, 1},
                                         {(uint32_t)cluster, 1, 1},
                                         shared_bytes};
    return NULL;
}

static int candidates(const int64_t *params, const struct device_facts *gpu, int64_t (*params_out)[PLAN_MAX_PARAMS],
                      int capacity)
{
    enum { LEAST_SLICE = 1024 };
    /* CLUSTER, THREADS */
    static const int64_t few[][2] = {{8, 512}, {4, 512}, {8, 256}, {2, 512}, {4, 256}, {1, 512}, {1, 256}};
    static const int64_t many[][2] = {{2, 512}, {8, 256}, {4, 512}, {1, 512}, {8, 512}, {4, 256}, {1, 256}};
    /* Many rows fill the GPU with small clusters; large ones do more work beside the reading. */
    const int64_t(*choices)[2] = params[SAMPLE_ROWS] <= gpu->multiprocessors / 4 ? few : many;
    int count = 0;
    for (size_t i = 0; i < sizeof few / sizeof few[0]; i++) {
        if (choices[i][0] > 1 && params[SAMPLE_VOCAB] / choices[i][0] < LEAST_SLICE) continue;
        count = device_add_candidate(&device_sample, params, choices[i], gpu, params_out, count, capacity);
    }
    return count;
}

const struct device_kernel device_sample = {
    .name = "sample",
    .op = OP_SAMPLE,
    .problem = &op_sample,
    DEVICE_OWN_NAMES(SAMPLE_DEVICE_PARAMS - SAMPLE_PARAMS, "CLUSTER", "THREADS"),
    .launch = launch,
    .candidates = candidates,
    .untuned = true,
    .cost = sample_cost,
};
