/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the programs that run engines, besides formats/cli: errors of the library, and the flags that select
 * GPUs. */
#ifndef RUNTIME_CLI_CLI_ARGS_H
#define RUNTIME_CLI_CLI_ARGS_H

#include "formats/cli/cli_args.h"
#include "runtime/eng.h"

/* Like cli_fail_status. */
int cli_fail_error(const struct eng_error *error);

/* How an engine is opened: --device (the number of a GPU, or a list for engines for several GPUs), --no-peer-access,
 * --launched, --address, --private-weights, --no-jit, --no-libraries. */
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
};
bool cli_read_devices(const char *text, struct cli_devices *devices);
/* The options borrow from `devices`. In all processes but the first, stdout is discarded from now on. */
enum eng_status cli_use_devices(const struct cli_devices *devices, struct eng_open_options *options,
                                struct eng_error *error);

#endif
