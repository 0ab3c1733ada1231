/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/server/server_metrics.h"

#include "formats/base/test_support.h"

static void expect_line(const char *text, const char *line)
{
    char whole[256];
    snprintf(whole, sizeof whole, "\n%s\n", line);
    if (!strstr(text, whole)) fail_msg("'%s' is not in:\n%s", line, text);
}

TEST(test_print)
{
    struct server_metrics metrics[2] = {{.running = 2,
                                         .waiting = 7,
                                         .kv_usage = 0.25,
                                         .prompt_tokens = 11,
                                         .queried_tokens = 10,
                                         .cached_tokens = 8,
                                         .set_aside = 5,
                                         .drafted = 9,
                                         .accepted = 4},
                                        {0}};
    const char *names[] = {"a", "b\"\\"};
    struct server_buffer out = {0};
    metrics[0].finished[SERVER_FINISH_STOP] = 3;
    server_metrics_observe(&metrics[0], SERVER_TIME_FIRST_TOKEN, 0.001);
    server_metrics_observe(&metrics[0], SERVER_TIME_FIRST_TOKEN, 0.0011);
    server_metrics_observe(&metrics[0], SERVER_TIME_FIRST_TOKEN, 1e9);
    server_metrics_observe(&metrics[1], SERVER_TIME_REQUEST, 1.25);
    server_metrics_observe(&metrics[0], SERVER_TIME_PER_TOKEN, 0.5);
    server_metrics_observe(&metrics[0], SERVER_TIME_IN_QUEUE, 0.06);
    server_metrics_observe(&metrics[0], SERVER_PROMPT_TOKENS, 2);
    server_metrics_observe(&metrics[0], SERVER_PROMPT_TOKENS, 5e9);
    server_metrics_observe(&metrics[1], SERVER_GENERATED_TOKENS, 1000000);
    assert_true(server_metrics_print(metrics, names, 2, &out) && server_buffer_add(&out, "", 1));
    static const char *const lines[] = {
        "# TYPE eng:num_requests_running gauge",
        "eng:num_requests_running{model_name=\"a\"} 2",
        "eng:num_requests_running{model_name=\"b\\\"\\\\\"} 0",
        "eng:num_requests_waiting{model_name=\"a\"} 7",
        "eng:kv_cache_usage_perc{model_name=\"a\"} 0.25",
        "# TYPE eng:prompt_tokens_total counter",
        "eng:prefix_cache_hits_total{model_name=\"a\"} 8",
        "eng:num_preemptions_total{model_name=\"a\"} 5",
        "eng:spec_decode_num_draft_tokens_total{model_name=\"a\"} 9",
        "eng:spec_decode_num_accepted_tokens_total{model_name=\"a\"} 4",
        "eng:prompt_tokens_total{model_name=\"a\"} 11",
        "eng:request_success_total{finished_reason=\"stop\",model_name=\"a\"} 3",
        "eng:request_success_total{finished_reason=\"abort\",model_name=\"a\"} 0",
        "# TYPE eng:time_to_first_token_seconds histogram",
        "eng:time_to_first_token_seconds_bucket{le=\"0.001\",model_name=\"a\"} 1",
        "eng:time_to_first_token_seconds_bucket{le=\"0.005\",model_name=\"a\"} 2",
        "eng:time_to_first_token_seconds_bucket{le=\"2560\",model_name=\"a\"} 2",
        "eng:time_to_first_token_seconds_bucket{le=\"+Inf\",model_name=\"a\"} 3",
        "eng:time_to_first_token_seconds_count{model_name=\"a\"} 3",
        "eng:e2e_request_latency_seconds_sum{model_name=\"b\\\"\\\\\"} 1.25",
        "eng:prefix_cache_queries_total{model_name=\"a\"} 10",
        "# TYPE eng:inter_token_latency_seconds histogram",
        "eng:inter_token_latency_seconds_bucket{le=\"0.5\",model_name=\"a\"} 1",
        "eng:inter_token_latency_seconds_count{model_name=\"a\"} 1",
        "# TYPE eng:time_per_output_token_seconds histogram",
        "eng:time_per_output_token_seconds_count{model_name=\"a\"} 1",
        "eng:time_per_output_token_seconds_count{model_name=\"b\\\"\\\\\"} 0",
        "eng:request_queue_time_seconds_bucket{le=\"0.05\",model_name=\"a\"} 0",
        "eng:request_queue_time_seconds_bucket{le=\"0.1\",model_name=\"a\"} 1",
        "eng:request_prompt_tokens_bucket{le=\"1\",model_name=\"a\"} 0",
        "eng:request_prompt_tokens_bucket{le=\"2\",model_name=\"a\"} 1",
        "eng:request_prompt_tokens_bucket{le=\"5e+06\",model_name=\"a\"} 1",
        "eng:request_prompt_tokens_bucket{le=\"+Inf\",model_name=\"a\"} 2",
        "eng:request_prompt_tokens_sum{model_name=\"a\"} 5e+09",
        "eng:request_generation_tokens_bucket{le=\"1e+06\",model_name=\"b\\\"\\\\\"} 1",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) expect_line(out.data, lines[i]);
    server_buffer_free(&out);
}

int main(void) { return test_run(); }
