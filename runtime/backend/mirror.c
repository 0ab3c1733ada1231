/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/backend/mirror.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)BACKEND_PAGES == 1 << STATE_PAGE_TABLE && (int)BACKEND_SAMPLER == 1 << STATE_SAMPLERS &&
                   (int)BACKEND_SEEN == 1 << STATE_SEEN && (int)BACKEND_STATE_ALL == (1 << STATE_FIELD_COUNT) - 1,
               "a bit for each field");

bool mirror_open(struct mirror *mirror, const struct plan_geometry *geometry, uint8_t *state, struct status *status)
{
    uint64_t bytes;
    *mirror = (struct mirror){.slots = geometry->slots, .state = state};
    state_layout(geometry, mirror->fields, &bytes); /* fits: checked when the engine was opened */
    mirror->row_bytes[STATE_PAGE_TABLE] = geometry->pages_per_slot * sizeof(int32_t);
    mirror->row_bytes[STATE_SAMPLERS] = sizeof(struct sampler_state);
    mirror->row_bytes[STATE_SEEN] = geometry->vocab_size / 8 + (geometry->vocab_size % 8 != 0);
    mirror->changed = malloc(geometry->slots);
    if (!mirror->changed) return status_fail(status, STATUS_MACHINE, "out of memory");
    memset(mirror->changed, BACKEND_STATE_ALL, geometry->slots);
    return true;
}

void mirror_close(struct mirror *mirror)
{
    free(mirror->changed);
    *mirror = (struct mirror){0};
}

void mirror_changed(struct mirror *mirror, int32_t slot, unsigned what) { mirror->changed[slot] |= (uint8_t)what; }

static uint8_t *row_of(const struct mirror *mirror, enum state_field field, uint64_t slot)
{
    return mirror->state + mirror->fields[field].offset + slot * mirror->row_bytes[field];
}

void mirror_drew(struct mirror *mirror, int32_t slot, int32_t token)
{
    struct sampler_state *sampler = (struct sampler_state *)(void *)row_of(mirror, STATE_SAMPLERS, (uint64_t)slot);
    sampler->draw++;
    row_of(mirror, STATE_SEEN, (uint64_t)slot)[token / 8] |= (uint8_t)(1u << (token % 8));
}

bool mirror_send(struct mirror *mirror, mirror_copy *copy, void *argument, struct status *status)
{
    for (uint64_t slot = 0; slot < mirror->slots; slot++) {
        if (!mirror->changed[slot]) continue;
        for (int field = 0; field < STATE_FIELD_COUNT; field++) {
            uint64_t bytes = mirror->row_bytes[field];
            if ((mirror->changed[slot] & 1u << field) &&
                !copy(argument, mirror->fields[field].offset + slot * bytes, bytes, status))
                return false;
        }
        mirror->changed[slot] = 0;
    }
    return true;
}
