/* SPDX-License-Identifier: Apache-2.0 */
/* Where the chat templates and special tokens of a checkpoint are found, and which come first. */
#include "formats/checkpoint/checkpoint_templates.h"

#include <sys/stat.h>

#include "formats/base/json.h"
#include "formats/base/test_folder.h"
#include "formats/checkpoint/test_gguf.h"
#include "formats/template/chat_templates.h"

static struct status status;

static void write_quoted(const char *name, const char *text) { test_write_text(in_folder(name), test_json(text)); }

/* The document, with ' for ", must be this; NULL: there is none. */
static void expect_document(json_t *document, const char *expected)
{
    test_expect_success(status.code == STATUS_OK, &status);
    char *text = document ? json_format(document, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    for (char *c = text; c && *c; c++)
        if (*c == '"') *c = '\'';
    if (!expected)
        assert_null(text);
    else
        assert_string_equal(text ? text : "none", expected);
    free(text);
    json_decref(document);
}

static void expect_folder(const char *expected)
{
    expect_document(checkpoint_read_templates(folder, &status), expected);
}

static void remove_files(void)
{
    static const char *const names[] = {"tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "chat_template.jinja",
                                        "additional_chat_templates/tool_use.jinja",
                                        "additional_chat_templates/rag.jinja",
                                        "additional_chat_templates/notes.txt",
                                        "additional_chat_templates/.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(in_folder(names[i]));
    rmdir(in_folder("additional_chat_templates"));
}

TEST(places)
{
    expect_folder(NULL);
    write_quoted("tokenizer_config.json", "{'bos_token':'<s>'}");
    expect_folder(NULL);
    write_quoted("tokenizer_config.json", "{'bos_token':'<s>','eos_token':{'content':'</s>','lstrip':false},"
                                          "'pad_token':null,'chat_template':'one'}");
    expect_folder("{'templates':[{'name':'default','text':'one'}],'variables':{'bos_token':'<s>','eos_token':'</s>'}}");
    write_quoted("tokenizer_config.json", "{'chat_template':[{'name':'default','template':'a'},"
                                          "{'name':'rag','template':'b'}]}");
    expect_folder("{'templates':[{'name':'default','text':'a'},{'name':'rag','text':'b'}],'variables':{}}");
    assert_int_equal(mkdir(in_folder("additional_chat_templates"), 0700), 0);
    test_write_text(in_folder("additional_chat_templates/rag.jinja"), "c");
    test_write_text(in_folder("additional_chat_templates/tool_use.jinja"), "d");
    test_write_text(in_folder("additional_chat_templates/notes.txt"), "no");
    test_write_text(in_folder("additional_chat_templates/.jinja"), "no");
    expect_folder(
        "{'templates':[{'name':'default','text':'a'},{'name':'rag','text':'c'},{'name':'tool_use','text':'d'}],"
        "'variables':{}}");
    /* The file replaces all of tokenizer_config.json's. */
    test_write_text(in_folder("chat_template.jinja"), "file\n");
    unlink(in_folder("additional_chat_templates/rag.jinja"));
    expect_folder("{'templates':[{'name':'default','text':'file\\n'},{'name':'tool_use','text':'d'}],'variables':{}}");
    remove_files();
}

TEST(tokens)
{
    test_write_text(in_folder("chat_template.jinja"), "t");
    write_quoted("tokenizer_config.json",
                 "{'bos_token':'<s>','additional_special_tokens':['<a>',{'content':'<b>'},3],'model_max_length':5,"
                 "'extra_special_tokens':{'image_token':'<i>'},'unk_token':7}");
    write_quoted("special_tokens_map.json", "{'bos_token':'<old>','eos_token':'</s>'}");
    expect_folder("{'templates':[{'name':'default','text':'t'}],'variables':{'additional_special_tokens':['<a>','<b>'],"
                  "'bos_token':'<s>','eos_token':'</s>','image_token':'<i>'}}");
    write_quoted("tokenizer_config.json", "{'bos_token':'<s>','added_tokens_decoder':{}}");
    expect_folder("{'templates':[{'name':'default','text':'t'}],'variables':{'bos_token':'<s>'}}");
    remove_files();
}

/* Such a checkpoint has an engine without the template. */
TEST(faults)
{
    static const char *const configs[][2] = {
        {"{", "tokenizer_config.json: not valid JSON"},
        {"{'chat_template':3}", "expected a string or an array"},
        {"{'chat_template':[3]}", "expected objects with name and template"},
        {"{'chat_template':[{'name':'x'}]}", "expected objects with name and template"},
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        write_quoted("tokenizer_config.json", configs[i][0]);
        json_t *document = checkpoint_read_templates(folder, &status);
        const json_t *item = json_array_get(json_object_get(document, "templates"), 0);
        const char *fault = json_string_value(json_object_get(item, "fault"));
        assert_non_null(fault);
        assert_string_equal(json_string_value(json_object_get(item, "name")), "default");
        if (!strstr(fault, configs[i][1])) fail_msg("expected '%s', found '%s'", configs[i][1], fault);
        json_decref(document);
    }
    remove_files();
    test_write(in_folder("chat_template.jinja"), "a\0b", 3);
    expect_folder(
        "{'templates':[{'fault':'chat_template.jinja: expected UTF-8 text','name':'default'}],'variables':{}}");
    test_write(in_folder("chat_template.jinja"), "\xff", 1);
    expect_folder(
        "{'templates':[{'fault':'chat_template.jinja: expected UTF-8 text','name':'default'}],'variables':{}}");
    char *large = calloc(1, CHAT_TEMPLATES_MOST_BYTES + 1);
    assert_non_null(large);
    memset(large, 'x', CHAT_TEMPLATES_MOST_BYTES + 1);
    test_write(in_folder("chat_template.jinja"), large, CHAT_TEMPLATES_MOST_BYTES + 1);
    free(large);
    expect_folder(
        "{'templates':[{'fault':'chat_template.jinja: expected a template of at most 524288 bytes, found 524289',"
        "'name':'default'}],'variables':{}}");
    remove_files();
    assert_int_equal(mkdir(in_folder("chat_template.jinja"), 0700), 0);
    json_t *document = checkpoint_read_templates(folder, &status);
    const char *fault =
        json_string_value(json_object_get(json_array_get(json_object_get(document, "templates"), 0), "fault"));
    assert_non_null(fault);
    if (!strstr(fault, "directory")) fail_msg("%s", fault);
    json_decref(document);
    rmdir(in_folder("chat_template.jinja"));
}

TEST(gguf)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "a"}, *const names[] = {"rag", "none", ""};
    static struct test_gguf writer;
    struct gguf file = {0};
    size_t size;
    test_gguf_begin(&writer);
    test_gguf_string(&writer, "tokenizer.chat_template", "one\n");
    test_gguf_string(&writer, "tokenizer.chat_template.rag", "two");
    test_gguf_strings(&writer, "tokenizer.chat_templates", names, 3);
    test_gguf_strings(&writer, "tokenizer.ggml.tokens", tokens, 4);
    test_gguf_u32(&writer, "tokenizer.ggml.bos_token_id", 1);
    test_gguf_u32(&writer, "tokenizer.ggml.eos_token_id", 2);
    test_gguf_u32(&writer, "tokenizer.ggml.padding_token_id", 4);
    uint8_t *bytes = test_gguf_end(&writer, &size);
    test_expect_success(gguf_parse(&file, bytes, size, "m.gguf", &status), &status);
    expect_document(gguf_read_templates(&file, &status),
                    "{'templates':[{'name':'default','text':'one\\n'},{'name':'rag','text':'two'}],"
                    "'variables':{'bos_token':'<s>','eos_token':'</s>'}}");
    gguf_free(&file);
    free(bytes);
    test_gguf_begin(&writer);
    test_gguf_u32(&writer, "tokenizer.chat_template", 3);
    bytes = test_gguf_end(&writer, &size);
    test_expect_success(gguf_parse(&file, bytes, size, "m.gguf", &status), &status);
    json_t *document = gguf_read_templates(&file, &status);
    const json_t *item = json_array_get(json_object_get(document, "templates"), 0);
    assert_non_null(json_object_get(item, "fault"));
    json_decref(document);
    gguf_free(&file);
    free(bytes);
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
