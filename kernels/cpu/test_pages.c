/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/test_pages.h"

#include "formats/encoding/encoding.h"

static void fill_row(struct test_random *random, const int64_t *params, uint8_t *codes, uint8_t *scale)
{
    const enum encoding_id encoding = (enum encoding_id)params[PAGED_KV_DTYPE];
    const int64_t head_dim = params[PAGED_HEAD_DIM];
    if (encoding_is_plain(encoding)) {
        if (test_is_poison(codes, 2)) test_fill(random, codes, (size_t)head_dim, (enum dtype)encoding, -1, 1);
        return;
    }
    if (!test_is_poison(scale, 4)) return;
    const bool is_int8 = encoding == ENCODING_INT8_CHANNEL;
    const float factor = test_random_float(random, 0.1f, 1) / (is_int8 ? 127.0f : 448.0f);
    memcpy(scale, &factor, sizeof factor);
    for (int64_t d = 0; d < head_dim; d++) {
        /* e4m3: the least numbers are among them. */
        const int64_t code = test_random_range(random, 0, 126), sign = test_random_range(random, 0, 1);
        codes[d] = (uint8_t)(is_int8 ? (sign ? -code : code) : code | sign << 7);
    }
}

void test_pages_fill(struct test_random *random, const struct pages *pages, const int64_t *params, int64_t slot,
                     int64_t token)
{
    for (int64_t g = 0; g < params[PAGED_KV_HEADS]; g++) {
        uint8_t *key = pages_key(pages, slot, token, g);
        uint8_t *scale = pages->scales ? pages_key_scale(pages, slot, token, g) : key;
        fill_row(random, params, key, scale);
        fill_row(random, params, key + pages->values, scale + pages->values);
    }
}

/* Codes of 8 bits as integers in the order of their numbers. */
static int code_order(uint8_t code, enum encoding_id encoding)
{
    if (encoding == ENCODING_INT8_CHANNEL) return (int8_t)code;
    return code & 0x80 ? -(code & 0x7f) : code;
}

/* A row that was computed with other roundings: its scale by a little, codes by one. Then it is as wanted. */
static void take_close_row(uint8_t *codes, uint8_t *at, const uint8_t *wanted, const uint8_t *wanted_at,
                           int64_t head_dim, enum encoding_id encoding, const char *what)
{
    float scale, wanted_scale;
    memcpy(&scale, at, sizeof scale);
    memcpy(&wanted_scale, wanted_at, sizeof scale);
    test_assert_close(&scale, &wanted_scale, 1, 0, 4e-6, what);
    for (int64_t i = 0; i < head_dim; i++)
        assert_in_range(code_order(codes[i], encoding) - code_order(wanted[i], encoding) + 1, 0, 2);
    memcpy(codes, wanted, (size_t)head_dim);
    memcpy(at, wanted_at, sizeof scale);
}

void test_pages_assert_coded_close(const struct pages *pages, const int64_t *params, const int32_t *slots,
                                   const int32_t *positions, int64_t count, size_t layer, bool with_values,
                                   const void *found, const void *expected, size_t bytes)
{
    const enum encoding_id encoding = (enum encoding_id)params[PAGED_KV_DTYPE];
    const int64_t head_dim = params[PAGED_HEAD_DIM];
    struct test_memory memory = {.count = 0};
    uint8_t *same = memcpy(test_take(&memory, bytes), found, bytes);
    struct pages own = *pages;
    own.first = same + layer;
    for (int64_t r = 0; r < count; r++)
        for (int64_t g = 0; g < params[PAGED_KV_HEADS]; g++) {
            uint8_t *codes = pages_key(&own, slots[r], positions[r], g);
            uint8_t *at = pages_key_scale(&own, slots[r], positions[r], g);
            const uint8_t *wanted = (const uint8_t *)expected + (codes - same),
                          *wanted_at = (const uint8_t *)expected + (at - same);
            take_close_row(codes, at, wanted, wanted_at, head_dim, encoding, "scale of a key");
            if (with_values)
                take_close_row(codes + own.values, at + own.values, wanted + own.values, wanted_at + own.values,
                               head_dim, encoding, "scale of a value");
        }
    test_assert_same_bits(same, expected, bytes, "values, their scales, and what no row has written");
    test_release(&memory);
}

void test_pages_assert_close(const void *found, const void *expected, size_t bytes, enum dtype dtype, double relative)
{
    const uint8_t *a = found, *b = expected;
    for (size_t i = 0; i < bytes / 2; i++) {
        if (memcmp(a + 2 * i, b + 2 * i, 2) == 0) continue;
        assert_false(test_is_poison(a + 2 * i, 2));
        assert_false(test_is_poison(b + 2 * i, 2));
        const float value = op_element(a, (int64_t)i, dtype), wanted = op_element(b, (int64_t)i, dtype);
        test_assert_close(&value, &wanted, 1, 4e-6, relative, "kv");
    }
}
