/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_generation.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "formats/base/file.h"
#include "formats/cli/cli_process.h"

int generation_fail_error(const struct generation *run) { return cli_fail_error(&run->error); }

int generation_fail_status(const struct generation *run) { return cli_fail_status(&run->status); }

int generation_fail_memory(struct generation *run)
{
    status_fail(&run->status, STATUS_MACHINE, "out of memory");
    return generation_fail_status(run);
}

int generation_open(struct generation *run, const struct generate_options *options)
{
    struct eng_open_options open_options;
    *run = (struct generation){.options = options,
                               .on_terminal = isatty(STDOUT_FILENO),
                               .at_line_start = true,
                               .first_token_age = -1};
    eng_open_options_init(&open_options);
    eng_engine_facts_init(&run->facts);
    if (cli_use_devices(&run->options->devices, &open_options, &run->error)) return generation_fail_error(run);
    if (options->draft_path) open_options.only_cuda_user = 0;
    if (eng_open(run->options->path, &open_options, &run->engine, &run->error) ||
        eng_engine_get_facts(run->engine, &run->facts, &run->error))
        return generation_fail_error(run);
    run->process = open_options.process;
    return CLI_DONE;
}

void generation_note_ids(const struct generation *run)
{
    const struct generate_options *options = run->options;
    if (!options->print_tokens && !options->score && !run->facts.has_tokenizer && !options->quiet)
        fprintf(stderr, "%s: the engine has no tokenizer: printing token ids\n", cli_program());
}

int generation_open_session(struct generation *run, uint64_t tokens)
{
    struct eng_session_options options = run->options->session;
    options.kv_tokens = tokens < run->facts.max_context ? tokens : run->facts.max_context;
    if (cli_open_draft(run->options->draft_path, &run->options->devices, &options.draft, &run->error))
        return generation_fail_error(run);
    const enum eng_status made = eng_session_create(run->engine, &options, &run->session, &run->error);
    eng_close(&options.draft);
    if (made) return generation_fail_error(run);
    if (!run->options->quiet) cli_note_fallback(run->session);
    if (!run->options->quiet && options.speculate) cli_note_speculation(run->session);
    return CLI_DONE;
}

/* Processes that share the GPUs must draw the same tokens and have exchanged nothing yet: they use a fixed seed. */
static bool draw_seed(struct generation *run, const struct eng_sampling *sampling, uint64_t *seed)
{
    const struct generate_options *options = run->options;
    uint32_t number = 0; /* short enough to type */
    *seed = options->seed;
    if (options->seed_given || sampling->temperature <= 0 || sampling->top_k == 1) return true;
    if (!options->devices.launched && getrandom(&number, sizeof number, 0) != sizeof number)
        return status_fail_errno(&run->status, STATUS_MACHINE, errno, "cannot get a random seed; give one (--seed)");
    *seed = number;
    if (!options->quiet && run->process == 0)
        fprintf(stderr, "%s: seed %" PRIu64 " (repeat with --seed %" PRIu64 ")\n", cli_program(), *seed, *seed);
    return true;
}

static int choose_sampling(struct generation *run)
{
    const struct generate_options *options = run->options;
    struct eng_sampling *sampling = &run->sampling;
    eng_sampling_init(sampling);
    if (options->recommended && eng_sampling_recommended(run->engine, sampling, &run->error))
        return generation_fail_error(run);
    if (options->temperature >= 0) sampling->temperature = (float)options->temperature;
    if (options->top_p >= 0) sampling->top_p = (float)options->top_p;
    if (options->repetition_penalty >= 0) sampling->repetition_penalty = (float)options->repetition_penalty;
    if (options->top_k >= 0) sampling->top_k = (uint32_t)options->top_k;
    sampling->min_p = (float)options->min_p;
    sampling->presence_penalty = (float)options->presence_penalty;
    sampling->frequency_penalty = (float)options->frequency_penalty;
    sampling->logit_bias = options->biases->entries;
    sampling->logit_bias_count = options->biases->count;
    return draw_seed(run, sampling, &sampling->seed) ? CLI_DONE : generation_fail_status(run);
}

/* What answers must be, if anything. */
static int make_grammar(struct generation *run)
{
    enum { MOST_SCHEMA_BYTES = 1 << 20 };
    const struct generate_options *options = run->options;
    const char *text = options->regex ? options->regex : "";
    char *schema = NULL;
    size_t size = strlen(text);
    enum eng_grammar_kind kind = options->json_schema ? ENG_GRAMMAR_JSON_SCHEMA
                                 : options->regex     ? ENG_GRAMMAR_REGEX
                                                      : ENG_GRAMMAR_JSON_OBJECT;
    if (!options->json_schema && !options->regex && !options->json_object) return CLI_DONE;
    if (options->json_schema && !file_read(options->json_schema, MOST_SCHEMA_BYTES, &schema, &size, &run->status))
        return generation_fail_status(run);
    if (schema) text = schema;
    const enum eng_status made = eng_grammar_create(run->engine, kind, text, size, &run->grammar, &run->error);
    free(schema);
    return made ? generation_fail_error(run) : CLI_DONE;
}

int generation_create_sequence(struct generation *run, uint32_t max_new_tokens)
{
    const struct generate_options *options = run->options;
    struct eng_sequence_options sequence;
    eng_sequence_options_init(&sequence);
    sequence.sampling = &run->sampling;
    sequence.max_new_tokens = max_new_tokens;
    sequence.grammar = run->grammar;
    if (options->score) sequence.prompt_logprobs = options->logprob_count ? (int32_t)options->logprob_count : -1;
    if (options->ignore_eos) sequence.flags |= ENG_SEQUENCE_IGNORE_EOS;
    if (options->chat) sequence.flags |= ENG_SEQUENCE_KEEP;
    if (options->logits_path || options->logprobs) sequence.flags |= ENG_SEQUENCE_LOGITS;
    /* The checkpoint's end tokens may not include the one that ends a turn. */
    sequence.stop_tokens = &run->facts.chat_end_token;
    sequence.stop_count = options->chat && run->facts.chat_end_token >= 0;
    eng_sequence_destroy(&run->sequence);
    if (eng_sequence_create(run->session, &sequence, &run->sequence, &run->error)) return generation_fail_error(run);
    return CLI_DONE;
}

int generation_open_outputs(struct generation *run)
{
    const struct generate_options *options = run->options;
    int code = choose_sampling(run);
    if (!code) code = make_grammar(run);
    if (!code) code = generation_create_sequence(run, options->max_new_tokens);
    if (code) return code;
    uint32_t flags = options->keep_special ? ENG_TEXT_KEEP_SPECIAL : 0;
    if (!options->print_tokens && !options->logprobs && !options->score && run->facts.has_tokenizer &&
        eng_text_create(run->engine, flags, &run->text, &run->error))
        return generation_fail_error(run);
    if (!options->logits_path || run->process > 0) return CLI_DONE;
    run->logits_open = npy_open(&run->logits, options->logits_path, run->facts.vocab_size, &run->status);
    return run->logits_open ? CLI_DONE : generation_fail_status(run);
}

int generation_print(struct generation *run, const char *text, size_t size)
{
    if (!size) return CLI_DONE;
    run->at_line_start = text[size - 1] == '\n';
    /* On a terminal, control characters of the model's text are replaced; elsewhere the text is passed on unchanged. */
    bool ok = run->on_terminal ? cli_write_terminal(text, size, &run->status) : cli_write(text, size, &run->status);
    return ok ? CLI_DONE : generation_fail_status(run);
}

static int print_logprobs(struct generation *run)
{
    struct eng_logprob drawn, top[ENG_MAX_LOGPROBS];
    const size_t count = (size_t)run->options->logprob_count;
    if (eng_sequence_logprobs(run->sequence, &drawn, top, count, &run->error)) return generation_fail_error(run);
    run->at_line_start = true;
    return cli_write_logprobs(&drawn, top, count, &run->status) ? CLI_DONE : generation_fail_status(run);
}

/* Prints the token that the last step drew to stdout, as text, as id or with log-probabilities. */
static int print_token(struct generation *run, int32_t token)
{
    if (run->options->logprobs) return print_logprobs(run);
    if (!run->text) {
        char number[16];
        int size = snprintf(number, sizeof number, run->at_line_start ? "%" PRId32 : " %" PRId32, token);
        return generation_print(run, number, (size_t)size);
    }
    const char *text;
    size_t size;
    if (eng_text_push(run->text, token, &text, &size, &run->error)) return generation_fail_error(run);
    return generation_print(run, text, size);
}

static int take_tokens(struct generation *run, double *answer_start)
{
    int32_t token;
    while (eng_sequence_poll(run->sequence, &token, 1)) {
        double now = cli_seconds();
        if (run->first_token_age < 0) run->first_token_age = cli_process_age();
        if (*answer_start == 0) *answer_start = now;
        run->answer_tokens++;
        if (run->answer && run->answer_count < run->facts.max_context) run->answer[run->answer_count++] = token;
        const float *logits = eng_sequence_logits(run->sequence);
        if (run->logits_open && logits && !npy_row(&run->logits, logits, &run->status))
            return generation_fail_status(run);
        int code = print_token(run, token);
        if (code) return code;
    }
    return CLI_DONE;
}

int generation_steps(struct generation *run, const int32_t *tokens, size_t count)
{
    double start = cli_seconds(), answer_start = 0;
    if (eng_sequence_submit(run->sequence, tokens, count, &run->error)) return generation_fail_error(run);
    run->prompt_tokens += count;
    while (eng_sequence_state(run->sequence) != ENG_STATE_DONE && !cli_caught_signal()) {
        if (eng_step(run->session, NULL, &run->error)) return generation_fail_error(run);
        int code = take_tokens(run, &answer_start);
        if (code) return code;
    }
    double end = cli_seconds();
    run->prompt_seconds += (answer_start > 0 ? answer_start : end) - start;
    run->answer_seconds += answer_start > 0 ? end - answer_start : 0;
    return CLI_DONE;
}

static int check_end(struct generation *run)
{
    if (eng_sequence_end(run->sequence) != ENG_END_NOT_FINITE) return CLI_DONE;
    status_fail(&run->status, STATUS_NOT_FINITE,
                "no token can be drawn after %" PRIu64 " tokens of prompt and %" PRIu64
                " of the answer: the logits are not finite (NaN or infinity) since values of the model overflow; check "
                "the checkpoint, or build the engine with another --dtype or --kv-dtype",
                run->prompt_tokens, run->answer_tokens);
    return generation_fail_status(run);
}

int generation_finish(struct generation *run)
{
    if (run->text) {
        const char *text;
        size_t size;
        if (eng_text_finish(run->text, &text, &size, &run->error)) return generation_fail_error(run);
        int code = generation_print(run, text, size);
        if (code) return code;
    }
    int code = run->at_line_start ? CLI_DONE : generation_print(run, "\n", 1);
    return code ? code : check_end(run);
}

int generation_check_prompt(struct generation *run, size_t count)
{
    if (count == 0) {
        fprintf(stderr, "%s: the prompt is empty: expected at least one token\n", cli_program());
        return CLI_BAD_INPUT;
    }
    run->is_too_long = count > run->facts.max_context;
    if (!run->is_too_long) return CLI_DONE;
    fprintf(stderr,
            "%s: the prompt has %zu tokens, the engine's context is %" PRIu32
            "; shorten it, or build the engine with a larger --max-context\n",
            cli_program(), count, run->facts.max_context);
    return CLI_BAD_INPUT;
}

static void print_timing(const struct generation *run)
{
    struct eng_session_facts facts;
    uint64_t later = run->answer_tokens > 1 ? run->answer_tokens - 1 : 0;
    eng_session_facts_init(&facts);
    fprintf(stderr, "load:   %.3f s, of that %.3f s to verify %.1f MB of weights\n", run->facts.open_seconds,
            run->facts.verify_seconds, (double)run->facts.weights_bytes * 1e-6);
    fprintf(stderr, "prompt: %" PRIu64 " tokens in %.3f s, %.1f tokens/s\n", run->prompt_tokens, run->prompt_seconds,
            run->prompt_seconds > 0 ? (double)run->prompt_tokens / run->prompt_seconds : 0);
    fprintf(stderr, "answer: %" PRIu64 " tokens, %.1f tokens/s after the first\n", run->answer_tokens,
            run->answer_seconds > 0 ? (double)later / run->answer_seconds : 0);
    if (run->options->session.speculate && eng_session_get_facts(run->session, &facts, NULL) == ENG_OK)
        fprintf(stderr, "drafts: %" PRIu64 " tokens verified, %" PRIu64 " accepted\n", facts.drafted_tokens,
                facts.accepted_tokens);
    if (run->first_token_age >= 0)
        fprintf(stderr, "first token %.2f s after the start of the process\n", run->first_token_age);
}

void generation_close(struct generation *run)
{
    if (run->logits_open) npy_abandon(&run->logits);
    free(run->answer);
    eng_text_destroy(&run->text);
    eng_sequence_destroy(&run->sequence);
    eng_grammar_destroy(&run->grammar);
    eng_session_destroy(&run->session);
    eng_close(&run->engine);
}

int generation_end(struct generation *run, int code)
{
    if (run->logits_open && !code) {
        /* The output up to a signal is complete and is kept. */
        run->logits_open = false;
        if (!npy_close(&run->logits, &run->status)) code = generation_fail_status(run);
    }
    if (!code && run->options->timing) print_timing(run);
    generation_close(run);
    return code || !cli_caught_signal() ? code : CLI_SIGNAL + cli_caught_signal();
}
