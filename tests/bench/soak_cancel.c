/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/soak_cancel.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "tests/bench/bench_session.h"

struct entry {
    struct eng_sequence *sequence; /* NULL: free */
    double due;                    /* bench_seconds() */
    bool is_cancelled;
};

struct soak_canceller {
    pthread_t thread;
    pthread_mutex_t lock; /* of all that follows */
    bool ends;
    uint32_t count;
    struct entry entries[]; /* [count] */
};

static void *run(void *argument)
{
    static const struct timespec pause = {.tv_nsec = 200000};
    struct soak_canceller *canceller = argument;
    for (bool ends = false; !ends;) {
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&canceller->lock);
        const double now = bench_seconds();
        for (uint32_t i = 0; i < canceller->count; i++) {
            struct entry *entry = &canceller->entries[i];
            if (!entry->sequence || entry->is_cancelled || now < entry->due) continue;
            eng_sequence_cancel_async(entry->sequence);
            entry->is_cancelled = true;
        }
        ends = canceller->ends;
        pthread_mutex_unlock(&canceller->lock);
    }
    return NULL;
}

struct soak_canceller *soak_canceller_create(uint32_t most)
{
    struct soak_canceller *canceller = calloc(1, sizeof *canceller + most * sizeof *canceller->entries);
    if (!canceller) bench_end(BENCH_MACHINE, "out of memory");
    canceller->count = most;
    pthread_mutex_init(&canceller->lock, NULL);
    if (pthread_create(&canceller->thread, NULL, run, canceller)) bench_end(BENCH_MACHINE, "cannot start a thread");
    return canceller;
}

void soak_canceller_destroy(struct soak_canceller **canceller)
{
    struct soak_canceller *destroyed = *canceller;
    *canceller = NULL;
    pthread_mutex_lock(&destroyed->lock);
    destroyed->ends = true;
    pthread_mutex_unlock(&destroyed->lock);
    pthread_join(destroyed->thread, NULL);
    pthread_mutex_destroy(&destroyed->lock);
    free(destroyed);
}

void soak_cancel_later(struct soak_canceller *canceller, struct eng_sequence *sequence, double seconds)
{
    uint32_t i = 0;
    pthread_mutex_lock(&canceller->lock);
    while (i < canceller->count && canceller->entries[i].sequence) i++;
    if (i == canceller->count) bench_end(BENCH_MACHINE, "more sequences than places");
    canceller->entries[i] = (struct entry){.sequence = sequence, .due = bench_seconds() + seconds};
    pthread_mutex_unlock(&canceller->lock);
}

bool soak_cancel_withdraw(struct soak_canceller *canceller, const struct eng_sequence *sequence)
{
    bool was_cancelled = false;
    pthread_mutex_lock(&canceller->lock);
    for (uint32_t i = 0; i < canceller->count; i++) {
        if (canceller->entries[i].sequence != sequence) continue;
        was_cancelled = canceller->entries[i].is_cancelled;
        canceller->entries[i] = (struct entry){0};
    }
    pthread_mutex_unlock(&canceller->lock);
    return was_cancelled;
}
