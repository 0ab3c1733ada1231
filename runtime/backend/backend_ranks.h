/* SPDX-License-Identifier: Apache-2.0 */
/* An engine of several ranks as one backend: one backend and one thread for each rank. */
#ifndef RUNTIME_BACKEND_BACKEND_RANKS_H
#define RUNTIME_BACKEND_BACKEND_RANKS_H

#include "runtime/backend/backend.h"

/* Creates the ranks with `rank_type`. For create() of backend_cpu_ranks and backend_cuda_ranks, and for tests. */
struct backend *backend_ranks_create(const struct backend_type *type, const struct backend_type *rank_type,
                                     struct eng_engine *engine, const struct backend_options *options,
                                     struct status *status);

/* All functions but create(), without the flags. */
#define BACKEND_RANKS_FUNCTIONS                                                                                     \
    .destroy = backend_ranks_destroy, .state_changed = backend_ranks_state_changed, .submit = backend_ranks_submit, \
    .wait = backend_ranks_wait, .drew = backend_ranks_drew, .logits = backend_ranks_logits,                         \
    .hidden = backend_ranks_hidden, .source = backend_ranks_source, .trace = backend_ranks_trace,                   \
    .agree = backend_ranks_agree, .copy_page = backend_ranks_copy_page,                                             \
    .copy_recurrent = backend_ranks_copy_recurrent, .repeat_page = backend_ranks_repeat_page,                       \
    .repeat_recurrent = backend_ranks_repeat_recurrent
void backend_ranks_destroy(struct backend *backend);
void backend_ranks_state_changed(struct backend *backend, int32_t slot, unsigned what);
void backend_ranks_agree(struct backend *backend, const void *bytes, size_t count);
bool backend_ranks_submit(struct backend *backend, size_t plan, enum backend_inputs inputs, struct status *status);
const int32_t *backend_ranks_wait(struct backend *backend, struct status *status);
void backend_ranks_drew(struct backend *backend, int32_t slot, int32_t token);
const float *backend_ranks_logits(struct backend *backend, uint32_t row, uint32_t count, struct status *status);
const float *backend_ranks_hidden(struct backend *backend, uint32_t row, uint32_t count, struct status *status);
const struct plan *backend_ranks_source(const struct backend *backend, size_t plan);
bool backend_ranks_copy_page(struct backend *backend, int32_t page, uint8_t *bytes, bool to_pool,
                             struct status *status);
bool backend_ranks_copy_recurrent(struct backend *backend, int32_t block, uint8_t *bytes, bool to_block,
                                  struct status *status);
bool backend_ranks_repeat_page(struct backend *backend, int32_t from, int32_t to, struct status *status);
bool backend_ranks_repeat_recurrent(struct backend *backend, int32_t from, int32_t to, struct status *status);
bool backend_ranks_trace(struct backend *backend, size_t plan, double *replay_us, double *launch_us,
                         struct status *status);

#endif
