/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#include "kernels/cpu/vector_avx512.h"
#include "kernels/delta_rule/delta_rule_vector.h"

void delta_rule_run_avx512(const struct op_call *call, struct team_member *member)
{
    delta_rule_vector_run(call, member);
}
#endif
