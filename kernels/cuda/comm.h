/* SPDX-License-Identifier: Apache-2.0 */
/* COMM spaces on GPUs: memory through which ranks exchange data (kernels/cuda/include/comm.cuh: how kernels use it). */
#ifndef KERNELS_CUDA_COMM_H
#define KERNELS_CUDA_COMM_H

#include "formats/engine/plan.h"
#include "kernels/cuda/device.h"

/* How long a launch waits for another rank's data. */
#define CUDA_COMM_TIMEOUT_NS UINT64_C(5000000000)

/* Header of rank `rank`. comm: address of every rank's space. fault: address, on the device, of a u32 on the host that
 * receives struct comm_header.timed_out; or 0. */
void cuda_comm_header(struct comm_header *header, uint32_t rank, uint32_t ranks, const uint64_t *comm, uint64_t fault);
/* Header of a single rank that acts as rank 0: plans run as with other ranks, but it exchanges data with itself. For
 * timing and tests. */
void cuda_comm_header_alone(struct comm_header *header, uint32_t ranks, uint64_t comm);

/* Clears all buffers of the space of `bytes` bytes at `comm`, and waits. Requires: no rank has stored into it.
 * Requires, here and below: the device's context is current. */
bool cuda_comm_clear(const struct device *device, cu_deviceptr comm, uint64_t bytes, struct status *status);
/* Writes the header, and waits. */
bool cuda_comm_write(const struct device *device, cu_deviceptr comm, const struct comm_header *header,
                     struct status *status);

/* How ranks access each other's COMM spaces. */
enum cuda_link {
    CUDA_LINK_NONE,       /* no access: they exchange data through NCCL */
    CUDA_LINK_NVLINK = 1, /* memory of other GPUs, with atomics over the link (NVLink or similar) */
    CUDA_LINK_PCIE,       /* memory of other GPUs, without atomics */
    CUDA_LINK_HOST,       /* the spaces are in host memory */
};
const char *cuda_link_name(enum cuda_link link); /* "NVLink", "PCIe", "host memory" */

/* Determines how these GPUs, found or open, can access each other's memory; one may occur twice. *link is the slowest
 * link among them. It is CUDA_LINK_HOST if two have no access to each other, or one cannot map its memory for others;
 * `reason` (STATUS_MACHINE) says which. */
bool cuda_comm_find_link(const struct device *const *devices, uint32_t count, enum cuda_link *link,
                         struct status *reason, struct status *status);

/* Allocates the COMM space of a rank on `device`, which the GPUs of all ranks may read and write (CUDA_LINK_NONE: only
 * its own): on the GPU or, for CUDA_LINK_HOST, pinned on the host, at the same address for all. The kernels are the
 * same. No other memory is mapped for other GPUs, since each mapping takes the driver time. Requires: the context of
 * `device` is current; to free, that of any device. */
bool cuda_comm_allocate(const struct device *device, const struct device *const *ranks, uint32_t count,
                        enum cuda_link link, uint64_t bytes, cu_deviceptr *comm, struct status *status);
/* `bytes` as requested; does nothing on 0. */
void cuda_comm_free(const struct device *device, enum cuda_link link, cu_deviceptr comm, uint64_t bytes);

#endif
