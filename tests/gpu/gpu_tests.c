/* SPDX-License-Identifier: Apache-2.0 */
/* gpu-tests: every check of this distribution that needs a GPU, from the unpacked tarball, on a machine with nothing
 * but NVIDIA's driver and the NVRTC library. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "builder/arch/arch.h"
#include "formats/cli/cli_flags.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/nvrtc.h"
#include "runtime/eng.h"
#include "tests/gpu/check.h"
#include "tests/gpu/programs.h"

extern char **environ;

static const char usage[] =
    "usage: gpu-tests [options]\n"
    "\n"
    "Checks on this machine's GPU all that runs on it: every kernel against its reference, then whole engines\n"
    "against engines for the CPU, and the example on the CUDA runtime. Needs NVIDIA's driver and the NVRTC library\n"
    "of CUDA 12 or 13 (in the library path, $CUDA_HOME or /usr/local/cuda). The example also needs libcudart and\n"
    "its header (in $CUDA_HOME or /usr/local/cuda) and a C compiler (cc or gcc); without them it is skipped.\n"
    "\n";
static const char notes[] =
    "\n"
    "Compiled kernels are kept for the next run in the folder that ENG_TEST_CUBINS names, if it is set.\n"
    "A check under compute-sanitizer finds the tool's name in " CHECK_TOOL "; set beside --run it\n"
    "asks for the sizes that are taken under that tool.\n"
    "The last line is 'N passed, N failed'. Exit codes: 0 all passed, 1 one failed, 2 usage, 3 no GPU or no NVRTC.\n";

enum {
    MOST_CHECKS = 1024,
    MOST_JOBS = 64,
    MOST_DEPTH = 3,      /* of folders of checkpoints */
    CHECK_SECONDS = 600, /* at most; under a tool, too: its sizes are made for that */
    EXIT_USAGE = 2,
};
#define TIMES   "times"
#define ENGINE  "engine/"
#define EXAMPLE "example/cudart"

struct check {
    char name[CHECK_NAME];
    char model[CHECK_PATH]; /* of an engine check */
    const char *dtype, *kv_dtype, *compute, *tune;
    unsigned context;
    bool is_trained, has_experts, has_recurrence;
    const char *tool; /* of compute-sanitizer, NULL: none */
};

static struct {
    bool list, time, sanitize;
    const char *only, *models, *run;
    uint64_t jobs;
} options = {.jobs = 4};

static char self[CHECK_PATH], programs[CHECK_PATH], top[CHECK_PATH + 8], scratch[CHECK_PATH], sanitizer[CHECK_PATH];
static struct check checks[MOST_CHECKS];
static size_t check_count;
static volatile sig_atomic_t interrupted;

static void die(int code, const char *message)
{
    fflush(stdout);
    fprintf(stderr, "gpu-tests: %s\n", message);
    exit(code);
}

/* What there is to check */

static struct check *add_check(const char *name)
{
    if (check_count == MOST_CHECKS) die(CHECK_FAILED, "too many checks");
    struct check *check = &checks[check_count++];
    snprintf(check->name, sizeof check->name, "%s", name);
    return check;
}

static void add_kernel_check(const char *name, void *context)
{
    (void)context;
    add_check(name);
}

static struct check *add_engine_check(const char *model, const char *name, const char *dtype, const char *kv_dtype,
                                      const char *tune)
{
    char full[CHECK_NAME];
    snprintf(full, sizeof full, ENGINE "%.140s", name);
    struct check *check = add_check(full);
    snprintf(check->model, sizeof check->model, "%s", model);
    check->dtype = dtype;
    check->kv_dtype = kv_dtype;
    check->tune = tune;
    return check;
}

/* How a checkpoint is built. */
struct recipe {
    const char *dtype;   /* codes stay as they are */
    const char *compute; /* with which products of codes have the precision of others */
    unsigned context;    /* 0: CHECK_CONTEXT */
    bool has_experts, has_recurrence;
};

/* A delta rule, or state spaces of Mamba-2. */
static bool has_recurrence(const json_t *config)
{
    static const char *const keys[] = {"linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"};
    bool found = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) found |= json_object_get(config, keys[i]) != NULL;
    return found;
}

/* False: the folder has no checkpoint of a supported type, and it would be refused. */
static bool find_recipe(const char *folder, struct recipe *recipe)
{
    char path[CHECK_PATH + 16];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *config = json_load_file(path, 0, NULL);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    const json_t *quantisation = json_object_get(config, "quantization_config");
    const json_t *positions = json_object_get(config, "max_position_embeddings");
    if (!positions) positions = json_object_get(config, "n_positions");
    char *text = quantisation ? json_dumps(quantisation, JSON_COMPACT) : NULL;
    static const char *const words[] = {"fp8", "FP8", "\"float\"", "\"int-quantized\"", "W8A8", "INT8"};
    bool has_codes = false;
    for (size_t i = 0; text && i < sizeof words / sizeof *words; i++) has_codes |= strstr(text, words[i]) != NULL;
    const bool is_short = json_is_integer(positions) && json_integer_value(positions) < CHECK_CONTEXT;
    *recipe = (struct recipe){.dtype = quantisation ? "auto" : "bf16",
                              .compute = has_codes ? "bf16" : NULL,
                              .has_recurrence = has_recurrence(config),
                              .context = is_short ? (unsigned)json_integer_value(positions) : 0};
    const char *key;
    json_t *value;
    json_object_foreach (config, key, value)
        recipe->has_experts |= strstr(key, "experts") && json_is_integer(value) && json_integer_value(value) > 1;
    free(text);
    bool supported = false;
    for (size_t i = 0; type && arch_model_type(i); i++) supported |= strcmp(type, arch_model_type(i)) == 0;
    json_decref(config);
    return supported;
}

/* Checkpoints in `folder` and below, named by their paths from character `prefix` on. */
static void add_models(const char *folder, size_t prefix, int depth)
{
    struct dirent **entries;
    struct recipe recipe;
    if (find_recipe(folder, &recipe)) {
        struct check *check = add_engine_check(folder, folder + prefix, recipe.dtype, NULL, "off");
        check->compute = recipe.compute;
        check->context = recipe.context;
        check->has_experts = recipe.has_experts;
        check->has_recurrence = recipe.has_recurrence;
    }
    int count = depth < MOST_DEPTH ? scandir(folder, &entries, NULL, alphasort) : 0;
    for (int i = 0; i < count; i++) {
        char path[CHECK_PATH];
        int length = snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && length < (int)sizeof path) add_models(path, prefix, depth + 1);
        free(entries[i]);
    }
    if (count > 0) free(entries);
}

/* What takes longest comes first, so that no process is left alone at the end. */
static void add_all(void)
{
    char fables[CHECK_PATH + 64];
    size_t first = check_count;
    snprintf(fables, sizeof fables, "%s/share/eng/models/fables", top);
    add_engine_check(fables, "fables", "bf16", NULL, "quick");
    add_engine_check(fables, "fables-int4", "int4", NULL, "quick");
    add_engine_check(fables, "fables-kv-fp8", "bf16", "fp8", "quick");
    add_engine_check(fables, "fables-compute-fp8", "fp8", NULL, "quick")->compute = "fp8";
    add_engine_check(fables, "fables-compute-int8", "int8", NULL, "quick")->compute = "int8";
    add_engine_check(fables, "fables-int4-compute-int8", "int4", NULL, "quick")->compute = "int8";
    add_engine_check(fables, "fables-fp16", "fp16", NULL, "off");
    add_engine_check(fables, "fables-int8", "int8", NULL, "off");
    add_engine_check(fables, "fables-fp8", "fp8", NULL, "off");
    add_engine_check(fables, "fables-mxfp4", "mxfp4", NULL, "off");
    add_engine_check(fables, "fables-nvfp4", "nvfp4", NULL, "off");
    add_engine_check(fables, "fables-kv-int8", "fp16", "int8", "off");
    for (size_t i = first; i < check_count; i++) checks[i].is_trained = true;
    add_check(EXAMPLE);
    kernel_checks_visit(add_kernel_check, NULL);
    if (options.models) {
        char models[PATH_MAX];
        if (!realpath(options.models, models)) die(EXIT_USAGE, "--models: there is no such folder");
        size_t before = check_count, length = strlen(models);
        /* A checkpoint itself goes by its last name. */
        const char *slash = strrchr(models, '/');
        struct recipe recipe;
        add_models(models, find_recipe(models, &recipe) ? (size_t)(slash - models) + 1 : length + 1, 0);
        if (check_count == before) die(EXIT_USAGE, "--models: no checkpoint of a supported type in that folder");
    }
}

static bool find_sanitizer(void)
{
    char folders[8192];
    const char *home = getenv("CUDA_HOME"), *path = getenv("PATH");
    snprintf(folders, sizeof folders, "%s:%s/bin:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer",
             path ? path : "", home ? home : "/usr/local/cuda");
    return check_find_program(folders, "compute-sanitizer", sanitizer);
}

/* Checks that launch kernels: all of the kernels but those of hostile parameters, and two engines. A library's kernels are
 * looked at for what they do to memory alone: the rest is not ours to repair. */
static void add_sanitized(void)
{
    static const char *const tools[] = {"racecheck", "memcheck", "synccheck", "initcheck"}; /* the slowest first */
    size_t count = check_count;
    for (size_t t = 0; t < sizeof tools / sizeof *tools; t++)
        for (size_t i = 0; i < count; i++) {
            char name[CHECK_NAME];
            bool is_engine = checks[i].model[0];
            if (strstr(checks[i].name, "hostile") || strcmp(checks[i].name, EXAMPLE) == 0) continue;
            if (is_engine && strcmp(checks[i].dtype, "fp16") != 0 && strcmp(checks[i].dtype, "nvfp4") != 0) continue;
            bool is_library = strstr(checks[i].name, "cublaslt") || strstr(checks[i].name, "cudnn");
            if (is_library && strcmp(tools[t], "memcheck") != 0) continue;
            snprintf(name, sizeof name, "%.10s/%.140s", tools[t], checks[i].name);
            struct check *check = add_check(name);
            check->tool = tools[t];
        }
}

static void keep_only(void)
{
    size_t kept = 0;
    for (size_t i = 0; i < check_count; i++)
        if (!options.only || strstr(checks[i].name, options.only)) checks[kept++] = checks[i];
    check_count = kept;
}

/* Folders */

static void find_programs(void)
{
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0) die(CHECK_FAILED, "/proc/self/exe cannot be read");
    self[length] = '\0';
    snprintf(programs, sizeof programs, "%s", self);
    *strrchr(programs, '/') = '\0';
    snprintf(top, sizeof top, "%s/..", programs);
}

static int remove_entry(const char *path, const struct stat *information, int kind, struct FTW *position)
{
    (void)information, (void)kind, (void)position;
    return remove(path);
}

static void remove_folder(const char *path) { nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

static void remove_scratch(void) { remove_folder(scratch); }

/* Compiled kernels and tuning records stay in here, where all checks find them. */
static void make_scratch(void)
{
    char path[CHECK_PATH + 16];
    const char *folder = getenv("TMPDIR");
    snprintf(scratch, sizeof scratch, "%.900s/gpu-tests-XXXXXX", folder && *folder ? folder : "/tmp");
    if (!mkdtemp(scratch)) die(CHECK_FAILED, "no temporary folder: set TMPDIR to one that can be written");
    atexit(remove_scratch);
    snprintf(path, sizeof path, "%s/cubins", scratch);
    setenv("ENG_TEST_CUBINS", path, 0);
    snprintf(path, sizeof path, "%s/cache", scratch);
    setenv("XDG_CACHE_HOME", path, 1);
    setenv("ENG_TEST_NEEDS_GPU", "1", 1);
    setenv("TMPDIR", scratch, 1); /* of the checks: what one that is killed leaves goes with this */
}

/* The GPU */

static void report_gpu(void)
{
    struct status status = {0};
    struct device device;
    memset(&device, 0, sizeof device);
    if (!device_find(&device, 0, &status)) {
        fprintf(stderr, "gpu-tests: no GPU: %s\n", status.message);
        exit(CHECK_NO_GPU);
    }
    struct device_facts facts = device.facts;
    device_close(&device);
    struct nvrtc *nvrtc = nvrtc_open(device_sources, device_source_count, NULL, &status);
    if (!nvrtc) {
        fprintf(stderr, "gpu-tests: %s\n", status.message);
        exit(CHECK_NO_GPU);
    }
    int version = nvrtc_version(nvrtc);
    nvrtc_close(nvrtc);
    printf("%s, compute capability %d.%d, %d multiprocessors, %.1f GB; driver %d.%d, NVRTC %d.%d; eng %s\n", facts.name,
           facts.capability / 10, facts.capability % 10, facts.multiprocessors, (double)facts.memory_bytes * 1e-9,
           facts.driver_version / 1000, facts.driver_version % 1000 / 10, version / 1000, version % 1000 / 10,
           eng_version());
}

/* Running */

struct job {
    const struct check *check;
    pid_t process;
    double start;
    char output[CHECK_PATH + 32];
};

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void note_interrupt(int signal) { interrupted = signal; }

/* This program again, in a process group of its own. output NULL: this process's. */
static pid_t start(const struct check *check, const char *output)
{
    const char *words[24];
    int count = 0;
    pid_t process = 0;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_t actions;
    const char *name = check->name;
    if (check->tool) {
        words[count++] = sanitizer;
        words[count++] = "--tool", words[count++] = check->tool;
        words[count++] = "--target-processes", words[count++] = "all";
        words[count++] = "--error-exitcode", words[count++] = "99";
        words[count++] = "--print-limit", words[count++] = "20";
        /* More barriers than the tool follows by itself: a block of decode attention has one for each stage of each warp. */
        if (strcmp(check->tool, "synccheck") == 0)
            words[count++] = "--num-cuda-barriers", words[count++] = "4096"; /* each launch takes memory for them */
        words[count++] = "--require-cuda-init", words[count++] = "no";       /* some checks need no GPU */
        if (strcmp(check->tool, "memcheck") == 0) words[count++] = "--report-api-errors", words[count++] = "no";
        name += strlen(check->tool) + 1;
    }
    words[count++] = self;
    words[count++] = "--run", words[count++] = name;
    if (options.models) words[count++] = "--models", words[count++] = options.models;
    if (options.only) words[count++] = "--only", words[count++] = options.only;
    words[count] = NULL;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (output) {
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    }
    if (check->tool)
        setenv(CHECK_TOOL, check->tool, 1);
    else
        unsetenv(CHECK_TOOL);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    fflush(stdout);
    int error = posix_spawn(&process, words[0], &actions, &attributes, (char *const *)words, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    if (error) {
        fprintf(stderr, "gpu-tests: cannot start %s: %s\n", words[0], strerror(error));
        return -1;
    }
    return process;
}

/* The lines of a file that begin with `prefix`. */
static void show(const char *path, const char *prefix)
{
    char line[4096];
    FILE *file = fopen(path, "r");
    if (!file) return;
    while (fgets(line, sizeof line, file))
        if (strncmp(line, prefix, strlen(prefix)) == 0) fputs(line, stdout);
    fclose(file);
}

struct tally {
    int passed, failed, skipped;
};

static void settle(struct job *job, int status, bool timed_out, struct tally *tally)
{
    double seconds = seconds_now() - job->start;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    const char *name = job->check->name;
    if (code == CHECK_PASSED || code == CHECK_SKIPPED) {
        printf("%s %7.1f s  %s\n", code == CHECK_PASSED ? "passed " : "skipped", seconds, name);
        tally->passed += code == CHECK_PASSED;
        tally->skipped += code == CHECK_SKIPPED;
        if (code == CHECK_SKIPPED) show(job->output, CHECK_WHY_SKIPPED);
    } else {
        tally->failed++;
        printf("FAILED  %7.1f s  %s", seconds, name);
        if (timed_out)
            printf(" (no end)");
        else if (WIFSIGNALED(status))
            printf(" (signal %d: %s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        else
            printf(" (exit code %d)", code);
        printf("\n---- output of %s\n", name);
        show(job->output, "");
        printf("---- end of output\n");
    }
    fflush(stdout);
    unlink(job->output);
    job->check = NULL;
}

static void kill_all(const struct job *jobs, int count)
{
    for (int i = 0; i < count; i++)
        if (jobs[i].check) kill(-jobs[i].process, SIGKILL);
}

/* True if the job has ended. */
static bool poll_job(struct job *job, struct tally *tally)
{
    int status = 0;
    bool timed_out = seconds_now() - job->start > CHECK_SECONDS;
    if (timed_out) kill(-job->process, SIGKILL);
    if (waitpid(job->process, &status, timed_out ? 0 : WNOHANG) != job->process) return false;
    settle(job, status, timed_out, tally);
    return true;
}

static void run_all(struct tally *tally)
{
    static struct job jobs[MOST_JOBS];
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    const int most = (int)options.jobs;
    size_t next = 0;
    int running = 0;
    while ((next < check_count || running) && !interrupted) {
        for (int i = 0; i < most; i++) {
            struct job *job = &jobs[i];
            if (job->check && poll_job(job, tally)) running--;
            if (job->check || next == check_count) continue;
            job->check = &checks[next++];
            job->start = seconds_now();
            snprintf(job->output, sizeof job->output, "%s/output%d", scratch, i);
            job->process = start(job->check, job->output);
            if (job->process > 0) {
                running++;
            } else {
                settle(job, -1, false, tally);
            }
        }
        nanosleep(&pause, NULL);
    }
    if (!interrupted) return;
    kill_all(jobs, most);
    exit(128 + (int)interrupted);
}

static bool run_times(void)
{
    struct check check = {.name = TIMES};
    int status = 0;
    printf("\n");
    pid_t process = start(&check, NULL);
    if (process <= 0) return false;
    while (waitpid(process, &status, 0) != process) {
        if (errno != EINTR || !interrupted) continue;
        kill(-process, SIGKILL);
        exit(128 + (int)interrupted);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* --run */

/* A new folder for engines in `scratch`. */
static void make_folder(char path[CHECK_PATH + 32])
{
    snprintf(path, CHECK_PATH + 32, "%s/engines", scratch);
    if (mkdir(path, 0700) != 0) die(CHECK_FAILED, "no folder for engines");
}

static int run_engine(const struct check *check)
{
    char folder[CHECK_PATH + 32];
    make_folder(folder);
    const struct engine_check engine = {.programs = programs,
                                        .model = check->model,
                                        .dtype = check->dtype,
                                        .kv_dtype = check->kv_dtype,
                                        .compute = check->compute,
                                        .context = check->context,
                                        .has_experts = check->has_experts,
                                        .has_recurrence = check->has_recurrence,
                                        .tune = check->tune,
                                        .scratch = folder,
                                        .is_trained = check->is_trained,
                                        .is_brief = getenv(CHECK_TOOL) != NULL};
    return engine_check_run(&engine);
}

static int run_example(void)
{
    char folder[CHECK_PATH + 32];
    make_folder(folder);
    return example_check_run(top, folder);
}

static int run_one(const char *name)
{
    if (strcmp(name, EXAMPLE) == 0) return run_example();
    if (strcmp(name, TIMES) == 0) return kernel_times_run(options.only);
    for (size_t i = 0; i < check_count; i++) {
        if (strcmp(checks[i].name, name) != 0) continue;
        return checks[i].model[0] ? run_engine(&checks[i]) : kernel_check_run(name);
    }
    die(EXIT_USAGE, "--run: there is no such check; see --list");
    return EXIT_USAGE;
}

static int read_options(int argc, char **argv, bool *finished)
{
    static const struct cli_flag flags[] = {
        {"models", 0, "DIR", .text = &options.models,
         .help = "engines of the checkpoints in DIR, too (folders with a config.json)"},
        {"time", .set = &options.time,
         .help = "after the checks, if none failed: times of every kernel at the shapes of Llama 3"},
        {"sanitize", .set = &options.sanitize,
         .help = "the checks once more under compute-sanitizer: racecheck, memcheck, synccheck, initcheck, in minutes "
                 "with --jobs 16; where a tool would take many, with fewer or smaller sizes that go the same ways "
                 "through the code, and of the engines one, of few plans, with few tokens"},
        {"only", 0, "TEXT", .text = &options.only,
         .help = "only what has TEXT in its name; with --time only lines that have it"},
        {"jobs", 0, "N", .number = &options.jobs, .least = 1, .most = MOST_JOBS, .help = "checks at once (4)"},
        {"list", .set = &options.list, .help = "print the names, run nothing"},
        {"run", 0, "NAME", .text = &options.run, .help = "one check in this process, its output as it comes"},
        {.name = NULL},
    };
    const struct cli_command command = {usage, {flags}, notes, eng_version()};
    const int code = cli_read_flags(&command, argc, argv, finished);
    if (!code && !*finished && optind < argc) return cli_usage("expected flags alone, found '%s'", argv[optind]);
    return code;
}

int main(int argc, char **argv)
{
    struct tally tally = {0};
    const struct sigaction action = {.sa_handler = note_interrupt};
    bool finished = false;
    cli_begin("gpu-tests");
    const int code = read_options(argc, argv, &finished);
    if (code || finished) return code;
    find_programs();
    add_all();
    if (options.run) {
        make_scratch();
        return run_one(options.run);
    }
    bool can_sanitize = options.sanitize && find_sanitizer();
    if (can_sanitize) add_sanitized();
    keep_only();
    if (options.list) {
        for (size_t i = 0; i < check_count; i++) printf("%s\n", checks[i].name);
        return 0;
    }
    report_gpu();
    make_scratch();
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (options.sanitize && !can_sanitize) printf("compute-sanitizer was not found: its checks are left out\n");
    double begin = seconds_now();
    run_all(&tally);
    printf("%.1f s\n", seconds_now() - begin);
    if (options.time && tally.failed == 0 && !run_times()) {
        printf("FAILED  times\n");
        tally.failed++;
    }
    if (tally.skipped) printf("%d skipped, which do not apply to this machine\n", tally.skipped);
    if (check_count == 0 && !options.time) die(EXIT_USAGE, "--only: no check has that in its name");
    printf("%d passed, %d failed\n", tally.passed, tally.failed);
    return tally.failed ? CHECK_FAILED : CHECK_PASSED;
}
