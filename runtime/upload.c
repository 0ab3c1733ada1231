#include "runtime/upload.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "formats/hash.h"
#include "kernels/cpu/processors.h"
#include "kernels/cpu/team.h"
#include "runtime/memory_limit.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; older kernels answer EINVAL and pages come one by one */
#endif

enum {
    /* A thread copies and hashes 5 GB/s or more; a link of 16 lanes of PCIe 5 takes 55. */
    MOST_THREADS = 16,
    BUFFERS = 2, /* of a thread: one is filled while the other is on its way */
    BUFFER_BYTES = ENGINE_WEIGHT_CHUNK_BYTES,
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
    cu_stream stream;
    cu_event sent[BUFFERS]; /* recorded behind the last copy out of the buffer */
};

static void advise(const struct engine *file, uint64_t offset, uint64_t bytes, int advice)
{
    if (offset >= file->manifest.weights_bytes) return;
    if (bytes > file->manifest.weights_bytes - offset) bytes = file->manifest.weights_bytes - offset;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)(file->weights + offset) & ~(page - 1);
    uintptr_t end = (uintptr_t)(file->weights + offset + bytes);
    /* Only advice: where it is refused the pages arrive by faults. */
    madvise((void *)first, end - first, advice);
}

/* Piece by piece, so that what was copied is hashed while it is near. The bytes that go to the device are those that were
 * hashed, whatever becomes of the file meanwhile. */
static bool copy_chunk(const struct engine *file, uint64_t chunk, uint8_t *copy, const uint8_t *from, uint64_t bytes,
                       struct status *status)
{
    struct hash64_stream *hash = hash64_stream_begin();
    if (!hash) return status_fail(status, STATUS_MACHINE, "out of memory");
    for (uint64_t done = 0; done < bytes; done += PIECE_BYTES) {
        uint64_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        memcpy(copy + done, from + done, piece);
        hash64_stream_add(hash, copy + done, piece);
    }
    if (hash64_stream_end(hash) == file->weight_hashes[chunk]) return true;
    if (!engine_verify_weights(file, chunk, 1, status)) return false;
    return status_fail(status, STATUS_CORRUPT,
                       "section 'weights': chunk %" PRIu64 ": the file changed while it was loaded", chunk);
}

static bool send_chunk(const struct upload *upload, const struct lane *lane, uint8_t *buffers, uint64_t turn,
                       uint64_t chunk, struct status *status)
{
    const struct engine *file = upload->file;
    const struct cuda_driver *driver = &upload->device->driver;
    uint8_t *buffer = buffers + turn % BUFFERS * BUFFER_BYTES;
    cu_event sent = lane->sent[turn % BUFFERS];
    uint64_t offset = chunk * ENGINE_WEIGHT_CHUNK_BYTES, rest = file->manifest.weights_bytes - offset;
    uint64_t bytes = rest < ENGINE_WEIGHT_CHUNK_BYTES ? rest : ENGINE_WEIGHT_CHUNK_BYTES;
    advise(file, offset + READ_AHEAD_CHUNKS * (uint64_t)ENGINE_WEIGHT_CHUNK_BYTES, bytes, MADV_WILLNEED);
    advise(file, offset, bytes, MADV_POPULATE_READ);
    if (turn >= BUFFERS && !cuda_ok(driver, driver->EventSynchronize(sent), status, "copying weights to the GPU"))
        return false;
    return copy_chunk(file, chunk, buffer, file->weights + offset, bytes, status) &&
           cuda_ok(driver,
                   driver->MemcpyHtoDAsync(upload->to + offset -
                                               upload->range.first * (uint64_t)ENGINE_WEIGHT_CHUNK_BYTES,
                                           buffer, bytes, lane->stream),
                   status, "copying weights to the GPU") &&
           cuda_ok(driver, driver->EventRecord(sent, lane->stream), status, "copying weights to the GPU");
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
    struct lane lane = {0};
    uint8_t *buffers = upload->staging + (uint64_t)member->index * BUFFERS * BUFFER_BYTES;
    if (!device_enter(upload->device, status)) return false;
    bool ok = open_lane(upload, &lane, status);
    uint64_t chunk;
    for (uint64_t turn = 0; ok && (chunk = team_ticket(member)) < upload->range.count &&
                            !atomic_load_explicit(&upload->failed, memory_order_relaxed);
         turn++)
        ok = send_chunk(upload, &lane, buffers, turn, upload->range.first + chunk, status);
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
