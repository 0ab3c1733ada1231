/* SPDX-License-Identifier: Apache-2.0 */
/* A program's flags as a table, from which parsing, checks of values and --help derive. -h, --help and --version are
 * added to every table. */
#ifndef FORMATS_CLI_CLI_FLAGS_H
#define FORMATS_CLI_CLI_FLAGS_H

#include "formats/cli/cli_args.h"

struct cli_list {
    uint64_t *values; /* owned; NULL: not given */
    size_t count;
};

/* One of the pointers is set: where the value goes. A later flag of the same name replaces an earlier one. */
struct cli_flag {
    const char *name;  /* without "--"; NULL: `help` is a heading, or without that the table ends */
    char letter;       /* 0: none; else messages name the flag by it */
    const char *value; /* stands for the value in --help; NULL: the flag has none */
    bool *set;
    const char **text;
    uint64_t *number; /* from least to most */
    double *real;     /* likewise */
    /* With `real`: 0 is refused, too, and the message says that a number and this text are expected. */
    const char *above_zero;
    struct cli_list *list; /* numbers from least to most */
    int *choice;           /* of `choices`; without a value: `most` */
    const struct cli_choice *choices;
    bool (*read)(const char *text, void *to); /* prints a message and returns false if the text is not valid */
    void *to;
    uint64_t least, most;
    bool *given;      /* NULL, or set to true */
    const char *help; /* NULL: shares the line of the next flag */
};

enum { CLI_MOST_TABLES = 2 };
struct cli_command {
    const char *usage;                              /* --help before the flags */
    const struct cli_flag *tables[CLI_MOST_TABLES]; /* NULL: none */
    const char *notes;                              /* --help after the flags */
    const char *version;
};

/* Returns an exit code, after a message if it is not CLI_DONE. The arguments that are no flags are argv[optind] and on.
 * *finished: --help or --version was printed. */
int cli_read_flags(const struct cli_command *command, int argc, char **argv, bool *finished);
/* After cli_read_flags: the one argument that is no flag. */
int cli_read_engine_path(int argc, char **argv, const char **path);

#endif
