/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers and lists from the command line: the accepted forms; everything else is refused. */

#include "formats/cli/cli_flags.h"
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
    assert_true(cli_read_real("-t", "-0.5", -2, 2, &value) && value == -0.5);
    assert_false(cli_read_real("-t", "-2.5", -2, 2, &value) || cli_read_real("-t", "-", -2, 2, &value) ||
                 cli_read_real("-t", "--1", -2, 2, &value));
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

/* Every flag of a table is known to the parser, or the program ends with a message: no flag is lost. */
TEST(test_as_many_flags_as_there_is_place_for)
{
    enum { PLACES = 64, COMMON = 2 };
    static char names[PLACES][16];
    for (int count = PLACES - COMMON; count <= PLACES; count++) {
        struct cli_flag flags[PLACES + 1] = {{.name = NULL}};
        const struct cli_command command = {"", {flags}, "", "0"};
        bool set[PLACES] = {false}, finished = false;
        for (int i = 0; i < count; i++) {
            snprintf(names[i], sizeof names[i], "f%d", i);
            flags[i] = (struct cli_flag){.name = names[i], .set = &set[i], .help = "x"};
        }
        char last[16];
        snprintf(last, sizeof last, "--f%d", count - 1);
        char *arguments[] = {"program", last, NULL};
        optind = 1;
        const int code = cli_read_flags(&command, 2, arguments, &finished);
        assert_int_equal(code, count == PLACES - COMMON ? CLI_DONE : CLI_INTERNAL);
        assert_int_equal(set[count - 1], code == CLI_DONE);
    }
}

int main(void) { return test_run(); }
