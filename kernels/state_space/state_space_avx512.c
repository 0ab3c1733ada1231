/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#include "kernels/cpu/vector_avx512.h"
#include "kernels/state_space/state_space_vector.h"

void state_space_run_avx512(const struct op_call *call, struct team_member *member)
{
    state_space_vector_run(call, member);
}
#endif
