/* SPDX-License-Identifier: Apache-2.0 */
/* What the schemas of ops with recurrent state share: state of a sequence that does not grow with its tokens.
 *
 * STATE_RECURRENT has a block of RECURRENT_BYTES for each slot; a layer's part of it begins at the operand's offset in the block of
 * slot 0. A row whose position is 0 begins a sequence: what the slot's state was before does not matter. Rows of a slot follow each
 * other by positions that rise by 1, and each continues the state that the one before left, of this step or of an earlier one.
 *
 * CPU: a block is one copy of the state. CUDA: a block is RECURRENT_COPIES_CUDA copies, one after the other, since the runtime queues
 * a decode step before it knows whether the step will be discarded. The rows of a slot in a step follow each other directly. Where the
 * first of them has position p, the step reads the copy of parity (p - 1) % 2, or nothing if p is 0; where the last one has position
 * q, the step writes the copy of parity q % 2. A decode step that is discarded leaves the copy that the next step reads, and a decode
 * step that runs again has the same result. */
#ifndef KERNELS_OP_RECURRENT_H
#define KERNELS_OP_RECURRENT_H

#include "formats/base/checked.h"
#include "kernels/op/op.h"
#include "kernels/op/recurrent_copies.cuh"

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

static inline uint64_t op_recurrent_copies(enum engine_target target)
{
    return target == TARGET_CUDA ? RECURRENT_COPIES_CUDA : 1;
}

/* struct op_operand.bytes of a STATE_RECURRENT operand, for a layer's part of `part` bytes: from slot 0's first copy to the end of the
 * last slot's last copy. */
static inline bool op_recurrent_bytes(const struct plan_geometry *geometry, enum engine_target target, uint64_t part,
                                      uint64_t *bytes)
{
    const uint64_t copies = op_recurrent_copies(target), blocks = geometry->slots - 1;
    return checked_mul(blocks, geometry->recurrent_bytes, bytes) &&
           checked_add(*bytes, (copies - 1) * (geometry->recurrent_bytes / copies), bytes) &&
           checked_add(*bytes, part, bytes);
}

/* Why the kernels for GPUs do not take a layer's part of `part` bytes in such a block, NULL if they do. */
static inline const char *op_recurrent_device_illegal(int64_t recurrent_bytes, uint64_t part)
{
    if (recurrent_bytes % (RECURRENT_COPIES_CUDA * PLAN_ALIGNMENT))
        return "RECURRENT_BYTES is not two copies whose sizes are multiples of 64";
    return part > (uint64_t)recurrent_bytes / RECURRENT_COPIES_CUDA
               ? "RECURRENT_BYTES is less than two copies of the state of a layer"
               : NULL;
}

#endif
