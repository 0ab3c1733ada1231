/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/short_conv/short_conv.h"

#include "kernels/cuda/kernel.h"
#include "kernels/op/recurrent.h"
#include "kernels/short_conv/short_conv_layout.cuh"

enum { MOST_CHANNELS = 1 << 24 };

static const char *launch(const int64_t *params, const struct device_facts *gpu, struct device_geometry *geometry)
{
    (void)gpu;
    const char *why = op_params_illegal(&op_short_conv, params);
    if (why) return why;
    const int64_t channels = params[SHORT_CONV_CHANNELS], kernel = params[SHORT_CONV_KERNEL];
    if (channels > MOST_CHANNELS) return "parameter channels is above 2^24";
    why = op_recurrent_device_illegal(params[SHORT_CONV_RECURRENT_BYTES],
                                      short_conv_state_bytes((uint64_t)channels, (uint64_t)kernel));
    if (why) return why;
    const int64_t blocks = params[SHORT_CONV_ROWS] * short_conv_row_blocks(channels, kernel);
    if (blocks > INT32_MAX) return "ROWS * CHANNELS is too large for one grid";
    *geometry = (struct device_geometry){{(uint32_t)blocks, 1, 1}, {SHORT_CONV_THREADS, 1, 1}, {1, 1, 1}, 0};
    return NULL;
}

const struct device_kernel device_short_conv = {
    .name = "short_conv",
    .op = OP_SHORT_CONV,
    .problem = &op_short_conv,
    .launch = launch,
    .cost = short_conv_cost,
};
