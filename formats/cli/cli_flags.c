/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/cli/cli_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FLAGS = 64, FIRST_VALUE = 256, HELP_COLUMNS = 106, HELP_INDENT = 28, NAME_BYTES = 64 };

struct reading {
    const struct cli_flag *flags[MOST_FLAGS]; /* with headings */
    int count;
    struct option options[MOST_FLAGS + 1]; /* val: FIRST_VALUE + index in `flags` */
    int option_count;
    char letters[2 * MOST_FLAGS + 2];
};

/* False: the program has more flags than there is place for. */
static bool add_table(struct reading *reading, const struct cli_flag *flag)
{
    size_t at = strlen(reading->letters);
    for (; flag && (flag->name || flag->help); flag++) {
        if (reading->count == MOST_FLAGS) return false;
        const int type = flag->value ? required_argument : no_argument, value = FIRST_VALUE + reading->count;
        reading->flags[reading->count++] = flag;
        if (!flag->name) continue;
        reading->options[reading->option_count++] = (struct option){flag->name, type, NULL, value};
        if (flag->letter) reading->letters[at++] = flag->letter;
        if (flag->letter && flag->value) reading->letters[at++] = ':';
    }
    return true;
}

/* Prints the flags: names on the left, what they do on the right. */
static void print_flags(const struct reading *reading)
{
    char left[2 * NAME_BYTES] = "", line[2048];
    for (int i = 0; i < reading->count; i++) {
        const struct cli_flag *flag = reading->flags[i];
        const char letter[] = {'-', flag->letter, ',', ' ', '\0'};
        size_t used = strlen(left);
        if (!flag->name) {
            printf("%s\n", flag->help);
            continue;
        }
        snprintf(left + used, sizeof left - used, "%s%s--%s%s%s%s", used ? "" : "  ",
                 flag->letter ? letter
                 : used       ? ""
                              : "    ",
                 flag->name, flag->value ? " " : "", flag->value ? flag->value : "", flag->help ? "" : ", ");
        if (!flag->help) continue;
        snprintf(line, sizeof line, "%-*s%s%s", *flag->help ? HELP_INDENT : 0, left,
                 strlen(left) >= HELP_INDENT ? "  " : "", flag->help);
        cli_print_wrapped(stdout, HELP_COLUMNS, 0, HELP_INDENT, line);
        left[0] = '\0';
    }
}

static bool take_real(const struct cli_flag *flag, const char *name, const char *text)
{
    if (!cli_read_real(name, text, (double)flag->least, (double)flag->most, flag->real)) return false;
    if (!flag->above_zero || *flag->real > 0) return true;
    cli_usage("%s: expected a number %s, found '%s'", name, flag->above_zero, text);
    return false;
}

static bool take(const struct cli_flag *flag, const char *text)
{
    char name[NAME_BYTES] = {'-', flag->letter, '\0'};
    if (!flag->letter) snprintf(name, sizeof name, "--%s", flag->name);
    if (flag->given) *flag->given = true;
    if (flag->set) *flag->set = true;
    if (flag->text) *flag->text = text;
    if (flag->number) return cli_read_number(name, text, flag->least, flag->most, flag->number);
    if (flag->real) return take_real(flag, name, text);
    if (flag->list) {
        free(flag->list->values);
        flag->list->values = NULL;
        return cli_read_list(name, text, flag->least, flag->most, &flag->list->values, &flag->list->count);
    }
    if (flag->choices) return cli_read_choice(name, text, flag->choices, flag->choice);
    if (flag->choice) *flag->choice = (int)flag->most;
    return !flag->read || flag->read(text, flag->to);
}

int cli_read_flags(const struct cli_command *command, int argc, char **argv, bool *finished)
{
    bool help = false, version = false;
    const struct cli_flag common[] = {{"help", 'h', .set = &help},
                                      {"version", .set = &version, .help = ""},
                                      {.name = NULL}};
    struct reading reading = {.letters = ":"};
    bool fits = true;
    for (int i = 0; i < CLI_MOST_TABLES; i++) fits = fits && add_table(&reading, command->tables[i]);
    if (!fits || !add_table(&reading, common)) {
        struct status status = {0};
        status_fail(&status, STATUS_INTERNAL, "a program has at most %d flags", MOST_FLAGS);
        return cli_fail_status(&status);
    }
    opterr = 0;
    int found;
    while ((found = getopt_long(argc, argv, reading.letters, reading.options, NULL)) != -1) {
        int index = found - FIRST_VALUE;
        for (int i = 0; index < 0 && i < reading.count; i++)
            if (reading.flags[i]->letter == found) index = i;
        if (index < 0) return cli_bad_flag(found, argv);
        if (!take(reading.flags[index], optarg)) return cli_value_code();
        if (!help && !version) continue;
        if (help) {
            fputs(command->usage, stdout);
            print_flags(&reading);
            fputs(command->notes, stdout);
        } else {
            printf("%s %s\n", cli_program(), command->version);
        }
        *finished = true;
        return CLI_DONE;
    }
    return CLI_DONE;
}

int cli_read_engine_path(int argc, char **argv, const char **path)
{
    if (argc == optind) return cli_usage("expected an engine file, found none");
    if (argc - optind > 1)
        return cli_usage("expected one engine file, found '%s' and '%s'", argv[optind], argv[optind + 1]);
    *path = argv[optind];
    return CLI_DONE;
}
