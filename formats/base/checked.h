/* SPDX-License-Identifier: Apache-2.0 */
/* Overflow-checked size arithmetic. Every size that comes from a file or a flag goes through these. */
#ifndef FORMATS_BASE_CHECKED_H
#define FORMATS_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Each returns false if the result does not fit; *out is then unspecified. */
static inline bool checked_add(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool checked_sub(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_sub_overflow(a, b, out); }
static inline bool checked_mul(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }

/* Rounds up to a multiple of `alignment`, a power of two. */
static inline bool checked_align(uint64_t value, uint64_t alignment, uint64_t *out)
{
    if (!checked_add(value, alignment - 1, out)) return false;
    *out &= ~(alignment - 1);
    return true;
}

/* Product of `count` factors; an empty product is 1. */
static inline bool checked_product(const uint64_t *factors, size_t count, uint64_t *out)
{
    *out = 1;
    for (size_t i = 0; i < count; i++)
        if (!checked_mul(*out, factors[i], out)) return false;
    return true;
}

/* True if [offset, offset + bytes) lies inside [0, limit). */
static inline bool checked_range(uint64_t offset, uint64_t bytes, uint64_t limit)
{
    return offset <= limit && bytes <= limit - offset;
}

#endif
