/* SPDX-License-Identifier: Apache-2.0 */
/* Settings, counts, objects; devices and contexts. */
#include "tests/fake_cuda/state.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fake_settings fake_settings;
struct fake_device fake_devices[FAKE_MAX_DEVICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_object *objects;
static int64_t live[FAKE_CUDA_KINDS];
static uint64_t calls, kernels, slow_kernels, misuses, waits[FAKE_CUDA_WAITS], graphs, overlaps;
static bool initialized;
static struct cu_context_opaque contexts[FAKE_MAX_DEVICES];
static int shown[FAKE_MAX_DEVICES]; /* which of the machine's GPUs a device is */
static __thread struct {
    struct cu_context_opaque *stack[FAKE_MAX_STACK];
    int depth;
} current;

static const char *const kind_names[FAKE_CUDA_KINDS] = {
    "context", "current", "memory",     "host_memory", "stream",   "event",
    "library", "graph",   "graph_exec", "physical",    "reserved",
};

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static void read_settings(void)
{
    uint64_t devices = setting("FAKE_CUDA_DEVICES", 1);
    fake_settings = (struct fake_settings){
        .devices = devices < FAKE_MAX_DEVICES ? (int)devices : FAKE_MAX_DEVICES,
        .capability = (int)setting("FAKE_CUDA_CAPABILITY", 90),
        .driver_version = (int)setting("FAKE_CUDA_DRIVER_VERSION", 13000),
        .memory_bytes = setting("FAKE_CUDA_MEMORY", UINT64_C(1) << 30),
        .fail_call = setting("FAKE_CUDA_FAIL_CALL", 0),
        .spoil_kernel = setting("FAKE_CUDA_SPOIL_KERNEL", 0),
        .resident_threads = (int)setting("FAKE_CUDA_RESIDENT", 2048),
        .slow = getenv("FAKE_CUDA_SLOW"),
    };
}

__attribute__((constructor)) static void begin(void) { read_settings(); }

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("FAKE_CUDA_LEAK_FILE"), *slow = getenv("FAKE_CUDA_SLOW_EXIT");
    unsigned left = slow ? (unsigned)atoi(slow) : 0;
    while (left) left = sleep(left);
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    for (int kind = 0; kind < FAKE_CUDA_KINDS; kind++)
        fprintf(file, "%s %lld\n", kind_names[kind], (long long)live[kind]);
    fprintf(file, "misuse %llu\ncalls %llu\nkernels %llu\n", (unsigned long long)misuses, (unsigned long long)calls,
            (unsigned long long)kernels);
    fclose(file);
}

/* Controls */

EXPORTED void fake_cuda_reset(void)
{
    pthread_mutex_lock(&lock);
    read_settings();
    calls = kernels = misuses = overlaps = 0;
    memset(waits, 0, sizeof waits);
    initialized = false;
    pthread_mutex_unlock(&lock);
}

EXPORTED uint64_t fake_cuda_calls(void) { return calls; }
EXPORTED uint64_t fake_cuda_kernels(void) { return kernels; }
EXPORTED uint64_t fake_cuda_misuse(void) { return misuses; }

EXPORTED uint64_t fake_cuda_waits(int kind) { return waits[kind]; }
EXPORTED uint64_t fake_cuda_overlaps(void) { return overlaps; }

EXPORTED void fake_cuda_fail_next(uint64_t call)
{
    pthread_mutex_lock(&lock);
    fake_settings.fail_call = calls + call;
    pthread_mutex_unlock(&lock);
}

EXPORTED int64_t fake_cuda_live(int kind)
{
    int64_t count = 0;
    for (int i = 0; i < FAKE_CUDA_KINDS; i++)
        if (kind < 0 || kind == i) count += live[i];
    return count;
}

/* Shared */

cu_result fake_enter(void)
{
    pthread_mutex_lock(&lock);
    return ++calls == fake_settings.fail_call ? FAKE_UNKNOWN : CU_SUCCESS;
}

cu_result fake_leave(cu_result result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

void fake_lock(void) { pthread_mutex_lock(&lock); }
void fake_unlock(void) { pthread_mutex_unlock(&lock); }

cu_result fake_misuse(cu_result result)
{
    misuses++;
    return result;
}

void fake_waited(enum fake_cuda_wait kind) { waits[kind]++; }

void fake_note_graph(cu_stream stream)
{
    overlaps += stream->ordered < graphs;
    stream->ordered = ++graphs;
}

/* Whether a name begins with one of the prefixes, which commas separate. */
static bool has_prefix(const char *name, const char *prefixes)
{
    for (const char *at = prefixes; at && *at;) {
        size_t length = strcspn(at, ",");
        if (length > 0 && strncmp(name, at, length) == 0) return true;
        at += length + (at[length] == ',');
    }
    return false;
}

bool fake_kernel_ran(const char *entry)
{
    kernels++;
    if (has_prefix(entry, fake_settings.slow)) slow_kernels++;
    return kernels == fake_settings.spoil_kernel;
}

double fake_slow_milliseconds(void) { return (double)slow_kernels; }

bool fake_initialized(void) { return initialized; }

struct cu_context_opaque *fake_current(void) { return current.depth ? current.stack[current.depth - 1] : NULL; }

void *fake_object_new(enum fake_cuda_kind kind, size_t bytes)
{
    struct fake_object *object = calloc(1, bytes);
    if (!object) return NULL;
    *object = (struct fake_object){.kind = kind, .alive = true, .next = objects};
    objects = object;
    live[kind]++;
    return object;
}

bool fake_alive(const void *handle, enum fake_cuda_kind kind)
{
    const struct fake_object *object = handle;
    return object && object->kind == kind && object->alive;
}

void fake_object_kill(void *handle)
{
    struct fake_object *object = handle;
    object->alive = false;
    live[object->kind]--;
}

struct fake_memory *fake_find_memory(uint64_t address, size_t bytes)
{
    for (struct fake_object *object = objects; object; object = object->next) {
        if (!object->alive || (object->kind != FAKE_CUDA_MEMORY && object->kind != FAKE_CUDA_HOST_MEMORY)) continue;
        struct fake_memory *memory = (struct fake_memory *)object;
        uint64_t base = (uint64_t)(uintptr_t)memory->data;
        if (address >= base && address - base <= memory->bytes && bytes <= memory->bytes - (address - base))
            return memory;
    }
    return NULL;
}

bool fake_is_copied_from(const struct fake_memory *memory)
{
    for (struct fake_object *object = objects; object; object = object->next) {
        if (!object->alive || object->kind != FAKE_CUDA_STREAM) continue;
        const struct cu_stream_opaque *stream = (const struct cu_stream_opaque *)object;
        for (size_t i = stream->copied; i < stream->queued; i++) {
            const char *from = stream->copies[i].from;
            if (from >= memory->data && from < memory->data + memory->bytes) return true;
        }
    }
    return false;
}

/* The driver as a whole; errors */

/* CUDA_VISIBLE_DEVICES, as numbers: the GPUs up to the first that is not there. */
static void show_devices(void)
{
    const int all = fake_settings.devices;
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; i < all; i++) shown[i] = i;
    if (!at) return;
    fake_settings.devices = 0;
    for (char *end; fake_settings.devices < all; at = end + (*end == ',')) {
        long number = strtol(at, &end, 10);
        if (end == at || number < 0 || number >= all) break;
        shown[fake_settings.devices++] = (int)number;
    }
}

cu_result cuInit(unsigned flags)
{
    ENTER;
    REQUIRE(flags == 0, CU_ERROR_INVALID_VALUE);
    if (!initialized) show_devices();
    if (!fake_settings.devices) LEAVE(CU_ERROR_NO_DEVICE);
    initialized = true;
    LEAVE(CU_SUCCESS);
}

cu_result cuDriverGetVersion(int *version)
{
    ENTER;
    *version = fake_settings.driver_version;
    LEAVE(CU_SUCCESS);
}

static const struct {
    cu_result result;
    const char *name, *text;
} errors[] = {
    {CU_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CU_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CU_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CU_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CU_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {FAKE_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {FAKE_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {FAKE_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CU_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {FAKE_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {FAKE_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CU_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {FAKE_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {FAKE_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {FAKE_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {FAKE_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static cu_result error_text(cu_result result, const char **text, bool name)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        if (errors[i].result != result) continue;
        *text = name ? errors[i].name : errors[i].text;
        return CU_SUCCESS;
    }
    *text = NULL;
    return CU_ERROR_INVALID_VALUE;
}

cu_result cuGetErrorName(cu_result result, const char **name) { return error_text(result, name, true); }
cu_result cuGetErrorString(cu_result result, const char **text) { return error_text(result, text, false); }

/* Devices */

static bool is_device(cu_device device) { return device >= 0 && device < fake_settings.devices; }

#define REQUIRE_DEVICE(device)                           \
    do {                                                 \
        REQUIRE(initialized, CU_ERROR_NOT_INITIALIZED);  \
        REQUIRE(is_device(device), FAKE_INVALID_DEVICE); \
    } while (0)

cu_result cuDeviceGetCount(int *count)
{
    ENTER;
    if (!initialized) LEAVE(CU_ERROR_NOT_INITIALIZED); /* a question that may be asked */
    *count = fake_settings.devices;
    LEAVE(CU_SUCCESS);
}

cu_result cuDeviceGet(cu_device *device, int ordinal)
{
    ENTER;
    REQUIRE_DEVICE(ordinal);
    *device = ordinal;
    LEAVE(CU_SUCCESS);
}

cu_result cuDeviceGetName(char *name, int size, cu_device device)
{
    ENTER;
    REQUIRE_DEVICE(device);
    REQUIRE(size > 0, CU_ERROR_INVALID_VALUE);
    snprintf(name, (size_t)size, "Fake GPU");
    LEAVE(CU_SUCCESS);
}

cu_result cuDeviceGetUuid_v2(struct cu_uuid *uuid, cu_device device)
{
    ENTER;
    REQUIRE_DEVICE(device);
    for (int i = 0; i < 16; i++) uuid->bytes[i] = (unsigned char)(16 * shown[device] + i);
    LEAVE(CU_SUCCESS);
}

cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
    ENTER;
    REQUIRE_DEVICE(device);
    *bytes = fake_settings.memory_bytes;
    LEAVE(CU_SUCCESS);
}

cu_result cuDeviceGetAttribute(int *value, int attribute, cu_device device)
{
    ENTER;
    REQUIRE_DEVICE(device);
    switch (attribute) {
    case CU_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = FAKE_MAX_THREADS; break;
    case CU_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
    case CU_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = FAKE_MULTIPROCESSORS; break;
    case CU_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 3201000; break;
    case CU_ATTRIBUTE_MEMORY_BUS_WIDTH: *value = 6144; break;
    case CU_ATTRIBUTE_L2_CACHE_SIZE: *value = 60 << 20; break;
    case CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = fake_settings.capability / 10; break;
    case CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = fake_settings.capability % 10; break;
    case CU_ATTRIBUTE_MAX_SHARED_PER_MULTIPROCESSOR: *value = FAKE_SHARED_MOST + 1024; break;
    case CU_ATTRIBUTE_MAX_SHARED_PER_BLOCK_OPTIN: *value = FAKE_SHARED_MOST; break;
    case CU_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT: *value = !getenv("FAKE_CUDA_NO_MAPPING"); break;
    default: LEAVE(fake_misuse(CU_ERROR_INVALID_VALUE));
    }
    LEAVE(CU_SUCCESS);
}

/* Contexts */

cu_result cuDevicePrimaryCtxRetain(cu_context *context, cu_device device)
{
    ENTER;
    REQUIRE_DEVICE(device);
    contexts[device].device = device;
    fake_devices[device].retained++;
    live[FAKE_CUDA_CONTEXT]++;
    *context = &contexts[device];
    LEAVE(CU_SUCCESS);
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
    ENTER_FREEING;
    REQUIRE_DEVICE(device);
    REQUIRE(fake_devices[device].retained > 0, FAKE_INVALID_CONTEXT);
    fake_devices[device].retained--;
    live[FAKE_CUDA_CONTEXT]--;
    LEAVE_FREEING(CU_SUCCESS);
}

cu_result cuDeviceCanAccessPeer(int *can, cu_device device, cu_device peer)
{
    ENTER;
    REQUIRE_DEVICE(device);
    REQUIRE_DEVICE(peer);
    *can = device != peer && !getenv("FAKE_CUDA_NO_PEERS");
    LEAVE(CU_SUCCESS);
}

cu_result cuDeviceGetP2PAttribute(int *value, int attribute, cu_device device, cu_device peer)
{
    ENTER;
    REQUIRE_DEVICE(device);
    REQUIRE_DEVICE(peer);
    REQUIRE(device != peer && attribute == CU_P2P_ATTRIBUTE_NATIVE_ATOMICS, CU_ERROR_INVALID_VALUE);
    *value = !getenv("FAKE_CUDA_PCIE") && !getenv("FAKE_CUDA_NO_PEERS");
    LEAVE(CU_SUCCESS);
}

cu_result cuCtxPushCurrent_v2(cu_context context)
{
    ENTER;
    REQUIRE(initialized, CU_ERROR_NOT_INITIALIZED);
    REQUIRE(context >= contexts && context < contexts + FAKE_MAX_DEVICES, FAKE_INVALID_CONTEXT);
    REQUIRE(fake_devices[context->device].retained > 0, FAKE_INVALID_CONTEXT);
    REQUIRE(current.depth < FAKE_MAX_STACK, CU_ERROR_INVALID_VALUE);
    current.stack[current.depth++] = context;
    live[FAKE_CUDA_CURRENT]++;
    LEAVE(CU_SUCCESS);
}

cu_result cuCtxPopCurrent_v2(cu_context *context)
{
    ENTER_FREEING;
    REQUIRE(current.depth > 0, FAKE_INVALID_CONTEXT);
    cu_context popped = current.stack[--current.depth];
    if (context) *context = popped;
    live[FAKE_CUDA_CURRENT]--;
    LEAVE_FREEING(CU_SUCCESS);
}
