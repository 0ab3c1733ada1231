/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of gpu-tests. Each check runs in a process of its own (gpu-tests --run NAME), so that one that crashes or
 * hangs is one failure. */
#ifndef TESTS_GPU_CHECK_H
#define TESTS_GPU_CHECK_H

#include <stdbool.h>
#include <stddef.h>

enum {
    CHECK_PASSED = 0,
    CHECK_FAILED = 1,
    CHECK_NO_GPU = 3,
    CHECK_SKIPPED = 77, /* does not apply to this machine */
    CHECK_PATH = 1024,
    CHECK_NAME = 160,
    CHECK_CONTEXT = 512, /* tokens of a sequence, unless the model has fewer positions */
};

/* The environment of a check that runs under compute-sanitizer: the tool's name. Where the tool would take minutes the
 * check then takes smaller sizes that go the same ways through the code. Not set: every size. */
#define CHECK_TOOL "ENG_TEST_SANITIZED"

/* A check that is skipped may say why, in a line of its output that begins so. */
#define CHECK_WHY_SKIPPED "skipped: "

/* kernel_checks.c: the tests of the device kernels, named FILE/TEST. */
void kernel_checks_visit(void (*visit)(const char *name, void *context), void *context);
int kernel_check_run(const char *name); /* -1: no such check */

/* engine_check.c: builds an engine for the GPU and one for the CPU from the checkpoint `model` and compares them. */
struct engine_check {
    const char *programs; /* folder of engbuild and engrun */
    const char *model;
    const char *dtype;    /* --dtype of both engines */
    const char *kv_dtype; /* --kv-dtype of both engines, int8 or fp8; NULL: without */
    const char *compute;  /* --compute of the engine for the GPU, fp8, int8 or bf16; NULL: without */
    const char *tune;     /* --tune of the engine for the GPU */
    const char *scratch;  /* an empty folder */
    unsigned context;     /* --max-context of both engines; 0: CHECK_CONTEXT */
    bool has_experts;     /* of nearly the same score one may be chosen for another */
    bool has_recurrence;  /* a delta rule or state space: rounding is enlarged */
    bool is_trained;      /* its distributions are peaked: sampled tokens must agree most of the time */
    bool is_brief;        /* for compute-sanitizer: few plans and steps, but every kernel of a step */
};
int engine_check_run(const struct engine_check *check);

struct eng_engine;
struct eng_session;
/* masks_check.c: answers with a grammar, and masks that callers set, of a session that queues steps ahead. */
void masks_check(struct eng_engine *engine, struct eng_session *session, size_t vocab);

/* results_check.c: hidden states and log-probabilities of a prompt, of two sessions whose logits may differ by `bound` of the largest. */
void results_check(struct eng_session *cpu, struct eng_session *gpu, size_t vocab, size_t hidden_size, double bound);

/* example_check.c: builds share/doc/eng/examples/cudart.c and an engine of the shipped model, and compares its text with engrun's.
 * Skipped without a CUDA runtime or a C compiler. `top`: the folder of the unpacked tarball; `scratch`: an empty folder. */
int example_check_run(const char *top, const char *scratch);

/* kernel_times.c: prints tables of times; `only`: problems whose line has this text (NULL: all). */
int kernel_times_run(const char *only);

#endif
