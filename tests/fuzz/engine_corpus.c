/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the committed inputs of engine_fuzz, engine_fixed_fuzz, manifest_fuzz and tuning_cache_fuzz anew, for when a
 * format changes:
 *
 *     engine_corpus tests/fuzz/corpus */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/engine/test_engine.h"
#include "formats/tuning/tuning_record.h"

static void stop(const char *what)
{
    fprintf(stderr, "engine_corpus: %s\n", what);
    exit(1);
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[4096];
    struct file_output output;
    struct status status = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!file_output_open(&output, path, &status) || !file_output_write(&output, text, strlen(text), &status) ||
        !file_output_commit(&output, &status))
        stop(status.message);
}

/* Fewer plans: the other sections are a larger part. */
static void leave_out_a_plan(struct test_engine *sample)
{
    sample->plans[1] = sample->plans[2];
    sample->plan_count = 2;
    sample->golden_plans.case_count--;
    sample->golden_plans.item_count -= 2;
    sample->manifest.step_bytes = sample->plans[1].header.step_bytes;
}

/* In the order of writing. Compressed sections in engine_fixed would only try zlib. */
static void write_engines(const char *folder)
{
    static const struct {
        bool (*make)(struct test_engine *engine, struct status *status);
        const char *name;
        bool compress, two_plans;
    } engines[] = {
        {test_engine_make, "engine/good_plain", false, false},
        {test_engine_make, "engine/good_compressed", true, false},
        {test_engine_make, "engine_fixed/good_plain", false, false},
        {test_engine_make, "engine_fixed/good_two_plans", false, true},
        {test_engine_make_drafts, "engine/good_drafts_plain", false, false},
        {test_engine_make_drafts, "engine_fixed/good_drafts_plain", false, false},
        {test_engine_make_device, "engine/good_cuda_plain", false, false},
        {test_engine_make_device, "engine/good_cuda_compressed", true, false},
        {test_engine_make_device, "engine_fixed/good_cuda_plain", false, false},
        {test_engine_make_device, "engine_fixed/good_cuda_two_plans", false, true},
        {test_engine_make_library, "engine/good_library_plain", false, false},
        {test_engine_make_library, "engine_fixed/good_library_two_plans", false, true},
    };
    static struct test_engine sample;
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
        char path[4096];
        struct status status = {0};
        snprintf(path, sizeof path, "%s/%s", folder, engines[i].name);
        if (!engines[i].make(&sample, &status)) stop(status.message);
        if (engines[i].two_plans) leave_out_a_plan(&sample);
        if (!test_engine_write(&sample, path, engines[i].compress, &status)) stop(status.message);
    }
}

/* free() it */
static char *manifest_of(const struct test_engine *sample)
{
    char *text = NULL;
    size_t size;
    struct status status = {0};
    if (!manifest_format(&sample->manifest, &text, &size, &status)) stop(status.message);
    return text;
}

static void write_manifest(const char *folder, const char *name, const struct test_engine *sample)
{
    char *text = manifest_of(sample);
    write_file(folder, name, text);
    free(text);
}

static void write_manifests(const char *folder, struct test_engine *sample)
{
    char *text = manifest_of(sample), *copy = NULL;
    write_file(folder, "manifest/good_small", text);
    /* The same with optional parts left out or added. */
    if (asprintf(&copy, "{\"extra\":{\"note\":[1,2.5,null]},%s", text + 1) < 0) stop("out of memory");
    write_file(folder, "manifest/good_extra", copy);
    sample->manifest.bos_token = -1;
    sample->manifest.pad_token = 15;
    sample->manifest.eos_count = 0;
    sample->manifest.chat_format = CHAT_NONE;
    sample->manifest.temperature = 1.0 / 3;
    free(text);
    text = manifest_of(sample);
    write_file(folder, "manifest/good_other", text);
    text[strlen(text) / 2] = '\0';
    write_file(folder, "manifest/bad_cut", text);
    free(text);
    free(copy);
}

/* KV caches with scales: their planes begin at multiples of 256 bytes, a page is a multiple of 64. */
static void write_kv_caches(const char *folder, struct test_engine *sample)
{
    struct plan_geometry *geometry = &sample->manifest.geometry;
    geometry->page_tokens = 16;
    geometry->pages_per_slot = 1;
    geometry->page_bytes = 640;
    sample->manifest.kv_dtype = ENCODING_INT8_CHANNEL;
    write_manifest(folder, "manifest/good_kv_int8", sample);
    sample->manifest.kv_dtype = ENCODING_E4M3_CHANNEL;
    write_manifest(folder, "manifest/good_kv_fp8", sample);
}

/* Page groups with windows: one group, and several that divide the layers. */
static void write_windows(const char *folder, struct test_engine *sample)
{
    struct plan_geometry *geometry = &sample->manifest.geometry;
    geometry->page_groups = 1;
    geometry->page_window[0] = 4;
    write_manifest(folder, "manifest/good_window", sample);
    geometry->page_groups = 3;
    geometry->page_window[2] = 8;
    sample->manifest.layers = 6;
    geometry->page_bytes *= 2;
    write_manifest(folder, "manifest/good_windows", sample);
}

static void write_caches(const char *folder, const struct test_engine *sample)
{
    char *text = NULL;
    const char *second = strchr(sample->tactics, '\n') + 1;
    write_file(folder, "tuning_cache/good_two", sample->tactics);
    /* A damaged line, an empty one, the first record again, and an end torn off. */
    if (asprintf(&text, "%.*sx%s\n%s%.40s", (int)(second - sample->tactics), sample->tactics, second, sample->tactics,
                 second) < 0)
        stop("out of memory");
    write_file(folder, "tuning_cache/bad_torn", text);
    free(text);
    /* As many values as a record may have, the kernel's name the first. */
    struct tuning_record record = {
        .key = "a GPU matmul 64x16x16 BF16",
        .values = {{"matmul_wgmma", 0}},
        .value_count = TUNING_MAX_VALUES,
        .median_us = 2.25,
        .level = "full",
        .candidates = 200,
    };
    for (int i = 1; i < TUNING_MAX_VALUES; i++) {
        snprintf(record.values[i].name, sizeof record.values[i].name, "value_%d", i);
        record.values[i].value = 1 << i;
    }
    size_t size;
    struct status status = {0};
    if (!tuning_record_format(&record, &text, &size, &status)) stop(status.message);
    write_file(folder, "tuning_cache/good_cuda", text);
    free(text);
}

int main(int argc, char **argv)
{
    static struct test_engine sample;
    struct status status = {0};
    if (argc != 2) stop("usage: engine_corpus FOLDER");
    if (!test_engine_make(&sample, &status)) stop(status.message);
    write_engines(argv[1]);
    write_caches(argv[1], &sample);
    leave_out_a_plan(&sample);
    write_manifests(argv[1], &sample);
    write_kv_caches(argv[1], &sample);
    if (!test_engine_make(&sample, &status)) stop(status.message);
    write_windows(argv[1], &sample);
    if (!test_engine_make_device(&sample, &status)) stop(status.message);
    write_manifest(argv[1], "manifest/good_cuda", &sample);
    /* Broken engines of several ranks: formats/engine/engine_exchange_test.c and runtime/backend/backend_ranks_test.c. */
    if (!test_engine_make_ranks(&sample, &status)) stop(status.message);
    write_manifest(argv[1], "manifest/good_ranks", &sample);
    return 0;
}
