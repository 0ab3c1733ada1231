/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/build_rows.h"

#include <string.h>

static void add(struct build_rows *rows, uint32_t count) { rows->rows[rows->count++] = count; }

static bool choose_batches(const struct build_options *options, uint64_t slots, struct build_rows *batches,
                           struct status *status)
{
    for (int i = 0; i < options->batch_size_count; i++) add(batches, options->batch_sizes[i]);
    for (uint64_t b = 1; !options->batch_size_count && b < slots && batches->count < BUILD_MAX_PLANS - 1; b *= 2)
        add(batches, (uint32_t)b);
    /* A step may have one sequence, or all slots: both sizes always exist. */
    const bool lacks_one = options->batch_size_count && batches->rows[0] != 1;
    const bool lacks_all = batches->count == 0 || batches->rows[batches->count - 1] != slots;
    if (batches->count + lacks_one + lacks_all > BUILD_MAX_PLANS)
        return status_fail(status, STATUS_USAGE, "--batch-sizes: expected at most %d sizes besides 1 and --max-batch",
                           BUILD_MAX_PLANS - lacks_one - lacks_all);
    if (lacks_one) {
        memmove(batches->rows + 1, batches->rows, (size_t)batches->count * sizeof *batches->rows);
        batches->rows[0] = 1;
        batches->count++;
    }
    if (lacks_all) add(batches, (uint32_t)slots);
    return true;
}

static void choose_chunks(const struct build_options *options, uint64_t context, struct build_rows *chunks)
{
    enum { DEFAULT_CHUNKS = 4 };
    static const uint32_t cpu_chunks[DEFAULT_CHUNKS] = {16, 64, 256},
                          cuda_chunks[DEFAULT_CHUNKS] = {32, 128, 512, 2048};
    const uint32_t *default_chunks = options->target == TARGET_CUDA ? cuda_chunks : cpu_chunks;
    for (int i = 0; i < options->prefill_chunk_count; i++) add(chunks, options->prefill_chunks[i]);
    if (chunks->count > 0) return;
    for (int i = 0; i < DEFAULT_CHUNKS && default_chunks[i]; i++)
        if (i == 0 || default_chunks[i - 1] < context) add(chunks, default_chunks[i]);
}

/* Those of the prefill plans, so that matrices of the same shapes are tuned once. */
static bool choose_mixed(const struct build_options *options, const struct build_rows *chunks, struct build_rows *mixed,
                         struct status *status)
{
    const uint32_t longest = chunks->rows[chunks->count - 1];
    const bool given = options->mixed_step_count > 0;
    const int count = given ? options->mixed_step_count : options->target == TARGET_CPU ? chunks->count : 0;
    for (int i = 0; i < count; i++) {
        const uint32_t rows = given ? options->mixed_steps[i] : chunks->rows[i];
        if (rows > longest) /* pages of windows have room for that many */
            return status_fail(status, STATUS_USAGE,
                               "--mixed-steps: expected at most the largest prefill chunk (%u), found %u", longest,
                               rows);
        if (rows > 1) add(mixed, rows); /* 0: none; one row has nothing to mix */
    }
    return true;
}

/* Few rows by default: they cost hardly more time than one. On GPUs none, since each plan is tuned; nor with recurrent state, where a wrong
 * draft costs a copy of it and another step. With --mtp the engine drafts in any case. */
static bool choose_verify(const struct build_options *options, const struct plan_geometry *geometry, uint32_t longest,
                          struct build_rows *verify, struct status *status)
{
    static const uint32_t few[] = {4, 8};
    const bool given = options->verify_row_count > 0;
    const int count = given ? options->verify_row_count
                      : options->mtp || (options->target == TARGET_CPU && !geometry->recurrent_bytes)
                          ? (int)(sizeof few / sizeof *few)
                          : 0;
    for (int i = 0; i < count; i++) {
        const uint32_t rows = given ? options->verify_rows[i] : few[i];
        const uint64_t most = longest < geometry->max_context ? longest : geometry->max_context;
        if (rows < 2 || (!given && rows > most)) continue; /* 0: none; one row verifies nothing */
        if (rows > most)
            return status_fail(status, STATUS_USAGE,
                               "--verify-rows: expected at most the largest prefill chunk and the context (%u), found "
                               "%u",
                               (uint32_t)most, rows);
        add(verify, rows);
    }
    if (options->mtp && !verify->count)
        return status_fail(status, STATUS_USAGE,
                           "--mtp: expected plans that verify what it drafts, found none; give --verify-rows 2 or more "
                           "rows, at most the largest prefill chunk and the context");
    return true;
}

bool build_choose_rows(const struct build_options *options, const struct plan_geometry *geometry,
                       struct build_rows *rows, struct status *status)
{
    memset(rows, 0, PLAN_KIND_END * sizeof *rows);
    choose_chunks(options, geometry->max_context, &rows[PLAN_PREFILL]);
    if (geometry->slots > 1 && !choose_mixed(options, &rows[PLAN_PREFILL], &rows[PLAN_MIXED], status)) return false;
    const struct build_rows *chunks = &rows[PLAN_PREFILL];
    if (!choose_verify(options, geometry, chunks->rows[chunks->count - 1], &rows[PLAN_VERIFY], status)) return false;
    return choose_batches(options, geometry->slots, &rows[PLAN_DECODE], status);
}
