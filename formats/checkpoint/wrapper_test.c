/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/wrapper.h"

#include "formats/base/test_support.h"

static const struct model_wrapper wrapper = {"mllama",
                                             "MllamaForConditionalGeneration",
                                             "language_model",
                                             {"vision_model", "cross_attention_layers"}};

enum { MOST = 8, ROW_BYTES = 4 };

struct opened {
    struct model_config config;
    struct tensor_view tensors[MOST];
    size_t count;
    struct model_tower towers[WRAPPER_MAX_TOWERS];
    char *names;
};

/* A checkpoint of these tensors, each of one row of 4 bytes for each of its first extents, in a model of 12 layers, the second and
 * eleventh of which text passes over, with 5 tokens and 3 rows of the embedding after them. */
static bool unwrap(struct opened *opened, const char *const *names, const uint64_t *rows, struct status *status)
{
    *opened = (struct opened){.config = {.wrapper = &wrapper, .vocab_size = 5}};
    opened->config.unused = (struct model_unused){.layers = 12, .embedding_rows = 3};
    opened->config.unused.layer[1] = opened->config.unused.layer[10] = true;
    for (; opened->count < MOST && names[opened->count]; opened->count++)
        opened->tensors[opened->count] = (struct tensor_view){.name = names[opened->count],
                                                              .dtype = DTYPE_F32,
                                                              .rank = 2,
                                                              .shape = {rows[opened->count], 1},
                                                              .bytes = rows[opened->count] * ROW_BYTES};
    return wrapper_unwrap(&opened->config, opened->tensors, &opened->count, opened->towers, &opened->names, status);
}

TEST(layers_are_counted_anew)
{
    static const char *const names[] = {"language_model.model.layers.0.a",
                                        "language_model.model.layers.1.cross_attn.q",
                                        "language_model.model.layers.2.a",
                                        "model.language_model.layers.11.a",
                                        "language_model.model.layers.10.mlp.up",
                                        "language_model.model.embed_tokens.weight",
                                        "vision_model.a",
                                        "language_model.lm_head.weight"};
    static const uint64_t rows[] = {1, 2, 3, 4, 5, 8, 7, 8};
    static const struct {
        const char *name;
        uint64_t rows;
    } expected[] = {{"lm_head.weight", 8},
                    {"model.embed_tokens.weight", 5},
                    {"model.layers.0.a", 1},
                    {"model.layers.1.a", 3},
                    {"model.layers.9.a", 4}};
    struct status status = {0};
    struct opened opened;
    test_expect_success(unwrap(&opened, names, rows, &status), &status);
    assert_int_equal(opened.count, sizeof expected / sizeof *expected);
    for (size_t i = 0; i < opened.count; i++) {
        assert_string_equal(opened.tensors[i].name, expected[i].name);
        assert_int_equal(opened.tensors[i].shape[0], expected[i].rows);
        assert_int_equal(opened.tensors[i].bytes, expected[i].rows * ROW_BYTES);
    }
    assert_string_equal(opened.towers[0].name, "vision_model");
    assert_int_equal(opened.towers[0].tensors, 1);
    assert_string_equal(opened.towers[1].name, "cross_attention_layers");
    assert_int_equal(opened.towers[1].tensors, 3); /* of two layers, and the embedding's last rows */
    assert_int_equal(opened.towers[1].bytes, (2 + 5 + 3) * ROW_BYTES);
    assert_null(opened.towers[2].name);
    free(opened.names);
}

/* Such tensors keep their names, and nothing uses them. */
TEST(other_names_stay)
{
    static const char *const names[] = {"model.embed_tokens.weight", "model.layers.",     "model.layers.012.a",
                                        "model.layers.02.a",         "model.layers.12.a", "model.layers.2",
                                        "model.layers.99999.a",      "model.layers.x.a"};
    static const uint64_t rows[] = {9, 1, 1, 1, 1, 1, 1, 1};
    struct status status = {0};
    struct opened opened;
    test_expect_success(unwrap(&opened, names, rows, &status), &status);
    assert_int_equal(opened.count, MOST);
    for (size_t i = 0; i < MOST; i++) assert_string_equal(opened.tensors[i].name, names[i]);
    assert_int_equal(opened.tensors[0].shape[0], 9); /* not the rows that are expected */
    assert_null(opened.towers[0].name);
    free(opened.names);
}

TEST(what_is_refused)
{
    static const struct {
        const char *names[3], *words;
    } cases[] = {
        {{"language_model.model.layers.10.self_attn.q"},
         "model.layers.10.self_attn.q|layer 10|cross_attention_layers|expected no self_attn"},
        {{"language_model.model.layers.1.mlp.up", "vision_model.a"}, "all tensors are of parts that are left out"},
        {{"language_model.model.layers.2.a", "model.language_model.layers.2.a"}, "'model.layers.1.a'|twice"},
    };
    static const uint64_t rows[] = {1, 1, 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct status status = {0};
        struct opened opened;
        test_expect_failure(unwrap(&opened, cases[i].names, rows, &status), &status, STATUS_BAD_INPUT, cases[i].words);
        free(opened.names);
    }
}

int main(void) { return test_run(); }
