/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts: tokens that may come next in a sequence, found where its last tokens have occurred before (prompt lookup). Each slot has a table
 * of the places of runs of GRAM tokens, by a hash of the run.
 *
 * How many tokens are drafted depends on how often the first token of a draft was the right one, which is known without verifying any:
 * each drawn token is compared with the draft that there was for it. Where drafts are mostly wrong none are verified, and a sequence costs what it
 * costs without speculation. The number depends on tokens and predictions alone, which
 * several processes have alike (backend_ranks.c compares them).
 *
 * An engine with a layer that predicts further tokens (struct plan_geometry.drafts) gives a prediction of one token with each that it draws, which
 * is a draft where a sequence's own text has none that is better. It is compared likewise with the token that is drawn. The layer's keys and
 * values of a token depend on the token after it. In pages of the prefix cache, and where a prompt goes on after an answer, the last ones may
 * come from another token: that makes predictions worse and changes no token that is drawn. */
#include <string.h>

#include "runtime/session/session.h"

enum { GRAM = 3, MOST_PLACES = 1 << 16 };

/* A token is drafted if it is accepted at least so often: about the share of a step's time that one row more takes, and that of drafting it. */
static const float row_cost = 0.3f;
/* Weight of the latest comparison. */
static const float newest_weight = 0.125f;
static const float first_hits = 0.5f;

uint32_t drafts_places(uint64_t max_context)
{
    uint32_t places = 64;
    while (places < max_context && places < MOST_PLACES) places *= 2;
    return places;
}

void drafts_begin(struct eng_sequence *sequence)
{
    sequence->hits = sequence->engine_hits = sequence->predicted_hits = first_hits;
    sequence->predicted_at = 0;
}

float drafts_weigh(float hits, bool is_hit) { return hits + ((is_hit ? 1.0f : 0.0f) - hits) * newest_weight; }

uint32_t drafts_count(float hits, float cost, uint32_t most)
{
    const float least = row_cost + cost;
    uint32_t count = 0;
    for (float chance = hits; count < most && chance >= least; chance *= hits) count++;
    return count;
}

void drafts_clear(struct eng_session *session, int32_t slot)
{
    struct session_slot *own = &session->slots[slot];
    if (!own->places || !own->placed) return;
    memset(own->places, 0, session->draft_places * sizeof *own->places);
    own->placed = 0;
}

/* Where the table has the run of tokens that ends before `end`. */
static int32_t *place_of(const struct eng_session *session, int32_t slot, const int32_t *end)
{
    uint64_t hash = 0;
    for (int i = -GRAM; i < 0; i++) hash = (hash + (uint32_t)end[i]) * UINT64_C(0x9E3779B97F4A7C15);
    return &session->slots[slot].places[(hash >> 40) & (session->draft_places - 1)];
}

/* Index of the token that followed the latest earlier occurrence of the sequence's last tokens; 0: there was none. */
static uint32_t find(const struct eng_sequence *sequence)
{
    const struct eng_session *session = sequence->session;
    struct session_slot *slot = &session->slots[sequence->slot];
    const int32_t *tokens = sequence->tokens;
    for (uint32_t i = slot->placed > GRAM ? slot->placed : GRAM; i < sequence->count; i++)
        *place_of(session, sequence->slot, tokens + i) = (int32_t)i;
    slot->placed = sequence->count;
    if (sequence->count < GRAM) return 0;
    const int32_t *last = tokens + sequence->count;
    const uint32_t found = (uint32_t)*place_of(session, sequence->slot, last);
    if (!found || found >= sequence->count) return 0;
    return memcmp(tokens + found - GRAM, last - GRAM, GRAM * sizeof *tokens) == 0 ? found : 0;
}

void drafts_learn(struct eng_sequence *sequence, int32_t token)
{
    if (!sequence->session->speculate || sequence->slot == SESSION_NO_SLOT) return;
    if (sequence->predicted_at == sequence->count)
        sequence->predicted_hits = drafts_weigh(sequence->predicted_hits, sequence->predicted == token);
    const uint32_t found = find(sequence);
    if (!found) return;
    sequence->hits = drafts_weigh(sequence->hits, sequence->tokens[found] == token);
}

void drafts_predicted(struct eng_sequence *sequence, int32_t token)
{
    /* What a kernel on a GPU gives is not trusted. */
    const bool exists = token >= 0 && (uint64_t)token < sequence->session->geometry->vocab_size;
    sequence->predicted = token;
    sequence->predicted_at = exists ? sequence->count : 0;
}

/* Whether the engine's own prediction is worth verifying. A draft engine, which drafts more tokens, takes its place. */
static bool has_prediction(const struct eng_sequence *sequence, uint32_t most)
{
    return sequence->predicted_at == sequence->count && !sequence->session->draft &&
           drafts_count(sequence->predicted_hits, 0, most);
}

uint32_t drafts_propose(struct eng_sequence *sequence, uint32_t most)
{
    const uint32_t count = drafts_count(sequence->hits, 0, most), found = count ? find(sequence) : 0;
    int32_t *tokens = sequence->tokens;
    if (has_prediction(sequence, most) && (!found || (count == 1 && sequence->predicted_hits > sequence->hits))) {
        tokens[sequence->count] = sequence->predicted;
        return 1;
    }
    if (!found) return 0;
    for (uint32_t i = 0; i < count; i++)
        tokens[sequence->count + i] = tokens[found + i]; /* what repeats itself goes on with the draft's own tokens */
    return count;
}
