/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers and lists from the command line: the accepted forms; everything else is refused. */

#include "formats/cli/cli_args.h"
#include "formats/base/test_program.h"

TEST(test_numbers)
{
    uint64_t value;
    assert_true(cli_read_number("-n", "0", 0, 10, &value) && value == 0);
    assert_true(cli_read_number("-n", "18446744073709551615", 0, UINT64_MAX, &value) && value == UINT64_MAX);
    static const char *const bad[] = {"", " 1", "1 ", "+1", "-1", "1x", "0x10", "11", "18446744073709551616", "1.5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(cli_read_number("-n", bad[i], 0, 10, &value));
    assert_false(cli_read_number("-n", "1", 2, 10, &value));
}

TEST(test_reals)
{
    double value;
    assert_true(cli_read_real("-t", "0.75", 0, 1, &value) && value == 0.75);
    assert_true(cli_read_real("-t", ".5", 0, 1, &value) && value == 0.5);
    assert_true(cli_read_real("-t", "1e-3", 0, 1, &value) && value == 1e-3);
    static const char *const bad[] = {"", "nan", "inf", "-0.1", "1.1", "0.5x", " 0.5", "1e999", "."};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(cli_read_real("-t", bad[i], 0, 1, &value));
}

TEST(test_lists)
{
    static const char *const same[] = {"1,2,30", "1 2 30", "[1, 2, 30]", "1, 2,\n30", " [1 2 , 30]\n"};
    uint64_t *values;
    size_t count;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_true(cli_read_list("--tokens", same[i], 0, 30, &values, &count));
        assert_int_equal(count, 3);
        assert_int_equal(values[0], 1);
        assert_int_equal(values[1], 2);
        assert_int_equal(values[2], 30);
        free(values);
    }
    static const char *const bad[] = {"",     "[]", ",",  " ",     "1,x",  "1,31", "1;2",  "-1",
                                      "1,,2", "1,", ",1", "1, ,2", "[1,2", "1,2]", "[1],2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(cli_read_list("--tokens", bad[i], 0, 30, &values, &count));
}

TEST(test_choices)
{
    static const struct cli_choice choices[] = {{"cpu", 3}, {"cuda", 5}, {NULL, 0}};
    int value;
    assert_true(cli_read_choice("--target", "cuda", choices, &value) && value == 5);
    static const char *const bad[] = {"", "cud", "cuda ", "CPU"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(cli_read_choice("--target", bad[i], choices, &value));
}

int main(void) { return test_run(); }
