/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling settings, from the caller's struct and from the checkpoint's generation_config, for a slot's sampler. */
#include <math.h>

#include "runtime/session/session.h"

/* The first option that engines built before there were options do not know; NULL: none is set. */
static const char *first_option(const struct eng_sampling *own)
{
    if (own->min_p != 0) return "min_p";
    if (own->presence_penalty != 0) return "presence_penalty";
    if (own->frequency_penalty != 0) return "frequency_penalty";
    return own->logit_bias_count ? "logit_bias" : NULL;
}

static bool check_options(const struct eng_session *session, const struct eng_sampling *own, struct status *status)
{
    const float penalties[] = {own->presence_penalty, own->frequency_penalty};
    static const char *const names[] = {"presence_penalty", "frequency_penalty"};
    const char *option = first_option(own);
    if (!option) return true;
    if (!session->geometry->sampling_options)
        return status_fail(status, STATUS_VERSION,
                           "sampling: the engine was built before format 2.3 and does not know %s; leave it at 0, or "
                           "build the engine again with this release's engbuild",
                           option);
    if (!(own->min_p >= 0 && own->min_p <= 1))
        return status_fail(status, STATUS_USAGE, "sampling: min_p is %g, expected 0 to 1", (double)own->min_p);
    for (int i = 0; i < 2; i++)
        if (!(penalties[i] >= -2 && penalties[i] <= 2))
            return status_fail(status, STATUS_USAGE, "sampling: %s is %g, expected -2 to 2", names[i],
                               (double)penalties[i]);
    if (own->logit_bias_count > ENG_MAX_LOGIT_BIASES)
        return status_fail(status, STATUS_USAGE, "sampling: logit_bias_count is %u, expected at most %d",
                           own->logit_bias_count, ENG_MAX_LOGIT_BIASES);
    if (own->logit_bias_count && !own->logit_bias)
        return status_fail(status, STATUS_USAGE, "sampling: logit_bias is NULL, expected %u entries",
                           own->logit_bias_count);
    for (uint32_t i = 0; i < own->logit_bias_count; i++) {
        const struct eng_logit_bias *entry = &own->logit_bias[i];
        if (entry->token < 0 || (uint64_t)entry->token >= session->geometry->vocab_size)
            return status_fail(status, STATUS_USAGE, "sampling: token of logit_bias entry %u is %d, expected 0 to %u",
                               i, entry->token, (unsigned)session->geometry->vocab_size - 1);
        if (!(entry->bias >= -100 && entry->bias <= 100))
            return status_fail(status, STATUS_USAGE,
                               "sampling: bias of logit_bias entry %u is %g, expected -100 to 100", i,
                               (double)entry->bias);
    }
    return true;
}

_Static_assert((int)ENG_MAX_LOGIT_BIASES == PLAN_MAX_LOGIT_BIASES, "eng.h");

bool sampling_read(const struct eng_session *session, const struct eng_sampling *given,
                   struct session_sampling *sampling, struct status *status)
{
    struct eng_sampling own;
    if (!report_read_options(&own, sizeof own, given, "eng_sampling", status)) return false;
    if (!isfinite(own.temperature) || own.temperature < 0)
        return status_fail(status, STATUS_USAGE, "sampling: temperature is %g, expected 0 or more",
                           (double)own.temperature);
    if (!(own.top_p >= 0 && own.top_p <= 1))
        return status_fail(status, STATUS_USAGE, "sampling: top_p is %g, expected 0 to 1", (double)own.top_p);
    /* Within these bounds no logits of use overflow. */
    if (own.repetition_penalty != 0 && !(own.repetition_penalty >= 0.01f && own.repetition_penalty <= 1e6f))
        return status_fail(status, STATUS_USAGE, "sampling: repetition_penalty is %g, expected 0.01 to 1000000, or 0",
                           (double)own.repetition_penalty);
    if (own.top_k > INT32_MAX)
        return status_fail(status, STATUS_USAGE, "sampling: top_k is %u, expected at most %d", own.top_k, INT32_MAX);
    if (!check_options(session, &own, status)) return false;
    const bool adjusts = own.presence_penalty != 0 || own.frequency_penalty != 0 || own.logit_bias_count;
    sampling->biases = own.logit_bias;
    sampling->bias_count = own.logit_bias_count;
    sampling->state = (struct sampler_state){
        .temperature = own.temperature,
        .top_p = own.top_p > 0 ? own.top_p : 1,
        .repetition_penalty = own.repetition_penalty > 0 ? own.repetition_penalty : 1,
        .top_k = (int32_t)own.top_k,
        .seed = own.seed,
        .options = (own.min_p > 0 ? (uint32_t)SAMPLER_MIN_P : 0) | (adjusts ? (uint32_t)SAMPLER_ADJUSTS : 0),
        .min_p_log = own.min_p > 0 ? logf(own.min_p) : 0,
        .presence_penalty = own.presence_penalty,
        .frequency_penalty = own.frequency_penalty,
    };
    return true;
}

enum eng_status eng_sampling_recommended(const struct eng_engine *engine, struct eng_sampling *sampling,
                                         struct eng_error *error)
{
    struct status status = {0};
    struct eng_sampling own;
    if (!report_not_null(engine, "eng_sampling_recommended", "engine", &status) ||
        !report_not_null(sampling, "eng_sampling_recommended", "sampling", &status) ||
        !report_read_options(&own, sizeof own, sampling, "eng_sampling", &status))
        return report_status(&status, error);
    const struct manifest *manifest = &engine->file.manifest;
    own.temperature = (float)manifest->temperature;
    own.top_p = (float)manifest->top_p;
    own.repetition_penalty = (float)manifest->repetition_penalty;
    own.top_k = manifest->top_k > INT32_MAX ? INT32_MAX : (uint32_t)manifest->top_k;
    return report_result(report_write_facts(sampling, &own, sizeof own, "eng_sampling", &status), &status, error);
}
