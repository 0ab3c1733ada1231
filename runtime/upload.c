#include "runtime/upload.h"

#include <inttypes.h>
#include <stdatomic.h>

#include "formats/hash.h"
#include "kernels/cpu/processors.h"
#include "kernels/cpu/team.h"
#include "runtime/memory_limit.h"

enum {
    /* A thread copies and hashes 5 GB/s or more; a link of 16 lanes of PCIe 5 takes 55. */
    MOST_THREADS = 16,
    BUFFERS = 2, /* of a thread: one is filled while the other is on its way */
    /* Small ones: pinning memory takes the driver time, which several GPUs do not share. */
    BUFFER_BYTES = 512 << 10,
    PIECE_BYTES = 128 << 10,
    READ_AHEAD_CHUNKS = 64,
};

struct upload {
    const struct engine *file;
    const struct device *device;
    cu_deviceptr to;
    struct upload_range range;
    uint8_t *staging; /* pinned: [threads, BUFFERS, BUFFER_BYTES] */
    atomic_bool failed;
    struct status *status; /* of the thread that set `failed` first */
};

/* What one thread holds. */
struct lane {
    uint8_t *buffers; /* pinned: [BUFFERS, BUFFER_BYTES] */
    uint64_t turn;    /* parts so far */
    cu_stream stream;
    cu_event sent[BUFFERS]; /* recorded behind the last copy out of the buffer */
};

/* Into the buffer, piece by piece, so that what was copied is hashed while it is near. The bytes that go to the device are
 * those that were hashed, whatever becomes of the file meanwhile. */
static bool copy_part(const struct engine *file, uint64_t offset, uint8_t *buffer, uint64_t bytes,
                      struct hash64_stream *hash, struct status *status)
{
    for (uint64_t done = 0; done < bytes; done += PIECE_BYTES) {
        uint64_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        if (!engine_read_weights(file, offset + done, buffer + done, piece, status)) return false;
        hash64_stream_add(hash, buffer + done, piece);
    }
    return true;
}

static bool send_part(const struct upload *upload, struct lane *lane, uint64_t offset, uint64_t bytes,
                      struct hash64_stream *hash, struct status *status)
{
    const struct cuda_driver *driver = &upload->device->driver;
    uint64_t turn = lane->turn++, begin = upload->range.first * (uint64_t)ENGINE_WEIGHT_CHUNK_BYTES;
    uint8_t *buffer = lane->buffers + turn % BUFFERS * BUFFER_BYTES;
    cu_event sent = lane->sent[turn % BUFFERS];
    if (turn >= BUFFERS && !cuda_ok(driver, driver->EventSynchronize(sent), status, "copying weights to the GPU"))
        return false;
    return copy_part(upload->file, offset, buffer, bytes, hash, status) &&
           cuda_ok(driver, driver->MemcpyHtoDAsync(upload->to + offset - begin, buffer, bytes, lane->stream), status,
                   "copying weights to the GPU") &&
           cuda_ok(driver, driver->EventRecord(sent, lane->stream), status, "copying weights to the GPU");
}

/* A chunk that proves wrong is on the device by then: nobody uses it, for the load fails. */
static bool send_chunk(const struct upload *upload, struct lane *lane, uint64_t chunk, struct status *status)
{
    const struct engine *file = upload->file;
    uint64_t offset = chunk * ENGINE_WEIGHT_CHUNK_BYTES, rest = file->manifest.weights_bytes - offset;
    uint64_t bytes = rest < ENGINE_WEIGHT_CHUNK_BYTES ? rest : ENGINE_WEIGHT_CHUNK_BYTES;
    struct hash64_stream *hash = hash64_stream_begin();
    if (!hash) return status_fail(status, STATUS_MACHINE, "out of memory");
    engine_read_ahead(file, offset + READ_AHEAD_CHUNKS * (uint64_t)ENGINE_WEIGHT_CHUNK_BYTES, bytes);
    bool ok = true;
    for (uint64_t done = 0; ok && done < bytes; done += BUFFER_BYTES)
        ok = send_part(upload, lane, offset + done, bytes - done < BUFFER_BYTES ? bytes - done : BUFFER_BYTES, hash,
                       status);
    bool right = hash64_stream_end(hash) == file->weight_hashes[chunk];
    if (!ok || right) return ok;
    if (!engine_verify_weights(file, chunk, 1, status)) return false;
    return status_fail(status, STATUS_CORRUPT,
                       "section 'weights': chunk %" PRIu64 ": the file changed while it was loaded", chunk);
}

static bool open_lane(const struct upload *upload, struct lane *lane, struct status *status)
{
    const struct cuda_driver *driver = &upload->device->driver;
    bool ok = cuda_ok(driver, driver->StreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING), status, "making a stream");
    for (int i = 0; ok && i < BUFFERS; i++)
        ok = cuda_ok(driver, driver->EventCreate(&lane->sent[i], CU_EVENT_DISABLE_TIMING), status, "making an event");
    return ok;
}

static bool run_lane(struct upload *upload, struct team_member *member, struct status *status)
{
    const struct cuda_driver *driver = &upload->device->driver;
    struct lane lane = {.buffers = upload->staging + (uint64_t)member->index * BUFFERS * BUFFER_BYTES};
    if (!device_enter(upload->device, status)) return false;
    bool ok = open_lane(upload, &lane, status);
    uint64_t chunk;
    while (ok && (chunk = team_ticket(member)) < upload->range.count &&
           !atomic_load_explicit(&upload->failed, memory_order_relaxed))
        ok = send_chunk(upload, &lane, upload->range.first + chunk, status);
    /* In either case: the staging buffers go away. */
    if (lane.stream) {
        cu_result result = driver->StreamSynchronize(lane.stream);
        if (ok) ok = cuda_ok(driver, result, status, "copying weights to the GPU");
        driver->StreamDestroy(lane.stream);
    }
    for (int i = 0; i < BUFFERS; i++)
        if (lane.sent[i]) driver->EventDestroy(lane.sent[i]);
    device_leave(upload->device);
    return ok;
}

static void run_member(void *argument, struct team_member *member)
{
    struct upload *upload = argument;
    struct status status;
    status_clear(&status);
    if (!run_lane(upload, member, &status) && !atomic_exchange(&upload->failed, true)) *upload->status = status;
}

bool upload_weights(const struct engine *file, const struct device *device, cu_deviceptr to, struct upload_range range,
                    uint32_t threads, int *used_threads, struct status *status)
{
    const struct cuda_driver *driver = &device->driver;
    if (!threads) threads = (uint32_t)processors_available();
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads > range.count) threads = (uint32_t)range.count;
    struct upload upload = {.file = file, .device = device, .to = to, .range = range, .status = status};
    atomic_init(&upload.failed, false);
    struct team *team = team_create((int)threads, status);
    if (!team) return false;
    *used_threads = team_size(team);
    void *staging = NULL;
    bool ok = false;
    if (!device_enter(device, status)) goto done;
    uint64_t bytes = (uint64_t)team_size(team) * BUFFERS * BUFFER_BYTES;
    ok = memory_limit_check("staging of the weights", bytes, bytes, "free memory or use fewer threads", status) &&
         cuda_ok(driver, driver->MemHostAlloc(&staging, bytes, CU_MEMHOSTALLOC_PORTABLE), status,
                 "%" PRIu64 " bytes of pinned memory", bytes);
    if (ok) {
        upload.staging = staging;
        team_run(team, run_member, &upload);
        ok = !atomic_load(&upload.failed);
        driver->MemFreeHost(staging);
    }
    device_leave(device);

done:
    team_destroy(team);
    return ok;
}
