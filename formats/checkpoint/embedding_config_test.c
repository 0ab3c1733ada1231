/* SPDX-License-Identifier: Apache-2.0 */
/* What modules.json and the configuration of the pooling step say. */
#include "formats/checkpoint/embedding_config.h"

#include <sys/stat.h>

#include "formats/base/test_folder.h"
#include "formats/base/test_program.h"

static struct embedding_config config;
static struct status status;

#define MODULE(kind, path) "{'idx':0,'name':'0','path':'" path "','type':'sentence_transformers.models." kind "'}"
#define MODEL              MODULE("Transformer", "")
#define POOLING            MODULE("Pooling", "1_Pooling")

static void write_modules(const char *text) { test_write_text(in_folder("modules.json"), test_json(text)); }
static void write_pooling(const char *text) { test_write_text(in_folder("1_Pooling/config.json"), test_json(text)); }

static void expect(enum embedding_kind kind, const char *words)
{
    test_expect_success(embedding_config_read(&config, folder, &status), &status);
    if (config.kind == kind && (!words || strstr(config.other, words))) return;
    fail_msg("kind %d, '%s'; expected %d, '%s'", (int)config.kind, config.other, (int)kind, words ? words : "");
}

TEST(kinds)
{
    expect(EMBEDDING_NONE, NULL);
    assert_int_equal(mkdir(in_folder("1_Pooling"), 0700), 0);
    write_modules("[" MODEL "," POOLING "," MODULE("Normalize", "2_Normalize") "]");
    expect(EMBEDDING_OTHER, "1_Pooling/config.json: expected the configuration of the pooling, found no such file");
    static const struct {
        const char *pooling, *words; /* words NULL: of the last token */
    } cases[] = {
        {"{'pooling_mode_lasttoken':true,'pooling_mode_mean_tokens':false,'include_prompt':true}", NULL},
        {"{'pooling_mode':'lasttoken'}", NULL},
        {"{'pooling_mode_mean_tokens':true}", "expected last-token pooling, found mean_tokens"},
        {"{'pooling_mode_lasttoken':true,'pooling_mode_max_tokens':true}", "found max_tokens"},
        {"{'pooling_mode':'mean'}", "found mean"},
        {"{'word_embedding_dimension':8}", "found no pooling mode"},
        {"[]", "found no pooling mode"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_pooling(cases[i].pooling);
        expect(cases[i].words ? EMBEDDING_OTHER : EMBEDDING_LAST_TOKEN, cases[i].words);
    }
    write_pooling("{'pooling_mode_lasttoken':true}");
    write_modules("[" MODEL "," POOLING "]");
    expect(EMBEDDING_LAST_TOKEN, NULL);
    static const struct {
        const char *modules, *words;
    } others[] = {
        {"[" MODEL "," POOLING "," MODULE("Dense", "2_Dense") "]", "expected Normalize, found Dense"},
        {"[" MODEL "," POOLING "," MODULE("Normalize", "2") "," MODULE("Dense", "3") "]", "no module after Normalize"},
        {"[" MODEL "]", "fewer modules"},
        {"[]", "fewer modules"},
        {"[" MODEL "," MODULE("\\u001b[2J", "1") "]", "expected Pooling, found  [2J"},
        {"[1," POOLING "]", "expected Transformer, found nothing"},
        {"[" MODEL "," MODULE("Pooling", "../1_Pooling") "]", "another path"},
        {"[" MODEL "," MODULE("Pooling", "") "]", "another path"},
        {"[" MODEL "," MODULE("Pooling", "a/b") "]", "another path"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        write_modules(others[i].modules);
        expect(EMBEDDING_OTHER, others[i].words);
    }
}

static void expect_refused(const char *words)
{
    test_expect_failure(embedding_config_read(&config, folder, &status), &status, STATUS_BAD_INPUT, words);
}

TEST(files_that_are_no_such_json_are_refused)
{
    write_modules("{}");
    expect_refused("array of modules");
    write_modules("[");
    expect_refused("modules.json");
    assert_int_equal(mkdir(in_folder("1_Pooling"), 0700), 0);
    write_modules("[" MODEL "," POOLING "]");
    write_pooling("{");
    expect_refused("1_Pooling/config.json");
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
