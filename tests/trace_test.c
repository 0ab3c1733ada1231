/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of steps, on the CPU and with the fake driver (tests/fake_cuda): every launch has its time, the file has what
 * a viewer needs, and the sequences are not affected. The program runs itself again with the fake's folder in
 * LD_LIBRARY_PATH. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"
#include "kernels/cuda/test_fake_cuda.h"

#include <dlfcn.h>
#include <jansson.h>
#include <math.h>

#include "runtime/cli/cli_trace.h"
#include "runtime/session/trace.h"
#include "tests/test_cuda_engine.h"
#include "tests/test_lowered_engine.h"

enum { SLOTS = 3, PROMPT = 90, STEPS = 4 };

static const char fake_folder[] = "tests/fake_cuda/whole";
static char device_path[300], trace_path[300];
static struct engine cpu_file;

static struct test_fake_cuda fake;

static int build(void **state)
{
    struct status status;
    fake = test_fake_cuda_find();
    if (fables_build(state) || lowered_engine_build(state)) return -1;
    snprintf(device_path, sizeof device_path, "%s.cuda", fables_path());
    snprintf(trace_path, sizeof trace_path, "%s.json", fables_path());
    if (!engine_open(&cpu_file, fables_path(), &status)) fail_msg("%s", status.message);
    cuda_engine_write(&cpu_file, device_path);
    return 0;
}

static int remove_all(void **state)
{
    unlink(device_path);
    unlink(trace_path);
    cuda_engine_close();
    engine_close(&cpu_file);
    lowered_engine_remove(state);
    return fables_remove(state);
}

static int begin(void **state)
{
    test_fake_cuda_begin(&fake);
    return 0;
}

static int end(void **state)
{
    assert_int_equal(fake.misuse(), 0);
    return 0;
}

static struct eng_session *open_session(const char *path)
{
    struct eng_engine *engine = NULL;
    struct eng_open_options open_options;
    struct eng_session_options options;
    eng_open_options_init(&open_options);
    eng_session_options_init(&options);
    open_options.threads = options.threads = 1;
    options.kv_tokens = (uint64_t)FABLES_CONTEXT * SLOTS;
    CHECK(eng_open(path, &open_options, &engine, &error));
    struct eng_session *session = fables_session(engine, &options);
    eng_close(&engine);
    return session;
}

static void check_trace(const struct trace *trace, enum plan_kind kind, uint32_t plan_rows, uint32_t rows)
{
    assert_int_equal(trace->plan->header.kind, kind);
    assert_int_equal(trace->plan->header.rows, plan_rows);
    assert_int_equal(trace->rows, rows);
    bool device = trace->file->manifest.target == TARGET_CUDA; /* the fake's clock may stand still */
    assert_true(isfinite(trace->replay_us) && trace->replay_us >= 0 && (device || trace->replay_us > 0));
    double sum = 0;
    for (uint32_t i = 0; i < trace->plan->header.launch_count; i++) {
        assert_true(isfinite(trace->launch_us[i]) && trace->launch_us[i] >= 0);
        sum += trace->launch_us[i];
    }
    assert_true(device || sum > 0);
}

static void trace_both(struct eng_session *session, const uint32_t *slots, const int32_t *tokens, uint32_t count)
{
    struct trace trace;
    struct status status;
    int32_t prompt[PROMPT];
    status_clear(&status);
    if (!trace_decode(session, slots, tokens, count, &trace, &status)) fail_msg("%s", status.message);
    check_trace(&trace, PLAN_DECODE, count == 3 ? 4 : count, count);
    trace_free(&trace);
    fables_tokens(7, prompt, PROMPT);
    if (!trace_prefill(session, slots[0], prompt, PROMPT, &trace, &status)) fail_msg("%s", status.message);
    check_trace(&trace, PLAN_PREFILL, FABLES_LARGEST_CHUNK, FABLES_LARGEST_CHUNK);
    trace_free(&trace);
    if (!trace_prefill(session, slots[0], prompt, 5, &trace, &status)) fail_msg("%s", status.message);
    check_trace(&trace, PLAN_PREFILL, 8, 5);
    trace_free(&trace);
}

/* Drawn tokens of slots and of a sequence, with and without traces in between. */
static void generate(const char *path, bool traced, int32_t drawn[STEPS][SLOTS], int32_t answer[STEPS])
{
    struct eng_sampling sampling;
    struct eng_sequence_options options;
    struct eng_sequence *sequence = NULL;
    uint32_t slots[SLOTS];
    int32_t prompt[PROMPT], tokens[SLOTS];
    struct eng_session *session = open_session(path);
    fables_tokens(3, prompt, PROMPT);
    for (uint32_t i = 0; i < SLOTS; i++) {
        eng_sampling_init(&sampling);
        sampling.temperature = 0.9f * (float)i;
        sampling.repetition_penalty = 1 + 0.2f * (float)i;
        sampling.seed = i;
        CHECK(eng_slot_acquire(session, &slots[i], &error));
        CHECK(eng_slot_set_sampling(session, slots[i], &sampling, &error));
        CHECK(eng_prefill(session, slots[i], prompt, PROMPT - 20 * i, &tokens[i], NULL, &error));
    }
    eng_sequence_options_init(&options);
    options.max_new_tokens = STEPS;
    options.flags = ENG_SEQUENCE_IGNORE_EOS;
    CHECK(eng_sequence_create(session, &options, &sequence, &error));
    CHECK(eng_sequence_submit(sequence, prompt, 20, &error));
    size_t answered = 0;
    for (int step = 0; step < STEPS; step++) {
        CHECK(eng_step(session, NULL, &error));
        if (traced) trace_both(session, slots, tokens, step % 2 ? SLOTS : 1);
        CHECK(eng_decode(session, slots, tokens, SLOTS, drawn[step], NULL, &error));
        memcpy(tokens, drawn[step], sizeof tokens);
    }
    while (answered < STEPS) {
        CHECK(eng_step(session, NULL, &error));
        answered += eng_sequence_poll(sequence, answer + answered, STEPS - answered);
    }
    eng_sequence_destroy(&sequence);
    eng_session_destroy(&session);
}

TEST(test_sequences_go_on)
{
    int32_t drawn[2][STEPS][SLOTS], answers[2][STEPS];
    const char *paths[] = {fables_path(), device_path};
    for (int i = 0; i < 2; i++) {
        generate(paths[i], false, drawn[0], answers[0]);
        generate(paths[i], true, drawn[1], answers[1]);
        assert_memory_equal(drawn[0], drawn[1], sizeof drawn[0]);
        assert_memory_equal(answers[0], answers[1], sizeof answers[0]);
    }
    assert_int_equal(fake.live(-1), 0);
}

TEST(test_no_room)
{
    struct status status;
    struct trace trace;
    uint32_t slot, position;
    int32_t tokens[FABLES_CONTEXT], drawn;
    struct eng_session *session = open_session(fables_path());
    fables_tokens(1, tokens, FABLES_CONTEXT);
    CHECK(eng_slot_acquire(session, &slot, &error));
    CHECK(eng_prefill(session, slot, tokens, FABLES_CONTEXT - 1, NULL, NULL, &error));
    status_clear(&status);
    assert_false(trace_prefill(session, slot, tokens, 2, &trace, &status));
    assert_int_equal(status.code, STATUS_FULL);
    assert_null(trace.launch_us);
    CHECK(eng_slot_position(session, slot, &position, &error));
    assert_int_equal(position, FABLES_CONTEXT - 1);
    CHECK(eng_decode(session, &slot, tokens, 1, &drawn, NULL, &error));
    eng_session_destroy(&session);
}

/* Minimum runs of every launch of a plan on a device: by itself, in the graph that is timed, and before both in graphs
 * that keep the GPU busy; all that once unmeasured and five times more. */
TEST(test_every_launch_runs)
{
    struct status status;
    struct trace trace;
    uint32_t slot;
    int32_t token = 5;
    struct eng_session *session = open_session(lowered_engine_path());
    CHECK(eng_slot_acquire(session, &slot, &error));
    uint64_t before = fake.kernels();
    if (!trace_decode(session, &slot, &token, 1, &trace, &status)) fail_msg("%s", status.message);
    assert_true(trace.plan->header.launch_count > 10);
    assert_true(fake.kernels() - before >= 6 * 4 * trace.plan->header.launch_count);
    assert_int_equal((fake.kernels() - before) % trace.plan->header.launch_count, 0);
    trace_free(&trace);
    eng_session_destroy(&session);
    assert_int_equal(fake.live(-1), 0);
}

TEST(test_each_call_failing)
{
    uint64_t before = 0, failures = 0;
    for (uint64_t call = 0; call <= 40; call++) {
        struct status status;
        struct trace trace;
        uint32_t slot;
        int32_t token = 5;
        test_fake_cuda_set(&fake, "FAKE_CUDA_FAIL_CALL", call ? before + call : 0); /* 0: none fails */
        struct eng_session *session = open_session(device_path);
        CHECK(eng_slot_acquire(session, &slot, &error));
        if (!call) before = fake.calls();
        status_clear(&status);
        bool ok = trace_decode(session, &slot, &token, 1, &trace, &status);
        if (!ok) {
            failures++;
            assert_int_equal(status.code, STATUS_MACHINE);
            assert_null(trace.launch_us);
            assert_int_equal(eng_decode(session, &slot, &token, 1, &token, NULL, &error), ENG_MACHINE);
        }
        assert_true(ok || call > 0);
        trace_free(&trace);
        eng_session_destroy(&session);
        assert_int_equal(fake.misuse(), 0);
    }
    assert_true(failures > 20);
}

/* ---- the file ---- */

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    assert_non_null(value);
    return value;
}

/* Events of a step: its names, the replay, the launches in order. Returns where the next step begins. */
static size_t check_step(const json_t *events, size_t at, size_t process, const struct traced *step)
{
    const struct trace *trace = &step->trace;
    bool device = trace->file->manifest.target == TARGET_CUDA;
    size_t names = 0, replays = 0;
    uint32_t launches = 0;
    double next_us = 0;
    for (; at < json_array_size(events); at++) {
        const json_t *event = json_array_get(events, at), *arguments = json_object_get(event, "args");
        if (number(event, "pid") != (double)process) break;
        if (strcmp(text(event, "ph"), "M") == 0) {
            names++;
            if (strcmp(text(event, "name"), "process_labels") != 0) continue;
            assert_non_null(strstr(text(arguments, "labels"), "one after the other"));
            assert_true(fabs(number(arguments, "replay_us") - trace->replay_us) < 1e-3);
            continue;
        }
        assert_string_equal(text(event, "ph"), "X");
        if (number(event, "tid") == 1) {
            replays++;
            assert_true(fabs(number(event, "dur") - trace->replay_us) < 1e-3);
            continue;
        }
        assert_true(launches < trace->plan->header.launch_count);
        const struct plan_launch *launch = &trace->plan->launches[launches];
        const json_t *layer = json_object_get(arguments, "layer");
        assert_true(fabs(number(event, "ts") - next_us) < 1e-3);
        assert_true(fabs(number(event, "dur") - trace->launch_us[launches]) < 1e-3);
        next_us += trace->launch_us[launches];
        assert_int_equal(number(arguments, "launch"), launches);
        assert_true(launch->layer == UINT32_MAX ? json_is_null(layer) : json_integer_value(layer) == launch->layer);
        assert_string_equal(text(arguments, "op"), plan_op_name(launch->op));
        assert_string_equal(text(arguments, "kernel"),
                            device ? trace->file->kernels[launch->kernel].entry : plan_op_name(launch->op));
        assert_int_equal(strncmp(text(event, "name"), text(arguments, "op"), strlen(text(arguments, "op"))), 0);
        bool attends = launch->op == OP_ATTENTION || launch->op == OP_ROPE_ATTENTION;
        if (!attends) assert_int_equal(number(arguments, "bytes"), launch->bytes);
        if (!attends) assert_int_equal(number(arguments, "flops"), launch->flops);
        if (trace->launch_us[launches] > 0) {
            double rate = number(arguments, "bytes") / trace->launch_us[launches] * 1e-3;
            assert_true(fabs(number(arguments, "GB/s") - rate) <= 1e-6 * rate);
        }
        launches++;
    }
    assert_int_equal(names, 4);
    assert_int_equal(replays, 1);
    assert_int_equal(launches, trace->plan->header.launch_count);
    return at;
}

static void write_and_check(const char *path)
{
    struct bench_engine bench = {.path = path};
    struct traced steps[2] = {{.test = {.kind = BENCH_DECODE, .tokens = 1, .batch = 2, .context = 40}},
                              {.test = {.kind = BENCH_PREFILL, .tokens = PROMPT, .batch = 1, .context = 40}}};
    struct status status;
    uint32_t slots[2];
    int32_t tokens[PROMPT];
    json_error_t json_error;
    status_clear(&status);
    fables_tokens(2, tokens, PROMPT);
    bench.session = open_session(path);
    eng_session_facts_init(&bench.session_facts);
    CHECK(eng_session_get_facts(bench.session, &bench.session_facts, &error));
    for (int i = 0; i < 2; i++) {
        CHECK(eng_slot_acquire(bench.session, &slots[i], &error));
        CHECK(eng_prefill(bench.session, slots[i], tokens, 40, NULL, NULL, &error));
    }
    bool ok = trace_decode(bench.session, slots, tokens, 2, &steps[0].trace, &status) &&
              trace_prefill(bench.session, slots[0], tokens, PROMPT, &steps[1].trace, &status) &&
              trace_write(&bench, steps, 2, trace_path, &status);
    if (!ok) fail_msg("%s", status.message);
    json_t *events = json_load_file(trace_path, 0, &json_error);
    assert_true(json_is_array(events));
    size_t at = check_step(events, 0, 1, &steps[0]);
    assert_int_equal(check_step(events, at, 2, &steps[1]), json_array_size(events));
    json_decref(events);
    assert_false(trace_write(&bench, steps, 2, "/nothing/here/trace.json", &status));
    for (int i = 0; i < 2; i++) trace_free(&steps[i].trace);
    eng_session_destroy(&bench.session);
}

TEST(test_file)
{
    write_and_check(fables_path());
    write_and_check(lowered_engine_path());
    assert_int_equal(fake.live(-1), 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    int result;
    if (!test_with_libraries(fake_folder, argv, &result)) return result;
    return test_run_with(build, begin, end, remove_all);
}
