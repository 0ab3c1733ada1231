/* SPDX-License-Identifier: Apache-2.0 */
/* Which compiled grammars the server keeps: equal sources share one, those in use stay, the least recently used idle ones
 * go. */
#include "runtime/server/server_grammars.h"

#include <stdio.h>

#include "formats/base/test_program.h"
#include "formats/base/test_support.h"
#include "tests/test_fables.h"

static struct server_grammars *grammars;
static struct server_error failure;

static void make_text(int number, char text[16]) { snprintf(text, 16, "a%d", number); }

/* NULL: refused. */
static struct server_grammar *take_kind(enum eng_grammar_kind kind, char *text)
{
    struct server_grammar *grammar = NULL;
    const struct server_format format = {.field = "guided_regex", .kind = kind, .text = text, .size = strlen(text)};
    failure = (struct server_error){0};
    const bool taken = server_grammars_take(grammars, fables, &format, &grammar, &failure);
    assert_int_equal(taken, grammar != NULL);
    assert_int_equal(taken, failure.http == 0);
    return grammar;
}

static struct server_grammar *take(int number)
{
    char text[16];
    make_text(number, text);
    return take_kind(ENG_GRAMMAR_REGEX, text);
}

/* What was compiled for it, which another compilation at the same time cannot be. */
static const struct eng_grammar *use(int number)
{
    struct server_grammar *grammar = take(number);
    const struct eng_grammar *compiled = server_grammar_compiled(grammar);
    assert_non_null(compiled);
    server_grammars_give_back(grammar);
    return compiled;
}

static void begin(void)
{
    grammars = server_grammars_open();
    assert_non_null(grammars);
}

TEST(test_equal_sources_share)
{
    char regex[] = "a1", list[] = "[\"a\"]";
    begin();
    struct server_grammar *one = take(1), *same = take_kind(ENG_GRAMMAR_REGEX, regex), *two = take(2);
    struct server_grammar *choices = take_kind(ENG_GRAMMAR_CHOICES, list);
    struct server_grammar *expression = take_kind(ENG_GRAMMAR_REGEX, list);
    assert_ptr_equal(one, same);
    assert_ptr_not_equal(one, two);
    assert_ptr_not_equal(choices, expression);
    assert_null(server_grammar_compiled(NULL));
    server_grammars_give_back(NULL);
    server_grammars_give_back(one);
    /* It is still in use. */
    assert_ptr_equal(take(1), same);
    server_grammars_close(&grammars);
    assert_null(grammars);
}

TEST(test_idle_ones_go)
{
    const struct eng_grammar *kept;
    begin();
    struct server_grammar *held = take(0);
    kept = use(1);
    for (int i = 2; i <= SERVER_MOST_IDLE_GRAMMARS; i++) use(i);
    /* Used again, it is younger than number 2, which goes instead. */
    assert_ptr_equal(use(1), kept);
    struct server_grammar *second = take(2);
    server_grammars_give_back(second);
    use(1000);
    assert_ptr_equal(use(1), kept);
    assert_ptr_equal(take(0), held);
    server_grammars_close(&grammars);
}

TEST(test_all_in_use)
{
    static struct server_grammar *held[SERVER_MOST_GRAMMARS];
    begin();
    for (int i = 0; i < SERVER_MOST_GRAMMARS; i++) assert_non_null(held[i] = take(i));
    assert_null(take(SERVER_MOST_GRAMMARS));
    assert_int_equal(failure.http, 429);
    assert_string_equal(failure.param, "guided_regex");
    assert_ptr_equal(take(3), held[3]);
    server_grammars_give_back(held[5]);
    assert_non_null(take(SERVER_MOST_GRAMMARS));
    assert_null(take(5));
    /* Idle ones are limited, also after many were in use. */
    for (int i = 0; i < SERVER_MOST_GRAMMARS; i++)
        if (i != 5) server_grammars_give_back(held[i]);
    assert_non_null(take(5));
    server_grammars_close(&grammars);
}

TEST(test_refused)
{
    char wrong[] = "(?=a)b";
    begin();
    assert_null(take_kind(ENG_GRAMMAR_REGEX, wrong));
    assert_int_equal(failure.http, 400);
    assert_string_equal(failure.param, "guided_regex");
    assert_null(strstr(failure.message, "eng_grammar_create"));
    server_grammars_close(&grammars);
}

int main(void) { return test_run_with(fables_start, NULL, NULL, fables_stop); }
