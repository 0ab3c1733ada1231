/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the two limits of a processor: streaming reads of memory, and multiply-adds in registers. Benchmarks compare
 * with them, and the tuner's roofline uses them. */
#ifndef KERNELS_CPU_PROBE_H
#define KERNELS_CPU_PROBE_H

#include "kernels/cpu/team.h"
#include "kernels/op/op.h"

/* Reads `bytes` of new memory with the whole team, `passes` times after two warm-up passes, and stores the GB/s
 * of each pass in rates[passes]. `bytes` should be several times the last-level cache; it is rounded down to
 * multiples of 1 MB. */
bool probe_read(struct team *team, enum cpu_isa isa, uint64_t bytes, int passes, double *rates, struct status *status);

/* Best of `passes` short runs of float32 multiply-adds on the whole team, in GFLOP/s. */
double probe_peak_gflops(struct team *team, enum cpu_isa isa, int passes);

#endif
