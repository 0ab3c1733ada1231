/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/sample/sample_device.h"

#include "kernels/op/op.h"
#include "kernels/sample/sample_layout.cuh"

enum {
    MAX_VOCAB = 1 << 24,
    MAX_CLUSTER = 8,
};

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    const int64_t rows = params[SAMPLE_DEVICE_ROWS], vocab = params[SAMPLE_DEVICE_VOCAB];
    const int64_t count_index = params[SAMPLE_DEVICE_COUNT_INDEX], slots = params[SAMPLE_DEVICE_SLOT_COUNT];
    const int64_t in_rows = params[SAMPLE_DEVICE_IN_ROWS], feedback = params[SAMPLE_DEVICE_FEEDBACK];
    const int64_t cluster = params[SAMPLE_DEVICE_CLUSTER], threads = params[SAMPLE_DEVICE_THREADS];
    if (rows < 1 || rows > OP_MAX_ROWS) return "ROWS is not in 1..2^20";
    if (count_index < 0 || count_index > 1) return "COUNT_INDEX is not 0 or 1";
    if (vocab < 1 || vocab > MAX_VOCAB) return "VOCAB is not in 1..2^24";
    if (slots < 1 || slots > OP_MAX_ROWS) return "SLOT_COUNT is not in 1..2^20";
    if (in_rows < 1 || in_rows > OP_MAX_ROWS) return "IN_ROWS is not in 1..2^20";
    if (feedback != 0 && feedback != 1) return "FEEDBACK is not 0 or 1";
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

static void cost(const int64_t *params, uint64_t context, uint64_t *bytes, uint64_t *flops)
{
    (void)context;
    const uint64_t rows = (uint64_t)params[SAMPLE_DEVICE_ROWS], vocab = (uint64_t)params[SAMPLE_DEVICE_VOCAB];
    *bytes = rows * (vocab * sizeof(float) + (vocab + 7) / 8 + 2 * sizeof(struct sampler_state));
    *flops = rows * vocab;
}

int sample_device_candidates(const int64_t *params, const struct device_facts *gpu,
                             int64_t (*params_out)[PLAN_MAX_PARAMS], int capacity)
{
    enum { LEAST_SLICE = 1024 };
    static const struct {
        int cluster, threads;
    } few[] = {{8, 512}, {4, 512}, {8, 256}, {2, 512}, {4, 256}, {1, 512}, {1, 256}},
      many[] = {{2, 512}, {8, 256}, {4, 512}, {1, 512}, {8, 512}, {4, 256}, {1, 256}}, *choices;
    enum { CHOICES = sizeof few / sizeof few[0] };
    /* Many rows fill the GPU with small clusters; large ones do more work beside the reading. */
    choices = params[SAMPLE_DEVICE_ROWS] <= gpu->multiprocessors / 4 ? few : many;
    int count = 0;
    for (int i = 0; i < CHOICES && count < capacity; i++) {
        struct device_geometry geometry;
        int64_t *out = params_out[count];
        for (int p = 0; p < SAMPLE_DEVICE_CLUSTER; p++) out[p] = params[p];
        out[SAMPLE_DEVICE_CLUSTER] = choices[i].cluster;
        out[SAMPLE_DEVICE_THREADS] = choices[i].threads;
        if (choices[i].cluster > 1 && params[SAMPLE_DEVICE_VOCAB] / choices[i].cluster < LEAST_SLICE) continue;
        if (!launch(out, gpu, &geometry)) count++;
    }
    return count;
}

static const char *const param_names[SAMPLE_DEVICE_PARAMS] = {"ROWS",    "COUNT_INDEX", "VOCAB",   "SLOT_COUNT",
                                                              "IN_ROWS", "FEEDBACK",    "CLUSTER", "THREADS"};

const struct device_kernel device_sample = {
    .name = "sample",
    .source = "kernels/sample/sample.cu",
    .op = OP_SAMPLE,
    .least_capability = 80,
    .param_count = SAMPLE_DEVICE_PARAMS,
    .param_names = param_names,
    .first_tunable = SAMPLE_DEVICE_CLUSTER,
    .operand_count = SAMPLE_DEVICE_OPERANDS_FEEDBACK,
    .launch = launch,
    .candidates = sample_device_candidates,
    .untuned = true,
    .cost = cost,
};
