/* SPDX-License-Identifier: Apache-2.0 */
/* eng_tokenize of untrusted text, impossible counts, and patterns without machine code. */
#include "formats/base/test_support.h"
#include "formats/base/test_program.h"
#include "tests/test_fables.h"

enum { MOST_TOKENS = 128 };

/* Anonymous executable memory of this process, in bytes. */
static uint64_t executable_bytes(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    uint64_t total = 0;
    assert_non_null(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long begin, end, inode;
        char rights[8];
        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu", &begin, &end, rights, &inode) == 4 && rights[2] == 'x' &&
            inode == 0 && !strchr(line, '['))
            total += end - begin;
    }
    fclose(maps);
    return total;
}

/* The first engine of this program, since machine code of an earlier one may remain. */
TEST(test_without_machine_code)
{
    struct eng_open_options options;
    struct eng_engine *engine = NULL, *fast;
    static const char text[] = "Once upon a time, there were 12 foxes;  who didn't\n\nspeak.";
    int32_t slow_tokens[MOST_TOKENS], tokens[MOST_TOKENS];
    size_t slow_count, count;
    uint64_t before = executable_bytes();
    eng_open_options_init(&options);
    options.no_jit = 1;
    CHECK(eng_open(fables_path(), &options, &engine, &error));
    CHECK(eng_tokenize(engine, text, strlen(text), 0, slow_tokens, MOST_TOKENS, &slow_count, &error));
    assert_int_equal(executable_bytes(), before);
    fast = fables_open();
    CHECK(eng_tokenize(fast, text, strlen(text), 0, tokens, MOST_TOKENS, &count, &error));
    if (executable_bytes() == before) print_message("this machine allows no machine code at run time\n");
    assert_int_equal(count, slow_count);
    assert_memory_equal(tokens, slow_tokens, count * sizeof *tokens);
    eng_close(&engine);
    eng_close(&fast);
}

TEST(test_plain)
{
    static const char text[] = "One<|end|>two<|begin|>";
    struct eng_engine *engine = fables_open();
    int32_t tokens[MOST_TOKENS];
    size_t count, size;
    char back[64];
    struct eng_engine_facts facts;
    eng_engine_facts_init(&facts);
    CHECK(eng_engine_get_facts(engine, &facts, &error));
    int32_t bos = facts.bos_token;
    size_t found[3] = {0};
    const uint32_t flags[3] = {0, ENG_TEXT_PLAIN, ENG_TEXT_PLAIN | ENG_TEXT_ADD_SPECIAL};
    for (size_t f = 0; f < 3; f++) {
        CHECK(eng_tokenize(engine, text, strlen(text), flags[f], tokens, MOST_TOKENS, &count, &error));
        for (size_t i = 0; i < count; i++) found[f] += tokens[i] == bos;
        size_t first = f == 2 ? 1 : 0; /* added by the tokenizer before the text */
        if (f > 0) assert_true(tokens[0] == bos || f == 1);
        CHECK(eng_detokenize(engine, tokens + first, count - first, ENG_TEXT_KEEP_SPECIAL, back, sizeof back, &size,
                             &error));
        assert_string_equal(back, text);
    }
    assert_int_equal(found[0], 1);
    assert_int_equal(found[1], 0);
    assert_int_equal(found[2], 1);
    /* detokenize treats plain characters as text, too */
    CHECK(eng_tokenize(engine, text, strlen(text), ENG_TEXT_PLAIN, tokens, MOST_TOKENS, &count, &error));
    CHECK(eng_detokenize(engine, tokens, count, 0, back, sizeof back, &size, &error));
    assert_string_equal(back, text);
    assert_int_equal(eng_tokenize(engine, text, strlen(text), ENG_TEXT_KEEP_SPECIAL, tokens, MOST_TOKENS, &count,
                                  &error),
                     ENG_USAGE);
    eng_close(&engine);
}

/* A count whose bytes exceed memory: no token is read. */
TEST(test_impossible_count)
{
    struct eng_engine *engine = fables_open();
    static const size_t counts[] = {SIZE_MAX, SIZE_MAX / 4 + 1, SIZE_MAX / 4 + 2, PTRDIFF_MAX / 4 + 1};
    const int32_t token = 5;
    char text[64];
    size_t size = 7;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        assert_int_equal(eng_detokenize(engine, &token, counts[i], 0, text, sizeof text, &size, &error), ENG_USAGE);
        char number[32];
        snprintf(number, sizeof number, "%zu", counts[i]);
        assert_non_null(strstr(error.message, number));
        assert_non_null(strstr(error.message, "expected at most"));
    }
    eng_close(&engine);
}

/* The text of a stream with stop strings, whose finish comes after the last token or after a stop. */
static int32_t stream_text(struct eng_text *stream, const int32_t *tokens, size_t count, char *out)
{
    const char *piece;
    size_t size, used = 0;
    int32_t stopped = -1;
    for (size_t i = 0; i < count; i++) {
        CHECK(eng_text_push(stream, tokens[i], &piece, &size, &error));
        assert_int_equal(strlen(piece), size);
        assert_true(size == 0 || ((unsigned char)piece[0] & 0xc0) != 0x80); /* begins a character */
        if (stopped >= 0) assert_int_equal(size, 0);
        memcpy(out + used, piece, size);
        used += size;
        stopped = eng_text_stopped(stream);
    }
    CHECK(eng_text_finish(stream, &piece, &size, &error));
    assert_int_equal(strlen(piece), size);
    memcpy(out + used, piece, size + 1);
    assert_int_equal(eng_text_stopped(stream), -1); /* a new text */
    return stopped;
}

TEST(test_stop_strings)
{
    static const char text[] = "Once upon a time, the fox said: caf\xc3\xa9! And then it went home.";
    static const struct {
        const char *stops[3];
        size_t count;
        int32_t stopped;
        size_t size; /* of the text before it */
    } cases[] = {
        {{NULL}, 0, -1, sizeof text - 1},
        {{"nowhere", "home.x"}, 2, -1, sizeof text - 1},
        {{"On"}, 1, 0, 0},
        {{"went", "ime, the f", "fox"}, 3, 1, 13},
        {{"\xc3\xa9! A"}, 1, 0, 35},
        {{"home."}, 1, 0, sizeof text - 1 - 5},
    };
    struct eng_engine *engine = fables_open();
    struct eng_text *stream = NULL;
    int32_t tokens[MOST_TOKENS];
    size_t count;
    char out[256];
    CHECK(eng_tokenize(engine, text, strlen(text), 0, tokens, MOST_TOKENS, &count, &error));
    CHECK(eng_text_create(engine, 0, &stream, &error));
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            CHECK(eng_text_set_stops(stream, cases[i].stops, cases[i].count, &error));
            assert_int_equal(stream_text(stream, tokens, count, out), cases[i].stopped);
            assert_int_equal(strlen(out), cases[i].size);
            assert_memory_equal(out, text, cases[i].size);
            /* The same stop strings hold for the next text. */
            assert_int_equal(stream_text(stream, tokens, count, out), cases[i].stopped);
        }
    eng_text_destroy(&stream);
    eng_close(&engine);
}

TEST(test_stop_strings_are_checked)
{
    static char long_one[ENG_MAX_STOP_BYTES + 2];
    const char *stops[ENG_MAX_STOP_STRINGS + 1], *piece;
    struct eng_engine *engine = fables_open();
    struct eng_text *stream = NULL;
    int32_t tokens[MOST_TOKENS];
    size_t count, size;
    CHECK(eng_text_create(engine, 0, &stream, &error));
    for (int i = 0; i <= ENG_MAX_STOP_STRINGS; i++) stops[i] = "stop";
    assert_int_equal(eng_text_set_stops(NULL, stops, 1, &error), ENG_USAGE);
    assert_int_equal(eng_text_set_stops(stream, NULL, 1, &error), ENG_USAGE);
    assert_int_equal(eng_text_set_stops(stream, stops, ENG_MAX_STOP_STRINGS + 1, &error), ENG_USAGE);
    CHECK(eng_text_set_stops(stream, stops, ENG_MAX_STOP_STRINGS, &error));
    memset(long_one, 'x', ENG_MAX_STOP_BYTES + 1);
    const char *const wrong[] = {"", long_one, "\xa9!", NULL};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        stops[1] = wrong[i];
        assert_int_equal(eng_text_set_stops(stream, stops, 2, &error), ENG_USAGE);
    }
    long_one[ENG_MAX_STOP_BYTES] = '\0';
    stops[1] = long_one;
    CHECK(eng_text_set_stops(stream, stops, 2, &error));
    CHECK(eng_tokenize(engine, "the xxxxx", 9, 0, tokens, MOST_TOKENS, &count, &error));
    for (size_t i = 0; i < count; i++) CHECK(eng_text_push(stream, tokens[i], &piece, &size, &error));
    assert_int_equal(eng_text_set_stops(stream, NULL, 0, &error), ENG_USAGE);
    assert_non_null(strstr(error.message, "5 bytes"));
    CHECK(eng_text_finish(stream, &piece, &size, &error));
    assert_string_equal(piece, "xxxxx");
    CHECK(eng_text_set_stops(stream, NULL, 0, &error));
    assert_int_equal(eng_text_stopped(NULL), -1);
    eng_text_destroy(&stream);
    eng_close(&engine);
}

int main(void) { return test_run_with(fables_build, NULL, NULL, fables_remove); }
