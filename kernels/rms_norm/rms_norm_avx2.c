/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#include "kernels/cpu/vector_avx2.h"
#include "kernels/rms_norm/rms_norm_vector.h"

void rms_norm_run_avx2(const struct op_call *call, struct team_member *member) { rms_norm_vector_run(call, member); }
#endif
