/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the two parts of a weight stay joined: by types of tensors, patterns, groups of codes, calibration, ranks. */
#include "builder/passes/pass.h"
#include "builder/test_model.h"
#include "builder/weights/test_tensors.h"

enum { INTER = 64, SHARED = 2, LAYER = 1 };

/* Two routed experts and one of SHARED times their width, whose last matrices are a weight. */
struct fixture {
    struct test_tensors f;
    enum dtype routed, shared;
    uint32_t ranks;
    struct weight_types types;
    bool calibrated, of_experts, gated; /* gated: the layer has another joined weight, of no experts */
};

static void open_weight(struct fixture *made)
{
    static const char *const names[] = {"a.experts.0.down.weight", "a.experts.1.down.weight", "a.shared.down.weight"};
    struct test_tensors *f = &made->f;
    test_tensors_begin(f, made->ranks, TARGET_CPU);
    int weight = -1;
    for (int i = 0; i < 2 + SHARED; i++) {
        const bool shared = i >= 2;
        const uint64_t shape[] = {HIDDEN, shared ? SHARED * INTER : INTER};
        struct weight_source source = {.shape = {shape[0], shape[1]}, .columns = INTER};
        if (shared) source.first_column = (uint64_t)(i - 2) * INTER;
        const char *name = names[shared ? 2 : i];
        if (i <= 2) test_tensors_add(f, name, shared ? made->shared : made->routed, 2, shape);
        if (i == 0)
            weight = graph_weight_from(&f->graph, LAYER, WEIGHT_MATRIX, &source, "%s", name);
        else
            graph_weight_append(&f->graph, weight, &source, "%s", name);
    }
    struct graph_weight *found = &f->graph.weights[weight];
    snprintf(found->name, sizeof found->name, "a.experts.down.weight");
    if (made->of_experts) found->experts = 2 + SHARED;
    graph_shard(&f->graph, weight, SHARD_COLUMNS);
    graph_mark_join(&f->graph, weight, GRAPH_JOIN_SHARED, 2);
    if (!made->gated) return;
    const uint64_t rows[] = {2, 1};
    const char *const routers[] = {"b.router.weight", "b.shared_gate.weight"};
    for (int i = 0; i < 2; i++) {
        const uint64_t shape[] = {rows[i], HIDDEN};
        const struct weight_source source = {.shape = {rows[i], HIDDEN}};
        test_tensors_add(f, routers[i], DTYPE_F32, 2, shape);
        if (i == 0)
            weight = graph_weight_from(&f->graph, LAYER, WEIGHT_MATRIX, &source, "%s", routers[i]);
        else
            graph_weight_append(&f->graph, weight, &source, "%s", routers[i]);
    }
    f->graph.weights[weight].exact = true;
    graph_mark_join(&f->graph, weight, GRAPH_JOIN_SHARED, 1);
}

/* Whether the parts stay joined, with the checkpoint and, where it says the same, without. */
static bool stays(struct fixture *made, bool has_checkpoint)
{
    struct status status = {0};
    uint8_t joins[] = {0xff, GRAPH_JOIN_SHARED | 0x80};
    open_weight(made);
    struct test_tensors *f = &made->f;
    test_expect_success(pass_shard.run(&f->graph, &status), &status);
    choose_joins(joins, &f->graph, has_checkpoint ? &f->checkpoint : NULL, ENCODING_BF16, &made->types,
                 made->calibrated);
    assert_int_equal(joins[0], 0xff); /* of another layer */
    assert_int_equal(joins[1] & 0x80, 0x80);
    const bool joined = joins[LAYER] & GRAPH_JOIN_SHARED;
    if (has_checkpoint) { /* the decision changes nothing else */
        test_expect_success(bind_weights(&f->graph, &f->checkpoint, &made->types, &status), &status);
        if (joined) assert_int_equal(f->graph.weights[0].source_count, 2 + SHARED);
    }
    test_tensors_end(f);
    return joined;
}

TEST(types_of_tensors)
{
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int a = 0; a < 3; a++)
        for (int b = 0; b < 3; b++)
            for (int asked = 0; asked < 2; asked++) {
                struct fixture made = {.routed = dtypes[a], .shared = dtypes[b], .ranks = 1 + (uint32_t)(a + b) % 2};
                if (asked) made.types.matrices = ENCODING_INT8_CHANNEL;
                assert_int_equal(stays(&made, true), asked || a == b);
                assert_true(stays(&made, false)); /* all are assumed alike */
            }
}

static struct fixture keeping(const char *pattern, enum encoding_id encoding)
{
    struct fixture made = {.routed = DTYPE_F32, .shared = DTYPE_F32, .ranks = 1, .types = {.kept_count = 1}};
    snprintf(made.types.kept[0].pattern, WEIGHT_PATTERN_BYTES, "%s", pattern);
    made.types.kept[0].encoding = encoding;
    return made;
}

TEST(patterns_of_one_part)
{
    static const struct {
        const char *pattern;
        bool stays;
    } cases[] = {{"*.shared.*", false},          {"a.experts.*", false},  {"a.experts.down.weight", false},
                 {"a.experts.1.*", false},       {"*.down.weight", true}, {"a.*", true},
                 {"a.shared.down.weight", false}};
    static const enum encoding_id encodings[] = {ENCODING_F32, ENCODING_BF16, ENCODING_INT8_CHANNEL};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int e = 0; e < 3; e++) {
            struct fixture made = keeping(cases[c].pattern, encodings[e]);
            assert_int_equal(stays(&made, true), cases[c].stays);
            made = keeping(cases[c].pattern, encodings[e]);
            assert_int_equal(stays(&made, false), cases[c].stays);
        }
}

/* Groups of INTER columns begin where a part does; longer ones do not, and ranks divide them further. */
TEST(groups_of_codes)
{
    static const struct {
        enum encoding_id encoding;
        uint32_t ranks;
        bool stays;
    } cases[] = {{ENCODING_INT4_G32, 1, true},  {ENCODING_INT4_G64, 1, true}, {ENCODING_INT4_G128, 1, false},
                 {ENCODING_INT4_G64, 2, true},  {ENCODING_MXFP4, 1, true},    {ENCODING_MXFP4, 2, true},
                 {ENCODING_INT8_G128, 1, false}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct fixture made = {.routed = DTYPE_F32, .shared = DTYPE_F32, .ranks = cases[c].ranks};
        made.types.matrices = cases[c].encoding;
        if (stays(&made, true) != cases[c].stays) fail_msg("case %d", (int)c);
    }
}

TEST(calibrated_matrices)
{
    for (int of_experts = 0; of_experts < 2; of_experts++)
        for (int calibrated = 0; calibrated < 2; calibrated++)
            for (int bits = 4; bits <= 8; bits += 4) {
                struct fixture made = {.routed = DTYPE_F32, .shared = DTYPE_F32, .ranks = 1};
                made.calibrated = calibrated;
                made.of_experts = of_experts;
                made.types.matrices = bits == 4 ? ENCODING_INT4_G32 : ENCODING_INT8_CHANNEL;
                assert_int_equal(stays(&made, true), !(of_experts && calibrated && bits == 4));
                made.gated = true; /* not calibrated in any case */
                assert_true(stays(&made, true));
            }
}

int main(void) { return test_run(); }
