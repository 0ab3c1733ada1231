/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/probe.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/cpu/vector_portable.h"

#include "kernels/cpu/probe_vector.h"

static uint64_t probe_sum_portable(const uint8_t *piece) { return probe_sum(piece); }
static float probe_chains_portable(void) { return probe_chains(); }

struct probe {
    const uint8_t *memory;
    uint64_t pieces;
    uint64_t (*sum)(const uint8_t *piece);
    float (*chains)(void);
    atomic_uint_fast64_t sink; /* a use of the result, so that the work is not optimised away */
};

static int set_loops(struct probe *probe, enum cpu_isa isa)
{
    probe->sum = probe_sum_portable;
    probe->chains = probe_chains_portable;
#if defined(__x86_64__)
    if (isa >= CPU_AVX512) {
        probe->sum = probe_sum_avx512;
        probe->chains = probe_chains_avx512;
        return 16;
    }
    if (isa == CPU_AVX2) {
        probe->sum = probe_sum_avx2;
        probe->chains = probe_chains_avx2;
        return 8;
    }
#else
    (void)isa;
#endif
    return 4;
}

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void read_pieces(void *argument, struct team_member *member)
{
    struct probe *probe = argument;
    uint64_t total = 0, piece;
    while ((piece = team_ticket(member)) < probe->pieces)
        total ^= probe->sum(probe->memory + piece * PROBE_PIECE_BYTES);
    atomic_fetch_xor(&probe->sink, total);
}

bool probe_read(struct team *team, enum cpu_isa isa, uint64_t bytes, int passes, double *rates, struct status *status)
{
    enum { WARM_UP = 2 }; /* the first passes fill the page tables */
    struct probe probe = {.pieces = bytes / PROBE_PIECE_BYTES};
    set_loops(&probe, isa);
    bytes = probe.pieces * PROBE_PIECE_BYTES;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return status_fail(status, STATUS_MACHINE, "cannot allocate %llu MB to measure the memory's read bandwidth",
                           (unsigned long long)(bytes >> 20));
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes); /* untouched pages would all be the same zero page */
    probe.memory = memory;
    for (int pass = -WARM_UP; pass < passes; pass++) {
        double start = now_seconds();
        team_run(team, read_pieces, &probe);
        if (pass >= 0) rates[pass] = (double)bytes / (now_seconds() - start) * 1e-9;
    }
    munmap(memory, bytes);
    return true;
}

static void run_chains(void *argument, struct team_member *member)
{
    struct probe *probe = argument;
    (void)member;
    atomic_fetch_xor(&probe->sink, (uint64_t)probe->chains());
}

double probe_peak_gflops(struct team *team, enum cpu_isa isa, int passes)
{
    struct probe probe = {0};
    double lanes = set_loops(&probe, isa), best = 0;
    for (int pass = 0; pass < passes; pass++) {
        double start = now_seconds();
        team_run(team, run_chains, &probe);
        double flops = 2.0 * PROBE_ROUNDS * PROBE_CHAINS * lanes * team_size(team);
        double rate = flops / (now_seconds() - start) * 1e-9;
        if (rate > best) best = rate;
    }
    return best;
}
