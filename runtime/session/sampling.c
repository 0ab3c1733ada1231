/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling settings, from the caller's struct and from the checkpoint's generation_config, for a slot's sampler. */
#include <math.h>

#include "runtime/session/session.h"

bool sampling_read(const struct eng_sampling *sampling, struct sampler_state *state, struct status *status)
{
    struct eng_sampling own;
    if (!report_read_options(&own, sizeof own, sampling, "eng_sampling", status)) return false;
    if (!isfinite(own.temperature) || own.temperature < 0)
        return status_fail(status, STATUS_USAGE, "sampling: temperature is %g, expected 0 or more",
                           (double)own.temperature);
    if (!(own.top_p >= 0 && own.top_p <= 1))
        return status_fail(status, STATUS_USAGE, "sampling: top_p is %g, expected 0 to 1", (double)own.top_p);
    if (!isfinite(own.repetition_penalty) || own.repetition_penalty < 0)
        return status_fail(status, STATUS_USAGE, "sampling: repetition_penalty is %g, expected 0 or more",
                           (double)own.repetition_penalty);
    if (own.top_k > INT32_MAX)
        return status_fail(status, STATUS_USAGE, "sampling: top_k is %u, expected at most %d", own.top_k, INT32_MAX);
    *state = (struct sampler_state){
        .temperature = own.temperature,
        .top_p = own.top_p > 0 ? own.top_p : 1,
        .repetition_penalty = own.repetition_penalty > 0 ? own.repetition_penalty : 1,
        .top_k = (int32_t)own.top_k,
        .seed = own.seed,
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
