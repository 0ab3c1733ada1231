/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/comm.h"

#include <inttypes.h>
#include <string.h>

#include "formats/base/checked.h"

enum { EMPTY_BYTE = 0xff }; /* every byte of COMM_EMPTY in comm.cuh */

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

/* Makes *link slower if the link between these two is. */
static bool find_link(const struct device *device, const struct device *peer, enum cuda_link *link,
                      struct status *reason, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    int can = 0, atomics = 0;
    if (!cuda_ok(driver, driver->DeviceCanAccessPeer(&can, device->handle, peer->handle), status,
                 "GPU %d: asking for access to GPU %d", device->ordinal, peer->ordinal) ||
        !cuda_ok(driver,
                 driver->DeviceGetP2PAttribute(&atomics, CU_P2P_ATTRIBUTE_NATIVE_ATOMICS, device->handle, peer->handle),
                 status, "GPU %d: asking for its link to GPU %d", device->ordinal, peer->ordinal))
        return false;
    if (!can && *link != CUDA_LINK_HOST)
        status_fail(reason, STATUS_MACHINE,
                    "GPU %d (%s) has no access to the memory of GPU %d (%s); GPUs that NVLink or one PCIe switch "
                    "connects exchange faster ('nvidia-smi topo -p2p r' lists them)",
                    device->ordinal, device->facts.name, peer->ordinal, peer->facts.name);
    if (!can) *link = CUDA_LINK_HOST;
    if (!atomics && *link == CUDA_LINK_NVLINK) *link = CUDA_LINK_PCIE;
    return true;
}

/* Whether memory of this GPU can be mapped for other GPUs. */
static void check_mapping(const struct device *device, enum cuda_link *link, struct status *reason)
{
    if (device->facts.maps_memory || *link == CUDA_LINK_HOST) return;
    *link = CUDA_LINK_HOST;
    status_fail(
        reason, STATUS_MACHINE,
        "GPU %d (%s) cannot open memory to other GPUs: this system shows it without virtual memory management, as "
        "some virtual GPUs are",
        device->ordinal, device->facts.name);
}

bool cuda_comm_find_link(const struct device *const *devices, uint32_t count, enum cuda_link *link,
                         struct status *reason, struct status *status)
{
    *link = CUDA_LINK_NVLINK;
    for (uint32_t a = 0; a < count; a++) {
        check_mapping(devices[a], link, reason);
        for (uint32_t b = 0; b < count; b++)
            if (devices[a]->handle != devices[b]->handle && !find_link(devices[a], devices[b], link, reason, status))
                return false;
    }
    return true;
}

/* ---- memory ---- */

/* `bytes` rounded up to the driver's granularity; 0: overflow. */
static uint64_t mapped_bytes(const struct device *device, uint64_t bytes)
{
    const uint64_t piece = device->mapping_bytes;
    uint64_t mapped;
    return piece && checked_align(bytes, piece, &mapped) ? mapped : 0;
}

/* Maps the memory for the GPUs of all ranks, each once. */
static bool open_to_all(const struct device *device, const struct device *const *ranks, uint32_t count,
                        cu_deviceptr comm, uint64_t bytes, struct status *status)
{
    struct cu_mem_access access[PLAN_MAX_RANKS];
    uint32_t gpus = 0;
    for (uint32_t r = 0; r < count && r < PLAN_MAX_RANKS; r++) {
        bool seen = false;
        for (uint32_t k = 0; k < r; k++) seen = seen || ranks[k]->handle == ranks[r]->handle;
        if (seen) continue;
        access[gpus++] = (struct cu_mem_access){{CU_MEM_ON_DEVICE, ranks[r]->handle}, CU_MEM_READ_WRITE};
    }
    return cuda_ok(&device->driver, device->driver.MemSetAccess(comm, bytes, access, gpus), status,
                   "GPU %d: opening the %s space to %" PRIu32 " GPUs (ranks do without it if they decline peer access)",
                   device->ordinal, plan_space_name(SPACE_COMM), gpus);
}

static bool map_memory(const struct device *device, const struct device *const *ranks, uint32_t count, uint64_t bytes,
                       cu_deviceptr *comm, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    const struct cu_mem_properties properties = {.type = CU_MEM_PINNED, .location = {CU_MEM_ON_DEVICE, device->handle}};
    cu_mem_handle handle = 0;
    cu_deviceptr address = 0;
    const uint64_t mapped = mapped_bytes(device, bytes);
    if (!mapped)
        return status_fail(status, STATUS_MACHINE, "GPU %d: %" PRIu64 " bytes cannot be mapped for the %s space",
                           device->ordinal, bytes, plan_space_name(SPACE_COMM));
    if (!cuda_ok(driver, driver->MemCreate(&handle, mapped, &properties, 0), status,
                 "GPU %d: %" PRIu64 " bytes of GPU memory for the %s space", device->ordinal, bytes,
                 plan_space_name(SPACE_COMM)))
        return false;
    bool ok = cuda_ok(driver, driver->MemAddressReserve(&address, mapped, 0, 0, 0), status,
                      "GPU %d: an address for the %s space", device->ordinal, plan_space_name(SPACE_COMM));
    bool is_mapped = ok && cuda_ok(driver, driver->MemMap(address, mapped, 0, handle, 0), status,
                                   "GPU %d: mapping the %s space (ranks do without it if they decline peer access)",
                                   device->ordinal, plan_space_name(SPACE_COMM));
    driver->MemRelease(handle); /* the mapping keeps it alive */
    if (is_mapped && open_to_all(device, ranks, count, address, mapped, status)) {
        *comm = address;
        return true;
    }
    if (is_mapped) driver->MemUnmap(address, mapped);
    if (ok) driver->MemAddressFree(address, mapped);
    return false;
}

bool cuda_comm_allocate(const struct device *device, const struct device *const *ranks, uint32_t count,
                        enum cuda_link link, uint64_t bytes, cu_deviceptr *comm, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    void *pinned = NULL;
    *comm = 0;
    if (link == CUDA_LINK_NONE)
        return cuda_ok(driver, driver->MemAlloc(comm, bytes), status,
                       "%" PRIu64 " bytes of GPU memory for the %s space", bytes, plan_space_name(SPACE_COMM));
    if (link != CUDA_LINK_HOST) return map_memory(device, ranks, count, bytes, comm, status);
    if (!cuda_ok(driver, driver->MemHostAlloc(&pinned, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                 status, "%" PRIu64 " bytes of pinned memory for the %s space", bytes, plan_space_name(SPACE_COMM)))
        return false;
    *comm = (cu_deviceptr)(uintptr_t)pinned; /* one address for the host and all devices */
    return true;
}

void cuda_comm_free(const struct device *device, enum cuda_link link, cu_deviceptr comm, uint64_t bytes)
{
    if (!comm) return;
    if (link == CUDA_LINK_HOST) {
        device->driver.MemFreeHost((void *)(uintptr_t)comm);
    } else if (link == CUDA_LINK_NONE) {
        device->driver.MemFree(comm);
    } else {
        device->driver.MemUnmap(comm, mapped_bytes(device, bytes));
        device->driver.MemAddressFree(comm, mapped_bytes(device, bytes));
    }
}
