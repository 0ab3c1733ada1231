/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences that are saved to a file and restored from it. */
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/sequence/sequence_file.h"
#include "runtime/session/session.h"

/* Memory for one page and for the recurrent state, of all ranks, and a checksum for each page of a sequence. */
struct copying {
    struct eng_session *session;
    int32_t slot;
    uint64_t page_bytes;
    uint8_t *page;
    uint64_t state_pages; /* as many pages hold the state */
    uint8_t *state;
    uint64_t *checksums;
};

static bool can_copy(const struct eng_session *session, const char *function, struct status *status)
{
    if (session->engine->process_group || !session->backend->type->copy_page)
        return status_fail(status, STATUS_USAGE,
                           "%s: sequences of engines that several processes share cannot be saved", function);
    return true;
}

static bool open_copying(struct copying *copying, struct eng_session *session, struct status *status)
{
    const uint64_t ranks = session->geometry->ranks ? session->geometry->ranks : 1;
    const uint64_t most = slots_pages_for(session, session->geometry->max_context);
    *copying = (struct copying){.session = session};
    uint64_t state_bytes = 0;
    bool ok = checked_mul(session->geometry->page_bytes, ranks, &copying->page_bytes) &&
              checked_mul(session->geometry->recurrent_bytes, ranks, &state_bytes);
    if (ok) copying->state_pages = state_bytes / copying->page_bytes + (state_bytes % copying->page_bytes != 0);
    copying->page = ok ? malloc(copying->page_bytes) : NULL;
    copying->state = ok ? calloc(copying->state_pages + 1, copying->page_bytes) : NULL;
    copying->checksums = calloc(most + copying->state_pages + 1, sizeof *copying->checksums);
    if (copying->page && copying->state && copying->checksums && copying->state_pages <= UINT32_MAX) return true;
    return status_fail(status, STATUS_MACHINE, "out of memory");
}

static void close_copying(struct copying *copying)
{
    free(copying->page);
    free(copying->state);
    free(copying->checksums);
}

/* Page `index` of a slot's pages, group after group. */
static int32_t page_of(const struct copying *copying, const uint32_t *pages, uint64_t index)
{
    unsigned group = 0;
    for (; index >= pages[group]; group++) index -= pages[group];
    return copying->session
        ->page_table[plan_page_row(copying->session->geometry, group, (uint64_t)copying->slot) + index];
}

struct saving {
    struct copying copying;
    struct sequence_header header;
};

static bool give_page(void *context, uint64_t index, uint8_t *bytes, struct status *status)
{
    const struct saving *saving = context;
    const struct copying *copying = &saving->copying;
    uint64_t kv_pages = 0;
    for (uint32_t g = 0; g < saving->header.groups; g++) kv_pages += saving->header.pages[g];
    if (index >= kv_pages) {
        memcpy(bytes, copying->state + (index - kv_pages) * copying->page_bytes, copying->page_bytes);
        return true;
    }
    struct backend *backend = saving->copying.session->backend;
    return backend->type->copy_page(backend, page_of(copying, saving->header.pages, index), bytes, false, status);
}

static bool save(struct eng_sequence *sequence, const char *path, struct status *status)
{
    static const char function[] = "eng_sequence_save";
    if (!report_not_null(sequence, function, "sequence", status) || !report_not_null(path, function, "path", status))
        return false;
    struct eng_session *session = sequence->session;
    if (!sequence->exists || sequence->count == 0)
        return status_fail(status, STATUS_USAGE, "%s: the sequence %s", function,
                           sequence->exists ? "has no tokens" : "was destroyed");
    if (sequence->sampling.bias_count)
        return status_fail(status, STATUS_USAGE, "%s: sequences with logit biases cannot be saved", function);
    if (!session_usable(session, status) || !can_copy(session, function, status) || !scheduler_drain(session, status))
        return false;
    struct saving saving = {.header = {.engine = session->engine->file.checksum,
                                       .groups = plan_page_groups(session->geometry),
                                       .token_count = sequence->count,
                                       .prompt_end = sequence->prompt_end,
                                       .sampler = sequence->sampling.state}};
    bool ok = open_copying(&saving.copying, session, status);
    saving.header.page_bytes = saving.copying.page_bytes;
    saving.copying.slot = sequence->slot;
    if (sequence->slot != SESSION_NO_SLOT) {
        saving.header.sampler = session->samplers[sequence->slot];
        saving.header.sampler.options &= ~(uint32_t)SAMPLER_ALLOWS; /* a mask is of one step */
        saving.header.computed = saving.header.written = sequence->computed;
        saving.header.rope_set = session->rope_set ? (uint32_t)session->rope_set[sequence->slot] : 0;
        for (unsigned g = 0; g < saving.header.groups; g++)
            saving.header.pages[g] =
                (uint32_t)plan_group_pages(session->geometry, g, sequence->computed, session->chunk);
    }
    if (ok && saving.header.computed && saving.copying.state_pages) {
        struct backend *backend = session->backend;
        saving.header.state_pages = (uint32_t)saving.copying.state_pages;
        ok = backend->type->copy_recurrent(backend, sequence->slot, saving.copying.state, false, status);
    }
    ok = ok && sequence_file_write(path, &saving.header, sequence->tokens, give_page, &saving, saving.copying.page,
                                   saving.copying.checksums, status);
    close_copying(&saving.copying);
    return ok || status_prefix(status, "%s", function);
}

enum eng_status eng_sequence_save(struct eng_sequence *sequence, const char *path, struct eng_error *error)
{
    struct status status = {0};
    return report_result(save(sequence, path, &status), &status, error);
}

/* Fills the sequence, which has a slot with room for its tokens. */
static bool fill(struct eng_sequence *sequence, const struct sequence_file *file, struct copying *copying,
                 struct status *status)
{
    struct eng_session *session = sequence->session;
    const struct sequence_header *header = &file->header;
    struct backend *backend = session->backend;
    const uint64_t kv_pages = file->page_count - header->state_pages;
    for (uint64_t i = 0; i < kv_pages; i++)
        if (!sequence_file_page(file, i, copying->page, status) ||
            !backend->type->copy_page(backend, page_of(copying, header->pages, i), copying->page, true, status))
            return false;
    for (uint64_t i = 0; i < header->state_pages; i++)
        if (!sequence_file_page(file, kv_pages + i, copying->state + i * copying->page_bytes, status)) return false;
    if (header->state_pages && !backend->type->copy_recurrent(backend, copying->slot, copying->state, true, status))
        return false;
    memcpy(sequence->tokens, file->tokens, header->token_count * sizeof *sequence->tokens);
    sequence->count = sequence->polled = header->token_count;
    sequence->prompt_end = header->prompt_end;
    slots_place(session, sequence->slot, header->computed, (int32_t)header->rope_set);
    slots_mark_seen(session, sequence->slot, sequence->tokens, sequence->count);
    sequence_restored(sequence, header->computed);
    return true;
}

static bool take_slot(struct eng_session *session, const struct sequence_file *file, int32_t *slot,
                      struct status *status)
{
    const struct sequence_header *header = &file->header;
    for (unsigned g = 0; g < header->groups; g++)
        if (header->pages[g] != plan_group_pages(session->geometry, g, header->computed, session->chunk))
            return status_fail(status, STATUS_CORRUPT, "%u pages of group %u do not hold %u tokens", header->pages[g],
                               g, header->computed);
    *slot = slots_take(session, SLOT_SEQUENCE);
    if (*slot == SESSION_NO_SLOT) return status_fail(status, STATUS_FULL, "all slots are in use");
    if (slots_reserve(session, *slot, header->computed)) return true;
    slots_give_back(session, *slot);
    return status_fail(status, STATUS_FULL, "the sequence needs %u KV pages, %u are free",
                       slots_pages_for(session, header->computed), page_pool_available(&session->pool));
}

static bool restore(struct eng_session *session, const char *path, const struct eng_sequence_options *options,
                    struct eng_sequence **handle, struct status *status)
{
    static const char function[] = "eng_sequence_restore";
    if (!report_not_null(session, function, "session", status) || !report_not_null(path, function, "path", status) ||
        !report_not_null((const void *)handle, function, "sequence", status) || !session_usable(session, status) ||
        !can_copy(session, function, status) || !scheduler_drain(session, status))
        return false;
    struct copying copying;
    struct sequence_file file = {0};
    struct eng_sequence *sequence = NULL;
    int32_t slot = SESSION_NO_SLOT;
    bool opened = open_copying(&copying, session, status);
    const struct sequence_expectation expected = {.engine = session->engine->file.checksum,
                                                  .page_bytes = copying.page_bytes,
                                                  .vocab_size = session->geometry->vocab_size,
                                                  .max_context = session->geometry->max_context,
                                                  .groups = plan_page_groups(session->geometry),
                                                  .most_pages = session->pool.count,
                                                  .state_pages = copying.state_pages,
                                                  .has_options = session->geometry->sampling_options};
    bool ok = opened && sequence_file_open(&file, path, &expected, status) &&
              sequence_make(session, options, &sequence, status) && take_slot(session, &file, &slot, status);
    if (ok) {
        sequence->slot = copying.slot = slot;
        if (!options || !options->sampling) sequence->sampling.state = file.header.sampler;
        slot_options_set(session, slot, &sequence->sampling);
        ok = fill(sequence, &file, &copying, status);
    }
    if (ok)
        *handle = sequence;
    else
        eng_sequence_destroy(&sequence);
    sequence_file_close(&file);
    close_copying(&copying);
    return ok || status_prefix(status, "%s", function);
}

enum eng_status eng_sequence_restore(struct eng_session *session, const char *path,
                                     const struct eng_sequence_options *options, struct eng_sequence **sequence,
                                     struct eng_error *error)
{
    struct status status = {0};
    return report_result(restore(session, path, options, sequence, &status), &status, error);
}
