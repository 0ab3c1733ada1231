/* SPDX-License-Identifier: Apache-2.0 */
/* A run-time compiler for the fake driver (fake_cuda.h): whatever the source, the cubin is the fake's text, with the
 * operands that the kernel has with these parameters. A library libnvrtc.so.13 in a folder of its own.
 *
 * FAKE_NVRTC_REFUSE=NAME makes every compilation of that kernel fail with a message. */
#include <ctype.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "kernels/cuda/registry.h"
#include "kernels/op/op.h"
#include "tests/fake_cuda/fake_cuda.h"

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, ERROR_INVALID_INPUT = 3, ERROR_COMPILATION = 6 };
enum { MAP = 128, POINTER = 8 };

struct program {
    char name[64]; /* of the kernel: the file's name without folder and ending */
    char log[128];
    char cubin[512];
    size_t cubin_bytes;
};

/* The parameters that the options define, as the array that the kernel's host code reads. */
static void read_params(const struct device_kernel *kernel, const char *const *options, int count, int64_t *params)
{
    for (int i = 0; i < device_param_count(kernel); i++) {
        char start[80];
        const int length = snprintf(start, sizeof start, "-DPARAM_%s=", device_param_name(kernel, i));
        params[i] = 0;
        for (int o = 0; o < count; o++)
            if (strncasecmp(options[o], start, (size_t)length) == 0) params[i] = strtoll(options[o] + length, NULL, 10);
    }
}

/* The arguments that the kernel has with these parameters, by its op's schema and its tensor maps. */
static void write_cubin(struct program *program, const struct device_kernel *kernel, const char *const *options,
                        int count)
{
    int64_t params[PLAN_MAX_PARAMS] = {0};
    struct plan_tensor_map map;
    char text[256], *at = text;
    read_params(kernel, options, count, params);
    at += sprintf(at, "FAKE CUBIN 90\nkernel %s", kernel->name);
    for (int i = 0; i < op_operands_present(op_find(kernel->op), TARGET_CUDA, params); i++)
        at += sprintf(at, " %d", kernel->tensor_map && kernel->tensor_map(params, i, &map) ? MAP : POINTER);
    at += sprintf(at, "\nend\n");
    program->cubin_bytes = fake_cuda_cubin(text, program->cubin, sizeof program->cubin);
}

/* Whether the command of this process has a word that the environment names. */
static bool has_word(const char *variable)
{
    const char *word = getenv(variable);
    char command[4096];
    FILE *file = word ? fopen("/proc/self/cmdline", "r") : NULL;
    const size_t size = file ? fread(command, 1, sizeof command - 1, file) : 0;
    bool found = false;
    command[size] = '\0';
    for (const char *at = command; at < command + size; at += strlen(at) + 1) found |= word && strcmp(at, word) == 0;
    if (file) fclose(file);
    return found;
}

EXPORT int nvrtcVersion(int *major, int *minor)
{
    if (has_word("FAKE_NVRTC_ABSENT_IN")) return 1;
    *major = 13;
    *minor = 0;
    return SUCCESS;
}

EXPORT int nvrtcGetNumSupportedArchs(int *count)
{
    *count = 1;
    return SUCCESS;
}

EXPORT int nvrtcGetSupportedArchs(int *architectures)
{
    *architectures = 90;
    return SUCCESS;
}

EXPORT int nvrtcCreateProgram(struct program **program, const char *source, const char *name, int header_count,
                              const char *const *headers, const char *const *header_names)
{
    (void)headers;
    (void)header_names;
    const char *base = name ? strrchr(name, '/') : NULL;
    if (!source || !base || header_count < 1) return ERROR_INVALID_INPUT;
    *program = calloc(1, sizeof **program);
    if (!*program) return 1;
    snprintf((*program)->name, sizeof(*program)->name, "%.*s", (int)strcspn(base + 1, "."), base + 1);
    return SUCCESS;
}

EXPORT int nvrtcDestroyProgram(struct program **program)
{
    free(*program);
    *program = NULL;
    return SUCCESS;
}

EXPORT int nvrtcCompileProgram(struct program *program, int count, const char *const *options)
{
    static atomic_ulong compiled;
    const char *refused = getenv("FAKE_NVRTC_REFUSE"), *most = getenv("FAKE_NVRTC_MOST");
    if ((refused && strcmp(refused, program->name) == 0) || has_word("FAKE_NVRTC_REFUSE_IN") ||
        (most && atomic_fetch_add(&compiled, 1) >= strtoul(most, NULL, 10))) {
        snprintf(program->log, sizeof program->log, "%s.cu(1): error: refused as FAKE_NVRTC_REFUSE asks",
                 program->name);
        return ERROR_COMPILATION;
    }
    const char *slow = getenv("FAKE_NVRTC_SLOW"); /* milliseconds */
    if (slow) usleep((useconds_t)(1000 * strtoul(slow, NULL, 10)));
    for (int o = 0; o < count; o++)
        if (strncmp(options[o], "-D", 2) == 0 && !isalpha((unsigned char)options[o][2])) {
            snprintf(program->log, sizeof program->log, "Command-line error: invalid macro definition: %.80s",
                     options[o] + 2);
            return ERROR_COMPILATION;
        }
    const struct device_kernel *kernel = device_kernel_find(program->name);
    if (kernel && !kernel->library) {
        write_cubin(program, kernel, options, count);
        return SUCCESS;
    }
    snprintf(program->log, sizeof program->log, "%s.cu(1): error: there is no such kernel", program->name);
    return ERROR_COMPILATION;
}

EXPORT int nvrtcGetCUBINSize(struct program *program, size_t *size)
{
    *size = program->cubin_bytes;
    return SUCCESS;
}

EXPORT int nvrtcGetCUBIN(struct program *program, char *cubin)
{
    memcpy(cubin, program->cubin, program->cubin_bytes);
    return SUCCESS;
}

EXPORT int nvrtcGetProgramLogSize(struct program *program, size_t *size)
{
    *size = strlen(program->log) + 1;
    return SUCCESS;
}

EXPORT int nvrtcGetProgramLog(struct program *program, char *log)
{
    memcpy(log, program->log, strlen(program->log) + 1);
    return SUCCESS;
}

EXPORT const char *nvrtcGetErrorString(int result)
{
    return result == SUCCESS             ? "NVRTC_SUCCESS"
           : result == ERROR_COMPILATION ? "NVRTC_ERROR_COMPILATION"
                                         : "NVRTC_ERROR";
}
