/* SPDX-License-Identifier: Apache-2.0 */
/* engrun: text, tokens and logits from an engine file; its tokenizer alone. */
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/chat.h"
#include "runtime/cli/cli_args.h"
#include "runtime/cli/cli_generate.h"
#include "runtime/cli/cli_render.h"
#include "runtime/cli/cli_tokenize.h"

enum { DEFAULT_NEW_TOKENS = 128 };

static const char usage[] =
    "usage: engrun FILE (-p TEXT | --tokens LIST | < TEXT) [flags]\n"
    "       engrun FILE --chat [-p TEXT] [flags]\n"
    "       engrun FILE --selftest\n"
    "       engrun (FILE | tokenizer.json) --tokenize | --detokenize\n"
    "       engrun (FILE | TEMPLATE.jinja) --render\n"
    "\n"
    "Continues a prompt with the engine FILE, made by engbuild, and prints the text as it is generated.\n"
    "Always takes the likeliest token unless --temperature or --recommended says otherwise.\n"
    "\n";

struct arguments {
    struct generate_options generate;
    struct tokenize_options tokenize;
    struct render_options render;
    struct cli_list tokens;
    struct cli_logit_biases biases;
    bool do_tokenize, do_render, selftest, count_given, speculate_given;
    uint64_t count, top_k, speculate;
    const char *special_tokens; /* "parse" or "text"; NULL: not given */
    bool finished;              /* --help or --version was printed */
};

/* Flags that have no effect with the selected work are refused, since the user expects one. */
static int check_combination(const struct arguments *arguments)
{
    const struct generate_options *generate = &arguments->generate;
    const char *special = arguments->special_tokens;
    if (special && strcmp(special, "parse") != 0 && strcmp(special, "text") != 0)
        return cli_usage("--special-tokens: expected 'parse' or 'text', found '%s'", special);
    int text_works = arguments->do_tokenize + arguments->tokenize.detokenize + arguments->do_render;
    bool text_work = text_works > 0;
    if (arguments->do_tokenize && arguments->tokenize.detokenize)
        return cli_usage("expected one of --tokenize and --detokenize, found both");
    if (text_works > 1) return cli_usage("--render: not with --tokenize or --detokenize");
    if (text_work && arguments->selftest) return cli_usage("--selftest: not with --tokenize, --detokenize or --render");
    bool has_prompt = generate->prompt || generate->tokens || generate->chat;
    if ((text_work || arguments->selftest) && (has_prompt || generate->logits_path || generate->print_tokens))
        return cli_usage("-p, --tokens, --chat, --logits and --print-tokens: not with --selftest, --tokenize, "
                         "--detokenize or --render");
    if (generate->devices.launched && (generate->chat || !(has_prompt || arguments->selftest)))
        return cli_usage("--launched: expected -p, --tokens or --selftest, since processes share no stdin");
    if (cli_check_devices(&generate->devices)) return CLI_USAGE;
    if (generate->prompt && generate->tokens) return cli_usage("expected one of -p and --tokens, found both");
    if (generate->chat && generate->tokens) return cli_usage("--chat: not with --tokens");
    if (generate->logprobs && (generate->chat || generate->print_tokens || text_work || arguments->selftest))
        return cli_usage(
            "--logprobs: not with --chat, --print-tokens, --selftest, --tokenize, --detokenize or --render");
    if (generate->score && (generate->chat || generate->print_tokens || generate->logits_path ||
                            arguments->count_given || text_work || arguments->selftest))
        return cli_usage("--score: not with --chat, --print-tokens, --logits, -n, --selftest, --tokenize, "
                         "--detokenize or --render");
    const int grammars = generate->json_object + (generate->json_schema != NULL) + (generate->regex != NULL);
    if (grammars > 1) return cli_usage("expected one of --json, --json-schema and --regex, found several");
    if (grammars && (generate->ignore_eos || generate->score || text_work || arguments->selftest))
        return cli_usage(
            "--json, --json-schema and --regex: not with --ignore-eos, --score, --selftest, --tokenize, --detokenize "
            "or --render");
    if (generate->draft_path && (text_work || arguments->selftest))
        return cli_usage("--draft: not with --selftest, --tokenize, --detokenize or --render");
    if (arguments->speculate && (text_work || arguments->selftest))
        return cli_usage("--speculate: not with --selftest, --tokenize, --detokenize or --render");
    if (generate->draft_path && generate->devices.launched)
        return cli_usage("--draft: not with --launched, since several processes cannot share a draft engine");
    if (generate->system && !generate->chat) return cli_usage("--system: only with --chat");
    if (generate->no_history && !generate->chat) return cli_usage("--no-history: only with --chat");
    if (special && (generate->tokens || arguments->selftest || arguments->tokenize.detokenize || arguments->do_render))
        return cli_usage("--special-tokens: not with --tokens, --selftest, --detokenize or --render, which encode no "
                         "text");
    if (arguments->render.now && !arguments->do_render) return cli_usage("--now: only with --render");
    if (arguments->tokenize.add_special && !arguments->do_tokenize)
        return cli_usage("--add-special: only with --tokenize");
    if (arguments->tokenize.skip_special && !arguments->tokenize.detokenize)
        return cli_usage("--skip-special: only with --detokenize");
    return CLI_DONE;
}

static int read_flags(int argc, char **argv, struct arguments *arguments)
{
    struct generate_options *generate = &arguments->generate;
    struct cli_flag device_flags[CLI_DEVICE_FLAGS];
    const struct cli_flag flags[] = {
        {.help = "prompt:"},
        {"prompt", 'p', "TEXT", .text = &generate->prompt,
         .help = "the prompt; without it and --tokens, all of stdin (less one newline at its end); a terminal shows it "
                 "before the continuation, a pipe or file gets the latter alone"},
        {"tokens", 0, "LIST", .list = &arguments->tokens, .most = INT32_MAX,
         .help = "token ids separated by commas, used exactly as given"},
        {"chat", .set = &generate->chat,
         .help = "the prompt is a user's message; without -p, every line of stdin is one; at a terminal lines can be "
                 "edited, /help shows commands, Ctrl-C ends an answer, Ctrl-D the chat"},
        {"system", 0, "TEXT", .text = &generate->system, .help = "with --chat: the system message"},
        {"no-history", .set = &generate->no_history,
         .help = "with --chat at a terminal: do not keep messages in ~/.local/state/eng/chat_history "
                 "(XDG_STATE_HOME is respected)"},
        {"special-tokens", 0, "HOW", .text = &arguments->special_tokens,
         .help = "special tokens in the text of the prompt, such as <|end|>: 'parse' recognises them (the default; the "
                 "author of the prompt can then end a turn or begin one), 'text' does not (the default with --chat)"},
        {.help = "answer:"},
        {"count", 'n', "N", .number = &arguments->count, .most = INT32_MAX, .given = &arguments->count_given,
         .help = "at most N tokens (128; with --chat 0); 0: until an end token or the end of the context"},
        {"ignore-eos", .set = &generate->ignore_eos, .help = "end tokens do not end the answer"},
        {"temperature", 0, "T", .real = &generate->temperature, .most = 1000000,
         .help = "0 (the default): always the likeliest token; above: draw one"},
        {"top-k", 0, "K", .number = &arguments->top_k, .most = INT32_MAX,
         .help = "draw from the K likeliest tokens; 0: all"},
        {"top-p", 0, "P", .real = &generate->top_p, .most = 1, .above_zero = "above 0 and at most 1",
         .help = "draw from the likeliest tokens whose probabilities sum up to P; 1: all"},
        {"min-p", 0, "P", .real = &generate->min_p, .most = 1,
         .help = "draw from the tokens with at least P times the probability of the likeliest one; 0: all"},
        {"repetition-penalty", 0, "R", .real = &generate->repetition_penalty, .most = 1000000, .above_zero = "above 0",
         .help = "from 0.01: above 1 it makes tokens that occurred less likely; 1: none"},
        {"presence-penalty", 0, "R", .read = cli_read_presence_penalty, .to = &generate->presence_penalty,
         .help = "from -2 to 2: subtracted from the logits of tokens that occurred in the answer"},
        {"frequency-penalty", 0, "R", .read = cli_read_frequency_penalty, .to = &generate->frequency_penalty,
         .help = "from -2 to 2: the same, once for each time that the token occurred"},
        {"logit-bias", 0, "LIST", .read = cli_read_logit_bias, .to = &arguments->biases,
         .help = "added to logits: token id and bias from -100 to 100, such as 42:-1.5,7:3"},
        {"json", .set = &generate->json_object, .help = "the answer is a JSON object"},
        {"json-schema", 0, "FILE", .text = &generate->json_schema,
         .help = "the answer is a JSON document of the schema in FILE, without white space between its parts"},
        {"regex", 0, "R", .text = &generate->regex,
         .help = "the answer is a text that the expression matches as a whole"},
        {"recommended", .set = &generate->recommended,
         .help =
             "use the checkpoint's generation_config.json for temperature, top-k, top-p and repetition-penalty where "
             "they are not given"},
        {"seed", 0, "S", .number = &generate->seed, .most = UINT64_MAX, .given = &generate->seed_given,
         .help = "the same seed draws the same text; default: a random one, which is printed on stderr"},
        {.help = "output:"},
        {"print-tokens", .set = &generate->print_tokens,
         .help = "the generated ids, separated by spaces, instead of text"},
        {"logprobs", 0, "N", .number = &generate->logprob_count, .most = ENG_MAX_LOGPROBS, .given = &generate->logprobs,
         .help = "instead of text a line of JSON for each token: its log-probability and those of the N likeliest "
                 "tokens, as the model gives them, before penalties and temperature"},
        {"score", .set = &generate->score,
         .help =
             "instead of an answer a line of JSON for each token of the prompt from the second one on, with its "
             "log-probability (with --logprobs N those of the N likeliest tokens in its place, too), and a last one "
             "with their number, sum and perplexity"},
        {"keep-special", .set = &generate->keep_special, .help = "special tokens appear in the text"},
        {"logits", 0, "FILE.npy", .text = &generate->logits_path,
         .help = "float32 [tokens, vocabulary]: the logits of each token"},
        {"timing", .set = &generate->timing},
        {"verbose", .set = &generate->timing, .help = "speed and time to the first token, on stderr"},
        {"quiet", .set = &generate->quiet, .help = "no notes on stderr"},
        {.help = "other work:"},
        {"selftest", .set = &arguments->selftest,
         .help = "run every plan and compare tokens and logits with the engine's golden outputs"},
        {"tokenize", .set = &arguments->do_tokenize,
         .help = "each line of stdin, a JSON string, becomes a JSON array of ids"},
        {"add-special", .set = &arguments->tokenize.add_special,
         .help = "with --tokenize: add the tokens the tokenizer puts around a text"},
        {"detokenize", .set = &arguments->tokenize.detokenize,
         .help = "each line of stdin, a JSON array of ids, becomes a JSON string"},
        {"skip-special", .set = &arguments->tokenize.skip_special,
         .help = "with --detokenize: leave special tokens out"},
        {"render", .set = &arguments->do_render,
         .help =
             "each line of stdin, a JSON object of variables (messages, tools, add_generation_prompt ...), becomes a "
             "JSON string, the text that the chat template makes of them, or {\"error\": reason}"},
        {"now", 0, "TIME", .text = &arguments->render.now,
         .help = "with --render: the local time that templates see, such as 2026-01-02T03:04:05"},
        {.help = "machine:"},
        {"speculate", 0, "N", .number = &arguments->speculate, .most = INT32_MAX, .given = &arguments->speculate_given,
         .help = "draft up to N tokens of the answer where its last ones have occurred before, and verify them in one "
                 "step: the same text in less time where it repeats itself (0, the default: off)"},
        {"draft", 0, "FILE", .text = &generate->draft_path,
         .help = "engine of a smaller model with the same tokens, on the same machine or GPU, which drafts where the "
                 "text does not repeat itself (--speculate 4 unless given)"},
        {"no-jit", .set = &generate->devices.no_jit,
         .help =
             "do not compile patterns of the tokenizer to machine code: for untrusted engines, and where executable "
             "memory is forbidden"},
        {.name = NULL},
    };
    const struct cli_command command = {usage,
                                        {flags, device_flags},
                                        "\n" CLI_EXIT_CODES ", 130 interrupted\n",
                                        eng_version()};
    cli_device_flags(&generate->devices, device_flags);
    return cli_read_flags(&command, argc, argv, &arguments->finished);
}

static int read_arguments(int argc, char **argv, struct arguments *arguments)
{
    struct generate_options *generate = &arguments->generate;
    const uint64_t none = UINT64_MAX;
    generate->temperature = generate->top_p = generate->repetition_penalty = -1;
    arguments->top_k = none;
    int code = read_flags(argc, argv, arguments);
    if (code || arguments->finished) return code;
    code = cli_read_engine_path(argc, argv, &generate->path);
    if (code) return code;
    eng_session_options_init(&generate->session);
    generate->session.max_sequences = 1;
    generate->session.threads = (uint32_t)generate->devices.threads;
    if (generate->draft_path && !arguments->speculate_given) arguments->speculate = CLI_DRAFTED_TOKENS;
    generate->session.speculate = (uint32_t)arguments->speculate;
    generate->session.instruction_set = generate->devices.instruction_set;
    generate->tokens = arguments->tokens.values;
    generate->biases = &arguments->biases;
    generate->token_count = arguments->tokens.count;
    generate->top_k = arguments->top_k == none ? -1 : (int64_t)arguments->top_k;
    generate->plain = arguments->special_tokens ? !strcmp(arguments->special_tokens, "text") : generate->chat;
    generate->max_new_tokens = arguments->count_given ? (uint32_t)arguments->count
                               : generate->score      ? 1
                               : generate->chat       ? 0
                                                      : DEFAULT_NEW_TOKENS;
    arguments->tokenize.path = generate->path;
    arguments->render.path = generate->path;
    arguments->tokenize.plain = generate->plain;
    arguments->tokenize.no_jit = generate->devices.no_jit;
    return check_combination(arguments);
}

int main(int argc, char **argv)
{
    cli_begin("engrun");
    cli_catch_signals();
    struct arguments arguments = {0};
    struct status status = {0};
    int code = read_arguments(argc, argv, &arguments);
    if (code || arguments.finished) {
        if (!code && !cli_flush(&status)) code = cli_fail_status(&status);
    } else if (arguments.do_tokenize || arguments.tokenize.detokenize) {
        code = tokenize_lines(&arguments.tokenize);
    } else if (arguments.do_render) {
        code = render_lines(&arguments.render);
    } else if (arguments.selftest) {
        code = generate_selftest(&arguments.generate);
    } else if (arguments.generate.chat) {
        code = chat(&arguments.generate);
    } else {
        code = generate(&arguments.generate);
    }
    free(arguments.tokens.values);
    return cli_end(code);
}
