/* SPDX-License-Identifier: Apache-2.0 */
/* As a preloaded library it reads FAULT_NTH, FAULT_FROM_THERE_ON and FAULT_THREADS (only thread starts are counted and fail), if they are
 * set, when it is loaded, and writes the number of calls, and of failures among them, to the file FAULT_REPORT when the process exits. */
#include "tests/faults/faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

#if defined(__SANITIZE_ADDRESS__)
#define ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZER 1
#endif
#endif

/* The allocator: the sanitizer's, or the C library's. */
#ifdef ADDRESS_SANITIZER
#define ALLOCATOR(name) __interceptor_##name
#else
#define ALLOCATOR(name) __libc_##name
#endif
extern void *ALLOCATOR(malloc)(size_t size);
extern void *ALLOCATOR(calloc)(size_t count, size_t size);
extern void *ALLOCATOR(realloc)(void *memory, size_t size);
extern void *ALLOCATOR(memalign)(size_t alignment, size_t size);
extern void ALLOCATOR(free)(void *memory);

static atomic_bool armed, sticky, threads_alone;
static atomic_ulong chosen, calls, failures;
static atomic_long live_blocks, live_mappings;
/* The thread runs code of the program, not of the sanitizer before and after it, which must have memory. */
static __thread bool is_running;

void faults_arm(unsigned long nth, bool from_there_on)
{
    atomic_store(&chosen, nth);
    atomic_store(&sticky, from_there_on);
    atomic_store(&calls, 0);
    atomic_store(&failures, 0);
    atomic_store(&armed, true);
}

unsigned long faults_disarm(void)
{
    atomic_store(&armed, false);
    return atomic_load(&failures);
}

unsigned long faults_calls(void) { return atomic_load(&calls); }
long faults_live_blocks(void) { return atomic_load(&live_blocks); }
long faults_live_mappings(void) { return atomic_load(&live_mappings); }

/* Counts a call; returns whether it must fail. */
static bool fails(void)
{
    if (!atomic_load(&armed) || !is_running) return false;
    unsigned long call = atomic_fetch_add(&calls, 1) + 1, nth = atomic_load(&chosen);
    if (nth == 0 || call < nth || (call > nth && !atomic_load(&sticky))) return false;
    atomic_fetch_add(&failures, 1);
    return true;
}

static bool fails_for_memory(void)
{
    if (atomic_load(&threads_alone) || !fails()) return false;
    errno = ENOMEM;
    return true;
}

static void *made(void *memory)
{
    if (memory) atomic_fetch_add(&live_blocks, 1);
    return memory;
}

EXPORT void *malloc(size_t size) { return fails_for_memory() ? NULL : made(ALLOCATOR(malloc)(size)); }

EXPORT void *calloc(size_t count, size_t size)
{
    return fails_for_memory() ? NULL : made(ALLOCATOR(calloc)(count, size));
}

EXPORT void *realloc(void *memory, size_t size)
{
    if (fails_for_memory()) return NULL;
    void *moved = ALLOCATOR(realloc)(memory, size);
    if (!memory) return made(moved);
    if (size == 0 && !moved) atomic_fetch_sub(&live_blocks, 1);
    return moved;
}

EXPORT void *memalign(size_t alignment, size_t size)
{
    return fails_for_memory() ? NULL : made(ALLOCATOR(memalign)(alignment, size));
}

EXPORT void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

EXPORT int posix_memalign(void **memory, size_t alignment, size_t size)
{
    void *block = memalign(alignment, size);
    if (!block) return ENOMEM;
    *memory = block;
    return 0;
}

EXPORT void free(void *memory)
{
    if (memory) atomic_fetch_sub(&live_blocks, 1);
    ALLOCATOR(free)(memory);
}

/* A sanitizer's own would allocate without the functions above. */
EXPORT char *strndup(const char *text, size_t most)
{
    size_t length = strnlen(text, most);
    char *copy = malloc(length + 1);
    if (!copy) return NULL;
    memcpy(copy, text, length);
    copy[length] = '\0';
    return copy;
}

EXPORT char *strdup(const char *text) { return strndup(text, strlen(text)); }

EXPORT void *mmap(void *address, size_t size, int protection, int flags, int descriptor, off_t offset)
{
    if (fails_for_memory()) return MAP_FAILED;
    long result = syscall(SYS_mmap, address, size, protection, flags, descriptor, offset);
    if (result == -1) return MAP_FAILED;
    atomic_fetch_add(&live_mappings, 1);
    return (void *)(uintptr_t)result;
}

EXPORT int munmap(void *address, size_t size)
{
    long result = syscall(SYS_munmap, address, size);
    if (result == 0) atomic_fetch_sub(&live_mappings, 1);
    return (int)result;
}

struct thread_start {
    void *(*function)(void *argument);
    void *argument;
};

static void *run_thread(void *argument)
{
    struct thread_start start = *(struct thread_start *)argument;
    ALLOCATOR(free)(argument);
    is_running = true;
    void *result = start.function(start.argument);
    is_running = false;
    return result;
}

EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *),
                          void *argument)
{
    typedef int create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    static _Atomic(create *) next;
    if (fails()) return EAGAIN;
    if (!atomic_load(&next)) {
        create *found;
        *(void **)(void *)&found = dlsym(RTLD_NEXT, "pthread_create");
        atomic_store(&next, found);
    }
    struct thread_start *start = ALLOCATOR(malloc)(sizeof *start);
    if (!start) return EAGAIN;
    *start = (struct thread_start){function, argument};
    is_running = false;
    int error = atomic_load(&next)(thread, attributes, run_thread, start);
    is_running = true;
    if (error) ALLOCATOR(free)(start);
    return error;
}

/* ---- preloaded ---- */

static const char *report_path;

__attribute__((constructor)) static void read_environment(void)
{
    const char *nth = getenv("FAULT_NTH");
    is_running = true;
    report_path = getenv("FAULT_REPORT");
    atomic_store(&threads_alone, getenv("FAULT_THREADS") != NULL);
    if (nth) faults_arm(strtoul(nth, NULL, 10), getenv("FAULT_FROM_THERE_ON") != NULL);
}

__attribute__((destructor)) static void write_report(void)
{
    if (!report_path) return;
    unsigned long failed = faults_disarm();
    char text[64];
    int length = snprintf(text, sizeof text, "%lu %lu\n", faults_calls(), failed);
    int descriptor = open(report_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor < 0) return;
    if (write(descriptor, text, (size_t)length) != length) (void)unlink(report_path);
    close(descriptor);
}
