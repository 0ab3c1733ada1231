/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#include "kernels/cpu/vector_avx512.h"
#include "kernels/swiglu/swiglu_vector.h"

void swiglu_run_avx512(const struct op_call *call, struct team_member *member) { swiglu_vector_run(call, member); }
#endif
