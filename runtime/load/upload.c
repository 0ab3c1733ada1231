/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/load/upload.h"

#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "formats/base/hash.h"
#include "formats/base/memory_limit.h"
#include "kernels/cpu/processors.h"
#include "kernels/cpu/team.h"
#include "runtime/load/host_memory.h"

enum {
    /* A thread copies and hashes 5 GB/s or more; 16 lanes of PCIe 5 carry 55 GB/s. */
    MOST_THREADS = 16,
    BUFFERS = 2, /* for each thread: one is filled while the other is copied to the device */
    /* Measured with 16 threads and one GPU: 26 GB/s in copies of 512 KiB, 46 with 1 MiB, 49 with 2 MiB. With 64 threads
     * and four GPUs: 73, 86 and 60 GB/s; buffers of 2 MiB exceed the processors' caches. */
    BUFFER_BYTES = 1 << 20,
    BUFFER_BYTES_ALONE = 2 << 20,
    PIECE_BYTES = 128 << 10,
    READ_AHEAD_CHUNKS = 64,
};

/* Host memory that GPUs access directly, for staging. */
struct pinned_memory {
    uint8_t *base;                 /* page aligned; NULL: none */
    struct host_memory registered; /* or allocated by the driver */
};

enum part_state { PART_FREE, PART_FILLED };

/* A buffer and the range of weight bytes in it. */
struct part {
    struct part *next; /* in `filled` or in the queue of copies */
    uint8_t *buffer;   /* pinned: [buffer_bytes] */
    uint64_t offset, bytes;
    cu_event sent; /* recorded after the copy from the buffer */
    _Atomic enum part_state state;
};

/* Threads fill parts. One thread at a time serves them: it queues copies of filled parts and frees parts whose copy has
 * ended. If all threads called the driver, they would wait for its locks longer than they read. */
struct upload {
    const struct engine *file;
    const struct device *device;
    cu_deviceptr to;
    struct upload_range range;
    struct load_progress *progress;
    struct team *team;
    uint64_t buffer_bytes;
    struct pinned_memory staging; /* [threads, BUFFERS, buffer_bytes] */
    cu_stream stream;
    struct part *_Atomic filled;   /* stack: newest first */
    atomic_flag is_served;         /* held by the thread that uses the fields below */
    struct part *oldest, **newest; /* queue of copies, in order */
    atomic_bool failed;
    struct status *status; /* written by the thread that sets `failed` first */
};

/* State of one thread. */
struct lane {
    struct part parts[BUFFERS];
    uint64_t turn; /* parts filled so far */
};

/* ---- pinned memory ---- */

/* A system may refuse to pin it although the driver can still allocate some. */
static bool pin_large_pages(struct pinned_memory *memory, const struct cuda_driver *driver, uint64_t bytes)
{
    struct status ignored = {0};
    if (!host_memory_map(&memory->registered, bytes, "pinned memory", NULL, &ignored)) return false;
    host_memory_use_large_pages(&memory->registered);
    memory->base = memory->registered.base;
    if (driver->MemHostRegister(memory->base, bytes, CU_MEMHOSTREGISTER_PORTABLE) == CU_SUCCESS) return true;
    host_memory_unmap(&memory->registered);
    memory->base = NULL;
    return false;
}

/* `what` is for messages. Uses large pages where available: four GPUs take 7 ms to pin 64 MiB of them, 35 ms for memory
 * of the driver. Requires: a device's context is current. All devices may use the memory. */
static bool pinned_memory_open(struct pinned_memory *memory, const struct cuda_driver *driver, uint64_t bytes,
                               const char *what, struct status *status)
{
    void *base = NULL;
    *memory = (struct pinned_memory){0};
    if (!memory_limit_check(what, bytes, bytes, "free memory or use fewer threads", status)) return false;
    if (pin_large_pages(memory, driver, bytes)) return true;
    if (!cuda_ok(driver, driver->MemHostAlloc(&base, bytes, CU_MEMHOSTALLOC_PORTABLE), status,
                 "%s: %" PRIu64 " bytes of pinned memory", what, bytes))
        return false;
    memory->base = base;
    return true;
}

/* Requires: the same context is current, and no copy uses the memory. */
static void pinned_memory_close(struct pinned_memory *memory, const struct cuda_driver *driver)
{
    if (memory->registered.base) {
        driver->MemHostUnregister(memory->base);
        host_memory_unmap(&memory->registered);
    } else if (memory->base) {
        driver->MemFreeHost(memory->base);
    }
    memory->base = NULL;
}

/* ---- parts ---- */

/* Fills the buffer piece by piece, so that data is hashed while it is in the cache. The device receives the bytes that
 * were hashed, even if the file changes. */
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

static void fail(struct upload *upload, const struct status *status)
{
    if (!atomic_exchange(&upload->failed, true)) *upload->status = *status;
}

static bool send_part(struct upload *upload, const struct part *part, struct status *status)
{
    const struct cuda_driver *driver = &upload->device->driver;
    uint64_t begin, bytes;
    engine_chunk(upload->file, upload->range.first, &begin, &bytes);
    cu_deviceptr to = upload->to + part->offset - begin;
    return cuda_ok(driver, driver->MemcpyHtoDAsync(to, part->buffer, part->bytes, upload->stream), status,
                   "copying weights to the GPU") &&
           cuda_ok(driver, driver->EventRecord(part->sent, upload->stream), status, "copying weights to the GPU");
}

static void send_filled(struct upload *upload)
{
    struct part *part = atomic_exchange(&upload->filled, NULL);
    while (part) {
        struct part *next = part->next;
        struct status status = {0};
        if (!send_part(upload, part, &status)) fail(upload, &status);
        part->next = NULL;
        *upload->newest = part;
        upload->newest = &part->next;
        part = next;
    }
}

/* Also after a failure, so that no thread waits for ever. */
static void take_back_sent(struct upload *upload)
{
    const struct cuda_driver *driver = &upload->device->driver;
    struct part *part;
    while ((part = upload->oldest)) {
        struct status status = {0};
        cu_result result = driver->EventQuery(part->sent);
        if (result == CU_ERROR_NOT_READY) break;
        if (!cuda_ok(driver, result, &status, "copying weights to the GPU")) fail(upload, &status);
        upload->oldest = part->next;
        if (!part->next) upload->newest = &upload->oldest;
        atomic_store(&part->state, PART_FREE); /* its thread may refill it at once */
    }
}

/* Does nothing if another thread serves; that thread then sees the parts filled before. */
static void serve(struct upload *upload)
{
    do {
        if (atomic_flag_test_and_set(&upload->is_served)) return;
        send_filled(upload);
        take_back_sent(upload);
        atomic_flag_clear(&upload->is_served);
    } while (atomic_load(&upload->filled));
}

/* Copies take microseconds: no sleep. */
static void wait_for_part(struct upload *upload, struct part *part)
{
    while (atomic_load(&part->state) != PART_FREE) {
        serve(upload);
        if (atomic_load(&part->state) != PART_FREE) sched_yield();
    }
}

static bool fill_part(struct upload *upload, struct lane *lane, uint64_t offset, uint64_t bytes,
                      struct hash64_stream *hash, struct status *status)
{
    struct part *part = &lane->parts[lane->turn++ % BUFFERS];
    wait_for_part(upload, part);
    if (!copy_part(upload->file, offset, part->buffer, bytes, hash, status)) return false;
    part->offset = offset;
    part->bytes = bytes;
    atomic_store(&part->state, PART_FILLED);
    part->next = atomic_load(&upload->filled);
    while (!atomic_compare_exchange_weak(&upload->filled, &part->next, part)) {}
    serve(upload);
    return true;
}

/* A wrong chunk may have reached the device already; the load fails, so it is never used. */
static bool send_chunk(struct upload *upload, struct lane *lane, uint64_t chunk, struct status *status)
{
    const struct engine *file = upload->file;
    uint64_t offset, bytes;
    engine_chunk(file, chunk, &offset, &bytes);
    struct hash64_stream *hash = hash64_stream_begin();
    if (!hash) return status_fail(status, STATUS_MACHINE, "out of memory");
    engine_read_ahead(file, offset + READ_AHEAD_CHUNKS * (uint64_t)ENGINE_WEIGHT_CHUNK_BYTES, bytes);
    bool ok = true;
    for (uint64_t done = 0; ok && done < bytes; done += upload->buffer_bytes)
        ok = fill_part(upload, lane, offset + done,
                       bytes - done < upload->buffer_bytes ? bytes - done : upload->buffer_bytes, hash, status);
    bool right = hash64_stream_end(hash) == file->weight_hashes[chunk];
    if (ok && right) return load_progress_add(upload->progress, bytes, status);
    if (!ok) return false;
    if (!engine_verify_weights(file, chunk, 1, status)) return false;
    return status_fail(status, STATUS_CORRUPT,
                       "section 'weights': chunk %" PRIu64 ": the file changed while it was loaded", chunk);
}

static bool open_lane(const struct upload *upload, int index, struct lane *lane, struct status *status)
{
    const struct cuda_driver *driver = &upload->device->driver;
    bool ok = true;
    for (int i = 0; ok && i < BUFFERS; i++) {
        lane->parts[i].buffer = upload->staging.base + ((uint64_t)index * BUFFERS + (uint64_t)i) * upload->buffer_bytes;
        atomic_init(&lane->parts[i].state, PART_FREE);
        ok = cuda_ok(driver, driver->EventCreate(&lane->parts[i].sent, CU_EVENT_DISABLE_TIMING), status,
                     "making an event");
    }
    return ok;
}

/* Waits for the copies of this thread's parts, which are about to be released. */
static void close_lane(struct upload *upload, struct lane *lane)
{
    for (int i = 0; i < BUFFERS; i++) {
        if (!lane->parts[i].sent) continue;
        wait_for_part(upload, &lane->parts[i]);
        upload->device->driver.EventDestroy(lane->parts[i].sent);
    }
}

static bool run_lane(struct upload *upload, struct team_member *member, struct status *status)
{
    struct lane lane = {.turn = 0};
    if (!device_enter(upload->device, status)) return false;
    bool ok = open_lane(upload, member->index, &lane, status);
    uint64_t chunk;
    while (ok && (chunk = team_ticket(member)) < upload->range.count &&
           !atomic_load_explicit(&upload->failed, memory_order_relaxed))
        ok = send_chunk(upload, &lane, upload->range.first + chunk, status);
    close_lane(upload, &lane);
    device_leave(upload->device);
    return ok;
}

static void run_member(void *argument, struct team_member *member)
{
    struct upload *upload = argument;
    struct status status = {0};
    if (!run_lane(upload, member, &status)) fail(upload, &status);
}

static bool take_memory(struct upload *upload, struct status *status)
{
    const struct cuda_driver *driver = &upload->device->driver;
    const uint64_t bytes = (uint64_t)team_size(upload->team) * BUFFERS * upload->buffer_bytes;
    if (!device_enter(upload->device, status)) return false;
    bool ok = pinned_memory_open(&upload->staging, driver, bytes, "staging of the weights", status) &&
              cuda_ok(driver, driver->StreamCreate(&upload->stream, CU_STREAM_NON_BLOCKING), status, "making a stream");
    device_leave(upload->device);
    return ok;
}

struct upload *upload_open(const struct engine *file, const struct device *device, cu_deviceptr to,
                           struct upload_range range, uint32_t gpus, uint32_t threads, struct load_progress *progress,
                           struct status *status)
{
    struct upload *upload = calloc(1, sizeof *upload);
    if (!upload) {
        status_fail(status, STATUS_MACHINE, "out of memory");
        return NULL;
    }
    if (!threads) threads = (uint32_t)processors_available();
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads > range.count) threads = (uint32_t)range.count;
    upload->file = file;
    upload->device = device;
    upload->to = to;
    upload->range = range;
    upload->progress = progress;
    upload->buffer_bytes = gpus > 1 ? BUFFER_BYTES : BUFFER_BYTES_ALONE;
    upload->newest = &upload->oldest;
    atomic_init(&upload->filled, NULL);
    atomic_flag_clear(&upload->is_served);
    atomic_init(&upload->failed, false);
    upload->team = team_create((int)threads, status);
    if (upload->team && take_memory(upload, status)) return upload;
    upload_close(upload);
    return NULL;
}

int upload_threads(const struct upload *upload) { return team_size(upload->team); }

bool upload_run(struct upload *upload, struct status *status)
{
    upload->status = status;
    team_run(upload->team, run_member, upload); /* each waits for its own copies */
    return !atomic_load(&upload->failed);
}

void upload_close(struct upload *upload)
{
    if (!upload) return;
    const struct cuda_driver *driver = &upload->device->driver;
    /* If the GPU was lost every call fails. If only its context cannot be entered, the memory is not released, since
     * the GPU may still read it. */
    bool entered = device_enter(upload->device, NULL);
    if (entered && upload->stream) driver->StreamSynchronize(upload->stream);
    if (upload->stream) driver->StreamDestroy(upload->stream);
    if (entered) {
        pinned_memory_close(&upload->staging, driver);
        device_leave(upload->device);
    }
    team_destroy(upload->team);
    free(upload);
}
