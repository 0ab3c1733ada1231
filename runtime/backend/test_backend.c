/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/backend/test_backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/op/recurrent.h"
#include "runtime/backend/state_shadow.h"

struct test_backend_settings test_backend_settings;

struct test_replay {
    size_t plan;
    enum backend_inputs inputs;
    bool has_run, waits;               /* waits: it may run up to its sampler alone */
    uint8_t *inputs_then, *state_then; /* contents of the host's arrays at the submit */
    bool *state_sent;                  /* [state_bytes] */
    int32_t *next_tokens, *drafted;
};

struct test_device {
    struct backend common;
    const struct engine *file;
    struct backend *cpu; /* its step and state are the device's */
    struct state_shadow shadow;
    struct test_replay replays[BACKEND_MOST_IN_FLIGHT]; /* oldest first */
    int in_flight;
    size_t last_plan; /* submitted */
    size_t done_plan; /* waited for */
    uint64_t state_bytes, step_bytes;
    float *logits, *hidden;
    uint64_t out_rows; /* of a step at most */
    uint8_t *copies;   /* [slots + checkpoints, RECURRENT_COPIES_CUDA, recurrent_bytes] */
    uint32_t random;
};

static struct test_device *device_of(struct backend *backend) { return (struct test_device *)(void *)backend; }

static void *take(uint64_t bytes)
{
    void *memory = calloc(bytes ? bytes : 1, 1);
    assert_non_null(memory);
    return memory;
}

static void layout(const struct test_device *device, size_t plan, struct plan_field fields[STEP_FIELD_COUNT])
{
    memcpy(fields, device->file->plans[plan].step, sizeof device->file->plans[plan].step);
}

static void destroy(struct backend *backend)
{
    struct test_device *device = device_of(backend);
    test_backend_settings.alive--;
    for (int i = 0; i < BACKEND_MOST_IN_FLIGHT; i++) {
        free(device->replays[i].inputs_then);
        free(device->replays[i].state_then);
        free(device->replays[i].state_sent);
        free(device->replays[i].next_tokens);
        free(device->replays[i].drafted);
    }
    state_shadow_close(&device->shadow);
    if (device->cpu) backend_cpu.destroy(device->cpu);
    free(device->common.step);
    free(device->common.state);
    free(device->logits);
    free(device->hidden);
    free(device->copies);
    free(device);
}

static struct backend *create(struct eng_engine *engine, const struct backend_options *options, struct status *status)
{
    const struct manifest *manifest = &engine->file.manifest;
    struct test_device *device = take(sizeof *device);
    test_backend_settings.alive++;
    device->cpu = backend_cpu.create(engine, options, status);
    if (!device->cpu) {
        destroy(&device->common);
        return NULL;
    }
    device->common = *device->cpu;
    device->common.type = &test_backend;
    device->common.step = take(manifest->step_bytes);
    device->common.state = take(manifest->state_bytes);
    device->file = &engine->file;
    device->state_bytes = manifest->state_bytes;
    device->step_bytes = manifest->step_bytes;
    device->random = 1;
    device->out_rows = plan_most_out_rows(device->file->plans, device->file->plan_count);
    device->logits = take(device->out_rows * manifest->geometry.vocab_size * sizeof(float));
    device->hidden = take(device->out_rows * manifest->geometry.hidden_size * sizeof(float));
    for (int i = 0; i < BACKEND_MOST_IN_FLIGHT; i++) {
        device->replays[i].inputs_then = take(device->step_bytes);
        device->replays[i].state_then = take(device->state_bytes);
        device->replays[i].state_sent = take(device->state_bytes * sizeof(bool));
        device->replays[i].next_tokens = take(device->out_rows * sizeof(int32_t));
        if (manifest->geometry.drafts) device->replays[i].drafted = take(device->out_rows * sizeof(int32_t));
    }
    device->copies = take((manifest->geometry.slots + options->checkpoints) * RECURRENT_COPIES_CUDA *
                          manifest->geometry.recurrent_bytes);
    /* What the session does not copy must not work by chance. */
    memset(device->cpu->state, 0x5a, device->state_bytes);
    assert_true(state_shadow_open(&device->shadow, &manifest->geometry, device->common.state, status));
    return &device->common;
}

static void state_changed(struct backend *backend, int32_t slot, unsigned what)
{
    state_shadow_changed(&device_of(backend)->shadow, slot, what);
}

static void drew(struct backend *backend, int32_t slot, int32_t token)
{
    state_shadow_drew(&device_of(backend)->shadow, slot, token);
}

static bool note_sent(void *argument, uint64_t offset, uint64_t bytes, struct status *status)
{
    (void)status;
    struct test_replay *replay = argument;
    memset(replay->state_sent + offset, true, bytes);
    return true;
}

/* The CPU has one copy of a slot's recurrent state. Before a step (`loads`) it gets that of the position before the slot's first row,
 * afterwards what it has is that of the slot's last row. */
static void move_recurrent(struct test_device *device, const struct plan_field *fields, bool loads)
{
    const struct plan_geometry *geometry = &device->file->manifest.geometry;
    const uint64_t bytes = geometry->recurrent_bytes;
    const int32_t *counts = (const int32_t *)(const void *)(device->cpu->step + fields[STEP_COUNTS].offset);
    const int32_t *slots = (const int32_t *)(const void *)(device->cpu->step + fields[STEP_SLOTS].offset);
    const int32_t *positions = (const int32_t *)(const void *)(device->cpu->step + fields[STEP_POSITIONS].offset);
    for (int32_t r = 0; bytes && r < counts[0]; r++) {
        const int32_t other = loads ? r - 1 : r + 1;
        if (other >= 0 && other < counts[0] && slots[other] == slots[r]) continue;
        uint8_t *block = device->cpu->state + geometry->state[STATE_RECURRENT].offset + (uint64_t)slots[r] * bytes;
        const uint64_t copy = (uint64_t)(loads ? positions[r] + 1 : positions[r]) % RECURRENT_COPIES_CUDA;
        uint8_t *own = device->copies + ((uint64_t)slots[r] * RECURRENT_COPIES_CUDA + copy) * bytes;
        if (loads && positions[r] == 0)
            memset(block, 0xff, bytes);
        else
            memcpy(loads ? block : own, loads ? own : block, bytes);
    }
}

/* Copies, replay, feedback. The host's arrays must be unchanged since the submit, since a device may read them as late
 * as now. */
static void run(struct test_device *device, struct test_replay *replay)
{
    struct plan_field fields[STEP_FIELD_COUNT];
    const struct plan_header *header = &device->file->plans[replay->plan].header;
    uint8_t *step = device->cpu->step;
    struct status status;
    layout(device, replay->plan, fields);
    replay->has_run = true;
    if (replay->inputs == INPUTS_FROM_HOST) {
        const uint64_t end = plan_input_bytes(&device->file->plans[replay->plan]);
        assert_memory_equal(replay->inputs_then, device->common.step, end);
        memcpy(step, device->common.step, end);
    }
    for (uint64_t i = 0; i < device->state_bytes && replay->inputs != INPUTS_OF_LAST_REPLAY; i++) {
        if (!replay->state_sent[i]) continue;
        assert_int_equal(replay->state_then[i], device->common.state[i]);
        device->cpu->state[i] = device->common.state[i];
    }
    move_recurrent(device, fields, true);
    assert_true(backend_cpu.submit(device->cpu, replay->plan, INPUTS_FROM_HOST, &status));
    const int32_t *drawn = backend_cpu.wait(device->cpu, &status);
    move_recurrent(device, fields, false);
    int32_t *counts = (int32_t *)(void *)(step + fields[STEP_COUNTS].offset);
    memcpy(replay->next_tokens, drawn, (size_t)counts[1] * sizeof *drawn);
    if (replay->drafted) memcpy(replay->drafted, device->cpu->drafted, (size_t)counts[1] * sizeof *drawn);
    if (header->kind != PLAN_DECODE) return;
    int32_t *tokens = (int32_t *)(void *)(step + fields[STEP_TOKENS].offset);
    int32_t *positions = (int32_t *)(void *)(step + fields[STEP_POSITIONS].offset);
    for (int32_t i = 0; i < counts[1]; i++) {
        tokens[i] = drawn[i];
        positions[i]++;
    }
}

static bool fails(int *countdown, const char *what, struct status *status)
{
    if (!*countdown || --*countdown) return false;
    status_fail(status, STATUS_MACHINE, "%s: the device is gone", what);
    return true;
}

static void run_at_its_pace(struct test_device *device)
{
    device->random = device->random * 1664525u + 1013904223u;
    const bool now = test_backend_settings.pace == PACE_EAGER ||
                     (test_backend_settings.pace == PACE_RANDOM && (device->random >> 16) % 2);
    for (int i = 0; now && i < device->in_flight && !device->replays[i].waits; i++)
        if (!device->replays[i].has_run) run(device, &device->replays[i]);
}

static bool submit(struct backend *backend, size_t plan, enum backend_inputs inputs, struct status *status)
{
    struct test_device *device = device_of(backend);
    if (fails(&test_backend_settings.fail_submit, "submit", status)) return false;
    test_backend_settings.submits++;
    assert_in_range(device->in_flight, 0, BACKEND_MOST_IN_FLIGHT - 1);
    struct test_replay *replay = &device->replays[device->in_flight];
    struct plan_field fields[STEP_FIELD_COUNT];
    layout(device, plan, fields);
    replay->plan = plan;
    replay->inputs = inputs;
    replay->waits = inputs == INPUTS_UP_TO_SAMPLER;
    replay->has_run = false;
    memset(replay->next_tokens, 0x7f, device->out_rows * sizeof *replay->next_tokens);
    memset(device->logits, 0xff, device->out_rows * device->file->manifest.geometry.vocab_size * sizeof(float));
    if (inputs == INPUTS_FROM_HOST) {
        assert_int_equal(device->in_flight, 0);
        memset(replay->state_sent, 0, device->state_bytes * sizeof(bool));
        assert_true(state_shadow_send(&device->shadow, note_sent, replay, status));
        memcpy(replay->state_then, device->common.state, device->state_bytes);
        memcpy(replay->inputs_then, device->common.step, device->step_bytes);
    } else {
        assert_int_equal(plan, device->last_plan);
        assert_int_equal(device->file->plans[plan].header.kind, PLAN_DECODE);
        test_backend_settings.submits_ahead++;
        test_backend_settings.submits_up_to_sampler += replay->waits;
    }
    device->last_plan = plan;
    device->in_flight++;
    run_at_its_pace(device);
    return true;
}

static bool splits(const struct backend *backend, size_t plan)
{
    const struct test_device *device = (const struct test_device *)(const void *)backend;
    return device->file->plans[plan].header.kind == PLAN_DECODE && !test_backend_settings.undivided;
}

static bool sample(struct backend *backend, const int32_t *slots, uint32_t count, bool late, struct status *status)
{
    (void)late;
    struct test_device *device = device_of(backend);
    struct test_replay *replay = &device->replays[0];
    if (fails(&test_backend_settings.fail_sample, "sample", status)) return false;
    assert_int_equal(device->in_flight, 1);
    assert_true(replay->waits);
    replay->waits = false;
    memset(replay->state_sent, 0, device->state_bytes * sizeof(bool));
    assert_true(state_shadow_send_allowed(&device->shadow, slots, count, note_sent, replay, status));
    memcpy(replay->state_then, device->common.state, device->state_bytes);
    run_at_its_pace(device);
    return true;
}

/* What a replay up to its sampler leaves: the rest of a whole replay is undone. */
static void run_layers(struct test_device *device, struct test_replay *replay)
{
    uint8_t *state = take(device->state_bytes), *step = take(device->step_bytes);
    memcpy(state, device->cpu->state, device->state_bytes);
    memcpy(step, device->cpu->step, device->step_bytes);
    replay->inputs = INPUTS_OF_LAST_REPLAY;
    run(device, replay);
    replay->inputs = INPUTS_UP_TO_SAMPLER;
    replay->has_run = false;
    memcpy(device->cpu->state, state, device->state_bytes);
    memcpy(device->cpu->step, step, device->step_bytes);
    free(state);
    free(step);
}

static void abandon(struct backend *backend)
{
    struct test_device *device = device_of(backend);
    assert_int_equal(device->in_flight, 1);
    assert_true(device->replays[0].waits);
    run_layers(device, &device->replays[0]);
    device->in_flight = 0;
    test_backend_settings.abandoned++;
}

static const int32_t *wait_for(struct backend *backend, struct status *status)
{
    struct test_device *device = device_of(backend);
    if (fails(&test_backend_settings.fail_wait, "wait", status)) return NULL;
    test_backend_settings.waits++;
    assert_in_range(device->in_flight, 1, BACKEND_MOST_IN_FLIGHT);
    struct test_replay done = device->replays[0];
    assert_false(done.waits);
    if (!done.has_run) run(device, &done);
    if (test_backend_settings.not_finite && !--test_backend_settings.not_finite)
        for (uint64_t row = 0; row < device->out_rows; row++) done.next_tokens[row] = PLAN_NO_TOKEN;
    for (int i = 0; i + 1 < BACKEND_MOST_IN_FLIGHT; i++) device->replays[i] = device->replays[i + 1];
    device->replays[BACKEND_MOST_IN_FLIGHT - 1] = done;
    device->in_flight--;
    device->done_plan = done.plan;
    backend->drafted = done.drafted;
    return done.next_tokens;
}

static const float *logits(struct backend *backend, uint32_t row, uint32_t count, struct status *status)
{
    struct test_device *device = device_of(backend);
    if (fails(&test_backend_settings.fail_logits, "logits", status)) return NULL;
    assert_int_equal(device->in_flight, 0);
    struct plan_field fields[STEP_FIELD_COUNT];
    layout(device, device->done_plan, fields);
    uint64_t row_bytes = device->file->manifest.geometry.vocab_size * sizeof(float);
    assert_true((row + count) * row_bytes <= fields[STEP_LOGITS].bytes);
    float *to = device->logits + row * device->file->manifest.geometry.vocab_size;
    memcpy(to, device->cpu->step + fields[STEP_LOGITS].offset + row * row_bytes, count * row_bytes);
    return to;
}

static const float *hidden(struct backend *backend, uint32_t row, uint32_t count, struct status *status)
{
    struct test_device *device = device_of(backend);
    const uint64_t width = device->file->manifest.geometry.hidden_size;
    struct plan_field fields[STEP_FIELD_COUNT];
    (void)status;
    assert_int_equal(device->in_flight, 0);
    layout(device, device->done_plan, fields);
    assert_true((row + count) * width * sizeof(float) <= fields[STEP_HIDDEN].bytes);
    const float *from = (const float *)(void *)(device->cpu->step + fields[STEP_HIDDEN].offset);
    memcpy(device->hidden + row * width, from + row * width, count * width * sizeof *from);
    return device->hidden + row * width;
}

/* A copy comes after steps in flight. */
static void catch_up(struct test_device *device)
{
    assert_in_range(device->in_flight, 0, 1);
    struct test_replay *replay = &device->replays[0];
    if (device->in_flight && replay->waits)
        run_layers(device, replay);
    else if (device->in_flight && !replay->has_run)
        run(device, replay);
}

static bool repeat_page(struct backend *backend, int32_t from, int32_t to, struct status *status)
{
    struct test_device *device = device_of(backend);
    catch_up(device);
    return backend_cpu.repeat_page(device->cpu, from, to, status);
}

static bool repeat_recurrent(struct backend *backend, int32_t from, int32_t to, struct status *status)
{
    struct test_device *device = device_of(backend);
    const uint64_t bytes = RECURRENT_COPIES_CUDA * device->file->manifest.geometry.recurrent_bytes;
    (void)status;
    catch_up(device);
    memcpy(device->copies + (uint64_t)to * bytes, device->copies + (uint64_t)from * bytes, bytes);
    return true;
}

const struct backend_type test_backend = {
    .lookahead = true,
    .create = create,
    .destroy = destroy,
    .state_changed = state_changed,
    .submit = submit,
    .splits = splits,
    .sample = sample,
    .abandon = abandon,
    .wait = wait_for,
    .drew = drew,
    .logits = logits,
    .hidden = hidden,
    .repeat_page = repeat_page,
    .repeat_recurrent = repeat_recurrent,
};
