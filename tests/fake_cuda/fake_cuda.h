/* SPDX-License-Identifier: Apache-2.0 */
/* A driver without a GPU: libcuda.so.1 in host memory, for tests of everything that calls the driver. Found by the
 * dynamic linker where LD_LIBRARY_PATH names its folder (the tests run themselves again that way).
 *
 * Device pointers are host addresses, streams run at once, but for copies out of pinned memory, which come as late as may
 * be; kernels do what a test registered for their entry, else nothing, but those named sample... draw token 0. Every call checks its arguments and the state
 * (initialised, context current, handle alive, memory inside an allocation); an error of the caller returns an error code and counts as
 * misuse.
 *
 * Settings, read when the library is loaded and by fake_cuda_reset (CUDA_VISIBLE_DEVICES, numbers alone, by cuInit):
 *   FAKE_CUDA_DEVICES=N         count of GPUs, default 1; 0: cuInit fails as without a GPU
 *   FAKE_CUDA_NO_PEERS=1        no GPU has access to another's memory
 *   FAKE_CUDA_NO_MAPPING=1      its memory cannot be mapped piece by piece
 *   FAKE_CUDA_PCIE=1            they have, but without atomics over the link
 *   FAKE_CUDA_HANG=1            no graph ever ends, for those who ask (cuEventQuery)
 *   FAKE_CUDA_NO_REGISTER=1     it cannot pin memory that is there
 *   FAKE_CUDA_CAPABILITY=N      default 90
 *   FAKE_CUDA_MEMORY=BYTES      of each GPU, default 1 GiB
 *   FAKE_CUDA_DRIVER_VERSION=N  default 13000
 *   FAKE_CUDA_FAIL_CALL=N       call number N (from 1) returns CUDA_ERROR_UNKNOWN; calls that free do so all the same.
 *                               Questions for the text of an error are not counted
 *   FAKE_CUDA_RESIDENT=N        threads that run on a multiprocessor at once, default 2048
 *   FAKE_CUDA_SLOW=PREFIX,...   every kernel whose name begins so takes a millisecond, as events have it
 *   FAKE_CUDA_SPOIL_KERNEL=N    kernel number N (from 1) leaves 1e9 at the begin of each of its operands
 *   FAKE_CUDA_SLOW_EXIT=N       seconds that the driver takes when its process ends
 *   FAKE_CUDA_LEAK_FILE=PATH    at exit: one line "KIND COUNT" for each kind of live object; then "misuse N",
 *                               "calls N", "kernels N"
 *
 * A cubin is text, after the header of an ELF file (fake_cuda_cubin) or without one:
 *   FAKE CUBIN 90
 *   kernel NAME BYTES BYTES ...     one line for each entry: the size of each parameter
 *   end */
#ifndef TESTS_FAKE_CUDA_FAKE_CUDA_H
#define TESTS_FAKE_CUDA_FAKE_CUDA_H

#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum fake_cuda_kind {
    FAKE_CUDA_CONTEXT, /* retained and not released */
    FAKE_CUDA_CURRENT, /* pushed and not popped */
    FAKE_CUDA_MEMORY,
    FAKE_CUDA_HOST_MEMORY,
    FAKE_CUDA_STREAM,
    FAKE_CUDA_EVENT,
    FAKE_CUDA_LIBRARY,
    FAKE_CUDA_GRAPH,
    FAKE_CUDA_GRAPH_EXEC,
    FAKE_CUDA_PHYSICAL, /* memory of cuMemCreate */
    FAKE_CUDA_RESERVED, /* addresses */
    FAKE_CUDA_KINDS
};

/* Puts `text` with its NUL after an ELF header, as engines contain it. Returns the bytes, or 0: more than
 * `capacity`. */
static inline size_t fake_cuda_cubin(const char *text, void *to, size_t capacity)
{
    const Elf64_Ehdr header = {
        .e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
        .e_type = ET_EXEC,
        .e_machine = 190, /* CUDA */
        .e_version = EV_CURRENT,
        .e_ehsize = sizeof header,
    };
    size_t bytes = sizeof header + strlen(text) + 1;
    if (bytes > capacity) return 0;
    memcpy(to, &header, sizeof header);
    memcpy((char *)to + sizeof header, text, strlen(text) + 1);
    return bytes;
}

/* Calls that wait for an event, or ask whether it has completed. */
enum fake_cuda_wait {
    FAKE_CUDA_SPUN,  /* cuEventSynchronize, by which a driver keeps a processor busy */
    FAKE_CUDA_SLEPT, /* the same for an event of CU_EVENT_BLOCKING_SYNC: the thread sleeps */
    FAKE_CUDA_ASKED, /* cuEventQuery */
    FAKE_CUDA_WAITS
};

/* Runs instead of a kernel; arguments[i] points to argument i, as in cuLaunchKernel. */
typedef void fake_cuda_kernel(const char *entry, void *const *arguments, const unsigned grid[3],
                              const unsigned block[3], void *context);

/* The library's own functions, for dlsym. */
void fake_cuda_reset(
    void); /* reads the settings again, sets the counts of calls, kernels, misuse, waits and overlaps to 0 */
uint64_t fake_cuda_calls(void);   /* of the driver, so far */
uint64_t fake_cuda_kernels(void); /* that ran */
uint64_t fake_cuda_misuse(void);
uint64_t fake_cuda_waits(int kind); /* enum fake_cuda_wait */
/* Graphs that no event keeps apart from the graph launched before them, so that a GPU might run both at once. Requires: there is one GPU. Waits of the
 * host do not count. */
uint64_t fake_cuda_overlaps(void);
void fake_cuda_fail_next(
    uint64_t call);               /* call number `call` (from 1) from now on fails, as with FAKE_CUDA_FAIL_CALL */
int64_t fake_cuda_live(int kind); /* enum fake_cuda_kind; -1: all kinds */
void fake_cuda_register(const char *entry, fake_cuda_kernel *kernel, void *context); /* kernel NULL: nothing again */
/* The same for one that waits for kernels of other threads. Others run one at a time, under the driver's lock; this one
 * without it. */
void fake_cuda_register_waiting(const char *entry, fake_cuda_kernel *kernel, void *context);

#endif
