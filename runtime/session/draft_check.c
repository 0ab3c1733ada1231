/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a second engine can draft for an engine, and what a token costs that it drafts. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/tuning/tuning_record.h"
#include "runtime/session/session.h"

static bool check_vocabulary(const struct eng_engine *engine, const struct eng_engine *draft, struct status *status)
{
    const uint64_t expected = engine->file.manifest.geometry.vocab_size,
                   found = draft->file.manifest.geometry.vocab_size;
    if (expected != found)
        return status_fail(status, STATUS_USAGE,
                           "the draft engine has %" PRIu64 " tokens, expected the same %" PRIu64
                           " as the engine's; use a model with the same vocabulary",
                           found, expected);
    if (!engine->tokenizer || !draft->tokenizer) return true;
    const uint32_t own_size = tokenizer_vocab_size(engine->tokenizer), size = tokenizer_vocab_size(draft->tokenizer);
    for (uint32_t t = 0; t < own_size || t < size; t++) {
        const char *own = "", *other = "";
        size_t own_bytes = 0, bytes = 0;
        const bool has_own = t < own_size && tokenizer_token_text(engine->tokenizer, (int32_t)t, &own, &own_bytes);
        const bool has = t < size && tokenizer_token_text(draft->tokenizer, (int32_t)t, &other, &bytes);
        if (has != has_own || bytes != own_bytes || memcmp(own, other, bytes) != 0)
            return status_fail(status, STATUS_USAGE,
                               "token %" PRIu32
                               " of the draft engine is another one than the engine's; use a model with the same "
                               "vocabulary",
                               t);
    }
    return true;
}

bool draft_check(const struct eng_engine *engine, const struct eng_engine *draft, uint32_t speculate,
                 struct status *status)
{
    const struct plan *plans = engine->file.plans;
    const size_t last = engine->file.plan_count - 1;
    const struct plan_geometry *geometry = &draft->file.manifest.geometry;
    if (!speculate)
        return status_fail(status, STATUS_USAGE,
                           "speculate is 0, expected the most tokens that the draft engine drafts");
    if (plans[last].header.kind != PLAN_VERIFY)
        return status_fail(status, STATUS_USAGE,
                           "the engine has no verification plans, without which drafts are of no use; build it with "
                           "engbuild --verify-rows, or leave the draft engine out");
    if (engine->process_group || draft->process_group)
        return status_fail(status, STATUS_USAGE,
                           "several processes share %s engine; expected one process, or no draft engine",
                           engine->process_group ? "the" : "the draft");
    if (geometry->recurrent_bytes)
        return status_fail(status, STATUS_USAGE,
                           "the draft engine's model has recurrent layers, whose state cannot forget rejected tokens; "
                           "use a model with attention alone");
    const uint64_t chunk = plan_longest_chunk(draft->file.plans, draft->file.plan_count);
    const uint32_t most = plans[last].header.rows - 1, drafted = speculate < most ? speculate : most;
    for (unsigned g = 0; g < plan_page_groups(geometry); g++)
        if (geometry->page_window[g] && chunk < drafted)
            return status_fail(status, STATUS_USAGE,
                               "the draft engine's model has a sliding window, of which its longest chunk of %" PRIu64
                               " tokens can be taken back; set speculate to at most that, found %" PRIu32
                               ", or build it with longer chunks (engbuild --prefill-chunks)",
                               chunk, speculate);
    return check_vocabulary(engine, draft, status);
}

/* Microseconds that the engine's file has for the launches of its smallest decode plan, as tuning measured them; 0: none. */
static bool find_time(const struct eng_engine *engine, double *us, struct status *status)
{
    const struct plan *plan = engine->file.plans;
    const char *at = engine->file.tactics, *end = at + engine->file.tactics_size;
    size_t lines = 0;
    bool ok = true;
    *us = 0;
    for (const char *c = at; c < end; c++) lines += *c == '\n';
    uint32_t *uses = calloc(lines + 1, sizeof *uses);
    if (!uses) return status_fail(status, STATUS_MACHINE, "out of memory");
    for (uint32_t n = 0; n < plan->header.launch_count; n++)
        if (plan->launches[n].tactic < lines) uses[plan->launches[n].tactic]++;
    for (size_t line = 0; ok && line < lines; line++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        struct tuning_record record;
        if (uses[line]) {
            ok = tuning_record_parse(&record, at, (size_t)(newline - at), status) ||
                 status_prefix(status, "%s: tactics: line %zu", engine->path, line);
            if (ok) *us += record.median_us * uses[line];
        }
        at = newline + 1;
    }
    free(uses);
    return ok;
}

bool draft_find_cost(const struct eng_engine *engine, const struct eng_engine *draft, float *cost,
                     struct status *status)
{
    /* Where a file has no times: the share of a model with a tenth of the weights. */
    static const float usual_cost = 0.1f;
    double own_us, us;
    if (!find_time(engine, &own_us, status) || !find_time(draft, &us, status)) return false;
    *cost = own_us > 0 && us > 0 ? (float)(us / own_us) : usual_cost;
    return true;
}
