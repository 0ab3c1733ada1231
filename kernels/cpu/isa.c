/* SPDX-License-Identifier: Apache-2.0 */
/* Instruction sets that this processor has and whose registers the operating system saves. */
#include "kernels/op/op.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/tile_config.h"

/* Extended control register 0: state components that the operating system has enabled (Intel SDM volume 1, chapter
 * 13.3). */
static uint64_t enabled_states(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Whether there are AMX tile registers of the known sizes, with products of bf16 and int8, that this process may use. Linux
 * saves them for a process after it has asked, since they enlarge the frames of its signal handlers; it refuses where a
 * thread's alternate signal stack is too small for them, or a filter of system calls does. */
static bool has_tiles(uint64_t states)
{
    /* Bits of edx of leaf 7; cpuid.h of clang 14 has other names for them. */
    const unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24, amx_int8 = 1u << 25;
    enum { TILE_STATES = 0x60000 /* shapes, contents */, TILE_CONTENTS = 18, ASK_FOR_STATE = 0x1023 };
    unsigned eax, ebx, ecx, edx;
    if ((states & TILE_STATES) != TILE_STATES || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    const unsigned amx = amx_tile | amx_bf16 | amx_int8;
    if ((edx & amx) != amx || !__get_cpuid_count(0x1d, TILE_PALETTE, &eax, &ebx, &ecx, &edx)) return false;
    const bool known = eax >> 16 == TILE_ROWS * TILE_ROW_BYTES && (ebx & 0xffff) == TILE_ROW_BYTES &&
                       ebx >> 16 == TILE_REGISTERS && (ecx & 0xffff) == TILE_ROWS;
    return known && syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_CONTENTS) == 0;
}

static enum cpu_isa detect(void)
{
    enum { YMM_STATES = 0x6 /* xmm, ymm */, ZMM_STATES = 0xe6 /* and opmask, zmm0-15 upper halves, zmm16-31 */ };
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return CPU_PORTABLE;
    bool has_os_save = ecx & bit_OSXSAVE, has_avx = ecx & bit_AVX, has_fma = ecx & bit_FMA, has_f16c = ecx & bit_F16C;
    if (!has_os_save || !has_avx || !has_fma || !has_f16c) return CPU_PORTABLE;
    uint64_t states = enabled_states();
    if ((states & YMM_STATES) != YMM_STATES) return CPU_PORTABLE;

    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return CPU_PORTABLE;
    unsigned subleaves = eax;
    if (!(ebx & bit_AVX2)) return CPU_PORTABLE;
    unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    if ((ebx & avx512) != avx512 || (states & ZMM_STATES) != ZMM_STATES) return CPU_AVX2;

    enum { AVX512_BF16 = 1 << 5 }; /* leaf 7, subleaf 1, eax */
    if (!(ecx & bit_AVX512VNNI)) return CPU_AVX512;
    if (subleaves < 1 || !__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) return CPU_AVX512VNNI;
    if (!(eax & AVX512_BF16)) return CPU_AVX512VNNI; /* every processor with BF16 has VNNI */
    return has_tiles(states) ? CPU_AMX : CPU_AVX512BF16;
}
#else
static enum cpu_isa detect(void) { return CPU_PORTABLE; }
#endif

enum cpu_isa cpu_isa_best(void)
{
    /* Kept after the first call: the answer never changes, under a hypervisor CPUID traps and costs microseconds, and tile
     * registers are asked for once.
     * Threads that race store the same value. */
    static _Atomic int known = -1;
    int isa = atomic_load_explicit(&known, memory_order_relaxed);
    if (isa < 0) {
        isa = (int)detect();
        atomic_store_explicit(&known, isa, memory_order_relaxed);
    }
    return (enum cpu_isa)isa;
}

const char *cpu_isa_name(enum cpu_isa isa)
{
    switch (isa) {
    case CPU_PORTABLE: return "portable";
    case CPU_AVX2: return "avx2";
    case CPU_AVX512: return "avx512";
    case CPU_AVX512VNNI: return "avx512vnni";
    case CPU_AVX512BF16: return "avx512bf16";
    case CPU_AMX: return "amx";
    case CPU_ISA_COUNT: break;
    }
    return "?";
}

bool cpu_isa_supported(enum cpu_isa isa) { return (int)isa >= CPU_PORTABLE && isa <= cpu_isa_best(); }
