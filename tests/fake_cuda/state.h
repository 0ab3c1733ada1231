/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the fake driver share. One lock guards everything: each entry point begins with ENTER and returns
 * through LEAVE. */
#ifndef TESTS_FAKE_CUDA_STATE_H
#define TESTS_FAKE_CUDA_STATE_H

#include <stdbool.h>

#include "kernels/cuda/driver.h"
#include "tests/fake_cuda/fake_cuda.h"

#define EXPORTED __attribute__((visibility("default")))

/* Declares what driver.h looks up, so that the definitions must agree. */
#define FAKE_DECLARE(member, symbol, parameters) EXPORTED cu_result symbol parameters;
CUDA_DRIVER_FUNCTIONS(FAKE_DECLARE)
#undef FAKE_DECLARE

enum fake_result {
    FAKE_INVALID_DEVICE = 101,
    FAKE_INVALID_IMAGE = 200,
    FAKE_INVALID_CONTEXT = 201,
    FAKE_INVALID_HANDLE = 400,
    FAKE_NOT_FOUND = 500,
    FAKE_LAUNCH_OUT_OF_RESOURCES = 701,
    FAKE_NOT_SUPPORTED = 801,
    FAKE_CAPTURE_UNSUPPORTED = 900,
    FAKE_UNKNOWN = 999,
};

enum {
    FAKE_MAX_DEVICES = 16,
    FAKE_MAX_STACK = 64,
    FAKE_MAX_THREADS = 1024,
    FAKE_SHARED_DEFAULT = 48 << 10, /* what a kernel may take before its limit is raised */
    FAKE_SHARED_MOST = 227 << 10,
    FAKE_MULTIPROCESSORS = 132,
};

struct fake_settings {
    int devices, capability, driver_version;
    uint64_t memory_bytes, fail_call, spoil_kernel;
    int resident_threads;
    const char *slow; /* NULL: none */
};

/* First member of what a handle points to. Dead objects stay, so that the use of one is seen. */
struct fake_object {
    enum fake_cuda_kind kind;
    bool alive;
    struct fake_object *next; /* of all that were ever made */
};

struct fake_device {
    uint64_t used_bytes;
    int retained; /* its primary context */
};

struct cu_context_opaque {
    int device;
};

struct fake_memory {
    struct fake_object object;
    char *data;
    size_t bytes;
    int device;         /* -1: host memory */
    bool is_registered; /* the caller's own */
};

struct fake_copy {
    void *to;
    const void *from;
    size_t bytes;
};

struct cu_stream_opaque {
    struct fake_object object;
    struct cu_context_opaque *context;
    struct cu_graph_opaque *capture; /* NULL: not capturing */
    bool has_graphs;                 /* some were launched here */
    uint64_t ordered;         /* all that is queued here comes after this graph, counted from 1 by cuGraphLaunch */
    struct fake_copy *copies; /* [queued] out of pinned memory; the first `copied` are done */
    size_t queued, copied;
};

extern struct fake_settings fake_settings;
extern struct fake_device fake_devices[FAKE_MAX_DEVICES];

cu_result fake_enter(void); /* takes the lock, counts the call; the injected failure or CU_SUCCESS */
cu_result fake_leave(cu_result result);
void fake_lock(void); /* the lock alone: what waits for other threads gives it back meanwhile */
void fake_unlock(void);
cu_result fake_misuse(cu_result result);    /* counts */
bool fake_kernel_ran(const char *entry);    /* counts; true: it is to be spoilt */
void fake_waited(enum fake_cuda_wait kind); /* counts */
void fake_note_graph(cu_stream stream);     /* it was launched there last */
double fake_slow_milliseconds(void);        /* that slow kernels took, in all */
bool fake_initialized(void);
struct cu_context_opaque *fake_current(void); /* of this thread; NULL: none */

void *fake_object_new(enum fake_cuda_kind kind, size_t bytes); /* all zero; `bytes` in all */
bool fake_alive(const void *handle, enum fake_cuda_kind kind);
void fake_object_kill(void *handle);

/* The allocation that holds [address, address + bytes), NULL if none does. */
struct fake_memory *fake_find_memory(uint64_t address, size_t bytes);

/* Does the copies that were queued before number `until`. */
void fake_catch_up(cu_stream stream, size_t until);
/* Writes zeros as a copy out of pinned memory would come. False: no such memory, or none to be had. */
bool fake_clear_late(cu_stream stream, cu_deviceptr to, size_t bytes);
/* Whether some stream is still to copy out of it. */
bool fake_is_copied_from(const struct fake_memory *memory);

/* An injected failure comes before everything else; where something is freed, after it. */
#define ENTER                          \
    cu_result injected = fake_enter(); \
    if (injected != CU_SUCCESS) return fake_leave(injected)
#define LEAVE(result)         return fake_leave(result)
#define ENTER_FREEING         cu_result injected = fake_enter()
#define LEAVE_FREEING(result) return fake_leave(injected != CU_SUCCESS ? injected : (result))
#define REQUIRE(condition, result)                                \
    do {                                                          \
        if (!(condition)) return fake_leave(fake_misuse(result)); \
    } while (0)
#define REQUIRE_CONTEXT                                        \
    do {                                                       \
        REQUIRE(fake_initialized(), CU_ERROR_NOT_INITIALIZED); \
        REQUIRE(fake_current() != NULL, FAKE_INVALID_CONTEXT); \
    } while (0)
#define REQUIRE_ALIVE(handle, kind) REQUIRE(fake_alive(handle, kind), FAKE_INVALID_HANDLE)

#endif
