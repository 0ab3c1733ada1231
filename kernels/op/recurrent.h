/* SPDX-License-Identifier: Apache-2.0 */
/* What the schemas of ops with recurrent state share: state of a sequence that does not grow with its tokens.
 *
 * STATE_RECURRENT has a block of RECURRENT_BYTES for each slot; a layer's part of it begins at the operand's offset in the block of
 * slot 0. A row whose position is 0 begins a sequence: what the slot's state was before does not matter. Rows of a slot follow each
 * other by rising positions, and each continues the state that the one before left, of this step or of an earlier one. */
#ifndef KERNELS_OP_RECURRENT_H
#define KERNELS_OP_RECURRENT_H

#include "formats/base/checked.h"
#include "kernels/op/op.h"

/* Members of an op's list of parameters: places and ids are the op's. */
#define OP_RECURRENT_PARAMS(place_bytes, id_bytes, place_slots, id_slots)      \
    [place_bytes] = {"recurrent_bytes",                                        \
                     (id_bytes),                                               \
                     PARAM_INTEGER,                                            \
                     PARAM_OF_ENGINE,                                          \
                     .field = offsetof(struct plan_geometry, recurrent_bytes), \
                     .least = 1,                                               \
                     .most = PLAN_MAX_RECURRENT_BYTES},                        \
    [place_slots] = {"slot_count",                                             \
                     (id_slots),                                               \
                     PARAM_INTEGER,                                            \
                     PARAM_OF_ENGINE,                                          \
                     .field = offsetof(struct plan_geometry, slots),           \
                     .least = 1,                                               \
                     .most = OP_MAX_ROWS}

/* struct op_operand.bytes of a STATE_RECURRENT operand, for a layer's part of `part` bytes: from slot 0's to the end of the last slot's. */
static inline bool op_recurrent_bytes(const struct plan_geometry *geometry, uint64_t part, uint64_t *bytes)
{
    return checked_mul(geometry->slots - 1, geometry->recurrent_bytes, bytes) && checked_add(*bytes, part, bytes);
}

#endif
