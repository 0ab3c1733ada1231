/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of several ranks: the use of the COMM space by plans, and the regions of the weights. */

#define TEST_ENGINE_MAKE test_engine_make_ranks
#include "formats/engine/test_engine_frame.h"

#include "formats/engine/engine_verify.h"

enum { HEADER_BYTES = sizeof(struct comm_header), BLOCK = TEST_ENGINE_EXCHANGE };
enum { FIRST = 256, SECOND = FIRST + BLOCK, THIRD = SECOND + BLOCK, END = THIRD + BLOCK }; /* offsets of buffers */
enum { HEADER = 2, BUFFER = 3, EMBED_HEADER = 4 };                                         /* operands */

static bool is_collective(unsigned op) { return op == OP_ALL_REDUCE || op == OP_ALL_GATHER; }

/* The n-th collective of a plan. */
static struct plan_launch *collective(size_t plan, int n)
{
    for (uint32_t i = 0; i < sample.plans[plan].header.launch_count; i++) {
        struct plan_launch *launch = &sample.storage[plan].launches[i];
        if (is_collective(launch->op) && n-- == 0) return launch;
    }
    fail_msg("plan %zu has too few collectives", plan);
    return NULL;
}

static struct plan_operand *operand_of(size_t plan, const struct plan_launch *launch, uint32_t index)
{
    assert_true(index < launch->operand_count);
    return &sample.storage[plan].operands[launch->first_operand + index];
}

static struct plan_operand *buffer_of(size_t plan, int n) { return operand_of(plan, collective(plan, n), BUFFER); }

static void move(struct plan_operand *operand, uint64_t offset, uint64_t bytes)
{
    assert_int_equal(operand->space, SPACE_COMM);
    operand->offset = offset;
    operand->bytes = bytes;
}

/* ---- valid plans ------------------------------------------------------------------------------------------------ */

TEST(ranks_are_accepted)
{
    for (int compress = 0; compress < 2; compress++) {
        open_sample(compress);
        assert_int_equal(engine.manifest.geometry.ranks, TEST_ENGINE_RANKS);
        assert_int_equal(engine.manifest.comm_bytes, END);
        assert_int_equal(engine.weight_chunks, TEST_ENGINE_RANKS);
        assert_true(engine_verify_weights(&engine, 0, engine.weight_chunks, &status));
        uint64_t region = manifest_rank_weights(&engine.manifest);
        assert_int_equal(region, TEST_ENGINE_REGION);
        for (int rank = 0; rank < TEST_ENGINE_RANKS; rank++)
            for (size_t i = 0; i < engine.tensor_count; i++) {
                const struct engine_tensor *tensor = &engine.tensors[i];
                assert_memory_equal(engine.weights + (uint64_t)rank * region + tensor->offset,
                                    sample.weights + tensor->offset, tensor->bytes);
            }
        assert_int_equal(engine.plan_count, TEST_ENGINE_PLANS);
        int collectives[TEST_ENGINE_PLANS] = {0};
        for (size_t p = 0; p < engine.plan_count; p++) {
            assert_true(test_engine_same_plan(&engine.plans[p], &sample.plans[p]));
            for (uint32_t i = 0; i < engine.plans[p].header.launch_count; i++)
                collectives[p] += is_collective(engine.plans[p].launches[i].op);
        }
        assert_int_equal(collectives[0], 3);
        assert_int_equal(collectives[1], 2);
        assert_int_equal(collectives[2], 2);
        engine_close(&engine);
    }
}

/* Buffers may touch, and be as large as the space allows. */
TEST(tight_buffers_are_accepted)
{
    move(buffer_of(0, 0), HEADER_BYTES, SECOND - HEADER_BYTES);
    move(buffer_of(0, 1), SECOND, BLOCK);
    move(buffer_of(0, 2), THIRD, END - THIRD);
    move(buffer_of(1, 1), SECOND, END - SECOND);
    move(buffer_of(2, 1), SECOND, 64);
    expect_sample_accepted();
}

/* Collectives that cannot follow each other may share a place. */
TEST(turns_are_accepted)
{
    struct plan_operand *middle = buffer_of(0, 1);
    move(middle, SECOND, BLOCK); /* where the other plans end */
    expect_sample_accepted();
    move(buffer_of(0, 0), FIRST, 64);
    move(middle, FIRST + 64, 2 * BLOCK - 64); /* where other plans begin and end */
    expect_sample_accepted();
}

/* Parts of messages. */
#define NEITHER                            "expected the header of the COMM space or a buffer after it, found "
#define COUNTS(headers, buffers)           #headers " headers and " #buffers " buffers of the COMM space, expected "
#define PAIR(headers, buffers)             COUNTS(headers, buffers) "one of each"
#define AT_MOST_A_HEADER(headers, buffers) COUNTS(headers, buffers) "at most a header"

/* ---- operands ---------------------------------------------------------------------------------------------------- */

TEST(operands_of_collectives_are_checked)
{
    static const struct {
        uint32_t operand;
        uint64_t offset, bytes;
        const char *expected;
    } cases[] = {
        {HEADER, 0, HEADER_BYTES - 64, "operand 2: " NEITHER "128 bytes at offset 0"},
        {HEADER, 0, HEADER_BYTES + 64, "operand 2: " NEITHER "256 bytes at offset 0"},
        {HEADER, 64, HEADER_BYTES, "operand 2: " NEITHER "192 bytes at offset 64"},
        {HEADER, HEADER_BYTES, HEADER_BYTES, PAIR(0, 2)},
        {HEADER, THIRD, BLOCK, PAIR(0, 2)},
        {BUFFER, 0, HEADER_BYTES, PAIR(2, 0)},
        {BUFFER, 0, 64, "operand 3: " NEITHER "64 bytes at offset 0"},
        {BUFFER, 0, END, "operand 3: " NEITHER "1024 bytes at offset 0"},
        {BUFFER, HEADER_BYTES - 64, BLOCK, "operand 3: " NEITHER "256 bytes at offset 128"},
        {BUFFER, END, 64, "of space 'comm'"},
        {BUFFER, END - 64, 65, "do not lie in the 1024 bytes of space 'comm'"},
        {BUFFER, FIRST, UINT64_MAX, "of space 'comm'"},
        {BUFFER, UINT64_MAX - 63, 64, "of space 'comm'"},
        {BUFFER, UINT64_MAX - 63, 128, "of space 'comm'"},
        {HEADER, 0, END + 64, "of space 'comm'"},
        {BUFFER, FIRST + 8, 64, "multiple of 64"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t plan = 0; plan < TEST_ENGINE_PLANS; plan++)
            for (int n = 0; n < 2; n++) {
                assert_int_equal(make_sample(NULL), 0);
                move(operand_of(plan, collective(plan, n), cases[i].operand), cases[i].offset, cases[i].bytes);
                expect_sample_refused(cases[i].expected);
            }
}

/* An operand that exists, but not in the COMM space. */
TEST(missing_operands_are_refused)
{
    for (size_t plan = 0; plan < TEST_ENGINE_PLANS; plan++)
        for (uint32_t operand = HEADER; operand <= BUFFER; operand++) {
            assert_int_equal(make_sample(NULL), 0);
            struct plan_launch *launch = collective(plan, 1);
            operand_of(plan, launch, operand)->space = SPACE_ARENA;
            const char *expected = test_text(
                "collectives: section 'plans': plan %zu: launch %d: %d headers and %d buffers of the COMM space, "
                "expected one of each",
                plan, (int)(launch - sample.storage[plan].launches), operand == BUFFER, operand == HEADER);
            expect_sample_refused(expected);
        }
    assert_int_equal(make_sample(NULL), 0);
    collective(1, 0)->operand_count = 2; /* the others belong to no launch */
    expect_sample_refused("collectives: section 'plans': plan 1: launch 1: " PAIR(0, 0));
}

/* An op that is no collective may only read the header. */
TEST(others_leave_buffers_alone)
{
    struct plan_launch *embed = test_engine_launch(&sample, 2, OP_EMBED);
    struct plan_operand *operand = operand_of(2, embed, EMBED_HEADER);
    move(operand, THIRD, BLOCK);
    expect_sample_refused("collectives: section 'plans': plan 2: launch 0: " AT_MOST_A_HEADER(0, 1));
    move(operand, HEADER_BYTES, 64);
    expect_sample_refused("collectives: section 'plans': plan 2: launch 0: " AT_MOST_A_HEADER(0, 1));
    move(operand, 64, 128);
    expect_refused_and_renew("operand 4: " NEITHER "128 bytes at offset 64");
    struct plan_operand *norm = operand_of(0, test_engine_launch(&sample, 0, OP_RMS_NORM), 3);
    *norm = (struct plan_operand){.space = SPACE_COMM, .access = ACCESS_WRITE, .offset = THIRD, .bytes = 64};
    expect_refused_and_renew(AT_MOST_A_HEADER(0, 1));
    embed = test_engine_launch(&sample, 1, OP_EMBED);
    *operand_of(1, embed, EMBED_HEADER - 1) = *operand_of(1, embed, EMBED_HEADER);
    expect_sample_refused("collectives: section 'plans': plan 1: launch 0: " AT_MOST_A_HEADER(2, 0));
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

TEST(neighbours_must_not_overlap)
{
    static const struct {
        int changed;
        uint64_t offset, bytes;
        int named; /* which of the plan's collectives the message names */
    } cases[] = {
        {0, FIRST, BLOCK + 1, 1},                                            /* from the previous into the next */
        {1, SECOND, BLOCK + 1, 2}, {1, FIRST, 64, 1},                        /* the same place */
        {1, FIRST - 64, 65, 1},    {1, HEADER_BYTES, END - HEADER_BYTES, 1}, /* all around it */
        {2, SECOND, 64, 2},        {2, SECOND + BLOCK - 64, 128, 2},
        {2, SECOND, 1, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(make_sample(NULL), 0);
        move(buffer_of(0, 1), SECOND, BLOCK);
        move(buffer_of(0, cases[i].changed), cases[i].offset, cases[i].bytes);
        const char *expected = test_text(
            "collectives: section 'plans': plan 0: launch %d: its buffer overlaps that of the collective before it",
            (int)(collective(0, cases[i].named) - sample.storage[0].launches));
        expect_sample_refused(expected);
    }
}

/* The end of any plan and the start of any other, also of another size. */
TEST(a_plan_must_not_begin_where_another_ends)
{
    /* The first plan's three collectives use two places: it ends where it begins, and no other plan does. */
    move(buffer_of(0, 2), FIRST, 64);
    expect_sample_refused(
        "collectives: the buffer of a plan's last collective (from byte 256 of the COMM space) overlaps that "
        "of a plan's first one (to byte 512)");
    for (size_t ends = 0; ends < TEST_ENGINE_PLANS; ends++)
        for (size_t begins = 0; begins < TEST_ENGINE_PLANS; begins++) {
            if (ends == begins) continue;
            assert_int_equal(make_sample(NULL), 0);
            /* All buffers are small, so that only these two overlap, by one byte. */
            for (size_t plan = 0; plan < TEST_ENGINE_PLANS; plan++) move(buffer_of(plan, 0), FIRST, 64);
            move(buffer_of(begins, 0), FIRST, 129);
            if (ends == 0) move(buffer_of(0, 1), THIRD, 64);
            move(buffer_of(ends, ends == 0 ? 2 : 1), FIRST + 128, 64);
            expect_sample_refused(
                "collectives: the buffer of a plan's last collective (from byte 384 of the COMM space) "
                "overlaps that of a plan's first one (to byte 385)");
            move(buffer_of(begins, 0), FIRST, 128);
            expect_sample_accepted();
        }
}

/* One collective is the first and the last: the next replay would overwrite what a slower rank still reads. */
TEST(one_collective_is_none_too_few)
{
    struct plan_launch *gather = collective(1, 1);
    /* Turned into an add: its operands except counts are in the arena. */
    gather->op = OP_ADD;
    for (uint32_t i = 1; i < gather->operand_count; i++) operand_of(1, gather, i)->space = SPACE_ARENA;
    move(buffer_of(1, 0), FIRST, 64);
    expect_sample_refused(
        "collectives: the buffer of a plan's last collective (from byte 256 of the COMM space) overlaps");
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* No tensor extends from a rank's region into the next. */
TEST(regions_bound_operands_and_tensors)
{
    struct plan_operand *table = operand_of(0, test_engine_launch(&sample, 0, OP_EMBED), 2);
    assert_int_equal(table->space, SPACE_WEIGHTS);
    table->offset = TEST_ENGINE_REGION - 64;
    table->bytes = 64;
    expect_sample_accepted();
    table->bytes = 65;
    expect_sample_refused("do not lie in the 4096 bytes of space 'weights'");
    table->offset = TEST_ENGINE_REGION;
    table->bytes = 64;
    expect_sample_refused("do not lie in the 4096 bytes of space 'weights'");
#define LAST_TENSOR(offset_, expected)                                                                           \
    FIELD(SECTION_TENSORS,                                                                                       \
          sizeof(struct engine_tensors_header) + (TEST_ENGINE_TENSORS - 1) * sizeof(struct engine_tensor_entry), \
          engine_tensor_entry, offset, offset_, expected)
    static const struct edit tensors[] = {
        LAST_TENSOR(TEST_ENGINE_REGION - 64, NULL),
        LAST_TENSOR(TEST_ENGINE_REGION, "16 bytes at 4096 leave the 4096 bytes of weights"),
    };
    EXPECT_EDITS(tensors, NULL);
}

/* ---- the check by itself: what no file can hold, and any arrangement of buffers ---------------------------------- */

enum { MOST_COLLECTIVES = 4, MOST_PLANS = 3 };

/* A plan of collectives only. */
struct small_plan {
    struct plan_launch launches[MOST_COLLECTIVES];
    struct plan_operand operands[2 * MOST_COLLECTIVES];
};

static struct plan make_small(struct small_plan *small, int count)
{
    struct plan plan = {.header = {.launch_count = (uint32_t)count, .operand_count = 2 * (uint32_t)count},
                        .launches = small->launches,
                        .operands = small->operands};
    for (int i = 0; i < count; i++) {
        small->launches[i] = (struct plan_launch){.op = (uint16_t)(i % 2 ? OP_ALL_GATHER : OP_ALL_REDUCE),
                                                  .operand_count = 2,
                                                  .first_operand = 2 * (uint32_t)i};
        small->operands[2 * i] = (struct plan_operand){.space = SPACE_COMM, .bytes = HEADER_BYTES};
        small->operands[2 * i + 1] =
            (struct plan_operand){.space = SPACE_COMM, .offset = HEADER_BYTES + (uint64_t)i * 64, .bytes = 64};
    }
    return plan;
}

TEST(one_rank_has_no_collectives)
{
    for (uint64_t ranks = 0; ranks <= 1; ranks++)
        for (int with_operands = 0; with_operands < 2; with_operands++) {
            struct small_plan small;
            struct plan plan = make_small(&small, 1);
            if (!with_operands) small.launches[0].operand_count = 0;
            struct engine bare = {.manifest.geometry.ranks = ranks, .plans = &plan, .plan_count = 1};
            test_expect_failure(engine_verify_exchange(&bare, &status), &status, STATUS_CORRUPT, "");
            assert_string_equal(status.message, "section 'plans': plan 0: launch 0: a collective of one rank");
        }
    /* In a file such an operand is outside its space, which has size 0. */
    if (!test_engine_make(&sample, &status)) fail_msg("%s", status.message);
    struct plan_launch *add = test_engine_launch(&sample, 0, OP_ADD);
    *operand_of(0, add, 1) = (struct plan_operand){.space = SPACE_COMM, .access = ACCESS_READ, .bytes = HEADER_BYTES};
    expect_sample_refused("do not lie in the 0 bytes of space 'comm'");
}

/* A library plan replaces the engine's own: it precedes and follows the same plans. */
TEST(library_plans_count)
{
    struct small_plan storage[2], library_storage;
    struct plan plans[2] = {make_small(&storage[0], 2), make_small(&storage[1], 2)};
    struct plan library[2] = {{.header = {.launch_count = 0}}, make_small(&library_storage, 2)};
    struct engine bare = {.manifest.geometry.ranks = 2, .plans = plans, .plan_count = 2, .library_plans = library};
    if (!engine_verify_exchange(&bare, &status)) fail_msg("%s", status.message);

    library_storage.operands[3].offset = HEADER_BYTES;
    assert_false(engine_verify_exchange(&bare, &status));
    assert_string_equal(
        status.message,
        "section 'library plans': plan 1: launch 1: its buffer overlaps that of the collective before it");
    library_storage.operands[1].offset = HEADER_BYTES + 64;
    assert_false(engine_verify_exchange(&bare, &status)); /* begins where the others end */
    assert_non_null(strstr(status.message, "overlaps that of a plan's first one"));
    library_storage.operands[1].space = SPACE_ARENA;
    assert_false(engine_verify_exchange(&bare, &status));
    assert_string_equal(
        status.message,
        "section 'library plans': plan 1: launch 0: 1 headers and 0 buffers of the COMM space, expected one of each");
    library[1].header.launch_count = 0; /* no plan replaces it */
    assert_true(engine_verify_exchange(&bare, &status));
}

static bool overlap(const struct plan_operand *a, const struct plan_operand *b)
{
    return a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* Random buffers: none is accepted with which a rank could overwrite data that a slower one reads, in any sequence of
 * plans; all are accepted in which every buffer ends after the start of any. */
TEST(no_order_of_plans_lets_buffers_meet)
{
    uint64_t random = 12345;
    int accepted = 0, refused = 0;
    for (int round = 0; round < 200000; round++) {
        struct small_plan storage[MOST_PLANS];
        struct plan plans[MOST_PLANS];
        int counts[MOST_PLANS], plan_count = 1 + round % MOST_PLANS;
        for (int p = 0; p < plan_count; p++) {
            test_random(&random);
            counts[p] = (int)(random >> 33) % (MOST_COLLECTIVES + 1);
            plans[p] = make_small(&storage[p], counts[p]);
            for (int i = 0; i < counts[p]; i++) {
                test_random(&random);
                storage[p].operands[2 * i + 1].offset = HEADER_BYTES + 64 * (random >> 33 & 7);
                storage[p].operands[2 * i + 1].bytes = 64 * (1 + (random >> 40 & 1));
            }
        }
        bool meet = false, behind = true;
        for (int p = 0; p < plan_count; p++) {
            for (int i = 1; i < counts[p]; i++)
                meet |= overlap(&storage[p].operands[2 * i - 1], &storage[p].operands[2 * i + 1]);
            for (int q = 0; q < plan_count; q++) {
                if (!counts[p] || !counts[q]) continue;
                const struct plan_operand *last = &storage[p].operands[2 * counts[p] - 1];
                const struct plan_operand *first = &storage[q].operands[1];
                meet |= overlap(last, first);
                behind &= last->offset >= first->offset + first->bytes;
            }
        }
        struct engine bare = {.manifest.geometry.ranks = 2, .plans = plans, .plan_count = (size_t)plan_count};
        bool good = engine_verify_exchange(&bare, &status);
        if (good && meet) fail_msg("round %d: accepted, though buffers meet", round);
        if (!good && !meet && behind) fail_msg("round %d: refused for nothing: %s", round, status.message);
        accepted += good;
        refused += !good;
    }
    assert_true(accepted > 5000 && refused > 5000);
}

/* Random bytes in plans: everything in an engine that opens can be read, and stays inside the space that the manifest
 * states. */
TEST(broken_plans_are_harmless)
{
    size_t size;
    uint8_t *bytes = written(false, &size);
    const struct engine_section_entry *section = test_engine_entry(bytes, size, SECTION_PLANS);
    assert_non_null(section);
    assert_int_equal(section->flags & SECTION_FLAG_ZLIB, 0);
    uint8_t *plans = bytes + section->offset;
    uint8_t *good = test_engine_copy(plans, section->stored_bytes);
    uint64_t random = 99;
    int opened = 0;
    for (int round = 0; round < 400; round++) {
        test_random(&random);
        uint64_t at = (random >> 30) % section->stored_bytes;
        plans[at] = (uint8_t)(random >> 20 & 1 ? plans[at] ^ 1u << (random >> 50 & 7) : random >> 55);
        engine_fix_checksums(bytes, size);
        if (engine_open_memory(&engine, bytes, size, "test", &status)) {
            test_engine_touch(&engine);
            for (size_t p = 0; p < engine.plan_count; p++)
                for (uint32_t i = 0; i < engine.plans[p].header.operand_count; i++) {
                    const struct plan_operand *operand = &engine.plans[p].operands[i];
                    if (operand->space == SPACE_COMM) assert_true(operand->offset + operand->bytes <= END);
                }
            engine_close(&engine);
            opened++;
        } else {
            assert_true(status.code != STATUS_OK && status.message[0]);
        }
        memcpy(plans, good, section->stored_bytes);
    }
    assert_true(opened > 20 && opened < 380);
    free(good);
    free(bytes);
}

int main(void) { return test_run_with(setup, make_sample, remove_file, remove_folder); }
