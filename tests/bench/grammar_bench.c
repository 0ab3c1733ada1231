/* SPDX-License-Identifier: Apache-2.0 */
/* Times of token masks for grammars of JSON Schemas.
 *
 *   grammar_bench TOKENIZER [ROUNDS [SEED [SCHEMAS OUTPUTS]]]
 *
 * TOKENIZER is a tokenizer.json with the byte-level alphabet of GPT-2 (Llama 3, Qwen). For each schema a matcher follows ROUNDS random
 * outputs (default 20) and fills the mask of each step. Prints compile time and size, and the times of masks in microseconds: median,
 * 99th percentile and worst, of the first output, with empty caches, and of all; all are processor time.
 *
 * With SCHEMAS, a file with a schema in each line, those are measured instead, and the file OUTPUTS gets a line for each output that came
 * to its end, "NUMBER output TEXT" with the number of the schema's line from 0 on, and one for each schema that is refused, "NUMBER refused
 * MESSAGE". tests/bench/schema_bench.py makes such schemas and checks the outputs. Exit code: 0; 1: bad input; 2: usage. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/base/file.h"
#include "formats/grammar/grammar.h"
#include "formats/tokenizer/tokenizer.h"
#include "formats/tokenizer/tokenizer_text.h"

enum { MOST_STEPS = 400, RUN_ON = 60, MOST_ROUNDS = 1000, MOST_OUTPUT_BYTES = 1 << 16 };

static const struct {
    const char *name, *schema;
} schemas[] = {
    {"any", "{}"},
    {"object", "{\"type\":\"object\"}"},
    {"string", "{\"type\":\"string\"}"},
    {"length", "{\"type\":\"string\",\"minLength\":10,\"maxLength\":500}"},
    {"number", "{\"type\":\"number\"}"},
    {"range", "{\"type\":\"integer\",\"minimum\":1,\"maximum\":65535}"},
    {"fraction", "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}"},
    {"enum", "{\"enum\":[\"positive\",\"negative\",\"neutral\",\"mixed\",\"unknown\"]}"},
    {"person",
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0,"
     "\"maximum\":150},\"email\":{\"type\":\"string\",\"format\":\"email\"}},\"required\":[\"name\",\"age\",\"email\"]"
     "}"},
    {"optional",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\"},\"c\":{\"type\":"
     "\"boolean\"},\"d\":{\"type\":\"null\"},\"e\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}}}"},
    {"list", "{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"minItems\":1,\"maxItems\":20}"},
    {"numbers", "{\"type\":\"array\",\"items\":{\"type\":\"number\"}}"},
    {"steps", "{\"type\":\"object\",\"properties\":{\"steps\":{\"type\":\"array\",\"items\":{\"type\":\"object\","
              "\"properties\":{"
              "\"explanation\":{\"type\":\"string\"},\"output\":{\"type\":\"string\"}},\"required\":[\"explanation\","
              "\"output\"],"
              "\"additionalProperties\":false}},\"final_answer\":{\"type\":\"string\"}},\"required\":[\"steps\","
              "\"final_answer\"],"
              "\"additionalProperties\":false}"},
    {"tree",
     "{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"value\":{\"type\":\"string\"},\"children\":{\"type\":"
     "\"array\",\"items\":{\"$ref\":\"#/$defs/node\"}}},\"required\":[\"value\",\"children\"]}},\"$ref\":\"#/$defs/"
     "node\"}"},
    {"linked", "{\"type\":\"object\",\"properties\":{\"value\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":"
               "\"#\"},{\"type\":"
               "\"null\"}]}},\"required\":[\"value\",\"next\"]}"},
    {"date", "{\"type\":\"string\",\"format\":\"date-time\"}"},
    {"uuid", "{\"type\":\"string\",\"format\":\"uuid\"}"},
    {"pattern", "{\"type\":\"string\",\"pattern\":\"^[A-Z]{2,3}-[0-9]{4,6}(/[a-z]+)*$\"}"},
    {"unanchored", "{\"type\":\"string\",\"pattern\":\"[0-9]{3}\"}"},
    {"union", "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"circle\"},\"radius\":{\"type\":"
              "\"number\"}},"
              "\"required\":[\"kind\",\"radius\"]},{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"label\"},"
              "\"text\":{\"type\":"
              "\"string\"}},\"required\":[\"kind\",\"text\"]},{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}]}"},
    {"additional", "{\"type\":\"object\",\"properties\":{\"id\":{\"type\":\"integer\"},\"identity\":{\"type\":"
                   "\"string\"}},\"required\":"
                   "[\"id\"],\"additionalProperties\":{\"type\":\"string\"}}"},
    {"tool", "{\"type\":\"object\",\"properties\":{\"tool\":{\"enum\":[\"search\",\"fetch\",\"calculate\"]},"
             "\"arguments\":{\"type\":"
             "\"object\"}},\"required\":[\"tool\",\"arguments\"]}"},
    {"matrix", "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":-1000,"
               "\"maximum\":1000},"
               "\"minItems\":3,\"maxItems\":3},\"minItems\":3,\"maxItems\":3}"},
    {"tuple",
     "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\",\"maxLength\":80},{\"type\":\"boolean\"},{\"type\":"
     "[\"number\",\"null\"]}],\"minItems\":3,\"maxItems\":3}"},
};
enum { SCHEMA_COUNT = sizeof schemas / sizeof *schemas };

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

struct times {
    double *values;
    size_t count, capacity;
};

static bool add_time(struct times *times, double value)
{
    if (times->count == times->capacity) {
        const size_t capacity = times->capacity ? times->capacity * 2 : 1024;
        double *values = realloc(times->values, capacity * sizeof *values);
        if (!values) return false;
        times->values = values;
        times->capacity = capacity;
    }
    times->values[times->count++] = value;
    return true;
}

static void print_times(struct times *times)
{
    if (times->count == 0) return;
    qsort(times->values, times->count, sizeof *times->values, compare);
    printf(" %8.1f %8.1f %8.1f", times->values[times->count / 2], times->values[times->count * 99 / 100],
           times->values[times->count - 1]);
}

/* The tokens' bytes: each character of the vocabulary stands for a byte. */
static struct grammar_token *read_tokens(const struct tokenizer *tokenizer, uint32_t *count, char **bytes)
{
    uint16_t alphabet[256];
    uint8_t byte_of[0x144] = {0};
    size_t total = 0, used = 0;
    tokenizer_byte_alphabet(alphabet);
    for (int i = 0; i < 256; i++) byte_of[alphabet[i]] = (uint8_t)i;
    *count = tokenizer_vocab_size(tokenizer);
    for (uint32_t id = 0; id < *count; id++) {
        const char *text;
        size_t size;
        if (tokenizer_token_text(tokenizer, (int32_t)id, &text, &size)) total += size;
    }
    struct grammar_token *tokens = calloc(*count, sizeof *tokens);
    *bytes = malloc(total + 1);
    if (!tokens || !*bytes) {
        free(tokens);
        return NULL;
    }
    bool has_end = false;
    for (uint32_t id = 0; id < *count; id++) {
        const char *text;
        size_t size;
        tokens[id].kind = GRAMMAR_TOKEN_SPECIAL;
        if (!tokenizer_token_text(tokenizer, (int32_t)id, &text, &size)) continue;
        if (tokenizer_is_special(tokenizer, (int32_t)id)) {
            if (!has_end) tokens[id].kind = GRAMMAR_TOKEN_END;
            has_end = true;
            continue;
        }
        tokens[id] = (struct grammar_token){.bytes = *bytes + used, .kind = GRAMMAR_TOKEN_TEXT};
        for (size_t at = 0; at < size;) {
            uint32_t character;
            at += text_read(text + at, &character);
            if (character >= 0x144) break;
            (*bytes)[used++] = (char)byte_of[character];
            tokens[id].size++;
        }
    }
    return tokens;
}

/* A random token of the mask; `finish`: one that leads to an end, if there is one. */
static uint32_t choose(const struct grammar_token *tokens, uint32_t count, const uint32_t *mask, uint64_t *random,
                       bool finish, const uint32_t *soon, uint32_t soon_count)
{
    for (uint32_t i = 0; finish && i < soon_count && next_random(random) % 8; i++)
        if (mask[soon[i] / 32] >> soon[i] % 32 & 1) return soon[i];
    const uint32_t words = (count + 31) / 32, start = (uint32_t)(next_random(random) % words);
    for (uint32_t i = 0; i < words; i++) {
        const uint32_t at = (start + i) % words;
        if (mask[at] == 0) continue;
        uint32_t left = mask[at], skip = (uint32_t)(next_random(random) % (uint32_t)__builtin_popcount(left));
        while (skip-- > 0) left &= left - 1;
        return at * 32 + (uint32_t)__builtin_ctz(left);
    }
    (void)tokens;
    return 0;
}

struct bench {
    struct grammar_token *tokens;
    struct grammar_vocabulary *vocabulary;
    uint32_t count, soon[8], soon_count;
    uint32_t *mask;
    struct times first, all;
    char output[MOST_OUTPUT_BYTES];
    FILE *outputs; /* NULL: none are written */
};

/* One random output of schema `number`. */
static bool follow(struct bench *bench, struct grammar_matcher *matcher, size_t number, uint64_t *random,
                   struct times *times, struct status *status)
{
    struct grammar_state state;
    size_t size = 0;
    if (!grammar_begin(matcher, &state, status)) return false;
    for (int step = 0; step < MOST_STEPS; step++) {
        const double start = now_us();
        if (!grammar_fill_mask(matcher, &state, bench->mask, status)) return false;
        const double time = now_us() - start;
        if (!add_time(times, time) || (times == &bench->first && !add_time(&bench->all, time))) return false;
        const uint32_t id =
            choose(bench->tokens, bench->count, bench->mask, random, step >= RUN_ON, bench->soon, bench->soon_count);
        const struct grammar_token *token = &bench->tokens[id];
        if (token->kind == GRAMMAR_TOKEN_END) {
            if (bench->outputs) fprintf(bench->outputs, "%zu output %.*s\n", number, (int)size, bench->output);
            return true;
        }
        if (!grammar_accept_bytes(matcher, &state, token->bytes, token->size, status)) return false;
        if (size + token->size > sizeof bench->output) return true;
        memcpy(bench->output + size, token->bytes, token->size);
        size += token->size;
    }
    return true;
}

/* name: "": no line is printed for the schema. */
static bool measure(struct bench *bench, const char *name, const char *schema, size_t number, long rounds,
                    uint64_t *random, struct status *status)
{
    const double start = now_us();
    struct grammar *grammar = grammar_schema_open(schema, strlen(schema), NULL, status);
    if (!grammar && bench->outputs) {
        fprintf(bench->outputs, "%zu refused %s\n", number, status->message);
        *status = (struct status){0};
        return true;
    }
    if (!grammar) return false;
    const double compiled = now_us() - start;
    struct grammar_matcher *matcher = grammar_matcher_open(grammar, bench->vocabulary, status);
    struct times own = {0};
    bool done = matcher != NULL;
    const size_t first = bench->first.count;
    for (long round = 0; done && round < rounds; round++)
        done = follow(bench, matcher, number, random, round ? &own : &bench->first, status);
    for (size_t i = 0; done && i < own.count; i++) done = add_time(&bench->all, own.values[i]);
    for (size_t i = first; done && i < bench->first.count; i++) done = add_time(&own, bench->first.values[i]);
    if (done && *name) {
        printf("%-12s %9.0f %8" PRIu64 " %6zu", name, compiled, grammar_bytes(grammar), own.count);
        print_times(&own);
        printf("\n");
    }
    free(own.values);
    grammar_matcher_close(matcher);
    grammar_close(grammar);
    return done;
}

/* All schemas of a file. */
static bool measure_file(struct bench *bench, const char *path, long rounds, uint64_t *random, struct status *status)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t capacity = 0, number = 0;
    if (!file) return status_fail(status, STATUS_MACHINE, "%s: cannot be opened", path);
    bool done = true;
    for (ssize_t size; done && (size = getline(&line, &capacity, file)) > 0; number++) {
        if (line[size - 1] == '\n') line[size - 1] = 0;
        done = measure(bench, "", line, number, rounds, random, status);
    }
    free(line);
    fclose(file);
    return done;
}

static void find_soon(struct bench *bench)
{
    static const char soon[] = "\"}]n0";
    for (uint32_t id = 0; id < bench->count && bench->soon_count == 0; id++)
        if (bench->tokens[id].kind == GRAMMAR_TOKEN_END) bench->soon[bench->soon_count++] = id;
    for (const char *c = soon; *c; c++)
        for (uint32_t id = 0; id < bench->count; id++)
            if (bench->tokens[id].kind == GRAMMAR_TOKEN_TEXT && bench->tokens[id].size == 1 &&
                bench->tokens[id].bytes[0] == *c)
                bench->soon[bench->soon_count++] = id;
}

int main(int count, char **arguments)
{
    struct status status = {0};
    struct file_map map = {0};
    static struct bench bench;
    uint8_t *image = NULL;
    size_t image_size = 0;
    char *bytes = NULL;
    struct tokenizer *tokenizer = NULL;
    const long rounds = count > 2 ? strtol(arguments[2], NULL, 10) : 20;
    uint64_t random = count > 3 ? strtoull(arguments[3], NULL, 10) : 1;
    int result = 1;
    if (count < 2 || count == 5 || count > 6 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: grammar_bench TOKENIZER [ROUNDS (1 to %d) [SEED [SCHEMAS OUTPUTS]]]\n", MOST_ROUNDS);
        return 2;
    }
    if (!file_map_open(&map, arguments[1], &status) ||
        !tokenizer_import((const char *)map.data, map.size, arguments[1], &image, &image_size, &status))
        goto done;
    tokenizer = tokenizer_open(image, image_size, true, &status);
    if (!tokenizer) goto done;
    bench.tokens = read_tokens(tokenizer, &bench.count, &bytes);
    bench.mask = calloc(bench.count / 32 + 1, sizeof *bench.mask);
    if (!bench.tokens || !bench.mask) goto done;
    const double start = now_us();
    bench.vocabulary = grammar_vocabulary_open(bench.tokens, bench.count, &status);
    if (!bench.vocabulary) goto done;
    printf("%u tokens, prefix tree of %.1f MB made in %.0f ms\n", bench.count,
           (double)grammar_vocabulary_bytes(bench.vocabulary) / 1e6, (now_us() - start) / 1e3);
    printf("%-12s %9s %8s %6s %8s %8s %8s\n", "schema", "compile", "bytes", "masks", "p50", "p99", "worst");
    find_soon(&bench);
    if (count == 6) {
        bench.outputs = fopen(arguments[5], "w");
        if (!bench.outputs) status_fail(&status, STATUS_MACHINE, "%s: cannot be written", arguments[5]);
        result = !bench.outputs || !measure_file(&bench, arguments[4], rounds, &random, &status);
    } else {
        result = 0;
        for (size_t i = 0; i < SCHEMA_COUNT && result == 0; i++)
            result = !measure(&bench, schemas[i].name, schemas[i].schema, i, rounds, &random, &status);
    }
    if (result == 0) {
        printf("%-12s %9s %8s %6zu", "first output", "", "", bench.first.count);
        print_times(&bench.first);
        printf("\n%-12s %9s %8s %6zu", "all", "", "", bench.all.count);
        print_times(&bench.all);
        printf("\n");
    }
done:
    if (bench.outputs && fclose(bench.outputs)) result = 1;
    if (result) fprintf(stderr, "grammar_bench: %s\n", status.message[0] ? status.message : "out of memory");
    grammar_vocabulary_close(bench.vocabulary);
    free(bench.first.values);
    free(bench.all.values);
    free(bench.tokens);
    free(bench.mask);
    free(bytes);
    tokenizer_close(tokenizer);
    free(image);
    file_map_close(&map);
    return result;
}
