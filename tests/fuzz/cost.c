/* SPDX-License-Identifier: Apache-2.0 */
// The oracles of time and memory: measures each input, ends the process (abort) where one costs more than its target
// allows, and reports the costliest at the end.

#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/fuzz/fuzz.h"

enum { TRIES = 3 }; // an input that took too long is tried again: the machine may have been busy

// ---- allocated bytes -----------------------------------------------------------------------------------------

static _Atomic size_t allocated, most_allocated;

static void count_allocation(size_t size)
{
    size_t now = atomic_fetch_add(&allocated, size) + size, most = atomic_load(&most_allocated);
    while (now > most && !atomic_compare_exchange_weak(&most_allocated, &most, now)) continue;
}

// What was allocated before the counting began, and is given back now, is not counted twice.
static void count_release(size_t size)
{
    size_t now = atomic_load(&allocated);
    while (!atomic_compare_exchange_weak(&allocated, &now, now > size ? now - size : 0)) continue;
}

#if defined(__has_feature)
#define HAS_ADDRESS_SANITIZER __has_feature(address_sanitizer)
#elif defined(__SANITIZE_ADDRESS__)
#define HAS_ADDRESS_SANITIZER 1
#else
#define HAS_ADDRESS_SANITIZER 0
#endif

#if HAS_ADDRESS_SANITIZER

// AddressSanitizer, which has replaced malloc, declares these in no header of gcc.
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void *, size_t),
                                              void (*free_hook)(const volatile void *));
size_t __sanitizer_get_allocated_size(const volatile void *block);

static void on_malloc(const volatile void *block, size_t size)
{
    (void)block;
    count_allocation(size);
}

static void on_free(const volatile void *block)
{
    if (block) count_release(__sanitizer_get_allocated_size(block));
}

__attribute__((constructor)) static void install_hooks(void)
{
    if (!__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free)) abort();
}

#else

// In place of the C library's, for this program and all libraries that it loads.
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *block);

#define REPLACES __attribute__((visibility("default")))

REPLACES void *malloc(size_t size);
REPLACES void *calloc(size_t count, size_t size);
REPLACES void *realloc(void *block, size_t size);
REPLACES void *aligned_alloc(size_t alignment, size_t size);
REPLACES int posix_memalign(void **block, size_t alignment, size_t size);
REPLACES void free(void *block);

static void *counted(void *block)
{
    if (block) count_allocation(malloc_usable_size(block));
    return block;
}

void *malloc(size_t size) { return counted(__libc_malloc(size)); }

void *calloc(size_t count, size_t size) { return counted(__libc_calloc(count, size)); }

void *realloc(void *block, size_t size)
{
    size_t before = block ? malloc_usable_size(block) : 0;
    void *moved = __libc_realloc(block, size);
    if (!moved && size) return NULL;
    count_release(before);
    return counted(moved);
}

void *aligned_alloc(size_t alignment, size_t size) { return counted(__libc_memalign(alignment, size)); }

int posix_memalign(void **block, size_t alignment, size_t size)
{
    *block = counted(__libc_memalign(alignment, size));
    return *block ? 0 : 12; // ENOMEM
}

void free(void *block)
{
    if (block) count_release(malloc_usable_size(block));
    __libc_free(block);
}

#endif

// ---- inputs --------------------------------------------------------------------------------------------------

static struct {
    unsigned long inputs;
    double most_ms, most_time_share; // of the limit
    size_t slowest_size, most_bytes, largest_size;
    double most_memory_share;
} worst;

__attribute__((destructor)) static void report(void)
{
    if (!worst.inputs) return;
    printf("[cost] %lu inputs, slowest %.1f ms (%zu bytes, %.0f %% of its limit), most memory %zu bytes (%zu bytes, "
           "%.0f %% of its limit)\n",
           worst.inputs, worst.most_ms, worst.slowest_size, 100 * worst.most_time_share, worst.most_bytes,
           worst.largest_size, 100 * worst.most_memory_share);
    fflush(stdout);
}

static double process_ms(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now)) abort();
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const double limit_ms = fuzz_cost.base_ms + fuzz_cost.us_per_byte * 1e-3 * (double)size;
    const size_t limit_bytes = fuzz_cost.base_bytes + fuzz_cost.bytes_per_byte * size;
    double ms = 0;
    size_t bytes = 0;
    for (int i = 0; i < TRIES && (i == 0 || ms > limit_ms); i++) {
        size_t before = atomic_load(&allocated);
        atomic_store(&most_allocated, before);
        double start = process_ms();
        fuzz_try(data, size);
        double took = process_ms() - start;
        ms = i == 0 || took < ms ? took : ms;
        bytes = atomic_load(&most_allocated) - before;
    }
    worst.inputs++;
    if (ms / limit_ms > worst.most_time_share) {
        worst.most_time_share = ms / limit_ms;
        worst.most_ms = ms;
        worst.slowest_size = size;
    }
    if ((double)bytes / (double)limit_bytes > worst.most_memory_share) {
        worst.most_memory_share = (double)bytes / (double)limit_bytes;
        worst.most_bytes = bytes;
        worst.largest_size = size;
    }
    if (ms > limit_ms)
        fprintf(stderr, "fuzz: an input of %zu bytes took %.1f ms, expected at most %.1f\n", size, ms, limit_ms);
    if (bytes > limit_bytes)
        fprintf(stderr, "fuzz: an input of %zu bytes took %zu bytes of memory, expected at most %zu\n", size, bytes,
                limit_bytes);
    if (ms > limit_ms || bytes > limit_bytes) abort();
    return 0;
}
