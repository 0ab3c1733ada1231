/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/progress.h"

bool load_progress_add(struct load_progress *progress, uint64_t bytes, struct status *status)
{
    if (!progress || !progress->callback) return true;
    const uint64_t done = atomic_fetch_add(&progress->done, bytes) + bytes;
    if (pthread_equal(pthread_self(), progress->thread) && progress->callback(progress->context, done, progress->total))
        atomic_store(&progress->is_cancelled, true);
    return !atomic_load(&progress->is_cancelled) ||
           status_fail(status, STATUS_CANCELLED, "the progress function ended the loading after %llu of %llu bytes",
                       (unsigned long long)done, (unsigned long long)progress->total);
}
