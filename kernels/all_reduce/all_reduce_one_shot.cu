/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce in one trip, a row to a cluster of thread blocks (all_reduce_one_shot.cuh). */
#include "kernels/all_reduce/all_reduce_one_shot.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    all_reduce_one_shot(const int *__restrict__ counts, const uint4 *x, comm_header *header, u8 *buffer, float *out
#if HAS_RESIDUAL
                        ,
                        const float *residual
#endif
#if HAS_NORM
                        ,
                        const void *__restrict__ weight, void *__restrict__ normed
#endif
    )
{
    device_trigger();
    one_shot_setup setup;
    one_shot_operands all = {x, buffer, out, nullptr, nullptr};
#if HAS_RESIDUAL
    all.residual = residual;
#endif
#if HAS_NORM
    all.normed = normed;
    one_shot_prepare(setup, header, buffer, weight);
#else
    one_shot_prepare(setup, header, buffer, nullptr);
#endif
    if constexpr (CLUSTER > 1) cluster_sync(); /* all blocks have begun: row_sum stores into their shared memory */
    device_wait();
    comm_end(header, one_shot_row(blockIdx.x / CLUSTER, counts, setup, header, all));
}
