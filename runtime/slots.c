/* KV pages and slots, and the replay of one step on them. Pages are a stack of free numbers; a slot's pages are the
 * first entries of its row of the page table, which the plans read. */
#include <string.h>

#include "runtime/session.h"

int32_t slots_take(struct eng_session *session, enum slot_use use)
{
    for (uint32_t i = 0; session->free_slot_count && i < session->geometry->slots; i++) {
        struct session_slot *slot = &session->slots[i];
        if (slot->use != SLOT_FREE) continue;
        slot->use = use;
        slot->position = 0;
        slot->pages = 0;
        session->free_slot_count--;
        session->samplers[i] = (struct sampler_state){.top_p = 1, .repetition_penalty = 1};
        slots_clear_seen(session, (int32_t)i);
        return (int32_t)i;
    }
    return SESSION_NO_SLOT;
}

static int32_t *slot_pages(struct eng_session *session, int32_t slot)
{
    return session->page_table + (uint64_t)slot * session->geometry->pages_per_slot;
}

static void shrink(struct eng_session *session, int32_t slot, uint32_t pages)
{
    struct session_slot *own = &session->slots[slot];
    while (own->pages > pages)
        session->free_pages[session->free_page_count++] = slot_pages(session, slot)[--own->pages];
}

void slots_give_back(struct eng_session *session, int32_t slot)
{
    shrink(session, slot, 0);
    session->slots[slot].use = SLOT_FREE;
    session->free_slot_count++;
}

uint32_t slots_pages_for(const struct eng_session *session, uint64_t tokens)
{
    uint64_t page_tokens = session->geometry->page_tokens;
    return (uint32_t)(tokens / page_tokens + (tokens % page_tokens != 0));
}

bool slots_reserve(struct eng_session *session, int32_t slot, uint64_t tokens)
{
    struct session_slot *own = &session->slots[slot];
    uint32_t pages = slots_pages_for(session, tokens);
    if (pages > own->pages && pages - own->pages > session->free_page_count) return false;
    while (own->pages < pages)
        slot_pages(session, slot)[own->pages++] = session->free_pages[--session->free_page_count];
    return true;
}

void slots_clear_seen(struct eng_session *session, int32_t slot)
{
    memset(session->seen + (uint64_t)slot * session->seen_bytes, 0, session->seen_bytes);
}

void slots_mark_seen(struct eng_session *session, int32_t slot, const int32_t *tokens, size_t count)
{
    uint8_t *seen = session->seen + (uint64_t)slot * session->seen_bytes;
    for (size_t i = 0; i < count; i++) seen[tokens[i] / 8] |= (uint8_t)(1u << (tokens[i] % 8));
}

void slots_truncate(struct eng_session *session, int32_t slot, uint32_t position)
{
    struct session_slot *own = &session->slots[slot];
    own->position = position;
    shrink(session, slot, slots_pages_for(session, position));
    slots_clear_seen(session, slot);
    slots_mark_seen(session, slot, own->history, position);
}

uint32_t replay_chunk(const struct eng_session *session, uint64_t rest, size_t *plan_index)
{
    /* One token: the smallest decode plan computes the same bits faster. It serves, token by token, where an engine has
     * no prefill plans, too. */
    *plan_index = 0;
    if (rest == 1 || session->decode_plans == session->plan_count) return 1;
    /* The smallest plan that holds all of the rest, else the largest: few passes over the weights count for more than
     * a full chunk, for rows that are not filled cost nothing. */
    size_t index = session->decode_plans;
    while (index + 1 < session->plan_count && session->plans[index].rows < rest) index++;
    *plan_index = index;
    return session->plans[index].rows < rest ? session->plans[index].rows : (uint32_t)rest;
}

static bool check_drawn(const struct eng_session *session, const struct session_plan *plan, uint32_t count,
                        struct status *status)
{
    for (uint32_t i = 0; i < count; i++)
        if (plan->next_tokens[i] < 0 || (uint64_t)plan->next_tokens[i] >= session->geometry->vocab_size)
            return status_fail(status, STATUS_INTERNAL, "row %u drew token %d, expected 0 to %llu", i,
                               plan->next_tokens[i], (unsigned long long)session->geometry->vocab_size - 1);
    return true;
}

bool replay_prefill(struct eng_session *session, int32_t slot, const int32_t *tokens, uint32_t count, size_t plan_index,
                    int32_t *next_token, const float **logits, struct status *status)
{
    struct session_plan *plan = &session->plans[plan_index];
    struct session_slot *own = &session->slots[slot];
    uint32_t out_rows = next_token != NULL;
    plan->counts[0] = (int32_t)count;
    plan->counts[1] = (int32_t)out_rows;
    memcpy(plan->tokens, tokens, count * sizeof *tokens);
    for (uint32_t i = 0; i < count; i++) {
        plan->slots[i] = slot;
        plan->positions[i] = (int32_t)(own->position + i);
    }
    plan->out_row[0] = (int32_t)(count - 1);
    cpu_plan_run(&plan->bound, session->team);
    session->steps++;
    own->position += count;
    if (!out_rows) return true;
    if (!check_drawn(session, plan, 1, status)) return false;
    *next_token = plan->next_tokens[0];
    if (logits) *logits = plan->logits;
    return true;
}

struct session_plan *replay_decode_plan(const struct eng_session *session, uint32_t count)
{
    /* The largest decode plan has a row for every slot: checked when the engine was opened. */
    size_t index = 0;
    while (index + 1 < session->decode_plans && session->plans[index].rows < count) index++;
    return &session->plans[index];
}

bool replay_decode(struct eng_session *session, struct session_plan *plan, uint32_t count, struct status *status)
{
    plan->counts[0] = plan->counts[1] = (int32_t)count;
    for (uint32_t i = 0; i < count; i++) {
        plan->positions[i] = (int32_t)session->slots[plan->slots[i]].position++;
        plan->out_row[i] = (int32_t)i;
    }
    cpu_plan_run(&plan->bound, session->team);
    session->steps++;
    return check_drawn(session, plan, count, status);
}
