/* SPDX-License-Identifier: Apache-2.0 */
/* What launchers of several processes leave in the environment. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/hash.h"
#include "runtime/eng.h"
#include "runtime/load/report.h"

/* The names under which a launcher tells a process its place. */
struct launcher {
    const char *name;
    const char *process, *processes, *local_process, *local_processes;
    const char *job;  /* the same text in all processes, another in another job; may be NULL, or not set */
    bool has_address; /* always in MASTER_ADDR and MASTER_PORT, which is a port of its own */
    const char *run;  /* its name of the run, which may serve as token; may be NULL, or not set */
};
static const struct launcher launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL, true, "TORCHELASTIC_RUN_ID"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", false, NULL},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, false, NULL},
};
enum {
    LAUNCHERS = sizeof launchers / sizeof *launchers,
    DEFAULT_PORT = 29400,
    PORTS = 2000, /* of jobs: up to where Linux takes ports for connections */
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

static const struct launcher *find_launcher(void)
{
    for (int i = 0; i < LAUNCHERS; i++)
        if (getenv(launchers[i].process) && getenv(launchers[i].processes)) return &launchers[i];
    return NULL;
}

/* A port above the launcher's own; without one, any will do that all agree on, best one that another job has not. */
static bool find_address(const struct launcher *launcher, struct eng_open_options *options, struct status *status)
{
    const char *host = getenv("MASTER_ADDR");
    if (host && !*host) host = NULL;
    const char *job = launcher->job ? getenv(launcher->job) : NULL;
    uint32_t port = DEFAULT_PORT + (job ? (uint32_t)(hash64(job, strlen(job)) % PORTS) : 0), local = 0;
    if (!host && !launcher->has_address) {
        if (!read_number(launcher->local_processes, MOST_NUMBER, &local, status)) return false;
        if (local == options->processes) host = "127.0.0.1";
    }
    if (!host)
        return status_fail(status, STATUS_USAGE,
                           "environment: %s: expected MASTER_ADDR to be the host of process 0, found nothing; set it "
                           "(mpirun -x MASTER_ADDR=HOST), or give an address",
                           launcher->name);
    if ((launcher->has_address || getenv("MASTER_PORT")) && (!read_number("MASTER_PORT", MOST_PORT - 1, &port, status)))
        return false;
    bool is_bare = strchr(host, ':') && *host != '['; /* an address of IPv6 */
    const char *format = is_bare ? "[%s]:%" PRIu32 : "%s:%" PRIu32;
    int length = snprintf(options->address, sizeof options->address, format, host, port + 1);
    return (length > 0 && (size_t)length < sizeof options->address) ||
           status_fail(status, STATUS_USAGE,
                       "environment: MASTER_ADDR: expected a name of at most 255 bytes, found %zu", strlen(host));
}

/* The text itself is in no message. */
static bool find_token(const struct launcher *launcher, struct eng_open_options *options, struct status *status)
{
    const char *own = getenv("ENG_JOB_TOKEN"), *run = launcher->run ? getenv(launcher->run) : NULL;
    if (!own && (!run || !*run || !strcmp(run, "none"))) return true; /* torchrun's id of those who gave none */
    const char *token = own ? own : run;
    size_t length = strlen(token);
    if (length < 1 || length >= sizeof options->token)
        return status_fail(status, STATUS_USAGE, "environment: %s: expected a text of 1 to %zu bytes, found %zu",
                           own ? "ENG_JOB_TOKEN" : launcher->run, sizeof options->token - 1, length);
    memcpy(options->token, token, length + 1);
    return true;
}

static bool read_environment(struct eng_open_options *options, struct status *status)
{
    const struct launcher *launcher = find_launcher();
    if (!launcher)
        return status_fail(
            status, STATUS_USAGE,
            "environment: expected a process that torchrun or mpirun has started, found neither RANK and "
            "WORLD_SIZE nor the variables of Open MPI or MPICH");
    if (!read_number(launcher->process, MOST_NUMBER, &options->process, status) ||
        !read_number(launcher->processes, MOST_NUMBER, &options->processes, status) ||
        !read_number(launcher->local_process, MOST_NUMBER, &options->local_process, status))
        return false;
    options->local_processes = 0;
    if (getenv(launcher->local_processes) &&
        !read_number(launcher->local_processes, MOST_NUMBER, &options->local_processes, status))
        return false;
    if (options->processes <= 1) return true;
    return (options->token[0] != '\0' || find_token(launcher, options, status)) &&
           (options->address[0] != '\0' || find_address(launcher, options, status));
}

enum eng_status eng_open_options_from_launcher(struct eng_open_options *options, struct eng_error *error)
{
    struct status status;
    struct eng_open_options own;
    status_clear(&status);
    if (!report_not_null(options, "eng_open_options_from_launcher", "options", &status) ||
        !report_read_options(&own, sizeof own, options, "eng_open_options", &status) ||
        !read_environment(&own, &status) || !report_write_facts(options, &own, sizeof own, "eng_open_options", &status))
        return report_status(&status, error);
    return report_ok(error);
}
