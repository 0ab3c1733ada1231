/* SPDX-License-Identifier: Apache-2.0 */
/* An open engine: the verified mapping, its tokenizer and facts of the load. Read-only after eng_open;
 * reference-counted by the caller, sessions and text streams. */
#ifndef RUNTIME_LOAD_LOAD_H
#define RUNTIME_LOAD_LOAD_H

#include "runtime/load/load_engine.h"

void load_retain(struct eng_engine *engine);
void load_release(struct eng_engine *engine);

/* chat.c: the token that ends an answer, -1: none; whether the engine has a chat template, with the reason if not. */
int32_t chat_end_token(const struct eng_engine *engine);
bool chat_is_possible(const struct eng_engine *engine, struct status *status);

/* False if the file of weights that are used in the page cache has been written or truncated since they were
 * verified. */
bool load_weights_unchanged(const struct eng_engine *engine, struct status *status);

/* Checks all that a session relies on when it replays plans: they fit the manifest, every launch satisfies its op, and
 * every index that a launch reads is one that the runtime fills. Launches on devices are checked by engine_open, as far
 * as possible without the device. */
bool load_check_plans(const struct engine *file, size_t *decode_plans, struct plan_space_sizes *sizes,
                      struct status *status);
/* Reads the weights into memory and compares every chunk's hash, with `threads` threads (0: one per processor). copy:
 * NULL, or memory for all weights, into which they are copied; the hash is then that of the copy. progress: may be NULL. */
bool load_check_weights(const struct engine *file, uint8_t *copy, uint32_t threads, struct load_progress *progress,
                        int *used_threads, double *seconds, struct status *status);

#endif
