/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the "Trace Event Format" (Google, 2016), JSON array form. A step is a process with two threads: the time of
 * the whole step as the engine replays it, and its launches in order, each timed by itself. */
#include "formats/base/json.h"
#include "runtime/cli/cli_trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "formats/cli/cli_process.h"
#include "formats/base/file.h"
#include "kernels/cuda/registry.h"
#include "kernels/op/op.h"
#include "runtime/cli/cli_launch.h"

enum thread { THREAD_REPLAY = 1, THREAD_LAUNCHES = 2 };

static const char how_on_host[] = "launches one after the other, as the engine replays them, each timed by itself";
static const char how_on_device[] =
    "launches one after the other, each timed by itself; when the engine replays the step "
    "they follow each other without gaps and overlap, and it takes less";
static const char sizes[] = "bytes and operations are those of a full plan: its inputs read once, its outputs written "
                            "once, attention at the tokens of this step";

static double launches_us(const struct trace *trace)
{
    double us = 0;
    for (uint32_t i = 0; i < trace->plan->header.launch_count; i++) us += trace->launch_us[i];
    return us;
}

static void step_name(const struct traced *step, char *name, size_t size)
{
    bool decode = step->test.kind == BENCH_DECODE;
    const char *rows = step->trace.rows == 1 ? "" : "s", *plan_rows = step->trace.plan->header.rows == 1 ? "" : "s";
    snprintf(name, size, "%s of %" PRIu32 " %s%s after %" PRIu32 " tokens, plan of %" PRIu32 " row%s",
             decode ? "decode" : "prefill", step->trace.rows, decode ? "sequence" : "token", rows, step->test.context,
             step->trace.plan->header.rows, plan_rows);
}

/* The launch's parameters as the array that this program's kernel code reads, matched by name, because another
 * release may have other ids. `op`: whose parameters come first; NULL: none do. */
static void params_by_name(const struct trace *trace, const struct plan_launch *launch, const struct op_descriptor *op,
                           const char *const *names, int count, int64_t *values)
{
    for (int i = 0; i < count; i++) {
        values[i] = op && i < op->param_count ? op_param_absent(&op->params[i]) : 0;
        engine_param(trace->file, trace->plan, launch, names[i], &values[i]);
    }
}

/* The cost of attention depends on the context; the engine stores that of another one. */
static void launch_cost(const struct traced *step, const struct plan_launch *launch, uint64_t *bytes, uint64_t *flops)
{
    const struct engine *file = step->trace.file;
    const char *names[PLAN_MAX_PARAMS];
    int64_t params[PLAN_MAX_PARAMS];
    /* A row of a chunk sees half of the chunk on average. */
    uint64_t context = step->test.context + (step->test.kind == BENCH_DECODE ? 1 : (step->trace.rows + 1) / 2);
    *bytes = launch->bytes;
    *flops = launch->flops;
    if (file->manifest.target == TARGET_CUDA) {
        const struct device_kernel *kernel = device_kernel_find(engine_kernel_name(file, launch));
        if (!kernel || (unsigned)kernel->op != launch->op) return;
        for (int i = 0; i < device_param_count(kernel); i++) names[i] = device_param_name(kernel, i);
        params_by_name(&step->trace, launch, kernel->problem, names, device_param_count(kernel), params);
        kernel->cost(params, context, bytes, flops);
    } else {
        const struct op_descriptor *op = op_find(launch->op);
        for (int i = 0; i < op_cpu_param_count(op); i++) names[i] = op_cpu_param_name(op, i);
        params_by_name(&step->trace, launch, op, names, op_cpu_param_count(op), params);
        op->cost(params, context, bytes, flops);
    }
}

static json_t *event_json(const char *name, const char *phase, size_t process, int thread, json_t *arguments)
{
    /* A kernel's name may be invalid UTF-8. */
    return json_pack("{s:o, s:s, s:I, s:i, s:o}", "name", json_string_or_null(name), "ph", phase, "pid",
                     (json_int_t)process, "tid", thread, "args", arguments);
}

static json_t *span_json(const char *name, size_t process, int thread, double start_us, double us, json_t *arguments)
{
    json_t *event = event_json(name, "X", process, thread, arguments);
    if (json_put(event, "ts", json_real(start_us)) && json_put(event, "dur", json_real(us))) return event;
    json_decref(event);
    return NULL;
}

static json_t *launch_json(const struct traced *step, size_t process, uint32_t index, double start_us)
{
    const struct trace *trace = &step->trace;
    const struct plan_launch *launch = &trace->plan->launches[index];
    double us = trace->launch_us[index];
    char shape[LAUNCH_TEXT_BYTES];
    uint64_t bytes, flops;
    launch_shape(trace->file, trace->plan, launch, shape);
    launch_cost(step, launch, &bytes, &flops);
    json_t *arguments =
        json_pack("{s:I, s:s, s:o, s:o, s:I, s:I, s:f, s:f}", "launch", (json_int_t)index, "op",
                  engine_op_name(trace->file, launch->op), "layer",
                  launch->layer == UINT32_MAX ? json_null() : json_integer((json_int_t)launch->layer), "kernel",
                  json_string_or_null(engine_kernel_name(trace->file, launch)), "bytes", (json_int_t)bytes, "flops",
                  (json_int_t)flops, "GB/s", us > 0 ? (double)bytes / us * 1e-3 : 0.0, "TFLOP/s",
                  us > 0 ? (double)flops / us * 1e-6 : 0.0);
    return span_json(shape, process, THREAD_LAUNCHES, start_us, us, arguments);
}

/* Events that name process and threads and describe the measurement. */
static bool add_names(json_t *events, const struct bench_engine *bench, const struct traced *step, size_t process)
{
    const struct eng_session_facts *facts = &bench->session_facts;
    const struct trace *trace = &step->trace;
    char name[128];
    step_name(step, name, sizeof name);
    json_t *about =
        json_pack("{s:s, s:s, s:o, s:s?, s:s, s:I, s:f, s:f}", "labels", facts->device ? how_on_device : how_on_host,
                  "sizes", sizes, "engine", json_string_or_null(bench->path), "device", facts->device,
                  "instruction_set", facts->instruction_set, "threads", (json_int_t)facts->threads, "replay_us",
                  trace->replay_us, "launches_us", launches_us(trace));
    return json_add(events, event_json("process_name", "M", process, 0, json_pack("{s:s}", "name", name))) &&
           json_add(events, event_json("process_labels", "M", process, 0, about)) &&
           json_add(events, event_json("thread_name", "M", process, THREAD_REPLAY,
                                       json_pack("{s:s}", "name", "the step as it is replayed"))) &&
           json_add(events, event_json("thread_name", "M", process, THREAD_LAUNCHES,
                                       json_pack("{s:s}", "name", "launches one after the other")));
}

static bool add_step(json_t *events, const struct bench_engine *bench, const struct traced *step, size_t process)
{
    const struct trace *trace = &step->trace;
    double start_us = 0;
    char name[128];
    step_name(step, name, sizeof name);
    json_t *facts = json_pack("{s:I, s:f}", "launches", (json_int_t)trace->plan->header.launch_count, "launches_us",
                              launches_us(trace));
    bool ok = add_names(events, bench, step, process) &&
              json_add(events, span_json(name, process, THREAD_REPLAY, 0, trace->replay_us, facts));
    for (uint32_t i = 0; ok && i < trace->plan->header.launch_count; i++) {
        ok = json_add(events, launch_json(step, process, i, start_us));
        start_us += trace->launch_us[i];
    }
    return ok;
}

/* One event a line. */
static char *events_text(const json_t *events)
{
    char *text = NULL;
    size_t size, index;
    json_t *event;
    FILE *stream = open_memstream(&text, &size);
    if (!stream) return NULL;
    bool ok = fputs("[", stream) >= 0;
    json_array_foreach (events, index, event) {
        char *line = json_format(event, JSON_COMPACT | JSON_REAL_PRECISION(12));
        ok = ok && line && fprintf(stream, "%s%s", index ? ",\n" : "", line) > 0;
        free(line);
    }
    ok = fputs("]\n", stream) >= 0 && ok;
    if (fclose(stream) == 0 && ok) return text;
    free(text);
    return NULL;
}

bool trace_write(const struct bench_engine *bench, const struct traced *steps, size_t count, const char *path,
                 struct status *status)
{
    json_t *events = json_array();
    bool ok = events != NULL;
    for (size_t i = 0; ok && i < count; i++) ok = add_step(events, bench, &steps[i], i + 1);
    char *text = ok ? events_text(events) : NULL;
    json_decref(events);
    if (!text) return status_fail(status, STATUS_MACHINE, "out of memory");
    struct file_output output;
    ok = file_output_open(&output, path, status);
    if (ok) {
        ok = file_output_write(&output, text, strlen(text), status) && file_output_commit(&output, status);
        if (!ok) file_output_abandon(&output);
    }
    free(text);
    return ok;
}

bool trace_print(const struct traced *steps, size_t count, struct status *status)
{
    for (size_t i = 0; i < count; i++) {
        const struct trace *trace = &steps[i].trace;
        char name[128];
        step_name(&steps[i], name, sizeof name);
        printf("%s: %.1f us; its %" PRIu32 " launches one after the other %.1f us\n", name, trace->replay_us,
               trace->plan->header.launch_count, launches_us(trace));
    }
    return cli_flush(status);
}
