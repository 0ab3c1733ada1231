/* SPDX-License-Identifier: Apache-2.0 */
/* Loading an engine whose manifest states windows: its plans must see no more tokens than those. */
#include "formats/engine/test_engine.h"
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "runtime/load/load.h"

enum { WINDOW_ID = 12 };

static struct test_engine sample;

static bool load(const char *folder, struct status *status)
{
    struct plan_space_sizes sizes = {0};
    struct engine file;
    char path[512];
    size_t decode_plans;
    snprintf(path, sizeof path, "%s/a.eng", folder);
    test_expect_success(test_engine_write(&sample, path, false, status), status);
    if (!engine_open(&file, path, status)) return false;
    const bool ok = load_check_plans(&file, &decode_plans, &sizes, status);
    engine_close(&file);
    return ok;
}

/* The sample engine with a window of its page group and one of the launch of attention. */
static bool load_windows(const char *folder, uint64_t held, int64_t seen, struct status *status)
{
    status_clear(status);
    assert_true(test_engine_make(&sample, status));
    sample.manifest.geometry.page_groups = 1;
    sample.manifest.geometry.page_window[0] = held;
    const struct plan_launch *launch = test_engine_launch(&sample, 0, OP_ATTENTION);
    struct plan_param *param = &sample.storage[0].params[launch->first_param + WINDOW_ID - 1];
    assert_int_equal(param->id, WINDOW_ID);
    param->value = seen;
    return load(folder, status);
}

TEST(windows_of_manifest_and_plans)
{
    char *folder = test_folder();
    struct status status = {0};
    test_expect_success(load_windows(folder, 0, 0, &status), &status);
    test_expect_success(load_windows(folder, 0, 4, &status), &status);
    test_expect_success(load_windows(folder, 4, 4, &status), &status);
    test_expect_success(load_windows(folder, 4, 1, &status), &status);
    test_expect_failure(load_windows(folder, 4, 5, &status), &status, STATUS_CORRUPT,
                        "attention|parameter window is 5|hold a window of 4");
    test_expect_failure(load_windows(folder, 4, 0, &status), &status, STATUS_CORRUPT, "parameter window is 0");
    test_folder_remove(folder);
}

TEST(a_table_of_no_group)
{
    char *folder = test_folder();
    struct status status = {0};
    assert_true(test_engine_make(&sample, &status));
    const struct plan_launch *launch = test_engine_launch(&sample, 0, OP_ATTENTION);
    struct plan_operand *operands = &sample.storage[0].operands[launch->first_operand];
    const struct plan_field *table = &sample.manifest.geometry.state[STATE_PAGE_TABLE];
    unsigned found = 0;
    for (uint32_t i = 0; i < launch->operand_count; i++) {
        if (operands[i].space != SPACE_STATE || operands[i].offset != table->offset) continue;
        operands[i].offset += plan_page_table_stride(&sample.manifest.geometry);
        found++;
    }
    assert_int_equal(found, 1);
    test_expect_failure(load(folder, &status), &status, STATUS_CORRUPT, "attention|page_table");
    test_folder_remove(folder);
}

int main(void) { return test_run(); }
