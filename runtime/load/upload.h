/* SPDX-License-Identifier: Apache-2.0 */
/* Copies weights to a device at link speed: threads copy chunks from the file into pinned buffers and hash them there;
 * the device copies from the buffers. */
#ifndef RUNTIME_LOAD_UPLOAD_H
#define RUNTIME_LOAD_UPLOAD_H

#include "formats/engine/engine_file.h"
#include "kernels/cuda/device.h"
#include "runtime/load/progress.h"

/* Chunks of the weights: all, or those of a rank. */
struct upload_range {
    uint64_t first, count;
};

struct upload;

/* Prepares the upload of a range of chunks to device memory at `to`. `gpus` is the number of GPUs filled at the same
 * time. threads 0: as many as a link can use. Starts threads and allocates pinned memory, which takes about as long as
 * loading kernels and may run at the same time. `progress`: NULL, or hears of
 * each chunk. NULL on failure. Requires: file, device and progress outlive the upload. */
struct upload *upload_open(const struct engine *file, const struct device *device, cu_deviceptr to,
                           struct upload_range range, uint32_t gpus, uint32_t threads, struct load_progress *progress,
                           struct status *status);
int upload_threads(const struct upload *upload);
/* Runs the upload; call it once. On success all bytes have arrived and the hash of every chunk was correct. */
bool upload_run(struct upload *upload, struct status *status);
void upload_close(struct upload *upload); /* does nothing on NULL */

#endif
