/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/device.h"

#include <stdio.h>

void device_architecture(int capability, char name[16])
{
    /* From Hopper on, wgmma and setmaxnreg exist only for the exact architecture. */
    snprintf(name, 16, "sm_%d%s", capability, capability >= 90 ? "a" : "");
}

static void format_uuid(const struct cu_uuid *uuid, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "GPU");
    for (int i = 0; i < 16 && used < bytes; i++) {
        bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        used += (size_t)snprintf(text + used, bytes - used, "%s%02x", dash ? "-" : "", (unsigned)uuid->bytes[i]);
    }
}

static bool read_facts(struct device *device, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    struct device_facts *facts = &device->facts;
    int major = 0, minor = 0, ordinal = device->ordinal;
    const struct {
        int attribute;
        int *value;
        const char *what;
    } attributes[] = {
        {CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major, "compute capability"},
        {CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor, "compute capability"},
        {CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, &facts->multiprocessors, "number of multiprocessors"},
        {CU_ATTRIBUTE_MAX_SHARED_PER_MULTIPROCESSOR, &facts->shared_per_sm, "shared memory of a multiprocessor"},
        {CU_ATTRIBUTE_MAX_SHARED_PER_BLOCK_OPTIN, &facts->shared_per_block, "shared memory of a block"},
        {CU_ATTRIBUTE_L2_CACHE_SIZE, &facts->l2_bytes, "size of the L2 cache"},
        {CU_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT, &facts->maps_memory, "virtual memory management"},
    };
    if (!cuda_ok(driver, driver->DeviceGetName(facts->name, (int)sizeof facts->name, device->handle), status,
                 "GPU %d: name", ordinal))
        return false;
    facts->name[sizeof facts->name - 1] = '\0';
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        cu_result result = driver->DeviceGetAttribute(attributes[i].value, attributes[i].attribute, device->handle);
        if (!cuda_ok(driver, result, status, "GPU %d: %s", ordinal, attributes[i].what)) return false;
    }
    struct cu_uuid uuid = {{0}};
    size_t bytes = 0;
    if (!cuda_ok(driver, driver->DeviceGetUuid(&uuid, device->handle), status, "GPU %d: UUID", ordinal)) return false;
    if (!cuda_ok(driver, driver->DeviceTotalMem(&bytes, device->handle), status, "GPU %d: size of memory", ordinal))
        return false;
    format_uuid(&uuid, facts->uuid, sizeof facts->uuid);
    facts->memory_bytes = bytes;
    facts->capability = 10 * major + minor;
    facts->driver_version = driver->version;
    return true;
}

static bool look_up(struct device *device, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    int count = 0;
    if (!cuda_ok(driver, driver->DeviceGetCount(&count), status, "counting the GPUs")) return false;
    if (count <= 0)
        return status_fail(status, STATUS_MACHINE,
                           "expected a GPU, found none; check that nvidia-smi lists one, that this container has one "
                           "and that CUDA_VISIBLE_DEVICES hides none, or use --target cpu");
    if (device->index >= count && device->index != device->ordinal)
        return status_fail(status, STATUS_MACHINE,
                           "GPU %d: expected among the GPUs that the driver shows, found %d of those asked for; choose "
                           "others, or check CUDA_VISIBLE_DEVICES",
                           device->ordinal, count);
    if (device->index < 0 || device->index >= count)
        return status_fail(status, STATUS_MACHINE,
                           "GPU %d: expected a number below %d, the count of GPUs that the driver shows; choose "
                           "another, or check CUDA_VISIBLE_DEVICES",
                           device->ordinal, count);
    return cuda_ok(driver, driver->DeviceGet(&device->handle, device->index), status, "GPU %d", device->ordinal);
}

bool device_find(struct device *device, int ordinal, struct status *status)
{
    return device_find_at(device, ordinal, ordinal, status);
}

bool device_find_at(struct device *device, int index, int ordinal, struct status *status)
{
    *device = (struct device){.index = index, .ordinal = ordinal};
    if (!cuda_driver_open(&device->driver, status))
        return index == ordinal ? false : status_prefix(status, "GPU %d, if there is one of that number", ordinal);
    if (look_up(device, status) && read_facts(device, status)) return true;
    device_close(device);
    return false;
}

/* Requires: the context is current. */
static bool read_granularity(struct device *device, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    const struct cu_mem_properties properties = {.type = CU_MEM_PINNED, .location = {CU_MEM_ON_DEVICE, device->handle}};
    size_t bytes = 0;
    if (!device->facts.maps_memory) return true;
    if (!cuda_ok(driver, driver->MemGetAllocationGranularity(&bytes, &properties, CU_MEM_GRANULARITY_MINIMUM), status,
                 "GPU %d: granularity of its memory", device->ordinal))
        return false;
    device->mapping_bytes = bytes;
    return true;
}

bool device_begin(struct device *device, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    cu_context context = NULL;
    cu_stream stream = NULL;
    if (!cuda_ok(driver, driver->DevicePrimaryCtxRetain(&context, device->handle), status, "GPU %d: making a context",
                 device->ordinal))
        return false;
    device->context = context;
    if (!device_enter(device, status)) return false;
    bool ok = read_granularity(device, status) && cuda_ok(driver, driver->StreamCreate(&stream, CU_STREAM_NON_BLOCKING),
                                                          status, "GPU %d: making a stream", device->ordinal);
    device_leave(device);
    device->stream = stream;
    return ok;
}

static bool open_at(struct device *device, int index, int ordinal, struct status *status)
{
    if (!device_find_at(device, index, ordinal, status)) return false;
    if (device_begin(device, status)) return true;
    device_close(device);
    return false;
}

bool device_open(struct device *device, int ordinal, struct status *status)
{
    return open_at(device, ordinal, ordinal, status);
}

bool device_open_again(struct device *device, const struct device *open, struct status *status)
{
    return open_at(device, open->index, open->ordinal, status);
}

bool device_check_stream(const struct device *device, cu_stream stream, struct status *status)
{
    enum { LAST_SPECIAL = 2 }; /* handles of CUDA's default streams, of the process and of each thread */
    cu_context context = NULL;
    cu_result result = CU_SUCCESS;
    if ((uintptr_t)stream > LAST_SPECIAL) {
        if (!device_enter(device, status)) return false;
        result = device->driver.StreamGetCtx(stream, &context);
        device_leave(device);
    }
    return (result == CU_SUCCESS && context == device->context) ||
           status_fail(status, STATUS_USAGE,
                       "stream: expected one that cudaStreamCreateWithFlags or cuStreamCreate made in the primary "
                       "context of GPU %d, found %s",
                       device->ordinal,
                       result != CU_SUCCESS ? "one that the driver does not know"
                       : context            ? "one of another GPU or context"
                                            : "a default stream");
}

void device_use_stream(struct device *device, cu_stream stream)
{
    device->driver.StreamDestroy(device->stream);
    device->stream = stream;
    device->borrows_stream = true;
}

void device_close(struct device *device)
{
    const struct cuda_driver *driver = &device->driver;
    /* If the GPU was lost every call fails, and the failures do not matter. */
    if (device->stream && !device->borrows_stream) {
        bool entered = device_enter(device, NULL);
        driver->StreamDestroy(device->stream);
        if (entered) device_leave(device);
    }
    if (device->context) driver->DevicePrimaryCtxRelease(device->handle);
    cuda_driver_close(&device->driver);
    *device = (struct device){0};
}

bool device_enter(const struct device *device, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    return cuda_ok(driver, driver->CtxPushCurrent(device->context), status, "GPU %d: entering its context",
                   device->ordinal);
}

void device_leave(const struct device *device)
{
    cu_context context;
    device->driver.CtxPopCurrent(&context);
}

bool device_free_memory(const struct device *device, uint64_t *free_bytes, struct status *status)
{
    size_t free_now = 0, total = 0;
    if (!device_enter(device, status)) return false;
    cu_result result = device->driver.MemGetInfo(&free_now, &total);
    device_leave(device);
    *free_bytes = free_now;
    return cuda_ok(&device->driver, result, status, "GPU %d: free memory", device->ordinal);
}

/* A copy that was queued with this result. */
static bool finish_copy(const struct device *device, cu_result result, const char *what, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    return cuda_ok(driver, result, status, "%s", what) &&
           cuda_ok(driver, driver->StreamSynchronize(device->stream), status, "%s", what);
}

bool device_write(const struct device *device, cu_deviceptr to, const void *from, uint64_t bytes, const char *what,
                  struct status *status)
{
    return finish_copy(device, device->driver.MemcpyHtoDAsync(to, from, bytes, device->stream), what, status);
}

bool device_read(const struct device *device, void *to, cu_deviceptr from, uint64_t bytes, const char *what,
                 struct status *status)
{
    return finish_copy(device, device->driver.MemcpyDtoHAsync(to, from, bytes, device->stream), what, status);
}
