/* COMM spaces on GPUs: how ranks come to see each other's memory (kernels/comm.cuh: what they do there). */
#ifndef KERNELS_CUDA_COMM_H
#define KERNELS_CUDA_COMM_H

#include "formats/plan.h"
#include "kernels/cuda/device.h"

/* How long a launch waits for another rank's data. */
#define CUDA_COMM_TIMEOUT_NS UINT64_C(5000000000)

/* Header of rank `rank`: `comm` has the address of every rank's space; fault: address, as the device sees it, of a u32 on
 * the host for struct comm_header.late, or 0. */
void cuda_comm_header(struct comm_header *header, uint32_t rank, uint32_t ranks, const uint64_t *comm, uint64_t fault);
/* Header of a rank that stands alone, as rank 0: plans run as with others, but what it exchanges it exchanges with
 * itself. For timing and tests. */
void cuda_comm_header_alone(struct comm_header *header, uint32_t ranks, uint64_t comm);

/* Empties all buffers of the space of `bytes` bytes at `comm`, and waits. No rank may store into it before. The device's
 * context must be current, here and below. */
bool cuda_comm_clear(const struct device *device, cu_deviceptr comm, uint64_t bytes, struct status *status);
/* Writes the header, and waits. */
bool cuda_comm_write(const struct device *device, cu_deviceptr comm, const struct comm_header *header,
                     struct status *status);

/* Opens the memory of all these GPUs to all others. STATUS_MACHINE, naming two GPUs, where there is no peer access; a GPU
 * may stand there twice. Contexts need not be current. */
bool cuda_comm_enable_peers(const struct device *const *devices, uint32_t count, struct status *status);

#endif
