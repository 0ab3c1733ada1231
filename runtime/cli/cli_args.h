/* Flags and messages as all command line tools have them: every bad value ends in one line on stderr that says which
 * flag, what was expected and what was found. */
#ifndef RUNTIME_CLI_CLI_ARGS_H
#define RUNTIME_CLI_CLI_ARGS_H

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/status.h"
#include "runtime/eng.h"

/* Exit codes of DESIGN; a signal adds its number to 128. */
enum { CLI_DONE = 0, CLI_BAD_INPUT = 1, CLI_USAGE = 2, CLI_MACHINE = 3, CLI_INTERNAL = 4, CLI_SIGNAL = 128 };

void cli_set_program(const char *name); /* constant text; begins every message */
const char *cli_program(void);

/* Each prints one line and returns the exit code. */
int cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
int cli_fail_status(const struct status *status);
int cli_fail_error(const struct eng_error *error);

/* The message for getopt_long's '?' and ':' (opterr 0, option string beginning with ':'). Returns CLI_USAGE. */
int cli_bad_flag(int found, char *const *argv);

/* Each prints its message and returns false when `text` is not what it should be. */
bool cli_read_number(const char *flag, const char *text, uint64_t least, uint64_t most, uint64_t *value);
bool cli_read_real(const char *flag, const char *text, double least, double most, double *value);
/* Numbers separated by commas or white space (brackets around them are allowed); *values is malloc'd. */
bool cli_read_list(const char *flag, const char *text, uint64_t least, uint64_t most, uint64_t **values, size_t *count);

/* --device: the number of a GPU, or of the several that an engine is for; --no-peer-access; --launched, --address. */
enum { CLI_MOST_DEVICES = 16 };
struct cli_devices {
    uint32_t numbers[CLI_MOST_DEVICES];
    uint32_t count;   /* 0: not given */
    const char *text; /* as given */
    bool no_peer_access;
    bool launched;       /* one of several processes that share the GPUs */
    const char *address; /* NULL: as the launcher has it */
};
bool cli_read_devices(const char *text, struct cli_devices *devices);
/* The options borrow from `devices`. Of several processes all but the first are silent on stdout from now on. */
enum eng_status cli_use_devices(const struct cli_devices *devices, struct eng_open_options *options,
                                struct eng_error *error);

#endif
