/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by emulated ops with recurrent state: a test's steps, and the state of all slots with poison where no kernel may look. P: a
 * kernel's parameters; PART: bytes of the layer's state in a copy. */
#ifndef TESTS_EMULATION_RECURRENT_ON_HOST_H
#define TESTS_EMULATION_RECURRENT_ON_HOST_H

#include "tests/emulation/paged_on_host.h"

#include "kernels/op/recurrent_copies.cuh"

enum { BEFORE_PART = 64, END_OF_STEP = -1 };

/* `count` tokens of a slot from `position` on. IS_DISCARDED: of other values than the sequence has; the results do not count. */
struct run_of_rows {
    int slot, position, count, is_discarded;
};

template <class P, long PART> struct states_on_host {
    enum { COPY = (int)(P::RECURRENT_BYTES / RECURRENT_COPIES_CUDA) };
    static_assert(BEFORE_PART + PART < COPY, "bytes of other layers before and after it");
    alignas(64) u8 bytes[P::SLOT_COUNT * (long)P::RECURRENT_BYTES];

    void poison() { memset(bytes, 0xff, sizeof bytes); }
    u8 *first() { return bytes + BEFORE_PART; }

    void expect_others_untouched() const
    {
        for (long i = 0; i < (long)sizeof bytes; i++) {
            const long at = i % P::RECURRENT_BYTES % COPY - BEFORE_PART;
            if ((at < 0 || at >= PART) && bytes[i] != 0xff) problem("byte %ld of the state was written", i);
        }
    }
};

/* The rows of the step that begins at `from`; returns where the next step begins. */
template <int ROWS>
static const run_of_rows *fill_step(const run_of_rows *from, int *counts, int *slots, int *positions, int *is_discarded)
{
    int count = 0;
    for (int r = 0; r < ROWS; r++) slots[r] = positions[r] = NO_INDEX;
    for (; from->slot != END_OF_STEP; from++)
        for (int i = 0; i < from->count; i++) {
            slots[count] = from->slot;
            positions[count] = from->position + i;
            is_discarded[count++] = from->is_discarded;
        }
    counts[0] = count;
    return from + 1;
}

#endif
