/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of a loader on an engine of several ranks: the sample engine and damaged copies of it. */

#include "formats/engine/test_engine.h"
#include "formats/base/test_program.h"
#include "runtime/load/load.h"

/* The sample engine of two ranks, with plans that a loader accepts. */
TEST(a_loader_checks_plans_of_ranks)
{
    static struct test_engine sample;
    char folder[] = "/tmp/ranks_test.XXXXXX", path[64];
    struct engine file;
    struct plan_space_sizes sizes = {0};
    size_t decode_plans;
    struct status status = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a.eng", folder);
    assert_true(test_engine_make_ranks(&sample, &status));
    if (!test_engine_write(&sample, path, false, &status)) fail_msg("%s", status.message);
    if (!engine_open(&file, path, &status)) fail_msg("%s", status.message);
    if (!load_check_plans(&file, &decode_plans, &sizes, &status)) fail_msg("%s", status.message);
    assert_int_equal(decode_plans, 2);
    assert_int_equal(sizes.bytes[SPACE_WEIGHTS], TEST_ENGINE_REGION);
    assert_int_equal(sizes.bytes[SPACE_COMM], 1024);
    engine_close(&file);

    /* Random bytes in the plans: either refused with a message, or no launch writes to the header, which holds the
     * addresses of other ranks' memory. */
    size_t size;
    uint8_t *bytes = test_engine_read(path, &size);
    assert_non_null(bytes);
    const struct engine_section_entry *section = test_engine_entry(bytes, size, SECTION_PLANS);
    uint8_t *data = bytes + section->offset, *good = test_engine_copy(data, section->stored_bytes);
    int taken = 0, refused = 0;
    for (int round = 0; round < 600; round++) {
        for (int i = rand() % 3; i >= 0; i--) {
            uint64_t at = (uint64_t)rand() % section->stored_bytes;
            data[at] = (uint8_t)(rand() % 2 ? data[at] ^ 1 << rand() % 8 : rand());
        }
        engine_fix_checksums(bytes, size);
        status_clear(&status);
        bool opened = engine_open_memory(&file, bytes, size, "broken", &status);
        if (opened && load_check_plans(&file, &decode_plans, &sizes, &status)) {
            taken++;
            for (size_t p = 0; p < file.plan_count; p++)
                for (uint32_t l = 0; l < file.plans[p].header.launch_count; l++) {
                    const struct plan_launch *launch = &file.plans[p].launches[l];
                    const struct plan_operand *operands = &file.plans[p].operands[launch->first_operand];
                    bool collective = launch->op == OP_ALL_REDUCE || launch->op == OP_ALL_GATHER;
                    for (uint32_t o = 0; !collective && o < launch->operand_count; o++)
                        assert_false(operands[o].space == SPACE_COMM && operands[o].access != ACCESS_READ);
                }
        } else {
            refused++;
            assert_true(status.code != STATUS_OK && status.message[0]);
        }
        if (opened) engine_close(&file);
        memcpy(data, good, section->stored_bytes);
    }
    assert_true(taken > 10 && refused > 100);
    free(good);
    free(bytes);
    unlink(path);
    rmdir(folder);
}

int main(void) { return test_run(); }
