#include "runtime/cli/cli_args.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/cli_process.h"

static const char *program = "eng";

void cli_set_program(const char *name) { program = name; }

const char *cli_program(void) { return program; }

int cli_usage(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char message[STATUS_MESSAGE_BYTES];
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s: %s (try '%s --help')\n", program, message, program);
    return CLI_USAGE;
}

static int fail(enum status_code code, const char *message)
{
    const struct status status = {.code = code};
    fprintf(stderr, "%s: %s\n", program, message);
    if (code == STATUS_MACHINE || code == STATUS_INTERNAL) cli_end_soon(status_exit_code(&status));
    return status_exit_code(&status);
}

int cli_fail_status(const struct status *status) { return fail(status->code, status->message); }

int cli_fail_error(const struct eng_error *error) { return fail((enum status_code)error->status, error->message); }

int cli_bad_flag(int found, char *const *argv)
{
    /* optopt is a letter for short flags; for an unknown long one it is 0, and a long one's argv entry is the last. */
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
    bool ok = (*text >= '0' && *text <= '9') || *text == '.';
    double number = ok ? strtod(text, &end) : 0;
    if (ok && !*end && isfinite(number) && number >= least && number <= most) {
        *value = number;
        return true;
    }
    cli_usage("%s: expected a number from %g to %g, found '%s'", flag, least, most, text);
    return false;
}

bool cli_read_list(const char *flag, const char *text, uint64_t least, uint64_t most, uint64_t **values, size_t *count)
{
    char *copy = strdup(text), *rest = NULL;
    uint64_t *list = NULL;
    size_t used = 0, capacity = 0;
    bool ok = copy != NULL;
    for (char *word = ok ? strtok_r(copy, ", \t\n\r[]", &rest) : NULL; word && ok;
         word = strtok_r(NULL, ", \t\n\r[]", &rest)) {
        if (used == capacity) {
            capacity = capacity ? 2 * capacity : 16;
            uint64_t *larger = realloc(list, capacity * sizeof *list);
            ok = larger != NULL;
            if (ok) list = larger;
        }
        ok = ok && cli_read_number(flag, word, least, most, &list[used]);
        used++;
    }
    free(copy);
    if (ok && used == 0) {
        cli_usage("%s: expected numbers separated by commas, found '%s'", flag, text);
        ok = false;
    }
    if (!ok) {
        free(list);
        return false;
    }
    *values = list;
    *count = used;
    return true;
}

bool cli_read_devices(const char *text, struct cli_devices *devices)
{
    uint64_t *values = NULL;
    size_t count = 0;
    if (!cli_read_list("--device", text, 0, INT32_MAX, &values, &count)) return false;
    bool ok = count <= CLI_MOST_DEVICES;
    if (!ok) cli_usage("--device: expected at most %d GPUs, found %zu", CLI_MOST_DEVICES, count);
    for (size_t i = 0; ok && i < count; i++) devices->numbers[i] = (uint32_t)values[i];
    devices->count = (uint32_t)count;
    devices->text = text;
    free(values);
    return ok;
}

enum eng_status cli_use_devices(const struct cli_devices *devices, struct eng_open_options *options,
                                struct eng_error *error)
{
    options->only_cuda_user = 1;
    /* One is the first: an engine for several takes those behind it, too. */
    options->device = devices->count > 0 ? devices->numbers[0] : 0;
    options->device_count = devices->count > 1 ? devices->count : 0;
    options->devices = devices->count > 1 ? devices->numbers : NULL;
    options->no_peer_access = devices->no_peer_access;
    if (!devices->launched) return ENG_OK;
    int length = devices->address ? snprintf(options->address, sizeof options->address, "%s", devices->address) : 0;
    if (length < 0 || (size_t)length >= sizeof options->address) {
        error->status = ENG_USAGE;
        snprintf(error->message, sizeof error->message, "--address: expected at most %zu bytes, found %d",
                 sizeof options->address - 1, length);
        return ENG_USAGE;
    }
    enum eng_status status = eng_open_options_from_launcher(options, error);
    if (status == ENG_OK && options->process > 0 && !freopen("/dev/null", "w", stdout)) {
        error->status = status = ENG_MACHINE;
        snprintf(error->message, sizeof error->message, "/dev/null: cannot be opened for writing");
    }
    return status;
}
