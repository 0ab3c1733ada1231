/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs that run engines have besides formats/cli: the library's errors, and the flags that choose GPUs. */
#ifndef RUNTIME_CLI_CLI_ARGS_H
#define RUNTIME_CLI_CLI_ARGS_H

#include "formats/cli/cli_args.h"
#include "runtime/eng.h"

/* As cli_fail_status. */
int cli_fail_error(const struct eng_error *error);

/* How an engine is opened. --device: the number of a GPU, or of the several that an engine is for; --no-peer-access;
 * --launched, --address; --private-weights; --no-jit; --no-libraries. */
enum { CLI_MOST_DEVICES = 16 };
struct cli_devices {
    uint32_t numbers[CLI_MOST_DEVICES];
    uint32_t count;   /* 0: not given */
    const char *text; /* as given */
    bool no_peer_access;
    bool launched;       /* one of several processes that share the GPUs */
    const char *address; /* NULL: as the launcher has it */
    bool private_weights;
    bool no_libraries;
    bool no_jit;
};
bool cli_read_devices(const char *text, struct cli_devices *devices);
/* The options borrow from `devices`. Of several processes all but the first are silent on stdout from now on. */
enum eng_status cli_use_devices(const struct cli_devices *devices, struct eng_open_options *options,
                                struct eng_error *error);

#endif
