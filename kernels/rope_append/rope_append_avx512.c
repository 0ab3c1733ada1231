/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#include "kernels/cpu/vector_avx512.h"
#include "kernels/rope_append/rope_append_vector.h"

void rope_append_run_avx512(const struct op_call *call, struct team_member *member)
{
    rope_append_vector_run(call, member);
}
#endif
