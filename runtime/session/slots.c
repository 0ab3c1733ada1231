/* SPDX-License-Identifier: Apache-2.0 */
/* Slots and their KV pages, and the replay of one step. A slot's pages are the first entries of its rows of the page tables, which
 * plans read.
 *
 * Groups with a window. A slot needs no more pages than one step reads and writes (plan_ring_pages), and page i of its
 * sequence is always page i % plan_ring_pages of those. So the table does not change while the sequence grows past its
 * window, also not between steps that are queued ahead, and an entry of tokens before the window names a page with tokens
 * of the same sequence: kernels that read such tokens in a tile, with weight 0, find finite numbers there. */
#include <string.h>

#include "kernels/cuda/nvtx.h"
#include "runtime/session/session.h"

static void state_changed(struct eng_session *session, int32_t slot, unsigned what)
{
    const struct backend_type *type = session->backend->type;
    if (type->state_changed) type->state_changed(session->backend, slot, what);
}

void slots_changed(struct eng_session *session, int32_t slot, unsigned what) { state_changed(session, slot, what); }

int32_t slots_take(struct eng_session *session, enum slot_use use)
{
    for (uint32_t i = 0; session->free_slot_count && i < session->geometry->slots; i++) {
        struct session_slot *slot = &session->slots[i];
        if (slot->use != SLOT_FREE) continue;
        slot->use = use;
        slot->position = slot->written = slot->answer_start = 0;
        slot->drawn_step = 0;
        memset(slot->pages, 0, sizeof slot->pages);
        session->free_slot_count--;
        slots_set_sampler(session, (int32_t)i, &(struct sampler_state){.top_p = 1, .repetition_penalty = 1});
        slots_clear_seen(session, (int32_t)i);
        drafts_clear(session, (int32_t)i);
        slots_switch_rope(session, (int32_t)i, 0);
        return (int32_t)i;
    }
    return SESSION_NO_SLOT;
}

static int32_t *slot_pages(struct eng_session *session, unsigned group, int32_t slot)
{
    return session->page_table + plan_page_row(session->geometry, group, (uint64_t)slot);
}

static uint32_t group_pages(const struct eng_session *session, unsigned group, uint64_t tokens)
{
    return (uint32_t)plan_group_pages(session->geometry, group, tokens, session->chunk);
}

static bool is_ring(const struct eng_session *session, unsigned group, const struct session_slot *slot)
{
    return slot->pages[group] == plan_ring_pages(session->geometry, group, session->chunk);
}

static void shrink(struct eng_session *session, int32_t slot, uint64_t tokens)
{
    struct session_slot *own = &session->slots[slot];
    for (unsigned g = 0; g < plan_page_groups(session->geometry); g++) {
        /* Tokens of a ring that has gone round lie in any of its pages. */
        if (tokens > 0 && is_ring(session, g, own) && own->written / session->geometry->page_tokens >= own->pages[g])
            continue;
        while (own->pages[g] > group_pages(session, g, tokens))
            page_pool_drop(&session->pool, slot_pages(session, g, slot)[--own->pages[g]]);
    }
}

void slots_give_back(struct eng_session *session, int32_t slot)
{
    shrink(session, slot, 0);
    session->slots[slot].use = SLOT_FREE;
    session->free_slot_count++;
}

uint32_t slots_pages_for(const struct eng_session *session, uint64_t tokens)
{
    const uint64_t pages = plan_sequence_pages(session->geometry, tokens, session->chunk);
    return pages < UINT32_MAX ? (uint32_t)pages : UINT32_MAX;
}

uint32_t slots_pages_held(const struct eng_session *session, int32_t slot)
{
    uint32_t pages = 0;
    for (unsigned g = 0; g < plan_page_groups(session->geometry); g++) pages += session->slots[slot].pages[g];
    return pages;
}

bool slots_reserve(struct eng_session *session, int32_t slot, uint64_t tokens)
{
    struct session_slot *own = &session->slots[slot];
    const unsigned groups = plan_page_groups(session->geometry);
    uint64_t more = 0;
    for (unsigned g = 0; g < groups; g++) {
        const uint32_t pages = group_pages(session, g, tokens);
        more += pages > own->pages[g] ? pages - own->pages[g] : 0;
    }
    if (more > page_pool_available(&session->pool)) return false;
    if (session->checkpoints.count) checkpoints_make_room(&session->checkpoints, (uint32_t)more);
    for (unsigned g = 0; more && g < groups; g++) {
        int32_t *row = slot_pages(session, g, slot);
        const uint32_t pages = group_pages(session, g, tokens);
        if (own->pages[g] >= pages) continue;
        while (own->pages[g] < pages) row[own->pages[g]++] = page_pool_take(&session->pool);
        for (uint64_t i = pages; is_ring(session, g, own) && i < session->geometry->pages_per_slot; i++)
            row[i] = row[i - pages];
    }
    if (more) state_changed(session, slot, BACKEND_PAGES);
    return true;
}

uint64_t slots_room(const struct eng_session *session, int32_t slot)
{
    uint64_t least = session->geometry->max_context;
    for (unsigned g = 0; g < plan_page_groups(session->geometry); g++) {
        const uint64_t tokens = session->slots[slot].pages[g] * session->geometry->page_tokens;
        if (!is_ring(session, g, &session->slots[slot]) && tokens < least) least = tokens;
    }
    return least;
}

/* Groups without a window: a block has a page of each of these. */
static bool has_all_tokens(const struct eng_session *session, unsigned group)
{
    return !session->geometry->page_window[group];
}

void slots_hold_block(struct eng_session *session, int32_t slot, uint32_t index, int32_t block)
{
    struct session_slot *own = &session->slots[slot];
    const int32_t *pages = page_pool_hold(&session->pool, block);
    for (unsigned g = 0; g < plan_page_groups(session->geometry); g++) {
        int32_t *place = slot_pages(session, g, slot) + index;
        if (!has_all_tokens(session, g)) continue;
        if (index < own->pages[g])
            page_pool_drop(&session->pool, *place); /* taken for these tokens, and not needed now */
        else
            own->pages[g]++;
        *place = *pages++;
    }
    own->position = own->written = (index + 1) * (uint32_t)session->geometry->page_tokens;
    state_changed(session, slot, BACKEND_PAGES);
}

bool slots_copy_pages(struct eng_session *session, int32_t from, int32_t to, uint64_t room, struct status *status)
{
    const struct plan_geometry *geometry = session->geometry;
    struct backend *backend = session->backend;
    const uint32_t tokens = session->slots[from].position, whole = tokens / (uint32_t)geometry->page_tokens;
    struct session_slot *own = &session->slots[to];
    for (unsigned g = 0; g < plan_page_groups(geometry); g++)
        for (; has_all_tokens(session, g) && own->pages[g] < whole; own->pages[g]++) {
            const int32_t page = slot_pages(session, g, from)[own->pages[g]];
            slot_pages(session, g, to)[own->pages[g]] = page;
            page_pool_share(&session->pool, page);
        }
    if (!slots_reserve(session, to, room))
        return status_fail(status, STATUS_FULL, "too few KV pages are free: %u", page_pool_available(&session->pool));
    slots_place(session, to, tokens, session->rope_set ? session->rope_set[from] : 0);
    state_changed(session, to, BACKEND_PAGES);
    for (unsigned g = 0; g < plan_page_groups(geometry); g++) {
        const uint32_t used = group_pages(session, g, tokens);
        for (uint32_t i = has_all_tokens(session, g) ? whole : 0; i < used; i++)
            if (!backend->type->repeat_page(backend, slot_pages(session, g, from)[i], slot_pages(session, g, to)[i],
                                            status))
                return false;
    }
    return tokens == 0 || !geometry->recurrent_bytes || backend->type->repeat_recurrent(backend, from, to, status);
}

uint64_t slots_keep_block(struct eng_session *session, int32_t slot, uint32_t index, uint64_t before,
                          const int32_t *tokens)
{
    int32_t pages[PLAN_MAX_PAGE_GROUPS];
    unsigned count = 0;
    for (unsigned g = 0; g < plan_page_groups(session->geometry); g++)
        if (has_all_tokens(session, g)) pages[count++] = slot_pages(session, g, slot)[index];
    return page_pool_keep(&session->pool, before, tokens, pages);
}

/* One of the pages of a block. */
static int32_t block_page(struct eng_session *session, int32_t slot, uint32_t index)
{
    unsigned g = 0;
    while (!has_all_tokens(session, g)) g++;
    return slot_pages(session, g, slot)[index];
}

void slots_prove_block(struct eng_session *session, int32_t slot, uint32_t index)
{
    page_pool_prove(&session->pool, block_page(session, slot, index));
}

void slots_forget_block(struct eng_session *session, int32_t slot, uint32_t index)
{
    page_pool_forget(&session->pool, block_page(session, slot, index));
}

void slots_place(struct eng_session *session, int32_t slot, uint32_t position, int32_t rope_set)
{
    session->slots[slot].position = session->slots[slot].written = position;
    if (!session->rope_set || session->rope_set[slot] == rope_set) return;
    session->rope_set[slot] = rope_set;
    state_changed(session, slot, BACKEND_ROPE_SET);
}

void slots_empty(struct eng_session *session, int32_t slot)
{
    shrink(session, slot, 0);
    session->slots[slot].position = session->slots[slot].written = 0;
}

void slots_set_sampler(struct eng_session *session, int32_t slot, const struct sampler_state *sampler)
{
    session->samplers[slot] = *sampler;
    state_changed(session, slot, BACKEND_SAMPLER);
}

void slots_clear_seen(struct eng_session *session, int32_t slot)
{
    memset(session->seen + (uint64_t)slot * session->seen_bytes, 0, session->seen_bytes);
    state_changed(session, slot, BACKEND_SEEN);
}

void slots_mark_seen(struct eng_session *session, int32_t slot, const int32_t *tokens, size_t count)
{
    uint8_t *seen = session->seen + (uint64_t)slot * session->seen_bytes;
    unsigned added = 0;
    for (size_t i = 0; i < count; i++) {
        uint8_t *byte = &seen[tokens[i] / 8], bit = (uint8_t)(1u << (tokens[i] % 8));
        added |= (unsigned)(bit & ~*byte);
        *byte |= bit;
    }
    /* Usually none: a decode step is given the token that was drawn before. */
    if (added) state_changed(session, slot, BACKEND_SEEN);
}

bool slots_rope_differs(const struct eng_session *session, int32_t slot, uint64_t total)
{
    return session->rope_set && session->rope_set[slot] != (total > session->geometry->rope_original);
}

bool slots_switch_rope(struct eng_session *session, int32_t slot, uint64_t total)
{
    if (!slots_rope_differs(session, slot, total)) return false;
    session->rope_set[slot] = !session->rope_set[slot];
    session->slots[slot].position = session->slots[slot].written = 0;
    state_changed(session, slot, BACKEND_ROPE_SET);
    return true;
}

/* Whether the pages still have the tokens that a token at `position` reads. A step that was discarded may have written one
 * token more than `written`. */
static bool has_window(const struct eng_session *session, const struct session_slot *slot, uint32_t position)
{
    const struct plan_geometry *geometry = session->geometry;
    for (unsigned g = 0; g < plan_page_groups(geometry); g++) {
        const uint64_t window = geometry->page_window[g];
        if (!window || !is_ring(session, g, slot)) continue;
        const uint64_t first = position >= window ? position - window + 1 : 0;
        if (first / geometry->page_tokens + slot->pages[g] <= slot->written / geometry->page_tokens) return false;
    }
    return true;
}

uint32_t slots_shorten(struct eng_session *session, int32_t slot, uint32_t position)
{
    struct session_slot *own = &session->slots[slot];
    const bool is_kept = position == own->position || !session->geometry->recurrent_bytes; /* state has no past */
    own->position = is_kept && has_window(session, own, position) ? position : 0;
    if (own->position == 0) own->written = 0;
    own->drawn_step = 0;
    shrink(session, slot, position);
    return own->position;
}

uint32_t slots_truncate(struct eng_session *session, int32_t slot, uint32_t position)
{
    const struct session_slot *own = &session->slots[slot];
    slots_shorten(session, slot, position);
    slots_clear_seen(session, slot);
    slots_mark_seen(session, slot, own->history, position);
    return own->position;
}

bool slots_fail(struct eng_session *session, const struct status *status)
{
    session->failure = *status;
    log_write(&session->engine->log, ENG_LOG_WARNING, "session: every later call fails: %s", status->message);
    return false;
}

/* ---- checkpoints ---- */

/* Pages [*first, end) of a group with a window hold what tokens from `tokens` on, a whole number of pages, read: one at least. */
static uint32_t window_pages(const struct eng_session *session, unsigned group, uint32_t tokens, uint32_t *first)
{
    const uint64_t page = session->geometry->page_tokens, window = session->geometry->page_window[group];
    const uint32_t end = (uint32_t)(tokens / page);
    *first = tokens >= window ? (uint32_t)((tokens - window + 1) / page) : 0;
    if (*first == end) *first = end - 1;
    return end;
}

/* Whether the slot's pages still have what a checkpoint copies. */
static bool has_checkpoint(const struct eng_session *session, const struct session_slot *slot, uint32_t tokens)
{
    uint32_t first;
    for (unsigned g = 0; g < plan_page_groups(session->geometry); g++) {
        if (has_all_tokens(session, g) || !is_ring(session, g, slot)) continue;
        window_pages(session, g, tokens, &first);
        if (first + slot->pages[g] <= slot->written / session->geometry->page_tokens) return false;
    }
    return !session->geometry->recurrent_bytes || slot->position == tokens;
}

static uint32_t checkpoint_pages(const struct eng_session *session, uint32_t tokens)
{
    uint32_t pages = 0, first;
    for (unsigned g = 0; g < plan_page_groups(session->geometry); g++)
        if (!has_all_tokens(session, g)) pages += window_pages(session, g, tokens, &first) - first;
    return pages;
}

/* Where the state of a checkpoint lies among the blocks of recurrent state: after those of slots. */
static int32_t state_of(const struct eng_session *session, const struct session_checkpoint *checkpoint)
{
    return (int32_t)session->geometry->slots + (int32_t)(checkpoint - session->checkpoints.all);
}

bool slots_make_checkpoint(struct eng_session *session, int32_t slot, uint64_t root, const int32_t *tokens,
                           uint32_t count, uint64_t block)
{
    struct backend *backend = session->backend;
    struct status status = {0};
    if (!has_checkpoint(session, &session->slots[slot], count)) return false;
    struct session_checkpoint *checkpoint =
        checkpoints_add(&session->checkpoints, root, tokens, count, block, checkpoint_pages(session, count));
    if (!checkpoint) return false;
    bool ok = true;
    for (unsigned g = 0, k = 0; g < plan_page_groups(session->geometry); g++) {
        uint32_t first = 0;
        const uint32_t end = has_all_tokens(session, g) ? 0 : window_pages(session, g, count, &first);
        for (uint32_t i = first; ok && i < end; i++)
            ok = backend->type->repeat_page(backend, slot_pages(session, g, slot)[i], checkpoint->pages[k++], &status);
    }
    if (session->geometry->recurrent_bytes)
        ok = ok && backend->type->repeat_recurrent(backend, slot, state_of(session, checkpoint), &status);
    return ok || slots_fail(session, &status);
}

bool slots_use_checkpoint(struct eng_session *session, int32_t slot, const struct session_checkpoint *checkpoint)
{
    struct session_slot *own = &session->slots[slot];
    struct backend *backend = session->backend;
    struct status status = {0};
    const int32_t *copies = checkpoint->pages;
    bool ok = true;
    if (!slots_reserve(session, slot, checkpoint->count)) return false;
    for (unsigned g = 0; g < plan_page_groups(session->geometry); g++) {
        if (has_all_tokens(session, g)) continue;
        uint32_t first;
        const uint32_t end = window_pages(session, g, checkpoint->count, &first), held = own->pages[g];
        /* Entries before `first` name the further pages that the slot holds. They get numbers of this sequence, too. */
        for (uint32_t i = first; ok && i < first + held; i++)
            ok = backend->type->repeat_page(backend, copies[i < end ? i - first : 0],
                                            slot_pages(session, g, slot)[i % held], &status);
        copies += end - first;
    }
    if (session->geometry->recurrent_bytes)
        ok = ok && backend->type->repeat_recurrent(backend, state_of(session, checkpoint), slot, &status);
    own->position = own->written = checkpoint->count;
    return ok || slots_fail(session, &status);
}

bool slots_save_state(struct eng_session *session, int32_t slot, uint32_t saved, struct status *status)
{
    struct backend *backend = session->backend;
    return backend->type->repeat_recurrent(backend, slot, session->first_saved + (int32_t)saved, status) ||
           slots_fail(session, status);
}

bool slots_restore_state(struct eng_session *session, int32_t slot, uint32_t saved, struct status *status)
{
    struct backend *backend = session->backend;
    return backend->type->repeat_recurrent(backend, session->first_saved + (int32_t)saved, slot, status) ||
           slots_fail(session, status);
}

/* Tokens are in the pages from now on. */
static void advance(struct eng_session *session, int32_t slot, uint32_t tokens)
{
    struct session_slot *own = &session->slots[slot];
    own->position += tokens;
    if (own->position > own->written) own->written = own->position;
}

uint32_t replay_chunk(const struct eng_session *session, uint64_t rest, size_t *plan_index)
{
    /* For one token the smallest decode plan computes the same bits faster. It also processes prompts, token by token,
     * if an engine has no prefill plans. */
    *plan_index = 0;
    if (rest == 1 || session->decode_plans == session->prefill_end) return 1;
    /* The smallest plan that holds all of `rest`, else the largest. Few passes over the weights matter more than full
     * chunks, since unused rows cost nothing. */
    size_t index = session->decode_plans;
    while (index + 1 < session->prefill_end && session->plans[index].rows < rest) index++;
    *plan_index = index;
    return session->plans[index].rows < rest ? session->plans[index].rows : (uint32_t)rest;
}

/* The NVTX range covers the host's part of the step: all of it on processors, the queueing on a GPU, by which tools
 * find its kernels. */
static bool submit(struct eng_session *session, const char *what, const struct session_plan *plan,
                   enum backend_inputs inputs, struct status *status)
{
    if (session->failure.code != STATUS_OK) {
        *status = session->failure; /* a checkpoint could not be copied */
        return false;
    }
    if (!session_weights_unchanged(session, status)) return slots_fail(session, status);
    nvtx_push_number(what, (uint64_t)plan->counts[0]);
    bool ok = session->backend->type->submit(session->backend, (size_t)(plan - session->plans), inputs, status);
    nvtx_pop();
    return ok || slots_fail(session, status);
}

const int32_t *replay_wait(struct eng_session *session, uint32_t count, struct status *status)
{
    const int32_t *drawn = session->backend->type->wait(session->backend, status);
    session->steps++;
    for (uint32_t i = 0; drawn && i < count; i++) {
        if (drawn[i] >= PLAN_NO_TOKEN && drawn[i] < (int64_t)session->geometry->vocab_size) continue;
        status_fail(status, STATUS_INTERNAL, "row %u drew token %d, expected %d to %llu", i, drawn[i], PLAN_NO_TOKEN,
                    (unsigned long long)session->geometry->vocab_size - 1);
        drawn = NULL;
    }
    if (!drawn) slots_fail(session, status);
    return drawn;
}

const struct session_slot *slots_find_drawn(const struct eng_session *session, uint32_t slot, const char *function,
                                            struct status *status)
{
    const struct session_slot *own = slot < session->geometry->slots ? &session->slots[slot] : NULL;
    if (own && own->use == SLOT_RAW && own->drawn_step && own->drawn_step == session->steps) return own;
    status_fail(status, STATUS_USAGE, "%s: expected a slot for which the session's last step drew a token, found %u",
                function, slot);
    return NULL;
}

const float *replay_logits(struct eng_session *session, uint32_t row, uint32_t count, struct status *status)
{
    const float *logits = session->backend->type->logits(session->backend, row, count, status);
    if (!logits) slots_fail(session, status);
    return logits;
}

const float *replay_hidden(struct eng_session *session, uint32_t row, uint32_t count, struct status *status)
{
    const float *hidden = session->backend->type->hidden(session->backend, row, count, status);
    if (!hidden) slots_fail(session, status);
    return hidden;
}

static void fill_seeds(const struct eng_session *session, struct session_plan *plan, uint32_t count)
{
    for (uint32_t i = 0; plan->seeds && i < count; i++)
        plan->seeds[i] = session->fixes_routes ? golden_route_seed(plan->positions[i]) : 0;
}

/* STEP_FOLLOWING of a part's row `i`. out_row: the one that draws after it, if is_drawn. */
static void fill_following(struct session_plan *plan, uint32_t row, const struct replay_part *part, uint32_t i,
                           bool is_drawn, uint32_t out_row)
{
    enum { NOT_KNOWN = ~INT32_MAX }; /* PLAN_NO_TOKEN would name out row 0 */
    if (!plan->following) return;
    const int32_t next = i + 1 < part->count ? part->tokens[i + 1] : part->following;
    plan->following[row] = is_drawn ? ~(int32_t)out_row : next == PLAN_NO_TOKEN ? NOT_KNOWN : next;
}

struct session_plan *replay_fill_prefill(struct eng_session *session, const struct replay_part *part, size_t plan_index)
{
    struct session_plan *plan = &session->plans[plan_index];
    const uint32_t count = part->count;
    plan->counts[0] = (int32_t)count;
    plan->counts[1] = part->draws;
    memcpy(plan->tokens, part->tokens, count * sizeof *part->tokens);
    for (uint32_t i = 0; i < count; i++) {
        plan->slots[i] = part->slot;
        plan->positions[i] = (int32_t)(session->slots[part->slot].position + i);
        fill_following(plan, i, part, i, part->draws && i + 1 == count, 0);
    }
    fill_seeds(session, plan, count);
    plan->out_row[0] = (int32_t)(count - 1);
    return plan;
}

/* A row without a token has not changed sampler and SEEN. */
static void note_drawn(struct eng_session *session, int32_t slot, int32_t drawn)
{
    const struct backend_type *type = session->backend->type;
    if (type->drew && drawn != PLAN_NO_TOKEN) type->drew(session->backend, slot, drawn);
}

bool replay_prefill(struct eng_session *session, const struct replay_part *part, size_t plan_index, int32_t *next_token,
                    struct status *status)
{
    struct session_plan *plan = replay_fill_prefill(session, part, plan_index);
    if (!submit(session, "prefill", plan, INPUTS_FROM_HOST, status)) return false;
    const int32_t *drawn = replay_wait(session, part->draws, status);
    if (!drawn) return false;
    advance(session, part->slot, part->count);
    if (!part->draws) return true;
    *next_token = drawn[0];
    note_drawn(session, part->slot, drawn[0]);
    return true;
}

struct session_plan *replay_mixed_plan(const struct eng_session *session, uint32_t rows, uint32_t out_rows)
{
    size_t index = session->prefill_end;
    while (index + 1 < session->mixed_end &&
           (session->plans[index].rows < rows || session->plans[index].out_rows < out_rows))
        index++;
    return index < session->mixed_end ? &session->plans[index] : NULL;
}

struct session_plan *replay_verify_plan(const struct eng_session *session, uint32_t rows)
{
    size_t index = session->mixed_end;
    while (index + 1 < session->plan_count && session->plans[index].rows < rows) index++;
    return index < session->plan_count ? &session->plans[index] : NULL;
}

/* `all_draw`: every row has an out row, not only the last ones of parts that draw. */
static void fill_parts(struct eng_session *session, struct session_plan *plan, const struct replay_part *parts,
                       uint32_t count, bool all_draw)
{
    uint32_t rows = 0, out_rows = 0;
    for (uint32_t p = 0; p < count; p++) {
        const struct replay_part *part = &parts[p];
        memcpy(plan->tokens + rows, part->tokens, part->count * sizeof *part->tokens);
        for (uint32_t i = 0; i < part->count; i++, rows++) {
            plan->slots[rows] = part->slot;
            plan->positions[rows] = (int32_t)(session->slots[part->slot].position + i);
            fill_following(plan, rows, part, i, part->draws && (all_draw || i + 1 == part->count), out_rows);
            if (all_draw) plan->out_row[out_rows++] = (int32_t)rows;
        }
        if (part->draws && !all_draw) plan->out_row[out_rows++] = (int32_t)(rows - 1);
    }
    plan->counts[0] = (int32_t)rows;
    plan->counts[1] = (int32_t)out_rows;
    fill_seeds(session, plan, rows);
}

const int32_t *replay_verify(struct eng_session *session, struct session_plan *plan, const struct replay_part *parts,
                             uint32_t count, struct status *status)
{
    fill_parts(session, plan, parts, count, true);
    if (!submit(session, "verify", plan, INPUTS_FROM_HOST, status)) return NULL;
    const int32_t *drawn = replay_wait(session, (uint32_t)plan->counts[1], status);
    for (uint32_t p = 0; drawn && p < count; p++) {
        struct session_slot *own = &session->slots[parts[p].slot];
        const uint32_t end = own->position + parts[p].count;
        if (end > own->written) own->written = end;
    }
    return drawn;
}

void replay_keep(struct eng_session *session, int32_t slot, uint32_t rows, int32_t drawn)
{
    struct sampler_state *sampler = &session->samplers[slot];
    advance(session, slot, rows);
    if (drawn == PLAN_NO_TOKEN) return;
    sampler->draw++;
    state_changed(session, slot, BACKEND_SAMPLER);
    slots_mark_seen(session, slot, &drawn, 1);
    if (!(sampler->options & SAMPLER_ADJUSTS)) return;
    plan_count_token(session->adjustments + (uint64_t)slot * plan_adjustment_words(session->geometry->vocab_size),
                     drawn);
    state_changed(session, slot, BACKEND_ADJUSTMENTS);
}

const int32_t *replay_mixed(struct eng_session *session, struct session_plan *plan, const struct replay_part *parts,
                            uint32_t count, struct status *status)
{
    const bool verifies = plan >= session->plans + session->mixed_end; /* a selftest */
    fill_parts(session, plan, parts, count, false);
    if (!submit(session, "mixed", plan, INPUTS_FROM_HOST, status)) return NULL;
    const int32_t *drawn = replay_wait(session, (uint32_t)plan->counts[1], status), *next = drawn;
    for (uint32_t p = 0; drawn && p < count; p++) {
        const int32_t token = parts[p].draws ? *next++ : PLAN_NO_TOKEN;
        if (verifies) {
            replay_keep(session, parts[p].slot, parts[p].count, token);
            continue;
        }
        advance(session, parts[p].slot, parts[p].count);
        note_drawn(session, parts[p].slot, token);
    }
    return drawn;
}

struct session_plan *replay_decode_plan(const struct eng_session *session, uint32_t count)
{
    /* The largest decode plan has a row for every slot: checked when the engine was opened. */
    size_t index = 0;
    while (index + 1 < session->decode_plans && session->plans[index].rows < count) index++;
    return &session->plans[index];
}

void replay_fill_decode(struct eng_session *session, struct session_plan *plan, uint32_t count)
{
    plan->counts[0] = plan->counts[1] = (int32_t)count;
    for (uint32_t i = 0; i < count; i++) {
        plan->positions[i] = (int32_t)session->slots[plan->slots[i]].position;
        plan->out_row[i] = (int32_t)i;
        if (plan->following) plan->following[i] = ~(int32_t)i;
    }
    fill_seeds(session, plan, count);
}

bool replay_submit_decode(struct eng_session *session, struct session_plan *plan, uint32_t count, struct status *status)
{
    replay_fill_decode(session, plan, count);
    return submit(session, "decode", plan, INPUTS_FROM_HOST, status);
}

bool replay_splits(const struct eng_session *session, const struct session_plan *plan)
{
    const struct backend_type *type = session->backend->type;
    return type->splits && type->splits(session->backend, (size_t)(plan - session->plans));
}

bool replay_submit_again(struct eng_session *session, const struct session_plan *plan, bool waits,
                         struct status *status)
{
    return submit(session, "decode", plan, waits ? INPUTS_UP_TO_SAMPLER : INPUTS_OF_LAST_REPLAY, status);
}

bool replay_sample(struct eng_session *session, const int32_t *slots, uint32_t count, bool late, struct status *status)
{
    return session->backend->type->sample(session->backend, slots, count, late, status) || slots_fail(session, status);
}

void replay_abandon(struct eng_session *session) { session->backend->type->abandon(session->backend); }

void replay_accept(struct eng_session *session, int32_t slot, int32_t drawn)
{
    advance(session, slot, 1);
    note_drawn(session, slot, drawn);
}

void replay_reject(struct eng_session *session, int32_t slot)
{
    const bool adjusts = session->samplers[slot].options & SAMPLER_ADJUSTS;
    state_changed(session, slot, BACKEND_SAMPLER | BACKEND_SEEN | (adjusts ? (unsigned)BACKEND_ADJUSTMENTS : 0));
}
