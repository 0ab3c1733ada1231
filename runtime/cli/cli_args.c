/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_args.h"

#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int cli_fail_error(const struct eng_error *error)
{
    struct status status;
    const char *message = error->message;
    /* Messages of the library begin with "eng_name: "; users of a program do not know these functions. */
    size_t name = strspn(message, "abcdefghijklmnopqrstuvwxyz_");
    if (strncmp(message, "eng_", 4) == 0 && strncmp(message + name, ": ", 2) == 0) message += name + 2;
    status_fail(&status, (enum status_code)error->status, "%s", message);
    return cli_fail_status(&status);
}

static bool read_devices(const char *text, void *to)
{
    struct cli_devices *devices = to;
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

void cli_device_flags(struct cli_devices *devices, struct cli_flag flags[CLI_DEVICE_FLAGS])
{
    enum { MOST_THREADS = 256 };
    const struct cli_flag table[CLI_DEVICE_FLAGS] = {
        {"threads", 0, "N", .number = &devices->threads, .most = MOST_THREADS,
         .help = "0 (the default): one per processor"},
        {"isa", 0, "NAME", .text = &devices->instruction_set,
         .help = "instructions: portable, avx2, avx512, avx512vnni, avx512bf16 or amx instead of the best"},
        {"private-weights", .set = &devices->private_weights,
         .help =
             "engines for processors: copy the weights into memory of this process; the file may then be overwritten"},
        {"no-libraries", .set = &devices->no_libraries,
         .help = "engines for GPUs: use only the engine's own kernels and load no library but the driver; starts "
                 "faster, some steps take longer"},
        {"device", 0, "LIST", .read = read_devices, .to = devices,
         .help = "number of the GPU (0); for an engine for several GPUs the numbers of all, or the first"},
        {"no-peer-access", .set = &devices->no_peer_access,
         .help = "GPUs exchange data through host memory even if they can access each other's memory"},
        {"launched", .set = &devices->launched,
         .help = "this is one of several processes, started by torchrun or mpirun with the same arguments on one "
                 "machine or more, that share the engine's GPUs; only the first one prints"},
        {"address", 0, "HOST:PORT", .text = &devices->address,
         .help = "with --launched: where the first process listens, instead of the address from the environment"},
        {.name = NULL},
    };
    memcpy(flags, table, sizeof table);
}

int cli_check_devices(const struct cli_devices *devices)
{
    return devices->address && !devices->launched ? cli_usage("--address: only with --launched") : CLI_DONE;
}

enum eng_status cli_use_devices(const struct cli_devices *devices, struct eng_open_options *options,
                                struct eng_error *error)
{
    options->only_cuda_user = 1;
    options->threads = (uint32_t)devices->threads;
    /* With one number, an engine for several GPUs uses the following ones, too. */
    options->device = devices->count > 0 ? devices->numbers[0] : 0;
    options->device_count = devices->count > 1 ? devices->count : 0;
    options->devices = devices->count > 1 ? devices->numbers : NULL;
    options->no_peer_access = devices->no_peer_access;
    options->private_weights = devices->private_weights;
    options->no_libraries = devices->no_libraries;
    options->no_jit = devices->no_jit;
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

enum eng_status cli_open_draft(const char *path, const struct cli_devices *devices, struct eng_engine **draft,
                               struct eng_error *error)
{
    struct eng_open_options options;
    *draft = NULL;
    if (!path) return ENG_OK;
    eng_open_options_init(&options);
    const enum eng_status status = cli_use_devices(devices, &options, error);
    /* The engine's GPUs may be others, or more; the draft engine's begin with the same one. */
    options.only_cuda_user = 0;
    options.device_count = 0;
    options.devices = NULL;
    return status ? status : eng_open(path, &options, draft, error);
}

void cli_note_fallback(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    if (eng_session_get_facts(session, &facts, NULL) != ENG_OK) return;
    if (facts.fallback)
        fprintf(stderr, "%s: note: the engine's own kernels are used: %s\n", cli_program(), facts.fallback);
    if (facts.detour)
        fprintf(stderr, "%s: note: the GPUs exchange data through host memory: %s\n", cli_program(), facts.detour);
}

void cli_note_speculation(const struct eng_session *session)
{
    struct eng_session_facts facts;
    eng_session_facts_init(&facts);
    if (eng_session_get_facts(session, &facts, NULL) == ENG_OK && !facts.speculate)
        fprintf(stderr,
                "%s: note: nothing is speculated: the engine has no verification plans (engbuild --verify-rows)\n",
                cli_program());
}
