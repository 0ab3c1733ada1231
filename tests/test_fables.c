/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/test_fables.h"
#include "runtime/session/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "builder/build.h"

struct eng_engine *fables;
static char folder[256], path[300];

static const char fables_model[] = "tests/models/fables";

static bool build_model(const char *model, const char *output, uint32_t gpus, bool mixes, bool verifies, bool hidden,
                        struct status *status)
{
    struct build_options options;
    build_options_init(&options);
    options.model = model;
    options.output = output;
    options.gpus = gpus;
    options.hidden = hidden;
    options.max_context = FABLES_CONTEXT;
    options.max_batch = FABLES_BATCH;
    options.prefill_chunks[0] = 8;
    options.prefill_chunks[1] = FABLES_LARGEST_CHUNK;
    options.prefill_chunk_count = 2;
    options.mixed_step_count = !mixes; /* of 0 rows, as the next */
    options.verify_row_count = !verifies;
    options.tune = TUNE_OFF;
    options.tuning_cache = NULL;
    options.progress = NULL;
    options.out = fopen("/dev/null", "w");
    bool ok = options.out && build_engine(&options, status);
    if (options.out) fclose(options.out);
    return ok;
}

bool fables_build_model(const char *model, const char *output, uint32_t gpus, struct status *status)
{
    return build_model(model, output, gpus, true, true, false, status);
}

bool fables_build_without_mixed(const char *output, struct status *status)
{
    return build_model(fables_model, output, 1, false, true, false, status);
}

bool fables_build_ranks_with_hidden(const char *output, struct status *status)
{
    return build_model(fables_model, output, FABLES_RANKS, true, true, true, status);
}

bool fables_build_hidden_without_verify(const char *output, struct status *status)
{
    return build_model(fables_model, output, 1, true, false, true, status);
}

static int build(uint32_t gpus, bool hidden)
{
    const char *root = getenv("TEST_TMPDIR");
    struct status status;
    status_clear(&status);
    snprintf(folder, sizeof folder, "%s/fables.XXXXXX", root ? root : "/tmp");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/fables.eng", folder);
    bool ok = build_model(fables_model, path, gpus, true, true, hidden, &status);
    if (!ok) fprintf(stderr, "build of %s: %s\n", fables_model, status.message);
    return ok ? 0 : -1;
}

int fables_build(void **state) { return build(1, false); }

int fables_build_hidden(void **state) { return build(1, true); }

int fables_build_ranks(void **state) { return build(FABLES_RANKS, false); }

int fables_remove(void **state)
{
    unlink(path);
    rmdir(folder);
    return 0;
}

const char *fables_path(void) { return path; }

static int start(uint32_t gpus)
{
    if (build(gpus, false)) return -1;
    fables = fables_open();
    return 0;
}

int fables_start(void **state) { return start(1); }
int fables_start_ranks(void **state) { return start(FABLES_RANKS); }

int fables_stop(void **state)
{
    eng_close(&fables);
    return fables_remove(state);
}

void expect_ok(enum eng_status status, const struct eng_error *reported, const char *call)
{
    if (status != ENG_OK) fail_msg("%s: %s: %s", call, eng_status_name((int)status), reported->message);
}

struct eng_engine *fables_open(void)
{
    struct eng_engine *engine = NULL;
    CHECK(eng_open(path, NULL, &engine, &error));
    return engine;
}

struct eng_session *fables_session(struct eng_engine *engine, const struct eng_session_options *options)
{
    struct eng_session *session = NULL;
    CHECK(eng_session_create(engine, options, &session, &error));
    return session;
}

struct eng_session *fables_session_on(const struct backend_type *type, struct eng_engine *engine,
                                      const struct eng_session_options *options)
{
    struct eng_session *session = NULL;
    struct status status = {0};
    if (!session_create(engine, type, options, &session, &status)) fail_msg("%s", status.message);
    return session;
}

struct eng_sampling fables_sampling(bool sampled, uint64_t seed)
{
    struct eng_sampling sampling;
    eng_sampling_init(&sampling);
    if (!sampled) return sampling;
    sampling.temperature = 0.8f;
    sampling.top_k = 40;
    sampling.top_p = 0.95f;
    sampling.repetition_penalty = 1.3f;
    sampling.seed = seed;
    static const struct eng_logit_bias biases[] = {{300, 2.5f}, {700, -3}, {900, 1}, {300, 1.5f}};
    sampling.min_p = 0.01f;
    sampling.presence_penalty = 0.4f;
    sampling.frequency_penalty = 0.3f;
    if (seed % 3) return sampling;
    sampling.logit_bias = biases;
    sampling.logit_bias_count = sizeof biases / sizeof *biases;
    return sampling;
}

void fables_finish(struct eng_session *session)
{
    uint32_t unfinished = 1;
    while (unfinished) CHECK(eng_step(session, &unfinished, &error));
}

void fables_tokens(uint32_t seed, int32_t *tokens, size_t count)
{
    enum { FIRST_ORDINARY = 256, ORDINARY = 1024 };
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        tokens[i] = FIRST_ORDINARY + (int32_t)((seed >> 8) % ORDINARY);
    }
}
