/* SPDX-License-Identifier: Apache-2.0 */
/* engrun: text, tokens and logits from an engine file; its tokenizer alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/cli/cli_process.h"
#include "runtime/cli/cli_args.h"
#include "runtime/cli/cli_generate.h"
#include "runtime/cli/cli_tokenize.h"

enum { DEFAULT_NEW_TOKENS = 128, MOST_THREADS = 256 };

static const char help[] =
    "usage: engrun FILE (-p TEXT | --tokens LIST | < TEXT) [flags]\n"
    "       engrun FILE --chat [-p TEXT] [flags]\n"
    "       engrun FILE --selftest\n"
    "       engrun (FILE | tokenizer.json) --tokenize | --detokenize\n"
    "\n"
    "Continues a prompt with the engine FILE, made by engbuild, and prints the text as it is generated.\n"
    "Always takes the likeliest token unless --temperature or --recommended says otherwise.\n"
    "\n"
    "prompt:\n"
    "  -p, --prompt TEXT         the prompt; without it and --tokens, all of stdin (less one newline at\n"
    "                            its end); a terminal shows it before the continuation, a pipe or file\n"
    "                            gets the latter alone\n"
    "      --tokens LIST         token ids separated by commas, used exactly as given\n"
    "      --chat                the prompt is a user's message; without -p, every line of stdin is one; at\n"
    "                            a terminal Ctrl-C ends an answer, Ctrl-D the chat\n"
    "      --system TEXT         with --chat: the system message\n"
    "      --special-tokens HOW  special tokens in the text of the prompt, such as <|end|>: 'parse' recognises\n"
    "                            them (the default; the author of the prompt can then end a turn or begin\n"
    "                            one), 'text' does not (the default with --chat)\n"
    "answer:\n"
    "  -n, --count N             at most N tokens (128; with --chat 0); 0: until an end token or the end\n"
    "                            of the context\n"
    "      --ignore-eos          end tokens do not end the answer\n"
    "      --temperature T       0 (the default): always the likeliest token; above: draw one\n"
    "      --top-k K             draw from the K likeliest tokens; 0: all\n"
    "      --top-p P             draw from the likeliest tokens whose probabilities sum up to P; 1: all\n"
    "      --repetition-penalty R  makes tokens that occurred less likely; 1: none\n"
    "      --recommended         use the checkpoint's generation_config.json for those of these four that\n"
    "                            are not given\n"
    "      --seed S              the same seed draws the same text; default: a random one, which is printed\n"
    "                            on stderr\n"
    "output:\n"
    "      --print-tokens        the generated ids, separated by spaces, instead of text\n"
    "      --keep-special        special tokens appear in the text\n"
    "      --logits FILE.npy     float32 [tokens, vocabulary]: the logits of each token\n"
    "      --timing, --verbose   speed and time to the first token, on stderr\n"
    "      --quiet               no notes on stderr\n"
    "machine:\n"
    "      --threads N           0 (the default): one per processor\n"
    "      --isa NAME            instructions: portable, avx2, avx512 or avx512bf16 instead of the best\n"
    "      --private-weights     engines for processors: copy the weights into memory of this process; the\n"
    "                            file may then be overwritten\n"
    "      --no-libraries        engines for GPUs: use only the engine's own kernels and load no library but\n"
    "                            the driver; starts faster, some steps take longer\n"
    "      --no-jit              do not compile patterns of the tokenizer to machine code: for untrusted\n"
    "                            engines, and where executable memory is forbidden\n"
    "      --device LIST         number of the GPU (0); for an engine for several GPUs the numbers of all,\n"
    "                            or the first\n"
    "      --no-peer-access      GPUs exchange data through host memory even if they can access each\n"
    "                            other's memory\n"
    "      --launched            this is one of several processes, started by torchrun or mpirun with the\n"
    "                            same arguments on one machine or more, that share the engine's GPUs; only\n"
    "                            the first one prints\n"
    "      --address HOST:PORT   with --launched: where the first process listens, instead of the address\n"
    "                            from the environment\n"
    "other work:\n"
    "      --selftest            run every plan and compare tokens and logits with the engine's golden outputs\n"
    "      --tokenize            each line of stdin, a JSON string, becomes a JSON array of ids\n"
    "      --add-special         with --tokenize: add the tokens the tokenizer puts around a text\n"
    "      --detokenize          each line of stdin, a JSON array of ids, becomes a JSON string\n"
    "      --skip-special        with --detokenize: leave special tokens out\n"
    "  -h, --help, --version\n"
    "\n" CLI_EXIT_CODES ", 130 interrupted\n";

enum flag {
    FLAG_TOKENS = 256,
    FLAG_CHAT,
    FLAG_SYSTEM,
    FLAG_SPECIAL_TOKENS,
    FLAG_IGNORE_EOS,
    FLAG_TEMPERATURE,
    FLAG_TOP_K,
    FLAG_TOP_P,
    FLAG_REPETITION_PENALTY,
    FLAG_RECOMMENDED,
    FLAG_SEED,
    FLAG_PRINT_TOKENS,
    FLAG_KEEP_SPECIAL,
    FLAG_LOGITS,
    FLAG_TIMING,
    FLAG_QUIET,
    FLAG_THREADS,
    FLAG_ISA,
    FLAG_DEVICE,
    FLAG_NO_PEER_ACCESS,
    FLAG_LAUNCHED,
    FLAG_ADDRESS,
    FLAG_PRIVATE_WEIGHTS,
    FLAG_NO_LIBRARIES,
    FLAG_NO_JIT,
    FLAG_SELFTEST,
    FLAG_TOKENIZE,
    FLAG_ADD_SPECIAL,
    FLAG_DETOKENIZE,
    FLAG_SKIP_SPECIAL,
    FLAG_VERSION,
};

static const struct option long_flags[] = {
    {"prompt", required_argument, NULL, 'p'},
    {"count", required_argument, NULL, 'n'},
    {"tokens", required_argument, NULL, FLAG_TOKENS},
    {"chat", no_argument, NULL, FLAG_CHAT},
    {"system", required_argument, NULL, FLAG_SYSTEM},
    {"special-tokens", required_argument, NULL, FLAG_SPECIAL_TOKENS},
    {"ignore-eos", no_argument, NULL, FLAG_IGNORE_EOS},
    {"temperature", required_argument, NULL, FLAG_TEMPERATURE},
    {"top-k", required_argument, NULL, FLAG_TOP_K},
    {"top-p", required_argument, NULL, FLAG_TOP_P},
    {"repetition-penalty", required_argument, NULL, FLAG_REPETITION_PENALTY},
    {"recommended", no_argument, NULL, FLAG_RECOMMENDED},
    {"seed", required_argument, NULL, FLAG_SEED},
    {"print-tokens", no_argument, NULL, FLAG_PRINT_TOKENS},
    {"keep-special", no_argument, NULL, FLAG_KEEP_SPECIAL},
    {"logits", required_argument, NULL, FLAG_LOGITS},
    {"timing", no_argument, NULL, FLAG_TIMING},
    {"verbose", no_argument, NULL, FLAG_TIMING},
    {"quiet", no_argument, NULL, FLAG_QUIET},
    {"threads", required_argument, NULL, FLAG_THREADS},
    {"isa", required_argument, NULL, FLAG_ISA},
    {"device", required_argument, NULL, FLAG_DEVICE},
    {"no-peer-access", no_argument, NULL, FLAG_NO_PEER_ACCESS},
    {"launched", no_argument, NULL, FLAG_LAUNCHED},
    {"address", required_argument, NULL, FLAG_ADDRESS},
    {"private-weights", no_argument, NULL, FLAG_PRIVATE_WEIGHTS},
    {"no-libraries", no_argument, NULL, FLAG_NO_LIBRARIES},
    {"no-jit", no_argument, NULL, FLAG_NO_JIT},
    {"selftest", no_argument, NULL, FLAG_SELFTEST},
    {"tokenize", no_argument, NULL, FLAG_TOKENIZE},
    {"add-special", no_argument, NULL, FLAG_ADD_SPECIAL},
    {"detokenize", no_argument, NULL, FLAG_DETOKENIZE},
    {"skip-special", no_argument, NULL, FLAG_SKIP_SPECIAL},
    {"version", no_argument, NULL, FLAG_VERSION},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

struct arguments {
    struct generate_options generate;
    struct tokenize_options tokenize;
    uint64_t *tokens; /* owned */
    bool do_tokenize, selftest, count_given;
    const char *special_tokens; /* "parse" or "text"; NULL: not given */
    bool finished;              /* --help or --version was printed */
};

/* Reads one flag that has a number; false after a message. */
static bool read_value(struct arguments *arguments, int flag)
{
    struct generate_options *generate = &arguments->generate;
    uint64_t number;
    switch (flag) {
    case 'n':
        if (!cli_read_number("-n", optarg, 0, INT32_MAX, &number)) return false;
        generate->max_new_tokens = (uint32_t)number;
        arguments->count_given = true;
        return true;
    case FLAG_TOKENS:
        free(arguments->tokens);
        arguments->tokens = NULL;
        if (!cli_read_list("--tokens", optarg, 0, INT32_MAX, &arguments->tokens, &generate->token_count)) return false;
        generate->tokens = arguments->tokens;
        return true;
    case FLAG_TEMPERATURE: return cli_read_real("--temperature", optarg, 0, 1e6, &generate->temperature);
    case FLAG_TOP_K:
        if (!cli_read_number("--top-k", optarg, 0, INT32_MAX, &number)) return false;
        generate->top_k = (int64_t)number;
        return true;
    case FLAG_TOP_P:
        if (!cli_read_real("--top-p", optarg, 0, 1, &generate->top_p)) return false;
        if (generate->top_p > 0) return true;
        cli_usage("--top-p: expected a number above 0 and at most 1, found '%s'", optarg);
        return false;
    case FLAG_REPETITION_PENALTY:
        if (!cli_read_real("--repetition-penalty", optarg, 0, 1e6, &generate->repetition_penalty)) return false;
        if (generate->repetition_penalty > 0) return true;
        cli_usage("--repetition-penalty: expected a number above 0, found '%s'", optarg);
        return false;
    case FLAG_DEVICE:
        if (!cli_read_devices(optarg, &generate->devices)) return false;
        return true;
    case FLAG_NO_PEER_ACCESS: generate->devices.no_peer_access = true; return true;
    case FLAG_LAUNCHED: generate->devices.launched = true; return true;
    case FLAG_ADDRESS: generate->devices.address = optarg; return true;
    case FLAG_SPECIAL_TOKENS:
        arguments->special_tokens = optarg;
        if (!strcmp(optarg, "parse") || !strcmp(optarg, "text")) return true;
        cli_usage("--special-tokens: expected 'parse' or 'text', found '%s'", optarg);
        return false;
    case FLAG_PRIVATE_WEIGHTS: generate->devices.private_weights = true; return true;
    case FLAG_NO_LIBRARIES: generate->devices.no_libraries = true; return true;
    case FLAG_SEED:
        generate->seed_given = true;
        return cli_read_number("--seed", optarg, 0, UINT64_MAX, &generate->seed);
    default: /* FLAG_THREADS */
        if (!cli_read_number("--threads", optarg, 0, MOST_THREADS, &number)) return false;
        generate->session.threads = (uint32_t)number;
        return true;
    }
}

/* Flags that have no effect with the selected work are refused, since the user expects one. */
static int check_combination(const struct arguments *arguments)
{
    const struct generate_options *generate = &arguments->generate;
    bool text_work = arguments->do_tokenize || arguments->tokenize.detokenize;
    if (arguments->do_tokenize && arguments->tokenize.detokenize)
        return cli_usage("expected one of --tokenize and --detokenize, found both");
    if (text_work && arguments->selftest) return cli_usage("--selftest: not with --tokenize or --detokenize");
    bool has_prompt = generate->prompt || generate->tokens || generate->chat;
    if ((text_work || arguments->selftest) && (has_prompt || generate->logits_path || generate->print_tokens))
        return cli_usage("-p, --tokens, --chat, --logits and --print-tokens: not with --selftest, --tokenize or "
                         "--detokenize");
    if (generate->devices.launched && (generate->chat || !(has_prompt || arguments->selftest)))
        return cli_usage("--launched: expected -p, --tokens or --selftest, since processes share no stdin");
    if (generate->devices.address && !generate->devices.launched) return cli_usage("--address: only with --launched");
    if (generate->prompt && generate->tokens) return cli_usage("expected one of -p and --tokens, found both");
    if (generate->chat && generate->tokens) return cli_usage("--chat: not with --tokens");
    if (generate->system && !generate->chat) return cli_usage("--system: only with --chat");
    if (arguments->special_tokens && (generate->tokens || arguments->selftest || arguments->tokenize.detokenize))
        return cli_usage("--special-tokens: not with --tokens, --selftest or --detokenize, which read no text");
    if (arguments->tokenize.add_special && !arguments->do_tokenize)
        return cli_usage("--add-special: only with --tokenize");
    if (arguments->tokenize.skip_special && !arguments->tokenize.detokenize)
        return cli_usage("--skip-special: only with --detokenize");
    return CLI_DONE;
}

static int read_flag(struct arguments *arguments, int flag, char **argv)
{
    struct generate_options *generate = &arguments->generate;
    switch (flag) {
    case 'p': generate->prompt = optarg; break;
    case FLAG_SYSTEM: generate->system = optarg; break;
    case FLAG_LOGITS: generate->logits_path = optarg; break;
    case FLAG_ISA: generate->session.instruction_set = optarg; break;
    case FLAG_CHAT: generate->chat = true; break;
    case FLAG_IGNORE_EOS: generate->ignore_eos = true; break;
    case FLAG_RECOMMENDED: generate->recommended = true; break;
    case FLAG_PRINT_TOKENS: generate->print_tokens = true; break;
    case FLAG_KEEP_SPECIAL: generate->keep_special = true; break;
    case FLAG_TIMING: generate->timing = true; break;
    case FLAG_QUIET: generate->quiet = true; break;
    case FLAG_NO_JIT: generate->devices.no_jit = arguments->tokenize.no_jit = true; break;
    case FLAG_SELFTEST: arguments->selftest = true; break;
    case FLAG_TOKENIZE: arguments->do_tokenize = true; break;
    case FLAG_ADD_SPECIAL: arguments->tokenize.add_special = true; break;
    case FLAG_DETOKENIZE: arguments->tokenize.detokenize = true; break;
    case FLAG_SKIP_SPECIAL: arguments->tokenize.skip_special = true; break;
    case 'h':
        fputs(help, stdout);
        arguments->finished = true;
        break;
    case FLAG_VERSION:
        printf("engrun %s\n", eng_version());
        arguments->finished = true;
        break;
    case '?':
    case ':': return cli_bad_flag(flag, argv);
    default: return read_value(arguments, flag) ? CLI_DONE : cli_value_code();
    }
    return CLI_DONE;
}

static int read_arguments(int argc, char **argv, struct arguments *arguments)
{
    struct generate_options *generate = &arguments->generate;
    generate->temperature = generate->top_p = generate->repetition_penalty = -1;
    generate->top_k = -1;
    eng_session_options_init(&generate->session);
    generate->session.max_sequences = 1;
    opterr = 0;
    int flag;
    while ((flag = getopt_long(argc, argv, ":hp:n:", long_flags, NULL)) != -1) {
        int code = read_flag(arguments, flag, argv);
        if (code || arguments->finished) return code;
    }
    if (argc - optind != 1)
        return cli_usage(argc == optind ? "expected an engine file, found none"
                                        : "expected one engine file, found '%s' and '%s'",
                         argv[optind], argv[optind + (argc > optind)]);
    generate->path = arguments->tokenize.path = argv[optind];
    generate->plain = arguments->special_tokens ? !strcmp(arguments->special_tokens, "text") : generate->chat;
    arguments->tokenize.plain = generate->plain;
    if (!arguments->count_given) generate->max_new_tokens = generate->chat ? 0 : DEFAULT_NEW_TOKENS;
    return check_combination(arguments);
}

int main(int argc, char **argv)
{
    cli_begin("engrun");
    cli_catch_signals();
    struct arguments arguments = {0};
    struct status status;
    status_clear(&status);
    int code = read_arguments(argc, argv, &arguments);
    if (code || arguments.finished) {
        if (!code && !cli_flush(&status)) code = cli_fail_status(&status);
    } else if (arguments.do_tokenize || arguments.tokenize.detokenize) {
        code = tokenize_lines(&arguments.tokenize);
    } else if (arguments.selftest) {
        code = generate_selftest(&arguments.generate);
    } else {
        code = generate(&arguments.generate);
    }
    free(arguments.tokens);
    return cli_end(code);
}
