/* SPDX-License-Identifier: Apache-2.0 */
/* An engine of the shipped model for tests that go through the public API: built once for each test program. */
#ifndef TESTS_TEST_FABLES_H
#define TESTS_TEST_FABLES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "formats/base/status.h"
#include "runtime/eng.h"

enum { FABLES_CONTEXT = 384, FABLES_BATCH = 8, FABLES_LARGEST_CHUNK = 64, FABLES_RANKS = 2 };

/* Builds an engine of a checkpoint with these sizes, without tuning. */
bool fables_build_model(const char *model, const char *output, uint32_t gpus, struct status *status);

/* The shipped model without mixed plans, as engines before them: its file is `output`. */
bool fables_build_without_mixed(const char *output, struct status *status);

/* The shipped model for FABLES_RANKS ranks, with hidden states. */
bool fables_build_ranks_with_hidden(const char *output, struct status *status);

/* The shipped model with hidden states and without verification plans. */
bool fables_build_hidden_without_verify(const char *output, struct status *status);

/* Group set-up and tear-down of cmocka: fables_path() is valid between them. */
int fables_build(void **state);
int fables_build_hidden(void **state); /* with hidden states */
int fables_build_ranks(void **state);  /* for FABLES_RANKS ranks */
int fables_remove(void **state);
const char *fables_path(void);

/* The same, with the engine open as `fables`. */
int fables_start(void **state);
int fables_start_ranks(void **state);
int fables_stop(void **state);
extern struct eng_engine *fables;

/* What this thread's calls from this file reported last. */
static _Thread_local struct eng_error error __attribute__((unused));

/* Ends the test with the message unless the call returned ENG_OK. */
void expect_ok(enum eng_status status, const struct eng_error *reported, const char *call);
#define CHECK(call) expect_ok((call), &error, #call)

/* An open engine and a session on it; options may be NULL. */
struct eng_engine *fables_open(void);
struct eng_session *fables_session(struct eng_engine *engine, const struct eng_session_options *options);
/* With another backend than the engine's own. */
struct backend_type;
struct eng_session *fables_session_on(const struct backend_type *type, struct eng_engine *engine,
                                      const struct eng_session_options *options);
/* Greedy; or sampled, with everything that changes a draw. */
struct eng_sampling fables_sampling(bool sampled, uint64_t seed);
/* Steps until all sequences are done. */
void fables_finish(struct eng_session *session);

/* `count` token ids that depend on `seed`, ordinary text of the model. */
void fables_tokens(uint32_t seed, int32_t *tokens, size_t count);

#endif
