/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/backend/turns.h"

#include <pthread.h>

enum { TURNS = 64 }; /* GPUs beyond share one, which is correct and slower */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const void *owner; /* of the last step; NULL: none */
    cu_event ended;    /* the owner's */
} turns[TURNS];

static unsigned turn_of(const struct device *device) { return (unsigned)device->index % TURNS; }

bool turn_begin(const struct device *device, const void *owner, struct status *status)
{
    const unsigned turn = turn_of(device);
    pthread_mutex_lock(&lock);
    if (!turns[turn].owner || turns[turn].owner == owner ||
        cuda_ok(&device->driver, device->driver.StreamWaitEvent(device->stream, turns[turn].ended, 0), status,
                "waiting for another session's step"))
        return true;
    pthread_mutex_unlock(&lock);
    return false;
}

void turn_end(const struct device *device, const void *owner, cu_event ended)
{
    const unsigned turn = turn_of(device);
    turns[turn].owner = owner;
    turns[turn].ended = ended;
    pthread_mutex_unlock(&lock);
}

void turn_forget(const struct device *device, const void *owner)
{
    const unsigned turn = turn_of(device);
    pthread_mutex_lock(&lock);
    if (turns[turn].owner == owner) turns[turn].owner = NULL;
    pthread_mutex_unlock(&lock);
}
