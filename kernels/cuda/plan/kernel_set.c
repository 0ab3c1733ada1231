/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/plan/kernel_set.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static bool same_tactic(const struct device_tactic *a, const struct device_tactic *b)
{
    return a->kernel == b->kernel &&
           memcmp(a->params, b->params, (size_t)device_param_count(a->kernel) * sizeof *a->params) == 0;
}

uint32_t kernel_set_add(struct kernel_set *set, const struct device_tactic *tactic, uint32_t operand_count)
{
    for (size_t i = 0; i < set->count; i++)
        if (set->entries[i].operand_count == operand_count && same_tactic(&set->entries[i].tactic, tactic))
            return (uint32_t)i;
    if (set->count == set->capacity) {
        size_t capacity = set->capacity ? 2 * set->capacity : 64;
        struct kernel_set_entry *larger = realloc(set->entries, capacity * sizeof *larger);
        if (!larger) return UINT32_MAX;
        set->entries = larger;
        set->capacity = capacity;
    }
    set->entries[set->count] = (struct kernel_set_entry){.tactic = *tactic, .operand_count = operand_count};
    return (uint32_t)set->count++;
}

static bool grow_calls(struct kernel_set *set)
{
    size_t capacity = set->call_capacity ? 2 * set->call_capacity : 64;
    struct engine_call *calls = realloc(set->calls, capacity * sizeof *calls);
    if (calls) set->calls = calls;
    struct device_tactic *tactics = realloc(set->call_tactics, capacity * sizeof *tactics);
    if (tactics) set->call_tactics = tactics;
    if (calls && tactics) set->call_capacity = capacity;
    return calls && tactics;
}

uint32_t kernel_set_add_call(struct kernel_set *set, const struct device_tactic *tactic, uint32_t operand_count)
{
    struct engine_call call = {.library = tactic->kernel->library, .operand_count = operand_count};
    for (size_t i = 0; i < set->call_count; i++) /* a call's data follow from its tunables alone */
        if (set->calls[i].operand_count == operand_count && device_tactic_same_tunables(&set->call_tactics[i], tactic))
            return (uint32_t)i;
    if (set->call_count == set->call_capacity && !grow_calls(set)) return UINT32_MAX;
    if (!tactic->kernel->call(tactic->params, tactic->blob, tactic->blob_bytes, &call)) return UINT32_MAX;
    struct device_tactic *kept = &set->call_tactics[set->call_count];
    *kept = *tactic;
    kept->blob = NULL;
    set->calls[set->call_count] = call;
    return (uint32_t)set->call_count++;
}

static bool copy_code(struct kernel_set_entry *to, const struct kernel_set_entry *from)
{
    to->cubin = malloc(from->cubin_bytes);
    if (!to->cubin) return false;
    memcpy(to->cubin, from->cubin, from->cubin_bytes);
    to->cubin_bytes = from->cubin_bytes;
    return true;
}

/* The code depends on the tactic alone. */
static struct kernel_set_entry *find_code(const struct kernel_set *known, const struct device_tactic *tactic)
{
    for (size_t i = 0; i < known->count; i++)
        if (known->entries[i].cubin && same_tactic(&known->entries[i].tactic, tactic)) return &known->entries[i];
    return NULL;
}

struct compilation {
    struct kernel_set *set;
    kernel_set_progress *progress; /* called by the first thread alone */
    void *context;
    const struct kernel_compiler *compiler;
    atomic_size_t next, done;
    atomic_int threads; /* that have begun */
    atomic_bool failed;
    struct status *status; /* of the thread that set `failed` first */
};

/* Threads beyond those of one process have a worker each. */
static bool compile_entry(const struct kernel_compiler *compiler, int thread, struct kernel_set_entry *entry,
                          struct status *status)
{
    const int worker = thread - COMPILE_THREADS_OF_A_PROCESS;
    const struct device_tactic *tactic = &entry->tactic;
    bool is_lost = true;
    if (worker >= 0 && worker < compile_workers_count(compiler->workers) &&
        (compile_workers_compile(compiler->workers, worker, tactic->kernel, tactic->params, compiler->capability,
                                 &entry->cubin, &entry->cubin_bytes, &is_lost, status) ||
         !is_lost))
        return !!entry->cubin;
    return nvrtc_compile(compiler->nvrtc, tactic->kernel, tactic->params, compiler->capability, &entry->cubin,
                         &entry->cubin_bytes, status);
}

static void compile_some(struct compilation *compilation)
{
    struct kernel_set *set = compilation->set;
    const int thread = atomic_fetch_add(&compilation->threads, 1);
    for (size_t i; (i = atomic_fetch_add(&compilation->next, 1)) < set->count && !atomic_load(&compilation->failed);) {
        struct kernel_set_entry *entry = &set->entries[i];
        struct status status;
        status_clear(&status);
        if (!entry->cubin && !compile_entry(compilation->compiler, thread, entry, &status)) {
            if (!atomic_exchange(&compilation->failed, true)) *compilation->status = status;
            break;
        }
        size_t done = atomic_fetch_add(&compilation->done, 1) + 1;
        if (thread == 0 && compilation->progress) compilation->progress(compilation->context, done, set->count);
    }
}

static void *compile_beside(void *argument)
{
    compile_some(argument);
    return NULL;
}

/* What cannot be remembered is compiled again, should it be wanted. */
static void remember_code(struct kernel_set *known, const struct kernel_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct kernel_set_entry *entry = &set->entries[i];
        if (!entry->cubin || find_code(known, &entry->tactic)) continue;
        uint32_t number = kernel_set_add(known, &entry->tactic, entry->operand_count);
        if (number != UINT32_MAX) copy_code(&known->entries[number], entry);
    }
}

bool kernel_set_compile(struct kernel_set *set, struct kernel_compiler *compiler, kernel_set_progress *progress,
                        void *context, struct status *status)
{
    enum { MOST_THREADS = 64 };
    struct kernel_set *known = &compiler->known;
    const int threads = compiler->threads;
    pthread_t others[MOST_THREADS];
    int started = 0;
    struct compilation compilation = {.set = set,
                                      .progress = progress,
                                      .context = context,
                                      .compiler = compiler,
                                      .status = status};
    for (size_t i = 0; i < set->count; i++) {
        struct kernel_set_entry *entry = &set->entries[i];
        const struct kernel_set_entry *code = entry->cubin ? NULL : find_code(known, &entry->tactic);
        if (code && !copy_code(entry, code)) return status_fail(status, STATUS_MACHINE, "out of memory");
    }
    atomic_init(&compilation.next, 0);
    atomic_init(&compilation.done, 0);
    atomic_init(&compilation.threads, 0);
    atomic_init(&compilation.failed, false);
    /* Fewer threads than asked for only take longer. */
    for (; started < threads - 1 && started < MOST_THREADS && (size_t)started + 1 < set->count; started++)
        if (pthread_create(&others[started], NULL, compile_beside, &compilation) != 0) break;
    compile_some(&compilation);
    for (int i = 0; i < started; i++) pthread_join(others[i], NULL);
    if (progress) progress(context, atomic_load(&compilation.done), set->count);
    remember_code(known, set);
    return !atomic_load(&compilation.failed);
}

void kernel_set_free(struct kernel_set *set)
{
    for (size_t i = 0; i < set->count; i++) free(set->entries[i].cubin);
    for (size_t i = 0; i < set->call_count; i++) free((void *)set->calls[i].data);
    free(set->entries);
    free(set->calls);
    free(set->call_tactics);
    memset(set, 0, sizeof *set);
}

struct engine_kernel *kernel_set_view(const struct kernel_set *set)
{
    struct engine_kernel *kernels = calloc(set->count ? set->count : 1, sizeof *kernels);
    for (size_t i = 0; kernels && i < set->count; i++)
        kernels[i] = (struct engine_kernel){
            .entry = set->entries[i].tactic.kernel->name,
            .cubin = set->entries[i].cubin,
            .cubin_bytes = set->entries[i].cubin_bytes,
            .operand_count = set->entries[i].operand_count,
        };
    return kernels;
}
