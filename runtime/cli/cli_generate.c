/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_generate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/cli/cli_process.h"
#include "runtime/cli/cli_score.h"

/* The text continues the prompt: without the prompt in the stream, a word's leading space would be lost. */
static int replay_prompt(struct generation *run, const int32_t *tokens, size_t count)
{
    const char *text;
    size_t size;
    for (size_t i = 0; run->text && i < count; i++)
        if (eng_text_push(run->text, tokens[i], &text, &size, &run->error)) return generation_fail_error(run);
    return CLI_DONE;
}

/* A person reads prompt and continuation as one text; a program that reads the output has its prompt. */
static int show_prompt(struct generation *run)
{
    const char *prompt = run->options->prompt;
    if (!prompt || !run->text || !run->on_terminal) return CLI_DONE;
    return generation_print(run, prompt, strlen(prompt));
}

static int read_prompt_text(const struct generation *run, char **owned, const char **text, size_t *size)
{
    struct status status = {0};
    *text = run->options->prompt;
    if (*text) {
        *size = strlen(*text);
        return CLI_DONE;
    }
    if (!cli_read_stdin(owned, size, &status)) {
        if (cli_caught_signal()) return CLI_DONE;
        return cli_fail_status(&status);
    }
    /* Strips the newline that echo and editors append to the prompt. */
    if (*size && (*owned)[*size - 1] == '\n') --*size;
    if (*size && (*owned)[*size - 1] == '\r') --*size;
    *text = *owned;
    return CLI_DONE;
}

static int tokenize_prompt(struct generation *run, int32_t **tokens, size_t *count)
{
    char *owned = NULL;
    const char *text = NULL;
    size_t size = 0;
    int code = read_prompt_text(run, &owned, &text, &size);
    if (code || !text) goto done; /* a signal: no text */
    uint32_t flags = ENG_TEXT_ADD_SPECIAL | (run->options->plain ? ENG_TEXT_PLAIN : 0u);
    eng_tokenize(run->engine, text, size, flags, NULL, 0, count, &run->error);
    if (run->error.status != ENG_OK && run->error.status != ENG_TOO_LONG) {
        code = generation_fail_error(run);
        goto done;
    }
    *tokens = malloc((*count + 1) * sizeof **tokens);
    if (!*tokens)
        code = generation_fail_memory(run);
    else if (eng_tokenize(run->engine, text, size, flags, *tokens, *count, count, &run->error))
        code = generation_fail_error(run);

done:
    free(owned);
    return code;
}

static int given_tokens(struct generation *run, int32_t **tokens, size_t *count)
{
    const struct generate_options *options = run->options;
    *tokens = malloc((options->token_count + 1) * sizeof **tokens);
    if (!*tokens) return generation_fail_memory(run);
    for (size_t i = 0; i < options->token_count; i++) (*tokens)[i] = (int32_t)options->tokens[i];
    *count = options->token_count;
    return CLI_DONE;
}
static int complete(struct generation *run)
{
    int32_t *tokens = NULL;
    size_t count = 0;
    int code = run->options->tokens ? given_tokens(run, &tokens, &count) : tokenize_prompt(run, &tokens, &count);
    uint32_t most = run->options->max_new_tokens;
    if (!code && !cli_caught_signal()) code = generation_check_prompt(run, count);
    if (!code && !cli_caught_signal())
        code = generation_open_session(run, most ? count + most : run->facts.max_context);
    if (!code && !cli_caught_signal()) code = generation_open_outputs(run);
    if (!code && !cli_caught_signal()) code = replay_prompt(run, tokens, count);
    if (!code && !cli_caught_signal()) code = show_prompt(run);
    if (!code && !cli_caught_signal()) {
        code = run->options->score ? score_tokens(run, tokens, count) : generation_steps(run, tokens, count);
        if (!code && !run->options->score) code = generation_finish(run);
    }
    free(tokens);
    return code;
}

int generate(const struct generate_options *options)
{
    struct generation run;
    int code = generation_open(&run, options);
    if (!code) generation_note_ids(&run);
    if (!code && !cli_caught_signal()) code = complete(&run);
    return generation_end(&run, code);
}

/* KV pages for a whole context and two pages for every other slot, so that decode plans run with all their rows. Where memory
 * is too small for that, and one process decides alone, one context is enough. */
static int open_selftest_session(struct generation *run)
{
    const struct eng_engine_facts *facts = &run->facts;
    struct eng_session_options options = run->options->session;
    options.kv_tokens = facts->max_context + (uint64_t)2 * facts->slots * facts->page_tokens;
    enum eng_status status = eng_session_create(run->engine, &options, &run->session, &run->error);
    if (status == ENG_MACHINE && !run->options->devices.launched)
        return generation_open_session(run, facts->max_context);
    if (status) return generation_fail_error(run);
    if (!run->options->quiet) cli_note_fallback(run->session);
    return CLI_DONE;
}

static void print_tested_plan(const struct eng_selftest_plan *plan)
{
    printf("%s plan of %" PRIu32 " %s%s%s: ", plan->kind, plan->rows, plan->is_prefill ? "token" : "row",
           plan->rows == 1 ? "" : "s", plan->calls_libraries ? " with libraries" : "");
    if (plan->tokens == 0)
        printf("not run: the engine has no golden outputs for it\n");
    else
        printf("%" PRIu32 " tokens, contexts up to %" PRIu32 ", largest logit error %.3g", plan->tokens,
               plan->longest_context, (double)plan->largest_error);
    if (plan->tokens && plan->ties) printf(", %" PRIu32 " ties", plan->ties);
    if (plan->tokens && plan->left_out) printf(", %" PRIu32 " tokens left out: too few KV pages", plan->left_out);
    if (plan->tokens) printf("\n");
}

static void print_tested_plans(const struct generation *run)
{
    struct eng_selftest_plan plan;
    eng_selftest_plan_init(&plan);
    for (size_t i = 0; eng_selftest_plan(run->session, i, &plan, NULL) == ENG_OK; i++) print_tested_plan(&plan);
}

int generate_selftest(const struct generate_options *options)
{
    struct generation run;
    struct eng_selftest_result result;
    eng_selftest_result_init(&result);
    int code = generation_open(&run, options);
    if (!code) code = open_selftest_session(&run);
    if (!code && eng_selftest(run.session, &result, &run.error)) code = generation_fail_error(&run);
    if (!code) {
        print_tested_plans(&run);
        printf("selftest passed: %" PRIu32 " plans, %" PRIu32 " tokens (%" PRIu32
               " ties), largest logit error %.3g, tolerance %.3g\n",
               result.plans, result.tokens, result.ties, (double)result.largest_error, (double)result.tolerance);
        if (!cli_flush(&run.status)) code = generation_fail_status(&run);
    }
    generation_close(&run);
    return code;
}
