/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#include "kernels/cpu/vector_avx2.h"
#include "kernels/mean_squares/mean_squares_vector.h"

void mean_squares_run_avx2(const struct op_call *call, struct team_member *member)
{
    mean_squares_vector_run(call, member);
}
#endif
