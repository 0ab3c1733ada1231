/* SPDX-License-Identifier: Apache-2.0 */
/* Golden outputs in an engine file: what a reader refuses, and the cases that a prompt stands for. */
#define TEST_ENGINE_MAKE test_engine_make
#include "formats/engine/test_engine_frame.h"

#include "formats/engine/engine_file.h"

#define GOLDEN_FIELD(field, value, expected) \
    FIELD(SECTION_GOLDEN, 0, engine_golden_header, field, value, "section 'golden': " expected)

#define CASES_FIELD(field, value, expected) \
    FIELD(SECTION_GOLDEN_PLANS, 0, engine_golden_plans_header, field, value, "section 'golden plans': " expected)
/* The tables of section 'golden plans'. */
enum {
    AT_SEQUENCES = sizeof(struct engine_golden_plans_header),
    AT_ROWS = AT_SEQUENCES + 2 * sizeof(struct golden_sequence),
    AT_CASES = AT_ROWS + TEST_ENGINE_GOLDEN_ROWS * sizeof(struct golden_row),
    AT_ITEMS = AT_CASES + TEST_ENGINE_GOLDEN_CASES * sizeof(struct golden_case),
    AT_TOKENS = AT_ITEMS + TEST_ENGINE_GOLDEN_ITEMS * sizeof(uint32_t),
    AT_LOGITS = AT_TOKENS + TEST_ENGINE_GOLDEN_TOKENS * sizeof(int32_t),
};
#define CASES_ENTRY(base, type, index, field, value, expected)                              \
    FIELD(SECTION_GOLDEN_PLANS, (base) + (index) * sizeof(struct type), type, field, value, \
          "section 'golden plans': " expected)

static const struct edit edits[] = {
    GOLDEN_FIELD(prompt_count, 0, "a prompt of 0 and 2 tokens"),
    GOLDEN_FIELD(prompt_count, 9, "a prompt of 9 and 2 tokens: expected at least 1 of each, at most 10"),
    GOLDEN_FIELD(prompt_count, 4, "expected the size for its counts"),
    GOLDEN_FIELD(prompt_count, UINT32_MAX, "a prompt of 4294967295"),
    GOLDEN_FIELD(token_count, 1, "expected the size for its counts"),
    GOLDEN_FIELD(vocab_size, 15, "vocabulary: expected 16 as in the manifest, found 15"),
    GOLDEN_FIELD(tolerance, 0x7fc00000, "tolerance: expected a number from 0 on"),
    GOLDEN_FIELD(tolerance, 0xbf800000, "tolerance: expected a number from 0 on"),
    GOLDEN_FIELD(header_bytes, 16, "header: expected a multiple of 8 bytes from 24 on"),
    GOLDEN_FIELD(header_bytes, 28, "header: expected a multiple of 8 bytes from 24 on"),
    GOLDEN_FIELD(header_bytes, 32, "expected the size for its counts"),
    GOLDEN_FIELD(header_bytes, UINT32_MAX & ~7u, "expected the size for its counts"),
    GOLDEN_FIELD(reserved, 1, "header: expected a multiple of 8 bytes from 24 on and a reserved field of 0"),
    {SECTION_GOLDEN, 24, 4, 16, "section 'golden': prompt token 0: expected 0 to 15, found 16"},
    {SECTION_GOLDEN, 40, 4, UINT32_MAX, "section 'golden': token 1: expected 0 to 15, found -1"},
    {SECTION_GOLDEN, 44, 4, 0x7f800000, "section 'golden': a logit is not finite"},
    CASES_FIELD(header_bytes, 24, "header: expected a multiple of 8 bytes from 32 on, found 24"),
    CASES_FIELD(header_bytes, 36, "header: expected a multiple of 8 bytes from 32 on, found 36"),
    CASES_FIELD(header_bytes, 40, "expected the size for its counts"),
    CASES_FIELD(header_bytes, UINT32_MAX & ~7u, "expected the size for its counts"),
    CASES_FIELD(vocab_size, 17, "vocabulary: expected 16 as in the manifest, found 17"),
    CASES_FIELD(tolerance, 0x7fc00000, "tolerance: expected a number from 0 on"),
    CASES_FIELD(tolerance, 0xbf800000, "tolerance: expected a number from 0 on"),
    CASES_FIELD(token_count, 8, "expected the size for its counts"),
    CASES_FIELD(token_count, UINT32_MAX, "expected the size for its counts"),
    CASES_FIELD(sequence_count, 0, "sequence count: expected 1 to 64, found 0"),
    CASES_FIELD(sequence_count, 65, "sequence count: expected 1 to 64, found 65"),
    CASES_FIELD(row_count, 0, "row count: expected 1 to 4096, found 0"),
    CASES_FIELD(row_count, UINT32_MAX, "row count: expected 1 to 4096, found 4294967295"),
    CASES_FIELD(row_count, 4096, "expected the size for its counts"),
    CASES_FIELD(case_count, 0, "case count: expected 1 to 4096, found 0"),
    CASES_FIELD(case_count, 4097, "case count: expected 1 to 4096, found 4097"),
    CASES_FIELD(item_count, 0, "item count: expected 1 to 65536, found 0"),
    CASES_FIELD(item_count, 65537, "item count: expected 1 to 65536, found 65537"),
    CASES_ENTRY(AT_SEQUENCES, golden_sequence, 0, first_token, 1,
                "sequence 0: expected 1 to 10 tokens from token 0 on, found 6 from token 1 on"),
    CASES_ENTRY(AT_SEQUENCES, golden_sequence, 0, token_count, 0, "sequence 0: expected 1 to 10 tokens"),
    CASES_ENTRY(AT_SEQUENCES, golden_sequence, 0, token_count, 11, "sequence 0: expected 1 to 10 tokens"),
    CASES_ENTRY(AT_SEQUENCES, golden_sequence, 0, token_count, 5,
                "sequence 1: expected 1 to 10 tokens from token 5 on, found 3 from token 6 on"),
    CASES_ENTRY(AT_SEQUENCES, golden_sequence, 1, token_count, 4, "expected 10 tokens as in the sequences, found 9"),
    CASES_ENTRY(AT_ROWS, golden_row, 0, sequence, 2, "row 0: there is no token 3 of sequence 2"),
    CASES_ENTRY(AT_ROWS, golden_row, 2, position, 3, "row 2: there is no token 3 of sequence 1"),
    CASES_ENTRY(AT_ROWS, golden_row, 1, position, UINT32_MAX, "row 1: there is no token 4294967295 of sequence 0"),
    CASES_ENTRY(AT_ROWS, golden_row, 1, position, 3, "row 1: expected rising sequences and positions"),
    CASES_ENTRY(AT_ROWS, golden_row, 2, sequence, 0, "row 2: expected rising sequences and positions"),
    CASES_ENTRY(AT_ROWS, golden_row, 0, token, 16, "row 0: token: expected 0 to 15"),
    CASES_ENTRY(AT_ROWS, golden_row, 0, token, UINT32_MAX, "row 0: token: expected 0 to 15"),
    CASES_ENTRY(AT_ROWS, golden_row, 0, reserved, 1, "row 0: token: expected 0 to 15 and a reserved field of 0"),
    CASES_ENTRY(AT_CASES, golden_case, 0, kind, 3, "case 0: there is no plan of kind 3 and 4 rows"),
    CASES_ENTRY(AT_CASES, golden_case, 0, rows, 5, "case 0: there is no plan of kind 2 and 5 rows"),
    CASES_ENTRY(AT_CASES, golden_case, 0, count, 0, "case 0: expected 1 to 4 rows"),
    CASES_ENTRY(AT_CASES, golden_case, 0, count, 5, "case 0: expected 1 to 4 rows"),
    CASES_ENTRY(AT_CASES, golden_case, 0, first_item, 1, "case 0: expected 1 to 4 rows whose items begin at 0 of 5"),
    CASES_ENTRY(AT_CASES, golden_case, 3, first_item, UINT32_MAX, "case 3: expected 1 to 2 rows"),
    CASES_ENTRY(AT_CASES, golden_case, 3, count, 1, "expected 4 items as in the cases, found 5"),
    {SECTION_GOLDEN_PLANS, AT_ITEMS, 4, 3, "section 'golden plans': item 0: row 3 of 3"},
    {SECTION_GOLDEN_PLANS, AT_ITEMS, 4, UINT32_MAX, "section 'golden plans': item 0: row 4294967295 of 3"},
    {SECTION_GOLDEN_PLANS, AT_ITEMS, 4, 2,
     "section 'golden plans': case 0: a chunk of 4 tokens cannot end at position 2"},
    {SECTION_GOLDEN_PLANS, AT_TOKENS, 4, 16, "section 'golden plans': token 0: expected 0 to 15, found 16"},
    {SECTION_GOLDEN_PLANS, AT_LOGITS, 4, 0x7f800000, "section 'golden plans': a logit is not finite"},
};

TEST(every_structural_check_fires) { EXPECT_EDITS(edits, NULL); }

/* Any byte of the tables may be anything. An accepted section is read in whole. */
TEST(random_tables_are_refused_or_harmless)
{
    size_t size, accepted = 0, refused = 0;
    uint8_t *bytes = written(false, &size), *changed = written(false, &size);
    const size_t base = test_engine_entry(bytes, size, SECTION_GOLDEN_PLANS)->offset;
    uint64_t random = 1;
    for (int round = 0; round < 4000; round++) {
        memcpy(changed, bytes, size);
        for (int i = 0; i <= round % 3; i++) {
            test_random(&random);
            uint8_t value = (uint8_t)(random >> 56);
            changed[base + (random >> 24) % AT_LOGITS] = round % 2 ? value : value % 8;
        }
        engine_fix_checksums(changed, size);
        bool ok = accepts(changed, size);
        accepted += ok;
        refused += !ok;
    }
    assert_true(accepted > 10 && refused > 1000);
    free(changed);
    free(bytes);
}

/* A reader of a later minor version's file passes over what it does not know of the header. */
TEST(longer_headers_are_read)
{
    enum { LONGER = 8 };
    size_t size;
    uint8_t *bytes = written(false, &size), *longer = NULL;
    struct engine_section_entry *entry = test_engine_entry(bytes, size, SECTION_GOLDEN_PLANS);
    assert_int_equal(entry->offset + entry->raw_bytes, size); /* the last section */
    assert_int_equal(posix_memalign((void **)&longer, PLAN_ALIGNMENT, size + LONGER), 0);
    const size_t at = entry->offset + AT_SEQUENCES;
    entry->raw_bytes = entry->stored_bytes = entry->raw_bytes + LONGER;
    ((struct engine_header *)(void *)bytes)->file_bytes += LONGER;
    memcpy(longer, bytes, at);
    memset(longer + at, 0x5a, LONGER);
    memcpy(longer + at + LONGER, bytes + at, size - at);
    const uint32_t header_bytes = AT_SEQUENCES + LONGER;
    memcpy(longer + entry->offset, &header_bytes, sizeof header_bytes);
    engine_fix_checksums(longer, size + LONGER);
    open_bytes(longer, size + LONGER);
    assert_true(test_engine_same_cases(&engine.golden_plans, &sample.golden_plans));
    engine_close(&engine);
    free(longer);
    free(bytes);
}

/* ---- drafts ---- */

enum {
    AT_DRAFTED = sizeof(struct engine_golden_drafts_header),
    AT_NEAR = AT_DRAFTED + TEST_ENGINE_GOLDEN_DRAFTS * sizeof(int32_t),
    DRAFTS_BYTES = AT_NEAR + TEST_ENGINE_GOLDEN_DRAFTS * sizeof(uint32_t),
};
#define DRAFTS_FIELD(field, value, expected) \
    FIELD(SECTION_GOLDEN_DRAFTS, 0, engine_golden_drafts_header, field, value, "section 'golden drafts': " expected)

static const struct edit draft_edits[] = {
    DRAFTS_FIELD(header_bytes, 8, "header: expected a multiple of 8 bytes from 16 on, found 8"),
    DRAFTS_FIELD(header_bytes, 20, "header: expected a multiple of 8 bytes from 16 on, found 20"),
    DRAFTS_FIELD(header_bytes, 24, "expected the size for its counts"),
    DRAFTS_FIELD(header_bytes, UINT32_MAX & ~7u, "expected the size for its counts"),
    DRAFTS_FIELD(vocab_size, 15, "expected a vocabulary of 16 and drafts of 2 tokens and 3 rows, found 15, 2 and 3"),
    DRAFTS_FIELD(token_count, UINT32_MAX,
                 "expected a vocabulary of 16 and drafts of 2 tokens and 3 rows, found 16, 42"),
    DRAFTS_FIELD(row_count, 2, "expected a vocabulary of 16 and drafts of 2 tokens and 3 rows, found 16, 2 and 2"),
    {SECTION_GOLDEN_DRAFTS, AT_DRAFTED + 4, 4, 16, "draft after token 1: expected 0 to 15, found 16"},
    {SECTION_GOLDEN_DRAFTS, AT_DRAFTED + 16, 4, UINT32_MAX, "draft after row 2: expected 0 to 15, found -1"},
    {SECTION_GOLDEN_DRAFTS, AT_NEAR, 4, 2, "draft after token 0: expected a mask of 16 tokens with its token 0, found"},
    {SECTION_GOLDEN_DRAFTS, AT_NEAR + 8, 4, 1u << 10 | 1u << 16, "draft after row 0: expected a mask of 16 tokens"},
    {SECTION_GOLDEN_DRAFTS, AT_NEAR + 8, 4, 0xffff, NULL},
};

/* The drafts uncompressed, so that edits have a place. */
static uint8_t *written_drafts(size_t *size)
{
    uint8_t section[DRAFTS_BYTES];
    const struct engine_golden_drafts_header header = {AT_DRAFTED, TEST_ENGINE_VOCAB, 2, TEST_ENGINE_GOLDEN_ROWS};
    assert_true(test_engine_make_drafts(&sample, &status));
    memcpy(section, &header, sizeof header);
    memcpy(section + AT_DRAFTED, sample.drafted, sizeof sample.drafted);
    memcpy(section + AT_NEAR, sample.near, sizeof sample.near);
    sample.golden_plans.drafts.tokens = NULL; /* left out by the writer */
    uint8_t *without = written(false, size);
    uint8_t *bytes = test_engine_with_section(without, size, SECTION_GOLDEN_DRAFTS, section, sizeof section);
    free(without);
    return bytes;
}

TEST(drafts_are_read_as_written)
{
    assert_true(test_engine_make_drafts(&sample, &status));
    open_sample(false);
    assert_memory_equal(engine.golden.drafts.tokens, sample.drafted, 2 * sizeof(int32_t));
    assert_memory_equal(engine.golden.drafts.near, sample.near, 2 * sizeof(uint32_t));
    assert_non_null(engine.golden_plans.drafts.tokens);
    assert_true(test_engine_same_cases(&engine.golden_plans, &sample.golden_plans));
    engine_close(&engine);
    /* As the specification has it. */
    size_t size;
    uint8_t *bytes = written_drafts(&size);
    open_bytes(bytes, size);
    assert_memory_equal(engine.golden_plans.drafts.near, sample.near + 2, 3 * sizeof(uint32_t));
    engine_close(&engine);
    free(bytes);
}

TEST(damaged_drafts_are_refused)
{
    for (size_t i = 0; i < sizeof draft_edits / sizeof *draft_edits; i++) {
        const struct edit *edit = &draft_edits[i];
        size_t size;
        uint8_t *bytes = written_drafts(&size);
        make_edit(edit, place_in_file(bytes, size, edit->place));
        engine_fix_checksums(bytes, size);
        if (edit->expected)
            expect_refused(bytes, size, edit->expected);
        else
            expect_accepted(bytes, size);
        free(bytes);
    }
}

TEST(random_drafts_are_refused_or_harmless)
{
    size_t size, accepted = 0, refused = 0;
    uint8_t *bytes = written_drafts(&size), *changed = written_drafts(&size);
    const size_t base = test_engine_entry(bytes, size, SECTION_GOLDEN_DRAFTS)->offset;
    uint64_t random = 1;
    for (int round = 0; round < 2000; round++) {
        memcpy(changed, bytes, size);
        test_random(&random);
        changed[base + (random >> 24) % DRAFTS_BYTES] = (uint8_t)(random >> 56);
        engine_fix_checksums(changed, size);
        const bool ok = accepts(changed, size);
        accepted += ok;
        refused += !ok;
    }
    assert_true(accepted > 10 && refused > 500);
    free(changed);
    free(bytes);
}

/* Plans that draft nothing, and a section that ends too soon. */
TEST(drafts_need_plans_that_draft)
{
    size_t size;
    static const uint8_t zeros[DRAFTS_BYTES];
    uint8_t *without = written(false, &size);
    for (size_t bytes = 8; bytes <= sizeof zeros; bytes += sizeof zeros - 8) {
        size_t whole = size;
        uint8_t *with = test_engine_with_section(without, &whole, SECTION_GOLDEN_DRAFTS, zeros, bytes);
        expect_refused(with, whole,
                       bytes == 8 ? "section 'golden drafts': too short for its header"
                                  : "section 'golden drafts': the plans draft nothing");
        free(with);
    }
    free(without);
}

/* ---- the cases of a prompt ---- */

TEST(a_prompt_has_cases_for_every_plan)
{
    struct golden_cases cases;
    uint32_t items = 0;
    open_sample(false);
    assert_true(golden_cases_of_prompt(&engine.golden, engine.plans, engine.plan_count, &cases, &status));
    assert_int_equal(cases.case_count, engine.plan_count);
    assert_int_equal(cases.row_count, 2);
    assert_int_equal(cases.token_count, 5);
    assert_ptr_equal(cases.logits, engine.golden.logits);
    for (int i = 0; i < 3; i++) assert_int_equal(golden_tokens(&cases, 0)[i], sample.prompt[i]);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(golden_tokens(&cases, 0)[3 + i], sample.tokens[i]);
        assert_int_equal(cases.rows[i].position, 2 + i);
        assert_int_equal(cases.rows[i].token, sample.tokens[i]);
    }
    for (uint32_t c = 0; c < cases.case_count; c++) {
        const struct golden_case *one = &cases.cases[c];
        assert_true(golden_find_plan(engine.plans, engine.plan_count, one->kind, one->rows) < engine.plan_count);
        assert_int_equal(one->count, one->kind == PLAN_DECODE ? one->rows : 3);
        assert_int_equal(one->first_item, items);
        items += golden_case_items(one);
    }
    assert_int_equal(items, cases.item_count);
    golden_cases_free(&cases);
    engine_close(&engine);
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
