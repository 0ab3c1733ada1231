/* SPDX-License-Identifier: Apache-2.0 */
/* What sequences take from the cache of pages (page_pool.h) and add to it.
 *
 * Where some layers have a window or recurrent state, blocks of the other layers are not enough to go on from: a sequence begins at a
 * checkpoint (checkpoints.h), which is made where others are likely to begin: before the last tokens of a prompt, so that the same
 * prompt finds it, too; where texts branch off, as the second of them shows; in long prompts and answers at a distance; and, with
 * windows alone, at the end. Recurrent state is that of the last token, so steps of prompts end at such places (sequence_rest). */
#include "runtime/session/session.h"

#include <string.h>

/* Least tokens from a checkpoint to the next one, and to one where texts branch off: fewer are soon computed. */
enum { LEAST_DISTANCE = 128, LEAST_TO_BRANCH = 32 };
/* Most checkpoints of a prompt by distance, and of all checkpoints the part that one prompt may take. */
enum { MOST_OF_PROMPT = 8, PART_OF_ALL = 8 };

static uint32_t page_tokens(const struct eng_session *session) { return (uint32_t)session->geometry->page_tokens; }

static uint32_t whole_pages(const struct eng_session *session, uint32_t tokens)
{
    return tokens - tokens % page_tokens(session);
}

/* Number of the empty text before the tokens of a sequence with a slot. */
static uint64_t root_of(const struct eng_sequence *sequence)
{
    const int32_t *rope_set = sequence->session->rope_set;
    return page_pool_root(rope_set ? rope_set[sequence->slot] : 0);
}

/* The same, as slots_switch_rope will select the rotary frequencies. */
static uint64_t root_to_be(const struct eng_sequence *sequence)
{
    const struct plan_geometry *geometry = sequence->session->geometry;
    return page_pool_root(geometry->rope_original && sequence->count > geometry->rope_original);
}

/* Blocks of the cache, at most `most`, with which the sequence begins, and how many of those are idle. *number: of the last of them.
 * Requires: it has the tokens of `most` blocks. */
static uint32_t count_known(const struct eng_sequence *sequence, uint64_t root, uint32_t most, uint32_t *idle,
                            uint64_t *number)
{
    const struct eng_session *session = sequence->session;
    const uint32_t page = page_tokens(session);
    uint32_t known = 0;
    *idle = 0;
    *number = root;
    while (known < most) {
        const int32_t block = page_pool_find(&session->pool, *number, sequence->tokens + (size_t)known * page);
        if (block == PAGE_POOL_NONE) break;
        *number = page_pool_number(&session->pool, block);
        *idle += page_pool_is_idle(&session->pool, block);
        known++;
    }
    return known;
}

/* Tokens that it may take from the cache. One at least is left to compute: its logits are needed. */
static uint32_t most_cached(const struct eng_sequence *sequence)
{
    const uint32_t before = prompt_rows_before(sequence);
    return before < sequence->count ? before : sequence->count - 1;
}

/* The longest checkpoint that the sequence can go on from; NULL: none. */
static struct session_checkpoint *find_checkpoint(const struct eng_sequence *sequence, uint64_t root)
{
    const struct eng_session *session = sequence->session;
    const uint32_t page = page_tokens(session);
    uint32_t idle, most = most_cached(sequence);
    uint64_t number;
    if (session->pool.groups) most = count_known(sequence, root, most / page, &idle, &number) * page;
    return checkpoints_find(&session->checkpoints, root, sequence->tokens, most);
}

/* The sequence needs `pages` pages: returns how many of them it takes from the available ones. checkpoint: NULL: it uses all known blocks. */
static uint64_t count_taken(const struct eng_sequence *sequence, uint64_t root,
                            const struct session_checkpoint *checkpoint, uint64_t pages)
{
    const struct eng_session *session = sequence->session;
    const uint32_t most = (checkpoint ? checkpoint->count : most_cached(sequence)) / page_tokens(session);
    uint32_t idle;
    uint64_t number;
    const uint32_t known = count_known(sequence, root, most, &idle, &number);
    /* Copies of a checkpoint stay where they are. */
    return pages - (uint64_t)(known - idle) * session->pool.groups + (checkpoint ? checkpoint->page_count : 0);
}

uint64_t sequence_uncached_pages(const struct eng_sequence *sequence, uint64_t pages)
{
    const struct eng_session *session = sequence->session;
    const uint64_t root = root_to_be(sequence);
    if (!session->caches) return pages;
    const struct session_checkpoint *checkpoint = session->checkpointing ? find_checkpoint(sequence, root) : NULL;
    if (session->checkpointing && !checkpoint) return pages;
    return count_taken(sequence, root, checkpoint, pages);
}

void sequence_begin_blocks(struct eng_sequence *sequence)
{
    const struct eng_session *session = sequence->session;
    sequence->blocks = sequence->checkpoint = sequence->branch = sequence->sound = 0;
    sequence->block = root_of(sequence);
    if (session->checkpointing && sequence->count)
        sequence->branch = whole_pages(session, checkpoints_common(&session->checkpoints, sequence->block,
                                                                   sequence->tokens, sequence->count - 1));
}

static void reach(struct eng_sequence *sequence)
{
    if (sequence->computed > sequence->reached) sequence->reached = sequence->computed;
}

/* It has gone on from the token at index `from` with tokens of the cache. */
static void count_cached(struct eng_sequence *sequence, uint32_t from)
{
    sequence->session->cached_tokens += sequence->computed - from;
    if (sequence->computed > sequence->reached)
        sequence->cached += sequence->computed - (from > sequence->reached ? from : sequence->reached);
    reach(sequence);
}

/* Goes on from the longest checkpoint, if that is further than where it is. */
static void use_checkpoint(struct eng_sequence *sequence)
{
    struct eng_session *session = sequence->session;
    const uint64_t root = root_of(sequence);
    struct session_checkpoint *checkpoint = find_checkpoint(sequence, root);
    if (!checkpoint || checkpoint->count <= sequence->computed) return;
    const uint64_t pages = slots_pages_for(session, checkpoint->count);
    if (count_taken(sequence, root, checkpoint, pages) > page_pool_available(&session->pool)) return;
    const uint32_t before = sequence->computed, page = page_tokens(session);
    uint64_t number = root;
    checkpoints_hold(&session->checkpoints, checkpoint);
    for (uint32_t i = 0; session->pool.groups && i < checkpoint->count / page; i++) {
        const int32_t block = page_pool_find(&session->pool, number, sequence->tokens + (size_t)i * page);
        number = page_pool_number(&session->pool, block);
        if (i >= sequence->blocks) slots_hold_block(session, sequence->slot, i, block);
    }
    const bool ok = slots_use_checkpoint(session, sequence->slot, checkpoint);
    checkpoints_release(&session->checkpoints);
    if (!ok) { /* the session has failed, as its next step tells */
        slots_empty(session, sequence->slot);
        sequence->computed = 0;
        sequence_begin_blocks(sequence);
        return;
    }
    sequence->computed = sequence->checkpoint = checkpoint->count;
    sequence->blocks = session->pool.groups ? checkpoint->count / page : 0;
    sequence->block = number;
    count_cached(sequence, before);
    checkpoints_touch(&session->checkpoints, checkpoint);
}

void sequence_use_cache(struct eng_sequence *sequence)
{
    struct eng_session *session = sequence->session;
    const uint32_t page = page_tokens(session), computed = sequence->computed;
    if (!session->caches || sequence->is_private) return;
    if (session->checkpointing) {
        use_checkpoint(sequence);
        return;
    }
    if (computed != sequence->blocks * page) return;
    while (sequence->computed + page <= most_cached(sequence)) {
        const int32_t block = page_pool_find(&session->pool, sequence->block, sequence->tokens + sequence->computed);
        if (block == PAGE_POOL_NONE) break;
        sequence->block = page_pool_number(&session->pool, block);
        slots_hold_block(session, sequence->slot, sequence->blocks++, block);
        sequence->computed += page;
    }
    count_cached(sequence, computed);
}

uint32_t eng_sequence_cached_tokens(const struct eng_sequence *sequence) { return sequence ? sequence->cached : 0; }

/* ---- making checkpoints ---- */

static uint32_t in_pages(const struct eng_session *session, uint32_t tokens)
{
    return whole_pages(session, tokens + page_tokens(session) - 1);
}

static uint32_t least_distance(const struct eng_session *session) { return in_pages(session, LEAST_DISTANCE); }

/* From a checkpoint to the next one, where nothing else asks for it. */
static uint32_t usual_distance(const struct eng_sequence *sequence)
{
    const struct eng_session *session = sequence->session;
    uint32_t parts = session->checkpoints.count / PART_OF_ALL;
    if (parts > MOST_OF_PROMPT) parts = MOST_OF_PROMPT;
    const uint32_t least = least_distance(session), distance = sequence->count / (parts ? parts : 1);
    return distance > least ? distance : least;
}

/* A place in a prompt for which a checkpoint is made if the one before it is so far away. */
struct place {
    uint32_t count, distance;
};
enum { PLACES = 2 };

/* Where texts branch off (0: nowhere), and the last whole page before which something is left to compute. */
static void find_places(const struct eng_sequence *sequence, struct place places[PLACES])
{
    const struct eng_session *session = sequence->session;
    places[0] = (struct place){sequence->branch, in_pages(session, LEAST_TO_BRANCH)};
    places[1] = (struct place){whole_pages(session, sequence->count - 1), least_distance(session)};
}

/* Makes a checkpoint after its first `count` tokens, if its last one is so far before, and the slot still has what it takes. A step that is
 * queued ahead does not matter: it writes the token after those that are computed, and leaves their recurrent state (kernels/op/recurrent.h). */
static void make_checkpoint(struct eng_sequence *sequence, uint32_t count, uint32_t distance)
{
    struct eng_session *session = sequence->session;
    const uint64_t root = root_of(sequence);
    const uint32_t blocks = session->pool.groups ? count / page_tokens(session) : 0;
    if (!count || count < sequence->checkpoint + distance) return;
    struct session_checkpoint *known = checkpoints_find(&session->checkpoints, root, sequence->tokens, count);
    if (known && known->count == count) {
        checkpoints_touch(&session->checkpoints, known);
    } else {
        uint32_t idle;
        uint64_t number;
        if (count_known(sequence, root, blocks, &idle, &number) < blocks ||
            !slots_make_checkpoint(session, sequence->slot, root, sequence->tokens, count, blocks ? number : 0))
            return;
    }
    sequence->checkpoint = count;
    if (count <= sequence->sound) checkpoints_prove(&session->checkpoints, root, sequence->tokens, count - 1, count);
}

/* Makes those that are due where the sequence is. */
static void make_checkpoints(struct eng_sequence *sequence)
{
    const struct eng_session *session = sequence->session;
    const uint32_t whole = whole_pages(session, sequence->computed);
    struct place places[PLACES] = {{0}};
    bool is_soon = false;
    if (sequence->state == ENG_STATE_PREFILL) find_places(sequence, places);
    for (int i = 0; i < PLACES; i++) {
        const uint32_t count = places[i].count;
        if (count <= sequence->computed) make_checkpoint(sequence, count, places[i].distance);
        is_soon |= count > whole && count - whole < least_distance(session);
    }
    if (!is_soon) make_checkpoint(sequence, whole, usual_distance(sequence));
}

void sequence_computed(struct eng_sequence *sequence, uint32_t count)
{
    struct eng_session *session = sequence->session;
    const uint32_t page = page_tokens(session);
    sequence->computed += count;
    reach(sequence);
    if (!session->caches || sequence->is_private) return;
    for (; session->pool.groups && (sequence->blocks + 1) * page <= sequence->computed; sequence->blocks++) {
        sequence->block = slots_keep_block(session, sequence->slot, sequence->blocks, sequence->block,
                                           sequence->tokens + (size_t)sequence->blocks * page);
        if ((sequence->blocks + 1) * page <= sequence->sound)
            slots_prove_block(session, sequence->slot, sequence->blocks);
    }
    if (session->checkpointing) make_checkpoints(sequence);
}

void sequence_prove(struct eng_sequence *sequence, uint32_t tokens)
{
    struct eng_session *session = sequence->session;
    const uint32_t page = page_tokens(session);
    for (uint32_t i = sequence->sound / page; i < sequence->blocks && (i + 1) * page <= tokens; i++)
        slots_prove_block(session, sequence->slot, i);
    if (sequence->checkpoint > sequence->sound)
        checkpoints_prove(&session->checkpoints, root_of(sequence), sequence->tokens, sequence->sound, tokens);
    sequence->sound = tokens;
}

void sequence_leave_cache(struct eng_sequence *sequence)
{
    struct eng_session *session = sequence->session;
    if (!session->caches || sequence->is_private) return;
    sequence->is_private = true;
    for (uint32_t i = sequence->sound / page_tokens(session); i < sequence->blocks; i++)
        slots_forget_block(session, sequence->slot, i);
    checkpoints_forget(&session->checkpoints, root_of(sequence), sequence->tokens, sequence->sound, sequence->computed);
}

void sequence_leave_checkpoint(struct eng_sequence *sequence)
{
    const struct eng_session *session = sequence->session;
    struct status ignored = {0};
    if (!session->checkpointing || sequence->is_private || sequence->slot == SESSION_NO_SLOT) return;
    if (!session_usable(session, &ignored)) return;
    make_checkpoint(sequence, whole_pages(session, sequence->computed), least_distance(session));
}

uint32_t sequence_rest(const struct eng_sequence *sequence)
{
    const struct eng_session *session = sequence->session;
    const uint32_t computed = sequence->computed;
    uint32_t end = prompt_rows_before(sequence);
    if (!session->checkpointing || !session->geometry->recurrent_bytes || sequence->is_private) return end - computed;
    struct place places[PLACES];
    find_places(sequence, places);
    for (int i = 0; i < PLACES; i++)
        if (places[i].count > computed && places[i].count < end &&
            places[i].count >= sequence->checkpoint + places[i].distance)
            end = places[i].count;
    /* Steps of a long prompt end where a checkpoint can be. */
    const uint32_t chunk_end =
        end - computed > session->chunk ? whole_pages(session, computed + (uint32_t)session->chunk) : end;
    return (chunk_end > computed ? chunk_end : end) - computed;
}

bool sequence_awaits(const struct eng_sequence *sequence, struct eng_sequence *other)
{
    const struct eng_session *session = sequence->session;
    const uint32_t most = (sequence->count < other->count ? sequence->count : other->count) - 1;
    uint32_t common = 0;
    if (!session->caches || sequence->is_private || other->is_private || root_of(sequence) != root_of(other))
        return false;
    while (common < most && sequence->tokens[common] == other->tokens[common]) common++;
    common = whole_pages(session, common);
    if (common <= other->computed || common < sequence->computed + least_distance(session)) return false;
    if (other->branch <= other->computed || common < other->branch) other->branch = common;
    return true;
}
