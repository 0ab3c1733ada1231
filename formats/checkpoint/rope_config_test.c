/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "formats/checkpoint/model_config.h"
#include "formats/base/test_support.h"
#include "formats/checkpoint/test_config.h"

static struct status status;
static struct model_config config;

/* Parses a config with the given rope fields. */
static bool parse(const char *rope, unsigned head_dim, unsigned max_position)
{
    char text[1024];
    int length = snprintf(text, sizeof text, "{" TEST_CONFIG ", 'head_dim': %u, 'max_position': %u%s%s}", head_dim,
                          max_position, *rope ? ", " : "", rope);
    assert_true(length > 0 && (size_t)length < sizeof text);
    status_clear(&status);
    return model_config_parse(&config, test_quote(text), (size_t)length, "config.json", test_read_config, &status);
}

/* The same for a valid one, with its frequencies; returns the factor on cos and sin. */
static float frequencies(const char *rope, unsigned head_dim, unsigned max_position, float *inv_freq)
{
    float scaling;
    test_expect_success(parse(rope, head_dim, max_position), &status);
    test_expect_success(rope_frequencies(&config.rope, config.max_position, inv_freq, &scaling, &status), &status);
    return scaling;
}

/* Values of transformers 5.17.0 with torch 2.15 on a CPU: attention_scaling and inv_freq at nine positions. Its power
 * function may be off by one unit in the last place, which blending can enlarge: hence the tolerance. */
#define REFERENCE(name, rope, head_dim, max_position, scaling, ...)  \
    {                                                                \
        name, rope, head_dim, max_position, scaling, { __VA_ARGS__ } \
    }
static const struct reference {
    const char *name, *rope;
    unsigned head_dim, max_position;
    float attention_scaling, inv_freq[9];
} references[] = {
    REFERENCE("default", "'rope_theta': 10000.0", 64, 2048, 0x1p+0f, 0x1p+0f, 0x1.7ff222p-1f, 0x1.43d136p-2f,
              0x1.99999ap-4f, 0x1.030dc6p-5f, 0x1.47ae14p-7f, 0x1.9e7c70p-9f, 0x1.0624dep-10f, 0x1.17a8e4p-13f),
    REFERENCE("default, theta 1e6", "'rope_theta': 1000000", 128, 32768, 0x1p+0f, 0x1p+0f, 0x1.9c975ap-1f,
              0x1.6c310ep-3f, 0x1.030dc6p-5f, 0x1.708938p-8f, 0x1.0624dep-10f, 0x1.74eea6p-13f, 0x1.094564p-15f,
              0x1.4d1c98p-20f),
    REFERENCE("linear", "'rope_theta': 10000.0, 'rope_scaling': {'type': 'linear', 'factor': 3.7}", 64, 2048, 0x1p+0f,
              0x1.14c1bap-2f, 0x1.9f139ap-3f, 0x1.5e129ap-4f, 0x1.bacf92p-6f, 0x1.180ee4p-7f, 0x1.623fa6p-9f,
              0x1.c017d2p-11f, 0x1.1b6620p-12f, 0x1.2e55b8p-15f),
    REFERENCE("llama3 8B",
              "'rope_theta': 500000.0, 'rope_scaling': {'factor': 8.0, 'low_freq_factor': 1.0, "
              "'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192, 'rope_type': 'llama3'}",
              128, 131072, 0x1p+0f, 0x1p+0f, 0x1.a11582p-1f, 0x1.8d2760p-3f, 0x1.341190p-5f, 0x1.ddee9ep-8f,
              0x1.132ba4p-11f, 0x1.1f91f0p-15f, 0x1.be2188p-18f, 0x1.4985fep-22f),
    REFERENCE("llama3 1B, version 5",
              "'rope_parameters': {'rope_theta': 500000.0, 'factor': 32.0, 'low_freq_factor': 1.0, "
              "'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192, 'rope_type': 'llama3'}",
              64, 131072, 0x1p+0f, 0x1p+0f, 0x1.53c38cp-1f, 0x1.8d2760p-3f, 0x1.341190p-5f, 0x1.ddee9ep-8f,
              0x1.c26c40p-12f, 0x1.1f91f0p-17f, 0x1.be2188p-20f, 0x1.948360p-24f),
    REFERENCE("yarn",
              "'rope_theta': 1000000.0, 'rope_scaling': {'type': 'yarn', 'factor': 4.0, "
              "'original_max_position_embeddings': 32768}",
              128, 131072, 0x1.237d38p+0f, 0x1p+0f, 0x1.9c975ap-1f, 0x1.6c310ep-3f, 0x1.030dc6p-5f, 0x1.6046eep-8f,
              0x1.3c1d64p-11f, 0x1.74eea6p-15f, 0x1.094564p-17f, 0x1.4d1c98p-22f),
    REFERENCE("yarn, not truncated",
              "'rope_theta': 150000, 'rope_scaling': {'rope_type': 'yarn', 'factor': 32.0, 'beta_fast': "
              "32.0, 'beta_slow': 1.0, 'truncate': false, 'original_max_position_embeddings': 4096}",
              64, 131072, 0x1.58b90cp+0f, 0x1p+0f, 0x1.60ca6ap-1f, 0x1.cda7f4p-3f, 0x1.a04328p-5f, 0x1.bd5080p-8f,
              0x1.dea878p-12f, 0x1.312650p-16f, 0x1.132518p-18f, 0x1.44a5a6p-22f),
    REFERENCE("yarn with mscale",
              "'rope_scaling': {'type': 'yarn', 'factor': 40, 'mscale': 1.0, 'mscale_all_dim': 0.707, "
              "'original_max_position_embeddings': 4096}",
              64, 163840, 0x1.15f22ap+0f, 0x1p+0f, 0x1.7ff222p-1f, 0x1.43d136p-2f, 0x1.99999ap-4f, 0x1.b86436p-6f,
              0x1.6872b2p-8f, 0x1.9e7c6ep-11f, 0x1.a36e2ep-16f, 0x1.bf749ep-19f),
    REFERENCE("yarn with attention_factor",
              "'rope_parameters': {'rope_type': 'yarn', 'rope_theta': 10000.0, 'factor': 2.5, "
              "'attention_factor': 1.25, 'beta_fast': 16, 'beta_slow': 2}",
              64, 4096, 0x1.400000p+0f, 0x1p+0f, 0x1.7ff222p-1f, 0x1.43d136p-2f, 0x1.99999ap-4f, 0x1.030dc6p-5f,
              0x1.e098ecp-8f, 0x1.82da8cp-10f, 0x1.a36e2ep-12f, 0x1.bf749ep-15f),
};

static const float TOLERANCE = 4 * 0x1p-23f;

TEST(test_against_transformers)
{
    for (size_t i = 0; i < sizeof references / sizeof *references; i++) {
        const struct reference *reference = &references[i];
        unsigned n = reference->head_dim;
        const unsigned positions[9] = {0, 1, n / 16, n / 8, 3 * n / 16, n / 4, 5 * n / 16, 3 * n / 8, n / 2 - 1};
        float inv_freq[128];
        const float attention_scaling = frequencies(reference->rope, n, reference->max_position, inv_freq);
        if (attention_scaling != reference->attention_scaling)
            fail_msg("%s: attention scaling: expected %a, found %a", reference->name,
                     (double)reference->attention_scaling, (double)attention_scaling);
        for (int j = 0; j < 9; j++) {
            float expected = reference->inv_freq[j], found = inv_freq[positions[j]];
            if (fabsf(found - expected) > TOLERANCE * expected)
                fail_msg("%s: inv_freq[%u]: expected %a, found %a", reference->name, positions[j], (double)expected,
                         (double)found);
        }
    }
}

/* The formulas of the papers, in double, at every position. */
TEST(test_against_formulas)
{
    float inv_freq[64];
    const double pi = acos(-1.0);
    float attention_scaling =
        frequencies("'rope_theta': 500000.0, 'rope_scaling': {'rope_type': 'llama3', 'factor': 8.0, "
                    "'low_freq_factor': 1.0, 'high_freq_factor': 4.0, 'original_max_position_embeddings': 8192}",
                    128, 131072, inv_freq);
    for (int i = 0; i < 64; i++) {
        double plain = pow(500000.0, -i / 64.0), turns = 8192 * plain / (2 * pi);
        double smooth = fmin(fmax((turns - 1.0) / 3.0, 0.0), 1.0);
        double expected = (1 - smooth) * plain / 8.0 + smooth * plain;
        assert_true(fabs(inv_freq[i] - expected) < 1e-6 * expected);
    }
    assert_true(attention_scaling == 1.0f);

    attention_scaling = frequencies("'rope_scaling': {'rope_type': 'yarn', 'factor': 16.0, 'truncate': false, "
                                    "'original_max_position_embeddings': 4096}",
                                    128, 65536, inv_freq);
    double low = 128 * log(4096 / (32 * 2 * pi)) / (2 * log(10000.0));
    double high = 128 * log(4096 / (2 * pi)) / (2 * log(10000.0));
    for (int i = 0; i < 64; i++) {
        double plain = pow(10000.0, -i / 64.0), ramp = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
        double expected = plain / 16.0 * ramp + plain * (1 - ramp);
        assert_true(fabs(inv_freq[i] - expected) < 2e-6 * expected);
    }
    assert_true(fabs(attention_scaling - (0.1 * log(16.0) + 1.0)) < 1e-7);
}

#define SCALING(fields)    "'rope_scaling': {" fields "}"
#define PARAMETERS(fields) "'rope_parameters': {" fields "}"
#define LLAMA3(fields)     "'rope_scaling': {'rope_type': 'llama3', " fields "}"
#define YARN(fields)       "'rope_parameters': {'rope_type': 'yarn', " fields "}"

#define LONGROPE(fields)                                                                  \
    "'rope_scaling': {'rope_type': 'longrope', 'short_factor': [1,1.5,2,2.5,3,3.5,4,5], " \
    "'long_factor': [10,11,12,13,14,15,16,17.5]" fields "}"

/* Two sets: 1 / (factor * theta^(2i / rotary_dim)), and the factor on cos and sin of transformers. */
TEST(test_longrope)
{
    static const double factors[2][8] = {{1, 1.5, 2, 2.5, 3, 3.5, 4, 5}, {10, 11, 12, 13, 14, 15, 16, 17.5}};
    static const struct {
        const char *rope;
        unsigned head_dim, max_position, original, sets;
        double scaling; /* 0: by the formula */
    } cases[] = {
        {LONGROPE("") ", 'original_max_position_embeddings': 64", 16, 512, 64, 2, 0},
        {LONGROPE(", 'original_max_position_embeddings': 64"), 16, 512, 64, 2, 0},
        {LONGROPE(", 'original_max_position_embeddings': 64, 'factor': 8.0") ", 'original_max_position_embeddings': 64",
         16, 512, 64, 2, 0},
        {LONGROPE(", 'original_max_position_embeddings': 64, 'type': 'longrope', 'attention_factor': 1.25"), 16, 512,
         64, 2, 1.25},
        {LONGROPE(", 'original_max_position_embeddings': 64, 'partial_rotary_factor': 0.5"), 32, 512, 64, 2, 0},
        {"'original_max_position_embeddings': 64, 'rope_scaling': {'type': 'su', 'short_factor': "
         "[1,1.5,2,2.5,3,3.5,4,5], "
         "'long_factor': [10,11,12,13,14,15,16,17.5]}",
         16, 512, 64, 2, 0},
        {LONGROPE(", 'original_max_position_embeddings': 512"), 16, 512, 512, 1, 1},
        {LONGROPE(", 'original_max_position_embeddings': 4096"), 16, 512, 4096, 1, 1},
        {LONGROPE(", 'original_max_position_embeddings': 4096"), 16, 131072, 4096, 2, 1.19023807}, /* Phi-3 */
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        float inv_freq[17];
        const double ratio = (double)cases[c].max_position / cases[c].original;
        const double expected =
            cases[c].scaling != 0 ? cases[c].scaling : sqrt(1 + log(ratio) / log(cases[c].original));
        for (int i = 0; i < 17; i++) inv_freq[i] = -1;
        const float scaling = frequencies(cases[c].rope, cases[c].head_dim, cases[c].max_position, inv_freq);
        assert_int_equal(config.rope.type, ROPE_LONGROPE);
        assert_int_equal(config.rope.rotary_dim, 16);
        assert_int_equal(config.rope.original_max_position, cases[c].original);
        assert_int_equal(rope_sets(&config.rope, config.max_position), cases[c].sets);
        assert_true(fabs((double)scaling - expected) < 1e-6);
        for (unsigned s = 0; s < cases[c].sets; s++)
            for (int i = 0; i < 8; i++)
                assert_true(fabs(inv_freq[8 * s + (unsigned)i] * factors[s][i] * pow(10000.0, i / 8.0) - 1) < 1e-6);
        assert_true(inv_freq[8 * cases[c].sets] == -1);
    }
}

/* A part of each head: as many elements as transformers rotates, with the frequencies of a head of that size. */
TEST(test_partial_rotation)
{
    static const struct {
        const char *rope;
        unsigned head_dim, rotary_dim;
        const char *whole; /* of a head that is rotated as a whole */
    } cases[] = {
        {"'partial_rotary_factor': 0.75", 128, 96, ""},
        {"'rope_parameters': {'rope_type': 'default', 'partial_rotary_factor': 0.75}", 32, 24, ""},
        {"'partial_rotary_factor': 0.5, 'rope_parameters': {'partial_rotary_factor': 0.5}", 24, 12, ""},
        {"'partial_rotary_factor': 0.5, 'rope_scaling': {'type': 'linear', 'factor': 2}", 24, 12,
         "'rope_scaling': {'type': 'linear', 'factor': 2}"},
        {"'partial_rotary_factor': 0.7", 24, 16, ""}, /* 16.8 */
        /* In files of transformers 5 the class's default may stand beside the model's own. */
        {"'partial_rotary_factor': 0.5, 'rope_parameters': {'partial_rotary_factor': 0.25}", 24, 6, ""},
        {"'partial_rotary_factor': 0.25, 'rope_parameters': {'partial_rotary_factor': 0.5}", 20, 10, ""},
        {"'partial_rotary_factor': 1", 24, 24, ""},
        {YARN("'factor': 4, 'partial_rotary_factor': 0.25"), 64, 16, YARN("'factor': 4")},
        {LLAMA3("'factor': 8, 'low_freq_factor': 1, 'high_freq_factor': 4, 'partial_rotary_factor': 0.5"), 128, 64,
         LLAMA3("'factor': 8, 'low_freq_factor': 1, 'high_freq_factor': 4")},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float inv_freq[64], expected[64];
        memset(inv_freq, 0xff, sizeof inv_freq);
        const float expected_scaling = frequencies(cases[i].whole, cases[i].rotary_dim, 512, expected);
        const float scaling = frequencies(cases[i].rope, cases[i].head_dim, 512, inv_freq);
        assert_int_equal(config.rope.rotary_dim, cases[i].rotary_dim);
        assert_memory_equal(inv_freq, expected, cases[i].rotary_dim / 2 * sizeof *inv_freq);
        assert_true(scaling == expected_scaling && inv_freq[0] <= 1);
        for (unsigned j = cases[i].rotary_dim / 2; j < 64; j++) assert_true(isnan(inv_freq[j]));
        if (config.rope.type == ROPE_DEFAULT)
            for (unsigned j = 0; j < cases[i].rotary_dim / 2; j++)
                assert_true(fabs(inv_freq[j] * pow(10000.0, 2.0 * j / cases[i].rotary_dim) - 1) < 1e-6);
    }
}

/* Absent keys have the defaults of transformers. */
TEST(test_defaults)
{
    static const char *const plain[] = {"",
                                        "'rope_scaling': null",
                                        "'rope_scaling': {}",
                                        "'rope_scaling': {'type': 'dynamic', 'factor': 2.0}",
                                        "'rope_parameters': {'rope_type': 'default'}",
                                        "'rope_parameters': {'rope_theta': 10000.0}, 'rope_theta': 10000",
                                        "'partial_rotary_factor': 1.0"};
    float with_default[8], with_explicit[8];
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        test_expect_success(parse(plain[i], 16, 512), &status);
        assert_int_equal(config.rope.type, ROPE_DEFAULT);
        assert_true(config.rope.theta == 10000.0);
    }
    frequencies("'rope_scaling': {'type': 'yarn', 'factor': 2}", 16, 512, with_default);
    assert_int_equal(config.rope.type, ROPE_YARN);
    assert_true(config.rope.beta_fast == 32.0 && config.rope.beta_slow == 1.0 && config.rope.truncate);
    assert_true(config.rope.attention_factor == 0.0 && config.rope.original_max_position == 0);
    frequencies("'rope_scaling': {'type': 'yarn', 'factor': 2, 'beta_fast': 0, 'beta_slow': 0,"
                " 'mscale': 0, 'attention_factor': null, 'original_max_position_embeddings': 512}",
                16, 512, with_explicit);
    assert_memory_equal(with_default, with_explicit, sizeof with_default);
    test_expect_success(parse("'rope_parameters': {'rope_type': 'linear', 'factor': 2, 'rope_theta': 5000},"
                              " 'rope_scaling': {'type': 'linear', 'factor': 2.0}, 'rope_theta': 5000.0",
                              16, 512),
                        &status);
    assert_int_equal(config.rope.type, ROPE_LINEAR);
}

TEST(test_refused)
{
    static const struct {
        const char *rope, *words;
    } cases[] = {
        {"'rope_theta': 1.0", "config.json|'rope_theta'|above 1|found 1"},
        {"'rope_theta': -5", "'rope_theta'|found -5"},
        {"'rope_theta': 1e300", "'rope_theta'|1e15"},
        {"'rope_theta': 'big'", "'rope_theta'|a number|\"big\""},
        {"'rope_scaling': 3", "rope_scaling|an object|integer"},
        {SCALING("'type': 'ntk', 'factor': 2"),
         "'type'|default, dynamic, linear, llama3, yarn, longrope or proportional|'ntk'"},
        {SCALING("'type': 'dynamic'"), "rope_scaling|'factor'|found nothing"},
        {SCALING("'type': 'dynamic', 'factor': 0.5"), "rope_scaling|'factor'|from 1"},
        {"'partial_rotary_factor': 0.5, 'rope_scaling': {'partial_rotary_factor': 0.25}",
         "rope_scaling|'partial_rotary_factor'|expected 8 rotated elements of a head as beside it|found 4"},
        {PARAMETERS("'rope_type': 'longrope'"), "rope_parameters|'short_factor'|an array of 8|found nothing"},
        {SCALING("'type': 'mrope'"), "'mrope'"},
        {SCALING("'type': 'linear', 'rope_type': 'yarn'"), "disagree|'yarn'|'linear'"},
        {SCALING("'type': 3"), "'type'|a string|found 3"},
        {SCALING("'type': 'linear'"), "'factor'|found nothing"},
        {SCALING("'type': 'linear', 'factor': 0.5"), "'factor'|from 1|found 0.5"},
        {SCALING("'type': 'linear', 'factor': 1e9"), "'factor'|1e6"},
        {SCALING("'type': 'linear', 'factor': 2, 'beta_fast': 3"), "'beta_fast'|not understood"},
        {SCALING("'type': 'default', 'factor': 2"), "rope_scaling|'factor'|not understood"},
        {SCALING("'finetuned': true"), "'finetuned'|not understood"},
        {SCALING("'partial_rotary_factor': 0.0"), "rope_scaling|'partial_rotary_factor'|above 0|found 0"},
        {"'partial_rotary_factor': 1.5", "'partial_rotary_factor'|at most 1|found 1.5"},
        {"'partial_rotary_factor': -0.5", "'partial_rotary_factor'|found -0.5"},
        {"'partial_rotary_factor': 'all'", "'partial_rotary_factor'|a number"},
        {"'partial_rotary_factor': 0.2", "'partial_rotary_factor'|even|of the 16|found 3 (0.2"},
        {"'partial_rotary_factor': 0.01", "'partial_rotary_factor'|even|found 0"},
        {"'rope_parameters': {'partial_rotary_factor': 0.5}, 'rope_scaling': {'type': 'default'}",
         "'rope_parameters' and 'rope_scaling' disagree"},
        {"'rope_parameters': {'full_attention': {}}", "'full_attention'|not understood"},
        {"'rope_parameters': {'rope_theta': 5000}, 'rope_theta': 10000", "'rope_theta'|10000|found 5000"},
        {"'rope_parameters': {'rope_type': 'default'}, 'rope_scaling': {'type': 'linear', 'factor': 2}",
         "'rope_parameters' and 'rope_scaling' disagree"},
        {LLAMA3("'factor': 8, 'high_freq_factor': 4"), "'low_freq_factor'|found nothing"},
        {LLAMA3("'factor': 8, 'low_freq_factor': 1"), "'high_freq_factor'|found nothing"},
        {LLAMA3("'low_freq_factor': 1, 'high_freq_factor': 4"), "'factor'|found nothing"},
        {LLAMA3("'factor': 8, 'low_freq_factor': 0, 'high_freq_factor': 4"), "'low_freq_factor'|above 0"},
        {LLAMA3("'factor': 8, 'low_freq_factor': 4, 'high_freq_factor': 4"), "'high_freq_factor'|above low"},
        {LLAMA3("'factor': 8, 'low_freq_factor': 1, 'high_freq_factor': 4, 'original_max_position_embeddings': 0"),
         "'original_max_position_embeddings'|from 1|found 0"},
        {LONGROPE("") ", 'original_max_position_embeddings': 0", "'original_max_position_embeddings'|from 1|found 0"},
        {LONGROPE(""), "rope_scaling|'original_max_position_embeddings'|here or beside|found nothing"},
        {LONGROPE(", 'original_max_position_embeddings': 64") ", 'original_max_position_embeddings': 65",
         "rope_scaling|'original_max_position_embeddings'|expected 65 as beside it|found 64"},
        {LONGROPE(", 'original_max_position_embeddings': 64, 'factor': 4"),
         "'factor'|max_position_embeddings|= 8|found 4"},
        {LONGROPE(", 'original_max_position_embeddings': 64, 'short_mscale': 1.2"), "'short_mscale'|not understood"},
        {LONGROPE(", 'original_max_position_embeddings': 64, 'long_mscale': 1.2"), "'long_mscale'|not understood"},
        {LONGROPE(", 'original_max_position_embeddings': 64, 'attention_factor': -1"), "'attention_factor'|found -1"},
        {SCALING("'type': 'longrope', 'short_factor': [1,2,3,4,5,6,7,8], 'long_factor': [1,2,3]"),
         "'long_factor'|an array of 8|of 3"},
        {SCALING("'type': 'longrope', 'short_factor': [1,2,3,4,5,6,0,8]"), "'short_factor'|above 0|found 0"},
        {SCALING("'type': 'longrope', 'short_factor': [1,2,3,4,5,6,'x',8]"), "'short_factor'|\"x\""},
        {SCALING("'type': 'longrope', 'short_factor': 3"), "'short_factor'|an array of 8|found 3"},
        {YARN("'factor': 2, 'original_max_position_embeddings': 64") ", 'original_max_position_embeddings': 65",
         "'original_max_position_embeddings'|expected 65 as beside it|found 64"},
        {YARN("'factor': 2") ", 'original_max_position_embeddings': 65",
         "'original_max_position_embeddings'|expected 65 as beside it|found 0"},
        {YARN("'factor': 2, 'attention_factor': 0.0"), "'attention_factor'|above 0|found 0"},
        {YARN("'factor': 2, 'attention_factor': -1"), "'attention_factor'|found -1"},
        {YARN("'factor': 2, 'beta_fast': -1"), "'beta_fast'|found -1"},
        {YARN("'factor': 2, 'mscale': '1'"), "'mscale'|a number"},
        {YARN("'factor': 2, 'truncate': 1"), "'truncate'|true or false|found 1"},
        {YARN("'factor': 2, 'low_freq_factor': 1"), "'low_freq_factor'|not understood"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        test_expect_failure(parse(cases[i].rope, 16, 512), &status, STATUS_BAD_INPUT, cases[i].words);
}

/* The smallest head and empty ramps must not divide by zero. */
TEST(test_extremes)
{
    static const char *const ropes[] = {
        "'rope_theta': 1.0000001",
        "'rope_theta': 1e15",
        YARN("'factor': 1000000, 'original_max_position_embeddings': 1"),
        YARN("'factor': 2, 'beta_fast': 1, 'beta_slow': 1"),
        YARN("'factor': 2, 'beta_fast': 1, 'beta_slow': 32"),
        YARN("'factor': 2, 'truncate': false, 'beta_fast': 1e-6, 'beta_slow': 1e6"),
        LLAMA3("'factor': 1000000, 'low_freq_factor': 1e-6, 'high_freq_factor': 2e-6"),
    };
    static const unsigned head_dims[] = {2, 4, 16, 256};
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++)
        for (size_t j = 0; j < sizeof head_dims / sizeof *head_dims; j++) {
            float inv_freq[128];
            const float scaling = frequencies(ropes[i], head_dims[j], 512, inv_freq);
            assert_true(isfinite(scaling) && scaling > 0);
        }
}

TEST(factor_of_latent_scores)
{
    test_expect_success(parse("'rope_theta': 10000.0", 64, 2048), &status);
    assert_true(rope_latent_score_scale(&config.rope) == 1.0);
    test_expect_success(parse("'rope_scaling': {'type': 'yarn', 'factor': 40}", 64, 2048), &status);
    assert_true(rope_latent_score_scale(&config.rope) == 1.0);
    test_expect_success(parse("'rope_scaling': {'type': 'yarn', 'factor': 40, 'mscale': 1.0, 'mscale_all_dim': 0.707}",
                              64, 2048),
                        &status);
    const double factor = 0.0707 * 3.6888794541139363 + 1; /* ln 40 */
    assert_true(fabs(rope_latent_score_scale(&config.rope) - factor * factor) < 1e-12);
    test_expect_success(parse("'rope_scaling': {'type': 'linear', 'factor': 40}", 64, 2048), &status);
    assert_true(rope_latent_score_scale(&config.rope) == 1.0);
}

int main(void) { return test_run(); }
