/* SPDX-License-Identifier: Apache-2.0 */
/* rms_norm on the host, without codes: KERNEL_PARAMS is the problem and its tunable, VALID its valid rows. Compares every element of out
 * and of its copy with plain code in double; prints what differs and exits with 1. SPOIL: 1 and 2 what a kernel with a defect could
 * leave, for the checks to see; 0 nothing. emulation_test.py includes it in a namespace for each case, after these headers. */
#include "tests/emulation/paged_on_host.h"

#include "kernels/rms_norm/rms_norm.cuh"

struct params {
    KERNEL_PARAMS
};
typedef rms_norm_body<params> body;

enum {
    HIDDEN = params::HIDDEN,
    COUNT = params::ROWS * HIDDEN,
    OUT_BYTES = params::OUT_DTYPE == DTYPE_F32 ? 4 : 2,
    COPY_BYTES = params::COPY_DTYPE == DTYPE_F32 ? 4 : 2,
};

static int counts[2] = {VALID, 1 << 30};
alignas(64) static float x[COUNT * params::PARTS], residual[COUNT], total[COUNT], add_to[COUNT], weight[HIDDEN],
    bias[HIDDEN], factor[HIDDEN]; /* weights may have 16 bits */
static guarded<COUNT * OUT_BYTES> out;
static guarded<COUNT * COPY_BYTES> copied;

static void run_thread_of_kernel()
{
    body::run(counts, x, weight, out.bytes, total, total, add_to, /* as in plans: the sum replaces the residual */
              copied.bytes, nullptr, bias, factor);
}

template <int DTYPE> static void compare(const char *what, const u8 *found, const double *expected, int row)
{
    for (int i = 0; i < HIDDEN; i++) {
        const double value = load_element<DTYPE>(found, row * HIDDEN + i);
        if (!(std::fabs(value - expected[i]) <= rounding_of(DTYPE) * 1.01 * std::fabs(expected[i]) + 4e-6))
            problem("%s row %d element %d: %g, expected %g", what, row, i, value, expected[i]);
    }
}

int main()
{
    memset(x, 0xff, sizeof x), memset(add_to, 0xff, sizeof add_to); /* NaN beyond the valid rows */
    memset(residual, 0xff, sizeof residual), memset(total, 0xff, sizeof total);
    for (int i = 0; i < VALID * HIDDEN * params::PARTS; i++) x[i] = draw(-2, 2);
    for (int i = 0; i < VALID * HIDDEN; i++) add_to[i] = draw(-2, 2), residual[i] = draw(-2, 2);
    for (int i = 0; i < HIDDEN; i++) {
        store_element<params::WEIGHT_DTYPE>(weight, i, draw(0.5f, 1.5f));
        store_element<params::BIAS_DTYPE>(bias, i, draw(-1, 1));
        store_element<params::FACTOR_DTYPE>(factor, i, draw(0.2f, 1));
    }
    memcpy(total, residual, sizeof total);
    out.poison(), copied.poison();
    for (int i = 0; i < params::ROWS; i++) run_block(i, params::THREADS, run_thread_of_kernel);
    if (SPOIL == 1) out.bytes[VALID * HIDDEN * OUT_BYTES - 1] ^= 1;
    if (SPOIL == 2) out.bytes[VALID * HIDDEN * OUT_BYTES] = 0;
    for (int r = 0; r < VALID; r++) {
        double expected[HIDDEN], mean = 0, squares = 0;
        float row[HIDDEN];
        for (int i = 0; i < HIDDEN; i++) {
            row[i] = params::HAS_RESIDUAL ? residual[r * HIDDEN + i] : 0;
            for (int part = 0; part < params::PARTS; part++) row[i] += x[(r * params::PARTS + part) * HIDDEN + i];
            if (params::HAS_RESIDUAL && total[r * HIDDEN + i] != row[i])
                problem("sum row %d element %d: %g, expected %g", r, i, (double)total[r * HIDDEN + i], (double)row[i]);
        }
        for (int i = 0; params::CENTRED && i < HIDDEN; i++) mean += (double)row[i] / HIDDEN;
        for (int i = 0; i < HIDDEN; i++) squares += (row[i] - mean) * (row[i] - mean);
        const double scale = 1 / std::sqrt(squares / HIDDEN + (double)__int_as_float(params::EPS_BITS));
        for (int i = 0; i < HIDDEN; i++) {
            expected[i] = (row[i] - mean) * scale * (double)load_element<params::WEIGHT_DTYPE>(weight, i);
            if (params::HAS_BIAS) expected[i] += (double)load_element<params::BIAS_DTYPE>(bias, i);
            if (params::HAS_ADD_TO) expected[i] += (double)add_to[r * HIDDEN + i];
            if (params::HAS_FACTOR) expected[i] *= (double)load_element<params::FACTOR_DTYPE>(factor, i);
        }
        compare<params::OUT_DTYPE>("out", out.bytes, expected, r);
        if (params::HAS_COPY) compare<params::COPY_DTYPE>("the copy", copied.bytes, expected, r);
    }
    for (int i = (params::HAS_RESIDUAL ? VALID : 0) * HIDDEN; i < COUNT; i++)
        if (memcmp(&total[i], &residual[i], sizeof total[i])) problem("sum element %d is written", i);
    out.expect_poison("out", VALID * HIDDEN * OUT_BYTES);
    copied.expect_poison("the copy", params::HAS_COPY ? VALID * HIDDEN * COPY_BYTES : 0);
    return problems != 0;
}
