/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#include "kernels/cpu/vector_avx512.h"
#include "kernels/attention/attention_vector.h"

void attention_run_avx512(const struct op_call *call, struct team_member *member)
{
    attention_vector_run(call, member);
}
#endif
