/* SPDX-License-Identifier: Apache-2.0 */
/* Records of any number of values are read from the cache's file completely or not at all. */
#include "tuner/records.h"
#include "formats/base/test_program.h"

#include <inttypes.h>

#include "formats/base/test_support.h"

enum { MOST = 3 * TUNING_MAX_VALUES };

static void make_values(struct tuning_value values[MOST])
{
    memset(values, 0, MOST * sizeof *values);
    for (int i = 0; i < MOST; i++) {
        snprintf(values[i].name, sizeof values[i].name, "kernel %d", i);
        values[i].value = INT64_MAX - i;
    }
}

static void add(struct tactics *tactics, const struct tuning_value *values, int count, bool is_new)
{
    struct tuning_record record = {.key = "plan", .level = "quick", .median_us = 3, .candidates = 7};
    struct status status = {0};
    test_expect_success(tactics_add_long(tactics, &record, values, count, is_new, &status), &status);
}

static bool has_values(const struct tactics *tactics, const struct tuning_value *values, int count)
{
    const struct tuning_record *record = tactics_answer(tactics, "plan", TUNE_QUICK);
    assert_non_null(record);
    assert_true(record->median_us == 3 && record->candidates == 7);
    struct tuning_value *found = tactics_long_values(tactics, record, count);
    bool same = found != NULL;
    for (int i = 0; same && i < count; i++)
        same = strcmp(found[i].name, values[i].name) == 0 && found[i].value == values[i].value;
    assert_true(same || !found);
    free(found);
    return same;
}

TEST(any_number_of_values_comes_back)
{
    struct tuning_value values[MOST];
    make_values(values);
    for (int count = 1; count <= MOST; count++) {
        struct status status = {0};
        struct tuning_cache cache;
        char *folder = test_folder();
        test_expect_success(tuning_cache_open(&cache, test_path(folder, "records"), &status), &status);
        struct tactics tactics = {.cache = &cache};
        add(&tactics, values, count, true);
        /* As many values as one record holds are stored as one record. */
        assert_int_equal(tactics.count == 1, count <= TUNING_MAX_VALUES);
        assert_int_equal(cache.count, tactics.count);
        assert_string_equal(tactics.records[tactics.count - 1].key, "plan");
        tuning_cache_close(&cache);

        test_expect_success(tuning_cache_open(&cache, test_path(folder, "records"), &status), &status);
        assert_int_equal(cache.damaged, 0);
        assert_true(has_values(&tactics, values, count));
        for (int other = 1; other <= MOST; other++)
            if (other != count) assert_false(has_values(&tactics, values, other));
        /* The engine carries the same records whether they were measured or cached. */
        struct tactics known = {.cache = &cache};
        add(&known, values, count, false);
        assert_int_equal(known.count, tactics.count);
        assert_memory_equal(known.records, tactics.records, known.count * sizeof *known.records);
        tactics_free(&known);
        tactics_free(&tactics);
        tuning_cache_close(&cache);
        test_folder_remove(folder);
    }
}

/* A lost or changed continuation loses these values and nothing else. */
TEST(a_lost_part_costs_the_record)
{
    struct tuning_value values[MOST];
    struct tuning_cache cache = {0};
    struct tactics tactics = {.cache = &cache};
    make_values(values);
    add(&tactics, values, MOST, true);
    assert_true(cache.count > 2);
    for (size_t i = 0; i + 1 < cache.count; i++) {
        struct tuning_cache lacking = {0};
        for (size_t r = 0; r < cache.count; r++)
            if (r != i) assert_true(tuning_cache_add(&lacking, &cache.records[r], NULL));
        tactics.cache = &lacking;
        assert_false(has_values(&tactics, values, MOST));
        tuning_cache_close(&lacking);
    }
    tactics_free(&tactics);
    tuning_cache_close(&cache);
}

int main(void) { return test_run(); }
