/* SPDX-License-Identifier: Apache-2.0 */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define TEST_ENGINE_MAKE test_engine_make
#include "formats/engine/test_engine_frame.h"

enum { MAX_TEST_FILE = 64 << 10, GOLDEN_SECTIONS = 1 << SECTION_GOLDEN | 1 << SECTION_GOLDEN_PLANS };

/* A second file beside `path`. */
static const char *other_path(void)
{
    static char other[72];
    snprintf(other, sizeof other, "%s/b.eng", folder);
    return other;
}

static void add_weights(struct engine_writer *writer)
{
    assert_true(engine_writer_weights_begin(writer, TEST_ENGINE_WEIGHTS, 1, NULL));
    assert_true(engine_writer_weights_put(writer, 0, sample.weights, TEST_ENGINE_WEIGHTS, NULL));
    assert_true(engine_writer_weights_end(writer, NULL));
}

static void add_sections(struct engine_writer *writer, unsigned skip)
{
    if (!test_engine_write_sections(&sample, writer, false, skip, &status)) fail_msg("%s", status.message);
}

/* ---- round trip -------------------------------------------------------------------------------------------------- */

TEST(round_trip_keeps_everything)
{
    for (int compress = 0; compress < 2; compress++) {
        open_sample(compress);
        if (!engine_verify_weights(&engine, 0, 1, &status)) fail_msg("%s", status.message);
        expect_content();
        assert_memory_equal(engine.weights, sample.weights, TEST_ENGINE_WEIGHTS);
        assert_int_equal((uintptr_t)engine.tokenizer % 8, 0);
        engine_close(&engine);
    }
}

TEST(optional_sections_may_be_absent)
{
    sample.manifest.has_tokenizer = false;
    sample.tactics[0] = '\0'; /* an empty section is left out */
    for (int i = 0; i < TEST_ENGINE_PLANS; i++)
        for (uint32_t launch = 0; launch < sample.plans[i].header.launch_count; launch++)
            sample.storage[i].launches[launch].tactic = PLAN_NO_TACTIC;
    struct engine_writer *writer = engine_writer_begin(path, &status);
    add_sections(writer, GOLDEN_SECTIONS | 1 << SECTION_TOKENIZER);
    add_weights(writer); /* last, this time */
    assert_true(engine_writer_commit(writer, &status));
    if (!engine_open(&engine, path, &status)) fail_msg("%s", status.message);
    assert_null(engine.tactics);
    assert_null(engine.tokenizer);
    assert_int_equal(engine.golden.token_count, 0);
    assert_int_equal(engine.golden_plans.case_count, 0);
    assert_memory_equal(engine.weights, sample.weights, TEST_ENGINE_WEIGHTS);
    engine_close(&engine);
}

TEST(same_calls_give_same_bytes)
{
    for (int compress = 0; compress < 2; compress++) {
        size_t first_size, second_size;
        uint8_t *first = written(compress, &first_size), *second = written(compress, &second_size);
        assert_true(first_size < MAX_TEST_FILE);
        assert_int_equal(first_size, second_size);
        assert_memory_equal(first, second, first_size);
        free(first);
        free(second);
    }
}

TEST(tensors_are_sorted_by_offset)
{
    size_t first_size, second_size;
    uint8_t *first = written(false, &first_size);
    struct engine_tensor last = sample.tensors[3];
    sample.tensors[3] = sample.tensors[0];
    sample.tensors[0] = last;
    struct engine_writer *writer = engine_writer_begin(other_path(), NULL);
    add_weights(writer);
    add_sections(writer, 0);
    assert_true(engine_writer_commit(writer, NULL));
    uint8_t *second = test_engine_read(other_path(), &second_size);
    assert_int_equal(first_size, second_size);
    assert_memory_equal(first, second, first_size);
    free(first);
    free(second);
    unlink(other_path());
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

/* The part that a message must name if the byte at this position is wrong. */
static const char *part_at(const uint8_t *bytes, size_t position, char *name, size_t name_size)
{
    struct engine_header header;
    memcpy(&header, bytes, sizeof header);
    if (position < header.header_bytes) return "header: ";
    const struct engine_section_entry *entries = (const void *)(bytes + sizeof header);
    for (uint32_t i = 0; i < header.section_count; i++) {
        bool padding = position < entries[i].offset;
        if (position >= entries[i].offset + entries[i].stored_bytes) continue;
        snprintf(name, name_size,
                 padding ? "padding before section '%s': " : "section '%s': ", engine_section_name(entries[i].type));
        return name;
    }
    return "no part";
}

TEST(every_bit_flip_is_refused)
{
    const size_t sparse = test_sanitized() ? 8 : 4; /* from bit to bit in sections, which have checksums */
    for (int compress = 0; compress < 2; compress++) {
        size_t size, refused = 0, of_header = 0, header = 0;
        uint8_t *bytes = written(compress, &size);
        assert_true(accepts(bytes, size));
        for (size_t position = 0; position < size; position++) {
            char name[64];
            const char *part = part_at(bytes, position, name, sizeof name);
            const bool is_header = part[0] == 'h';
            const size_t step = is_header && !test_sanitized() ? 1 : sparse;
            header += is_header;
            for (size_t bit = position % step; bit < 8; bit += step, refused++, of_header += is_header) {
                bytes[position] ^= (uint8_t)(1u << bit);
                if (accepts(bytes, size)) fail_msg("bit %zu of byte %zu flipped: accepted", bit, position);
                if (!strstr(status.message, part))
                    fail_msg("bit %zu of byte %zu: expected '%s', found '%s'", bit, position, part, status.message);
                bytes[position] ^= (uint8_t)(1u << bit);
            }
        }
        assert_true(header > 0 && refused >= 8 / sparse * size);
        assert_true(test_sanitized() || of_header == 8 * header);
        assert_true(accepts(bytes, size));
        free(bytes);
    }
}

TEST(every_truncation_is_refused)
{
    size_t size;
    uint8_t *bytes = written(false, &size);
    for (size_t length = 0; length < size; length++) {
        uint8_t *part = test_engine_copy(bytes, length);
        expect_refused(part, length, "header: ");
        free(part);
    }
    free(bytes);
}

TEST(appended_bytes_are_refused)
{
    size_t size;
    enum { MOST = 5000 };
    uint8_t *bytes = written(false, &size), *zeros = calloc(1, size + MOST);
    memcpy(zeros, bytes, size);
    for (size_t more = 1; more <= MOST; more += 1 + more / 3) {
        uint8_t *longer = test_engine_copy(zeros, size + more);
        expect_refused(longer, size + more, "header: expected a file of");
        free(longer);
    }
    free(zeros);
    free(bytes);
}

TEST(other_files_are_named)
{
    /* Static: a sanitizer may lay out a stack of its own with less alignment. */
    static _Alignas(64) uint8_t text[256] = "{\"tokenizer\": \"not an engine\"}";
    expect_refused(text, 31, "header: not an engine file: expected it to begin with \"\\x89ENG\", found \"{\"tokeni\"");
    expect_refused(text, 0, "header: the file is empty");
    test_expect_failure(engine_open(&engine, path, &status), &status, STATUS_NOT_FOUND, "");
    assert_non_null(strstr(status.message, path));
    test_expect_failure(engine_open_memory(&engine, text + 1, 31, "test", &status), &status, STATUS_USAGE, "");
}

/* ---- structure: one value changed, all checksums right again ----------------------------------------------------- */

#define HEADER(field, value, expected) FIELD(IN_FILE_HEADER, 0, engine_header, field, value, expected)
#define ENTRY(section, field, value, expected) \
    FIELD(IN_ENTRY + SECTION_##section, 0, engine_section_entry, field, value, expected)
#define TENSOR(index, field, value, expected)                                                                   \
    FIELD(SECTION_TENSORS, sizeof(struct engine_tensors_header) + (index) * sizeof(struct engine_tensor_entry), \
          engine_tensor_entry, field, value, "section 'tensors': " expected)
#define PLAN(index, field, value, expected)                                                                    \
    FIELD(SECTION_PLANS, TEST_PLANS_HEADERS + (index) * sizeof(struct plan_header), plan_header, field, value, \
          "section 'plans': " expected)
#define LAUNCH(field, value, expected)                                                                            \
    FIELD(SECTION_PLANS, TEST_PLANS_HEADERS + TEST_ENGINE_PLANS * sizeof(struct plan_header), plan_launch, field, \
          value, "section 'plans': plan 0 (decode, 1 rows): launch 0" expected)
static const struct edit edits[] = {
    HEADER(major, 3,
           "test: engine format 3.3 (written by engbuild 0.1.0-test) is too new for this runtime, which reads 2.x: use "
           "the runtime of that release"),
    HEADER(header_bytes, 127, "header: size of header and table: expected 128 to 4096 bytes, found 127"),
    HEADER(header_bytes, 4097, "header: size of header and table"),
    HEADER(header_bytes, 128, "header: size of header and table: expected 608, found 128"),
    HEADER(file_bytes, 1, "header: expected a file of 1 bytes"),
    HEADER(file_bytes, UINT64_MAX, "header: truncated: expected a file of"),
    HEADER(builder_version[0], 0, "header: the builder version is not"),
    HEADER(builder_version[0], 0xff, "header: the builder version is not"),
    HEADER(builder_version[31], 'x', "header: the builder version is not"),
    HEADER(builder_version[0], '9', "section 'manifest': builder version: expected '9.1.0-test' as in the header"),
    HEADER(section_count, 0, "header: section count: expected 1 to 32, found 0"),
    HEADER(section_count, 33, "header: section count"),
    HEADER(section_count, 8, "header: size of header and table: expected 512, found 608"),
    HEADER(entry_bytes, 56, "header: size of a table entry: expected 48, found 56"),
    HEADER(reserved[6], 1, "header: reserved field 6"),
    ENTRY(WEIGHTS, type, 99, "section table: entry 0: section 'unknown': needs a newer runtime"),
    ENTRY(WEIGHTS, flags, 0, "section table: entry 0: section 'weights': chunked checksum: expected the flag"),
    ENTRY(WEIGHTS, flags, 5, "section 'weights': is compressed"),
    ENTRY(WEIGHT_HASHES, flags, 1, "section 'weight hashes': is compressed"),
    ENTRY(PLANS, flags, 4, "section 'plans': chunked checksum: expected no flag"),
    ENTRY(PLANS, flags, 8, "section table: entry 4: section 'plans': needs a newer runtime"),
    ENTRY(PLANS, flags, 1, "section 'plans': the compressed data do not give"),
    ENTRY(WEIGHTS, offset, 8192, "section 'weights': offset: expected 4096 (the next aligned place), found 8192"),
    ENTRY(WEIGHTS, offset, 512, "section 'weights': offset: expected 4096"),
    ENTRY(MANIFEST, offset, 4096, "section 'manifest': offset: expected 12288"),
    ENTRY(GOLDEN, stored_bytes, 0, "section 'golden': stored size"),
    ENTRY(GOLDEN, stored_bytes, UINT64_MAX, "section 'golden': 18446744073709551615 bytes at offset"),
    ENTRY(GOLDEN_PLANS, stored_bytes, 4096, "section 'golden plans': 4096 bytes at offset"),
    ENTRY(WEIGHTS, stored_bytes, 5000, "section 'weights': raw size: expected the stored size 5000, found 2304"),
    ENTRY(WEIGHTS, stored_bytes, 2240, "section 'weights': raw size: expected the stored size 2240"),
    ENTRY(PLANS, raw_bytes, UINT64_MAX, "section 'plans': raw size: expected 1 to"),
    ENTRY(PLANS, raw_bytes, 0, "section 'plans': raw size: expected 1 to"),
    ENTRY(PLANS, reserved, 1, "section 'plans': a reserved field"),
    ENTRY(TOKENIZER, type, SECTION_GOLDEN, "entry 8: section 'golden' of type 10 appears twice"),
    ENTRY(PLANS, type, SECTION_SIGNATURE, "section 'signature': needs a newer runtime"),
    ENTRY(TOKENIZER, type, SECTION_SIGNATURE, "section 'manifest': says that there is a tokenizer, but there is none"),
    {SECTION_MANIFEST, 0, 1, '[', "section 'manifest': manifest: not valid JSON"},
    {SECTION_TENSORS, 0, 4, 0, "section 'tensors': expected the size for 0 tensors"},
    {SECTION_TENSORS, 0, 4, UINT32_MAX, "section 'tensors': expected the size for 4294967295 tensors"},
    {SECTION_TENSORS, 4, 4, UINT32_MAX, "section 'tensors': expected the size for 4 tensors and 4294967295 bytes"},
    {SECTION_TENSORS, 8 + 4 * 64 + 11, 1, 'x', "section 'tensors': tensor 0: the name is not a text of 11 bytes"},
    {SECTION_TENSORS, 8 + 4 * 64 + 3, 1, 0, "section 'tensors': tensor 0: the name is not a text of 11 bytes"},
    TENSOR(1, name_offset, 0, "tensor 1: name offset: expected 12, found 0"),
    TENSOR(1, name_bytes, 0, "tensor 1: the name is not a text of 0 bytes"),
    TENSOR(3, name_bytes, UINT32_MAX, "tensor 3: the name is not a text"),
    TENSOR(0, dtype, 0, "tensor 0: unknown encoding 0"),
    TENSOR(0, dtype, UINT32_MAX, "tensor 0: unknown encoding 4294967295"),
    TENSOR(0, dtype, DTYPE_F8_E4M3, "tensor 0: unknown encoding 4"),
    TENSOR(0, dtype, ENCODING_INT8_CHANNEL, "tensor 0: size: expected 320 bytes for its shape, found 1024"),
    TENSOR(0, dtype, DTYPE_F16, "tensor 0: size: expected 512 bytes for its shape, found 1024"),
    TENSOR(0, layout, 3, "tensor 0: unknown layout 3"),
    TENSOR(2, layout, LAYOUT_PANEL16, "tensor 2: rank: expected 2, found 1"),
    TENSOR(2, layout, LAYOUT_FRAGMENT16, "tensor 2: rank: expected 2, found 1"),
    TENSOR(0, rank, 0, "tensor 0: rank: expected 1 to 4, found 0"),
    TENSOR(0, rank, 5, "tensor 0: rank: expected 1 to 4, found 5"),
    TENSOR(0, rank, 3, "tensor 0: dimension 2 of 3"),
    TENSOR(0, rank, 1, "tensor 0: dimension 1 of 1"),
    TENSOR(0, shape[0], UINT64_MAX, "tensor 0: the product of its shape overflows"),
    TENSOR(1, shape[0], 17, "tensor 1: size: expected at least 1088 bytes"),
    TENSOR(0, bytes, 1028, "tensor 0: size: expected 1024 bytes for its shape, found 1028"),
    TENSOR(1, bytes, 1088, "tensor 2 'norm': offset: expected a multiple of 64 from 2112 on, found 2048"),
    TENSOR(1, bytes, UINT64_MAX, "tensor 1 'head': 18446744073709551615 bytes at 1024 leave the 2304"),
    TENSOR(3, offset, 2144, "tensor 3 'rope.inv_freq': offset: expected a multiple of 64"),
    TENSOR(3, offset, 0, "tensor 3 'rope.inv_freq': offset: expected a multiple of 64 from 2112 on, found 0"),
    TENSOR(3, offset, 2304, "tensor 3 'rope.inv_freq': 16 bytes at 2304 leave the 2304"),
    {SECTION_TACTICS, 0, 1, 'X', "section 'tactics': line 0 is not a tuning record"},
    {SECTION_TACTICS, 16, 1, '_', "section 'tactics': line 0 is not a tuning record"},
    {SECTION_TACTICS, 40, 1, 0, "section 'tactics': line 0 is not a tuning record"},
    {SECTION_TACTICS, 40, 1, '\n', "section 'tactics': line 0 is not a tuning record"},
    {SECTION_PLANS, 0, 4, 0, "section 'plans': header: 0 plans and 3 state fields"},
    {SECTION_PLANS, 0, 4, UINT32_MAX, "section 'plans': header: 4294967295 plans and 3 state fields"},
    {SECTION_PLANS, 0, 4, 2, "section 'plans': "},
    {SECTION_PLANS, 4, 4, 2, "section 'plans': the state space has 2 of its 3 fields"},
    {SECTION_PLANS, 8, 2, 0, "section 'plans': state field 0: id 0"},
    {SECTION_PLANS, 4, 4, UINT32_MAX, "section 'plans': header: 3 plans and 4294967295 state fields"},
    PLAN(0, kind, PLAN_PREFILL, "plan 0: expected decode of 1 row"),
    PLAN(0, rows, 2, "plan 0: step field of id 2: expected at least 8 bytes, found 4"),
    PLAN(0, out_rows, 0, "plan 0 (decode, 1 rows): out_rows"),
    PLAN(2, kind, 7, "plan 2 (?, 4 rows): kind"),
    PLAN(2, kind, PLAN_MIXED, "there is no prefill plan"),
    PLAN(0, launch_count, UINT32_MAX, "plan 0: leaves the section"),
    PLAN(2, param_count, UINT32_MAX, "plan 2: leaves the section"),
    PLAN(2, param_count, 0, "plan 2: step field 0: "),
    PLAN(0, field_count, 0, "plan 0: the step space has 0 of its 7 fields"),
    PLAN(0, step_bytes, 64, "plan 0: step field 1: 4 bytes at offset 64"),
    PLAN(0, arena_bytes, 1 << 20, "plan 0 (decode, 1 rows): needs 1048576 arena bytes"),
    LAUNCH(op, 0, " (?): unknown op 0"),
    LAUNCH(tactic, 2, ": tactic 2 of 2"),
    LAUNCH(kernel, 1, ": a field for device targets is not zero"),
    LAUNCH(grid[0], 1, ": a field for device targets is not zero"),
    LAUNCH(grid[1], 1, ": a field for device targets is not zero"),
    LAUNCH(grid[2], 1, ": a field for device targets is not zero"),
    LAUNCH(block[0], 1, ": a field for device targets is not zero"),
    LAUNCH(block[1], 1, ": a field for device targets is not zero"),
    LAUNCH(cluster[0], 1, ": a field for device targets is not zero"),
    LAUNCH(cluster[2], 1, ": a field for device targets is not zero"),
    LAUNCH(shared_bytes, 1, ": a field for device targets is not zero"),
    LAUNCH(attributes, 1, ": a field for device targets is not zero"),
};

TEST(every_structural_check_fires) { EXPECT_EDITS(edits, NULL); }

TEST(the_helper_and_the_writer_agree_on_checksums)
{
    size_t size;
    uint8_t *bytes = written(false, &size), *changed = test_engine_copy(bytes, size);
    engine_fix_checksums(changed, size);
    assert_memory_equal(changed, bytes, size);
    free(changed);
    free(bytes);
}

/* The nine dependencies of the first plan leave four bytes to the next multiple of eight. */
TEST(padding_of_plans_is_zero)
{
    uint64_t body_bytes;
    assert_true(engine_plan_body_bytes(&sample.plans[0].header, &body_bytes));
    const uint64_t bodies = TEST_PLANS_HEADERS + TEST_ENGINE_PLANS * sizeof(struct plan_header);
    const struct edit last[] = {
        {SECTION_PLANS, bodies + body_bytes - 1, 1, 1, "section 'plans': plan 0: padding is not zero"}};
    EXPECT_EDITS(last, NULL);
}

TEST(sections_must_agree)
{
    sample.manifest.has_tokenizer = false;
    expect_refused_and_renew("section 'manifest': says that there is no tokenizer, but there is one");
    sample.manifest.weights_bytes += 64;
    expect_refused_and_renew("section 'manifest': weights_bytes: expected 2304 as the weight section has, found 2368");
    sample.manifest.step_bytes += 64;
    expect_refused_and_renew(
        "section 'plans': the plans need 32768 arena and 576 step bytes, the manifest says 32768 and 640");
    sample.manifest.arena_bytes += 64;
    expect_refused_and_renew("section 'plans': the plans need 32768 arena");
    sample.tensors[1].name = "norm";
    expect_refused_and_renew("section 'tensors': the name 'norm' appears twice");
    sample.plans[2] = sample.plans[1];
    expect_refused_and_renew("section 'plans': plan 2: kind 1 of 2 rows must not follow kind 1 of 2 rows");
    struct plan plan = sample.plans[1];
    sample.plans[1] = sample.plans[2];
    sample.plans[2] = plan;
    expect_refused_and_renew("section 'plans': plan 2: kind 1 of 2 rows must not follow kind 2 of 4 rows");
    sample.plans[0] = sample.plans[1];
    expect_refused_and_renew("section 'plans': plan 0: expected decode of 1 row, found kind 1 of 2 rows");
    sample.plans[1].header.kind = PLAN_PREFILL;
    sample.plans[1].header.out_rows = 1;
    sample.plans[2].header.kind = PLAN_MIXED;
    expect_refused_and_renew(
        "section 'plans': a mixed plan of 4 rows: expected at most the 2 of the largest prefill plan");
    sample.plans[2].header.kind = PLAN_VERIFY;
    sample.plans[2].header.out_rows = 1;
    expect_refused_and_renew("section 'plans': plan 2 (verify, 4 rows): out_rows: expected 4, found 1");
}

TEST(slots_bound_the_decode_batch)
{
    sample.manifest.geometry.slots = 1;
    assert_true(geometry_place_state(&sample.manifest.geometry, &sample.manifest.state_bytes));
    /* The state space shrinks as well, which would be reported first if its operands were not moved. */
    for (int i = 0; i < TEST_ENGINE_PLANS; i++)
        for (uint32_t operand = 0; operand < sample.plans[i].header.operand_count; operand++)
            if (sample.storage[i].operands[operand].space == SPACE_STATE)
                sample.storage[i].operands[operand].offset = 0, sample.storage[i].operands[operand].bytes = 4;
    expect_refused_and_renew("section 'plans': plan 1 (decode, 2 rows): more rows than the engine's 1 slots");
}

/* A section of a later minor version is skipped unless it is marked as required. */
TEST(later_minor_versions_are_read)
{
    size_t size = 0;
    struct engine_writer *writer = engine_writer_begin(path, &status);
    assert_true(engine_writer_section(writer, (enum engine_section)77, "from the future", 15, false, &status));
    add_sections(writer, GOLDEN_SECTIONS);
    add_weights(writer);
    assert_true(engine_writer_commit(writer, &status));
    uint8_t *bytes = test_engine_read(path, &size);
    struct engine_header header;
    memcpy(&header, bytes, sizeof header);
    header.minor = 9;
    memcpy(bytes, &header, sizeof header);
    engine_fix_checksums(bytes, size);
    struct engine_section_entry *entry = test_engine_entry(bytes, size, 77);
    assert_non_null(entry);
    if (!accepts(bytes, size)) fail_msg("%s", status.message);
    entry->flags |= SECTION_FLAG_REQUIRED;
    expect_refused_repaired(bytes, size,
                            "section table: entry 0: section 'unknown': needs a newer runtime: expected what format "
                            "2.3 knows, found type 77 with flags 0x2 in format 2.9; use a runtime that reads 2.9");
    entry->flags = 0;
    engine_fix_checksums(bytes, size);
    bytes[entry->offset] ^= 1;
    expect_refused(bytes, size, "section 'unknown': checksum");
    free(bytes);
}

/* A file of an earlier major version: one sentence names file, version and builder, and says what to do. */
TEST(files_of_1_0_are_refused)
{
    static const char file[] = "formats/testdata/engine_1_0";
    test_expect_failure(engine_open(&engine, file, &status), &status, STATUS_VERSION, "");
    assert_string_equal(
        status.message,
        "formats/testdata/engine_1_0: engine format 1.0 (written by engbuild 0.1.0-test) is too old for "
        "this runtime, which reads 2.x: rebuild it with the engbuild of this release (engbuild --model "
        "CHECKPOINT -o FILE)");
}

TEST(compression_bombs_are_refused)
{
    size_t size;
    uint8_t *bytes = written(true, &size);
    struct engine_section_entry *entry = test_engine_entry(bytes, size, SECTION_MANIFEST);
    assert_true(entry->flags & SECTION_FLAG_ZLIB);
    uint64_t raw_bytes = entry->raw_bytes;
    entry->raw_bytes = (UINT64_C(1) << 16) + 1;
    expect_refused_repaired(bytes, size, "section 'manifest': raw size: expected 1 to 65536, found 65537");
    entry->raw_bytes = raw_bytes - 1;
    expect_refused_repaired(bytes, size, "section 'manifest': the compressed data do not give the stated");
    entry->raw_bytes = raw_bytes + 1;
    expect_refused_repaired(bytes, size, "section 'manifest': the compressed data do not give the stated");
    entry->raw_bytes = raw_bytes;
    bytes[entry->offset + 5] ^= 4;
    expect_refused_repaired(bytes, size, "section 'manifest': the compressed data do not give the stated");
    free(bytes);
}

/* ---- writer ------------------------------------------------------------------------------------------------------ */

static void fill(uint8_t *bytes, size_t size)
{
    uint64_t value = 88172645463325252u; /* xorshift64 */
    for (size_t i = 0; i < size; i++) {
        value ^= value << 13, value ^= value >> 7, value ^= value << 17;
        bytes[i] = (uint8_t)value;
    }
}

/* In pieces of this many chunks, from the last to the first if `backwards`. */
static void write_large(const char *to, const uint8_t *weights, size_t size, size_t chunks, bool backwards)
{
    sample.manifest.weights_bytes = size;
    struct engine_writer *writer = engine_writer_begin(to, &status);
    assert_true(engine_writer_weights_begin(writer, size, 1, &status));
    const uint8_t *view = NULL, *again = NULL;
    const size_t piece = chunks * ENGINE_WEIGHT_CHUNK_BYTES, pieces = (size + piece - 1) / piece;
    for (size_t i = 0; i < pieces; i++) {
        size_t at = (backwards ? pieces - 1 - i : i) * piece, bytes = size - at < piece ? size - at : piece;
        assert_false(engine_writer_weights_end(writer, &status));
        assert_true(engine_writer_weights_put(writer, at, weights + at, bytes, &status));
        if (i != pieces / 2) continue;
        /* In the middle: the bytes written so far can be read without disturbing the writer. */
        assert_true(engine_writer_map_weights(writer, &view, &status));
        assert_memory_equal(view + at, weights + at, bytes);
    }
    assert_true(engine_writer_weights_end(writer, &status));
    assert_true(engine_writer_map_weights(writer, &again, &status));
    assert_ptr_equal(view, again);
    assert_memory_equal(view, weights, size);
    add_sections(writer, GOLDEN_SECTIONS);
    if (!engine_writer_commit(writer, &status)) fail_msg("%s", status.message);
}

TEST(weights_do_not_depend_on_the_pieces)
{
    enum { SIZE = ENGINE_WEIGHT_LARGE_BYTES + 12345 };
    uint8_t *weights = malloc(SIZE);
    fill(weights, SIZE);
    write_large(path, weights, SIZE, 1, true);
    write_large(other_path(), weights, SIZE, 3, false);
    struct file_map first, second;
    assert_true(file_map_open(&first, path, NULL) && file_map_open(&second, other_path(), NULL));
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.data, second.data, first.size);
    file_map_close(&first);
    file_map_close(&second);

    if (!engine_open(&engine, path, &status)) fail_msg("%s", status.message);
    assert_int_equal(engine.weights - engine.bytes, ENGINE_WEIGHT_ALIGNMENT_LARGE);
    assert_int_equal(engine.weight_chunks, 9);
    assert_memory_equal(engine.weights, weights, SIZE);
    assert_true(engine_verify_weights(&engine, 0, 9, &status));
    assert_true(engine_verify_weights(&engine, 8, 1, &status));
    assert_true(engine_verify_weights(&engine, 9, 0, &status));
    test_expect_failure(engine_verify_weights(&engine, 8, 2, &status), &status, STATUS_USAGE, "");
    assert_false(engine_verify_weights(&engine, 1, UINT64_MAX, &status));
    engine_close(&engine);

    /* Damage in the last chunk: opening does not detect it, verifying names the chunk. */
    FILE *file = fopen(path, "r+b");
    assert_int_equal(fseek(file, ENGINE_WEIGHT_ALIGNMENT_LARGE + SIZE - 1, SEEK_SET), 0);
    fputc(weights[SIZE - 1] ^ 1, file);
    fclose(file);
    assert_true(engine_open(&engine, path, &status));
    assert_true(engine_verify_weights(&engine, 0, 8, &status));
    test_expect_failure(engine_verify_weights(&engine, 8, 1, &status), &status, STATUS_CORRUPT,
                        "section 'weights': chunk 8 of 9 (12345 bytes at 33554432): checksum");
    engine_close(&engine);
    free(weights);
    unlink(other_path());
}

TEST(misuse_is_an_internal_error)
{
    const uint8_t *view;
    struct engine_writer *writer = engine_writer_begin(path, &status);
    assert_false(engine_writer_weights_put(writer, 0, "x", 1, &status));
    assert_false(engine_writer_weights_end(writer, &status));
    assert_false(engine_writer_map_weights(writer, &view, &status));
    assert_false(engine_writer_weights_begin(writer, 0, 1, &status));
    assert_true(engine_writer_weights_begin(writer, 100, 1, &status));
    assert_false(engine_writer_weights_begin(writer, 100, 1, &status));
    assert_false(engine_writer_section(writer, SECTION_TOKENIZER, "x", 1, false, &status));
    assert_false(engine_writer_weights_put(writer, 0, sample.weights, 101, &status));
    assert_false(engine_writer_weights_put(writer, UINT64_MAX, sample.weights, 100, &status));
    assert_false(engine_writer_weights_put(writer, 0, sample.weights, 99, &status)); /* a part of a chunk */
    assert_false(engine_writer_weights_put(writer, 1, sample.weights, 99, &status));
    assert_false(engine_writer_weights_end(writer, &status));
    assert_true(engine_writer_weights_put(writer, 0, sample.weights, 100, &status));
    assert_false(engine_writer_weights_put(writer, 0, sample.weights, 100, &status)); /* twice */
    assert_true(engine_writer_weights_end(writer, &status));
    assert_false(engine_writer_section(writer, SECTION_WEIGHTS, "x", 1, false, &status));
    test_expect_failure(engine_writer_section(writer, SECTION_WEIGHT_HASHES, "x", 1, false, &status), &status,
                        STATUS_INTERNAL, "");
    test_expect_failure(engine_writer_section(writer, SECTION_MANIFEST, "{}", 2, false, &status), &status,
                        STATUS_BAD_INPUT, "");
    assert_false(engine_writer_commit(writer, &status)); /* no manifest */
    assert_int_not_equal(access(path, F_OK), 0);
    engine_writer_abandon(NULL);
    assert_null(engine_writer_begin("/nonexistent/folder/a.eng", &status));
    assert_int_equal(status.code, STATUS_NOT_FOUND);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A writer killed at any moment leaves no engine or a whole one; an older engine stays until then. */
TEST(a_killed_writer_leaves_all_or_nothing)
{
    enum { ROUNDS = 60 };
    double start = seconds();
    assert_true(test_engine_write(&sample, other_path(), true, &status));
    double whole = seconds() - start;
    int found = 0;
    srand(7);
    for (int round = 0; round < ROUNDS; round++) {
        bool replaces = round % 2;
        unlink(path);
        if (replaces) assert_int_equal(link(other_path(), path), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) _exit(test_engine_write(&sample, path, true, &status) ? 0 : 1);
        usleep((useconds_t)(2e6 * whole * rand() / RAND_MAX));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        if (access(path, F_OK) == 0) {
            found++;
            if (!engine_open(&engine, path, &status)) fail_msg("round %d: %s", round, status.message);
            assert_true(engine_verify_weights(&engine, 0, 1, &status));
            expect_content();
            assert_memory_equal(engine.weights, sample.weights, TEST_ENGINE_WEIGHTS);
            engine_close(&engine);
        } else {
            assert_false(replaces);
        }
    }
    assert_true(found >= ROUNDS / 2);
    /* If the file system has no unnamed files, a kill may leave a temporary one: hidden, and never opened. */
    unlink(other_path());
    const char *command = test_text("rm -f %s/.*.tmp", folder);
    assert_int_equal(system(command), 0);
}

int main(void) { return test_run_with(setup, NULL, remove_file, remove_folder); }
