/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the programs that run engines, besides formats/cli: errors of the library, and the flags that select
 * GPUs. */
#ifndef RUNTIME_CLI_CLI_ARGS_H
#define RUNTIME_CLI_CLI_ARGS_H

#include "formats/cli/cli_flags.h"
#include "runtime/eng.h"

/* Like cli_fail_status. */
int cli_fail_error(const struct eng_error *error);

/* How an engine is opened and on what it runs. */
enum { CLI_MOST_DEVICES = 16 };
struct cli_devices {
    uint32_t numbers[CLI_MOST_DEVICES];
    uint32_t count;   /* 0: not given */
    const char *text; /* as given */
    bool no_peer_access;
    bool launched;       /* one of several processes that share the GPUs */
    const char *address; /* NULL: from the environment */
    bool private_weights;
    bool no_libraries;
    bool no_jit;
    uint64_t threads;            /* 0: one per processor */
    const char *instruction_set; /* NULL: the best */
};
/* The flags for all of these except no_jit, as a table that ends. */
enum { CLI_DEVICE_FLAGS = 9 };
void cli_device_flags(struct cli_devices *devices, struct cli_flag flags[CLI_DEVICE_FLAGS]);
/* After cli_read_flags. Returns an exit code. */
int cli_check_devices(const struct cli_devices *devices);
/* The options borrow from `devices`. In all processes but the first, stdout is discarded from now on. */
enum eng_status cli_use_devices(const struct cli_devices *devices, struct eng_open_options *options,
                                struct eng_error *error);

/* Tokens that a draft engine drafts where --speculate does not say. */
enum { CLI_DRAFTED_TOKENS = 4 };
/* Opens the engine of --draft for a session on the same devices; path NULL: there is none, and *draft is NULL. It may be closed after
 * eng_session_create. */
enum eng_status cli_open_draft(const char *path, const struct cli_devices *devices, struct eng_engine **draft,
                               struct eng_error *error);

/* Prints on stderr why the engine's own kernels replace the libraries that it was built with, if they do. */
void cli_note_fallback(const struct eng_session *session);
/* Prints on stderr that --speculate has no effect, where it has none. */
void cli_note_speculation(const struct eng_session *session);

#endif
