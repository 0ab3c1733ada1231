/* Memory, copies, streams and events. */
#include "tests/fake_cuda/state.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ALIGNMENT = 4096, POISON = 0xff, POISONED_MOST = 1 << 20 };

struct cu_event_opaque {
    struct fake_object object;
    bool timing, recorded;
    double milliseconds;
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
    REQUIRE(memory, CU_ERROR_INVALID_VALUE);
    release(memory);
    LEAVE_FREEING(CU_SUCCESS);
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

cu_result cuMemcpyHtoDAsync_v2(cu_deviceptr to, const void *from, size_t bytes, cu_stream stream)
{
    ENTER;
    REQUIRE_STREAM(stream);
    REQUIRE_MEMORY(to, bytes);
    memmove(host(to), from, bytes);
    LEAVE(CU_SUCCESS);
}

cu_result cuMemcpyDtoHAsync_v2(void *to, cu_deviceptr from, size_t bytes, cu_stream stream)
{
    ENTER;
    REQUIRE_STREAM(stream);
    REQUIRE_MEMORY(from, bytes);
    memmove(to, host(from), bytes);
    LEAVE(CU_SUCCESS);
}

cu_result cuMemcpyDtoDAsync_v2(cu_deviceptr to, cu_deviceptr from, size_t bytes, cu_stream stream)
{
    ENTER;
    REQUIRE_STREAM(stream);
    REQUIRE_MEMORY(to, bytes);
    REQUIRE_MEMORY(from, bytes);
    memmove(host(to), host(from), bytes);
    LEAVE(CU_SUCCESS);
}

cu_result cuMemsetD8Async(cu_deviceptr to, unsigned char value, size_t bytes, cu_stream stream)
{
    ENTER;
    REQUIRE_STREAM(stream);
    REQUIRE_MEMORY(to, bytes);
    memset(host(to), value, bytes);
    LEAVE(CU_SUCCESS);
}

/* Streams run at once: whatever was queued is done. */

cu_result cuStreamCreate(cu_stream *stream, unsigned flags)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE(flags <= CU_STREAM_NON_BLOCKING, CU_ERROR_INVALID_VALUE);
    *stream = fake_object_new(FAKE_CUDA_STREAM, sizeof **stream);
    LEAVE(*stream ? CU_SUCCESS : CU_ERROR_OUT_OF_MEMORY);
}

cu_result cuStreamDestroy_v2(cu_stream stream)
{
    ENTER_FREEING;
    REQUIRE_ALIVE(stream, FAKE_CUDA_STREAM);
    fake_object_kill(stream);
    LEAVE_FREEING(CU_SUCCESS);
}

cu_result cuStreamSynchronize(cu_stream stream)
{
    ENTER;
    REQUIRE_STREAM(stream);
    LEAVE(CU_SUCCESS);
}

cu_result cuEventCreate(cu_event *event, unsigned flags)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE(flags <= (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING), CU_ERROR_INVALID_VALUE);
    *event = fake_object_new(FAKE_CUDA_EVENT, sizeof **event);
    if (*event) (*event)->timing = !(flags & CU_EVENT_DISABLE_TIMING);
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
    LEAVE(CU_SUCCESS);
}

cu_result cuEventSynchronize(cu_event event)
{
    ENTER;
    REQUIRE_CONTEXT;
    REQUIRE_ALIVE(event, FAKE_CUDA_EVENT);
    LEAVE(CU_SUCCESS);
}

cu_result cuEventQuery(cu_event event)
{
    ENTER;
    REQUIRE_ALIVE(event, FAKE_CUDA_EVENT);
    LEAVE(getenv("FAKE_CUDA_HANG") ? CU_ERROR_NOT_READY : CU_SUCCESS);
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
