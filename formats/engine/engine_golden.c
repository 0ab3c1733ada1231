/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of the sections with golden outputs: of a prompt, of every plan, and of the drafts in both. */
#include <inttypes.h>
#include <string.h>

#include "formats/base/checked.h"
#include "formats/engine/engine_verify.h"

static bool verify_token_ids(const int32_t *ids, uint32_t count, uint32_t vocab_size, const char *what,
                             struct status *status)
{
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab_size)
            return status_fail(status, STATUS_CORRUPT, "%s %" PRIu32 ": expected 0 to %" PRIu32 ", found %" PRId32,
                               what, i, vocab_size - 1, ids[i]);
    return true;
}

/* The result of a comparison with NaN would depend on its form. */
static bool verify_finite(const float *logits, uint64_t bytes, struct status *status)
{
    const uint32_t exponent = 0x7f800000u;
    const uint8_t *from = (const uint8_t *)logits;
    bool finite = true;
    for (uint64_t i = 0; i < bytes; i += sizeof(uint32_t)) {
        uint32_t bits;
        memcpy(&bits, from + i, sizeof bits);
        finite &= (bits & exponent) != exponent;
    }
    return finite || status_fail(status, STATUS_CORRUPT, "a logit is not finite");
}

bool engine_verify_golden(struct engine *engine, const struct engine_part *part, struct status *status)
{
    struct engine_golden_header header;
    uint64_t logits_bytes, size;
    if (!part->bytes) return true;
    if (part->size < sizeof header) return status_fail(status, STATUS_CORRUPT, "too short for its header");
    memcpy(&header, part->bytes, sizeof header);
    /* A longer header is of a later minor version; its further fields are for information. */
    if (header.header_bytes < sizeof header || header.header_bytes % sizeof(uint64_t) != 0 || header.reserved != 0)
        return status_fail(
            status, STATUS_CORRUPT,
            "header: expected a multiple of 8 bytes from %zu on and a reserved field of 0, found %" PRIu32
            " and %" PRIu32,
            sizeof header, header.header_bytes, header.reserved);
    if (header.vocab_size != engine->manifest.geometry.vocab_size)
        return status_fail(status, STATUS_CORRUPT,
                           "vocabulary: expected %" PRIu64 " as in the manifest, found %" PRIu32,
                           engine->manifest.geometry.vocab_size, header.vocab_size);
    if (header.prompt_count < 1 || header.token_count < 1 ||
        (uint64_t)header.prompt_count + header.token_count > engine->manifest.geometry.max_context)
        return status_fail(status, STATUS_CORRUPT,
                           "a prompt of %" PRIu32 " and %" PRIu32
                           " tokens: expected at least 1 of each, at most %" PRIu64 " together",
                           header.prompt_count, header.token_count, engine->manifest.geometry.max_context);
    if (!(header.tolerance >= 0 && header.tolerance <= 1e30f))
        return status_fail(status, STATUS_CORRUPT, "tolerance: expected a number from 0 on, found %g",
                           (double)header.tolerance);
    const uint64_t factors[] = {header.token_count, header.vocab_size, sizeof(float)};
    uint64_t ids_bytes = ((uint64_t)header.prompt_count + header.token_count) * sizeof(int32_t);
    if (!checked_product(factors, 3, &logits_bytes) ||
        !checked_add(header.header_bytes + ids_bytes, logits_bytes, &size) || size != part->size)
        return status_fail(status, STATUS_CORRUPT, "expected the size for its counts, found %" PRIu64 " bytes",
                           part->size);
    struct engine_golden golden = {
        .prompt_count = header.prompt_count,
        .token_count = header.token_count,
        .vocab_size = header.vocab_size,
        .tolerance = header.tolerance,
        .prompt = (const void *)(part->bytes + header.header_bytes),
        .logits = (const void *)(part->bytes + header.header_bytes + ids_bytes),
    };
    golden.tokens = golden.prompt + golden.prompt_count;
    if (!verify_token_ids(golden.prompt, golden.prompt_count, golden.vocab_size, "prompt token", status)) return false;
    if (!verify_token_ids(golden.tokens, golden.token_count, golden.vocab_size, "token", status)) return false;
    if (!verify_finite(golden.logits, logits_bytes, status)) return false;
    engine->golden = golden;
    return true;
}

/* ---- golden outputs of every plan ---- */

static bool verify_sequences(const struct golden_cases *cases, uint64_t max_context, struct status *status)
{
    uint64_t end = 0;
    for (uint32_t s = 0; s < cases->sequence_count; s++) {
        const struct golden_sequence *sequence = &cases->sequences[s];
        if (sequence->first_token != end || sequence->token_count < 1 || sequence->token_count > max_context)
            return status_fail(status, STATUS_CORRUPT,
                               "sequence %" PRIu32 ": expected 1 to %" PRIu64 " tokens from token %" PRIu64
                               " on, found %" PRIu32 " from token %" PRIu32 " on",
                               s, max_context, end, sequence->token_count, sequence->first_token);
        end += sequence->token_count;
    }
    return end == cases->token_count ||
           status_fail(status, STATUS_CORRUPT, "expected %" PRIu64 " tokens as in the sequences, found %" PRIu32, end,
                       cases->token_count);
}

static bool verify_rows(const struct golden_cases *cases, struct status *status)
{
    const struct golden_row *before = NULL;
    for (uint32_t r = 0; r < cases->row_count; r++) {
        const struct golden_row *row = &cases->rows[r];
        if (row->sequence >= cases->sequence_count || row->position >= cases->sequences[row->sequence].token_count)
            return status_fail(status, STATUS_CORRUPT,
                               "row %" PRIu32 ": there is no token %" PRIu32 " of sequence %" PRIu32, r, row->position,
                               row->sequence);
        if (before && (row->sequence < before->sequence ||
                       (row->sequence == before->sequence && row->position <= before->position)))
            return status_fail(status, STATUS_CORRUPT,
                               "row %" PRIu32 ": expected rising sequences and positions, found position %" PRIu32
                               " of sequence %" PRIu32 " after position %" PRIu32 " of sequence %" PRIu32,
                               r, row->position, row->sequence, before->position, before->sequence);
        if (row->token < 0 || (uint32_t)row->token >= cases->vocab_size || row->reserved != 0)
            return status_fail(status, STATUS_CORRUPT,
                               "row %" PRIu32 ": token: expected 0 to %" PRIu32
                               " and a reserved field of 0, found %" PRId32 " and %" PRIu32,
                               r, cases->vocab_size - 1, row->token, row->reserved);
        before = row;
    }
    return true;
}

static bool verify_cases(const struct engine *engine, const struct golden_cases *cases, struct status *status)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < cases->item_count; i++)
        if (cases->items[i] >= cases->row_count)
            return status_fail(status, STATUS_CORRUPT, "item %" PRIu32 ": row %" PRIu32 " of %" PRIu32, i,
                               cases->items[i], cases->row_count);
    for (uint32_t c = 0; c < cases->case_count; c++) {
        const struct golden_case *one = &cases->cases[c];
        const size_t plan = golden_find_plan(engine->plans, engine->plan_count, one->kind, one->rows);
        if (plan == engine->plan_count)
            return status_fail(status, STATUS_CORRUPT,
                               "case %" PRIu32 ": there is no plan of kind %" PRIu32 " and %" PRIu32 " rows", c,
                               one->kind, one->rows);
        const uint32_t most = plan_has_chunks(one->kind) ? golden_most_items(&engine->plans[plan].header) : one->rows;
        if (one->count < 1 || one->count > most || one->first_item != end ||
            golden_case_items(one) > cases->item_count - end)
            return status_fail(status, STATUS_CORRUPT,
                               "case %" PRIu32 ": expected 1 to %" PRIu32 " rows whose items begin at %" PRIu64
                               " of %" PRIu32 ", found %" PRIu32 " at %" PRIu32,
                               c, most, end, cases->item_count, one->count, one->first_item);
        const struct golden_row *row = &cases->rows[cases->items[end]];
        if (one->kind == PLAN_PREFILL && row->position + 1 < one->count)
            return status_fail(status, STATUS_CORRUPT,
                               "case %" PRIu32 ": a chunk of %" PRIu32 " tokens cannot end at position %" PRIu32, c,
                               one->count, row->position);
        end += golden_case_items(one);
    }
    return end == cases->item_count ||
           status_fail(status, STATUS_CORRUPT, "expected %" PRIu64 " items as in the cases, found %" PRIu32, end,
                       cases->item_count);
}

static bool verify_counts(const struct engine *engine, const struct engine_golden_plans_header *header, uint64_t size,
                          struct status *status)
{
    uint64_t body_bytes, expected;
    const struct {
        const char *name;
        uint32_t count, most;
    } counts[] = {
        {"sequence", header->sequence_count, GOLDEN_MOST_SEQUENCES},
        {"row", header->row_count, GOLDEN_MOST_ROWS},
        {"case", header->case_count, GOLDEN_MOST_CASES},
        {"item", header->item_count, GOLDEN_MOST_ITEMS},
    };
    /* A longer header is of a later minor version; its further fields are for information. */
    if (header->header_bytes < sizeof *header || header->header_bytes % sizeof(uint64_t) != 0)
        return status_fail(status, STATUS_CORRUPT, "header: expected a multiple of 8 bytes from %zu on, found %" PRIu32,
                           sizeof *header, header->header_bytes);
    if (header->vocab_size != engine->manifest.geometry.vocab_size)
        return status_fail(status, STATUS_CORRUPT,
                           "vocabulary: expected %" PRIu64 " as in the manifest, found %" PRIu32,
                           engine->manifest.geometry.vocab_size, header->vocab_size);
    if (!(header->tolerance >= 0 && header->tolerance <= 1e30f))
        return status_fail(status, STATUS_CORRUPT, "tolerance: expected a number from 0 on, found %g",
                           (double)header->tolerance);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].count < 1 || counts[i].count > counts[i].most)
            return status_fail(status, STATUS_CORRUPT, "%s count: expected 1 to %" PRIu32 ", found %" PRIu32,
                               counts[i].name, counts[i].most, counts[i].count);
    if (!engine_golden_plans_bytes(header, &body_bytes) || !checked_add(header->header_bytes, body_bytes, &expected) ||
        expected != size)
        return status_fail(status, STATUS_CORRUPT, "expected the size for its counts, found %" PRIu64 " bytes", size);
    return true;
}

bool engine_verify_golden_plans(struct engine *engine, const struct engine_part *part, struct status *status)
{
    struct engine_golden_plans_header header;
    if (!part->bytes) return true;
    if (part->size < sizeof header) return status_fail(status, STATUS_CORRUPT, "too short for its header");
    memcpy(&header, part->bytes, sizeof header);
    if (!verify_counts(engine, &header, part->size, status)) return false;
    struct golden_cases cases = {
        .vocab_size = header.vocab_size,
        .tolerance = header.tolerance,
        .token_count = header.token_count,
        .sequence_count = header.sequence_count,
        .row_count = header.row_count,
        .case_count = header.case_count,
        .item_count = header.item_count,
        .sequences = (const void *)(part->bytes + header.header_bytes),
    };
    cases.rows = (const void *)(cases.sequences + cases.sequence_count);
    cases.cases = (const void *)(cases.rows + cases.row_count);
    cases.items = (const void *)(cases.cases + cases.case_count);
    cases.tokens = (const void *)(cases.items + cases.item_count);
    cases.logits = (const void *)(cases.tokens + cases.token_count);
    if (!verify_sequences(&cases, engine->manifest.geometry.max_context, status) || !verify_rows(&cases, status) ||
        !verify_cases(engine, &cases, status) ||
        !verify_token_ids(cases.tokens, cases.token_count, cases.vocab_size, "token", status) ||
        !verify_finite(cases.logits, (uint64_t)cases.row_count * cases.vocab_size * sizeof *cases.logits, status))
        return false;
    engine->golden_plans = cases;
    return true;
}

/* ---- drafts of both ---- */

static bool verify_drafts(const struct golden_drafts *drafts, uint32_t count, uint32_t vocab_size, const char *what,
                          struct status *status)
{
    const uint64_t words = plan_allowed_words(vocab_size);
    const uint32_t unused = vocab_size % 32 ? UINT32_MAX << vocab_size % 32 : 0;
    if (!verify_token_ids(drafts->tokens, count, vocab_size, what, status)) return false;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *near = drafts->near + i * words, token = (uint32_t)drafts->tokens[i];
        if (!(near[token / 32] >> token % 32 & 1) || near[words - 1] & unused)
            return status_fail(status, STATUS_CORRUPT,
                               "%s %" PRIu32 ": expected a mask of %" PRIu32 " tokens with its token %" PRIu32
                               ", found bits %08" PRIx32 " and %08" PRIx32,
                               what, i, vocab_size, token, near[token / 32], near[words - 1]);
    }
    return true;
}

bool engine_verify_golden_drafts(struct engine *engine, const struct engine_part *part, struct status *status)
{
    struct engine_golden_drafts_header header;
    uint64_t body_bytes, expected;
    if (!part->bytes) return true;
    if (part->size < sizeof header) return status_fail(status, STATUS_CORRUPT, "too short for its header");
    memcpy(&header, part->bytes, sizeof header);
    if (!engine->manifest.geometry.drafts) return status_fail(status, STATUS_CORRUPT, "the plans draft nothing");
    /* A longer header is of a later minor version; its further fields are for information. */
    if (header.header_bytes < sizeof header || header.header_bytes % sizeof(uint64_t) != 0)
        return status_fail(status, STATUS_CORRUPT, "header: expected a multiple of 8 bytes from %zu on, found %" PRIu32,
                           sizeof header, header.header_bytes);
    if (header.vocab_size != engine->manifest.geometry.vocab_size || header.token_count != engine->golden.token_count ||
        header.row_count != engine->golden_plans.row_count)
        return status_fail(status, STATUS_CORRUPT,
                           "expected a vocabulary of %" PRIu64 " and drafts of %" PRIu32 " tokens and %" PRIu32
                           " rows, found %" PRIu32 ", %" PRIu32 " and %" PRIu32,
                           engine->manifest.geometry.vocab_size, engine->golden.token_count,
                           engine->golden_plans.row_count, header.vocab_size, header.token_count, header.row_count);
    if (!engine_golden_drafts_bytes(&header, &body_bytes) || !checked_add(header.header_bytes, body_bytes, &expected) ||
        expected != part->size)
        return status_fail(status, STATUS_CORRUPT, "expected the size for its counts, found %" PRIu64 " bytes",
                           part->size);
    struct golden_drafts prompt = {.tokens = (const void *)(part->bytes + header.header_bytes)}, plans;
    plans.tokens = prompt.tokens + header.token_count;
    prompt.near = (const void *)(plans.tokens + header.row_count);
    plans.near = prompt.near + header.token_count * plan_allowed_words(header.vocab_size);
    if (!verify_drafts(&prompt, header.token_count, header.vocab_size, "draft after token", status) ||
        !verify_drafts(&plans, header.row_count, header.vocab_size, "draft after row", status))
        return false;
    engine->golden.drafts = prompt;
    engine->golden_plans.drafts = plans;
    return true;
}
