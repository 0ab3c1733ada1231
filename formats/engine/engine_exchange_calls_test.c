/* SPDX-License-Identifier: Apache-2.0 */
/* Engines of several ranks whose plans exchange data by library calls: the use of the COMM space, the allowed
 * libraries, and ranks in different processes. */

#define TEST_ENGINE_MAKE test_engine_make_library
#include "formats/engine/test_engine_frame.h"

#include "formats/engine/engine_verify.h"

enum { HEADER_BYTES = sizeof(struct comm_header), BLOCK = 64, MOST_LAUNCHES = 8 };

/* A plan of launches with two operands each. */
struct small_plan {
    struct plan plan;
    struct plan_launch launches[MOST_LAUNCHES];
    struct plan_operand operands[2 * MOST_LAUNCHES];
};

/* A letter for each launch: r, g: our own all_reduce and all_gather, the n-th of them with buffer n; R, G: the same by
 * a library; a: an add. */
static void make(struct small_plan *small, const char *launches)
{
    const size_t count = strlen(launches);
    uint64_t buffers = 0;
    assert_true(count <= MOST_LAUNCHES);
    *small =
        (struct small_plan){.plan = {.header = {.launch_count = (uint32_t)count, .operand_count = 2 * (uint32_t)count},
                                     .launches = small->launches,
                                     .operands = small->operands}};
    for (size_t i = 0; i < count; i++) {
        const char letter = launches[i];
        const bool own = letter == 'r' || letter == 'g', library = letter == 'R' || letter == 'G';
        struct plan_operand *operands = &small->operands[2 * i];
        small->launches[i] = (struct plan_launch){.op = letter == 'r' || letter == 'R'   ? OP_ALL_REDUCE
                                                        : letter == 'g' || letter == 'G' ? OP_ALL_GATHER
                                                                                         : OP_ADD,
                                                  .operand_count = 2,
                                                  .first_operand = 2 * (uint32_t)i,
                                                  .attributes = library ? LAUNCH_LIBRARY : 0};
        operands[0] = operands[1] = (struct plan_operand){.space = SPACE_ARENA, .bytes = BLOCK};
        if (!own) continue;
        operands[0] = (struct plan_operand){.space = SPACE_COMM, .bytes = HEADER_BYTES};
        operands[1] =
            (struct plan_operand){.space = SPACE_COMM, .offset = HEADER_BYTES + BLOCK * buffers++, .bytes = BLOCK};
    }
}

static struct small_plan own, library; /* of the current test */

/* An engine with a plan and a library plan that replaces it. */
static bool verify(const struct small_plan *plan, const struct small_plan *twin, uint64_t ranks)
{
    const struct engine_call call = {.library = LIBRARY_NCCL, .version = 1};
    struct plan copy = plan->plan, library_copy = twin ? twin->plan : plan->plan;
    const struct engine bare = {.manifest.geometry.ranks = ranks,
                                .plans = &copy,
                                .plan_count = 1,
                                .calls = (struct engine_call *)&call,
                                .call_count = twin && ranks > 1,
                                .library_plans = twin ? &library_copy : NULL};
    status_clear(&status);
    bool ok = engine_verify_exchange(&bare, &status);
    assert_int_equal(ok, status.code == STATUS_OK);
    return ok;
}

static void expect_good(void)
{
    make(&own, "rg");
    if (!verify(&own, &library, 2)) fail_msg("%s", status.message);
}

static void expect_bad(const char *expected)
{
    make(&own, "rg");
    test_expect_failure(verify(&own, &library, 2), &status, STATUS_CORRUPT, expected);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

TEST(library_collectives_have_no_buffer)
{
    static const char *const good[] = {"R", "G", "aRaRaG", "rRg", "RrGgG", "arRag"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        make(&library, good[i]);
        expect_good();
    }
}

TEST(operands_in_the_comm_space_are_refused)
{
    static const struct plan_operand header = {.space = SPACE_COMM, .bytes = HEADER_BYTES};
    static const struct plan_operand buffer = {.space = SPACE_COMM, .offset = HEADER_BYTES + 512, .bytes = BLOCK};
    for (int n = 0; n < 2 * 2; n++) { /* either operand of both ops */
        const int launch = n / 2 ? 3 : 1;
        struct plan_operand *operands = &library.operands[2 * launch];
        char expected[160];
        make(&library, "rRaGg");
        operands[n % 2] = header;
        snprintf(expected, sizeof expected,
                 "section 'library plans': plan 0: launch %d: a library call with the header of the COMM space",
                 launch);
        expect_bad(expected);
        operands[1 - n % 2] = buffer; /* as for a collective of our own */
        expect_bad(expected);
        operands[n % 2] = (struct plan_operand){.space = SPACE_ARENA};
        snprintf(expected, sizeof expected,
                 "section 'library plans': plan 0: launch %d: 0 headers and 1 buffers of the COMM space, expected at "
                 "most a header",
                 launch);
        expect_bad(expected);
        operands[1 - n % 2].offset = 64;
        expect_bad("expected the header of the COMM space or a buffer after it, found 64 bytes at offset 64");
    }
    /* Any other op may read the header, as our kernel or a library call. */
    make(&library, "Ra");
    library.operands[2] = header;
    expect_good();
    library.launches[1].attributes = LAUNCH_LIBRARY;
    expect_good();
}

TEST(one_rank_has_no_collectives)
{
    for (uint64_t ranks = 0; ranks <= 1; ranks++) {
        make(&own, "a");
        make(&library, "aR");
        assert_false(verify(&own, &library, ranks));
        assert_string_equal(status.message, "section 'library plans': plan 0: launch 1: a collective of one rank");
    }
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Library calls between two collectives of ours need not keep ranks together: NCCL's may end on one rank earlier. */
TEST(buffers_count_across_library_collectives)
{
    static const char *const plans[] = {"rRg", "RrGg", "raRGagR"};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
        make(&library, plans[i]);
        expect_good();
        const int second = (int)(strchr(plans[i], 'g') - plans[i]);
        struct plan_operand *buffer = &library.operands[2 * second + 1];
        const char *expected = test_text(
            "section 'library plans': plan 0: launch %d: its buffer overlaps that of the collective before it", second);
        buffer->offset = HEADER_BYTES; /* buffer of the first one */
        expect_bad(expected);
        buffer->offset = HEADER_BYTES + BLOCK;
        library.operands[2 * (strchr(plans[i], 'r') - plans[i]) + 1].bytes++;
        expect_bad(expected);
    }
}

/* Our own first and last collectives count, with any calls around them. */
TEST(ends_of_plans_count)
{
    static const char message[] = "overlaps that of a plan's first one (to byte ";
    make(&library, "RgG"); /* begins where it ends */
    expect_bad(message);
    make(&library, "RrgG");
    expect_good();
    library.operands[3].offset = HEADER_BYTES + BLOCK, library.operands[5].offset = HEADER_BYTES;
    expect_bad(message); /* ends where the own plan begins */
    library.operands[5].offset = HEADER_BYTES + 3 * BLOCK;
    expect_bad(message); /* begins where the own plan ends */
}

/* Random plans: library calls in between do not change whether they are accepted. */
TEST(library_collectives_change_nothing)
{
    uint64_t random = 4321;
    int verdicts[2] = {0, 0};
    for (int round = 0; round < 50000; round++) {
        char without[MOST_LAUNCHES + 1] = "", with[MOST_LAUNCHES + 1] = "";
        struct small_plan plans[2][2];
        for (int p = 0; p < 2; p++) {
            uint64_t places[MOST_LAUNCHES];
            int ours = 0, all = 0, count = (int)test_random(&random) % 5;
            while (ours < count || (all < MOST_LAUNCHES && test_random(&random) % 2)) {
                const bool call = ours == count || (MOST_LAUNCHES - all > count - ours && test_random(&random) % 2);
                with[all++] = call ? 'G' : 'r';
                if (call) continue;
                without[ours] = 'r';
                places[ours++] = test_random(&random) % 6;
            }
            with[all] = without[ours] = '\0';
            make(&plans[0][p], without);
            make(&plans[1][p], with);
            for (int i = 0, n = 0; i < all; i++) {
                if (with[i] == 'G') continue;
                plans[0][p].operands[2 * n + 1].offset = HEADER_BYTES + BLOCK * places[n];
                plans[1][p].operands[2 * i + 1].offset = HEADER_BYTES + BLOCK * places[n++];
            }
        }
        bool good = verify(&plans[0][0], &plans[0][1], 2);
        if (verify(&plans[0][0], &plans[1][1], 2) != good)
            fail_msg("round %d: %s with %s: %s", round, without, with, status.message);
        verdicts[good]++;
    }
    assert_true(verdicts[0] > 1000 && verdicts[1] > 1000);
}

/* ---- ranks in different processes -------------------------------------------------------------------------------- */

TEST(apart_all_collectives_are_calls)
{
    static const struct {
        const char *launches;
        int refused; /* the launch that the message names; -1: none */
    } cases[] = {{"R", -1}, {"aRaG", -1}, {"RRRRRRRG", -1}, {"r", 0}, {"Rg", 1}, {"RaGgr", 3}, {"aaaRr", 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make(&library, cases[i].launches);
        library.plan.header.use = PLAN_USE_APART;
        const char *expected = test_text(
            "section 'library plans': plan 0: launch %d: a collective in the COMM space, which ranks in different "
            "processes do not share",
            cases[i].refused);
        if (cases[i].refused < 0)
            expect_good();
        else
            expect_bad(expected);
    }
}

TEST(one_rank_is_never_apart)
{
    make(&own, "a");
    make(&library, "a");
    assert_true(verify(&own, &library, 1));
    library.plan.header.use = PLAN_USE_APART;
    assert_false(verify(&own, &library, 1));
    assert_string_equal(status.message,
                        "section 'library plans': plan 0: use: expected 0 in an engine of one rank, found 1");
    assert_true(verify(&own, &library, 2));
}

/* No condition may be set on a plan of our own kernels. */
TEST(plans_of_our_own_are_for_all)
{
    for (uint32_t use = 1; use <= 2; use++) {
        make(&own, "a");
        own.plan.header.use = use;
        const char *expected = test_text("section 'plans': plan 0: use: expected 0, found %u", use);
        for (uint64_t ranks = 1; ranks <= 2; ranks++) {
            assert_false(verify(&own, NULL, ranks));
            assert_int_equal(status.code, STATUS_CORRUPT);
            assert_string_equal(status.message, expected);
        }
    }
    sample.plans[1].header.use = PLAN_USE_APART;
    expect_sample_refused("collectives: section 'plans': plan 1: use: expected 0, found 1");
}

/* ---- libraries --------------------------------------------------------------------------------------------------- */

TEST(libraries_go_with_the_number_of_ranks)
{
    static const int libraries[] = {LIBRARY_CUBLASLT, LIBRARY_CUDNN, LIBRARY_NCCL, LIBRARY_COUNT, INT32_MAX};
    static const uint64_t ranks[] = {0, 1, 2, PLAN_MAX_RANKS};
    make(&own, "a");
    for (int l = 0; l < 5; l++)
        for (int r = 0; r < 4; r++) {
            const enum plan_library which = (enum plan_library)libraries[l];
            /* A later, unknown library is allowed in any engine. */
            struct engine_call calls[] = {{.library = (enum plan_library)LIBRARY_COUNT}, {.library = which}};
            const struct engine bare = {.manifest.geometry.ranks = ranks[r],
                                        .plans = &own.plan,
                                        .plan_count = 1,
                                        .calls = calls,
                                        .call_count = 2};
            const bool good = l > 2 || (which == LIBRARY_NCCL) == (r > 1);
            assert_int_equal(engine_verify_exchange(&bare, &status), good);
            if (good) continue;
            const char *expected = test_text("section 'library calls': call 1: %s in an engine of %d ranks",
                                             plan_library_name(which), ranks[r] ? (int)ranks[r] : 1);
            assert_string_equal(status.message, expected);
            assert_int_equal(status.code, STATUS_CORRUPT);
        }
}

static void *calls_section(int number) { return sample.calls_section; }

/* The same for a file with one rank. */
TEST(files_of_one_rank_call_no_nccl)
{
#define LIBRARY_OF(call, value, expected)                                                            \
    FIELD(IN_SAMPLE, sizeof(struct engine_calls_header) + (call) * sizeof(struct engine_call_entry), \
          engine_call_entry, library, value, expected)
    static const struct edit edits[] = {
        LIBRARY_OF(0, LIBRARY_NCCL, "collectives: section 'library calls': call 0: NCCL in an engine of 1 ranks"),
        LIBRARY_OF(1, LIBRARY_NCCL, "collectives: section 'library calls': call 1: NCCL in an engine of 1 ranks"),
        LIBRARY_OF(0, LIBRARY_COUNT, NULL),
        LIBRARY_OF(1, LIBRARY_COUNT, NULL),
    };
    EXPECT_EDITS(edits, calls_section);
}

int main(void) { return test_run_with(setup, make_sample, remove_file, remove_folder); }
