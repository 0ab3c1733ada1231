/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/base/test_program.h"
#include "formats/base/test_support.h"

#include <pthread.h>
#include <sys/stat.h>

#include "formats/base/file.h"
#include "kernels/cuda/nvrtc.h"

/* Two levels of headers, the struct of parameters and a macro of each, and the file that every kernel includes. */
static const struct device_source sources[] = {
    {"kernels/cuda/include/device.cuh", "#pragma once\n__device__ inline float twice(float x) { return x + x; }\n"},
    {"kernels/probe/probe.cuh", "#pragma once\n#include \"kernels/cuda/include/device.cuh\"\n"
                                "__device__ inline float four_times(float x) { return twice(twice(x)); }\n"},
    {"kernels/probe/probe.cu",
     "#include \"kernels/probe/probe.cuh\"\n"
     "#define PARAM(name) static constexpr auto name\n"
     "struct params {\n    KERNEL_PARAMS\n};\n"
     "static_assert(params::ROWS == PARAM_ROWS && params::BIAS == PARAM_BIAS && params::WIDE == PARAM_WIDE, \"one\");\n"
     "static_assert(PARAM_BIAS < 0 && sizeof(params::ROWS) == 4 && sizeof(params::WIDE) == 8, \"types\");\n"
     "extern \"C\" __global__ void probe(float *x)\n{\n"
     "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < params::ROWS) x[i] = four_times(x[i]) + "
     "params::BIAS;\n}\n"},
    {"kernels/probe/broken.cu", "extern \"C\" __global__ void broken(float *x)\n{\n    int unused;\n"
                                "    *x = undeclared_name;\n}\n"},
    {"kernels/probe/lost.cu", "#include \"kernels/probe/nowhere.cuh\"\n"},
};
enum { SOURCES = sizeof sources / sizeof *sources };

static const char *const names[] = {"ROWS", "BIAS", "WIDE"};
static const struct device_kernel probe = {.name = "probe",
                                           .source = "kernels/probe/probe.cu",
                                           .own_count = 3,
                                           .own_names = names};
static const int64_t params[3] = {100, -7, INT64_C(1) << 40};

enum { HOPPER = 90 };

static struct nvrtc *open_or_skip(const char *cache)
{
    struct status status = {0};
    struct nvrtc *nvrtc = nvrtc_open(sources, SOURCES, cache, &status);
    if (!nvrtc) {
        assert_int_equal(status.code, STATUS_MACHINE);
        assert_non_null(strstr(status.message, "expected"));
        assert_non_null(strstr(status.message, "found"));
        assert_non_null(strstr(status.message, "install"));
        fprintf(stderr, "skipped: %s\n", status.message);
        skip();
    }
    return nvrtc;
}

static void compile(struct nvrtc *nvrtc, const int64_t *values, void **cubin, size_t *size)
{
    struct status status = {0};
    if (!nvrtc_compile(nvrtc, &probe, values, HOPPER, cubin, size, &status)) fail_msg("%s", status.message);
    assert_true(*size > 4);
    assert_memory_equal(*cubin, "\177ELF", 4);
}

static void expect_failure(struct nvrtc *nvrtc, const char *source, int capability, enum status_code code,
                           const char *message)
{
    struct device_kernel kernel = probe;
    struct status status = {0};
    void *cubin = &status;
    size_t size = 1;
    kernel.source = source;
    assert_false(nvrtc_compile(nvrtc, &kernel, params, capability, &cubin, &size, &status));
    assert_null(cubin);
    if (!strstr(status.message, message)) fail_msg("expected \"%s\" in \"%s\"", message, status.message);
    assert_int_equal(status.code, code);
}

TEST(test_compiles)
{
    struct nvrtc *nvrtc = open_or_skip(NULL);
    void *a, *b, *c;
    size_t a_size, b_size, c_size;
    const int64_t other[3] = {101, -7, INT64_C(1) << 40};
    assert_true(nvrtc_version(nvrtc) >= 12000);
    compile(nvrtc, params, &a, &a_size);
    compile(nvrtc, params, &b, &b_size);
    compile(nvrtc, other, &c, &c_size);
    assert_int_equal(a_size, b_size);
    assert_memory_equal(a, b, a_size);
    assert_true(a_size != c_size || memcmp(a, c, a_size) != 0);
    assert_non_null(memmem(a, a_size, "probe", sizeof "probe"));
    free(a);
    free(b);
    free(c);
    nvrtc_close(nvrtc);
}

TEST(test_failures)
{
    struct nvrtc *nvrtc = open_or_skip(NULL);
    expect_failure(nvrtc, "kernels/probe/broken.cu", HOPPER, STATUS_INTERNAL,
                   "kernels/probe/broken.cu does not compile: kernels/probe/broken.cu(4): error: identifier "
                   "\"undeclared_name\" is undefined");
    expect_failure(nvrtc, "kernels/probe/broken.cu", HOPPER, STATUS_INTERNAL, "--gpu-architecture=sm_90a");
    expect_failure(nvrtc, "kernels/probe/broken.cu", HOPPER, STATUS_INTERNAL,
                   "-DKERNEL_PARAMS=PARAM(ROWS)=100;PARAM(BIAS)=-7;");
    expect_failure(nvrtc, "kernels/probe/lost.cu", HOPPER, STATUS_INTERNAL, "kernels/probe/nowhere.cuh");
    expect_failure(nvrtc, "kernels/probe/absent.cu", HOPPER, STATUS_INTERNAL, "is not part of this program");
    expect_failure(nvrtc, "kernels/probe/probe.cu", 11, STATUS_MACHINE, "knows compute capability 1.1, found");
    nvrtc_close(nvrtc);
}

TEST(test_cache_folder_that_cannot_be)
{
    struct status status = {0};
    nvrtc_close(open_or_skip(NULL));
    char *folder = test_folder();
    test_write(test_path(folder, "file"), "x", 1);
    assert_null(nvrtc_open(sources, SOURCES, test_path(folder, "file"), &status));
    assert_non_null(strstr(status.message, "cannot make the cache folder"));
    assert_null(nvrtc_open(sources, SOURCES, test_path(folder, "file/below"), &status));
    assert_non_null(strstr(status.message, "Not a directory"));
    test_folder_remove(folder);
}

/* The one entry of the cache, and how many there are. */
static int find_entry(const char *folder, char path[512])
{
    int count = 0;
    DIR *entries = opendir(folder);
    assert_non_null(entries);
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, 512, "%s/%s", folder, entry->d_name);
        count++;
    }
    closedir(entries);
    return count;
}

TEST(test_cache_hit)
{
    nvrtc_close(open_or_skip(NULL));
    char *folder = test_folder();
    char cache[256], path[512];
    void *a, *b;
    size_t a_size, b_size;
    struct stat before, after;
    snprintf(cache, sizeof cache, "%s/new/folders", folder);
    struct nvrtc *nvrtc = open_or_skip(cache);
    assert_int_equal(find_entry(cache, path), 0);
    compile(nvrtc, params, &a, &a_size);
    nvrtc_close(nvrtc);
    assert_int_equal(find_entry(cache, path), 1);
    assert_int_equal(strlen(strrchr(path, '/')), 1 + 32 + strlen(".cubin"));
    assert_int_equal(stat(path, &before), 0);
    nvrtc = open_or_skip(cache);
    compile(nvrtc, params, &b, &b_size);
    assert_int_equal(a_size, b_size);
    assert_memory_equal(a, b, a_size);
    /* What compiles also writes: the entry would be another file. */
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    free(b);
    const int64_t other[3] = {params[0], params[1] - 1, params[2]};
    compile(nvrtc, other, &b, &b_size);
    assert_int_equal(find_entry(cache, path), 2);
    free(b);
    nvrtc_close(nvrtc);
    /* Another text of any header is another key. */
    struct device_source changed[SOURCES];
    struct status status = {0};
    memcpy(changed, sources, sizeof sources);
    changed[0].text = "#pragma once\n__device__ inline float twice(float x) { return 2 * x; }\n";
    nvrtc = nvrtc_open(changed, SOURCES, cache, &status);
    assert_non_null(nvrtc);
    compile(nvrtc, params, &b, &b_size);
    assert_int_equal(find_entry(cache, path), 3);
    free(a);
    free(b);
    nvrtc_close(nvrtc);
    test_folder_remove(folder);
}

/* Each kind of damage leads to a compilation with the same result, which repairs the entry. */
TEST(test_cache_damage)
{
    nvrtc_close(open_or_skip(NULL));
    char *folder = test_folder();
    char path[512];
    void *cubin;
    size_t size, file_size, damaged_size;
    char *file, *repaired;
    struct status status = {0};
    struct nvrtc *nvrtc = open_or_skip(folder);
    compile(nvrtc, params, &cubin, &size);
    assert_int_equal(find_entry(folder, path), 1);
    assert_true(file_read(path, 1 << 30, &file, &file_size, &status));
    const size_t header_bytes = file_size - size;
    const struct {
        size_t keep, flip; /* the file is cut to `keep` bytes; byte `flip` is changed */
    } damages[] = {{0, 0},
                   {header_bytes - 1, 0},
                   {header_bytes, file_size},
                   {file_size - 1, file_size},
                   {file_size, 0},              /* magic */
                   {file_size, 8},              /* key */
                   {file_size, 40},             /* size */
                   {file_size, 48},             /* hash */
                   {file_size, header_bytes},   /* cubin, first byte */
                   {file_size, file_size - 1}}; /* last byte */
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        void *again;
        size_t again_size;
        char *damaged = malloc(file_size);
        assert_non_null(damaged);
        memcpy(damaged, file, file_size);
        if (damages[i].flip < file_size) damaged[damages[i].flip] ^= 1;
        test_write(path, damaged, damages[i].keep);
        compile(nvrtc, params, &again, &again_size);
        assert_int_equal(again_size, size);
        assert_memory_equal(again, cubin, size);
        assert_true(file_read(path, 1 << 30, &repaired, &damaged_size, &status));
        assert_int_equal(damaged_size, file_size);
        assert_memory_equal(repaired, file, file_size);
        free(repaired);
        free(damaged);
        free(again);
    }
    free(file);
    free(cubin);
    nvrtc_close(nvrtc);
    test_folder_remove(folder);
}

struct job {
    struct nvrtc *nvrtc;
    int64_t params[3];
    void *cubin;
    size_t size;
    bool done;
    struct status status;
};

static void *run_job(void *argument)
{
    struct job *job = argument;
    job->done = nvrtc_compile(job->nvrtc, &probe, job->params, HOPPER, &job->cubin, &job->size, &job->status);
    return NULL;
}

/* Threads of one compiler and two compilers of one cache; half of the jobs have the same key. */
TEST(test_concurrent)
{
    enum { THREADS = 8 };
    nvrtc_close(open_or_skip(NULL));
    char *folder = test_folder();
    char path[512];
    struct nvrtc *serial = open_or_skip(NULL), *compilers[2] = {open_or_skip(folder), open_or_skip(folder)};
    pthread_t threads[THREADS];
    struct job jobs[THREADS] = {{0}};
    for (int i = 0; i < THREADS; i++) {
        memcpy(jobs[i].params, params, sizeof params);
        if (i % 2) jobs[i].params[0] += i;
        jobs[i].nvrtc = compilers[i / 2 % 2];
        assert_int_equal(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *cubin;
        size_t size;
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        if (!jobs[i].done) fail_msg("%s", jobs[i].status.message);
        compile(serial, jobs[i].params, &cubin, &size);
        assert_int_equal(size, jobs[i].size);
        assert_memory_equal(cubin, jobs[i].cubin, size);
        free(cubin);
        free(jobs[i].cubin);
    }
    assert_int_equal(find_entry(folder, path), THREADS / 2 + 1);
    nvrtc_close(compilers[0]);
    nvrtc_close(compilers[1]);
    nvrtc_close(serial);
    test_folder_remove(folder);
}

TEST(test_embedded_sources)
{
    bool found = false;
    for (size_t i = 0; i < device_source_count; i++) {
        const struct device_source *source = &device_sources[i];
        assert_int_equal(strncmp(source->path, "kernels/", strlen("kernels/")), 0);
        if (i) assert_true(strcmp(device_sources[i - 1].path, source->path) < 0);
        if (strcmp(source->path, "kernels/cuda/include/device.cuh") != 0) continue;
        found = true;
        assert_non_null(strstr(source->text, "\n#define KERNELS_CUDA_INCLUDE_DEVICE_CUH\n"));
        assert_non_null(strstr(source->text, "asm volatile(\"griddepcontrol.wait;\" ::: \"memory\");\n"));
        assert_int_equal(strncmp(source->text, "/*", 2), 0);
        assert_string_equal(source->text + strlen(source->text) - strlen("\n#endif\n"), "\n#endif\n");
    }
    assert_true(found);
}

int main(void) { return test_run(); }
