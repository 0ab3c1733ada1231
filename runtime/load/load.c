/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/load.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/op/op.h"
#include "kernels/cpu/team.h"
#include "kernels/cuda/nvtx.h"
#include "runtime/load/cuda_environment.h"
#include "runtime/load/info.h"
#include "runtime/load/load_cuda.h"
#include "formats/base/memory_limit.h"
#include "runtime/load/plan_inputs.h"
#include "runtime/distributed/process_group.h"

/* Chunks that a thread takes at a time: enough for one call to read ahead of many pages, few enough that all threads
 * end at about the same time. */
enum { CHUNKS_PER_PIECE = 4, READ_AHEAD_PIECES = 4 };

struct weight_check {
    const struct engine *file;
    uint8_t *copy; /* NULL: not copied */
    uint64_t pieces;
    struct load_progress *progress;
    atomic_bool failed;
    struct status *status; /* written by the thread that sets `failed` first */
};

static void read_ahead(const struct engine *file, uint64_t piece)
{
    for (uint64_t chunk = piece * CHUNKS_PER_PIECE;
         chunk < (piece + 1) * CHUNKS_PER_PIECE && chunk < file->weight_chunks; chunk++) {
        uint64_t offset, bytes;
        engine_chunk(file, chunk, &offset, &bytes);
        engine_read_ahead(file, offset, bytes);
    }
}

static uint64_t bytes_of(const struct engine *file, uint64_t first, uint64_t count)
{
    uint64_t begin, last, bytes;
    engine_chunk(file, first, &begin, &bytes);
    engine_chunk(file, first + count - 1, &last, &bytes);
    return last + bytes - begin;
}

static void check_pieces(void *argument, struct team_member *member)
{
    struct weight_check *check = argument;
    uint64_t piece;
    while ((piece = team_ticket(member)) < check->pieces &&
           !atomic_load_explicit(&check->failed, memory_order_relaxed)) {
        read_ahead(check->file, piece + READ_AHEAD_PIECES);
        uint64_t first = piece * CHUNKS_PER_PIECE, count = check->file->weight_chunks - first;
        struct status status = {0};
        if (count > CHUNKS_PER_PIECE) count = CHUNKS_PER_PIECE;
        if ((check->copy ? engine_copy_weights(check->file, first, count, check->copy, &status)
                         : engine_verify_weights(check->file, first, count, &status)) &&
            load_progress_add(check->progress, bytes_of(check->file, first, count), &status))
            continue;
        if (!atomic_exchange(&check->failed, true)) *check->status = status;
    }
}

bool load_check_weights(const struct engine *file, uint8_t *copy, uint32_t threads, struct load_progress *progress,
                        int *used_threads, double *seconds, struct status *status)
{
    double start = load_seconds();
    /* More threads than pieces would not help. */
    uint64_t pieces = (file->weight_chunks + CHUNKS_PER_PIECE - 1) / CHUNKS_PER_PIECE;
    if (pieces <= 1) threads = 1;
    struct team *team = team_create((int)threads, status);
    if (!team) return false;
    struct weight_check check = {.file = file, .copy = copy, .pieces = pieces, .progress = progress, .status = status};
    atomic_init(&check.failed, false);
    team_run(team, check_pieces, &check);
    *used_threads = team_size(team);
    team_destroy(team);
    *seconds = load_seconds() - start;
    return !atomic_load(&check.failed);
}

/* In format 2.0 a kernel for a GPU may be of any form (engine_file.md, "Launches and ops"). */
static bool launches_follow_ops(const struct engine *file)
{
    return file->manifest.target == TARGET_CPU || file->format_minor > 0;
}

static bool check_plan(const struct engine *file, const struct plan *plan, const struct plan_space_sizes *sizes,
                       const char *name, struct status *status)
{
    const struct manifest *manifest = &file->manifest;
    if (!plan_verify(plan, sizes, name, status)) return false;
    for (uint32_t launch = 0; launches_follow_ops(file) && launch < plan->header.launch_count; launch++)
        if (!op_verify(plan, launch, manifest->target, &manifest->geometry, name, status)) return false;
    return plan_inputs_verify(plan, manifest->target, &manifest->geometry, name, status);
}

bool load_check_plans(const struct engine *file, size_t *decode_plans, struct plan_space_sizes *sizes,
                      struct status *status)
{
    const struct manifest *manifest = &file->manifest;
    const struct plan_geometry *geometry = &manifest->geometry;
    *sizes = manifest_space_sizes(manifest);
    *decode_plans = 0;
    for (size_t i = 0; i < file->plan_count; i++) {
        const struct plan *plan = &file->plans[i], *other = file->library_plans ? &file->library_plans[i] : NULL;
        bool decode = plan->header.kind == PLAN_DECODE;
        char name[64];
        snprintf(name, sizeof name, "plan %zu (%s %" PRIu32 ")", i, plan_kind_name(plan->header.kind),
                 plan->header.rows);
        if (decode && *decode_plans != i)
            return status_fail(status, STATUS_CORRUPT, "%s: decode plans must come first", name);
        if (decode) (*decode_plans)++;
        if (!check_plan(file, plan, sizes, name, status)) return false;
        if (!other || other->header.launch_count == 0) continue;
        struct plan_space_sizes own_arena = *sizes;
        own_arena.bytes[SPACE_ARENA] = other->header.arena_bytes;
        if (!check_plan(file, other, &own_arena, name, status)) return status_prefix(status, "with libraries");
    }
    uint32_t largest = *decode_plans ? file->plans[*decode_plans - 1].header.rows : 0;
    if (largest < geometry->slots)
        return status_fail(status, STATUS_CORRUPT,
                           "plans: the largest decode batch is %" PRIu32 ", expected %" PRIu64
                           " (the manifest's slots)",
                           largest, geometry->slots);
    return true;
}

bool load_weights_unchanged(const struct eng_engine *engine, struct status *status)
{
    return engine->cuda || engine_unchanged(&engine->file, status) || status_prefix(status, "%s", engine->path);
}

/* Allocates memory for a copy of the weights. */
static bool take_weights(struct eng_engine *engine, struct status *status)
{
    const uint64_t bytes = engine->file.manifest.weights_bytes;
    if (!memory_limit_check("weights in private memory", bytes, bytes,
                            "free memory, use a smaller model, or do without private_weights", status) ||
        !host_memory_map(&engine->weights, bytes, "weights in private memory", &engine->memory_hooks, status))
        return false;
    host_memory_use_large_pages(&engine->weights);
    return true;
}

/* Everything that loading takes from the file, but the weights. */
static bool read_file(struct eng_engine *engine, const struct eng_open_options *options, struct status *status)
{
    struct engine *file = &engine->file;
    if (!engine_open_finish(file, status) ||
        !load_check_plans(file, &engine->decode_plans, &engine->space_sizes, status))
        return false;
    if (!file->tokenizer) return true;
    engine->tokenizer = tokenizer_open(file->tokenizer, file->tokenizer_size, !options->no_jit, status);
    return engine->tokenizer || status_prefix(status, "tokenizer");
}

static bool load_on_host(struct eng_engine *engine, const struct eng_open_options *options, struct status *status)
{
    const uint64_t bytes = engine->file.manifest.weights_bytes;
    if (!read_file(engine, options, status) ||
        !(options->private_weights
              ? take_weights(engine, status)
              : memory_limit_check("weights", bytes, 0, "free memory or use a smaller model", status)) ||
        !load_check_weights(&engine->file, engine->weights.base, options->threads, &engine->progress,
                            &engine->load_threads, &engine->verify_seconds, status) ||
        !engine_unchanged(&engine->file, status))
        return false;
    if (engine->weights.base) engine_use_weights(&engine->file, engine->weights.base);
    return true;
}

static bool open_gpus(struct eng_engine *engine, const int *ordinals, const struct eng_open_options *options,
                      struct status *status)
{
    struct cuda_environment environment;
    int indices[PLAN_MAX_RANKS];
    /* NCCL processes on one machine must see each other's GPUs. */
    if (!cuda_environment_set(&environment, ordinals, engine->rank_count, options->only_cuda_user != 0,
                              !engine->process_group, indices, status))
        return false;
    bool ok = load_cuda_open(engine, ordinals, indices, options->no_peer_access != 0, status);
    cuda_environment_restore(&environment);
    return ok;
}

/* GPUs and the file at the same time: opening a GPU needs the manifest alone and takes longer than reading the file. */
struct opening {
    struct eng_engine *engine;
    const struct eng_open_options *options;
    int ordinals[PLAN_MAX_RANKS];
    struct {
        bool ok;
        struct status status;
    } file, gpus;
};

static void open_member(void *argument, struct team_member *member)
{
    struct opening *opening = argument;
    if (member->index == 0) {
        opening->file.ok = read_file(opening->engine, opening->options, &opening->file.status);
    } else {
        opening->gpus.ok = open_gpus(opening->engine, opening->ordinals, opening->options, &opening->gpus.status);
    }
}

static bool load_on_device(struct eng_engine *engine, const struct eng_open_options *options, struct status *status)
{
    const uint64_t ranks = engine->rank_count;
    struct opening opening = {.engine = engine, .options = options};
    if (options->device_count && (options->device_count != ranks || !options->devices))
        return status_fail(status, STATUS_USAGE,
                           "eng_open: devices: expected the numbers of the %" PRIu64
                           " GPUs that this engine is for, found "
                           "%" PRIu32,
                           ranks, options->devices ? options->device_count : 0);
    for (uint32_t r = 0; r < ranks; r++) {
        uint64_t number =
            options->device_count ? options->devices[r] : options->device + ranks * options->local_process + r;
        if (number > INT_MAX)
            return status_fail(status, STATUS_USAGE, "eng_open: device is %" PRIu64 ", expected a GPU's number",
                               number);
        opening.ordinals[r] = (int)number;
    }
    if (!team_run_once(2, open_member, &opening, status)) return false;
    if (!opening.file.ok || !opening.gpus.ok) {
        *status = opening.file.ok ? opening.gpus.status : opening.file.status;
        return false;
    }
    return load_cuda_fill(engine, options->threads, status) && engine_unchanged(&engine->file, status);
}

/* Determines the ranks of this process and joins the other processes. */
static bool find_ranks(struct eng_engine *engine, const struct eng_open_options *options, struct status *status)
{
    const double longest_seconds = 120, gather_seconds = 1800; /* other processes may load from a disk */
    uint32_t ranks = (uint32_t)plan_ranks(&engine->file.manifest.geometry), processes = options->processes;
    engine->rank_count = ranks;
    engine->no_libraries = options->no_libraries != 0;
    if (processes <= 1) return true;
    if (engine->no_libraries)
        return status_fail(status, STATUS_USAGE,
                           "eng_open: no_libraries: expected 0 where %" PRIu32
                           " processes share an engine: they exchange data through NCCL",
                           processes);
    if (engine->file.manifest.target != TARGET_CUDA || ranks % processes != 0 || options->process >= processes)
        return status_fail(status, STATUS_USAGE,
                           "eng_open: process %" PRIu32 " of %" PRIu32
                           ": expected processes that share the GPUs of this engine equally, which is for %" PRIu32
                           " %s",
                           options->process, processes, ranks,
                           engine->file.manifest.target == TARGET_CUDA ? "GPUs" : "ranks on one machine's processors");
    if (!memchr(options->address, '\0', sizeof options->address))
        return status_fail(status, STATUS_USAGE, "eng_open: address: expected a text that ends");
    if (!memchr(options->token, '\0', sizeof options->token))
        return status_fail(status, STATUS_USAGE, "eng_open: token: expected a text of at most %d bytes that ends",
                           ENG_TOKEN_BYTES - 1);
    const struct process_group_options group = {.process = options->process,
                                                .processes = processes,
                                                .address = options->address,
                                                .longest_seconds = longest_seconds,
                                                .gather_seconds = gather_seconds,
                                                .fingerprint = engine->file.checksum,
                                                .token = options->token,
                                                .has_several_machines = options->local_processes > 0 &&
                                                                        options->local_processes < processes};
    engine->rank_count = ranks / processes;
    engine->first_rank = options->process * engine->rank_count;
    engine->process_group = process_group_join(&group, status);
    return engine->process_group != NULL;
}

/* Before the first byte and after the last one the function hears, too. */
static bool begin_progress(struct eng_engine *engine, const struct eng_open_options *options, struct status *status)
{
    struct load_progress *progress = &engine->progress;
    progress->callback = options->progress;
    progress->context = options->progress_context;
    progress->thread = pthread_self();
    progress->total = engine->file.manifest.weights_bytes / load_processes(engine);
    return load_progress_add(progress, 0, status);
}

static bool load(struct eng_engine *engine, const char *path, int descriptor, const struct eng_open_options *options,
                 struct status *status)
{
    double start = load_seconds();
    if (options->threads > TEAM_MAX_THREADS)
        return status_fail(status, STATUS_USAGE, "eng_open: threads is %" PRIu32 ", expected 0 to %d", options->threads,
                           TEAM_MAX_THREADS);
    engine->log = (struct load_log){options->log, options->log_context};
    engine->memory_hooks =
        (struct host_memory_hooks){options->memory_take, options->memory_give, options->memory_context};
    if (!options->memory_take != !options->memory_give)
        return status_fail(status, STATUS_USAGE, "eng_open: memory_take and memory_give: expected both or none");
    engine->path = strdup(path);
    if (!engine->path) return status_fail(status, STATUS_MACHINE, "out of memory");
    if (!engine_open_begin(&engine->file, path, descriptor, options->max_host_bytes, status)) return false;
    engine->file_open = true;
    bool on_device = engine->file.manifest.target == TARGET_CUDA;
    if (!on_device && (options->device || options->device_count || options->no_peer_access))
        return status_fail(
            status, STATUS_USAGE,
            "%s: device, devices, no_peer_access: expected none of them, for this engine runs on processors", path);
    if (!find_ranks(engine, options, status)) return status_prefix(status, "%s", path);
    if (!begin_progress(engine, options, status) ||
        (on_device ? !load_on_device(engine, options, status) : !load_on_host(engine, options, status)) ||
        !load_progress_add(&engine->progress, 0, status))
        return status_prefix(status, "%s", path);
    engine->open_seconds = load_seconds() - start;
    engine->info = info_format(engine, status);
    if (!engine->info) return false;
    log_write(&engine->log, ENG_LOG_INFO, "%s: opened in %.3f s, of which weights %.3f s with %d threads", path,
              engine->open_seconds, engine->verify_seconds, engine->load_threads);
    return true;
}

void load_retain(struct eng_engine *engine) { atomic_fetch_add_explicit(&engine->references, 1, memory_order_relaxed); }

void load_release(struct eng_engine *engine)
{
    if (!engine || atomic_fetch_sub_explicit(&engine->references, 1, memory_order_acq_rel) != 1) return;
    /* GPUs, sockets and their threads belong to the parent. */
    if (load_is_inherited(engine) && (engine->cuda || engine->process_group)) return;
    load_cuda_close(engine);
    process_group_leave(&engine->process_group);
    grammar_vocabulary_close(engine->vocabulary);
    if (engine->tokenizer) tokenizer_close(engine->tokenizer);
    if (engine->file_open) engine_close(&engine->file);
    host_memory_unmap(&engine->weights);
    free(engine->info);
    free(engine->path);
    free(engine);
}

/* Requires: `path` is a path, or a name of the descriptor. */
static bool open_engine(const char *path, int descriptor, const struct eng_open_options *options,
                        struct eng_engine **engine, const char *function, struct status *status)
{
    struct eng_open_options own;
    if (!report_not_null((const void *)engine, function, "engine", status) ||
        !report_read_options(&own, sizeof own, options, "eng_open_options", status))
        return false;
    struct eng_engine *opened = calloc(1, sizeof *opened);
    if (!opened) return status_fail(status, STATUS_MACHINE, "out of memory");
    atomic_init(&opened->references, 1);
    opened->process = getpid();
    nvtx_open();
    nvtx_push("load");
    bool loaded = load(opened, path, descriptor, &own, status);
    nvtx_pop();
    if (!loaded) load_tell_others(opened, status);
    if (!loaded) log_write(&opened->log, ENG_LOG_WARNING, "%s", status->message);
    if (loaded)
        *engine = opened;
    else
        load_release(opened);
    return loaded;
}

enum eng_status eng_open(const char *path, const struct eng_open_options *options, struct eng_engine **engine,
                         struct eng_error *error)
{
    struct status status = {0};
    bool ok = report_not_null(path, "eng_open", "path", &status) &&
              open_engine(path, ENGINE_BY_PATH, options, engine, "eng_open", &status);
    return report_result(ok, &status, error);
}

enum eng_status eng_open_descriptor(int descriptor, const struct eng_open_options *options, struct eng_engine **engine,
                                    struct eng_error *error)
{
    static const char function[] = "eng_open_descriptor";
    struct status status = {0};
    char name[32];
    snprintf(name, sizeof name, "descriptor %d", descriptor);
    if (descriptor < 0) {
        status_fail(&status, STATUS_USAGE, "%s: descriptor is %d, expected one of a file that is open for reading",
                    function, descriptor);
        return report_status(&status, error);
    }
    return report_result(open_engine(name, descriptor, options, engine, function, &status), &status, error);
}

void eng_close(struct eng_engine **engine)
{
    if (!engine) return;
    load_release(*engine);
    *engine = NULL;
}

enum eng_status eng_engine_get_facts(const struct eng_engine *engine, struct eng_engine_facts *facts,
                                     struct eng_error *error)
{
    struct status status = {0};
    if (!report_not_null(engine, "eng_engine_get_facts", "engine", &status) ||
        !report_not_null(facts, "eng_engine_get_facts", "facts", &status))
        return report_status(&status, error);
    const struct manifest *manifest = &engine->file.manifest;
    struct eng_engine_facts own = {
        .vocab_size = (uint32_t)manifest->geometry.vocab_size,
        .max_context = (uint32_t)manifest->geometry.max_context,
        .slots = (uint32_t)manifest->geometry.slots,
        .page_tokens = (uint32_t)manifest->geometry.page_tokens,
        .page_bytes = manifest->geometry.page_bytes,
        .weights_bytes = manifest->weights_bytes,
        .file_bytes = engine->file.size,
        .bos_token = (int32_t)manifest->bos_token,
        .eos_count = (uint32_t)manifest->eos_count,
        .has_tokenizer = engine->tokenizer != NULL,
        .has_chat = engine->tokenizer && chat_is_possible(engine, &status),
        .chat_end_token = chat_end_token(engine),
        .golden_tokens = engine->file.golden.token_count + engine->file.golden_plans.row_count,
        .open_seconds = engine->open_seconds,
        .verify_seconds = engine->verify_seconds,
        .ranks = (uint32_t)plan_ranks(&manifest->geometry),
        .hidden_size = (uint32_t)manifest->geometry.hidden_size,
    };
    for (int i = 0; i < manifest->eos_count && i < ENG_MAX_EOS_TOKENS; i++) own.eos_tokens[i] = manifest->eos_tokens[i];
    return report_result(report_write_facts(facts, &own, sizeof own, "eng_engine_facts", &status), &status, error);
}
