/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/cli/cli_args.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>


static int value_code = CLI_USAGE;

int cli_value_code(void) { return value_code; }

int cli_fail_status(const struct status *status)
{
    int code = status_exit_code(status);
    if (cli_reader_left()) return CLI_SIGNAL + SIGPIPE;
    if (code == CLI_USAGE)
        fprintf(stderr, "%s: %s (try '%s --help')\n", cli_program(), status->message, cli_program());
    else
        fprintf(stderr, "%s: %s\n", cli_program(), status->message);
    if (code == CLI_MACHINE || code == CLI_INTERNAL) cli_end_soon(code);
    return code;
}

int cli_out_of_memory(void) { return cli_fail_status(&(struct status){STATUS_MACHINE, "out of memory"}); }

int cli_usage(const char *format, ...)
{
    char message[STATUS_MESSAGE_BYTES];
    struct status status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    status_fail(&status, STATUS_USAGE, "%s", message);
    return cli_fail_status(&status);
}

int cli_bad_flag(int found, char *const *argv)
{
    /* optopt is the letter of a short flag and 0 for an unknown long one, which is the last argv entry. */
    const char *word = argv[optind - 1];
    char letter[3] = {'-', (char)optopt, '\0'};
    bool is_long = strncmp(word, "--", 2) == 0 || optopt == 0 || optopt > 127;
    const char *flag = is_long ? word : letter;
    if (found == ':') return cli_usage("flag %s: expected a value, found none", flag);
    if (is_long && strchr(word, '=') && optopt) return cli_usage("flag %s: expected no value", flag);
    return cli_usage("unknown flag %s", flag);
}

bool cli_read_number(const char *flag, const char *text, uint64_t least, uint64_t most, uint64_t *value)
{
    char *end = NULL;
    errno = 0;
    unsigned long long number = 0;
    bool ok = *text >= '0' && *text <= '9'; /* strtoull takes signs and spaces */
    if (ok) number = strtoull(text, &end, 10);
    if (ok && !*end && !errno && number >= least && number <= most) {
        *value = number;
        return true;
    }
    cli_usage("%s: expected a whole number from %" PRIu64 " to %" PRIu64 ", found '%s'", flag, least, most, text);
    return false;
}

bool cli_read_real(const char *flag, const char *text, double least, double most, double *value)
{
    char *end = NULL;
    const char *digits = text + (least < 0 && *text == '-');
    bool ok = (*digits >= '0' && *digits <= '9') || *digits == '.';
    double number = ok ? strtod(text, &end) : 0;
    if (ok && !*end && isfinite(number) && number >= least && number <= most) {
        *value = number;
        return true;
    }
    cli_usage("%s: expected a number from %g to %g, found '%s'", flag, least, most, text);
    return false;
}

static bool append(uint64_t value, uint64_t **values, size_t *count)
{
    /* Capacity grows in powers of two. */
    if ((*count & (*count - 1)) == 0) {
        uint64_t *larger = realloc(*values, (*count ? 2 * *count : 1) * sizeof **values);
        if (!larger) return false;
        *values = larger;
    }
    (*values)[(*count)++] = value;
    return true;
}

/* Strips white space and a pair of brackets around a list. */
static char *trim_list(char *text)
{
    size_t size = strlen(text);
    while (size && isspace((unsigned char)text[size - 1])) text[--size] = '\0';
    while (isspace((unsigned char)*text)) text++, size--;
    if (size < 2 || text[0] != '[' || text[size - 1] != ']') return text;
    text[size - 1] = '\0';
    return text + 1;
}

bool cli_read_list(const char *flag, const char *text, uint64_t least, uint64_t most, uint64_t **values, size_t *count)
{
    static const char space[] = " \t\n\r\f\v";
    char *copy = strdup(text), *rest = copy ? trim_list(copy) : NULL;
    uint64_t *list = NULL;
    size_t used = 0;
    bool ok = true, has_memory = copy != NULL;
    for (char *item; ok && has_memory && (item = strsep(&rest, ","));) {
        char *at = NULL, *word = strtok_r(item, space, &at);
        ok = word != NULL;
        if (!ok) cli_usage("%s: expected a number as item %zu, found none in '%s'", flag, used + 1, text);
        for (; ok && has_memory && word; word = strtok_r(NULL, space, &at)) {
            uint64_t value;
            ok = cli_read_number(flag, word, least, most, &value);
            if (ok) has_memory = append(value, &list, &used);
        }
    }
    free(copy);
    if (ok && has_memory) {
        *values = list;
        *count = used;
        return true;
    }
    if (!has_memory) {
        struct status status;
        status_fail(&status, STATUS_MACHINE, "%s: out of memory", flag);
        value_code = cli_fail_status(&status);
    }
    free(list);
    return false;
}

bool cli_read_choice(const char *flag, const char *text, const struct cli_choice *choices, int *value)
{
    char names[256] = "";
    for (; choices->name; choices++) {
        if (strcmp(text, choices->name) == 0) {
            *value = choices->value;
            return true;
        }
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", choices->name);
    }
    cli_usage("%s: expected one of %s; found '%s'", flag, names, text);
    return false;
}
