/* SPDX-License-Identifier: Apache-2.0 */
#if defined(__x86_64__)
#include "kernels/cpu/vector_avx2.h"
#include "kernels/cpu/probe_vector.h"

uint64_t probe_sum_avx2(const uint8_t *piece) { return probe_sum(piece); }
float probe_chains_avx2(void) { return probe_chains(); }
#endif
