#include "runtime/session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "formats/checked.h"
#include "runtime/memory_limit.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { SEQUENCES_PER_SLOT = 4, LEAST_SEQUENCES = 64, MOST_SEQUENCES = 1 << 20 };

/* What a session takes, known before any of it is taken. */
struct session_sizes {
    uint64_t step_offset, state_offset, scratch_bytes;
    uint64_t pages, kv_bytes;
    uint64_t token_buffer_bytes, tokens_bytes; /* of one sequence or slot; of all */
    uint64_t total;
};

static bool memory_map(struct session_memory *memory, uint64_t bytes, const char *what, struct status *status)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return status_fail(status, STATUS_MACHINE, "%s: the system refuses %" PRIu64 " bytes", what, bytes);
    memory->base = base;
    memory->bytes = bytes;
    return true;
}

static void memory_unmap(struct session_memory *memory)
{
    if (memory->base) munmap(memory->base, memory->bytes);
    memory->base = NULL;
}

static bool fixed_sizes(const struct eng_session *session, struct session_sizes *sizes)
{
    const struct manifest *manifest = &session->engine->file.manifest;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), buffers;
    bool ok = checked_align(manifest->arena_bytes, page, &sizes->step_offset) &&
              checked_add(sizes->step_offset, manifest->step_bytes, &sizes->state_offset) &&
              checked_align(sizes->state_offset, page, &sizes->state_offset) &&
              checked_add(sizes->state_offset, manifest->state_bytes, &sizes->scratch_bytes) &&
              checked_align(sizes->scratch_bytes, page, &sizes->scratch_bytes);
    ok = ok && checked_add(session->geometry->max_context, 1, &sizes->token_buffer_bytes) &&
         checked_mul(sizes->token_buffer_bytes, sizeof(int32_t), &sizes->token_buffer_bytes) &&
         checked_add(session->geometry->slots, session->max_sequences, &buffers) &&
         checked_mul(sizes->token_buffer_bytes, buffers, &sizes->tokens_bytes) &&
         checked_align(sizes->tokens_bytes, page, &sizes->tokens_bytes);
    return ok && checked_add(sizes->scratch_bytes, sizes->tokens_bytes, &sizes->total);
}

/* Pages of the KV pool: what the options ask for, else full contexts as far as half of the memory at hand goes. */
static bool kv_pages(const struct eng_session *session, const struct eng_session_options *options,
                     const struct session_sizes *sizes, uint64_t *pages, struct status *status)
{
    const struct plan_geometry *geometry = session->geometry;
    uint64_t most, least = 1;
    if (!checked_mul(geometry->slots, geometry->pages_per_slot, &most)) most = INT32_MAX;
    if (most > INT32_MAX) most = INT32_MAX; /* page numbers are int32 */
    if (options->kv_tokens) {
        *pages = options->kv_tokens / geometry->page_tokens + (options->kv_tokens % geometry->page_tokens != 0);
    } else if (options->kv_bytes) {
        *pages = options->kv_bytes / geometry->page_bytes;
    } else {
        struct memory_limit memory, space;
        memory_limit_available("", &memory);
        memory_limit_address_space(&space);
        /* The weights have their address space already, and must keep their place in memory. */
        uint64_t taken = sizes->total + session->engine->file.manifest.weights_bytes;
        uint64_t left = memory.bytes > taken ? memory.bytes - taken : 0;
        uint64_t space_left = space.bytes > sizes->total ? space.bytes - sizes->total : 0;
        uint64_t half = (left < space_left ? left : space_left) / 2;
        *pages = half / geometry->page_bytes;
        least = geometry->pages_per_slot;
        if (*pages < least) *pages = least;
    }
    if (*pages > most) *pages = most; /* more could never be used */
    if (*pages >= least) return true;
    return status_fail(status, STATUS_USAGE,
                       "eng_session_create: a KV pool of %" PRIu64 " bytes holds no page of %" PRIu64 " bytes (%" PRIu64
                       " tokens)",
                       options->kv_bytes, geometry->page_bytes, geometry->page_tokens);
}

static bool plan_sizes(const struct eng_session *session, const struct eng_session_options *options,
                       struct session_sizes *sizes, struct status *status)
{
    if (!fixed_sizes(session, sizes) || !kv_pages(session, options, sizes, &sizes->pages, status)) {
        if (status->code != STATUS_OK) return false;
        return status_fail(status, STATUS_MACHINE, "session: sizes do not fit in 64 bits");
    }
    uint64_t with_weights;
    if (!checked_mul(sizes->pages, session->geometry->page_bytes, &sizes->kv_bytes) ||
        !checked_add(sizes->total, sizes->kv_bytes, &sizes->total) ||
        !checked_add(sizes->total, session->engine->file.manifest.weights_bytes, &with_weights))
        return status_fail(status, STATUS_MACHINE, "session: sizes do not fit in 64 bits");
    /* The weights lie in the page cache, which counts as available: they must stay there. */
    return memory_limit_check("session (weights, scratch and KV pages)", with_weights, sizes->total,
                              "free memory, or ask for a smaller KV pool (kv_tokens, kv_bytes) or fewer sequences",
                              status);
}

static bool allocate_memory(struct eng_session *session, const struct session_sizes *sizes, struct status *status)
{
    const struct manifest *manifest = &session->engine->file.manifest;
    struct plan_field state[STATE_FIELD_COUNT];
    uint64_t bytes;
    if (!memory_map(&session->scratch, sizes->scratch_bytes, "scratch memory", status) ||
        !memory_map(&session->kv, sizes->kv_bytes, "KV pages", status) ||
        !memory_map(&session->tokens, sizes->tokens_bytes, "token buffers", status))
        return false;
    /* Advice: fewer page faults and TLB misses. Scratch is faulted in now, so that no step waits for it. */
    madvise(session->scratch.base, session->scratch.bytes, MADV_HUGEPAGE);
    madvise(session->kv.base, session->kv.bytes, MADV_HUGEPAGE);
    madvise(session->scratch.base, session->scratch.bytes, MADV_POPULATE_WRITE);

    state_layout(session->geometry, state, &bytes); /* fits: checked when the engine was opened */
    uint8_t *base = (uint8_t *)session->scratch.base + sizes->state_offset;
    session->page_table = (int32_t *)(void *)(base + state[STATE_PAGE_TABLE].offset);
    session->samplers = (struct sampler_state *)(void *)(base + state[STATE_SAMPLERS].offset);
    session->seen = base + state[STATE_SEEN].offset;
    session->seen_bytes = manifest->geometry.vocab_size / 8 + (manifest->geometry.vocab_size % 8 != 0);
    return true;
}

static bool bind_plans(struct eng_session *session, const struct session_sizes *sizes, struct status *status)
{
    const struct engine *file = &session->engine->file;
    uint8_t *scratch = session->scratch.base, *step = scratch + sizes->step_offset;
    struct cpu_memory memory = {{0}};
    memory.base[SPACE_WEIGHTS] = (void *)(uintptr_t)file->weights;
    memory.base[SPACE_ARENA] = scratch;
    memory.base[SPACE_KV] = session->kv.base;
    memory.base[SPACE_STEP] = step;
    memory.base[SPACE_STATE] = scratch + sizes->state_offset;
    session->plans = calloc(file->plan_count, sizeof *session->plans);
    if (!session->plans) return status_fail(status, STATUS_MACHINE, "out of memory");
    session->decode_plans = session->engine->decode_plans;
    for (size_t i = 0; i < file->plan_count; i++) {
        const struct plan *plan = &file->plans[i];
        struct session_plan *bound = &session->plans[i];
        struct plan_field fields[STEP_FIELD_COUNT];
        uint64_t bytes;
        if (!cpu_plan_bind(&bound->bound, plan, session->geometry, &session->engine->space_sizes, &memory, session->isa,
                           "plan", status))
            return status_prefix(status, "plan %zu", i);
        session->plan_count++;
        step_layout(plan->header.rows, plan->header.out_rows, session->geometry->vocab_size, fields, &bytes);
        bound->rows = plan->header.rows;
        bound->out_rows = plan->header.out_rows;
        bound->counts = (int32_t *)(void *)(step + fields[STEP_COUNTS].offset);
        bound->tokens = (int32_t *)(void *)(step + fields[STEP_TOKENS].offset);
        bound->slots = (int32_t *)(void *)(step + fields[STEP_SLOTS].offset);
        bound->positions = (int32_t *)(void *)(step + fields[STEP_POSITIONS].offset);
        bound->out_row = (int32_t *)(void *)(step + fields[STEP_OUT_ROWS].offset);
        bound->next_tokens = (const int32_t *)(void *)(step + fields[STEP_NEXT_TOKENS].offset);
        bound->logits = (const float *)(void *)(step + fields[STEP_LOGITS].offset);
    }
    return true;
}

static bool allocate_tables(struct eng_session *session, const struct session_sizes *sizes, struct status *status)
{
    uint64_t slots = session->geometry->slots;
    session->free_pages = calloc(sizes->pages, sizeof *session->free_pages);
    session->slots = calloc(slots, sizeof *session->slots);
    session->active = calloc(slots, sizeof *session->active);
    session->sequences = calloc(session->max_sequences, sizeof *session->sequences);
    if (!session->free_pages || !session->slots || !session->active || !session->sequences)
        return status_fail(status, STATUS_MACHINE, "out of memory");

    session->page_count = session->free_page_count = (uint32_t)sizes->pages;
    for (uint32_t i = 0; i < session->page_count; i++) /* page 0 on top */
        session->free_pages[i] = (int32_t)(session->page_count - 1 - i);
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
    return true;
}

static bool choose_isa(struct eng_session *session, const char *name, struct status *status)
{
    session->isa = cpu_isa_best();
    if (!name) return true;
    for (int isa = CPU_PORTABLE; isa < CPU_ISA_COUNT; isa++) {
        if (strcmp(name, cpu_isa_name((enum cpu_isa)isa)) != 0) continue;
        session->isa = (enum cpu_isa)isa;
        if (cpu_isa_supported(session->isa)) return true;
        return status_fail(status, STATUS_MACHINE,
                           "instruction set '%s' is not supported by this processor; the best "
                           "that is: '%s'",
                           name, cpu_isa_name(cpu_isa_best()));
    }
    return status_fail(status, STATUS_USAGE,
                       "instruction set: expected portable, avx2, avx512 or avx512bf16, found '%s'", name);
}

static bool create(struct eng_session *session, const struct eng_session_options *options, struct status *status)
{
    struct session_sizes sizes = {0};
    uint64_t sequences = options->max_sequences;
    if (!sequences) {
        sequences = session->geometry->slots * SEQUENCES_PER_SLOT;
        if (sequences < LEAST_SEQUENCES) sequences = LEAST_SEQUENCES;
    }
    if (sequences > MOST_SEQUENCES)
        return status_fail(status, STATUS_USAGE, "eng_session_create: max_sequences is %" PRIu64 ", at most %d",
                           sequences, MOST_SEQUENCES);
    if (options->threads > TEAM_MAX_THREADS)
        return status_fail(status, STATUS_USAGE, "eng_session_create: threads is %" PRIu32 ", expected 0 to %d",
                           options->threads, TEAM_MAX_THREADS);
    session->max_sequences = (uint32_t)sequences;
    if (!choose_isa(session, options->instruction_set, status) || !plan_sizes(session, options, &sizes, status) ||
        !allocate_memory(session, &sizes, status) || !bind_plans(session, &sizes, status) ||
        !allocate_tables(session, &sizes, status))
        return false;
    session->team = team_create((int)options->threads, status);
    return session->team != NULL;
}

void eng_session_destroy(struct eng_session **handle)
{
    if (!handle || !*handle) return;
    struct eng_session *session = *handle;
    *handle = NULL;
    team_destroy(session->team);
    for (size_t i = 0; i < session->plan_count; i++) cpu_plan_free(&session->plans[i].bound);
    free(session->plans);
    free(session->free_pages);
    free(session->slots);
    free(session->active);
    free(session->sequences);
    memory_unmap(&session->tokens);
    memory_unmap(&session->kv);
    memory_unmap(&session->scratch);
    load_release(session->engine);
    free(session);
}

enum eng_status eng_session_create(struct eng_engine *engine, const struct eng_session_options *options,
                                   struct eng_session **session, struct eng_error *error)
{
    struct status status;
    status_clear(&status);
    struct eng_session_options own;
    struct eng_session *created = NULL;
    if (!report_not_null(engine, "eng_session_create", "engine", &status) ||
        !report_not_null((const void *)session, "eng_session_create", "session", &status) ||
        !report_read_options(&own, sizeof own, options, "eng_session_options", &status))
        goto fail;
    created = calloc(1, sizeof *created);
    if (!created) {
        status_fail(&status, STATUS_MACHINE, "out of memory");
        goto fail;
    }
    load_retain(engine);
    created->engine = engine;
    created->geometry = &engine->file.manifest.geometry;
    if (!create(created, &own, &status)) goto fail;
    *session = created;
    return report_ok(error);

fail:
    eng_session_destroy(&created);
    if (session) *session = NULL;
    return report_status(&status, error);
}

enum eng_status eng_session_get_facts(const struct eng_session *session, struct eng_session_facts *facts,
                                      struct eng_error *error)
{
    struct status status;
    status_clear(&status);
    if (!report_not_null(session, "eng_session_get_facts", "session", &status) ||
        !report_not_null(facts, "eng_session_get_facts", "facts", &status))
        return report_status(&status, error);
    struct eng_session_facts own = {
        .threads = (uint32_t)team_size(session->team),
        .slots = (uint32_t)session->geometry->slots,
        .free_slots = session->free_slot_count,
        .pages = session->page_count,
        .free_pages = session->free_page_count,
        .max_sequences = session->max_sequences,
        .memory_bytes = session->scratch.bytes + session->kv.bytes + session->tokens.bytes,
        .kv_bytes = session->kv.bytes,
        .instruction_set = cpu_isa_name(session->isa),
    };
    if (!report_write_facts(facts, &own, sizeof own, "eng_session_facts", &status))
        return report_status(&status, error);
    return report_ok(error);
}
