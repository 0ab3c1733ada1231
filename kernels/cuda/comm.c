#include "kernels/cuda/comm.h"

#include <inttypes.h>
#include <string.h>

enum { EMPTY_BYTE = 0xff }; /* of COMM_EMPTY in comm.cuh */

static void begin(struct comm_header *header, uint32_t rank, uint32_t ranks)
{
    memset(header, 0, sizeof *header);
    header->rank = rank;
    header->ranks = ranks;
    header->timeout_ns = CUDA_COMM_TIMEOUT_NS;
}

void cuda_comm_header(struct comm_header *header, uint32_t rank, uint32_t ranks, const uint64_t *comm, uint64_t fault)
{
    begin(header, rank, ranks);
    header->fault = fault;
    for (uint32_t r = 0; r < ranks; r++) {
        header->slots[r] = (uint8_t)rank;
        header->peers[r] = comm[r];
    }
}

void cuda_comm_header_alone(struct comm_header *header, uint32_t ranks, uint64_t comm)
{
    begin(header, 0, ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        header->slots[r] = (uint8_t)r;
        header->peers[r] = comm;
    }
}

bool cuda_comm_clear(const struct device *device, cu_deviceptr comm, uint64_t bytes, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    return cuda_ok(driver, driver->MemsetD8Async(comm, EMPTY_BYTE, bytes, device->stream), status,
                   "GPU %d: emptying the comm space", device->ordinal) &&
           cuda_ok(driver, driver->StreamSynchronize(device->stream), status, "GPU %d: emptying the comm space",
                   device->ordinal);
}

bool cuda_comm_write(const struct device *device, cu_deviceptr comm, const struct comm_header *header,
                     struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    return cuda_ok(driver, driver->MemcpyHtoDAsync(comm, header, sizeof *header, device->stream), status,
                   "GPU %d: writing the comm header", device->ordinal) &&
           cuda_ok(driver, driver->StreamSynchronize(device->stream), status, "GPU %d: writing the comm header",
                   device->ordinal);
}

const char *cuda_link_name(enum cuda_link link)
{
    return link == CUDA_LINK_NVLINK ? "NVLink" : link == CUDA_LINK_PCIE ? "PCIe" : "host memory";
}

/* The memory of `peer` for the context of `device`; *link becomes slower if theirs is. */
static bool enable(const struct device *device, const struct device *peer, enum cuda_link *link, struct status *reason,
                   struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    int can = 0, atomics = 0;
    if (!cuda_ok(driver, driver->DeviceCanAccessPeer(&can, device->handle, peer->handle), status,
                 "GPU %d: asking for access to GPU %d", device->ordinal, peer->ordinal) ||
        !cuda_ok(driver,
                 driver->DeviceGetP2PAttribute(&atomics, CU_P2P_ATTRIBUTE_NATIVE_ATOMICS, device->handle, peer->handle),
                 status, "GPU %d: asking for its link to GPU %d", device->ordinal, peer->ordinal))
        return false;
    if (!can) {
        if (*link != CUDA_LINK_HOST)
            status_fail(reason, STATUS_MACHINE,
                        "GPU %d (%s) has no access to the memory of GPU %d (%s); GPUs that NVLink or one PCIe switch "
                        "connects exchange faster ('nvidia-smi topo -p2p r' lists them)",
                        device->ordinal, device->facts.name, peer->ordinal, peer->facts.name);
        *link = CUDA_LINK_HOST;
        return true;
    }
    if (!atomics && *link == CUDA_LINK_NVLINK) *link = CUDA_LINK_PCIE;
    if (!device_enter(device, status)) return false;
    cu_result result = driver->CtxEnablePeerAccess(peer->context, 0);
    device_leave(device);
    return result == CU_ERROR_PEER_ACCESS_ALREADY_ENABLED ||
           cuda_ok(driver, result, status, "GPU %d: opening the memory of GPU %d", device->ordinal, peer->ordinal);
}

bool cuda_comm_enable_peers(const struct device *const *devices, uint32_t count, enum cuda_link *link,
                            struct status *reason, struct status *status)
{
    *link = CUDA_LINK_NVLINK;
    for (uint32_t a = 0; a < count; a++)
        for (uint32_t b = 0; b < count; b++)
            if (devices[a]->handle != devices[b]->handle && !enable(devices[a], devices[b], link, reason, status))
                return false;
    return true;
}

bool cuda_comm_allocate(const struct device *device, enum cuda_link link, uint64_t bytes, cu_deviceptr *comm,
                        struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    void *pinned = NULL;
    if (link != CUDA_LINK_HOST)
        return cuda_ok(driver, driver->MemAlloc(comm, bytes), status,
                       "%" PRIu64 " bytes of GPU memory for the %s space", bytes, plan_space_name(SPACE_COMM));
    if (!cuda_ok(driver, driver->MemHostAlloc(&pinned, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                 status, "%" PRIu64 " bytes of pinned memory for the %s space", bytes, plan_space_name(SPACE_COMM)))
        return false;
    *comm = (cu_deviceptr)(uintptr_t)pinned; /* one address for the host and all devices */
    return true;
}

void cuda_comm_free(const struct device *device, enum cuda_link link, cu_deviceptr comm)
{
    if (!comm) return;
    if (link == CUDA_LINK_HOST)
        device->driver.MemFreeHost((void *)(uintptr_t)comm);
    else
        device->driver.MemFree(comm);
}
