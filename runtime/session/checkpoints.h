/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: what a sequence needs, besides the cached pages of groups without a window, to go on after its first tokens, where some
 * layers have a window or recurrent state. A checkpoint has copies of the pages that hold the windows before its place, which no slot
 * uses, and a place for a copy of the recurrent state. It is known by all tokens before it, which are compared, not a hash of them.
 *
 * Its pages are of the session's pool, and last until a slot needs them: idle blocks go first. A checkpoint goes with the block before
 * its place, without which it is of no use. If all checkpoints are in use, the one that was used longest ago makes room.
 *
 * This file keeps account; slots.c copies. Requires: one thread at a time. */
#ifndef RUNTIME_SESSION_CHECKPOINTS_H
#define RUNTIME_SESSION_CHECKPOINTS_H

#include "formats/engine/plan.h"
#include "runtime/session/page_pool.h"

struct session_checkpoint {
    uint32_t count;      /* tokens before it; 0: it is not in use */
    uint64_t root;       /* page_pool_root of their rotary frequencies */
    uint64_t block;      /* number of their last block; 0: blocks have no pages */
    uint64_t used;       /* when it was made or used last, by checkpoints.clock */
    bool is_proven;      /* finite logits came from it */
    uint32_t page_count; /* copies */
    int32_t *pages;      /* [checkpoints.most_pages] */
    int32_t *tokens;     /* [count] */
};

struct checkpoints {
    struct page_pool *pool;         /* borrowed */
    struct session_checkpoint *all; /* [count] */
    uint32_t count;                 /* 0: the session has none */
    uint32_t most_pages;            /* of one */
    int32_t *pages;
    uint64_t clock;
    const struct session_checkpoint *held; /* its pages must stay; NULL: none */
};

/* Most pages of a checkpoint. */
uint64_t checkpoints_most_pages(const struct plan_geometry *geometry);
/* tokens: [count, stride], borrowed. False: out of memory; checkpoints_close is allowed. */
bool checkpoints_open(struct checkpoints *checkpoints, struct page_pool *pool, uint32_t count, uint32_t most_pages,
                      int32_t *tokens, uint64_t stride);
void checkpoints_close(struct checkpoints *checkpoints);

/* The longest checkpoint of at most `most` tokens whose tokens are the beginning of `tokens`; NULL: there is none. */
struct session_checkpoint *checkpoints_find(const struct checkpoints *checkpoints, uint64_t root, const int32_t *tokens,
                                            uint32_t most);
/* How many of `count` tokens some checkpoint begins with, too. */
uint32_t checkpoints_common(const struct checkpoints *checkpoints, uint64_t root, const int32_t *tokens,
                            uint32_t count);
/* It was used now. */
void checkpoints_touch(struct checkpoints *checkpoints, struct session_checkpoint *checkpoint);
/* Makes a checkpoint after `count` tokens, the last block of which has this number, with `pages` pages, whose content the caller copies.
 * NULL: too few pages are available. Requires: there is none of these tokens. */
struct session_checkpoint *checkpoints_add(struct checkpoints *checkpoints, uint64_t root, const int32_t *tokens,
                                           uint32_t count, uint64_t block, uint32_t pages);
void checkpoints_drop(struct checkpoints *checkpoints, struct session_checkpoint *checkpoint);
/* Those after more than `from` and at most `to` of the tokens are proven. */
void checkpoints_prove(struct checkpoints *checkpoints, uint64_t root, const int32_t *tokens, uint32_t from,
                       uint32_t to);
/* Those that are not proven are dropped. */
void checkpoints_forget(struct checkpoints *checkpoints, uint64_t root, const int32_t *tokens, uint32_t from,
                        uint32_t to);
/* Until checkpoints_release, its pages are not available. */
void checkpoints_hold(struct checkpoints *checkpoints, const struct session_checkpoint *checkpoint);
void checkpoints_release(struct checkpoints *checkpoints);
/* Frees pages until so many are free. Requires: they are available. */
void checkpoints_make_room(struct checkpoints *checkpoints, uint32_t pages);

#endif
