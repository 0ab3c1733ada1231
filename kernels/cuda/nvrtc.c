/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/nvrtc.h"

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/base/file.h"
#include "formats/base/hash.h"
#include "kernels/cuda/symbols.h"

/* Values of nvrtc.h, which never change. */
typedef struct nvrtc_program_opaque *nvrtc_program;
enum nvrtc_result {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_COMPILATION = 6,
    NVRTC_ERROR_BUILTIN_OPERATION_FAILURE = 7,
};

/* X(member, symbol, parameters) */
#define NVRTC_FUNCTIONS(X)                                                                                          \
    X(Version, nvrtcVersion, (int *major, int *minor))                                                              \
    X(GetNumSupportedArchs, nvrtcGetNumSupportedArchs, (int *count))                                                \
    X(GetSupportedArchs, nvrtcGetSupportedArchs, (int *architectures))                                              \
    X(CreateProgram, nvrtcCreateProgram,                                                                            \
      (nvrtc_program * program, const char *source, const char *name, int header_count, const char *const *headers, \
       const char *const *header_names))                                                                            \
    X(DestroyProgram, nvrtcDestroyProgram, (nvrtc_program * program))                                               \
    X(CompileProgram, nvrtcCompileProgram, (nvrtc_program program, int option_count, const char *const *options))   \
    X(GetCUBINSize, nvrtcGetCUBINSize, (nvrtc_program program, size_t * size))                                      \
    X(GetCUBIN, nvrtcGetCUBIN, (nvrtc_program program, char *cubin))                                                \
    X(GetProgramLogSize, nvrtcGetProgramLogSize, (nvrtc_program program, size_t * size))                            \
    X(GetProgramLog, nvrtcGetProgramLog, (nvrtc_program program, char *log))

struct nvrtc {
    void *library; /* of dlopen */
    int version;
    const struct device_source *sources; /* borrowed */
    size_t source_count;
    const char **header_names, **headers; /* those of the sources that are .cuh files; arrays owned */
    int header_count;
    char *cache; /* owned; NULL: none */
#define NVRTC_MEMBER(member, symbol, parameters) int(*member) parameters;
    NVRTC_FUNCTIONS(NVRTC_MEMBER)
#undef NVRTC_MEMBER
    const char *(*GetErrorString)(int result);
};

enum {
    LEAST_VERSION = 12000, /* sm_90a */
    MAX_CUBIN_BYTES = 64 << 20,
    OPTION_BYTES = 96,
    FIXED_OPTIONS = 3, /* before those of single parameters */
    MAX_OPTIONS = PLAN_MAX_PARAMS + FIXED_OPTIONS,
    STRUCT_BYTES = PLAN_MAX_PARAMS * OPTION_BYTES,
    KEY_CHARACTERS = 32,
};

struct options {
    char text[MAX_OPTIONS][OPTION_BYTES];
    char params[STRUCT_BYTES]; /* the option that defines KERNEL_PARAMS */
    const char *list[MAX_OPTIONS];
    int count;
};

/* The library */

/* Where the dynamic linker looks first, newest major first; then beside a toolkit that it does not know of. */
static void *open_library(void)
{
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    const char *home = getenv("CUDA_HOME");
    const struct {
        const char *root, *folder;
    } places[] = {{"", ""}, {home, "/lib64/"}, {home, "/lib/"}, {"/usr/local/cuda", "/lib64/"}};
    for (size_t place = 0; place < sizeof places / sizeof *places; place++) {
        for (size_t name = 0; name < sizeof names / sizeof *names; name++) {
            char path[PATH_MAX];
            if (!places[place].root) continue;
            int length = snprintf(path, sizeof path, "%s%s%s", places[place].root, places[place].folder, names[name]);
            if (length < 0 || length >= (int)sizeof path) continue;
            /* It does not give back all that it allocates: loading it anew each time would leak. */
            void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
            if (library) return library;
        }
    }
    return NULL;
}

static bool load(struct nvrtc *nvrtc, struct status *status)
{
    static const char remedy[] = "install the CUDA toolkit (or its NVRTC alone) and set CUDA_HOME to its folder";
    nvrtc->library = open_library();
    if (!nvrtc->library)
        return status_fail(status, STATUS_MACHINE,
                           "compiling kernels: expected the library libnvrtc.so of CUDA 12 or 13, found none in the "
                           "library path, $CUDA_HOME and /usr/local/cuda; %s",
                           remedy);
#define SYMBOL(member, symbol, parameters) {#symbol, &nvrtc->member},
    const struct symbol symbols[] = {NVRTC_FUNCTIONS(SYMBOL){"nvrtcGetErrorString", &nvrtc->GetErrorString}};
#undef SYMBOL
    const char *missing = symbols_missing(nvrtc->library, symbols, sizeof symbols / sizeof *symbols);
    if (missing)
        return status_fail(status, STATUS_MACHINE,
                           "compiling kernels: expected libnvrtc.so with the function %s, found one without; %s",
                           missing, remedy);
    int major = 0, minor = 0;
    if (nvrtc->Version(&major, &minor) != NVRTC_SUCCESS)
        return status_fail(status, STATUS_MACHINE, "compiling kernels: libnvrtc.so does not tell its version; %s",
                           remedy);
    nvrtc->version = 1000 * major + 10 * minor;
    if (nvrtc->version < LEAST_VERSION)
        return status_fail(status, STATUS_MACHINE,
                           "compiling kernels: expected libnvrtc.so of CUDA 12.0 or later, found %d.%d; %s", major,
                           minor, remedy);
    return true;
}

/* mkdir -p */
static bool make_folder(const char *path, struct status *status)
{
    struct stat information;
    char *partial = strdup(path);
    if (!partial) return status_fail(status, STATUS_MACHINE, "out of memory");
    for (char *c = partial + 1; *c; c++) {
        if (*c != '/') continue;
        *c = '\0';
        mkdir(partial, 0777); /* what went wrong shows at the whole path */
        *c = '/';
    }
    int error = mkdir(partial, 0777) == 0 ? 0 : errno;
    free(partial);
    if (error == EEXIST) error = stat(path, &information) != 0 ? errno : S_ISDIR(information.st_mode) ? 0 : ENOTDIR;
    if (error) return status_fail_errno(status, STATUS_BAD_INPUT, error, "cannot make the cache folder '%s'", path);
    return true;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

struct nvrtc *nvrtc_open(const struct device_source *sources, size_t source_count, const char *cache,
                         struct status *status)
{
    struct nvrtc *nvrtc = calloc(1, sizeof *nvrtc);
    if (!nvrtc) goto out_of_memory;
    nvrtc->sources = sources;
    nvrtc->source_count = source_count;
    nvrtc->headers = calloc(source_count + 1, sizeof *nvrtc->headers);
    nvrtc->header_names = calloc(source_count + 1, sizeof *nvrtc->header_names);
    if (!nvrtc->headers || !nvrtc->header_names) goto out_of_memory;
    for (size_t i = 0; i < source_count; i++) {
        if (!ends_with(sources[i].path, ".cuh")) continue;
        nvrtc->header_names[nvrtc->header_count] = sources[i].path;
        nvrtc->headers[nvrtc->header_count++] = sources[i].text;
    }
    if (!load(nvrtc, status)) goto failed;
    if (cache) {
        if (!make_folder(cache, status)) goto failed;
        nvrtc->cache = strdup(cache);
        if (!nvrtc->cache) goto out_of_memory;
    }
    return nvrtc;
out_of_memory:
    status_fail(status, STATUS_MACHINE, "out of memory");
failed:
    nvrtc_close(nvrtc);
    return NULL;
}

struct nvrtc *nvrtc_open_anyway(const struct device_source *sources, size_t source_count, const char *cache,
                                struct status *status)
{
    struct nvrtc *nvrtc = nvrtc_open(sources, source_count, cache, status);
    if (nvrtc || !cache) return nvrtc;
    status_clear(status);
    return nvrtc_open(sources, source_count, NULL, status);
}

void nvrtc_close(struct nvrtc *nvrtc)
{
    if (!nvrtc) return;
    if (nvrtc->library) dlclose(nvrtc->library);
    free(nvrtc->headers);
    free(nvrtc->header_names);
    free(nvrtc->cache);
    free(nvrtc);
}

int nvrtc_version(const struct nvrtc *nvrtc) { return nvrtc->version; }

/* The cache: one file for each cubin, named after the key. A reader takes an entry only if all of it fits, so that a
 * damaged one costs a compilation and nothing else. */

struct entry_header { /* little endian, as all that this project runs on */
    char magic[8];
    char key[KEY_CHARACTERS];
    uint64_t size; /* of the cubin, which follows */
    uint64_t hash; /* XXH3-64 of the cubin */
};
_Static_assert(sizeof(struct entry_header) == 56, "no padding");
static const char entry_magic[8] = "ENGCUB01";

/* 128 bits: two XXH3-64 over the same texts with different beginnings. Texts are hashed with their NUL, so that none
 * runs into the next. */
static bool make_key(const struct nvrtc *nvrtc, const struct device_source *source, const struct options *options,
                     char key[KEY_CHARACTERS + 1])
{
    uint64_t halves[2];
    for (uint64_t half = 0; half < 2; half++) {
        struct hash64_stream *stream = hash64_stream_begin();
        if (!stream) return false;
        const uint64_t beginning[2] = {half, (uint64_t)nvrtc->version};
        hash64_stream_add(stream, beginning, sizeof beginning);
        for (int i = 0; i < options->count; i++)
            hash64_stream_add(stream, options->list[i], strlen(options->list[i]) + 1);
        hash64_stream_add(stream, source->path, strlen(source->path) + 1);
        hash64_stream_add(stream, source->text, strlen(source->text) + 1);
        for (int i = 0; i < nvrtc->header_count; i++) {
            hash64_stream_add(stream, nvrtc->header_names[i], strlen(nvrtc->header_names[i]) + 1);
            hash64_stream_add(stream, nvrtc->headers[i], strlen(nvrtc->headers[i]) + 1);
        }
        halves[half] = hash64_stream_end(stream);
    }
    snprintf(key, KEY_CHARACTERS + 1, "%016" PRIx64 "%016" PRIx64, halves[0], halves[1]);
    return true;
}

static bool entry_path(const struct nvrtc *nvrtc, const char *key, char path[PATH_MAX])
{
    int length = snprintf(path, PATH_MAX, "%s/%s.cubin", nvrtc->cache, key);
    return length > 0 && length < PATH_MAX;
}

static bool read_entry(const struct nvrtc *nvrtc, const char *key, void **cubin, size_t *size)
{
    struct entry_header header;
    char path[PATH_MAX];
    char *file = NULL;
    size_t file_size = 0;
    if (!entry_path(nvrtc, key, path)) return false;
    if (!file_read(path, sizeof header + MAX_CUBIN_BYTES, &file, &file_size, NULL)) return false;
    if (file_size <= sizeof header) goto refused;
    memcpy(&header, file, sizeof header);
    if (memcmp(header.magic, entry_magic, sizeof header.magic) != 0) goto refused;
    if (memcmp(header.key, key, sizeof header.key) != 0) goto refused;
    if (header.size != file_size - sizeof header) goto refused;
    if (header.hash != hash64(file + sizeof header, (size_t)header.size)) goto refused;
    memmove(file, file + sizeof header, (size_t)header.size);
    *cubin = file;
    *size = (size_t)header.size;
    return true;
refused:
    free(file);
    return false;
}

/* Without success the next build compiles again: no reason to fail this one. */
static void write_entry(const struct nvrtc *nvrtc, const char *key, const void *cubin, size_t size)
{
    struct entry_header header = {.size = size, .hash = hash64(cubin, size)};
    struct file_output output;
    char path[PATH_MAX];
    if (size > MAX_CUBIN_BYTES || !entry_path(nvrtc, key, path)) return;
    memcpy(header.magic, entry_magic, sizeof header.magic);
    memcpy(header.key, key, sizeof header.key);
    if (!file_output_open(&output, path, NULL)) return;
    if (file_output_write(&output, &header, sizeof header, NULL) && file_output_write(&output, cubin, size, NULL))
        file_output_commit(&output, NULL);
    file_output_abandon(&output);
}

/* Compilation */

/* The lines of the log that tell of errors, joined; all lines when there is none. */
static void summarise_log(char *log, char *summary, size_t bytes)
{
    for (int errors_only = 1; errors_only >= 0; errors_only--) {
        size_t used = 0;
        summary[0] = '\0';
        for (char *line = log, *next; line && *line && used + 1 < bytes; line = next) {
            size_t length = strcspn(line, "\n");
            next = line[length] ? line + length + 1 : NULL;
            const char *error = memmem(line, length, "error", strlen("error"));
            const char *total = memmem(line, length, " detected in ", strlen(" detected in "));
            if (!length || (errors_only && (!error || total))) continue;
            int written = snprintf(summary + used, bytes - used, "%s%.*s", used ? "; " : "", (int)length, line);
            used += written > 0 ? (size_t)written : 0;
        }
        if (summary[0]) return;
    }
}

static bool fail_compilation(const struct nvrtc *nvrtc, nvrtc_program program, int result,
                             const struct device_source *source, const struct options *options, struct status *status)
{
    char summary[STATUS_MESSAGE_BYTES * 3 / 4] = "", macros[STATUS_MESSAGE_BYTES] = "";
    size_t size = 0, used = 0;
    if (result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE)
        return status_fail(status, STATUS_MACHINE,
                           "compiling kernels: NVRTC does not find its builtins; install libnvrtc-builtins.so of the "
                           "same version beside libnvrtc.so");
    if (nvrtc->GetProgramLogSize(program, &size) == NVRTC_SUCCESS && size > 0) {
        char *log = malloc(size + 1);
        if (log && nvrtc->GetProgramLog(program, log) == NVRTC_SUCCESS) {
            log[size] = '\0';
            summarise_log(log, summary, sizeof summary);
        }
        free(log);
    }
    for (int i = 0; i < FIXED_OPTIONS && used + 1 < sizeof macros; i++) {
        int written = snprintf(macros + used, sizeof macros - used, " %s", options->list[i]);
        used += written > 0 ? (size_t)written : 0;
    }
    return status_fail(status, result == NVRTC_ERROR_COMPILATION ? STATUS_INTERNAL : STATUS_MACHINE,
                       "%s does not compile: %s (%s;%s)", source->path, summary[0] ? summary : "no message of it",
                       nvrtc->GetErrorString(result), macros);
}

static bool check_architecture(const struct nvrtc *nvrtc, int capability, struct status *status)
{
    int count = 0;
    bool known = false;
    if (nvrtc->GetNumSupportedArchs(&count) != NVRTC_SUCCESS || count <= 0) return true; /* the compiler will say */
    int *architectures = calloc((size_t)count, sizeof *architectures);
    if (!architectures) return status_fail(status, STATUS_MACHINE, "out of memory");
    if (nvrtc->GetSupportedArchs(architectures) == NVRTC_SUCCESS)
        for (int i = 0; i < count; i++) known |= architectures[i] == capability;
    free(architectures);
    if (!known)
        return status_fail(status, STATUS_MACHINE,
                           "compiling kernels: expected an NVRTC that knows compute capability %d.%d, found %d.%d, "
                           "which does not; install the CUDA toolkit that this GPU needs",
                           capability / 10, capability % 10, nvrtc->version / 1000, nvrtc->version % 1000 / 10);
    return true;
}

static bool compile(const struct nvrtc *nvrtc, const struct device_source *source, const struct options *options,
                    void **cubin, size_t *size, struct status *status)
{
    bool done = false;
    nvrtc_program program = NULL;
    void *code = NULL;
    int result = nvrtc->CreateProgram(&program, source->text, source->path, nvrtc->header_count, nvrtc->headers,
                                      nvrtc->header_names);
    if (result != NVRTC_SUCCESS)
        return status_fail(status, STATUS_MACHINE, "%s: NVRTC: %s", source->path, nvrtc->GetErrorString(result));
    result = nvrtc->CompileProgram(program, options->count, options->list);
    if (result != NVRTC_SUCCESS) {
        fail_compilation(nvrtc, program, result, source, options, status);
        goto done;
    }
    result = nvrtc->GetCUBINSize(program, size);
    if (result == NVRTC_SUCCESS && *size) code = malloc(*size);
    if (result == NVRTC_SUCCESS && code) result = nvrtc->GetCUBIN(program, code);
    if (result != NVRTC_SUCCESS || !code) {
        status_fail(status, STATUS_MACHINE, "%s: taking its code from NVRTC: %s", source->path,
                    result != NVRTC_SUCCESS ? nvrtc->GetErrorString(result) : "out of memory");
        goto done;
    }
    *cubin = code;
    code = NULL;
    done = true;
done:
    free(code);
    nvrtc->DestroyProgram(&program);
    return done;
}

/* NULL if it is not part of this program. */
static const struct device_source *find_source(const struct nvrtc *nvrtc, const struct device_kernel *kernel,
                                               char path[PATH_MAX])
{
    if (kernel->source)
        snprintf(path, PATH_MAX, "%s", kernel->source);
    else
        snprintf(path, PATH_MAX, "kernels/%s/%s.cu", plan_op_name(kernel->op), kernel->name);
    for (size_t i = 0; i < nvrtc->source_count; i++)
        if (strcmp(nvrtc->sources[i].path, path) == 0) return &nvrtc->sources[i];
    return NULL;
}

/* A name that is too long is cut to a length for which no option has room. */
static void upper_case(const char *from, char to[OPTION_BYTES])
{
    int i = 0;
    for (; from[i] && i < OPTION_BYTES - 1; i++) to[i] = (char)toupper((unsigned char)from[i]);
    to[i] = 0;
}

static bool make_options(struct options *options, const struct device_kernel *kernel, const int64_t *params,
                         int capability, struct status *status)
{
    char architecture[16];
    const int param_count = device_param_count(kernel);
    if (kernel->own_count < 0 || param_count > PLAN_MAX_PARAMS)
        return status_fail(status, STATUS_INTERNAL, "%s: expected at most %d parameters, found %d", kernel->name,
                           PLAN_MAX_PARAMS, param_count);
    device_architecture(capability, architecture);
    options->count = param_count + FIXED_OPTIONS;
    for (int i = 0; i < options->count; i++) options->list[i] = options->text[i];
    options->list[FIXED_OPTIONS - 1] = options->params;
    snprintf(options->text[0], OPTION_BYTES, "--gpu-architecture=%s", architecture);
    snprintf(options->text[1], OPTION_BYTES, "-std=c++17");
    /* No commas: they separate definitions. */
    size_t used = (size_t)snprintf(options->params, STRUCT_BYTES, "-DKERNEL_PARAMS=");
    for (int i = 0; i < param_count; i++) {
        char name[OPTION_BYTES];
        upper_case(device_param_name(kernel, i), name);
        int length = snprintf(options->text[FIXED_OPTIONS + i], OPTION_BYTES, "-DPARAM_%s=%" PRId64, name, params[i]);
        if (length < 0 || length >= OPTION_BYTES)
            return status_fail(status, STATUS_INTERNAL, "%s: parameter name '%s' is too long", kernel->name, name);
        length = snprintf(options->params + used, STRUCT_BYTES - used, "PARAM(%s)=%" PRId64 ";", name, params[i]);
        used += (size_t)length;
        if (used >= STRUCT_BYTES)
            return status_fail(status, STATUS_INTERNAL, "%s: the names of its parameters take more than %d bytes",
                               kernel->name, STRUCT_BYTES);
    }
    return true;
}

bool nvrtc_compile(struct nvrtc *nvrtc, const struct device_kernel *kernel, const int64_t *params, int capability,
                   void **cubin, size_t *size, struct status *status)
{
    char key[KEY_CHARACTERS + 1], path[PATH_MAX];
    struct options options;
    *cubin = NULL;
    *size = 0;
    const struct device_source *source = find_source(nvrtc, kernel, path);
    if (!source)
        return status_fail(status, STATUS_INTERNAL, "%s: its source '%s' is not part of this program", kernel->name,
                           path);
    if (!make_options(&options, kernel, params, capability, status)) return false;
    bool cached = nvrtc->cache && make_key(nvrtc, source, &options, key);
    if (cached && read_entry(nvrtc, key, cubin, size)) return true;
    if (!check_architecture(nvrtc, capability, status)) return false;
    if (!compile(nvrtc, source, &options, cubin, size, status)) return false;
    if (cached) write_entry(nvrtc, key, *cubin, *size);
    return true;
}
