/* SPDX-License-Identifier: Apache-2.0 */
#include "builder/report.h"

#include <inttypes.h>

#include "tuner/cuda/estimate.h"
#include "formats/base/checked.h"
#include "formats/base/json.h"
#include "formats/engine/page_groups.h"

double estimate_plan_us(const struct plan *plan, const struct machine *machine, const struct tactics *tactics)
{
    enum { BARRIER_NS = 1500 }; /* between two launches of a team */
    double us = 0;
    for (uint32_t n = 0; n < plan->header.launch_count; n++) {
        const struct plan_launch *launch = &plan->launches[n];
        double floor_us = roofline_us(machine, launch->bytes, launch->flops);
        double measured_us =
            tactics && launch->tactic < tactics->count ? tactics->records[launch->tactic].median_us : 0;
        us += (measured_us > 0 ? measured_us : floor_us) + BARRIER_NS * 1e-3;
    }
    return us;
}

static double estimate_us(const struct build_report *report, const struct plan *plan)
{
    const struct manifest *m = report->manifest;
    return m->target == TARGET_CUDA ? estimate_cuda_plan_us(plan, report->machine, plan_ranks(&m->geometry))
                                    : estimate_plan_us(plan, report->machine, report->tactics);
}

/* Bytes on each GPU. */
static uint64_t fixed_bytes(const struct manifest *m)
{
    return manifest_rank_weights(m) + m->arena_bytes + m->step_bytes + m->state_bytes + m->comm_bytes;
}

/* Pages of one full sequence. */
static uint64_t sequence_pages(const struct build_report *report)
{
    const struct plan_geometry *geometry = &report->manifest->geometry;
    return plan_sequence_pages(geometry, geometry->max_context, plan_longest_chunk(report->plans, report->plan_count));
}

/* Bytes needed to serve one full sequence, on each GPU or on the machine. */
static uint64_t needed_bytes(const struct build_report *report)
{
    const struct manifest *m = report->manifest;
    uint64_t kv, all;
    if (!checked_mul(m->geometry.page_bytes, sequence_pages(report), &kv) || !checked_add(kv, fixed_bytes(m), &all))
        return INT64_MAX;
    if (m->target == TARGET_CPU && !checked_mul(all, plan_ranks(&m->geometry), &all)) return INT64_MAX;
    return all;
}

static double gigabytes(uint64_t bytes) { return (double)bytes * 1e-9; }

bool report_check_fit(const struct build_report *report, struct status *status)
{
    const struct manifest *m = report->manifest;
    uint64_t needed = needed_bytes(report);
    if (needed <= report->available_bytes) return true;
    bool cuda = m->target == TARGET_CUDA;
    return status_fail(status, STATUS_MACHINE,
                       "the engine does not fit: weights, scratch and one sequence of %" PRIu64 " tokens need %" PRIu64
                       " bytes (%.1f GB)%s, %s %" PRIu64 " (%.1f GB); %s, or lower --max-context",
                       m->geometry.max_context, needed, gigabytes(needed), cuda ? " of each GPU" : "",
                       cuda ? "which has" : "and this machine has left", report->available_bytes,
                       gigabytes(report->available_bytes),
                       cuda ? "share it among more GPUs (--gpus)" : "run it on a machine with more memory");
}

static void print_fit(const struct build_report *report, FILE *out)
{
    const struct manifest *m = report->manifest;
    uint64_t needed = needed_bytes(report);
    bool cuda = m->target == TARGET_CUDA;
    fprintf(out, "fit        %sneeds %" PRIu64 " bytes (%.1f GB) with one full sequence; %s %" PRIu64 " (%.1f GB)\n",
            needed <= report->available_bytes ? "" : "does not fit: ", needed, gigabytes(needed),
            cuda ? "a GPU has" : "this machine has left", report->available_bytes, gigabytes(report->available_bytes));
}

static void print_channels(const struct channel_scales_summary *channels, FILE *out)
{
    if (channels->matrices == 0) return;
    fprintf(out, "channels   scaled for %d of %d matrices", channels->scaled, channels->matrices);
    if (channels->scaled > 0) fprintf(out, ", alpha %.1f to %.1f", channels->least_alpha, channels->most_alpha);
    fputc('\n', out);
}

/* The number of chat templates that the engine can use; their names are appended to `names` (may be NULL). */
static size_t usable_templates(const struct build_report *report, json_t *names)
{
    const char *name;
    bool usable;
    size_t count = 0;
    for (size_t i = 0; report->chat_templates && (name = chat_templates_name(report->chat_templates, i, &usable));
         i++) {
        count += usable;
        if (usable && names && !json_add(names, json_string(name))) return 0;
    }
    return count;
}

static json_t *templates_json(const struct build_report *report)
{
    json_t *names = json_array();
    const size_t count = names ? usable_templates(report, names) : 0;
    if (names && json_array_size(names) == count) return names;
    json_decref(names);
    return NULL;
}

/* How much of that windows bound. */
static void print_windows(const struct build_report *report, FILE *out)
{
    const struct plan_geometry *g = &report->manifest->geometry;
    struct page_group_sum sums[PLAN_MAX_PAGE_GROUPS];
    const unsigned count =
        page_group_sums(g, g->max_context, plan_longest_chunk(report->plans, report->plan_count), sums);
    for (unsigned s = 0; s < count && (count > 1 || sums[s].window); s++) {
        fprintf(out, "           %" PRIu64 " of its pages, %" PRIu64 " bytes, are those of layers ", sums[s].pages,
                sums[s].pages * g->page_bytes);
        if (sums[s].window)
            fprintf(out, "with a window of %" PRIu64 " tokens\n", sums[s].window);
        else
            fprintf(out, "without a window\n");
    }
}

static bool has_towers(const struct build_report *report) { return report->towers && report->towers[0].name; }

/* The parts of the checkpoint that the engine has nothing of. */
static void print_towers(const struct build_report *report, FILE *out)
{
    const struct model_tower *towers = report->towers;
    for (int i = 0; has_towers(report) && i < WRAPPER_MAX_TOWERS && towers[i].name; i++)
        fprintf(out, "%s %s (%zu tensors, %" PRIu64 " bytes)", i ? "," : "           left out:", towers[i].name,
                towers[i].tensors, towers[i].bytes);
    if (has_towers(report)) fputc('\n', out);
}

static json_t *towers_json(const struct build_report *report)
{
    const struct model_tower *towers = report->towers;
    json_t *list = json_array();
    for (int i = 0; i < WRAPPER_MAX_TOWERS && towers[i].name; i++)
        if (list && !json_add(list, json_pack("{s:s, s:I, s:I}", "name", towers[i].name, "tensors",
                                              (json_int_t)towers[i].tensors, "bytes", (json_int_t)towers[i].bytes))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

/* The matrices that are multiplied in bf16 whatever the rows, in words; "": none. */
static const char *plain_matrices(const struct build_report *report)
{
    return report->plain_experts && report->plain_blocks ? "experts and blocks of latent attention"
           : report->plain_experts                       ? "experts"
           : report->plain_blocks                        ? "blocks of latent attention"
                                                         : "";
}

static void print_compute(const struct build_report *report, FILE *out)
{
    const struct manifest *m = report->manifest;
    const char *plain = plain_matrices(report);
    fprintf(out, "compute    %s from %" PRIu64 " rows on%s, else bf16\n", manifest_eight_bit_label(m),
            m->eight_bit_rows, report->compute_given ? "" : " (as the checkpoint's activations)");
    if (*plain) fprintf(out, "           matrices of %s are multiplied in bf16\n", plain);
}

static void print_decoded(const struct decoded_matrices *decoded, FILE *out)
{
    for (int i = 0; i < DECODED_MOST_REASONS && decoded[i].count; i++)
        fprintf(out, "           %" PRIu64 " %s %s %s dequantised\n", decoded[i].count,
                decoded[i].count == 1 ? "matrix" : "matrices", decoded[i].reason, decoded[i].count == 1 ? "is" : "are");
}

static json_t *decoded_json(const struct decoded_matrices *decoded)
{
    json_t *list = json_array();
    for (int i = 0; i < DECODED_MOST_REASONS && decoded[i].count; i++)
        if (list && !json_add(list, json_pack("{s:s, s:I}", "reason", decoded[i].reason, "matrices",
                                              (json_int_t)decoded[i].count))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

void report_print(const struct build_report *report, FILE *out)
{
    const struct manifest *m = report->manifest;
    const struct plan_geometry *g = &m->geometry;
    fprintf(out, "model      %s (%s), %.2f M parameters, weights %s, KV cache %s\n", m->model_name, m->model_type,
            (double)m->parameters * 1e-6, encoding_label(m->weight_encoding), encoding_label(m->kv_dtype));
    print_towers(report, out);
    if (report->quantised)
        fprintf(out, "           quantised checkpoint (%s): %s%s\n", report->quantised,
                encoding_is_plain(m->weight_encoding) ? "weights are dequantised" : "codes are kept",
                m->eight_bit_rows ? "" : ", activations are not quantised");
    print_decoded(report->decoded, out);
    if (m->kv_dtype == ENCODING_E4M3_CHANNEL && (report->scaled_layers || !report->kv_dtype_given))
        fprintf(out, "           KV cache%s: %s\n", report->kv_dtype_given ? "" : " as the checkpoint says",
                report->scaled_layers ? "its scales are the checkpoint's" : "each row has a scale of its own");
    if (m->eight_bit_rows) print_compute(report, out);
    if (m->accuracy.tokens)
        fprintf(out,
                "accuracy   %.1f %% of %" PRIu64
                " tokens are the unquantised model's first choice, too; divergence %.4f nats\n",
                100 * m->accuracy.top1, m->accuracy.tokens, m->accuracy.kl);
    if (m->accuracy.calibration_tokens)
        fprintf(out, "           calibrated with %" PRIu64 " tokens\n", m->accuracy.calibration_tokens);
    print_channels(report->channels, out);
    if (m->target == TARGET_CUDA)
        fprintf(out, "target     %s: %s, compute capability %" PRIu64 ".%" PRIu64 "%s\n", engine_target_name(m->target),
                m->target_name, m->target_capability / 10, m->target_capability % 10,
                report->is_on_record ? " (facts on record: this is no GPU of this machine)" : "");
    else
        fprintf(out, "target     %s: %s, %d threads, %s\n", engine_target_name(m->target), m->target_name,
                report->machine->threads, cpu_isa_name(report->machine->isa));
    if (report->no_tokenizer)
        fprintf(out, "tokenizer  none: %s; the engine takes and gives token ids alone\n", report->no_tokenizer);
    else
        fprintf(out, "tokenizer  tokenizer.json, %u tokens, %s\n", report->tokenizer_tokens,
                usable_templates(report, NULL) ? "with a chat template" : "no chat template");
    if (report->machine->read_gb_s > 0)
        fprintf(out, "machine    reads %.1f GB/s, %.0f GFLOP/s %s\n", report->machine->read_gb_s,
                report->machine->peak_gflops,
                m->target != TARGET_CUDA ? "float32"
                : report->output         ? "on tensor cores (nominal)"
                                         : "on tensor cores (assumed)");
    fprintf(out, "limits     %" PRIu64 " sequences, %" PRIu64 " tokens each, pages of %" PRIu64 " tokens\n", g->slots,
            g->max_context, g->page_tokens);
    char comm[64] = "";
    if (plan_ranks(g) > 1) {
        snprintf(comm, sizeof comm, " + exchange %" PRIu64 " (%.2f GB)", m->comm_bytes, gigabytes(m->comm_bytes));
        fprintf(out, "ranks      %" PRIu64 " that share the model; memory and plans are those of each\n",
                plan_ranks(g));
    }
    fprintf(out,
            "memory     weights %" PRIu64 " (%.2f GB) + arena %" PRIu64 " (%.2f GB) + step %" PRIu64 " + state %" PRIu64
            "%s = %" PRIu64 " bytes (%.2f GB)\n           and %" PRIu64 " bytes per KV page, %" PRIu64
            " (%.2f GB) for one full sequence\n",
            manifest_rank_weights(m), gigabytes(manifest_rank_weights(m)), m->arena_bytes, gigabytes(m->arena_bytes),
            m->step_bytes, m->state_bytes, comm, fixed_bytes(m), gigabytes(fixed_bytes(m)), g->page_bytes,
            g->page_bytes * sequence_pages(report), gigabytes(g->page_bytes * sequence_pages(report)));
    print_windows(report, out);
    if (!report->output) print_fit(report, out);
    uint64_t context = g->max_context / 2 < PLAN_COST_CONTEXT ? g->max_context / 2 : PLAN_COST_CONTEXT;
    fprintf(out, "estimates  at a context of %" PRIu64 " tokens\n", context);
    fprintf(out, "plans      kind     rows  launches        arena     bytes moved         flops     estimate\n");
    for (size_t p = 0; p < report->plan_count; p++) {
        const struct plan *plan = &report->plans[p];
        uint64_t bytes = 0, flops = 0;
        for (uint32_t n = 0; n < plan->header.launch_count; n++) {
            bytes += plan->launches[n].bytes;
            flops += plan->launches[n].flops;
        }
        double us = estimate_us(report, plan);
        fprintf(out, "           %-8s %4u  %8u %12" PRIu64 " %15" PRIu64 " %13" PRIu64,
                plan_kind_name(plan->header.kind), plan->header.rows, plan->header.launch_count,
                plan->header.arena_bytes, bytes, flops);
        if (report->plan_us && report->plan_us[p] > 0)
            fprintf(out, " %9.3f ms measured", report->plan_us[p] * 1e-3);
        else if (report->machine->read_gb_s > 0)
            fprintf(out, " %9.3f ms", us * 1e-3);
        const struct plan_header *library = &report->library_plans[p].header;
        if (library->launch_count > 0)
            fprintf(out, ", %s: arena %" PRIu64,
                    library->use == PLAN_USE_APART ? "in several processes" : "calls libraries", library->arena_bytes);
        fputc('\n', out);
    }
    if (report->output)
        fprintf(out,
                "written    %s, %" PRIu64 " bytes (%.2f GB), %.1f s; %zu tactics (%zu measured, %zu from the cache)\n",
                report->output, report->file_bytes, gigabytes(report->file_bytes), report->seconds,
                report->tactics->count, report->tactics->measured, report->tactics->cached);
    else
        fprintf(out, "dry run    nothing was written\n");
}

char *report_json(const struct build_report *report, struct status *status)
{
    const struct manifest *m = report->manifest;
    const struct plan_geometry *g = &m->geometry;
    json_t *plans = json_array();
    bool ok = plans != NULL;
    for (size_t p = 0; ok && p < report->plan_count; p++) {
        const struct plan *plan = &report->plans[p];
        json_t *entry = json_pack("{s:s, s:I, s:I, s:I}", "kind", plan_kind_name(plan->header.kind), "rows",
                                  (json_int_t)plan->header.rows, "launches", (json_int_t)plan->header.launch_count,
                                  "arena_bytes", (json_int_t)plan->header.arena_bytes);
        if (report->machine->read_gb_s > 0)
            ok = ok && json_put(entry, "estimate_us", json_real(estimate_us(report, plan)));
        if (report->plan_us && report->plan_us[p] > 0)
            ok = ok && json_put(entry, "measured_us", json_real(report->plan_us[p]));
        if (report->library_plans[p].header.launch_count > 0)
            ok = ok && json_put(entry, "library_arena_bytes",
                                json_integer((json_int_t)report->library_plans[p].header.arena_bytes));
        ok = json_add(plans, entry) && ok;
    }
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:{s:I, s:I, s:I}, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I}, s:o}",
                  "model", m->model_name, "model_type", m->model_type, "target", engine_target_name(m->target),
                  "target_name", m->target_name, "parameters", (json_int_t)m->parameters, "ranks",
                  (json_int_t)plan_ranks(g), "limits", "max_batch", (json_int_t)g->slots, "max_context",
                  (json_int_t)g->max_context, "page_tokens", (json_int_t)g->page_tokens, "memory", "weights_bytes",
                  (json_int_t)manifest_rank_weights(m), "comm_bytes", (json_int_t)m->comm_bytes, "arena_bytes",
                  (json_int_t)m->arena_bytes, "step_bytes", (json_int_t)m->step_bytes, "state_bytes",
                  (json_int_t)m->state_bytes, "page_bytes", (json_int_t)g->page_bytes, "pages_per_sequence",
                  (json_int_t)sequence_pages(report), "plans", plans);
    ok = root && ok &&
         json_put(root, "tokenizer",
                  report->no_tokenizer
                      ? json_null()
                      : json_pack("{s:s, s:I, s:o}", "file", "tokenizer.json", "tokens",
                                  (json_int_t)report->tokenizer_tokens, "chat_templates", templates_json(report)));
    if (ok)
        ok = json_put(json_object_get(root, "memory"), "kv_of_sequence",
                      page_groups_json(g, plan_longest_chunk(report->plans, report->plan_count)));
    if (ok && has_towers(report)) ok = json_put(root, "left_out", towers_json(report));
    if (ok && m->eight_bit_rows)
        ok = json_put(root, "compute",
                      json_pack("{s:I, s:b, s:b, s:b}",
                                m->eight_bit_inputs == DTYPE_I8 ? "int8_from_rows" : "fp8_from_rows",
                                (json_int_t)m->eight_bit_rows, "as_checkpoint", !report->compute_given, "bf16_experts",
                                report->plain_experts, "bf16_latent_blocks", report->plain_blocks));
    if (ok && report->decoded[0].count) ok = json_put(root, "dequantised", decoded_json(report->decoded));
    if (ok && m->kv_dtype == ENCODING_E4M3_CHANNEL)
        ok = json_put(root, "kv_cache",
                      json_pack("{s:b, s:I}", "as_checkpoint", !report->kv_dtype_given, "layers_with_static_scales",
                                (json_int_t)report->scaled_layers));
    if (ok && m->accuracy.tokens)
        ok = json_put(root, "accuracy",
                      json_pack("{s:I, s:f, s:f}", "tokens", (json_int_t)m->accuracy.tokens, "kl", m->accuracy.kl,
                                "top1", m->accuracy.top1));
    if (ok && m->accuracy.calibration_tokens)
        ok = json_put(json_object_get(root, "accuracy"), "calibration_tokens",
                      json_integer((json_int_t)m->accuracy.calibration_tokens));
    if (ok && report->channels->matrices)
        ok = json_put(root, "channel_scales",
                      json_pack("{s:i, s:i, s:f, s:f}", "matrices", report->channels->matrices, "scaled",
                                report->channels->scaled, "least_alpha", report->channels->least_alpha, "most_alpha",
                                report->channels->most_alpha));
    if (ok && report->output)
        ok = json_put(root, "output", json_string_or_null(report->output)) && /* a path need not be UTF-8 */
             json_put(root, "file_bytes", json_integer((json_int_t)report->file_bytes)) &&
             json_put(root, "seconds", json_real(report->seconds)) &&
             json_put(root, "tactics_measured", json_integer((json_int_t)report->tactics->measured)) &&
             json_put(root, "tactics_cached", json_integer((json_int_t)report->tactics->cached));
    if (ok && !report->output) {
        uint64_t needed = needed_bytes(report);
        ok = json_put(root, "fit",
                      json_pack("{s:I, s:I, s:b}", "needed_bytes", (json_int_t)needed, "available_bytes",
                                (json_int_t)report->available_bytes, "fits", needed <= report->available_bytes));
        if (report->is_on_record) ok = ok && json_put(root, "gpu_on_record", json_true());
    }
    char *text = ok ? json_format(root, JSON_INDENT(2)) : NULL;
    if (!text) status_fail(status, STATUS_MACHINE, "out of memory for the report");
    json_decref(root);
    return text;
}
