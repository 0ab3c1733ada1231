/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of codes that are indices of a table, in FRAGMENT16 layout (panel.h). */
#ifndef KERNELS_MATMUL_FRAGMENT_TABLE_CUH
#define KERNELS_MATMUL_FRAGMENT_TABLE_CUH

#include "kernels/cuda/include/ptx.cuh"
#include "kernels/matmul/fragment_layout.cuh"

template <int ENCODING> struct fragment_table {
    /* Bytes `byte` (0: the lower ones) of the bfloat16 of codes 4 word to 4 word + 3. */
    static __device__ constexpr u32 bytes(int word, int byte)
    {
        u32 all = 0;
        for (int i = 0; i < 4; i++) all |= (u32)(fragment_number(ENCODING, 4 * word + i) >> 8 * byte & 0xff) << 8 * i;
        return all;
    }

    /* One byte of the numbers of the four codes in the lower half of `codes`. A permutation chooses among eight bytes by three bits
     * of a code; `upper` has 0xff where the fourth bit is set. */
    template <int BYTE> static __device__ __forceinline__ u32 look_up_bytes(u32 codes, u32 upper)
    {
        constexpr u32 WORDS[4] = {bytes(0, BYTE), bytes(1, BYTE), bytes(2, BYTE), bytes(3, BYTE)};
        const u32 low = __byte_perm(WORDS[0], WORDS[1], codes), high = __byte_perm(WORDS[2], WORDS[3], codes);
        return (low & ~upper) | (high & upper);
    }

    /* Two pairs of bfloat16: of the first two codes in the lower half of `codes`, and of the next two. */
    static __device__ __forceinline__ void look_up(u32 &first, u32 &second, u32 codes)
    {
        const u32 upper = __byte_perm(0xff00, 0, codes >> 3 & 0x1111), lower = codes & 0x7777;
        const u32 low = look_up_bytes<0>(lower, upper), high = look_up_bytes<1>(lower, upper);
        first = __byte_perm(low, high, 0x5140);
        second = __byte_perm(low, high, 0x7362);
    }
};

#endif
