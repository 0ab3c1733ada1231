/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/backend/state_shadow.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)BACKEND_PAGES == 1 << STATE_PAGE_TABLE && (int)BACKEND_SAMPLER == 1 << STATE_SAMPLERS &&
                   (int)BACKEND_SEEN == 1 << STATE_SEEN && (int)BACKEND_ROPE_SET == 1 << STATE_ROPE_SET &&
                   (int)BACKEND_RECURRENT == 1 << STATE_RECURRENT &&
                   (int)BACKEND_ADJUSTMENTS == 1 << STATE_ADJUSTMENTS && (int)BACKEND_ALLOWED == 1 << STATE_ALLOWED &&
                   (int)BACKEND_STATE_ALL == (1 << STATE_FIELD_COUNT) - 1,
               "a bit for each field");
_Static_assert(BACKEND_STATE_ALL < UINT8_MAX, "a spare bit");

bool state_shadow_open(struct state_shadow *shadow, const struct plan_geometry *geometry, uint8_t *state,
                       struct status *status)
{
    *shadow = (struct state_shadow){.slots = geometry->slots, .geometry = geometry, .state = state};
    shadow->row_bytes[STATE_PAGE_TABLE] = geometry->pages_per_slot * sizeof(int32_t);
    shadow->row_bytes[STATE_SAMPLERS] = sizeof(struct sampler_state);
    shadow->row_bytes[STATE_SEEN] = geometry->vocab_size / 8 + (geometry->vocab_size % 8 != 0);
    shadow->row_bytes[STATE_ROPE_SET] = geometry->rope_original ? sizeof(int32_t) : 0;
    if (geometry->sampling_options) {
        shadow->row_bytes[STATE_ADJUSTMENTS] = plan_adjustment_words(geometry->vocab_size) * sizeof(uint32_t);
        shadow->row_bytes[STATE_ALLOWED] = plan_allowed_words(geometry->vocab_size) * sizeof(uint32_t);
    }
    shadow->changed = malloc(geometry->slots);
    if (!shadow->changed) return status_fail(status, STATUS_MACHINE, "out of memory");
    memset(shadow->changed, BACKEND_STATE_ALL & ~(BACKEND_ADJUSTMENTS | BACKEND_ALLOWED), geometry->slots);
    return true;
}

void state_shadow_close(struct state_shadow *shadow)
{
    free(shadow->changed);
    *shadow = (struct state_shadow){0};
}

void state_shadow_changed(struct state_shadow *shadow, int32_t slot, unsigned what)
{
    shadow->changed[slot] |= (uint8_t)what;
}

static uint8_t *row_of(const struct state_shadow *shadow, enum state_field field, uint64_t slot)
{
    return shadow->state + shadow->geometry->state[field].offset + slot * shadow->row_bytes[field];
}

void state_shadow_drew(struct state_shadow *shadow, int32_t slot, int32_t token)
{
    struct sampler_state *sampler = (struct sampler_state *)(void *)row_of(shadow, STATE_SAMPLERS, (uint64_t)slot);
    sampler->draw++;
    row_of(shadow, STATE_SEEN, (uint64_t)slot)[token / 8] |= (uint8_t)(1u << (token % 8));
    if (sampler->options & SAMPLER_ADJUSTS)
        plan_count_token((uint32_t *)(void *)row_of(shadow, STATE_ADJUSTMENTS, (uint64_t)slot), token);
}

/* A slot has a row in the page table of each page group. */
static bool send_pages(const struct state_shadow *shadow, uint64_t slot, state_shadow_copy *copy, void *argument,
                       struct status *status)
{
    const struct plan_geometry *geometry = shadow->geometry;
    for (unsigned g = 0; g < plan_page_groups(geometry); g++)
        if (!copy(argument,
                  geometry->state[STATE_PAGE_TABLE].offset + plan_page_row(geometry, g, slot) * sizeof(int32_t),
                  shadow->row_bytes[STATE_PAGE_TABLE], status))
            return false;
    return true;
}

bool state_shadow_send(struct state_shadow *shadow, state_shadow_copy *copy, void *argument, struct status *status)
{
    for (uint64_t slot = 0; slot < shadow->slots; slot++) {
        if (!shadow->changed[slot]) continue;
        for (int field = 0; field < STATE_FIELD_COUNT; field++) {
            uint64_t bytes = shadow->row_bytes[field];
            if (!(shadow->changed[slot] & 1u << field) || !bytes) continue;
            if (field == STATE_PAGE_TABLE
                    ? !send_pages(shadow, slot, copy, argument, status)
                    : !copy(argument, shadow->geometry->state[field].offset + slot * bytes, bytes, status))
                return false;
        }
        shadow->changed[slot] = 0;
    }
    return true;
}

bool state_shadow_send_allowed(struct state_shadow *shadow, const int32_t *slots, uint32_t count,
                               state_shadow_copy *copy, void *argument, struct status *status)
{
    enum { WANTED = BACKEND_STATE_ALL + 1 };
    const uint64_t sampler = shadow->row_bytes[STATE_SAMPLERS], allowed = shadow->row_bytes[STATE_ALLOWED];
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *changed = &shadow->changed[slots[i]];
        if (*changed & BACKEND_SAMPLER &&
            !copy(argument, shadow->geometry->state[STATE_SAMPLERS].offset + (uint64_t)slots[i] * sampler, sampler,
                  status))
            return false;
        if (*changed & BACKEND_ALLOWED) *changed |= WANTED;
        *changed &= (uint8_t)~BACKEND_SAMPLER;
    }
    for (uint64_t slot = 0, end; slot < shadow->slots; slot = end + 1) {
        for (end = slot; end < shadow->slots && shadow->changed[end] & WANTED; end++)
            shadow->changed[end] &= (uint8_t) ~(WANTED | BACKEND_ALLOWED);
        if (end > slot && !copy(argument, shadow->geometry->state[STATE_ALLOWED].offset + slot * allowed,
                                (end - slot) * allowed, status))
            return false;
    }
    return true;
}
