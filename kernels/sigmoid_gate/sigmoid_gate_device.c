/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/sigmoid_gate/sigmoid_gate.h"

#include "kernels/cuda/include/layout.cuh"
#include "kernels/cuda/kernel.h"

enum { THREADS = LAYOUT_ELEMENTWISE_THREADS, MOST_WIDTH = 1 << 24 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = op_params_illegal(&op_sigmoid_gate, params);
    if (why) return why;
    const int64_t rows = params[SIGMOID_GATE_ROWS], width = params[SIGMOID_GATE_WIDTH];
    if (width > MOST_WIDTH) return "parameter width is above 2^24";
    const int64_t blocks = layout_divide_up(rows * (width / layout_elementwise_vector(width)), THREADS);
    if (blocks > INT32_MAX) return "ROWS * WIDTH is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

const struct device_kernel device_sigmoid_gate = {
    .name = "sigmoid_gate",
    .op = OP_SIGMOID_GATE,
    .problem = &op_sigmoid_gate,
    .launch = launch,
    .cost = sigmoid_gate_cost,
};
