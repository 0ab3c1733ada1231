/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_metrics.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define SECONDS_OF_REQUESTS                                                                                    \
    {                                                                                                          \
        0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, NAN \
    }
#define TOKENS                                                                                                      \
    {                                                                                                               \
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000, \
            2000000, 5000000, NAN                                                                                   \
    }

/* Upper limits of the buckets, ascending; NAN ends a list. */
static const struct {
    const char *name, *help;
    const char *older; /* the name in older releases of vLLM, which is printed, too; NULL: none */
    double limits[SERVER_MOST_BUCKETS + 1];
} histograms[SERVER_MEASURES] = {
    [SERVER_TIME_IN_QUEUE] = {"request_queue_time_seconds",
                              "From the arrival of a request to the first step that computes a choice.", NULL,
                              SECONDS_OF_REQUESTS},
    [SERVER_TIME_FIRST_TOKEN] = {"time_to_first_token_seconds",
                                 "From the arrival of a request to the first token of a choice.",
                                 NULL,
                                 {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,  0.75, 1,
                                  2.5,   5,     7.5,  10,   20,   40,   80,   160, 640,  2560, NAN}},
    [SERVER_TIME_PER_TOKEN] = {"inter_token_latency_seconds",
                               "Between two tokens of a choice.",
                               "time_per_output_token_seconds",
                               {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4,
                                0.5,   0.75,   1,     2.5,  5,     7.5,  10,    20,  40,   80,  NAN}},
    [SERVER_TIME_REQUEST] = {"e2e_request_latency_seconds", "From the arrival of a request to its last token.", NULL,
                             SECONDS_OF_REQUESTS},
    [SERVER_PROMPT_TOKENS] = {"request_prompt_tokens", "Tokens of the prompt of a choice that has ended well.", NULL,
                              TOKENS},
    [SERVER_GENERATED_TOKENS] = {"request_generation_tokens", "Tokens of the answer of a choice that has ended well.",
                                 NULL, TOKENS},
};

const char *server_finish_name(enum server_finish finish)
{
    static const char *const names[SERVER_FINISHES] = {NULL, "stop", "length", "abort", "error"};
    return names[finish];
}

void server_metrics_observe(struct server_metrics *metrics, enum server_measure measure, double value)
{
    struct server_histogram *histogram = &metrics->histograms[measure];
    int bucket = 0;
    while (!isnan(histograms[measure].limits[bucket]) && value > histograms[measure].limits[bucket]) bucket++;
    histogram->buckets[isnan(histograms[measure].limits[bucket]) ? SERVER_MOST_BUCKETS : bucket]++;
    histogram->sum += value;
}

static bool print_label(struct server_buffer *out, const char *name)
{
    bool ok = server_buffer_text(out, "model_name=\"");
    for (; ok && *name; name++) {
        if (*name == '"' || *name == '\\') ok = server_buffer_text(out, "\\");
        ok = ok && (*name == '\n' ? server_buffer_text(out, "\\n") : server_buffer_add(out, name, 1));
    }
    return ok;
}

static bool print_head(struct server_buffer *out, const char *name, const char *type, const char *help)
{
    return server_buffer_format(out, "# HELP eng:%s %s\n# TYPE eng:%s %s\n", name, help, name, type);
}

static bool print_values(const struct server_metrics *metrics, const char *const *names, size_t count,
                         struct server_buffer *out)
{
    static const struct {
        const char *name, *type, *help;
        size_t offset;
        bool is_real;
    } values[] = {
        {"num_requests_running", "gauge", "Sequences that are being computed.",
         offsetof(struct server_metrics, running), false},
        {"num_requests_waiting", "gauge", "Sequences that wait for a slot or for KV pages.",
         offsetof(struct server_metrics, waiting), false},
        {"kv_cache_usage_perc", "gauge", "Part of the KV pages that is in use, 0 to 1.",
         offsetof(struct server_metrics, kv_usage), true},
        {"prompt_tokens_total", "counter", "Tokens of prompts.", offsetof(struct server_metrics, prompt_tokens), false},
        {"generation_tokens_total", "counter", "Tokens of answers.", offsetof(struct server_metrics, generation_tokens),
         false},
        {"prefix_cache_queries_total", "counter", "Tokens of prompts that were looked up in the prefix cache.",
         offsetof(struct server_metrics, queried_tokens), false},
        {"prefix_cache_hits_total", "counter", "Tokens of prompts that were not computed, since KV pages had them.",
         offsetof(struct server_metrics, cached_tokens), false},
        {"num_preemptions_total", "counter", "Times that a sequence was set aside for want of KV pages.",
         offsetof(struct server_metrics, set_aside), false},
        {"spec_decode_num_draft_tokens_total", "counter", "Tokens that were drafted and verified.",
         offsetof(struct server_metrics, drafted), false},
        {"spec_decode_num_accepted_tokens_total", "counter", "Drafted tokens that became part of an answer.",
         offsetof(struct server_metrics, accepted), false},
    };
    bool ok = true;
    for (size_t v = 0; ok && v < sizeof values / sizeof *values; v++) {
        ok = print_head(out, values[v].name, values[v].type, values[v].help);
        for (size_t i = 0; ok && i < count; i++) {
            const char *from = (const char *)&metrics[i] + values[v].offset;
            uint64_t number = 0;
            double real = 0;
            memcpy(values[v].is_real ? (void *)&real : (void *)&number, from, sizeof number);
            ok = server_buffer_format(out, "eng:%s{", values[v].name) && print_label(out, names[i]) &&
                 (values[v].is_real ? server_buffer_format(out, "\"} %.6g\n", real)
                                    : server_buffer_format(out, "\"} %" PRIu64 "\n", number));
        }
    }
    return ok;
}

static bool print_finished(const struct server_metrics *metrics, const char *const *names, size_t count,
                           struct server_buffer *out)
{
    bool ok = print_head(out, "request_success_total", "counter", "Sequences that have ended, by reason.");
    for (size_t i = 0; ok && i < count; i++)
        for (int finish = SERVER_FINISH_STOP; ok && finish < SERVER_FINISHES; finish++)
            ok = server_buffer_format(out, "eng:request_success_total{finished_reason=\"%s\",",
                                      server_finish_name((enum server_finish)finish)) &&
                 print_label(out, names[i]) &&
                 server_buffer_format(out, "\"} %" PRIu64 "\n", metrics[i].finished[finish]);
    return ok;
}

static bool print_histogram(const struct server_histogram *histogram, const char *name, const double *limits,
                            const char *model, struct server_buffer *out)
{
    uint64_t total = 0;
    bool ok = true;
    for (int i = 0; ok && !isnan(limits[i]); i++) {
        total += histogram->buckets[i];
        ok = server_buffer_format(out, "eng:%s_bucket{le=\"%g\",", name, limits[i]) && print_label(out, model) &&
             server_buffer_format(out, "\"} %" PRIu64 "\n", total);
    }
    total += histogram->buckets[SERVER_MOST_BUCKETS];
    return ok && server_buffer_format(out, "eng:%s_bucket{le=\"+Inf\",", name) && print_label(out, model) &&
           server_buffer_format(out, "\"} %" PRIu64 "\neng:%s_sum{", total, name) && print_label(out, model) &&
           server_buffer_format(out, "\"} %.9g\neng:%s_count{", histogram->sum, name) && print_label(out, model) &&
           server_buffer_format(out, "\"} %" PRIu64 "\n", total);
}

/* The histograms of all engines, under this name. */
static bool print_histograms(const struct server_metrics *metrics, const char *const *names, size_t count, int measure,
                             const char *name, struct server_buffer *out)
{
    bool ok = print_head(out, name, "histogram", histograms[measure].help);
    for (size_t i = 0; ok && i < count; i++)
        ok = print_histogram(&metrics[i].histograms[measure], name, histograms[measure].limits, names[i], out);
    return ok;
}

bool server_metrics_print(const struct server_metrics *metrics, const char *const *names, size_t count,
                          struct server_buffer *out)
{
    bool ok = print_values(metrics, names, count, out) && print_finished(metrics, names, count, out);
    for (int measure = 0; ok && measure < SERVER_MEASURES; measure++) {
        const char *older = histograms[measure].older;
        ok = print_histograms(metrics, names, count, measure, histograms[measure].name, out) &&
             (!older || print_histograms(metrics, names, count, measure, older, out));
    }
    return ok;
}
