/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and histograms of one engine, printed in the text format of Prometheus. Names are those of vLLM with the
 * prefix "eng:". Callers lock. */
#ifndef RUNTIME_SERVER_SERVER_METRICS_H
#define RUNTIME_SERVER_SERVER_METRICS_H

#include <stdint.h>

#include "runtime/server/server_buffer.h"

enum server_finish {
    SERVER_FINISH_NONE,
    SERVER_FINISH_STOP,
    SERVER_FINISH_LENGTH,
    SERVER_FINISH_ABORT,
    SERVER_FINISH_ERROR
};
enum { SERVER_FINISHES = SERVER_FINISH_ERROR + 1 };
/* "stop", "length", "abort" or "error"; NULL for NONE. */
const char *server_finish_name(enum server_finish finish);

/* What histograms are of: seconds, then tokens. */
enum server_measure {
    SERVER_TIME_IN_QUEUE,
    SERVER_TIME_FIRST_TOKEN,
    SERVER_TIME_PER_TOKEN,
    SERVER_TIME_REQUEST,
    SERVER_PROMPT_TOKENS,
    SERVER_GENERATED_TOKENS
};
enum { SERVER_MEASURES = SERVER_GENERATED_TOKENS + 1 };

enum { SERVER_MOST_BUCKETS = 22 };
struct server_histogram {
    uint64_t buckets[SERVER_MOST_BUCKETS + 1]; /* not cumulative; the last: above all limits */
    double sum;
};

struct server_metrics {
    uint64_t running, waiting; /* sequences */
    double kv_usage;           /* 0 to 1 */
    uint64_t prompt_tokens, generation_tokens;
    uint64_t queried_tokens;    /* of prompts, that were looked up in the prefix cache */
    uint64_t cached_tokens;     /* part of them: found, and not computed */
    uint64_t set_aside;         /* times that a sequence gave its pages back */
    uint64_t drafted, accepted; /* tokens, by speculation */
    uint64_t finished[SERVER_FINISHES];
    struct server_histogram histograms[SERVER_MEASURES];
};

void server_metrics_observe(struct server_metrics *metrics, enum server_measure measure, double value);

/* metrics: [count], names: [count] of the engines, which are printed as label model_name. False: out of memory. */
bool server_metrics_print(const struct server_metrics *metrics, const char *const *names, size_t count,
                          struct server_buffer *out);

#endif
