/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of this machine: the two ceilings of the roofline, measured, and the name under which timings are stored. */
#ifndef TUNER_MACHINE_H
#define TUNER_MACHINE_H

#include "kernels/cpu/team.h"
#include "kernels/op/op.h"

struct machine {
    char name[128]; /* processor model, for records and reports */
    enum cpu_isa isa;
    int threads;
    double read_gb_s;   /* streaming reads of uncached memory, whole team */
    double peak_gflops; /* float32 multiply-adds in registers, whole team */
};

/* Fills name, isa and threads. The ceilings are 0: not measured. */
void machine_describe(struct machine *machine, const struct team *team);

/* Also measures both ceilings: best of several passes, about 0.3 s, with 256 MB of temporary memory. */
bool machine_probe(struct machine *machine, struct team *team, struct status *status);

/* Lower bound in microseconds of work that moves `bytes` and computes `flops`; 0 if the ceilings are not measured. */
double roofline_us(const struct machine *machine, uint64_t bytes, uint64_t flops);

#endif
