/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's function that hears how far eng_open is, and may end it. Threads that load weights note what they have done; the
 * function is called by the thread of eng_open alone. */
#ifndef RUNTIME_LOAD_PROGRESS_H
#define RUNTIME_LOAD_PROGRESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "formats/base/status.h"
#include "runtime/eng.h"

struct load_progress {
    eng_progress_callback *callback; /* NULL: none */
    void *context;
    pthread_t thread; /* that calls it */
    uint64_t total;   /* bytes */
    atomic_uint_fast64_t done;
    atomic_bool is_cancelled;
};

/* So many more bytes of weights are loaded. False: the loading is to end. `progress` may be NULL. */
bool load_progress_add(struct load_progress *progress, uint64_t bytes, struct status *status);

#endif
