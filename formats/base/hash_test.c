/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3-64: the published values, and the same values with every vector width of this processor, whole and in pieces. */
#include "formats/base/hash.h"
#include "formats/base/hash_wide.h"
#include "formats/base/test_support.h"

#include <xxhash.h>

enum { BYTES = 100000 };
static uint8_t data[BYTES];

static int fill(void **state)
{
    uint64_t word = 7;
    for (size_t i = 0; i < BYTES; i++) data[i] = (uint8_t)test_random(&word);
    return 0;
}

/* From xxHash's self-test: the empty input, and bytes of its generator. */
TEST(values_are_those_of_xxhash)
{
    enum { SELF_TEST_BYTES = 2367 };
    static uint8_t input[SELF_TEST_BYTES];
    uint64_t generator = UINT64_C(2654435761);
    for (size_t i = 0; i < SELF_TEST_BYTES; i++) {
        input[i] = (uint8_t)(generator >> 56);
        generator *= UINT64_C(11400714785074694797);
    }
    assert_int_equal(hash64(input, 0), UINT64_C(0x2d06800538d394c2));
    assert_int_equal(hash64(input, 1), UINT64_C(0xc44bdff4074eecdb));
    assert_int_equal(hash64(input, 403), UINT64_C(0xcdeb804d65c6dea4));
    assert_int_equal(hash64(input, 2048), UINT64_C(0xdd59e2c3a5f038e0));
    assert_int_equal(hash64(input, 2240), UINT64_C(0x6e73a90539cf2948));
    assert_int_equal(hash64(input, 2367), UINT64_C(0xcb37aeb9e5d361ed));
}

static uint64_t in_pieces(size_t offset, size_t size, size_t most, uint64_t *word)
{
    struct hash64_stream *stream = hash64_stream_begin();
    assert_non_null(stream);
    for (size_t done = 0; done < size;) {
        size_t piece = 1 + test_random(word) % most;
        if (piece > size - done) piece = size - done;
        hash64_stream_add(stream, data + offset + done, piece);
        done += piece;
    }
    return hash64_stream_end(stream);
}

#if defined __x86_64__
static uint64_t by(void (*add)(void *, const void *, size_t), size_t offset, size_t size)
{
    struct hash64_stream *stream = hash64_stream_begin();
    assert_non_null(stream);
    add(stream, data + offset, size / 3);
    add(stream, data + offset + size / 3, size - size / 3);
    return hash64_stream_end(stream);
}
#endif

/* This file's copy of xxHash, for the compiler's base instructions. */
TEST(every_width_agrees)
{
    uint64_t word = 3;
    for (int round = 0; round < 2000; round++) {
        const size_t offset = test_random(&word) % 64, size = test_random(&word) % (round % 4 ? 3000 : BYTES - 64);
        const uint64_t expected = XXH3_64bits(data + offset, size);
        assert_int_equal(hash64(data + offset, size), expected);
        assert_int_equal(in_pieces(offset, size, round % 3 ? 5000 : 300, &word), expected);
#if defined __x86_64__
        if (__builtin_cpu_supports("avx2")) assert_int_equal(by(hash64_add_avx2, offset, size), expected);
        if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
            assert_int_equal(by(hash64_add_avx512, offset, size), expected);
#endif
    }
}

int main(void) { return test_run_with(fill, NULL, NULL, NULL); }
