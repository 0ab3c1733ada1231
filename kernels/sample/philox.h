/* SPDX-License-Identifier: Apache-2.0 */
/* Philox 4x32-10, the counter-based random number generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers:
 * as easy as 1, 2, 3" (2011): a keyed bijection of 128-bit counters, so the n-th number needs no state but n. Plain
 * integer arithmetic, so that host and device code can share it. */
#ifndef KERNELS_SAMPLE_PHILOX_H
#define KERNELS_SAMPLE_PHILOX_H

#include <stdint.h>

struct philox_words {
    uint32_t word[4];
};

static inline struct philox_words philox(struct philox_words counter, uint32_t key_0, uint32_t key_1)
{
    const uint64_t multiplier_0 = 0xD2511F53u, multiplier_1 = 0xCD9E8D57u;
    const uint32_t weyl_0 = 0x9E3779B9u, weyl_1 = 0xBB67AE85u;
    for (int round = 0; round < 10; round++) {
        uint64_t product_0 = multiplier_0 * counter.word[0], product_1 = multiplier_1 * counter.word[2];
        struct philox_words next;
        next.word[0] = (uint32_t)(product_1 >> 32) ^ counter.word[1] ^ key_0;
        next.word[1] = (uint32_t)product_1;
        next.word[2] = (uint32_t)(product_0 >> 32) ^ counter.word[3] ^ key_1;
        next.word[3] = (uint32_t)product_0;
        counter = next;
        key_0 += weyl_0;
        key_1 += weyl_1;
    }
    return counter;
}

enum { PHILOX_UNIFORM_BITS = 24 };

/* The draw's uniform number u(seed, draw) = result / 2^24, in [0, 1). */
static inline uint32_t philox_uniform_24(uint64_t seed, uint64_t draw)
{
    struct philox_words counter = {{(uint32_t)draw, (uint32_t)(draw >> 32), 0, 0}};
    return philox(counter, (uint32_t)seed, (uint32_t)(seed >> 32)).word[0] >> (32 - PHILOX_UNIFORM_BITS);
}

#endif
