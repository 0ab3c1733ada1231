/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/cli_generate.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "formats/cli/cli_process.h"
#include "formats/base/npy.h"

/* The messages of a conversation: the system message if there is one, then questions and answers alternating. */
struct conversation {
    struct eng_message *messages; /* contents owned; roles are constants */
    size_t count;
};

struct generation {
    const struct generate_options *options;
    struct eng_engine *engine;
    struct eng_session *session;
    struct eng_sequence *sequence;
    struct eng_grammar *grammar;
    struct eng_text *text;
    struct eng_sampling sampling;
    struct conversation conversation;
    int32_t *answer; /* chat: ids of the last answer [answer_count], owned, room for a whole context */
    size_t answer_count;
    int32_t *context; /* chat: ids of the sequence [held], owned, room for a whole context */
    size_t held;
    bool is_stale;    /* chat: the sequence differs from the conversation and must be computed anew */
    bool is_too_long; /* the last prompt exceeds the context */
    struct eng_engine_facts facts;
    struct npy_writer logits;
    bool logits_open;
    bool on_terminal;
    bool at_line_start; /* nothing printed since the last newline */
    uint64_t prompt_tokens, answer_tokens;
    double prompt_seconds, answer_seconds; /* steps up to an answer's first token, and after it */
    double first_token_age;                /* seconds since the process started; < 0: none yet */
    uint32_t process;                      /* number among several processes; only the first prints */
    struct eng_error error;
    struct status status; /* of failures outside the library */
};

/* Prints the message of either kind of failure. */
static int fail_error(const struct generation *run) { return cli_fail_error(&run->error); }

static int fail_status(const struct generation *run) { return cli_fail_status(&run->status); }

static int fail_memory(struct generation *run)
{
    status_fail(&run->status, STATUS_MACHINE, "out of memory");
    return fail_status(run);
}

static int open_engine(struct generation *run)
{
    struct eng_open_options open_options;
    eng_open_options_init(&open_options);
    eng_engine_facts_init(&run->facts);
    if (cli_use_devices(&run->options->devices, &open_options, &run->error) ||
        eng_open(run->options->path, &open_options, &run->engine, &run->error) ||
        eng_engine_get_facts(run->engine, &run->facts, &run->error))
        return fail_error(run);
    run->process = open_options.process;
    return CLI_DONE;
}

/* One sequence needs KV pages for so many tokens, not a pool for all slots. */
static int open_session(struct generation *run, uint64_t tokens)
{
    struct eng_session_options options = run->options->session;
    options.kv_tokens = tokens < run->facts.max_context ? tokens : run->facts.max_context;
    if (eng_session_create(run->engine, &options, &run->session, &run->error)) return fail_error(run);
    if (!run->options->quiet) cli_note_fallback(run->session);
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
    if (options->recommended && eng_sampling_recommended(run->engine, sampling, &run->error)) return fail_error(run);
    if (options->temperature >= 0) sampling->temperature = (float)options->temperature;
    if (options->top_p >= 0) sampling->top_p = (float)options->top_p;
    if (options->repetition_penalty >= 0) sampling->repetition_penalty = (float)options->repetition_penalty;
    if (options->top_k >= 0) sampling->top_k = (uint32_t)options->top_k;
    sampling->min_p = (float)options->min_p;
    sampling->presence_penalty = (float)options->presence_penalty;
    sampling->frequency_penalty = (float)options->frequency_penalty;
    sampling->logit_bias = options->biases->entries;
    sampling->logit_bias_count = options->biases->count;
    return draw_seed(run, sampling, &sampling->seed) ? CLI_DONE : fail_status(run);
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
        return fail_status(run);
    if (schema) text = schema;
    const enum eng_status made = eng_grammar_create(run->engine, kind, text, size, &run->grammar, &run->error);
    free(schema);
    return made ? fail_error(run) : CLI_DONE;
}

/* Replaces the current sequence. */
static int create_sequence(struct generation *run)
{
    const struct generate_options *options = run->options;
    struct eng_sequence_options sequence;
    eng_sequence_options_init(&sequence);
    sequence.sampling = &run->sampling;
    sequence.max_new_tokens = options->max_new_tokens;
    sequence.grammar = run->grammar;
    if (options->ignore_eos) sequence.flags |= ENG_SEQUENCE_IGNORE_EOS;
    if (options->chat) sequence.flags |= ENG_SEQUENCE_KEEP;
    if (options->logits_path || options->logprobs) sequence.flags |= ENG_SEQUENCE_LOGITS;
    /* The checkpoint's end tokens may not include the one that ends a turn. */
    sequence.stop_tokens = &run->facts.chat_end_token;
    sequence.stop_count = options->chat && run->facts.chat_end_token >= 0;
    eng_sequence_destroy(&run->sequence);
    run->held = 0;
    return eng_sequence_create(run->session, &sequence, &run->sequence, &run->error) ? fail_error(run) : CLI_DONE;
}

/* Output of the tokens: a sequence, text, logits. */
static int open_outputs(struct generation *run)
{
    const struct generate_options *options = run->options;
    int code = choose_sampling(run);
    if (!code) code = make_grammar(run);
    if (!code) code = create_sequence(run);
    if (code) return code;
    uint32_t flags = options->keep_special ? ENG_TEXT_KEEP_SPECIAL : 0;
    if (!options->print_tokens && !options->logprobs && run->facts.has_tokenizer &&
        eng_text_create(run->engine, flags, &run->text, &run->error))
        return fail_error(run);
    if (!options->logits_path || run->process > 0) return CLI_DONE;
    run->logits_open = npy_open(&run->logits, options->logits_path, run->facts.vocab_size, &run->status);
    return run->logits_open ? CLI_DONE : fail_status(run);
}

static int print(struct generation *run, const char *text, size_t size)
{
    if (!size) return CLI_DONE;
    run->at_line_start = text[size - 1] == '\n';
    /* On a terminal, control characters of the model's text are replaced; elsewhere the text is passed on unchanged. */
    bool ok = run->on_terminal ? cli_write_terminal(text, size, &run->status) : cli_write(text, size, &run->status);
    return ok ? CLI_DONE : fail_status(run);
}

static int print_logprobs(struct generation *run)
{
    struct eng_logprob drawn, top[ENG_MAX_LOGPROBS];
    const size_t count = (size_t)run->options->logprob_count;
    if (eng_sequence_logprobs(run->sequence, &drawn, top, count, &run->error)) return fail_error(run);
    run->at_line_start = true;
    return cli_write_logprobs(&drawn, top, count, &run->status) ? CLI_DONE : fail_status(run);
}

/* Prints the token that the last step drew to stdout, as text, as id or with log-probabilities. */
static int print_token(struct generation *run, int32_t token)
{
    if (run->options->logprobs) return print_logprobs(run);
    if (!run->text) {
        char number[16];
        int size = snprintf(number, sizeof number, run->at_line_start ? "%" PRId32 : " %" PRId32, token);
        return print(run, number, (size_t)size);
    }
    const char *text;
    size_t size;
    if (eng_text_push(run->text, token, &text, &size, &run->error)) return fail_error(run);
    return print(run, text, size);
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
        if (run->logits_open && logits && !npy_row(&run->logits, logits, &run->status)) return fail_status(run);
        int code = print_token(run, token);
        if (code) return code;
    }
    return CLI_DONE;
}

/* The output so far remains. */
static int check_end(struct generation *run)
{
    if (eng_sequence_end(run->sequence) != ENG_END_NOT_FINITE) return CLI_DONE;
    status_fail(&run->status, STATUS_NOT_FINITE,
                "no token can be drawn after %" PRIu64 " tokens of prompt and %" PRIu64
                " of the answer: the logits are not finite (NaN or infinity) since values of the model overflow; check "
                "the checkpoint, or build the engine with another --dtype or --kv-dtype",
                run->prompt_tokens, run->answer_tokens);
    return fail_status(run);
}

/* Runs steps until the sequence is done or a signal arrives, and prints tokens as they arrive. */
static int answer(struct generation *run, const int32_t *tokens, size_t count)
{
    double start = cli_seconds(), answer_start = 0;
    if (eng_sequence_submit(run->sequence, tokens, count, &run->error)) return fail_error(run);
    run->prompt_tokens += count;
    while (eng_sequence_state(run->sequence) != ENG_STATE_DONE && !cli_caught_signal()) {
        if (eng_step(run->session, NULL, &run->error)) return fail_error(run);
        int code = take_tokens(run, &answer_start);
        if (code) return code;
    }
    double end = cli_seconds();
    run->prompt_seconds += (answer_start > 0 ? answer_start : end) - start;
    run->answer_seconds += answer_start > 0 ? end - answer_start : 0;
    if (run->text) {
        const char *text;
        size_t size;
        if (eng_text_finish(run->text, &text, &size, &run->error)) return fail_error(run);
        int code = print(run, text, size);
        if (code) return code;
    }
    int code = run->at_line_start ? CLI_DONE : print(run, "\n", 1);
    return code ? code : check_end(run);
}

/* The text continues the prompt: without the prompt in the stream, a word's leading space would be lost. */
static int replay_prompt(struct generation *run, const int32_t *tokens, size_t count)
{
    const char *text;
    size_t size;
    for (size_t i = 0; run->text && i < count; i++)
        if (eng_text_push(run->text, tokens[i], &text, &size, &run->error)) return fail_error(run);
    return CLI_DONE;
}

/* A person reads prompt and continuation as one text; a program that reads the output has its prompt. */
static int show_prompt(struct generation *run)
{
    const char *prompt = run->options->prompt;
    if (!prompt || !run->text || !run->on_terminal) return CLI_DONE;
    return print(run, prompt, strlen(prompt));
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
        code = fail_error(run);
        goto done;
    }
    *tokens = malloc((*count + 1) * sizeof **tokens);
    if (!*tokens)
        code = fail_memory(run);
    else if (eng_tokenize(run->engine, text, size, flags, *tokens, *count, count, &run->error))
        code = fail_error(run);

done:
    free(owned);
    return code;
}

static int given_tokens(struct generation *run, int32_t **tokens, size_t *count)
{
    const struct generate_options *options = run->options;
    *tokens = malloc((options->token_count + 1) * sizeof **tokens);
    if (!*tokens) return fail_memory(run);
    for (size_t i = 0; i < options->token_count; i++) (*tokens)[i] = (int32_t)options->tokens[i];
    *count = options->token_count;
    return CLI_DONE;
}

static int check_prompt(struct generation *run, size_t count)
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

static int complete(struct generation *run)
{
    int32_t *tokens = NULL;
    size_t count = 0;
    int code = run->options->tokens ? given_tokens(run, &tokens, &count) : tokenize_prompt(run, &tokens, &count);
    uint32_t most = run->options->max_new_tokens;
    if (!code && !cli_caught_signal()) code = check_prompt(run, count);
    if (!code && !cli_caught_signal()) code = open_session(run, most ? count + most : run->facts.max_context);
    if (!code && !cli_caught_signal()) code = open_outputs(run);
    if (!code && !cli_caught_signal()) code = replay_prompt(run, tokens, count);
    if (!code && !cli_caught_signal()) code = show_prompt(run);
    if (!code && !cli_caught_signal()) code = answer(run, tokens, count);
    free(tokens);
    return code;
}

/* ---- conversations ---- */

/* Takes ownership of `content`. */
static bool say(struct conversation *conversation, const char *role, char *content)
{
    struct eng_message *larger =
        content ? realloc(conversation->messages, (conversation->count + 1) * sizeof *larger) : NULL;
    if (!larger) {
        free(content);
        return false;
    }
    larger[conversation->count++] = (struct eng_message){role, content};
    conversation->messages = larger;
    return true;
}

/* Removes `count` messages, starting at `first`. */
static void forget(struct conversation *conversation, size_t first, size_t count)
{
    struct eng_message *messages = conversation->messages;
    for (size_t i = first; i < first + count; i++) free((char *)(uintptr_t)messages[i].content);
    conversation->count -= count;
    for (size_t i = first; i < conversation->count; i++) messages[i] = messages[i + count];
}

static int chat_tokens(struct generation *run, const struct eng_message *messages, size_t message_count,
                       int32_t **tokens, size_t *count)
{
    uint32_t flags = ENG_CHAT_ANSWER;
    free(*tokens);
    *tokens = NULL;
    if (!run->options->plain) flags |= ENG_CHAT_CONTENT_SPECIAL;
    eng_chat(run->engine, messages, message_count, flags, NULL, 0, count, &run->error);
    if (run->error.status != ENG_OK && run->error.status != ENG_TOO_LONG) return fail_error(run);
    *tokens = malloc((*count + 1) * sizeof **tokens);
    if (!*tokens) return fail_memory(run);
    if (eng_chat(run->engine, messages, message_count, flags, *tokens, *count, count, &run->error))
        return fail_error(run);
    return CLI_DONE;
}

/* Tokens reserved for an answer, unless the question alone leaves fewer. */
static size_t answer_room(const struct generation *run)
{
    size_t quarter = run->facts.max_context / 4, most = run->options->max_new_tokens;
    return most && most < quarter ? most : quarter;
}

/* Builds the conversation from its oldest turn that leaves room for an answer; *dropped: number of older turns. */
static int whole_prompt(struct generation *run, int32_t **tokens, size_t *count, size_t *dropped)
{
    const struct conversation *conversation = &run->conversation;
    size_t first = run->options->system != NULL, left = conversation->count;
    struct eng_message *messages = malloc(left * sizeof *messages);
    if (!messages) return fail_memory(run);
    memcpy(messages, conversation->messages, left * sizeof *messages);
    int code = chat_tokens(run, messages, left, tokens, count);
    for (*dropped = 0; !code && left > first + 1 && *count + answer_room(run) > run->facts.max_context; ++*dropped) {
        left -= 2;
        memmove(messages + first, messages + first + 2, (left - first) * sizeof *messages);
        code = chat_tokens(run, messages, left, tokens, count);
    }
    free(messages);
    return code;
}

/* Builds the tokens to submit for the question, which is the last message: the part of the conversation that follows the
 * sequence's tokens. If these are not how the conversation begins, it is computed anew: a template may write earlier messages in
 * another way once others follow, and the text of an answer may have other ids than were drawn. */
static int next_prompt(struct generation *run, int32_t **tokens, size_t *count)
{
    size_t dropped = 0;
    int code = whole_prompt(run, tokens, count, &dropped);
    if (!code) code = check_prompt(run, *count);
    if (code) return code;
    if (!run->is_stale && *count > run->held && !memcmp(*tokens, run->context, run->held * sizeof **tokens)) {
        *count -= run->held;
        memmove(*tokens, *tokens + run->held, *count * sizeof **tokens);
    } else if (run->held > 0) {
        code = create_sequence(run);
        if (code) return code;
    }
    run->is_stale = false;
    if (dropped && !run->options->quiet)
        fprintf(stderr, "%s: note: the context of %" PRIu32 " tokens is full: the oldest %zu turn%s left out\n",
                cli_program(), run->facts.max_context, dropped, dropped == 1 ? " was" : "s were");
    forget(&run->conversation, run->options->system != NULL, 2 * dropped);
    return CLI_DONE;
}

/* The sequence has so many tokens more. */
static void hold(struct generation *run, const int32_t *tokens, size_t count)
{
    const size_t room = run->facts.max_context - run->held;
    memcpy(run->context + run->held, tokens, (count < room ? count : room) * sizeof *tokens);
    run->held += count < room ? count : room;
}

/* The last answer, as text. */
static int remember_answer(struct generation *run)
{
    size_t size;
    eng_detokenize(run->engine, run->answer, run->answer_count, 0, NULL, 0, &size, &run->error);
    if (run->error.status != ENG_OK && run->error.status != ENG_TOO_LONG) return fail_error(run);
    char *content = malloc(size + 1);
    if (content &&
        eng_detokenize(run->engine, run->answer, run->answer_count, 0, content, size + 1, &size, &run->error)) {
        free(content);
        return fail_error(run);
    }
    return say(&run->conversation, "assistant", content) ? CLI_DONE : fail_memory(run);
}

static int chat_turn(struct generation *run, const char *question)
{
    int32_t *tokens = NULL;
    size_t count = 0;
    run->is_too_long = false;
    if (!say(&run->conversation, "user", strdup(question))) return fail_memory(run);
    int code = next_prompt(run, &tokens, &count);
    if (code) {
        forget(&run->conversation, run->conversation.count - 1, 1);
    } else {
        run->answer_count = 0;
        code = answer(run, tokens, count);
        hold(run, tokens, count);
        hold(run, run->answer, run->answer_count);
        if (!code) code = remember_answer(run);
    }
    free(tokens);
    return code;
}

/* With a prompt: one question. Without: every line of stdin is a turn. At a terminal, Ctrl-C ends an answer, and a
 * message that is too long can be entered again. */
static int converse(struct generation *run)
{
    int code = open_session(run, run->facts.max_context);
    if (!code) code = open_outputs(run);
    if (code) return code;
    run->answer = malloc(run->facts.max_context * sizeof *run->answer);
    run->context = malloc(run->facts.max_context * sizeof *run->context);
    if (!run->answer || !run->context) return fail_memory(run);
    if (run->options->system && !say(&run->conversation, "system", strdup(run->options->system)))
        return fail_memory(run);
    if (run->options->prompt) return chat_turn(run, run->options->prompt);
    char *line = NULL;
    size_t capacity = 0;
    bool terminal = isatty(STDIN_FILENO);
    while (!code && !cli_caught_signal()) {
        if (terminal) fputs("> ", stderr);
        if (terminal && !cli_wait_for_input()) break;
        ssize_t size = getline(&line, &capacity, stdin);
        if (size < 0) break;
        while (size && (line[size - 1] == '\n' || line[size - 1] == '\r')) line[--size] = '\0';
        if (!size) continue;
        code = chat_turn(run, line);
        if (terminal && run->is_too_long) code = CLI_DONE;
        if (terminal && !code && cli_caught_signal() == SIGINT) {
            cli_forget_signal();
            run->is_stale = true;
        }
    }
    free(line);
    return code;
}

static void print_timing(const struct generation *run)
{
    uint64_t later = run->answer_tokens > 1 ? run->answer_tokens - 1 : 0;
    fprintf(stderr, "load:   %.3f s, of that %.3f s to verify %.1f MB of weights\n", run->facts.open_seconds,
            run->facts.verify_seconds, (double)run->facts.weights_bytes * 1e-6);
    fprintf(stderr, "prompt: %" PRIu64 " tokens in %.3f s, %.1f tokens/s\n", run->prompt_tokens, run->prompt_seconds,
            run->prompt_seconds > 0 ? (double)run->prompt_tokens / run->prompt_seconds : 0);
    fprintf(stderr, "answer: %" PRIu64 " tokens, %.1f tokens/s after the first\n", run->answer_tokens,
            run->answer_seconds > 0 ? (double)later / run->answer_seconds : 0);
    if (run->first_token_age >= 0)
        fprintf(stderr, "first token %.2f s after the start of the process\n", run->first_token_age);
}

static void close_generation(struct generation *run)
{
    if (run->logits_open) npy_abandon(&run->logits);
    forget(&run->conversation, 0, run->conversation.count);
    free(run->conversation.messages);
    free(run->answer);
    free(run->context);
    eng_text_destroy(&run->text);
    eng_sequence_destroy(&run->sequence);
    eng_grammar_destroy(&run->grammar);
    eng_session_destroy(&run->session);
    eng_close(&run->engine);
}

int generate(const struct generate_options *options)
{
    struct generation run = {.options = options,
                             .on_terminal = isatty(STDOUT_FILENO),
                             .at_line_start = true,
                             .first_token_age = -1};
    int code = open_engine(&run);
    if (!code && !options->print_tokens && !run.facts.has_tokenizer && !options->quiet)
        fprintf(stderr, "%s: the engine has no tokenizer: printing token ids\n", cli_program());
    if (!code && !cli_caught_signal()) code = options->chat ? converse(&run) : complete(&run);
    if (run.logits_open && !code) {
        /* The output up to a signal is complete and is kept. */
        run.logits_open = false;
        if (!npy_close(&run.logits, &run.status)) code = fail_status(&run);
    }
    if (!code && options->timing) print_timing(&run);
    close_generation(&run);
    if (!code && cli_caught_signal()) code = CLI_SIGNAL + cli_caught_signal();
    return code;
}

/* KV pages for a whole context and two pages for every other slot, so that decode plans run with all their rows. Where memory
 * is too small for that, and one process decides alone, one context is enough. */
static int open_selftest_session(struct generation *run)
{
    const struct eng_engine_facts *facts = &run->facts;
    struct eng_session_options options = run->options->session;
    options.kv_tokens = facts->max_context + (uint64_t)2 * facts->slots * facts->page_tokens;
    enum eng_status status = eng_session_create(run->engine, &options, &run->session, &run->error);
    if (status == ENG_MACHINE && !run->options->devices.launched) return open_session(run, facts->max_context);
    if (status) return fail_error(run);
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
    struct generation run = {.options = options};
    struct eng_selftest_result result;
    eng_selftest_result_init(&result);
    int code = open_engine(&run);
    if (!code) code = open_selftest_session(&run);
    if (!code && eng_selftest(run.session, &result, &run.error)) code = fail_error(&run);
    if (!code) {
        print_tested_plans(&run);
        printf("selftest passed: %" PRIu32 " plans, %" PRIu32 " tokens (%" PRIu32
               " ties), largest logit error %.3g, tolerance %.3g\n",
               result.plans, result.tokens, result.ties, (double)result.largest_error, (double)result.tolerance);
        if (!cli_flush(&run.status)) code = fail_status(&run);
    }
    close_generation(&run);
    return code;
}
