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

/* The memory of `peer` for the context of `device`. */
static bool enable(const struct device *device, const struct device *peer, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    int can = 0;
    if (!cuda_ok(driver, driver->DeviceCanAccessPeer(&can, device->handle, peer->handle), status,
                 "GPU %d: asking for access to GPU %d", device->ordinal, peer->ordinal))
        return false;
    if (!can)
        return status_fail(status, STATUS_MACHINE,
                           "GPU %d (%s) has no access to the memory of GPU %d (%s), which an engine for several GPUs "
                           "needs; choose GPUs that NVLink or one PCIe switch connects ('nvidia-smi topo -p2p r' lists "
                           "them), or fewer GPUs",
                           device->ordinal, device->facts.name, peer->ordinal, peer->facts.name);
    if (!device_enter(device, status)) return false;
    cu_result result = driver->CtxEnablePeerAccess(peer->context, 0);
    device_leave(device);
    return result == CU_ERROR_PEER_ACCESS_ALREADY_ENABLED ||
           cuda_ok(driver, result, status, "GPU %d: opening the memory of GPU %d", device->ordinal, peer->ordinal);
}

bool cuda_comm_enable_peers(const struct device *const *devices, uint32_t count, struct status *status)
{
    for (uint32_t a = 0; a < count; a++)
        for (uint32_t b = 0; b < count; b++)
            if (devices[a]->handle != devices[b]->handle && !enable(devices[a], devices[b], status)) return false;
    return true;
}
