/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a process that torchrun, Open MPI, MPICH or Intel MPI has started, from its environment variables. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/hash.h"
#include "runtime/eng.h"
#include "runtime/load/report.h"

/* Names of the environment variables that one launcher sets. */
struct process_env {
    const char *name;
    const char *process, *processes, *local_process, *local_processes;
    const char *job;  /* identifies the job; NULL if the launcher has none; the variable may be unset */
    bool has_address; /* MASTER_ADDR and MASTER_PORT are always set; the port is in use by the launcher */
    const char *run;  /* its id of the run, used as token; NULL if the launcher has none; may be unset */
};
static const struct process_env process_envs[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL, true, "TORCHELASTIC_RUN_ID"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", false, NULL},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, false, NULL},
};
enum {
    PROCESS_ENVS = sizeof process_envs / sizeof *process_envs,
    DEFAULT_PORT = 29400,
    PORTS = 2000, /* for different jobs; the range ends below the ephemeral ports of Linux */
    MOST_PORT = 65535,
    MOST_NUMBER = 65535
};

static bool read_number(const char *name, uint32_t most, uint32_t *number, struct status *status)
{
    const char *text = getenv(name);
    char *end = NULL;
    unsigned long value = text && *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : most + 1ul;
    if (end && !*end && value <= most) {
        *number = (uint32_t)value;
        return true;
    }
    return status_fail(status, STATUS_USAGE,
                       "environment: %s: expected a number from 0 to %" PRIu32 ", found %s%.64s%s", name, most,
                       text ? "'" : "", text ? text : "nothing", text ? "'" : "");
}

static const struct process_env *find_process_env(void)
{
    for (int i = 0; i < PROCESS_ENVS; i++)
        if (getenv(process_envs[i].process) && getenv(process_envs[i].processes)) return &process_envs[i];
    return NULL;
}

/* The port is one above MASTER_PORT. Without one it is derived from the id of the job, so that two jobs seldom
 * collide. */
static bool find_address(const struct process_env *env, struct eng_open_options *options, struct status *status)
{
    const char *host = getenv("MASTER_ADDR");
    if (host && !*host) host = NULL;
    const char *job = env->job ? getenv(env->job) : NULL;
    uint32_t port = DEFAULT_PORT + (job ? (uint32_t)(hash64(job, strlen(job)) % PORTS) : 0), local = 0;
    if (!host && !env->has_address) {
        if (!read_number(env->local_processes, MOST_NUMBER, &local, status)) return false;
        if (local == options->processes) host = "127.0.0.1";
    }
    if (!host)
        return status_fail(status, STATUS_USAGE,
                           "environment: %s: expected the host of process 0 in MASTER_ADDR, found nothing; set it "
                           "(mpirun -x MASTER_ADDR=HOST), or give an address",
                           env->name);
    if ((env->has_address || getenv("MASTER_PORT")) && (!read_number("MASTER_PORT", MOST_PORT - 1, &port, status)))
        return false;
    bool is_bare = strchr(host, ':') && *host != '['; /* IPv6 without brackets */
    const char *format = is_bare ? "[%s]:%" PRIu32 : "%s:%" PRIu32;
    int length = snprintf(options->address, sizeof options->address, format, host, port + 1);
    return (length > 0 && (size_t)length < sizeof options->address) ||
           status_fail(status, STATUS_USAGE,
                       "environment: MASTER_ADDR: expected a name of at most 255 bytes, found %zu", strlen(host));
}

/* Messages never contain the token. */
static bool find_token(const struct process_env *env, struct eng_open_options *options, struct status *status)
{
    const char *own = getenv("ENG_JOB_TOKEN"), *run = env->run ? getenv(env->run) : NULL;
    if (!own && (!run || !*run || !strcmp(run, "none"))) return true; /* "none": torchrun's default */
    const char *token = own ? own : run;
    size_t length = strlen(token);
    if (length < 1 || length >= sizeof options->token)
        return status_fail(status, STATUS_USAGE, "environment: %s: expected a text of 1 to %zu bytes, found %zu",
                           own ? "ENG_JOB_TOKEN" : env->run, sizeof options->token - 1, length);
    memcpy(options->token, token, length + 1);
    return true;
}

static bool read_environment(struct eng_open_options *options, struct status *status)
{
    const struct process_env *env = find_process_env();
    if (!env)
        return status_fail(status, STATUS_USAGE,
                           "environment: expected the variables of torchrun (RANK, WORLD_SIZE), Open MPI or MPICH, "
                           "found none; start the "
                           "processes with torchrun or mpirun");
    if (!read_number(env->process, MOST_NUMBER, &options->process, status) ||
        !read_number(env->processes, MOST_NUMBER, &options->processes, status) ||
        !read_number(env->local_process, MOST_NUMBER, &options->local_process, status))
        return false;
    options->local_processes = 0;
    if (getenv(env->local_processes) &&
        !read_number(env->local_processes, MOST_NUMBER, &options->local_processes, status))
        return false;
    if (options->processes <= 1) return true;
    return (options->token[0] != '\0' || find_token(env, options, status)) &&
           (options->address[0] != '\0' || find_address(env, options, status));
}

enum eng_status eng_open_options_from_launcher(struct eng_open_options *options, struct eng_error *error)
{
    struct status status = {0};
    struct eng_open_options own;
    if (!report_not_null(options, "eng_open_options_from_launcher", "options", &status) ||
        !report_read_options(&own, sizeof own, options, "eng_open_options", &status) ||
        !read_environment(&own, &status) || !report_write_facts(options, &own, sizeof own, "eng_open_options", &status))
        return report_status(&status, error);
    return report_ok(error);
}
