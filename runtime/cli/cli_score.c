/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_score.h"

#include <math.h>
#include <stdio.h>

#include "formats/cli/cli_process.h"

/* Steps until the first token of an answer shows that the prompt is computed. */
static int compute(struct generation *run, const int32_t *tokens, size_t count)
{
    const double start = cli_seconds();
    int32_t drawn;
    if (eng_sequence_submit(run->sequence, tokens, count, &run->error)) return generation_fail_error(run);
    run->prompt_tokens += count;
    while (eng_sequence_state(run->sequence) != ENG_STATE_DONE && !cli_caught_signal())
        if (eng_step(run->session, NULL, &run->error)) return generation_fail_error(run);
    eng_sequence_poll(run->sequence, &drawn, 1);
    run->prompt_seconds += cli_seconds() - start;
    return CLI_DONE;
}

static bool print_sum(struct generation *run, size_t tokens, double sum)
{
    char line[128];
    const int size = snprintf(line, sizeof line, "{\"tokens\": %zu, \"logprob\": %.7g, \"perplexity\": %.7g}\n", tokens,
                              sum, exp(-sum / (double)tokens));
    return cli_write(line, (size_t)size, &run->status);
}

int score_tokens(struct generation *run, const int32_t *tokens, size_t count)
{
    const size_t top_count = (size_t)run->options->logprob_count;
    double sum = 0;
    if (count < 2) {
        fprintf(stderr, "%s: --score: expected at least 2 tokens, since the first one has no probability, found %zu\n",
                cli_program(), count);
        return CLI_BAD_INPUT;
    }
    int code = compute(run, tokens, count);
    for (size_t i = 1; !code && i < count && !cli_caught_signal(); i++) {
        struct eng_logprob own, top[ENG_MAX_LOGPROBS];
        if (eng_sequence_prompt_logprobs(run->sequence, i, &own, top, top_count, &run->error))
            return generation_fail_error(run);
        if (!cli_write_logprobs(&own, top, top_count, &run->status)) return generation_fail_status(run);
        sum += (double)own.logprob;
    }
    if (code || cli_caught_signal()) return code;
    if (!isfinite(sum)) {
        status_fail(&run->status, STATUS_NOT_FINITE,
                    "the text has no perplexity: the probability of a token is 0 or not a number; check the "
                    "checkpoint, or build the engine with another --dtype or --kv-dtype");
        return generation_fail_status(run);
    }
    return print_sum(run, count - 1, sum) ? CLI_DONE : generation_fail_status(run);
}
