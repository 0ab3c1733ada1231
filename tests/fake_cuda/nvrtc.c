/* SPDX-License-Identifier: Apache-2.0 */
/* A run-time compiler for the fake driver (fake_cuda.h): whatever the source, the cubin is the fake's text, with the
 * operands that the kernel has with these parameters. A library libnvrtc.so.13 in a folder of its own.
 *
 * FAKE_NVRTC_REFUSE=NAME makes every compilation of that kernel fail with a message. */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* What each kernel takes: how many operands, which of them are tensor maps, and which parameters add more after those. */
static const struct kernel {
    const char *name;
    int operands, maps[2]; /* -1: none */
    const char *optional[3];
    int added[3]; /* by each, where it is 1 */
} kernels[] = {
    {"embed", 4, {-1, -1}, {"SHARDED"}, {1}},
    {"rope_table", 4, {-1, -1}, {NULL}, {0}},
    {"rms_norm", 4, {-1, -1}, {NULL}, {0}},
    {"matmul_gemv", 4, {-1, -1}, {"HAS_BIAS", "HAS_RESIDUAL", "HAS_NORM"}, {1, 1, 1}},
    {"matmul_wgmma", 4, {1, 2}, {"HAS_BIAS", "HAS_RESIDUAL"}, {1, 1}},
    {"matmul_mma", 4, {-1, -1}, {"HAS_BIAS", "HAS_RESIDUAL"}, {1, 1}},
    {"rope_append", 8, {-1, -1}, {"HAS_NORM"}, {2}},
    {"rope_attention", 9, {-1, -1}, {"HAS_NORM"}, {2}},
    {"attention_prefill", 7, {1, 5}, {NULL}, {0}},
    {"attention_generic", 7, {-1, -1}, {NULL}, {0}},
    {"attention_cudnn_inputs", 6, {-1, -1}, {NULL}, {0}},
    {"swiglu", 3, {-1, -1}, {NULL}, {0}},
    {"select_rows", 4, {-1, -1}, {NULL}, {0}},
    {"sample", 7, {-1, -1}, {"FEEDBACK"}, {2}},
    {"all_reduce_one_shot", 5, {-1, -1}, {"HAS_RESIDUAL", "HAS_NORM"}, {1, 2}},
    {"all_reduce_two_shot", 5, {-1, -1}, {"HAS_RESIDUAL", "HAS_NORM"}, {1, 2}},
    {"all_reduce_finish", 3, {-1, -1}, {"HAS_RESIDUAL", "HAS_NORM"}, {1, 2}},
    {"all_gather", 5, {-1, -1}, {NULL}, {0}},
    {"all_gather_place", 3, {-1, -1}, {NULL}, {0}},
};

static bool is_param(const char *const *options, int count, const char *name, const char *value)
{
    char wanted[80];
    snprintf(wanted, sizeof wanted, "-DPARAM_%s=%s", name, value);
    for (int i = 0; i < count; i++)
        if (strcmp(options[i], wanted) == 0) return true;
    return false;
}

static void write_cubin(struct program *program, const struct kernel *kernel, const char *const *options, int count)
{
    char text[256], *at = text;
    int operands = kernel->operands;
    int second_map = kernel->maps[1];
    for (int i = 0; i < 3 && kernel->optional[i]; i++)
        if (is_param(options, count, kernel->optional[i], "1") || is_param(options, count, kernel->optional[i], "2"))
            operands += kernel->added[i];
    /* matmul_gemv reads W through a map in one of its ways. */
    if (strcmp(kernel->name, "matmul_gemv") == 0 && is_param(options, count, "COPY", "2")) second_map = 2;
    at += sprintf(at, "FAKE CUBIN 90\nkernel %s", kernel->name);
    for (int i = 0; i < operands; i++)
        at += sprintf(at, " %d", i == kernel->maps[0] || i == second_map ? MAP : POINTER);
    at += sprintf(at, "\nend\n");
    program->cubin_bytes = fake_cuda_cubin(text, program->cubin, sizeof program->cubin);
}

EXPORT int nvrtcVersion(int *major, int *minor)
{
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
    const char *refused = getenv("FAKE_NVRTC_REFUSE");
    if (refused && strcmp(refused, program->name) == 0) {
        snprintf(program->log, sizeof program->log, "%s.cu(1): error: refused as FAKE_NVRTC_REFUSE asks",
                 program->name);
        return ERROR_COMPILATION;
    }
    for (int o = 0; o < count; o++)
        if (strncmp(options[o], "-D", 2) == 0 && !isalpha((unsigned char)options[o][2])) {
            snprintf(program->log, sizeof program->log, "Command-line error: invalid macro definition: %.80s",
                     options[o] + 2);
            return ERROR_COMPILATION;
        }
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (strcmp(kernels[i].name, program->name) == 0) {
            write_cubin(program, &kernels[i], options, count);
            return SUCCESS;
        }
    snprintf(program->log, sizeof program->log, "%s.cu(1): error: a kernel that nvrtc.c does not know", program->name);
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
