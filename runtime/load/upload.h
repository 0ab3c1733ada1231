/* SPDX-License-Identifier: Apache-2.0 */
/* Weights to a device at link speed: threads copy them, chunk by chunk, out of the file into pinned buffers and hash what they
 * copied, and the device copies it out of them. */
#ifndef RUNTIME_LOAD_UPLOAD_H
#define RUNTIME_LOAD_UPLOAD_H

#include "formats/engine/engine_file.h"
#include "kernels/cuda/device.h"

/* Chunks of the weights: all, or a rank's. */
struct upload_range {
    uint64_t first, count;
};

struct upload;

/* To where there is room for the chunks of the range, as one of so many GPUs that are filled at the same time. threads 0: as
 * many as a link can use. Takes threads and pinned memory, which takes the driver about as long as to bring kernels, and may
 * be done at the same time. NULL on failure. The file and the device outlive the upload. */
struct upload *upload_open(const struct engine *file, const struct device *device, cu_deviceptr to,
                           struct upload_range range, uint32_t gpus, uint32_t threads, struct status *status);
int upload_threads(const struct upload *upload);
/* Once. On success every chunk's hash was right, as engine_verify_weights has it, and all bytes have arrived. */
bool upload_run(struct upload *upload, struct status *status);
void upload_close(struct upload *upload); /* NULL is fine */

#endif
