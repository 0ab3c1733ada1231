/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#include "kernels/cpu/vector_avx2.h"
#include "kernels/xielu/xielu_vector.h"

void xielu_run_avx2(const struct op_call *call, struct team_member *member) { xielu_vector_run(call, member); }
#endif
