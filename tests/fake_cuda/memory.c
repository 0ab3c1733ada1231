/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, copies, streams and events. */
#include "tests/fake_cuda/state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    MAPPING_GRANULARITY = 2 << 20,
    ALIGNMENT = 4096,
    POISON = 0xff,
    POISONED_MOST = 1 << 20,
    GIVEN_BACK_LEAST = 1 << 20
};

struct cu_event_opaque {
    struct fake_object object;
    bool timing, blocking, recorded, behind_graph, asked;
    double milliseconds;
    struct cu_stream_opaque *stream; /* the stream in which it was recorded, after this many copies */
    size_t behind;
    uint64_t ordered;
};

/* Memory that was never written shows as NaN; of large allocations only the beginning, so that a KV pool costs no
 * memory of this machine. */
static struct fake_memory *allocate(enum fake_cuda_kind kind, size_t bytes, int device)
{
    size_t whole = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    char *data = whole >= bytes ? aligned_alloc(ALIGNMENT, whole) : NULL;
    struct fake_memory *memory = data ? fake_object_new(kind, sizeof *memory) : NULL;
    if (!memory) {
        free(data);
        return NULL;
    }
    memset(data, POISON, bytes < POISONED_MOST ? bytes : POISONED_MOST);
    memory->data = data;
    memory->bytes = bytes;
    memory->device = device;
    return memory;
}

/* Only the address that the allocation returned may be freed. */
static struct fake_memory *find_exactly(uint64_t address, enum fake_cuda_kind kind)
{
    struct fake_memory *memory = fake_find_memory(address, 1);
    return memory && memory->object.kind == kind && (uint64_t)(uintptr_t)memory->data == address ? memory : NULL;
}

static void release(struct fake_memory *memory)
{
    free(memory->data);
    memory->data = NULL;
    fake_object_kill(memory);
}

cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    ENTER;
    REQUIRE_CONTEXT;
    *total_bytes = fake_settings.memory_bytes;
    *free_bytes = fake_settings.memory_bytes - fake_devices[fake_current()->device].used_bytes;
    LEAVE(CU_SUCCESS);
}

cu_result cuMemAlloc_v2(cu_deviceptr *pointer, size_t bytes)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE(bytes > 0, CU_ERROR_INVALID_VALUE);
    int device = fake_current()->device;
    if (bytes > fake_settings.memory_bytes - fake_devices[device].used_bytes) LEAVE(CU_ERROR_OUT_OF_MEMORY);
    struct fake_memory *memory = allocate(FAKE_CUDA_MEMORY, bytes, device);
    if (!memory) LEAVE(CU_ERROR_OUT_OF_MEMORY);
    fake_devices[device].used_bytes += bytes;
    *pointer = (uint64_t)(uintptr_t)memory->data;
    LEAVE(CU_SUCCESS);
}

cu_result cuMemFree_v2(cu_deviceptr pointer)
{
    ENTER_FREEING;
    REQUIRE_CONTEXT;
    if (!pointer) LEAVE_FREEING(CU_SUCCESS);
    struct fake_memory *memory = find_exactly(pointer, FAKE_CUDA_MEMORY);
    REQUIRE(memory, CU_ERROR_INVALID_VALUE);
    fake_devices[memory->device].used_bytes -= memory->bytes;
    release(memory);
    LEAVE_FREEING(CU_SUCCESS);
}

cu_result cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE(bytes > 0 && flags <= 7, CU_ERROR_INVALID_VALUE);
    struct fake_memory *memory = allocate(FAKE_CUDA_HOST_MEMORY, bytes, -1);
    if (!memory) LEAVE(CU_ERROR_OUT_OF_MEMORY);
    *pointer = memory->data;
    LEAVE(CU_SUCCESS);
}

cu_result cuMemFreeHost(void *pointer)
{
    ENTER_FREEING;
    REQUIRE_CONTEXT;
    struct fake_memory *memory = find_exactly((uint64_t)(uintptr_t)pointer, FAKE_CUDA_HOST_MEMORY);
    REQUIRE(memory && !memory->is_registered && !fake_is_copied_from(memory), CU_ERROR_INVALID_VALUE);
    release(memory);
    LEAVE_FREEING(CU_SUCCESS);
}

/* Found as the driver's own is, until it is given back. */
cu_result cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE(pointer && bytes > 0 && flags <= CU_MEMHOSTREGISTER_PORTABLE, CU_ERROR_INVALID_VALUE);
    if (getenv("FAKE_CUDA_NO_REGISTER")) LEAVE(FAKE_NOT_SUPPORTED);
    REQUIRE(!fake_find_memory((uint64_t)(uintptr_t)pointer, 1), CU_ERROR_INVALID_VALUE);
    struct fake_memory *memory = fake_object_new(FAKE_CUDA_HOST_MEMORY, sizeof *memory);
    if (!memory) LEAVE(CU_ERROR_OUT_OF_MEMORY);
    memory->data = pointer;
    memory->bytes = bytes;
    memory->device = -1;
    memory->is_registered = true;
    LEAVE(CU_SUCCESS);
}

cu_result cuMemHostUnregister(void *pointer)
{
    ENTER_FREEING;
    REQUIRE_CONTEXT;
    struct fake_memory *memory = find_exactly((uint64_t)(uintptr_t)pointer, FAKE_CUDA_HOST_MEMORY);
    REQUIRE(memory && memory->is_registered && !fake_is_copied_from(memory), CU_ERROR_INVALID_VALUE);
    fake_object_kill(memory);
    LEAVE_FREEING(CU_SUCCESS);
}

/* Memory in separate steps: created, mapped at reserved addresses, opened to GPUs. No call finds it before it is
 * open. */

struct physical {
    struct fake_object object;
    size_t bytes;
    int device;
    bool released, mapped;
};

struct reserved {
    struct fake_object object;
    char *data;
    size_t bytes;
    struct physical *holds;
    struct fake_memory *open;
};

static void let_go(struct physical *physical)
{
    if (!physical->released || physical->mapped) return;
    fake_devices[physical->device].used_bytes -= physical->bytes;
    fake_object_kill(physical);
}

cu_result cuMemGetAllocationGranularity(size_t *bytes, const struct cu_mem_properties *properties, int which)
{
    ENTER;
    REQUIRE(fake_initialized(), CU_ERROR_NOT_INITIALIZED);
    REQUIRE(properties->type == CU_MEM_PINNED && properties->location.type == CU_MEM_ON_DEVICE &&
                which == CU_MEM_GRANULARITY_MINIMUM && !getenv("FAKE_CUDA_NO_MAPPING"),
            CU_ERROR_INVALID_VALUE);
    *bytes = MAPPING_GRANULARITY;
    LEAVE(CU_SUCCESS);
}

cu_result cuMemCreate(cu_mem_handle *handle, size_t bytes, const struct cu_mem_properties *properties,
                      unsigned long long flags)
{
    ENTER;
    REQUIRE_CONTEXT;
    const int device = properties->location.id;
    REQUIRE(properties->type == CU_MEM_PINNED && properties->location.type == CU_MEM_ON_DEVICE && device >= 0 &&
                device < fake_settings.devices && !properties->handle_types && !properties->win32 && flags == 0 &&
                bytes > 0 && bytes % MAPPING_GRANULARITY == 0 && !getenv("FAKE_CUDA_NO_MAPPING"),
            CU_ERROR_INVALID_VALUE);
    if (bytes > fake_settings.memory_bytes - fake_devices[device].used_bytes) LEAVE(CU_ERROR_OUT_OF_MEMORY);
    struct physical *physical = fake_object_new(FAKE_CUDA_PHYSICAL, sizeof *physical);
    if (!physical) LEAVE(CU_ERROR_OUT_OF_MEMORY);
    physical->bytes = bytes;
    physical->device = device;
    fake_devices[device].used_bytes += bytes;
    *handle = (uint64_t)(uintptr_t)physical;
    LEAVE(CU_SUCCESS);
}

cu_result cuMemRelease(cu_mem_handle handle)
{
    ENTER_FREEING;
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    REQUIRE_ALIVE(physical, FAKE_CUDA_PHYSICAL);
    REQUIRE(!physical->released, FAKE_INVALID_HANDLE);
    physical->released = true;
    let_go(physical);
    LEAVE_FREEING(CU_SUCCESS);
}

static struct reserved *reserved_list[64];

static struct reserved **find_reserved(cu_deviceptr pointer, size_t bytes)
{
    for (size_t i = 0; i < sizeof reserved_list / sizeof *reserved_list; i++) {
        const struct reserved *reserved = reserved_list[i];
        if (reserved && (uint64_t)(uintptr_t)reserved->data == pointer && reserved->bytes == bytes)
            return &reserved_list[i];
    }
    return NULL;
}

cu_result cuMemAddressReserve(cu_deviceptr *pointer, size_t bytes, size_t alignment, cu_deviceptr wish,
                              unsigned long long flags)
{
    ENTER;
    REQUIRE(fake_initialized(), CU_ERROR_NOT_INITIALIZED);
    REQUIRE(bytes > 0 && bytes % MAPPING_GRANULARITY == 0 && !alignment && !wish && !flags, CU_ERROR_INVALID_VALUE);
    size_t free_place = 0, places = sizeof reserved_list / sizeof *reserved_list;
    while (free_place < places && reserved_list[free_place]) free_place++;
    char *data = free_place < places ? aligned_alloc(ALIGNMENT, bytes) : NULL;
    struct reserved *reserved = data ? fake_object_new(FAKE_CUDA_RESERVED, sizeof *reserved) : NULL;
    if (!reserved) {
        free(data);
        LEAVE(CU_ERROR_OUT_OF_MEMORY);
    }
    reserved->data = data;
    reserved->bytes = bytes;
    reserved_list[free_place] = reserved;
    *pointer = (uint64_t)(uintptr_t)data;
    LEAVE(CU_SUCCESS);
}

cu_result cuMemAddressFree(cu_deviceptr pointer, size_t bytes)
{
    ENTER_FREEING;
    struct reserved **reserved = find_reserved(pointer, bytes);
    REQUIRE(reserved && !(*reserved)->holds, CU_ERROR_INVALID_VALUE);
    free((*reserved)->data);
    fake_object_kill(*reserved);
    *reserved = NULL;
    LEAVE_FREEING(CU_SUCCESS);
}

cu_result cuMemMap(cu_deviceptr pointer, size_t bytes, size_t offset, cu_mem_handle handle, unsigned long long flags)
{
    ENTER;
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    struct reserved **reserved = find_reserved(pointer, bytes);
    REQUIRE_ALIVE(physical, FAKE_CUDA_PHYSICAL);
    REQUIRE(reserved && !(*reserved)->holds && !physical->mapped && physical->bytes == bytes && !offset && !flags,
            CU_ERROR_INVALID_VALUE);
    physical->mapped = true;
    (*reserved)->holds = physical;
    LEAVE(CU_SUCCESS);
}

cu_result cuMemUnmap(cu_deviceptr pointer, size_t bytes)
{
    ENTER_FREEING;
    struct reserved **reserved = find_reserved(pointer, bytes);
    REQUIRE(reserved && (*reserved)->holds, CU_ERROR_INVALID_VALUE);
    if ((*reserved)->open) fake_object_kill((*reserved)->open);
    (*reserved)->open = NULL;
    (*reserved)->holds->mapped = false;
    let_go((*reserved)->holds);
    (*reserved)->holds = NULL;
    LEAVE_FREEING(CU_SUCCESS);
}

/* For the GPU that it lies on, and others once each. */
cu_result cuMemSetAccess(cu_deviceptr pointer, size_t bytes, const struct cu_mem_access *access, size_t count)
{
    ENTER;
    struct reserved **reserved = find_reserved(pointer, bytes);
    REQUIRE(reserved && (*reserved)->holds && !(*reserved)->open && count > 0, CU_ERROR_INVALID_VALUE);
    const int device = (*reserved)->holds->device;
    uint64_t gpus = 0;
    for (size_t i = 0; i < count; i++) {
        const int id = access[i].location.id;
        REQUIRE(access[i].location.type == CU_MEM_ON_DEVICE && access[i].flags == CU_MEM_READ_WRITE && id >= 0 &&
                    id < fake_settings.devices && !(gpus >> id & 1) && (id == device || !getenv("FAKE_CUDA_NO_PEERS")),
                CU_ERROR_INVALID_VALUE);
        REQUIRE(fake_devices[id].retained > 0, FAKE_INVALID_CONTEXT); /* the real driver would make one */
        gpus |= UINT64_C(1) << id;
    }
    REQUIRE(gpus >> device & 1, CU_ERROR_INVALID_VALUE);
    struct fake_memory *memory = fake_object_new(FAKE_CUDA_MEMORY, sizeof *memory);
    if (!memory) LEAVE(CU_ERROR_OUT_OF_MEMORY);
    memory->data = (*reserved)->data;
    memory->bytes = bytes;
    memory->device = device;
    memset(memory->data, POISON, bytes < POISONED_MOST ? bytes : POISONED_MOST);
    (*reserved)->open = memory;
    LEAVE(CU_SUCCESS);
}

/* Copies. Memory that is the driver's must be used inside one allocation; other host memory is the caller's affair. */

#define REQUIRE_STREAM(stream)                                 \
    do {                                                       \
        REQUIRE_CONTEXT;                                       \
        REQUIRE_ALIVE(stream, FAKE_CUDA_STREAM);               \
        REQUIRE(!(stream)->capture, FAKE_CAPTURE_UNSUPPORTED); \
    } while (0)
#define REQUIRE_MEMORY(address, bytes) REQUIRE(fake_find_memory(address, bytes), CU_ERROR_INVALID_VALUE)

static void *host(cu_deviceptr address) { return (void *)(uintptr_t)address; }

void fake_catch_up(cu_stream stream, size_t until)
{
    for (; stream->copied < until; stream->copied++) {
        const struct fake_copy *copy = &stream->copies[stream->copied];
        memmove(copy->to, copy->from, copy->bytes);
    }
}

/* Copies out of pinned memory happen as late as possible: when a thread waits for them, or other work follows. */
static bool copy_late(cu_stream stream, void *to, const void *from, size_t bytes)
{
    const struct fake_memory *memory = fake_find_memory((uint64_t)(uintptr_t)from, bytes);
    if (!memory || memory->object.kind != FAKE_CUDA_HOST_MEMORY) {
        fake_catch_up(stream, stream->queued);
        memmove(to, from, bytes);
        return true;
    }
    struct fake_copy *copies = realloc(stream->copies, (stream->queued + 1) * sizeof *copies);
    if (!copies) return false;
    stream->copies = copies;
    copies[stream->queued++] = (struct fake_copy){to, from, bytes};
    return true;
}

bool fake_clear_late(cu_stream stream, cu_deviceptr to, size_t bytes)
{
    static const char zeros[1 << 16];
    if (bytes > sizeof zeros || !fake_find_memory(to, bytes)) return false;
    struct fake_copy *copies = realloc(stream->copies, (stream->queued + 1) * sizeof *copies);
    if (!copies) return false;
    stream->copies = copies;
    copies[stream->queued++] = (struct fake_copy){host(to), zeros, bytes};
    return true;
}

cu_result cuMemcpyHtoDAsync_v2(cu_deviceptr to, const void *from, size_t bytes, cu_stream stream)
{
    ENTER;
    REQUIRE_STREAM(stream);
    REQUIRE_MEMORY(to, bytes);
    LEAVE(copy_late(stream, host(to), from, bytes) ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY);
}

cu_result cuMemcpyDtoHAsync_v2(void *to, cu_deviceptr from, size_t bytes, cu_stream stream)
{
    ENTER;
    REQUIRE_STREAM(stream);
    REQUIRE_MEMORY(from, bytes);
    fake_catch_up(stream, stream->queued);
    memmove(to, host(from), bytes);
    LEAVE(CU_SUCCESS);
}

cu_result cuMemcpyDtoDAsync_v2(cu_deviceptr to, cu_deviceptr from, size_t bytes, cu_stream stream)
{
    ENTER;
    REQUIRE_STREAM(stream);
    REQUIRE_MEMORY(to, bytes);
    REQUIRE_MEMORY(from, bytes);
    fake_catch_up(stream, stream->queued);
    memmove(host(to), host(from), bytes);
    LEAVE(CU_SUCCESS);
}

/* Whole pages of large memory are given back to the system, which gives zeros when they are read: most of an arena is
 * never touched. */
static void clear(char *data, size_t bytes)
{
    char *first = data + (ALIGNMENT - (uintptr_t)data % ALIGNMENT) % ALIGNMENT;
    const size_t head = (size_t)(first - data), pages = bytes > head ? (bytes - head) / ALIGNMENT * ALIGNMENT : 0;
    if (pages < GIVEN_BACK_LEAST || madvise(first, pages, MADV_DONTNEED) != 0) {
        memset(data, 0, bytes);
        return;
    }
    memset(data, 0, head);
    memset(first + pages, 0, bytes - head - pages);
}

cu_result cuMemsetD8Async(cu_deviceptr to, unsigned char value, size_t bytes, cu_stream stream)
{
    ENTER;
    REQUIRE_STREAM(stream);
    REQUIRE_MEMORY(to, bytes);
    fake_catch_up(stream, stream->queued);
    if (value)
        memset(host(to), value, bytes);
    else
        clear(host(to), bytes);
    LEAVE(CU_SUCCESS);
}

/* Streams run at once, but for those copies. */

cu_result cuStreamCreate(cu_stream *stream, unsigned flags)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE(flags <= CU_STREAM_NON_BLOCKING, CU_ERROR_INVALID_VALUE);
    *stream = fake_object_new(FAKE_CUDA_STREAM, sizeof **stream);
    if (*stream) (*stream)->context = fake_current();
    LEAVE(*stream ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY);
}

cu_result cuStreamGetCtx(cu_stream stream, cu_context *context)
{
    ENTER;
    REQUIRE_STREAM(stream);
    *context = stream->context;
    LEAVE(CU_SUCCESS);
}

cu_result cuStreamDestroy_v2(cu_stream stream)
{
    ENTER_FREEING;
    REQUIRE_ALIVE(stream, FAKE_CUDA_STREAM);
    fake_catch_up(stream, stream->queued);
    fake_object_kill(stream);
    LEAVE_FREEING(CU_SUCCESS);
}

cu_result cuStreamSynchronize(cu_stream stream)
{
    ENTER;
    REQUIRE_STREAM(stream);
    fake_catch_up(stream, stream->queued);
    LEAVE(CU_SUCCESS);
}

cu_result cuEventCreate(cu_event *event, unsigned flags)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE(flags <= (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING), CU_ERROR_INVALID_VALUE);
    *event = fake_object_new(FAKE_CUDA_EVENT, sizeof **event);
    if (*event) {
        (*event)->timing = !(flags & CU_EVENT_DISABLE_TIMING);
        (*event)->blocking = flags & CU_EVENT_BLOCKING_SYNC;
    }
    LEAVE(*event ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY);
}

cu_result cuEventDestroy_v2(cu_event event)
{
    ENTER_FREEING;
    REQUIRE_ALIVE(event, FAKE_CUDA_EVENT);
    fake_object_kill(event);
    LEAVE_FREEING(CU_SUCCESS);
}

cu_result cuEventRecord(cu_event event, cu_stream stream)
{
    struct timespec now;
    ENTER;
    REQUIRE_STREAM(stream);
    REQUIRE_ALIVE(event, FAKE_CUDA_EVENT);
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->milliseconds = 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec + fake_slow_milliseconds();
    event->recorded = true;
    event->behind_graph = stream->has_graphs;
    event->asked = false;
    event->stream = stream;
    event->behind = stream->queued;
    event->ordered = stream->ordered;
    LEAVE(CU_SUCCESS);
}

/* The host waits in the place of the stream. */
cu_result cuStreamWaitEvent(cu_stream stream, cu_event event, unsigned flags)
{
    ENTER;
    REQUIRE_STREAM(stream);
    REQUIRE_ALIVE(event, FAKE_CUDA_EVENT);
    REQUIRE(flags == 0, CU_ERROR_INVALID_VALUE);
    if (event->stream) fake_catch_up(event->stream, event->behind);
    if (event->ordered > stream->ordered) stream->ordered = event->ordered;
    LEAVE(CU_SUCCESS);
}

cu_result cuEventSynchronize(cu_event event)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE_ALIVE(event, FAKE_CUDA_EVENT);
    fake_waited(event->blocking ? FAKE_CUDA_SLEPT : FAKE_CUDA_SPUN);
    if (event->stream) fake_catch_up(event->stream, event->behind);
    LEAVE(CU_SUCCESS);
}

/* Who asks before a copy gets another answer the next time. */
cu_result cuEventQuery(cu_event event)
{
    ENTER;
    REQUIRE_ALIVE(event, FAKE_CUDA_EVENT);
    fake_waited(FAKE_CUDA_ASKED);
    if (getenv("FAKE_CUDA_HANG") && event->behind_graph) LEAVE(CU_ERROR_NOT_READY);
    if (event->stream && event->stream->copied < event->behind && !event->asked) {
        event->asked = true;
        LEAVE(CU_ERROR_NOT_READY);
    }
    if (event->stream) fake_catch_up(event->stream, event->behind);
    LEAVE(CU_SUCCESS);
}

cu_result cuEventElapsedTime(float *milliseconds, cu_event start, cu_event end)
{
    ENTER;
    REQUIRE_ALIVE(start, FAKE_CUDA_EVENT);
    REQUIRE_ALIVE(end, FAKE_CUDA_EVENT);
    REQUIRE(start->timing && end->timing && start->recorded && end->recorded, FAKE_INVALID_HANDLE);
    *milliseconds = (float)(end->milliseconds - start->milliseconds);
    LEAVE(CU_SUCCESS);
}
