/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cuda/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/checked.h"

static bool write_state(const struct cuda_memory *memory, const struct cuda_rig *rig, const struct device *device,
                        uint64_t kv_pages, struct status *status)
{
    const struct plan_geometry *geometry = &rig->manifest->geometry;
    const struct plan_field *fields = geometry->state;
    const uint64_t bytes = plan_host_state_bytes(geometry); /* the rest is zero: no prompt has been read */
    uint8_t *state = calloc(1, bytes);
    if (!state) return status_fail(status, STATUS_MACHINE, "out of memory");
    int32_t *table = (int32_t *)(void *)(state + fields[STATE_PAGE_TABLE].offset);
    const unsigned groups = plan_page_groups(geometry);
    const uint64_t rows = geometry->slots * groups, apart = kv_pages / rows ? kv_pages / rows : 1;
    for (uint64_t r = 0; r < rows; r++) {
        int32_t *row = table + plan_page_row(geometry, (unsigned)(r % groups), r / groups);
        for (uint64_t p = 0; p < geometry->pages_per_slot; p++) row[p] = (int32_t)((r * apart + p) % kv_pages);
    }
    struct sampler_state *samplers = (struct sampler_state *)(void *)(state + fields[STATE_SAMPLERS].offset);
    for (uint64_t s = 0; s < geometry->slots; s++)
        samplers[s] = (struct sampler_state){.top_p = 1, .repetition_penalty = 1};
    bool ok = device_write(device, memory->base[SPACE_STATE], state, bytes, "writing the state", status);
    free(state);
    return ok;
}

/* The rank exchanges with itself only. */
static bool write_comm(const struct cuda_memory *memory, const struct cuda_rig *rig, const struct device *device,
                       struct status *status)
{
    struct comm_header header;
    if (!memory->bytes[SPACE_COMM]) return true;
    cuda_comm_header_alone(&header, rig->gpus->ranks, memory->base[SPACE_COMM]);
    return cuda_comm_clear(device, memory->base[SPACE_COMM], memory->bytes[SPACE_COMM], status) &&
           cuda_comm_write(device, memory->base[SPACE_COMM], &header, status);
}

bool cuda_memory_open(struct cuda_memory *memory, const struct cuda_rig *rig, uint32_t rank, uint64_t kv_pages,
                      struct status *status)
{
    const struct manifest *manifest = rig->manifest;
    const struct device *device = &rig->gpus->devices[rank];
    const struct cuda_driver *driver = &device->driver;
    const struct device *ranks[PLAN_MAX_RANKS];
    const uint32_t gpus = rig->gpus->ranks;
    for (uint32_t r = 0; r < gpus; r++) ranks[r] = &rig->gpus->devices[r];
    memset(memory, 0, sizeof *memory);
    memory->base[SPACE_WEIGHTS] = rig->gpus->weights[rank];
    memory->bytes[SPACE_WEIGHTS] = manifest_rank_weights(manifest);
    memory->bytes[SPACE_COMM] = manifest->comm_bytes;
    memory->bytes[SPACE_ARENA] = rig->arena_bytes;
    memory->bytes[SPACE_STEP] = manifest->step_bytes;
    memory->bytes[SPACE_STATE] = manifest->state_bytes;
    if (!checked_mul(kv_pages, manifest->geometry.page_bytes, &memory->bytes[SPACE_KV]))
        return status_fail(status, STATUS_MACHINE, "the KV pages do not fit into 64-bit sizes");
    for (int s = SPACE_ARENA; s < SPACE_COUNT; s++) {
        if (!memory->bytes[s] && s == SPACE_COMM) continue;
        bool taken =
            s == SPACE_COMM
                ? cuda_comm_allocate(device, ranks, gpus, rig->gpus->link, memory->bytes[s], &memory->base[s], status)
                : cuda_ok(driver, driver->MemAlloc(&memory->base[s], memory->bytes[s]), status,
                          "allocating %" PRIu64 " bytes (%s)", memory->bytes[s], plan_space_name((unsigned)s));
        if (!taken || !cuda_ok(driver, driver->MemsetD8Async(memory->base[s], 0, memory->bytes[s], device->stream),
                               status, "clearing memory (%s)", plan_space_name((unsigned)s)))
            goto failed;
    }
    if (write_state(memory, rig, device, kv_pages, status) && write_comm(memory, rig, device, status)) return true;
failed:
    cuda_memory_close(memory, rig, device);
    return false;
}

void cuda_memory_close(struct cuda_memory *memory, const struct cuda_rig *rig, const struct device *device)
{
    for (int s = SPACE_ARENA; s < SPACE_COUNT; s++)
        if (memory->base[s] && s != SPACE_COMM) device->driver.MemFree(memory->base[s]);
    cuda_comm_free(device, rig->gpus->link, memory->base[SPACE_COMM], memory->bytes[SPACE_COMM]);
    memset(memory, 0, sizeof *memory);
}

bool cuda_memory_connect(struct cuda_memory *const *memories, const struct cuda_rig *rig, struct status *status)
{
    uint64_t comm[PLAN_MAX_RANKS];
    uint32_t ranks = rig->gpus->ranks;
    bool ok = true;
    for (uint32_t r = 0; r < ranks; r++) comm[r] = memories[r]->base[SPACE_COMM];
    for (uint32_t r = 0; ok && r < ranks; r++) {
        const struct device *device = &rig->gpus->devices[r];
        struct comm_header header;
        cuda_comm_header(&header, r, ranks, comm, 0);
        if (!device_enter(device, status)) return false;
        ok = cuda_comm_write(device, comm[r], &header, status);
        device_leave(device);
    }
    return ok;
}

bool cuda_memory_check(struct cuda_memory *const *memories, const struct cuda_rig *rig, struct status *status)
{
    bool ok = true, stopped = false;
    for (uint32_t r = 0; ok && r < rig->gpus->ranks; r++) {
        const struct device *device = &rig->gpus->devices[r];
        const struct cuda_driver *driver = &device->driver;
        struct comm_header header;
        if (!device_enter(device, status)) return false;
        ok = cuda_ok(driver,
                     driver->MemcpyDtoHAsync(&header, memories[r]->base[SPACE_COMM], sizeof header, device->stream),
                     status, "GPU %d: reading the comm header", device->ordinal) &&
             cuda_ok(driver, driver->StreamSynchronize(device->stream), status, "GPU %d: reading the comm header",
                     device->ordinal);
        device_leave(device);
        stopped = stopped || (ok && header.stop);
        if (ok && header.timed_out)
            ok = status_fail(status, STATUS_MACHINE,
                             "rank %" PRIu32 " (GPU %d) waited in a collective until its time limit, and rank %" PRIu32
                             " did not arrive; end other programs on these GPUs and build again",
                             r, device->ordinal, header.timed_out - 1);
    }
    return ok && (!stopped ||
                  status_fail(status, STATUS_MACHINE, "a collective was abandoned; the ranks' results are invalid"));
}

bool cuda_memory_randomise(const struct cuda_memory *memory, const struct device *device, enum plan_space space,
                           struct status *status)
{
    enum { PATTERN_BYTES = 8 << 20 };
    const uint64_t total = memory->bytes[space];
    uint64_t done = total < PATTERN_BYTES ? total : PATTERN_BYTES;
    uint16_t *pattern = malloc(PATTERN_BYTES);
    if (!pattern) return status_fail(status, STATUS_MACHINE, "out of memory");
    uint64_t state = 1;
    for (size_t i = 0; i < (done + 1) / sizeof *pattern; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407); /* Knuth, MMIX */
        /* Sign, an exponent that is about 2^-8 to 1 as BF16 and F32 and 2^-2 to 2 as F16, random mantissa but for a bit: no byte
         * is a NaN of e4m3. */
        uint16_t bits = (uint16_t)(state >> 48);
        pattern[i] = (uint16_t)((bits & 0x8000u) | ((0x3b80u + (bits & 0x03ffu)) & ~0x0040u));
    }
    cu_deviceptr base = memory->base[space];
    bool ok = cuda_ok(&device->driver, device->driver.MemcpyHtoDAsync(base, pattern, done, device->stream), status,
                      "filling memory (%s)", plan_space_name(space));
    /* Doubles the filled range by a copy. */
    while (ok && done < total) {
        uint64_t piece = total - done < done ? total - done : done;
        ok = cuda_ok(&device->driver, device->driver.MemcpyDtoDAsync(base + done, base, piece, device->stream), status,
                     "filling memory (%s)", plan_space_name(space));
        done += piece;
    }
    ok = ok && cuda_ok(&device->driver, device->driver.StreamSynchronize(device->stream), status, "filling memory (%s)",
                       plan_space_name(space));
    free(pattern);
    return ok;
}

bool cuda_inputs_open(struct cuda_inputs *inputs, const struct cuda_rig *rig, const struct plan_header *header,
                      struct status *status)
{
    uint64_t total;
    memset(inputs, 0, sizeof *inputs);
    const struct plan_geometry *geometry = &rig->manifest->geometry;
    if (!step_layout(header->rows, header->out_rows, geometry->vocab_size, geometry->hidden_size, geometry->drafts,
                     inputs->fields, &total))
        return status_fail(status, STATUS_INTERNAL, "step layout");
    inputs->size = inputs->fields[STEP_NEXT_TOKENS].offset; /* the outputs follow */
    inputs->bytes = calloc(1, inputs->size);
    if (!inputs->bytes) return status_fail(status, STATUS_MACHINE, "out of memory");
    inputs->counts = (int32_t *)(void *)(inputs->bytes + inputs->fields[STEP_COUNTS].offset);
    inputs->tokens = (int32_t *)(void *)(inputs->bytes + inputs->fields[STEP_TOKENS].offset);
    inputs->slots = (int32_t *)(void *)(inputs->bytes + inputs->fields[STEP_SLOTS].offset);
    inputs->positions = (int32_t *)(void *)(inputs->bytes + inputs->fields[STEP_POSITIONS].offset);
    inputs->out_rows = (int32_t *)(void *)(inputs->bytes + inputs->fields[STEP_OUT_ROWS].offset);
    inputs->seeds = (int32_t *)(void *)(inputs->bytes + inputs->fields[STEP_ROUTE_SEEDS].offset);
    if (geometry->drafts)
        inputs->following = (int32_t *)(void *)(inputs->bytes + inputs->fields[STEP_FOLLOWING].offset);
    return true;
}

/* All rows of one slot, each with logits. */
static void fill_verify(struct cuda_inputs *inputs, const struct plan_geometry *geometry, uint32_t rows,
                        uint64_t position)
{
    const uint64_t most = geometry->max_context > rows ? geometry->max_context - rows : 0;
    const int32_t first = (int32_t)(position < most ? position : most);
    inputs->counts[0] = inputs->counts[1] = (int32_t)rows;
    for (uint32_t r = 0; r < rows; r++) {
        inputs->tokens[r] = (int32_t)((r * UINT64_C(7919)) % geometry->vocab_size);
        inputs->slots[r] = 0;
        inputs->positions[r] = first + (int32_t)r;
        inputs->out_rows[r] = (int32_t)r;
    }
}

/* Rows that decode, each of a slot of its own: all, none, or in a mixed step up to a half beside a prompt, which has an out row. */
static uint32_t decoding_rows(const struct plan_header *header)
{
    const uint32_t half = header->rows / 2;
    switch (header->kind) {
    case PLAN_DECODE: return header->rows;
    case PLAN_MIXED: return half > header->out_rows - 1 ? header->out_rows - 1 : half;
    default: return 0;
    }
}

uint32_t cuda_inputs_out_rows(const struct plan_header *header)
{
    if (header->kind == PLAN_VERIFY) return header->rows;
    const uint32_t decoding = decoding_rows(header);
    return decoding + (header->rows > decoding);
}

/* Where a part of a prompt begins: a small one is mostly the end of a longer text, whose beginning is in the cache or came in parts before. */
static uint64_t prompt_begin(const struct plan_geometry *geometry, uint32_t rows)
{
    const uint64_t usual = 2048, end = usual < geometry->max_context ? usual : geometry->max_context;
    return rows < end ? end - rows : 0;
}

void cuda_inputs_fill(struct cuda_inputs *inputs, const struct cuda_rig *rig, const struct plan_header *header,
                      uint64_t position)
{
    const struct plan_geometry *geometry = &rig->manifest->geometry;
    const uint32_t decoding = decoding_rows(header);
    uint32_t rows = header->rows;
    if (header->kind == PLAN_VERIFY) {
        fill_verify(inputs, geometry, rows, position);
        return;
    }
    if (rows - decoding > geometry->max_context) rows = decoding + (uint32_t)geometry->max_context;
    if (position >= geometry->max_context) position = geometry->max_context - 1;
    const uint64_t begin = prompt_begin(geometry, rows - decoding);
    inputs->counts[0] = (int32_t)rows;
    inputs->counts[1] = (int32_t)cuda_inputs_out_rows(header);
    for (uint32_t r = 0; r < rows; r++) {
        inputs->tokens[r] = (int32_t)((r * UINT64_C(7919)) % geometry->vocab_size);
        inputs->slots[r] = (int32_t)(r < decoding ? r : decoding);
        inputs->positions[r] = (int32_t)(r < decoding ? position : begin + r - decoding);
    }
    for (uint32_t r = 0; r < decoding; r++) inputs->out_rows[r] = (int32_t)r;
    if (rows > decoding) inputs->out_rows[decoding] = (int32_t)(rows - 1);
}

void cuda_inputs_close(struct cuda_inputs *inputs)
{
    free(inputs->bytes);
    memset(inputs, 0, sizeof *inputs);
}

bool cuda_inputs_write(const struct cuda_inputs *inputs, const struct cuda_memory *memory, const struct device *device,
                       struct status *status)
{
    return cuda_ok(&device->driver,
                   device->driver.MemcpyHtoDAsync(memory->base[SPACE_STEP], inputs->bytes, inputs->size,
                                                  device->stream),
                   status, "writing the step's inputs");
}
