/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/load_engine.h"

#include <time.h>

#include "runtime/distributed/process_group.h"

double load_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void load_tell_others(const struct eng_engine *engine, struct status *status)
{
    struct status first;
    if (!engine->process_group) return;
    if (process_group_ok(engine->process_group, &first))
        process_group_fail(engine->process_group, status->message);
    else
        *status = first;
}

void load_hear_of_others(struct eng_engine *engine)
{
    enum { LOOKS = 100 };
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    struct status ignored;
    if (atomic_exchange(&engine->has_heard, true)) return;
    for (int i = 0; engine->process_group && i < LOOKS && process_group_ok(engine->process_group, &ignored); i++)
        nanosleep(&pause, NULL);
}
