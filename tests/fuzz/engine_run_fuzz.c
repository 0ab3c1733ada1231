/* SPDX-License-Identifier: Apache-2.0 */
/* The whole runtime on engine files whose checksums are right but whose structure is not: what opens must also run.
 * Opens through the public API, repeats the golden outputs and generates a few tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/eng.h"
#include "tests/fuzz/engine_fix_up.h"

/* Engines that ask for more than this are refused by memory limits on some machines and swap on others. */
enum { MOST_VOCAB = 100000, PROMPT = 5, MOST_STEPS = 50 };

static void run_session(struct eng_session *session)
{
    static const int32_t prompt[PROMPT] = {1, 2, 3, 4, 5};
    struct eng_error error;
    struct eng_sequence *sequence = NULL;
    struct eng_sequence_options options;
    eng_selftest(session, NULL, &error);
    eng_sequence_options_init(&options);
    options.max_new_tokens = 4;
    uint32_t unfinished = 1;
    if (eng_sequence_create(session, &options, &sequence, &error) == ENG_OK &&
        eng_sequence_submit(sequence, prompt, PROMPT, &error) == ENG_OK)
        for (int step = 0; unfinished && step < MOST_STEPS; step++)
            if (eng_step(session, &unfinished, &error) != ENG_OK) break;
}

static void run_engine(struct eng_engine *engine)
{
    struct eng_error error;
    struct eng_session *session = NULL;
    struct eng_session_options options;
    struct eng_engine_facts facts;
    eng_session_options_init(&options);
    eng_engine_facts_init(&facts);
    options.threads = 1;
    options.kv_tokens = 64;
    options.max_sequences = 4;
    if (eng_engine_get_facts(engine, &facts, &error) != ENG_OK || facts.vocab_size > MOST_VOCAB) return;
    if (eng_session_create(engine, &options, &session, &error) != ENG_OK) return;
    run_session(session);
    eng_session_destroy(&session);
}

/* What opening allows, and a session of a small model. */
const struct fuzz_cost fuzz_cost = {.base_ms = 2000,
                                    .us_per_byte = 20,
                                    .base_bytes = 2 * ENGINE_HOST_BASE_BYTES,
                                    .bytes_per_byte = ENGINE_HOST_RATIO};

int fuzz_try(const uint8_t *data, size_t size)
{
    struct eng_engine *engine = NULL;
    struct eng_error error;
    struct eng_open_options options;
    char path[64];
    int descriptor = memfd_create("engine", 0);
    if (descriptor < 0 || write(descriptor, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    eng_open_options_init(&options);
    options.threads = 1;
    if (eng_open(path, &options, &engine, &error) == ENG_OK)
        run_engine(engine);
    else if (error.message[0] == '\0')
        abort();
    eng_close(&engine);
    close(descriptor);
    return 0;
}
