/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory of an engine, to the byte where we allocate it, compared with the free memory before any is taken. */
#ifndef RUNTIME_LOAD_MEMORY_CONTRACT_H
#define RUNTIME_LOAD_MEMORY_CONTRACT_H

#include "formats/engine/engine_file.h"
#include "kernels/cuda/device.h"

struct memory_contract {
    uint64_t weights;
    uint64_t kernels; /* code and graphs, allocated by the driver: an estimate */
    uint64_t arena, step, state, kv;
    uint64_t comm; /* exchange between ranks; 0 with one rank */
};

/* Graphs that a session makes of a plan: of decode plans on one rank, which are queued one after the other, one for each place that the host
 * reads tokens from, unless a launch of the plans reads them, too. */
enum { MEMORY_CONTRACT_MOST_GRAPHS = 2 };
int memory_contract_plan_graphs(const struct engine *file, const struct plan *plan);
/* Launches of a decode plan on one rank before its sampler. A session also makes a graph of these, and as many as above of the others, so that tokens
 * can be allowed while the former run. 0: it does not. */
uint32_t memory_contract_plan_layers(const struct engine *file, const struct plan *plan);
/* The kernels' code, and the graphs of all plans. */
uint64_t memory_contract_code(const struct engine *file);
uint64_t memory_contract_graphs(const struct engine *file);

/* Sum of all parts, each rounded up to the driver's granularity; false on overflow. */
bool memory_contract_total(const struct memory_contract *contract, uint64_t *bytes);

/* STATUS_MACHINE, with all parts and the remedy, if too little is free on the device. */
bool memory_contract_check(const struct memory_contract *contract, uint64_t free_bytes, const struct device *device,
                           struct status *status);

#endif
