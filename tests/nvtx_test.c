/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges for profilers: the ranges that a tool's library (tests/fake_nvtx.c) receives, and no effect without one. A
 * process looks for a tool once, so every case is a process. */
#include "tests/test_fables.h"
#include "formats/base/test_program.h"

#include <dlfcn.h>
#include <sys/wait.h>

#include "kernels/cuda/nvtx.h"

static const char tool[] = "tests/libfake_nvtx.so", no_tool[] = "tests/fake_cuda/whole/libcuda.so.1";

/* Runs the case in a child whose tool is `path` (NULL: none), with `setting` in its environment. */
static void in_child(const char *path, const char *setting, bool (*passes)(void))
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        unsetenv("NVTX_INJECTION64_PATH");
        if (path) setenv("NVTX_INJECTION64_PATH", path, 1);
        if (setting) setenv(setting, "1", 1);
        _exit(passes() ? 0 : 1);
    }
    int result = -1;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
}

static bool nobody_listens(void)
{
    nvtx_push("before");
    nvtx_pop();
    nvtx_open();
    nvtx_push("after");
    nvtx_push_number("after", 1);
    nvtx_pop();
    nvtx_pop();
    return !nvtx_active();
}

static const char *notes(void)
{
    void *library = dlopen(tool, RTLD_NOW | RTLD_NOLOAD), *address;
    const char *(*function)(void);
    if (!library || !(address = dlsym(library, "fake_nvtx_notes"))) return "the tool is not loaded";
    memcpy(&function, &address, sizeof function);
    return function();
}

static bool noted(const char *expected)
{
    if (nvtx_active() && strcmp(notes(), expected) == 0) return true;
    fprintf(stderr, "expected %s\nfound    %s\n", expected, notes());
    return false;
}

static bool a_tool_listens(void)
{
    nvtx_open();
    nvtx_push("outer");
    nvtx_open();
    nvtx_push_number("inner", UINT64_MAX);
    nvtx_pop();
    nvtx_pop();
    return noted("+outer;+inner 18446744073709551615;-;-;");
}

static bool the_runtime_names_its_work(void)
{
    enum { SLOTS = 3, PROMPT = 70 };
    int32_t tokens[PROMPT], drawn[2 * SLOTS];
    uint32_t slots[SLOTS];
    struct eng_engine *engine = fables_open();
    struct eng_session *session = fables_session(engine, NULL);
    fables_tokens(1, tokens, PROMPT);
    for (int i = 0; i < SLOTS; i++) CHECK(eng_slot_acquire(session, &slots[i], &error));
    CHECK(eng_prefill(session, slots[0], tokens, PROMPT, NULL, NULL, &error));
    CHECK(eng_decode_steps(session, slots, tokens, SLOTS, 2, drawn, &error));
    CHECK(eng_decode(session, slots, tokens, 1, drawn, NULL, &error));
    eng_session_destroy(&session);
    eng_close(&engine);
    return noted("+load;-;+prefill 64;-;+prefill 6;-;+decode 3;-;+decode 3;-;+decode 1;-;");
}

static bool a_load_that_fails_ends_its_range(void)
{
    struct eng_engine *engine;
    return eng_open("/nothing/here.eng", NULL, &engine, NULL) != ENG_OK && noted("+load;-;");
}

TEST(test_no_tool)
{
    in_child(NULL, NULL, nobody_listens);
    in_child("", NULL, nobody_listens);
    in_child("/nothing/here.so", NULL, nobody_listens);
    in_child(no_tool, NULL, nobody_listens);
}

TEST(test_tool_that_fails)
{
    in_child(tool, "FAKE_NVTX_REFUSE", nobody_listens);
    in_child(tool, "FAKE_NVTX_ONLY_PUSH", nobody_listens);
}

TEST(test_tool)
{
    in_child(tool, NULL, a_tool_listens);
    in_child(tool, NULL, the_runtime_names_its_work);
    in_child(tool, NULL, a_load_that_fails_ends_its_range);
}

int main(void)
{
    if (access(tool, R_OK) != 0) {
        fprintf(stderr, "skipped: expected the fake tool %s, which Bazel builds\n", tool);
        return 0;
    }
    return test_run_with(fables_build, NULL, NULL, fables_remove);
}
