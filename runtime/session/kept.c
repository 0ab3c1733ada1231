/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences that are set aside and whose pages are kept in the host's memory, so that they need not be computed again. The times that
 * this session's copies and steps took tell which is cheaper. */
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"
#include "runtime/load/load.h"
#include "runtime/session/session.h"

/* Seconds to copy a byte, until a copy was timed: as pageable memory comes over a slow bus. */
static const double unknown_copy_seconds = 1.0 / 5e9;

static void note_least(double *least, double seconds)
{
    if (seconds > 0 && (*least <= 0 || seconds < *least)) *least = seconds;
}

void kept_note_prompt(struct eng_session *session, uint32_t tokens, double seconds)
{
    if (tokens) note_least(&session->prompt_seconds, seconds / tokens);
}

/* A page of all ranks, and their recurrent state. */
static bool find_sizes(const struct eng_session *session, uint64_t *page_bytes, uint64_t *state_bytes)
{
    const uint64_t ranks = plan_ranks(session->geometry);
    return checked_mul(session->geometry->page_bytes, ranks, page_bytes) &&
           checked_mul(session->geometry->recurrent_bytes, ranks, state_bytes);
}

/* Copies pages to `bytes` or from there: of the groups without a window from `first` on. Then the recurrent state. */
static bool copy(struct eng_session *session, int32_t slot, uint32_t computed, uint32_t first, uint8_t *bytes,
                 bool to_pool, struct status *status)
{
    struct backend *backend = session->backend;
    const double begun = load_seconds();
    uint64_t page_bytes = 0, state_bytes = 0, copied = 0;
    bool ok = find_sizes(session, &page_bytes, &state_bytes) ||
              status_fail(status, STATUS_INTERNAL, "sizes of pages that were checked before");
    for (unsigned g = 0; ok && g < plan_page_groups(session->geometry); g++) {
        const uint64_t pages = plan_group_pages(session->geometry, g, computed, session->chunk);
        const int32_t *row = session->page_table + plan_page_row(session->geometry, g, (uint64_t)slot);
        for (uint64_t i = 0; ok && i < pages; i++, bytes += page_bytes) {
            if (i < first && !session->geometry->page_window[g]) continue;
            ok = backend->type->copy_page(backend, row[i], bytes, to_pool, status);
            copied += page_bytes;
        }
    }
    if (ok && state_bytes) ok = backend->type->copy_recurrent(backend, slot, bytes, to_pool, status);
    copied += state_bytes;
    if (ok && copied) note_least(&session->copy_seconds, (load_seconds() - begun) / (double)copied);
    return ok;
}

void kept_free(struct eng_sequence *sequence)
{
    sequence->session->kept_bytes -= sequence->kept.size;
    free(sequence->kept.bytes);
    sequence->kept = (struct session_kept){0};
}

static bool is_cheaper(const struct eng_session *session, uint32_t tokens, uint64_t size)
{
    enum { STEPS = 2 }; /* that a copy may take, as other sequences wait for it */
    const double byte = session->copy_seconds > 0 ? session->copy_seconds : unknown_copy_seconds;
    const double copy_seconds = byte * (double)size;
    if (session->step_ms && copy_seconds * 1e3 > STEPS * session->step_ms) return false;
    return session->prompt_seconds <= 0 || 2 * copy_seconds < session->prompt_seconds * tokens;
}

void kept_put(struct eng_sequence *sequence)
{
    struct eng_session *session = sequence->session;
    const uint32_t computed = sequence->computed;
    uint64_t page_bytes, size, state_bytes;
    struct status status = {0};
    /* With several processes each would have to decide alike. Steps in flight still write; rows that are to be read must be computed. */
    if (!session->kept_most || session->engine->process_group || !session->backend->type->copy_page ||
        session->flight_count || !computed || sequence->rows.next != sequence->rows.end)
        return;
    uint64_t pages = 0;
    for (unsigned g = 0; g < plan_page_groups(session->geometry); g++)
        pages += plan_group_pages(session->geometry, g, computed, session->chunk);
    if (!find_sizes(session, &page_bytes, &state_bytes) || !checked_mul(pages, page_bytes, &size) ||
        !checked_add(size, state_bytes, &size) || size > session->kept_most - session->kept_bytes || size > SIZE_MAX ||
        !is_cheaper(session, computed, size))
        return;
    uint8_t *bytes = malloc((size_t)size);
    if (!bytes) return;
    if (!copy(session, sequence->slot, computed, 0, bytes, false, &status)) {
        free(bytes);
        slots_fail(session, &status);
        return;
    }
    sequence->kept = (struct session_kept){.bytes = bytes,
                                           .size = size,
                                           .computed = computed,
                                           .rope_set = session->rope_set ? session->rope_set[sequence->slot] : 0};
    session->kept_bytes += size;
    session->kept_count++;
}

void kept_take(struct eng_sequence *sequence)
{
    struct eng_session *session = sequence->session;
    const struct session_kept *kept = &sequence->kept;
    struct status status = {0};
    const int32_t slot = sequence->slot, rope_set = session->rope_set ? session->rope_set[slot] : 0;
    const bool wanted = kept->bytes && kept->computed > sequence->computed && kept->rope_set == rope_set;
    if (wanted && slots_reserve(session, slot, kept->computed)) {
        /* The cache's blocks stay; pages of windows and recurrent state move from a checkpoint's place to the end. */
        if (copy(session, slot, kept->computed, sequence->blocks, kept->bytes, true, &status)) {
            slots_place(session, slot, kept->computed, rope_set);
            sequence->computed = kept->computed;
        } else {
            slots_fail(session, &status);
        }
    }
    kept_free(sequence);
}
