/* SPDX-License-Identifier: Apache-2.0 */
/* KV pages of slots under random use, also of slots that begin at checkpoints: every token that a step reads is still where it was
 * written, no page belongs to two slots, and none is lost. A model of the pool records which token each place of a page holds. */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "runtime/session/session.h"

enum {
    SLOTS = 3,
    CONTEXT = 96,
    VOCAB = 8,
    MOST_GROUPS = 4,
    MOST_PAGES = 256,
    MOST_PAGE_TOKENS = 8,
    ROUNDS = 60,
    STEPS = 400,
    CHECKPOINTS = 5
};
enum { JUNK = -1, UNWRITTEN = -2 };

struct fixture {
    struct plan_geometry geometry;
    struct backend_type type; /* repeat_page: nothing is replayed */
    struct backend backend;
    struct eng_session session;
    struct session_slot slots[SLOTS];
    struct sampler_state samplers[SLOTS];
    uint8_t seen[SLOTS];
    int32_t history[SLOTS][CONTEXT];
    int32_t *table;
    int64_t pool[MOST_PAGES][MOST_PAGE_TOKENS]; /* a number for each token that was written, JUNK or UNWRITTEN */
    int64_t written;                            /* numbers given; that of a token of slot s is s modulo SLOTS */
    int64_t texts[SLOTS][CONTEXT];              /* numbers of the slots' tokens */
    uint32_t began[SLOTS];                      /* tokens of the checkpoint with which the slot began */
    int64_t saved[CHECKPOINTS][CONTEXT];
    int32_t tokens[CHECKPOINTS][CONTEXT]; /* of the session's checkpoints */
};

static struct fixture *copied; /* whose pages repeat_page copies */

static bool repeat_page(struct backend *backend, int32_t from, int32_t to, struct status *status)
{
    (void)backend;
    (void)status;
    memcpy(copied->pool[to], copied->pool[from], sizeof copied->pool[to]);
    return true;
}

static void open_fixture(struct fixture *f, const uint64_t *windows, unsigned groups, uint64_t page_tokens,
                         uint64_t chunk, uint32_t pages)
{
    uint64_t state_bytes;
    memset(f, 0, sizeof *f);
    f->geometry = (struct plan_geometry){.slots = SLOTS,
                                         .max_context = CONTEXT,
                                         .page_tokens = page_tokens,
                                         .pages_per_slot = (CONTEXT + page_tokens - 1) / page_tokens,
                                         .page_bytes = 64,
                                         .vocab_size = VOCAB,
                                         .page_groups = groups};
    memcpy(f->geometry.page_window, windows, groups * sizeof *windows);
    assert_true(geometry_place_state(&f->geometry, &state_bytes));
    f->table = calloc(1, f->geometry.state[STATE_PAGE_TABLE].bytes);
    assert_non_null(f->table);
    f->type.repeat_page = repeat_page;
    f->backend.type = &f->type;
    copied = f;
    f->session = (struct eng_session){.backend = &f->backend,
                                      .geometry = &f->geometry,
                                      .chunk = chunk,
                                      .page_table = f->table,
                                      .samplers = f->samplers,
                                      .seen = f->seen,
                                      .seen_bytes = 1,
                                      .slots = f->slots,
                                      .free_slot_count = SLOTS};
    assert_true(page_pool_open(&f->session.pool, pages, groups, (uint32_t)page_tokens, false));
    for (int s = 0; s < SLOTS; s++) f->slots[s].history = f->history[s];
    for (int p = 0; p < MOST_PAGES; p++)
        for (int t = 0; t < MOST_PAGE_TOKENS; t++) f->pool[p][t] = UNWRITTEN;
}

static int64_t *place_of(struct fixture *f, unsigned group, int32_t slot, uint64_t token)
{
    const uint64_t page_tokens = f->geometry.page_tokens;
    const int32_t page = f->table[plan_page_row(&f->geometry, group, (uint64_t)slot) + token / page_tokens];
    assert_in_range(page, 0, f->session.pool.count - 1);
    return &f->pool[page][token % page_tokens];
}

/* A step of `count` tokens, as kernels run it: the tokens are written, the last page's rows after them may be cleared
 * (attention_cudnn_inputs), then each token reads its window. */
static void run_step(struct fixture *f, int32_t slot, uint64_t count)
{
    const uint64_t first = f->slots[slot].position;
    for (uint64_t t = first; t < first + count; t++) f->texts[slot][t] = SLOTS * ++f->written + slot;
    for (unsigned g = 0; g < f->geometry.page_groups; g++) {
        const uint64_t window = f->geometry.page_window[g];
        for (uint64_t t = first; t < first + count; t++) *place_of(f, g, slot, t) = f->texts[slot][t];
        for (uint64_t t = first + count; t % f->geometry.page_tokens && t < CONTEXT; t++)
            *place_of(f, g, slot, t) = JUNK;
        for (uint64_t q = first; q < first + count; q++)
            for (uint64_t t = window && q >= window ? q - window + 1 : 0; t <= q; t++)
                assert_int_equal(*place_of(f, g, slot, t), f->texts[slot][t]);
    }
    for (uint64_t t = 0; t < count; t++) replay_accept(&f->session, slot, PLAN_NO_TOKEN);
}

static bool is_of_beginning(const struct fixture *f, int32_t slot, int64_t number)
{
    for (uint32_t t = 0; t < f->began[slot]; t++)
        if (f->texts[slot][t] == number) return true;
    return false;
}

/* Entries of pages before the window name pages with tokens of the same sequence: kernels may load them. */
static void check_earlier_entries(struct fixture *f, int32_t slot)
{
    for (unsigned g = 0; g < f->geometry.page_groups; g++)
        for (uint64_t t = 0; t < f->slots[slot].position; t++) {
            const int64_t held = *place_of(f, g, slot, t);
            assert_true(held == JUNK || held % SLOTS == slot || is_of_beginning(f, slot, held));
        }
}

static void check_pages(const struct fixture *f)
{
    bool taken[MOST_PAGES] = {false};
    uint32_t count = f->session.pool.free_count + f->session.pool.spare_count, spare = 0;
    for (uint32_t c = 0; c < f->session.checkpoints.count; c++)
        for (uint32_t i = 0; i < f->session.checkpoints.all[c].page_count; i++, spare++) {
            assert_false(taken[f->session.checkpoints.all[c].pages[i]]);
            taken[f->session.checkpoints.all[c].pages[i]] = true;
        }
    assert_int_equal(spare, f->session.pool.spare_count);
    for (uint32_t i = 0; i < f->session.pool.free_count; i++) {
        assert_false(taken[f->session.pool.free[i]]);
        taken[f->session.pool.free[i]] = true;
    }
    for (int32_t s = 0; s < SLOTS; s++) {
        if (f->slots[s].use == SLOT_FREE) continue;
        assert_true(slots_pages_held(&f->session, s) <= slots_pages_for(&f->session, CONTEXT));
        count += slots_pages_held(&f->session, s);
        for (unsigned g = 0; g < f->geometry.page_groups; g++)
            for (uint32_t i = 0; i < f->slots[s].pages[g]; i++) {
                const int32_t page = f->table[plan_page_row(&f->geometry, g, (uint64_t)s) + i];
                assert_in_range(page, 0, f->session.pool.count - 1);
                assert_false(taken[page]);
                taken[page] = true;
            }
    }
    assert_int_equal(count, f->session.pool.count);
}

static void append(struct fixture *f, int32_t slot, uint64_t count)
{
    while (count > 0) {
        const uint64_t chunk = count < f->session.chunk ? count : f->session.chunk;
        run_step(f, slot, chunk);
        count -= chunk;
    }
}

static void truncate_slot(struct fixture *f, int32_t slot, uint32_t position)
{
    const uint32_t kept = slots_truncate(&f->session, slot, position);
    assert_true(kept == position || kept == 0);
    assert_int_equal(f->slots[slot].position, kept);
    append(f, slot, position - kept);
}

/* Returns how many truncations had lost their window. */
static unsigned use_at_random(struct fixture *f, uint64_t *random)
{
    unsigned lost = 0;
    for (int i = 0; i < STEPS; i++) {
        const int32_t slot = (int32_t)(test_random(random) % SLOTS);
        struct session_slot *own = &f->slots[slot];
        const uint64_t action = test_random(random) % 16, count = 1 + test_random(random) % (2 * f->session.chunk);
        if (own->use == SLOT_FREE) {
            assert_in_range(slots_take(&f->session, SLOT_RAW), 0, SLOTS - 1);
        } else if (action == 0) {
            slots_give_back(&f->session, slot);
        } else if (action == 1) {
            const uint32_t position = (uint32_t)(test_random(random) % (own->position + 1)), before = own->position;
            truncate_slot(f, slot, position);
            lost += before > position;
        } else if (own->position + count <= CONTEXT) {
            const uint32_t held = slots_pages_held(&f->session, slot), free_pages = f->session.pool.free_count;
            if (slots_reserve(&f->session, slot, own->position + count)) {
                append(f, slot, count);
            } else {
                assert_int_equal(slots_pages_held(&f->session, slot), held);
                assert_int_equal(f->session.pool.free_count, free_pages);
            }
            /* A step that was queued ahead and is discarded. */
            if (action == 2 && own->position < CONTEXT && slots_reserve(&f->session, slot, own->position + 1))
                for (unsigned g = 0; g < f->geometry.page_groups; g++) *place_of(f, g, slot, own->position) = JUNK;
        }
        if (own->use != SLOT_FREE) check_earlier_entries(f, slot);
        check_pages(f);
    }
    return lost;
}

TEST(no_token_of_a_window_is_overwritten_and_no_page_is_lost)
{
    static struct fixture f;
    uint64_t random = 1;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t windows[MOST_GROUPS];
        const unsigned groups = 1 + (unsigned)(test_random(&random) % MOST_GROUPS);
        for (unsigned g = 0; g < groups; g++) windows[g] = test_random(&random) % 3 ? 1 + test_random(&random) % 24 : 0;
        const uint64_t page_tokens = 1 + test_random(&random) % MOST_PAGE_TOKENS, chunk = 1 + test_random(&random) % 12;
        open_fixture(&f, windows, groups, page_tokens, chunk, 40 + (uint32_t)(test_random(&random) % 200));
        use_at_random(&f, &random);
        for (int32_t s = 0; s < SLOTS; s++)
            if (f.slots[s].use != SLOT_FREE) slots_give_back(&f.session, s);
        assert_int_equal(f.session.pool.free_count, f.session.pool.count);
        free(f.table);
        page_pool_close(&f.session.pool);
    }
}

static void begin_at_checkpoint(struct fixture *f, int32_t slot, const struct session_checkpoint *checkpoint)
{
    struct checkpoints *all = &f->session.checkpoints;
    const uint32_t count = checkpoint->count;
    if (slots_pages_for(&f->session, count) + checkpoint->page_count > page_pool_available(&f->session.pool)) return;
    checkpoints_hold(all, checkpoint);
    assert_true(slots_use_checkpoint(&f->session, slot, checkpoint));
    checkpoints_release(all);
    assert_int_equal(f->slots[slot].position, count);
    memcpy(f->texts[slot], f->saved[checkpoint - all->all], count * sizeof **f->texts);
    f->began[slot] = count;
}

/* Returns how many slots began at a checkpoint. */
static unsigned branch_at_random(struct fixture *f, uint64_t *random)
{
    unsigned begun = 0;
    for (int i = 0; i < STEPS; i++) {
        const int32_t slot = (int32_t)(test_random(random) % SLOTS);
        struct session_slot *own = &f->slots[slot];
        struct session_checkpoint *checkpoint = &f->session.checkpoints.all[test_random(random) % CHECKPOINTS];
        const uint32_t action = (uint32_t)(test_random(random) % 8);
        const uint64_t count = 1 + test_random(random) % (2 * f->session.chunk);
        if (own->use == SLOT_FREE) {
            const int32_t taken = slots_take(&f->session, SLOT_SEQUENCE);
            f->began[taken] = 0;
            if (checkpoint->count) begin_at_checkpoint(f, taken, checkpoint);
            begun += f->slots[taken].position > 0;
        } else if (action == 0) {
            slots_give_back(&f->session, slot);
        } else if (action == 1 && own->position / f->geometry.page_tokens > f->began[slot] / f->geometry.page_tokens) {
            /* Also before the end of its tokens, where the ring may have lost some. */
            uint32_t at = own->position - (uint32_t)(test_random(random) % (own->position - f->began[slot]));
            at -= at % (uint32_t)f->geometry.page_tokens;
            if (at <= f->began[slot] || !slots_make_checkpoint(&f->session, slot, 1, f->history[0], at, 0)) continue;
            for (int c = 0; c < CHECKPOINTS; c++)
                if (f->session.checkpoints.all[c].used == f->session.checkpoints.clock)
                    memcpy(f->saved[c], f->texts[slot], at * sizeof **f->texts);
        } else if (own->position + count <= CONTEXT && slots_reserve(&f->session, slot, own->position + count)) {
            append(f, slot, count);
        }
        if (own->use != SLOT_FREE) check_earlier_entries(f, slot);
        check_pages(f);
    }
    return begun;
}

TEST(slots_go_on_from_checkpoints)
{
    static struct fixture f;
    uint64_t random = 5;
    unsigned begun = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t windows[MOST_GROUPS];
        const unsigned groups = 1 + (unsigned)(test_random(&random) % MOST_GROUPS);
        for (unsigned g = 0; g < groups; g++) windows[g] = 1 + test_random(&random) % 24;
        const uint64_t page_tokens = 1 + test_random(&random) % MOST_PAGE_TOKENS, chunk = 1 + test_random(&random) % 12;
        open_fixture(&f, windows, groups, page_tokens, chunk, 60 + (uint32_t)(test_random(&random) % 180));
        assert_true(checkpoints_open(&f.session.checkpoints, &f.session.pool, CHECKPOINTS,
                                     (uint32_t)checkpoints_most_pages(&f.geometry), f.tokens[0], CONTEXT));
        begun += branch_at_random(&f, &random);
        for (int32_t s = 0; s < SLOTS; s++)
            if (f.slots[s].use != SLOT_FREE) slots_give_back(&f.session, s);
        assert_int_equal(page_pool_available(&f.session.pool), f.session.pool.count);
        free(f.table);
        checkpoints_close(&f.session.checkpoints);
        page_pool_close(&f.session.pool);
    }
    assert_true(begun > 10 * ROUNDS);
}

TEST(a_window_group_holds_its_window_however_long_the_sequence)
{
    static struct fixture f;
    static const uint64_t windows[] = {8, 0};
    open_fixture(&f, windows, 2, 4, 4, 64);
    assert_int_equal(slots_take(&f.session, SLOT_RAW), 0);
    for (uint64_t tokens = 4; tokens <= CONTEXT; tokens += 4) {
        assert_true(slots_reserve(&f.session, 0, tokens));
        append(&f, 0, 4);
        /* 8 + 4 - 1 = 11 tokens in a row touch at most 4 pages of 4. */
        assert_int_equal(f.slots[0].pages[0], tokens / 4 < 4 ? tokens / 4 : 4);
        assert_int_equal(f.slots[0].pages[1], tokens / 4);
    }
    /* Back by less than the spare tokens of the ring: nothing is lost. Further back: all must be computed again. */
    assert_int_equal(slots_truncate(&f.session, 0, CONTEXT - 1), CONTEXT - 1);
    assert_int_equal(f.slots[0].pages[0], 4);
    assert_int_equal(slots_truncate(&f.session, 0, CONTEXT - 20), 0);
    free(f.table);
    page_pool_close(&f.session.pool);
}

TEST(a_short_slot_gives_pages_of_a_window_group_back)
{
    static struct fixture f;
    static const uint64_t windows[] = {16};
    open_fixture(&f, windows, 1, 4, 1, 16);
    assert_int_equal(slots_take(&f.session, SLOT_RAW), 0);
    assert_true(slots_reserve(&f.session, 0, 12));
    append(&f, 0, 12);
    assert_int_equal(slots_truncate(&f.session, 0, 5), 5);
    assert_int_equal(slots_pages_held(&f.session, 0), 2);
    check_pages(&f);
    free(f.table);
    page_pool_close(&f.session.pool);
}

int main(void) { return test_run(); }
