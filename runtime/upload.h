/* Weights to a device at link speed: threads copy them, chunk by chunk, out of the file into pinned buffers, hash what
 * they copied and queue it for the device, each on a stream of its own. */
#ifndef RUNTIME_UPLOAD_H
#define RUNTIME_UPLOAD_H

#include "formats/engine_file.h"
#include "kernels/cuda/device.h"

/* Chunks of the weights: all, or a rank's. */
struct upload_range {
    uint64_t first, count;
};

/* `to` has room for the chunks of the range. threads 0: as many as a link can use. On success every chunk's hash was right,
 * as engine_verify_weights has it, and all bytes have arrived. */
bool upload_weights(const struct engine *file, const struct device *device, cu_deviceptr to, struct upload_range range,
                    uint32_t threads, int *used_threads, struct status *status);

#endif
