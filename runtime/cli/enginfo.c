/* SPDX-License-Identifier: Apache-2.0 */
/* enginfo: contents of an engine file for any target; with --verify, a check of all of it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/base/json.h"
#include "formats/engine/page_groups.h"
#include "runtime/cli/cli_args.h"
#include "runtime/cli/cli_tactics.h"
#include "runtime/load/info.h"
#include "runtime/load/load.h"

static const char usage[] =
    "usage: enginfo FILE [--json] [--verify] [--tactics | --records]\n"
    "\n"
    "Prints what an engine file holds. Structure and checksums of everything but the weights are always verified.\n"
    "\n";

struct arguments {
    const char *path;
    bool json, verify, tactics, records, finished;
};

struct verification {
    bool done;
    int threads;
    double seconds;
};

static double megabytes(uint64_t bytes) { return (double)bytes * 1e-6; }

static void print_tokens(const struct engine *file)
{
    const struct manifest *manifest = &file->manifest;
    printf("tokens:     vocabulary %" PRIu64 ", tokenizer %s, bos ", manifest->geometry.vocab_size,
           manifest->has_tokenizer ? "yes" : "no");
    if (manifest->bos_token >= 0)
        printf("%" PRId64 ", eos", manifest->bos_token);
    else
        printf("none, eos");
    for (int i = 0; i < manifest->eos_count; i++) printf(" %" PRId32, manifest->eos_tokens[i]);
    printf("%s\n", manifest->eos_count ? "" : " none");
}

static void print_chat(const struct engine *file)
{
    const char *name;
    bool usable;
    printf("chat:       %s", file->chat_templates ? "templates"
                             : file->manifest.chat_format == CHAT_NONE
                                 ? "no template"
                                 : "no template (an older engine: build it again)");
    for (size_t i = 0; file->chat_templates && (name = chat_templates_name(file->chat_templates, i, &usable)); i++)
        printf("%s %s%s", i ? "," : "", name, usable ? "" : " (cannot be used)");
    printf("\n");
}

static void print_plans(const struct engine *file, uint32_t kind, const char *name)
{
    printf("%-11s", name);
    bool any = false;
    for (size_t i = 0; i < file->plan_count; i++) {
        if (file->plans[i].header.kind != kind) continue;
        printf(" %" PRIu32 " (%" PRIu32 " launches)", file->plans[i].header.rows, file->plans[i].header.launch_count);
        any = true;
    }
    printf("%s\n", any ? "" : " none");
}

/* A line for each encoding that matrices have, where there are several. */
static void print_matrices(const struct engine *file)
{
    enum encoding_id only = ENCODING_NONE;
    bool several = false;
    for (size_t i = 0; i < file->tensor_count; i++) {
        const enum encoding_id own = (enum encoding_id)file->tensors[i].dtype;
        if (file->tensors[i].rank != 2) continue;
        several = several || (only != ENCODING_NONE && own != only);
        only = own;
    }
    for (size_t e = 0; several && encoding_at(e); e++) {
        size_t tensors = 0;
        double elements = 0, bytes = 0;
        for (size_t i = 0; i < file->tensor_count; i++) {
            const struct engine_tensor *tensor = &file->tensors[i];
            if (tensor->rank != 2 || (int)tensor->dtype != (int)encoding_at(e)->id) continue;
            tensors++;
            elements += (double)tensor->shape[0] * (double)tensor->shape[1];
            bytes += (double)tensor->bytes;
        }
        if (tensors)
            printf("            %s: %zu matrices, %.1f M elements, %.1f MB, %.2f bits each\n",
                   encoding_label(encoding_at(e)->id), tensors, elements * 1e-6, bytes * 1e-6, 8 * bytes / elements);
    }
}

static bool has_windows(const struct plan_geometry *geometry)
{
    bool any = false;
    for (unsigned g = 0; g < plan_page_groups(geometry); g++) any = any || geometry->page_window[g];
    return any;
}

/* What layers with and without a window take of the KV cache. */
static void print_windows(const struct plan_geometry *geometry, uint64_t chunk)
{
    struct page_group_sum sums[PLAN_MAX_PAGE_GROUPS];
    const unsigned count = page_group_sums(geometry, geometry->max_context, chunk, sums);
    for (unsigned s = 0; has_windows(geometry) && s < count; s++) {
        if (sums[s].window)
            printf("            layers with a window of %" PRIu64 " tokens: ", sums[s].window);
        else
            printf("            layers without a window: ");
        printf("at most %" PRIu64 " pages, %" PRIu64 " bytes, of a sequence\n", sums[s].pages,
               sums[s].pages * geometry->page_bytes);
    }
}

static void print_summary(const struct engine *file, const struct verification *verification)
{
    const struct manifest *manifest = &file->manifest;
    const struct plan_geometry *geometry = &manifest->geometry;
    const uint64_t chunk = plan_longest_chunk(file->plans, file->plan_count);
    printf("model:      %s (%s), %.1f M parameters, %" PRIu64 " layers, hidden %" PRIu64 ", heads %" PRIu64 "/%" PRIu64
           " of %" PRIu64 "\n",
           manifest->model_name, manifest->model_type, (double)manifest->parameters * 1e-6, manifest->layers,
           manifest->hidden_size, manifest->heads, manifest->kv_heads, manifest->head_dim);
    printf("target:     %s (%s", engine_target_name(manifest->target), manifest->target_name);
    if (manifest->target == TARGET_CUDA)
        printf(", compute capability %" PRIu64 ".%" PRIu64, manifest->target_capability / 10,
               manifest->target_capability % 10);
    printf("), built by engbuild %s\n", manifest->builder_version);
    printf("limits:     %" PRIu64 " sequences of %" PRIu64 " tokens\n", geometry->slots, geometry->max_context);
    if (plan_ranks(geometry) > 1)
        printf("ranks:      %" PRIu64 " %s that share the model; memory and plans are those of each\n",
               plan_ranks(geometry), manifest->target == TARGET_CUDA ? "GPUs" : "groups of threads");
    printf("types:      weights %s, KV cache %s\n", encoding_label(manifest->weight_encoding),
           encoding_label(manifest->kv_dtype));
    print_matrices(file);
    if (manifest->eight_bit_rows)
        printf("compute:    %s in plans of %" PRIu64 " rows or more, else bf16\n", manifest_eight_bit_label(manifest),
               manifest->eight_bit_rows);
    if (manifest->accuracy.tokens)
        printf("accuracy:   %.1f %% of %" PRIu64
               " tokens were the unquantised model's first choice, too; divergence %.4f nats\n",
               100 * manifest->accuracy.top1, manifest->accuracy.tokens, manifest->accuracy.kl);
    printf("memory:     weights %.1f MB%s, scratch %.1f MB, KV cache %.3f MB per %" PRIu64
           " tokens%s (full: %.1f MB)\n",
           megabytes(manifest_rank_weights(manifest)), manifest->target == TARGET_CPU ? " (mapped)" : "",
           megabytes(manifest->arena_bytes + manifest->step_bytes + manifest->state_bytes + manifest->comm_bytes),
           megabytes(geometry->page_bytes * plan_page_groups(geometry)), geometry->page_tokens,
           has_windows(geometry) ? " up to a window" : "",
           megabytes(geometry->page_bytes * plan_sequence_pages(geometry, geometry->max_context, chunk)) *
               (double)geometry->slots);
    print_windows(geometry, chunk);
    if (file->library_arena_bytes > manifest->arena_bytes)
        printf("            %.1f MB more scratch where the libraries are there that its plans can call\n",
               megabytes(file->library_arena_bytes - manifest->arena_bytes));
    print_tokens(file);
    print_chat(file);
    if (geometry->hidden_size) printf("hidden:     the engine gives hidden states, which embeddings are made of\n");
    if (geometry->drafts)
        printf("mtp:        the last layer predicts the token after the next one, which speculation verifies (engrun "
               "--speculate)\n");
    printf("defaults:   temperature %g, top-p %g, top-k %" PRIu64 ", repetition penalty %g\n", manifest->temperature,
           manifest->top_p, manifest->top_k, manifest->repetition_penalty);
    print_plans(file, PLAN_DECODE, "decode:");
    print_plans(file, PLAN_PREFILL, "prefill:");
    print_plans(file, PLAN_MIXED, "mixed:");
    print_plans(file, PLAN_VERIFY, "verify:");
    size_t lines = 0;
    for (size_t i = 0; i < file->tactics_size; i++) lines += file->tactics[i] == '\n';
    if (file->kernel_count) printf("kernels:    %zu\n", file->kernel_count);
    printf("tactics:    %zu recorded\n", lines);
    printf("golden:     %" PRIu32 " tokens, tolerance %g; of all plans: %" PRIu32 " tokens in %" PRIu32
           " cases, contexts up to %" PRIu32 ", tolerance %g\n",
           file->golden.token_count, (double)file->golden.tolerance, file->golden_plans.row_count,
           file->golden_plans.case_count, golden_longest(&file->golden_plans), (double)file->golden_plans.tolerance);
    printf("file:       %.1f MB, %zu tensors; %s\n", megabytes(file->size), file->tensor_count,
           verification->done ? "structure and all checksums verified, of the weights, too"
                              : "structure and checksums of all but the weights verified; --verify checks these, too");
    if (verification->done)
        printf("verified:   all weights and plans, %.3f s by %d threads (%.1f GB/s)\n", verification->seconds,
               verification->threads,
               verification->seconds > 0 ? (double)manifest->weights_bytes / verification->seconds * 1e-9 : 0);
}

/* Adds a value; NULL is a failure, which may have a message already. */
static bool put(json_t *object, const char *key, json_t *value, struct status *status)
{
    if (json_put(object, key, value)) return true;
    return status->code != STATUS_OK ? false : status_fail(status, STATUS_MACHINE, "out of memory");
}

static bool print_json(const struct engine *file, const struct arguments *arguments,
                       const struct verification *verification, struct status *status)
{
    json_t *info = info_json(file, arguments->path);
    bool ok = info || status_fail(status, STATUS_MACHINE, "out of memory");
    if (ok && arguments->tactics) ok = put(info, "tactics", tactics_json(file, status), status);
    if (ok && arguments->records) ok = put(info, "records", records_json(file), status);
    if (ok && verification->done)
        ok = put(info, "verified",
                 json_pack("{s:f, s:i}", "seconds", verification->seconds, "threads", verification->threads), status);
    char *text = ok ? json_format(info, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(9)) : NULL;
    if (text) {
        cli_print_text(stdout, text, strlen(text));
        putchar('\n');
    }
    if (ok && !text) ok = status_fail(status, STATUS_MACHINE, "out of memory");
    free(text);
    json_decref(info);
    return ok;
}

static bool verify(const struct engine *file, struct verification *verification, struct status *status)
{
    struct plan_space_sizes sizes;
    size_t decode_plans;
    if (!load_check_plans(file, &decode_plans, &sizes, status)) return false;
    if (!load_check_weights(file, NULL, 0, NULL, &verification->threads, &verification->seconds, status)) return false;
    verification->done = true;
    return true;
}

static bool report(const struct arguments *arguments, struct status *status)
{
    struct engine file;
    struct verification verification = {0};
    if (!engine_open(&file, arguments->path, status)) return false;
    bool ok =
        !arguments->verify || verify(&file, &verification, status) || status_prefix(status, "%s", arguments->path);
    if (ok && arguments->json)
        ok = print_json(&file, arguments, &verification, status);
    else if (ok && arguments->tactics)
        ok = tactics_print(&file, stdout, status) || status_prefix(status, "%s", arguments->path);
    else if (ok && arguments->records)
        cli_print_text(stdout, file.tactics, file.tactics_size);
    else if (ok)
        print_summary(&file, &verification);
    engine_close(&file);
    return ok && cli_flush(status);
}

static int read_arguments(int argc, char **argv, struct arguments *arguments)
{
    const struct cli_flag flags[] = {
        {"verify", .set = &arguments->verify, .help = "hash the weights, too, and check every launch of every plan"},
        {"tactics", .set = &arguments->tactics,
         .help = "instead of the summary: the kernels of each plan's launches and the tuner's measurements"},
        {"records", .set = &arguments->records,
         .help = "instead of the summary: the tuner's records as stored in the file, one line each"},
        {"json", .set = &arguments->json, .help = "as JSON on stdout"},
        {.name = NULL},
    };
    const struct cli_command command = {usage, {flags}, "\n" CLI_EXIT_CODES "\n", eng_version()};
    int code = cli_read_flags(&command, argc, argv, &arguments->finished);
    if (!code && !arguments->finished) code = cli_read_engine_path(argc, argv, &arguments->path);
    if (!code && arguments->tactics && arguments->records && !arguments->json)
        return cli_usage("expected one of --tactics and --records, found both");
    return code;
}

int main(int argc, char **argv)
{
    cli_begin("enginfo");
    cli_catch_signals();
    struct arguments arguments = {0};
    struct status status = {0};
    int code = read_arguments(argc, argv, &arguments);
    if (!code && (arguments.finished ? !cli_flush(&status) : !report(&arguments, &status)))
        code = cli_fail_status(&status);
    return cli_end(code);
}
