/* SPDX-License-Identifier: Apache-2.0 */
/* The pool under random use, against a model that knows every text from its beginning: a block is found only by the whole text that led
 * to it, no page is lost or in two places, and no held page is taken. */
#include "runtime/session/page_pool.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <string.h>

enum { PAGES = 48, GROUPS = 2, PAGE_TOKENS = 2, HOLDERS = 5, MOST_BLOCKS = 6, TEXT = MOST_BLOCKS * PAGE_TOKENS };

struct holder {
    bool holds;
    int32_t text[TEXT];
    uint32_t blocks;
    int32_t pages[MOST_BLOCKS][GROUPS];
};

struct fixture {
    struct page_pool pool;
    struct holder holders[HOLDERS];
    int32_t written[PAGES][TEXT]; /* the text up to the end of the page, as its writer knew it */
    uint32_t lengths[PAGES];
    uint64_t random;
};

static void check_pool(const struct fixture *f)
{
    uint32_t held[PAGES] = {0}, idle = 0;
    for (int h = 0; h < HOLDERS; h++)
        for (uint32_t b = 0; f->holders[h].holds && b < f->holders[h].blocks; b++)
            for (int g = 0; g < GROUPS; g++) held[f->holders[h].pages[b][g]]++;
    bool is_free[PAGES] = {false};
    for (uint32_t i = 0; i < f->pool.free_count; i++) {
        assert_false(is_free[f->pool.free[i]]);
        is_free[f->pool.free[i]] = true;
    }
    for (int p = 0; p < PAGES; p++) {
        assert_int_equal(f->pool.holders[p], held[p]);
        if (is_free[p]) assert_int_equal(held[p], 0);
        idle += !is_free[p] && !held[p];
    }
    assert_int_equal(idle, f->pool.idle_count);
}

static void let_go(struct fixture *f, struct holder *holder)
{
    for (int g = 0; g < GROUPS; g++)
        for (uint32_t b = holder->blocks; b-- > 0;) page_pool_drop(&f->pool, holder->pages[b][g]);
    holder->holds = false;
}

/* Texts share beginnings: each token is one of two. */
static void begin(struct fixture *f, struct holder *holder, uint32_t *found)
{
    uint64_t number = page_pool_root(0);
    const uint32_t wanted = 1 + (uint32_t)(test_random(&f->random) % MOST_BLOCKS);
    *holder = (struct holder){.holds = true};
    for (int i = 0; i < TEXT; i++) holder->text[i] = (int32_t)(test_random(&f->random) % 2);
    for (; holder->blocks < wanted; holder->blocks++) {
        const uint32_t end = (holder->blocks + 1) * PAGE_TOKENS;
        const int32_t block = page_pool_find(&f->pool, number, holder->text + end - PAGE_TOKENS);
        if (block == PAGE_POOL_NONE) break;
        memcpy(holder->pages[holder->blocks], page_pool_hold(&f->pool, block), sizeof holder->pages[0]);
        number = page_pool_number(&f->pool, block);
        for (int g = 0; g < GROUPS; g++) {
            const int32_t page = holder->pages[holder->blocks][g];
            assert_int_equal(f->lengths[page], end);
            assert_memory_equal(f->written[page], holder->text, end * sizeof *holder->text);
        }
        ++*found;
    }
    for (; holder->blocks < wanted && page_pool_available(&f->pool) >= GROUPS; holder->blocks++) {
        const uint32_t end = (holder->blocks + 1) * PAGE_TOKENS;
        for (int g = 0; g < GROUPS; g++) {
            const int32_t page = holder->pages[holder->blocks][g] = page_pool_take(&f->pool);
            f->lengths[page] = end;
            memcpy(f->written[page], holder->text, end * sizeof *holder->text);
        }
        const uint64_t kept =
            page_pool_keep(&f->pool, number, holder->text + end - PAGE_TOKENS, holder->pages[holder->blocks]);
        assert_true(kept != number && kept > page_pool_root(1));
        number = kept;
    }
}

/* Another holder may have the block, too, or have made it, and it may have left the cache before. */
static void forget(struct fixture *f, int32_t page)
{
    page_pool_forget(&f->pool, page);
    assert_int_equal(f->pool.block_of[page], PAGE_POOL_NONE);
    check_pool(f);
}

TEST(blocks_are_found_by_the_whole_text_before_them)
{
    static struct fixture f;
    uint32_t found = 0, taken = 0;
    f.random = 7;
    assert_true(page_pool_open(&f.pool, PAGES, GROUPS, PAGE_TOKENS, true));
    for (int step = 0; step < 20000; step++) {
        struct holder *holder = &f.holders[test_random(&f.random) % HOLDERS];
        if (holder->holds && holder->blocks && test_random(&f.random) % 4 == 0)
            forget(&f, holder->pages[test_random(&f.random) % holder->blocks][test_random(&f.random) % GROUPS]);
        if (holder->holds) let_go(&f, holder);
        if (test_random(&f.random) % 4) begin(&f, holder, &found), taken += holder->blocks;
        check_pool(&f);
    }
    for (int h = 0; h < HOLDERS; h++)
        if (f.holders[h].holds) let_go(&f, &f.holders[h]);
    assert_int_equal(page_pool_available(&f.pool), PAGES);
    assert_in_range(found, taken / 10, taken - taken / 10); /* both ways were gone often */
    page_pool_close(&f.pool);
}

TEST(the_least_recently_used_block_goes_first)
{
    struct page_pool pool;
    static const int32_t texts[3][PAGE_TOKENS] = {{1, 1}, {2, 2}, {3, 3}};
    assert_true(page_pool_open(&pool, 3, 1, PAGE_TOKENS, true));
    for (int i = 0; i < 3; i++) {
        const int32_t page = page_pool_take(&pool);
        page_pool_keep(&pool, page_pool_root(0), texts[i], &page);
        page_pool_drop(&pool, page);
    }
    assert_int_equal(pool.idle_count, 3);
    page_pool_drop(&pool, *page_pool_hold(&pool, page_pool_find(&pool, page_pool_root(0), texts[0])));
    page_pool_drop(&pool, page_pool_take(&pool));
    assert_int_equal(page_pool_find(&pool, page_pool_root(0), texts[1]), PAGE_POOL_NONE);
    assert_true(page_pool_find(&pool, page_pool_root(0), texts[0]) != PAGE_POOL_NONE);
    assert_true(page_pool_find(&pool, page_pool_root(0), texts[2]) != PAGE_POOL_NONE);
    /* Other rotary frequencies, other pages. */
    assert_int_equal(page_pool_find(&pool, page_pool_root(1), texts[0]), PAGE_POOL_NONE);
    page_pool_close(&pool);
}

TEST(a_block_that_is_forgotten_is_found_no_more)
{
    struct page_pool pool;
    static const int32_t text[PAGE_TOKENS] = {1, 1};
    int32_t pages[GROUPS];
    assert_true(page_pool_open(&pool, 2 * GROUPS, GROUPS, PAGE_TOKENS, true));
    for (int g = 0; g < GROUPS; g++) pages[g] = page_pool_take(&pool);
    page_pool_keep(&pool, page_pool_root(0), text, pages);
    page_pool_hold(&pool, page_pool_find(&pool, page_pool_root(0), text)); /* by a second slot */
    page_pool_forget(&pool, pages[GROUPS - 1]);
    page_pool_forget(&pool, pages[GROUPS - 1]); /* it is not in the cache any more */
    assert_int_equal(page_pool_find(&pool, page_pool_root(0), text), PAGE_POOL_NONE);
    for (int g = 0; g < GROUPS; g++) page_pool_drop(&pool, pages[g]);
    assert_int_equal(pool.free_count, GROUPS); /* the second slot has them */
    /* Computed again by another slot, the text is known again. */
    int32_t others[GROUPS];
    for (int g = 0; g < GROUPS; g++) others[g] = page_pool_take(&pool);
    page_pool_keep(&pool, page_pool_root(0), text, others);
    assert_int_equal(page_pool_find(&pool, page_pool_root(0), text), others[0]);
    for (int g = 0; g < GROUPS; g++) page_pool_drop(&pool, pages[g]);
    assert_int_equal(pool.free_count, GROUPS);
    for (int g = 0; g < GROUPS; g++) page_pool_drop(&pool, others[g]);
    assert_int_equal(pool.idle_count, GROUPS);
    page_pool_close(&pool);
}

TEST(a_proven_block_is_not_forgotten)
{
    struct page_pool pool;
    static const int32_t texts[2][PAGE_TOKENS] = {{1, 1}, {2, 2}};
    int32_t pages[GROUPS];
    assert_true(page_pool_open(&pool, GROUPS, GROUPS, PAGE_TOKENS, true));
    for (int i = 0; i < 2; i++) {
        for (int g = 0; g < GROUPS; g++) pages[g] = page_pool_take(&pool);
        page_pool_prove(&pool, pages[0]); /* it is not in the cache yet */
        page_pool_keep(&pool, page_pool_root(0), texts[i], pages);
        if (i == 0) page_pool_prove(&pool, pages[GROUPS - 1]);
        page_pool_forget(&pool, pages[0]);
        /* The second text has the pages of the first one, which was proven. */
        assert_int_equal(page_pool_find(&pool, page_pool_root(0), texts[i]) == PAGE_POOL_NONE, i == 1);
        for (int g = 0; g < GROUPS; g++) page_pool_drop(&pool, pages[g]);
    }
    assert_int_equal(pool.free_count, GROUPS);
    page_pool_close(&pool);
}

TEST(without_a_cache_nothing_is_found)
{
    struct page_pool pool;
    static const int32_t text[PAGE_TOKENS] = {1, 1};
    assert_true(page_pool_open(&pool, 2, 1, PAGE_TOKENS, false));
    const int32_t page = page_pool_take(&pool);
    assert_int_equal(page_pool_find(&pool, page_pool_root(0), text), PAGE_POOL_NONE);
    page_pool_drop(&pool, page);
    assert_int_equal(pool.free_count, 2);
    page_pool_close(&pool);
}

int main(void) { return test_run(); }
