/* SPDX-License-Identifier: Apache-2.0 */
/* The example on the CUDA runtime, built as a user builds it: from the tarball's source, headers and library. It and
 * engrun both take the likeliest tokens, so that their texts are equal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/gpu/check.h"
#include "tests/gpu/programs.h"

#define PROMPT "Once upon a time"
#define COUNT  "40" /* tokens of the answer */

struct toolkit {
    char include[CHECK_PATH], library[CHECK_PATH]; /* folders */
    char compiler[CHECK_PATH];
};

static bool is_in(const char *folder, const char *file)
{
    char path[CHECK_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return access(path, R_OK) == 0;
}

/* False, after a line that says why: something is missing. */
static bool find_toolkit(struct toolkit *toolkit)
{
    const char *home = getenv("CUDA_HOME"), *path = getenv("PATH");
    if (!home || !*home) home = "/usr/local/cuda";
    snprintf(toolkit->include, sizeof toolkit->include, "%s/include", home);
    snprintf(toolkit->library, sizeof toolkit->library, "%s/lib64", home);
    if (!is_in(toolkit->include, "cuda_runtime_api.h")) {
        printf(CHECK_WHY_SKIPPED
               "expected cuda_runtime_api.h of the CUDA toolkit in %s, found none; CUDA_HOME names the "
               "toolkit's folder\n",
               toolkit->include);
        return false;
    }
    if (!is_in(toolkit->library, "libcudart.so")) {
        printf(CHECK_WHY_SKIPPED "expected libcudart.so of the CUDA toolkit in %s, found none; CUDA_HOME names the "
                                 "toolkit's folder\n",
               toolkit->library);
        return false;
    }
    if (path &&
        (check_find_program(path, "cc", toolkit->compiler) || check_find_program(path, "gcc", toolkit->compiler)))
        return true;
    printf(CHECK_WHY_SKIPPED "expected a C compiler, cc or gcc, in PATH, found none\n");
    return false;
}

static void compile(const struct toolkit *toolkit, const char *top, const char *program)
{
    char source[CHECK_PATH], include[CHECK_PATH], library[CHECK_PATH];
    snprintf(source, sizeof source, "%s/share/doc/eng/examples/cudart.c", top);
    snprintf(include, sizeof include, "%s/include", top);
    snprintf(library, sizeof library, "%s/lib", top);
    /* -Xlinker, because -Wl, splits its argument at commas. */
    const char *const words[] = {"-std=c11",       source,     "-I",       include,  "-isystem", toolkit->include, "-L",
                                 library,          "-leng",    "-Xlinker", "-rpath", "-Xlinker", library,          "-L",
                                 toolkit->library, "-lcudart", "-Xlinker", "-rpath", "-Xlinker", toolkit->library, "-o",
                                 program,          NULL};
    check_run_program(toolkit->compiler, NULL, words);
}

static void build(const char *top, const char *engine)
{
    char program[CHECK_PATH], model[CHECK_PATH];
    snprintf(program, sizeof program, "%s/bin/engbuild", top);
    snprintf(model, sizeof model, "%s/share/eng/models/fables", top);
    const char *const words[] =
        {"--model", model,         "--target", "cuda",          "--tune", "off",     "--tuning-cache",
         "none",    "--max-batch", "1",        "--max-context", "256",    "--quiet", "--no-accuracy",
         "-o",      engine,        NULL};
    check_run_program(program, NULL, words);
}

/* Without the newlines at its end: engrun adds none to an answer that ends with one, the example always does. */
static char *read_text(const char *path)
{
    size_t size;
    char *text = check_read_file(path, &size);
    while (size && text[size - 1] == '\n') text[--size] = '\0';
    return text;
}

/* engrun prints the answer alone, the example the prompt before it. */
static void compare(const char *example_output, const char *engrun_output)
{
    char *text = read_text(example_output), *answer = read_text(engrun_output);
    const size_t length = strlen(PROMPT);
    if (!*answer) check_fail("engrun gave no text", NULL);
    if (strncmp(text, PROMPT, length) != 0 || strcmp(text + length, answer) != 0) {
        printf("---- the example's text\n%s\n---- engrun's, after the prompt\n%s\n----\n", text, answer);
        check_fail("the example's text is not engrun's", NULL);
    }
    free(text), free(answer);
}

int example_check_run(const char *top, const char *scratch)
{
    struct toolkit toolkit;
    char engrun[CHECK_PATH], engine[CHECK_PATH], example[CHECK_PATH], text[CHECK_PATH], answer[CHECK_PATH];
    if (!find_toolkit(&toolkit)) return CHECK_SKIPPED;
    snprintf(engrun, sizeof engrun, "%s/bin/engrun", top);
    snprintf(engine, sizeof engine, "%s/gpu.eng", scratch);
    snprintf(example, sizeof example, "%s/cudart", scratch);
    snprintf(text, sizeof text, "%s/text", scratch);
    snprintf(answer, sizeof answer, "%s/answer", scratch);
    compile(&toolkit, top, example);
    build(top, engine);
    const char *const example_words[] = {engine, PROMPT, COUNT, NULL};
    const char *const engrun_words[] = {engine, "-p", PROMPT, "-n", COUNT, "--ignore-eos", NULL};
    check_run_program(example, text, example_words);
    check_run_program(engrun, answer, engrun_words);
    compare(text, answer);
    return CHECK_PASSED;
}
