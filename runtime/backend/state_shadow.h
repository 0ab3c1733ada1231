/* SPDX-License-Identifier: Apache-2.0 */
/* Host copy of a device's STATE space. Changes on the host are announced, and changed rows are copied to the device
 * before the next replay with inputs from the host. Changes by replays are repeated here. */
#ifndef RUNTIME_BACKEND_STATE_SHADOW_H
#define RUNTIME_BACKEND_STATE_SHADOW_H

#include "runtime/backend/backend.h"

struct state_shadow {
    uint64_t slots;
    const struct plan_geometry *geometry; /* borrowed */
    uint64_t row_bytes[STATE_FIELD_COUNT];
    uint8_t *state;   /* borrowed */
    uint8_t *changed; /* owned, [slots]: bits of enum backend_state */
};

/* All rows are marked as changed, except those that are valid only with an option of their sampler. */
bool state_shadow_open(struct state_shadow *shadow, const struct plan_geometry *geometry, uint8_t *state,
                       struct status *status);
void state_shadow_close(struct state_shadow *shadow); /* does nothing on a shadow that is all zero */

void state_shadow_changed(struct state_shadow *shadow, int32_t slot, unsigned what);
/* Repeats the effect of the sample op: one draw more, and the token has occurred once more. */
void state_shadow_drew(struct state_shadow *shadow, int32_t slot, int32_t token);

/* Copies [offset, offset + bytes) of the STATE space to the device. */
typedef bool state_shadow_copy(void *argument, uint64_t offset, uint64_t bytes, struct status *status);
bool state_shadow_send(struct state_shadow *shadow, state_shadow_copy *copy, void *argument, struct status *status);
/* The same for changed samplers and allowed tokens of slots[count] alone. Rows of allowed tokens that lie side by side are copied at once. */
bool state_shadow_send_allowed(struct state_shadow *shadow, const int32_t *slots, uint32_t count,
                               state_shadow_copy *copy, void *argument, struct status *status);

#endif
