/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/session/session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "formats/base/checked.h"
#include "formats/base/memory_limit.h"
#include "kernels/cpu/team.h"

/* Interval at which the engine's file is checked for changes. */
static const uint64_t look_after_ns = 10 * 1000 * 1000;

enum { SEQUENCES_PER_SLOT = 4, LEAST_SEQUENCES = 64, MOST_SEQUENCES = 1 << 20 };
/* Checkpoints, and what those with recurrent state take where the caller does not say: at least so many. */
enum { MOST_CHECKPOINTS = 64, LEAST_CHECKPOINTS = 4, DEFAULT_CHECKPOINT_BYTES = 256 << 20 };

/* Memory of a session besides its backend. */
struct session_sizes {
    uint64_t token_buffer_bytes; /* of one sequence or slot */
    uint64_t option_bytes;       /* logit biases and allowed tokens of one sequence */
    uint64_t draft_bytes;        /* table of drafts of one slot */
    uint64_t tokens_bytes;       /* of all of them, and of checkpoints */
    uint32_t checkpoints;
};

static bool plan_sizes(const struct eng_session *session, struct session_sizes *sizes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), buffers, all_options, all_drafts;
    if (session->geometry->sampling_options)
        sizes->option_bytes = PLAN_MAX_LOGIT_BIASES * sizeof(struct eng_logit_bias) +
                              plan_allowed_words(session->geometry->vocab_size) * sizeof(uint32_t);
    if (session->speculate) sizes->draft_bytes = session->draft_places * sizeof(int32_t);
    return checked_add(session->geometry->max_context, 1, &sizes->token_buffer_bytes) &&
           checked_mul(sizes->token_buffer_bytes, sizeof(int32_t), &sizes->token_buffer_bytes) &&
           checked_add(session->geometry->slots, session->max_sequences, &buffers) &&
           checked_add(buffers, sizes->checkpoints, &buffers) &&
           checked_mul(sizes->token_buffer_bytes, buffers, &sizes->tokens_bytes) &&
           checked_mul(sizes->option_bytes, session->max_sequences, &all_options) &&
           checked_add(sizes->tokens_bytes, all_options, &sizes->tokens_bytes) &&
           checked_mul(sizes->draft_bytes, session->geometry->slots, &all_drafts) &&
           checked_add(sizes->tokens_bytes, all_drafts, &sizes->tokens_bytes) &&
           checked_align(sizes->tokens_bytes, page, &sizes->tokens_bytes);
}

static bool find_fields(struct eng_session *session, struct status *status)
{
    const struct engine *file = &session->engine->file;
    const struct plan_field *state = session->geometry->state;
    const uint64_t vocab_size = session->geometry->vocab_size;
    uint8_t *base = session->backend->state, *step = session->backend->step;
    session->page_table = (int32_t *)(void *)(base + state[STATE_PAGE_TABLE].offset);
    session->samplers = (struct sampler_state *)(void *)(base + state[STATE_SAMPLERS].offset);
    session->seen = base + state[STATE_SEEN].offset;
    session->seen_bytes = vocab_size / 8 + (vocab_size % 8 != 0);
    if (session->geometry->sampling_options) {
        session->adjustments = (uint32_t *)(void *)(base + state[STATE_ADJUSTMENTS].offset);
        session->allowed = (uint32_t *)(void *)(base + state[STATE_ALLOWED].offset);
    }
    if (session->geometry->rope_original) session->rope_set = (int32_t *)(void *)(base + state[STATE_ROPE_SET].offset);

    session->plans = calloc(file->plan_count, sizeof *session->plans);
    session->selftest = calloc(file->plan_count, sizeof *session->selftest);
    if (!session->plans || !session->selftest) return status_fail(status, STATUS_MACHINE, "out of memory");
    session->plan_count = file->plan_count;
    session->decode_plans = session->prefill_end = session->engine->decode_plans;
    for (size_t i = 0; i < file->plan_count; i++) {
        const struct plan *plan = &file->plans[i];
        struct session_plan *own = &session->plans[i];
        const struct plan_field *fields = plan->step;
        session->prefill_end += plan->header.kind == PLAN_PREFILL;
        session->mixed_end += plan->header.kind != PLAN_VERIFY;
        own->rows = plan->header.rows;
        own->out_rows = plan->header.out_rows;
        own->counts = (int32_t *)(void *)(step + fields[STEP_COUNTS].offset);
        own->tokens = (int32_t *)(void *)(step + fields[STEP_TOKENS].offset);
        own->slots = (int32_t *)(void *)(step + fields[STEP_SLOTS].offset);
        own->positions = (int32_t *)(void *)(step + fields[STEP_POSITIONS].offset);
        own->out_row = (int32_t *)(void *)(step + fields[STEP_OUT_ROWS].offset);
        if (fields[STEP_FOLLOWING].bytes) own->following = (int32_t *)(void *)(step + fields[STEP_FOLLOWING].offset);
        if (fields[STEP_ROUTE_SEEDS].bytes) own->seeds = (int32_t *)(void *)(step + fields[STEP_ROUTE_SEEDS].offset);
    }
    return true;
}

/* Page groups without a window. */
static uint32_t unbounded_groups(const struct plan_geometry *geometry)
{
    uint32_t count = 0;
    for (unsigned g = 0; g < plan_page_groups(geometry); g++) count += !geometry->page_window[g];
    return count;
}

/* Decides whether the session has a cache, and how many checkpoints. */
static uint32_t plan_cache(struct eng_session *session, const struct eng_session_options *options)
{
    const struct plan_geometry *geometry = session->geometry;
    session->caches = !options->no_prefix_cache;
    if (!session->caches || (!geometry->recurrent_bytes && unbounded_groups(geometry) == plan_page_groups(geometry)))
        return 0;
    uint64_t count = MOST_CHECKPOINTS;
    if (geometry->recurrent_bytes) {
        const uint64_t bytes = options->checkpoint_bytes ? options->checkpoint_bytes : DEFAULT_CHECKPOINT_BYTES;
        count = bytes / geometry->recurrent_bytes;
        if (!options->checkpoint_bytes && count < LEAST_CHECKPOINTS) count = LEAST_CHECKPOINTS;
        if (count > MOST_CHECKPOINTS) count = MOST_CHECKPOINTS;
    }
    session->caches = session->checkpointing = count > 0;
    return (uint32_t)count;
}

/* Host memory for pages of sequences that are set aside. */
static uint64_t kept_limit(const struct eng_session *session, const struct eng_session_options *options)
{
    enum { PART = 4 }; /* of the available memory */
    uint64_t most = UINT64_C(4) << 30;
    struct memory_limit memory;
    if (options->kept_bytes) return options->kept_bytes;
    if (!session->backend->device_name) return 0;
    memory_limit_available("", &memory);
    if (memory.bytes / PART < most) most = memory.bytes / PART;
    return session->backend->kv_bytes < most ? session->backend->kv_bytes : most;
}

static bool allocate_tables(struct eng_session *session, const struct session_sizes *sizes, struct status *status)
{
    uint64_t slots = session->geometry->slots;
    const uint32_t groups = unbounded_groups(session->geometry), pages = session->backend->pages;
    bool ok = page_pool_open(&session->pool, pages, groups, (uint32_t)session->geometry->page_tokens,
                             session->caches && groups);
    session->slots = calloc(slots, sizeof *session->slots);
    session->active = calloc(slots, sizeof *session->active);
    session->sequences = calloc(session->max_sequences, sizeof *session->sequences);
    session->parts = calloc(slots, sizeof *session->parts);
    session->part_sequence = calloc(slots, sizeof *session->part_sequence);
    ok = ok && session->slots && session->active && session->sequences && session->parts && session->part_sequence;
    for (int i = 0; i < BACKEND_MOST_IN_FLIGHT; i++) {
        struct session_flight *flight = &session->flights[i];
        flight->slots = calloc(slots, sizeof *flight->slots);
        flight->sequences = calloc(slots, sizeof *flight->sequences);
        ok = ok && flight->slots && flight->sequences;
    }
    if (!ok) return status_fail(status, STATUS_MACHINE, "out of memory");

    session->free_slot_count = (uint32_t)slots;
    char *buffer = session->tokens.base;
    for (uint64_t i = 0; i < slots; i++, buffer += sizes->token_buffer_bytes)
        session->slots[i].history = (int32_t *)(void *)buffer;
    for (uint32_t i = session->max_sequences; i-- > 0; buffer += sizes->token_buffer_bytes) {
        struct eng_sequence *sequence = &session->sequences[i];
        sequence->session = session;
        sequence->tokens = (int32_t *)(void *)buffer;
        sequence->next = session->free_sequences;
        session->free_sequences = sequence;
    }
    const uint64_t copies = checkpoints_most_pages(session->geometry);
    if (!checkpoints_open(&session->checkpoints, &session->pool, sizes->checkpoints,
                          copies < pages ? (uint32_t)copies : pages, (int32_t *)(void *)buffer,
                          sizes->token_buffer_bytes / sizeof(int32_t)))
        return status_fail(status, STATUS_MACHINE, "out of memory");
    buffer += sizes->checkpoints * sizes->token_buffer_bytes;
    for (uint32_t i = 0; sizes->option_bytes && i < session->max_sequences; i++, buffer += sizes->option_bytes) {
        session->sequences[i].biases = (struct eng_logit_bias *)(void *)buffer;
        session->sequences[i].allowed = (uint32_t *)(void *)(session->sequences[i].biases + PLAN_MAX_LOGIT_BIASES);
    }
    for (uint64_t i = 0; sizes->draft_bytes && i < slots; i++, buffer += sizes->draft_bytes)
        session->slots[i].places = (int32_t *)(void *)buffer;
    return true;
}

/* A clock that takes some nanoseconds to read and advances some hundred times a second. */
static uint64_t coarse_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool can_verify(const struct eng_engine *engine)
{
    const struct engine *file = &engine->file;
    return file->plans[file->plan_count - 1].header.kind == PLAN_VERIFY;
}

/* With recurrent state: slots whose drafts one step verifies, each of which has two rows of it at least. */
static uint32_t count_saved_states(const struct eng_session *session)
{
    const struct engine *file = &session->engine->file;
    const uint64_t slots = session->geometry->slots, most = file->plans[file->plan_count - 1].header.rows / 2;
    if (!session->speculate || !session->geometry->recurrent_bytes) return 0;
    return (uint32_t)(most < slots ? most : slots);
}

static bool make(struct eng_engine *engine, const struct backend_type *type, const struct eng_session_options *options,
                 uint32_t sequences, void *stream, struct eng_session **session, struct status *status);

/* Called before the session takes memory: its own pool may take nearly all that is free. */
static bool create_draft(struct eng_session *session, const struct eng_session_options *options, struct status *status)
{
    struct eng_engine *draft = options->draft;
    if (!draft) return true;
    if (!draft_check(session->engine, draft, options->speculate, status))
        return status_prefix(status, "eng_session_create: draft");
    const struct eng_session_options own = {.struct_size = sizeof own,
                                            .threads = options->threads,
                                            .max_sequences = 1,
                                            .kv_tokens = options->kv_tokens,
                                            .instruction_set = draft->cuda ? NULL : options->instruction_set,
                                            .no_prefix_cache = 1};
    const struct engine *file = &session->engine->file;
    const uint32_t verified = file->plans[file->plan_count - 1].header.rows - 1;
    if (!draft_find_cost(session->engine, draft, &session->draft_cost, status) ||
        !make(draft, backend_for(draft), &own, verified ? verified : 1, NULL, &session->draft, status))
        return status_prefix(status, "draft engine");
    if (!drafts_count(1, session->draft_cost, 1))
        log_write(
            &session->engine->log, ENG_LOG_WARNING,
            "session: the draft engine drafts nothing: by the times in both files a token takes it %.2f of a step "
            "of the engine",
            (double)session->draft_cost);
    return true;
}

static bool create(struct eng_session *session, const struct backend_type *type,
                   const struct eng_session_options *options, uint32_t most_sequences, void *stream,
                   struct status *status)
{
    struct session_sizes sizes = {0};
    uint64_t sequences = options->max_sequences;
    if (!sequences) {
        sequences = session->geometry->slots * SEQUENCES_PER_SLOT;
        if (sequences < LEAST_SEQUENCES) sequences = LEAST_SEQUENCES;
    }
    if (sequences > MOST_SEQUENCES)
        return status_fail(status, STATUS_USAGE,
                           "eng_session_create: max_sequences is %" PRIu64 ", expected at most %d", sequences,
                           MOST_SEQUENCES);
    if (options->threads > TEAM_MAX_THREADS)
        return status_fail(status, STATUS_USAGE, "eng_session_create: threads is %" PRIu32 ", expected 0 to %d",
                           options->threads, TEAM_MAX_THREADS);
    if (options->step_ms && session->engine->process_group)
        return status_fail(status, STATUS_USAGE,
                           "eng_session_create: step_ms is %" PRIu32
                           ", expected 0: several processes share the engine, "
                           "and their times would divide prompts in different ways; set prompt_step instead",
                           options->step_ms);
    session->max_sequences = (uint32_t)sequences;
    session->prompt_step = options->prompt_step;
    session->step_ms = options->step_ms;
    session->prompt_rows = 1;
    session->speculate = can_verify(session->engine) ? options->speculate : 0;
    session->draft_places = drafts_places(session->geometry->max_context);
    sizes.checkpoints = plan_cache(session, options);
    session->saved_states = count_saved_states(session);
    session->first_saved = (int32_t)(session->geometry->slots + sizes.checkpoints);
    session->checked_ns = coarse_ns();
    if (!load_weights_unchanged(session->engine, status) || !create_draft(session, options, status)) return false;
    if (!plan_sizes(session, &sizes))
        return status_fail(status, STATUS_MACHINE, "session: its memory size exceeds 64 bits");
    struct backend_options asked = {.threads = options->threads,
                                    .instruction_set = options->instruction_set,
                                    .kv_tokens = options->kv_tokens,
                                    .kv_bytes = options->kv_bytes,
                                    .chunk = session->chunk,
                                    .checkpoints = session->geometry->recurrent_bytes
                                                       ? sizes.checkpoints + session->saved_states
                                                       : 0,
                                    .sequences = most_sequences,
                                    .stream = stream,
                                    .host_bytes = sizes.tokens_bytes};
    session->backend = type->create(session->engine, &asked, status);
    if (session->backend) session->kept_most = kept_limit(session, options);
    return session->backend &&
           host_memory_map(&session->tokens, sizes.tokens_bytes, "token buffers", &session->engine->memory_hooks,
                           status) &&
           find_fields(session, status) && allocate_tables(session, &sizes, status);
}

static bool is_inherited(const struct eng_session *session) { return session->process != getpid(); }

void eng_session_destroy(struct eng_session **handle)
{
    if (!handle || !*handle) return;
    struct eng_session *session = *handle;
    *handle = NULL;
    /* A GPU does not know this process: the session's memory there is the parent's. */
    if (is_inherited(session) && session->engine->cuda) return;
    eng_session_destroy(&session->draft);
    if (session->backend) session->backend->type->destroy(session->backend);
    for (int i = 0; i < BACKEND_MOST_IN_FLIGHT; i++) {
        free(session->flights[i].slots);
        free(session->flights[i].sequences);
    }
    free(session->plans);
    free(session->selftest);
    if (session->news.has_descriptor) close(session->news.descriptor);
    checkpoints_close(&session->checkpoints);
    page_pool_close(&session->pool);
    free(session->slots);
    free(session->active);
    free(session->parts);
    free(session->part_sequence);
    for (uint32_t i = 0; session->sequences && i < session->max_sequences; i++) {
        prompt_rows_free(&session->sequences[i]);
        free(session->sequences[i].kept.bytes);
        grammar_release(session->sequences[i].grammar);
        free(session->sequences[i].place);
    }
    free(session->sequences);
    host_memory_unmap(&session->tokens);
    load_release(session->engine);
    free(session);
}

static void tell_of_session(const struct eng_session *session)
{
    const struct load_log *log = &session->engine->log;
    const struct backend *backend = session->backend;
    log_write(log, ENG_LOG_INFO, "session: %u slots, %u KV pages, %s, %u threads", (unsigned)session->geometry->slots,
              session->pool.count, backend->device_name ? backend->device_name : backend->instruction_set,
              backend->threads);
    if (backend->fallback) log_write(log, ENG_LOG_WARNING, "session: no library is used: %s", backend->fallback);
    if (backend->detour)
        log_write(log, ENG_LOG_WARNING, "session: GPUs exchange data through host memory: %s", backend->detour);
}

/* sequences, stream: as in struct backend_options. */
static bool make(struct eng_engine *engine, const struct backend_type *type, const struct eng_session_options *options,
                 uint32_t sequences, void *stream, struct eng_session **session, struct status *status)
{
    if (load_is_inherited(engine) && engine->cuda)
        return status_fail(
            status, STATUS_USAGE,
            "eng_session_create: the engine was opened by process %ld, before fork made this process %ld, which cannot "
            "use its GPU; open the engine in this process, and fork before the parent uses a GPU",
            (long)engine->process, (long)getpid());
    struct eng_session *created = calloc(1, sizeof *created);
    if (!created) return status_fail(status, STATUS_MACHINE, "out of memory");
    created->process = getpid();
    load_retain(engine);
    created->engine = engine;
    created->geometry = &engine->file.manifest.geometry;
    created->chunk = plan_longest_chunk(engine->file.plans, engine->file.plan_count);
    if (create(created, type, options, sequences, stream, status)) {
        tell_of_session(created);
        *session = created;
        return true;
    }
    eng_session_destroy(&created);
    return false;
}

bool session_create(struct eng_engine *engine, const struct backend_type *type,
                    const struct eng_session_options *options, struct eng_session **session, struct status *status)
{
    return make(engine, type, options, 0, NULL, session, status);
}

bool session_create_on(struct eng_engine *engine, const struct eng_session_options *options, void *stream,
                       struct eng_session **session, struct status *status)
{
    return make(engine, backend_for(engine), options, 0, stream, session, status);
}

enum eng_status eng_session_create(struct eng_engine *engine, const struct eng_session_options *options,
                                   struct eng_session **session, struct eng_error *error)
{
    struct status status = {0};
    struct eng_session_options own;
    if (!report_not_null(engine, "eng_session_create", "engine", &status) ||
        !report_not_null((const void *)session, "eng_session_create", "session", &status) ||
        !report_read_options(&own, sizeof own, options, "eng_session_options", &status) ||
        !session_create(engine, backend_for(engine), &own, session, &status))
        return report_status(&status, error);
    return report_ok(error);
}

bool session_weights_unchanged(struct eng_session *session, struct status *status)
{
    const uint64_t now = coarse_ns();
    if (now - session->checked_ns < look_after_ns) return true;
    session->checked_ns = now;
    return load_weights_unchanged(session->engine, status);
}

bool session_usable(const struct eng_session *session, struct status *status)
{
    if (is_inherited(session))
        return status_fail(status, STATUS_USAGE,
                           "session: it was created by process %ld, before fork made this process %ld, which does not "
                           "have its threads; "
                           "create a session in this process",
                           (long)session->process, (long)getpid());
    if (session->failure.code == STATUS_OK) return true;
    *status = session->failure;
    return false;
}

static uint64_t memory_of(const struct eng_session *session)
{
    const struct backend *backend = session->backend;
    return backend->host_bytes + backend->device_bytes + session->tokens.bytes +
           (session->draft ? memory_of(session->draft) : 0);
}

enum eng_status eng_session_get_facts(const struct eng_session *session, struct eng_session_facts *facts,
                                      struct eng_error *error)
{
    struct status status = {0};
    if (!report_not_null(session, "eng_session_get_facts", "session", &status) ||
        !report_not_null(facts, "eng_session_get_facts", "facts", &status))
        return report_status(&status, error);
    struct eng_session_facts own = {
        .threads = session->backend->threads,
        .slots = (uint32_t)session->geometry->slots,
        .free_slots = session->free_slot_count,
        .pages = session->pool.count,
        .free_pages = page_pool_available(&session->pool),
        .max_sequences = session->max_sequences,
        .memory_bytes = memory_of(session),
        .kv_bytes = session->backend->kv_bytes,
        .instruction_set = session->backend->instruction_set,
        .device = session->backend->device_name,
        .device_bytes = session->backend->device_bytes + (session->draft ? session->draft->backend->device_bytes : 0),
        .device_contract_bytes = session->backend->device_contract_bytes,
        .device_taken_bytes = session->backend->device_taken_bytes,
        .graph_seconds = session->backend->graph_seconds,
        .fallback = session->backend->fallback,
        .detour = session->backend->detour,
        .cached_pages = session->pool.idle_count + session->pool.spare_count,
        .cached_tokens = session->cached_tokens,
        .set_aside = session->set_aside,
        .kept_bytes = session->kept_bytes,
        .kept = session->kept_count,
        .drafted_tokens = session->drafted_tokens,
        .accepted_tokens = session->accepted_tokens,
        .speculate = session->speculate,
    };
    return report_result(report_write_facts(facts, &own, sizeof own, "eng_session_facts", &status), &status, error);
}
