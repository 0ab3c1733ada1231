#include "tuner/machine.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tuner/clock.h"

enum { PROBE_BYTES = 256 << 20, PROBE_PASSES = 5, PEAK_CHAINS = 16, PEAK_ROUNDS = 200000 };

static void processor_name(char *out, size_t size)
{
    snprintf(out, size, "unknown processor");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return;
    char line[256], family[32] = "", model[32] = "", name[128] = "";
    while (fgets(line, sizeof line, file) && line[0] != '\n') {
        char *colon = strchr(line, ':');
        if (!colon) continue;
        char *value = colon + 1 + strspn(colon + 1, " \t");
        value[strcspn(value, "\n")] = '\0';
        if (strncmp(line, "model name", 10) == 0) snprintf(name, sizeof name, "%s", value);
        else if (strncmp(line, "cpu family", 10) == 0) snprintf(family, sizeof family, "%s", value);
        else if (strncmp(line, "model\t", 6) == 0) snprintf(model, sizeof model, "%s", value);
    }
    fclose(file);
    /* Hypervisors often give one vague name to several processors: family and model tell them apart. */
    if (name[0]) snprintf(out, size, "%s (family %s model %s)", name, family, model);
}

void machine_describe(struct machine *machine, const struct team *team)
{
    memset(machine, 0, sizeof *machine);
    processor_name(machine->name, sizeof machine->name);
    machine->isa = cpu_isa_best();
    machine->threads = team_size(team);
}

typedef uint64_t word8 __attribute__((vector_size(64)));
typedef float float16v __attribute__((vector_size(64)));

struct probe {
    const uint8_t *memory;
    uint64_t sums[TEAM_MAX_THREADS];
    float tops[TEAM_MAX_THREADS];
    enum cpu_isa isa;
};

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx512f,fma"), noinline))
#define MIDDLE __attribute__((target("avx2,fma"), noinline))
#else
#define WIDE __attribute__((noinline))
#define MIDDLE __attribute__((noinline))
#endif

/* Reads a share of the memory with vectors of 64 bytes; four streams of additions hide their latency. */
#define DEFINE_READ(name, attributes)                                                              \
    attributes static uint64_t name(const uint8_t *memory, uint64_t bytes)                         \
    {                                                                                              \
        const word8 *at = (const word8 *)(const void *)memory, *end = at + bytes / sizeof(word8);  \
        word8 a = {0}, b = {0}, c = {0}, d = {0};                                                  \
        for (; at + 4 <= end; at += 4) {                                                           \
            a += at[0];                                                                            \
            b += at[1];                                                                            \
            c += at[2];                                                                            \
            d += at[3];                                                                            \
        }                                                                                          \
        a += b + c + d;                                                                            \
        return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];                              \
    }
DEFINE_READ(read_wide, WIDE)
DEFINE_READ(read_middle, MIDDLE)
DEFINE_READ(read_plain, __attribute__((noinline)))

/* PEAK_ROUNDS rounds of PEAK_CHAINS independent multiply-adds on `lanes` floats. */
#define DEFINE_PEAK(name, attributes, vector, lanes)                                               \
    attributes static float name(void)                                                             \
    {                                                                                              \
        vector x[PEAK_CHAINS], m, a;                                                               \
        for (int l = 0; l < (lanes); l++) m[l] = 0.999f, a[l] = 0.001f;                            \
        for (int i = 0; i < PEAK_CHAINS; i++) x[i] = m * (float)i;                                 \
        for (int r = 0; r < PEAK_ROUNDS; r++) {                                                    \
            _Pragma("GCC unroll 16") for (int i = 0; i < PEAK_CHAINS; i++) x[i] = x[i] * m + a;    \
        }                                                                                          \
        float top = 0;                                                                             \
        for (int i = 0; i < PEAK_CHAINS; i++) top += x[i][0];                                      \
        return top;                                                                                \
    }
typedef float float8v __attribute__((vector_size(32)));
typedef float float4v __attribute__((vector_size(16)));
/* The peak is one of fused multiply-adds, which the build otherwise forbids the compiler to form. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#else
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif
DEFINE_PEAK(peak_wide, WIDE, float16v, 16)
DEFINE_PEAK(peak_middle, MIDDLE, float8v, 8)
DEFINE_PEAK(peak_plain, __attribute__((noinline)), float4v, 4)
#if !defined(__clang__)
#pragma GCC pop_options
#endif

static int probe_lanes(enum cpu_isa isa) { return isa >= CPU_AVX512 ? 16 : isa == CPU_AVX2 ? 8 : 4; }

static void read_share(void *argument, struct team_member *member)
{
    struct probe *probe = argument;
    uint64_t share = PROBE_BYTES / (uint64_t)member->count / 4096 * 4096;
    const uint8_t *at = probe->memory + (uint64_t)member->index * share;
    probe->sums[member->index] = probe->isa >= CPU_AVX512 ? read_wide(at, share)
                                 : probe->isa == CPU_AVX2 ? read_middle(at, share)
                                                          : read_plain(at, share);
}

static void peak_share(void *argument, struct team_member *member)
{
    struct probe *probe = argument;
    probe->tops[member->index] = probe->isa >= CPU_AVX512 ? peak_wide()
                                 : probe->isa == CPU_AVX2 ? peak_middle()
                                                          : peak_plain();
}

bool machine_probe(struct machine *machine, struct team *team, struct status *status)
{
    machine_describe(machine, team);
    void *memory = mmap(NULL, PROBE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return status_fail(status, STATUS_MACHINE, "cannot allocate %d MB to measure memory bandwidth",
                           PROBE_BYTES >> 20);
    memset(memory, 0x5a, PROBE_BYTES);
    struct probe probe = {.memory = memory, .isa = machine->isa};
    double share = (double)(PROBE_BYTES / (uint64_t)machine->threads / 4096 * 4096) * machine->threads;
    for (int pass = 0; pass < PROBE_PASSES; pass++) {
        double start = clock_us();
        team_run(team, read_share, &probe);
        double rate = share / (clock_us() - start) * 1e-3;
        if (rate > machine->read_gb_s) machine->read_gb_s = rate;
        start = clock_us();
        team_run(team, peak_share, &probe);
        double flops = 2.0 * PEAK_ROUNDS * PEAK_CHAINS * probe_lanes(probe.isa) * machine->threads;
        rate = flops / (clock_us() - start) * 1e-3;
        if (rate > machine->peak_gflops) machine->peak_gflops = rate;
    }
    munmap(memory, PROBE_BYTES);
    return true;
}

double roofline_us(const struct machine *machine, uint64_t bytes, uint64_t flops)
{
    if (machine->read_gb_s <= 0 || machine->peak_gflops <= 0) return 0;
    double memory_us = (double)bytes / machine->read_gb_s * 1e-3;
    double compute_us = (double)flops / machine->peak_gflops * 1e-3;
    return memory_us > compute_us ? memory_us : compute_us;
}
