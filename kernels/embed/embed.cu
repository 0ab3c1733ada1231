/* SPDX-License-Identifier: Apache-2.0 */
/* embed as a kernel of its own: embed.cuh. */
#include "kernels/embed/embed.cuh"

#ifndef KERNEL_PARAMS
#define KERNEL_PARAMS                  \
    PARAM(ROWS) = 16;                  \
    PARAM(COUNT_INDEX) = 0;            \
    PARAM(HIDDEN) = 2048;              \
    PARAM(PITCH) = 2048;               \
    PARAM(VOCAB) = 128256;             \
    PARAM(TABLE_DTYPE) = DTYPE_BF16;   \
    PARAM(SHARDED) = 0;                \
    PARAM(OUT_DTYPE) = DTYPE_F32;      \
    PARAM(LAYOUT) = 0;                 \
    PARAM(SCALE_BITS) = 0x3f800000;    \
    PARAM(HAS_POSITIONS) = 0;          \
    PARAM(POSITION_DTYPE) = DTYPE_F32; \
    PARAM(FOLLOWS) = 0;                \
    PARAM(OUT_ROWS) = 1;
#define PARAM_SHARDED       0
#define PARAM_HAS_POSITIONS 0
#define PARAM_FOLLOWS       0
#endif

struct embed_params {
    KERNEL_PARAMS
};
typedef embed_body<embed_params> embed_kernel;

extern "C" __global__ void __launch_bounds__(embed_kernel::THREADS)
    embed(const int *__restrict__ counts, const int *__restrict__ tokens, const void *__restrict__ table,
          void *__restrict__ out OPTIONAL(PARAM_SHARDED, const comm_header *__restrict__ header)
              OPTIONAL(PARAM_HAS_POSITIONS, const int *__restrict__ positions)
                  OPTIONAL(PARAM_HAS_POSITIONS, const void *__restrict__ position_table)
                      OPTIONAL(PARAM_FOLLOWS, const int *__restrict__ following, const int *__restrict__ drawn))
{
    embed_kernel::run(counts, tokens, table, out, IF_PRESENT(PARAM_SHARDED, header),
                      IF_PRESENT(PARAM_HAS_POSITIONS, positions), IF_PRESENT(PARAM_HAS_POSITIONS, position_table),
                      IF_PRESENT(PARAM_FOLLOWS, following), IF_PRESENT(PARAM_FOLLOWS, drawn));
}
