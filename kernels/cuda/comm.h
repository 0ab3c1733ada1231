/* SPDX-License-Identifier: Apache-2.0 */
/* COMM spaces on GPUs: how ranks come to see each other's memory (kernels/cuda/include/comm.cuh: what they do there). */
#ifndef KERNELS_CUDA_COMM_H
#define KERNELS_CUDA_COMM_H

#include "formats/engine/plan.h"
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

/* How ranks reach each other's COMM spaces. */
enum cuda_link {
    CUDA_LINK_NONE,       /* they do not: what they exchange goes through NCCL */
    CUDA_LINK_NVLINK = 1, /* memory of other GPUs, with atomics over the link: NVLink or the like */
    CUDA_LINK_PCIE,       /* memory of other GPUs, without */
    CUDA_LINK_HOST,       /* not at all: the spaces lie in the host's memory */
};
const char *cuda_link_name(enum cuda_link link); /* "NVLink", "PCIe", "host memory" */

/* How these GPUs, found or open, can reach each other's memory; one may stand there twice. *link is the slowest way among
 * them. Where two have no access to each other, or one cannot open its memory, it is CUDA_LINK_HOST, and `reason`
 * (STATUS_MACHINE) says which. */
bool cuda_comm_find_link(const struct device *const *devices, uint32_t count, enum cuda_link *link,
                         struct status *reason, struct status *status);

/* Memory for the COMM space of a rank on `device`, which the GPUs of all ranks may read and write (CUDA_LINK_NONE: its own
 * alone): on the GPU, or for CUDA_LINK_HOST pinned on the host, where all reach it at the same address. The kernels are the
 * same. No other memory is open to other GPUs: what they can see the driver maps for each of them, which takes time. The
 * context of `device` must be current; to free, that of any. */
bool cuda_comm_allocate(const struct device *device, const struct device *const *ranks, uint32_t count,
                        enum cuda_link link, uint64_t bytes, cu_deviceptr *comm, struct status *status);
/* `bytes` as they were asked for; harmless on 0. */
void cuda_comm_free(const struct device *device, enum cuda_link link, cu_deviceptr comm, uint64_t bytes);

#endif
