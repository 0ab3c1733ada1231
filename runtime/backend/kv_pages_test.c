/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of a KV pool for what a caller asks for, with one page group and with windows. */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "runtime/backend/backend.h"

enum { SLOTS = 4, CONTEXT = 1600, PAGE = 16, BYTES = 1024, CHUNK = 16, RING = 6 /* of a window of 64 */ };

static struct plan_geometry make_geometry(unsigned groups, uint64_t window)
{
    struct plan_geometry geometry = {.slots = SLOTS,
                                     .max_context = CONTEXT,
                                     .page_tokens = PAGE,
                                     .pages_per_slot = CONTEXT / PAGE,
                                     .page_bytes = BYTES,
                                     .page_groups = groups};
    geometry.page_window[0] = window;
    return geometry;
}

static void expect_pages(const struct plan_geometry *geometry, uint64_t kv_tokens, uint64_t kv_bytes, uint64_t room,
                         uint64_t expected)
{
    const struct backend_options options = {.kv_tokens = kv_tokens, .kv_bytes = kv_bytes, .chunk = CHUNK};
    struct status status = {0};
    uint64_t pages;
    test_expect_success(backend_kv_pages(geometry, &options, room, &pages, &status), &status);
    assert_int_equal(pages, expected);
}

TEST(one_group_without_a_window)
{
    const struct plan_geometry geometry = make_geometry(1, 0);
    expect_pages(&geometry, 1, 0, 0, 1);
    expect_pages(&geometry, 17, 0, 0, 2);
    expect_pages(&geometry, UINT64_MAX, 0, 0, SLOTS * 100);
    expect_pages(&geometry, 0, 3 * BYTES + 1, 0, 3);
    expect_pages(&geometry, 0, 0, 0, 100);
    expect_pages(&geometry, 0, 0, 150 * BYTES, 150);
    expect_pages(&geometry, 0, 0, UINT64_MAX, SLOTS * 100);
}

/* A sequence holds at most RING pages of the first group; kv_tokens is enough for these tokens, however they are divided among the
 * slots. */
TEST(two_groups)
{
    const struct plan_geometry geometry = make_geometry(2, 64);
    expect_pages(&geometry, 1, 0, 0, 2);
    expect_pages(&geometry, 64, 0, 0, 8);
    expect_pages(&geometry, CONTEXT, 0, 0, SLOTS * RING + 100);
    expect_pages(&geometry, UINT64_MAX, 0, 0, SLOTS * (RING + 100));
    expect_pages(&geometry, 0, 2 * BYTES, 0, 2);
    expect_pages(&geometry, 0, 0, 0, RING + 100);
    expect_pages(&geometry, 0, 0, UINT64_MAX, SLOTS * (RING + 100));
}

/* For two of four slots: an eighth of the room, but for a context at least, and no more than two contexts. */
TEST(a_pool_beside_a_larger_one)
{
    const struct plan_geometry geometry = make_geometry(1, 0);
    static const struct {
        uint64_t kv_tokens, room, expected;
    } cases[] = {{0, 0, 100}, {0, 8 * 150 * BYTES, 150}, {0, UINT64_MAX, 200}, {17, 0, 2}, {UINT64_MAX, 0, 200}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct backend_options options = {.kv_tokens = cases[i].kv_tokens, .chunk = CHUNK, .sequences = 2};
        struct status status = {0};
        uint64_t pages;
        test_expect_success(backend_kv_pages(&geometry, &options, cases[i].room, &pages, &status), &status);
        assert_int_equal(pages, cases[i].expected);
    }
}

TEST(a_page_of_each_group_is_the_least)
{
    const struct plan_geometry geometry = make_geometry(2, 64);
    const struct backend_options options = {.kv_bytes = 2 * BYTES - 1, .chunk = CHUNK};
    struct status status = {0};
    uint64_t pages;
    bool ok = backend_kv_pages(&geometry, &options, 0, &pages, &status);
    test_expect_failure(ok, &status, STATUS_USAGE,
                        "expected room for 2 KV pages of 1024 bytes (16 tokens), found 2047");
}

TEST(page_numbers_fit_into_32_bits)
{
    struct plan_geometry geometry = make_geometry(2, 0);
    geometry.slots = UINT64_C(1) << 16;
    geometry.max_context = UINT64_C(1) << 30;
    geometry.pages_per_slot = geometry.max_context / PAGE;
    expect_pages(&geometry, 0, 0, UINT64_MAX, INT32_MAX);
    geometry.page_window[0] = geometry.page_window[1] = geometry.max_context;
    expect_pages(&geometry, UINT64_MAX, 0, 0, INT32_MAX);
}

int main(void) { return test_run(); }
