/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#include "kernels/cpu/vector_avx2.h"
#include "kernels/rope_query/rope_query_vector.h"

void rope_query_run_avx2(const struct op_call *call, struct team_member *member)
{
    rope_query_vector_run(call, member);
}
#endif
