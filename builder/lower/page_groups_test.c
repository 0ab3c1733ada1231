/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/lower/page_groups.h"

#include "builder/lower/lowering.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

enum { PAGE = 16, CONTEXT = 4096, MOST_LAYERS = 64 };

static struct model_config config;

/* A letter for each layer: S slides with window 64, T with 128, all others see all tokens; "pattern * repeats". */
static void make_config(const char *pattern, int repeats)
{
    memset(&config, 0, sizeof config);
    config.kv_heads = 2;
    config.head_dim = 32;
    for (int r = 0; r < repeats; r++)
        for (const char *p = pattern; *p; p++)
            config.layer[config.layers++].window = *p == 'S' ? 64 : *p == 'T' ? 128 : 0;
}

static struct plan_geometry choose(uint64_t context, uint64_t chunk)
{
    struct plan_geometry geometry = {.slots = 2,
                                     .max_context = context,
                                     .page_tokens = PAGE,
                                     .pages_per_slot = (context + PAGE - 1) / PAGE};
    assert_true(page_groups_choose(&config, ENCODING_F32, chunk, &geometry));
    return geometry;
}

/* Every layer lies inside the pages of a group whose window is enough for it, and no two layers of a group overlap. */
static void check_places(const struct plan_geometry *geometry)
{
    struct page_place places[MOST_LAYERS];
    assert_in_range(geometry->page_groups, 1, PLAN_MAX_PAGE_GROUPS);
    for (uint32_t l = 0; l < config.layers; l++) {
        const struct page_place place = places[l] = page_place_of(&config, ENCODING_F32, geometry, l);
        const uint64_t window = config.layer[l].window;
        assert_true(place.group < geometry->page_groups);
        assert_int_equal(place.bytes, kv_block_bytes_of(&config, l, PAGE, ENCODING_F32));
        if (place.bytes == 0) continue;
        assert_true(place.offset % PLAN_ALIGNMENT == 0 && place.offset + place.bytes <= geometry->page_bytes);
        const uint64_t held = geometry->page_window[place.group];
        assert_true(held == 0 || (window && window <= held));
        for (uint32_t k = 0; k < l; k++)
            assert_true(places[k].group != place.group || places[k].offset + places[k].bytes <= place.offset ||
                        place.offset + place.bytes <= places[k].offset);
    }
}

TEST(groups_of_known_patterns)
{
    static const struct {
        const char *pattern;
        int repeats;
        unsigned groups;
        uint64_t layers; /* of a page */
        unsigned sliding;
    } cases[] = {
        {"F", 12, 1, 12, 0},      /* dense */
        {"S", 12, 1, 12, 1},      /* mistral */
        {"SF", 13, 2, 13, 1},     /* gemma2, gpt-oss */
        {"SSSF", 8, 4, 8, 3},     /* cohere2, olmo3, exaone4 */
        {"SSSSSF", 8, 6, 8, 5},   /* gemma3 12b: 40 and 8 */
        {"SSSSSFS", 1, 7, 1, 6},  /* 6 and 1 */
        {"STF", 4, 3, 4, 2},      /* two windows */
        {"SSTTTTFF", 1, 4, 2, 3}, /* 2, 4 and 2 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_config(cases[i].pattern, cases[i].repeats);
        const struct plan_geometry geometry = choose(CONTEXT, 16);
        unsigned sliding = 0;
        check_places(&geometry);
        for (unsigned g = 0; g < geometry.page_groups; g++) sliding += geometry.page_window[g] > 0;
        assert_int_equal(geometry.page_groups, cases[i].groups);
        assert_int_equal(geometry.page_bytes, cases[i].layers * kv_layer_bytes(&config, PAGE, ENCODING_F32));
        assert_int_equal(sliding, cases[i].sliding);
    }
}

/* Layers without a window have larger heads, and the last layers read the keys of earlier ones. */
TEST(layers_of_two_sizes)
{
    static const char *const patterns[] = {"SSSSF", "SSSSSF", "SF"};
    for (int shared = 0; shared < 2; shared++)
        for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
            make_config(patterns[i], 6);
            const size_t period = strlen(patterns[i]);
            for (uint64_t l = 0; l < config.layers; l++) {
                if (!config.layer[l].window) config.layer[l].head_dim = 64, config.layer[l].kv_heads = 4;
                if (shared && l >= 2 * period) config.layer[l].shares = (uint32_t)(period + l % period + 1);
            }
            const uint64_t own = shared ? 2 : 6, one = kv_layer_bytes(&config, PAGE, ENCODING_F32);
            assert_int_equal(kv_all_bytes(&config, PAGE, ENCODING_F32), own * (period - 1 + 4) * one);
            assert_int_equal(model_attention_layers(&config), own * period);
            const struct plan_geometry geometry = choose(CONTEXT, 16), small = choose(64, 16);
            check_places(&geometry);
            check_places(&small);
            assert_true(geometry.page_groups > 1 && geometry.page_bytes % PLAN_ALIGNMENT == 0);
            assert_int_equal(small.page_groups, 1);
            assert_int_equal(small.page_bytes, kv_all_bytes(&config, PAGE, ENCODING_F32));
        }
}

/* Gemma 3 4b has 29 layers with a window and 5 without: pages of 5 leave one layer unused, in a group with a window. */
TEST(padding_lies_where_it_costs_least)
{
    make_config("SSSSSF", 5);
    for (int i = 0; i < 4; i++) config.layer[config.layers++].window = 64;
    const struct plan_geometry geometry = choose(CONTEXT, 16);
    check_places(&geometry);
    assert_int_equal(geometry.page_groups, 7);
    assert_int_equal(geometry.page_bytes, 5 * kv_layer_bytes(&config, PAGE, ENCODING_F32));
    /* 64 + 16 - 1 tokens touch 6 pages. */
    assert_int_equal(plan_sequence_pages(&geometry, CONTEXT, 16), 6 * 6 + CONTEXT / PAGE);
}

TEST(a_window_that_saves_nothing_makes_no_group)
{
    make_config("SSSSSF", 4);
    static const struct {
        uint64_t context, chunk;
    } cases[] = {{64, 1}, {80, 1}, {CONTEXT, CONTEXT}, {CONTEXT, UINT64_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct plan_geometry geometry = choose(cases[i].context, cases[i].chunk);
        assert_int_equal(geometry.page_groups, 1);
        assert_int_equal(geometry.page_window[0], 0);
        assert_int_equal(geometry.page_bytes, 24 * kv_layer_bytes(&config, PAGE, ENCODING_F32));
        for (uint32_t l = 0; l < config.layers; l++)
            assert_int_equal(page_place_of(&config, ENCODING_F32, &geometry, l).offset,
                             l * kv_layer_bytes(&config, PAGE, ENCODING_F32));
    }
}

/* Never more bytes than one group takes for all layers, whatever the pattern. */
TEST(random_patterns)
{
    uint64_t random = 1;
    for (int round = 0; round < 300; round++) {
        char pattern[MOST_LAYERS + 1] = {0};
        const uint64_t layers = 1 + test_random(&random) % MOST_LAYERS;
        for (uint64_t l = 0; l < layers; l++) pattern[l] = "SSTF"[test_random(&random) % 4];
        make_config(pattern, 1);
        const uint64_t chunk = 1 + test_random(&random) % 600;
        const struct plan_geometry geometry = choose(1 + test_random(&random) % CONTEXT, chunk);
        check_places(&geometry);
        assert_true(plan_sequence_pages(&geometry, geometry.max_context, chunk) * geometry.page_bytes <=
                    geometry.pages_per_slot * layers * kv_layer_bytes(&config, PAGE, ENCODING_F32));
    }
}

TEST(sizes_that_overflow_are_refused)
{
    struct plan_geometry geometry = {.slots = 1, .max_context = 16, .page_tokens = UINT64_MAX / 2, .pages_per_slot = 1};
    make_config("SF", 1);
    assert_false(page_groups_choose(&config, ENCODING_F32, 1, &geometry));
}

int main(void) { return test_run(); }
