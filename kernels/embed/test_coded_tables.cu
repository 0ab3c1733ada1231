/* SPDX-License-Identifier: Apache-2.0 */
/* embed of a table of every encoding in FRAGMENT16 layout: compiled with all entries in one translation unit (kernels/BUILD),
 * never launched. */
#include "kernels/embed/embed.cuh"

template <int ENCODING> struct coded_table {
    static constexpr int ROWS = 16, COUNT_INDEX = 0, HIDDEN = 1000, PITCH = 1008, VOCAB = 333, TABLE_DTYPE = ENCODING;
    static constexpr int SHARDED = ENCODING % 2, OUT_DTYPE = DTYPE_BF16, SCALE_BITS = 0x3f800000;
    static constexpr int HAS_POSITIONS = 0, POSITION_DTYPE = DTYPE_F32, FOLLOWS = 0, OUT_ROWS = 1;
};

#define CODED_TABLE(encoding)                                                                                 \
    extern "C" __global__ void __launch_bounds__(LAYOUT_ELEMENTWISE_THREADS)                                  \
        embed_of_##encoding(const int *counts, const int *tokens, const void *table, void *out,               \
                            const comm_header *header)                                                        \
    {                                                                                                         \
        embed_body<coded_table<encoding>>::run(counts, tokens, table, out, header, nullptr, nullptr, nullptr, \
                                               nullptr);                                                      \
    }

CODED_TABLE(16)
CODED_TABLE(17)
CODED_TABLE(18)
CODED_TABLE(19)
CODED_TABLE(20)
CODED_TABLE(21)
CODED_TABLE(22)
CODED_TABLE(24)
CODED_TABLE(25)
CODED_TABLE(26)
CODED_TABLE(27)
CODED_TABLE(28)
CODED_TABLE(29)
CODED_TABLE(30)
CODED_TABLE(31)
CODED_TABLE(32)
CODED_TABLE(33)
CODED_TABLE(34)
CODED_TABLE(35)
CODED_TABLE(36)
