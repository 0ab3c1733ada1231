/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#include "kernels/cpu/vector_avx2.h"
#include "kernels/group_norm/group_norm_vector.h"

void group_norm_run_avx2(const struct op_call *call, struct team_member *member)
{
    group_norm_vector_run(call, member);
}
#endif
