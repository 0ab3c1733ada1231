/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include "formats/checkpoint/checkpoint_index.h"
#include "formats/base/test_folder.h"
#include "formats/checkpoint/test_config.h"

static const char config_text[] = "{" TEST_CONFIG "}";
static struct status status;
static struct checkpoint checkpoint;

static void write_json(const char *name, const char *text) { test_write_text(in_folder(name), test_json(text)); }

static bool open_at(const char *path, bool config_only)
{
    return checkpoint_open(&checkpoint, path, config_only, test_read_config, &status);
}

/* Writes a shard with the named one-byte tensors, whose bytes count up from `first`. */
static void write_shard(const char *path, const char *const *names, size_t count, uint8_t first)
{
    struct file_output output;
    struct tensor_view tensors[8] = {0};
    for (size_t i = 0; i < count; i++)
        tensors[i] = (struct tensor_view){.name = names[i], .dtype = DTYPE_U8, .rank = 1, .shape = {1}, .bytes = 1};
    test_expect_success(file_output_open(&output, path, &status), &status);
    test_expect_success(safetensors_write_header(&output, tensors, count, &status), &status);
    for (size_t i = 0; i < count; i++, first++)
        test_expect_success(file_output_write(&output, &first, 1, &status), &status);
    test_expect_success(file_output_commit(&output, &status), &status);
}

/* Puts into the folder config.json, two shards with tensors a, c and b, and no index. */
static void fill_folder(void)
{
    write_json("config.json", config_text);
    write_shard(in_folder("s1.safetensors"), (const char *const[]){"c", "a"}, 2, 10);
    write_shard(in_folder("s2.safetensors"), (const char *const[]){"b"}, 1, 20);
}

static const char index_name[] = "model.safetensors.index.json";

static void expect_refused(const char *path, enum status_code code, const char *words)
{
    test_expect_failure(open_at(path, false), &status, code, words);
    assert_null(checkpoint.directory);
    assert_null(checkpoint.tensors);
}

TEST(test_single)
{
    write_json("config.json", config_text);
    write_shard(in_folder("model.safetensors"), (const char *const[]){"w", "v"}, 2, 5);
    write_shard(in_folder("other.safetensors"), (const char *const[]){"x"}, 1, 7);
    test_expect_success(open_at(folder, false), &status);
    assert_string_equal(checkpoint.directory, folder);
    assert_null(checkpoint.tokenizer_path);
    assert_int_equal(checkpoint.tensor_count, 2);
    assert_int_equal(checkpoint.tensor_bytes, 2);
    assert_string_equal(checkpoint.tensors[0].name, "v");
    assert_int_equal(*(const uint8_t *)checkpoint_find(&checkpoint, "w")->data, 5);
    assert_int_equal(*(const uint8_t *)checkpoint_find(&checkpoint, "v")->data, 6);
    assert_null(checkpoint_find(&checkpoint, "x"));
    assert_string_equal(checkpoint.config.model_type, "test");
    checkpoint_close(&checkpoint);
    assert_null(checkpoint_find(&checkpoint, "w"));

    /* A file is named directly; generation_config.json and tokenizer.json are found in its folder. */
    write_json("generation_config.json", "{'eos_token_id': [3, 4]}");
    write_json("tokenizer.json", "{}");
    test_expect_success(open_at(in_folder("other.safetensors"), false), &status);
    assert_string_equal(checkpoint.directory, folder);
    assert_string_equal(checkpoint.tokenizer_path, in_folder("tokenizer.json"));
    assert_int_equal(checkpoint.config.eos_count, 2);
    assert_non_null(checkpoint_find(&checkpoint, "x"));
    checkpoint_close(&checkpoint);
}

TEST(test_only_file)
{
    write_json("config.json", config_text);
    expect_refused(folder, STATUS_NOT_FOUND, "no weights|model.safetensors.index.json");
    write_shard(in_folder("tiny.safetensors"), (const char *const[]){"w"}, 1, 5);
    write_shard(in_folder(".hidden.safetensors"), (const char *const[]){"w"}, 1, 5);
    test_expect_success(open_at(folder, false), &status);
    assert_non_null(checkpoint_find(&checkpoint, "w"));
    checkpoint_close(&checkpoint);
    write_shard(in_folder("tiny2.safetensors"), (const char *const[]){"w"}, 1, 5);
    expect_refused(folder, STATUS_BAD_INPUT,
                   "2 .safetensors files|'tiny.safetensors'|'tiny2.safetensors'|name the file");
}

TEST(test_relative_path)
{
    char before[4096];
    write_json("config.json", config_text);
    write_shard(in_folder("model.safetensors"), (const char *const[]){"w"}, 1, 5);
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    test_expect_success(open_at("model.safetensors", false), &status);
    assert_string_equal(checkpoint.directory, ".");
    checkpoint_close(&checkpoint);
    test_expect_success(open_at(".", false), &status);
    checkpoint_close(&checkpoint);
    assert_int_equal(chdir(before), 0);
}

TEST(test_config_only)
{
    write_json("config.json", config_text);
    static const char *const names[] = {"", "model.safetensors", "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        test_expect_success(open_at(in_folder(names[i]), true), &status);
        assert_int_equal(checkpoint.config.hidden_size, 64);
        assert_int_equal(checkpoint.tensor_count, 0);
        assert_int_equal(checkpoint.shard_count, 0);
        checkpoint_close(&checkpoint);
    }
}

TEST(test_bad_paths)
{
    expect_refused(in_folder("absent"), STATUS_NOT_FOUND, "absent'|No such file");
    expect_refused(in_folder("absent.safetensors"), STATUS_NOT_FOUND, "absent.safetensors'");
    test_expect_failure(open_at(in_folder("absent"), true), &status, STATUS_NOT_FOUND, "absent'");
    expect_refused("", STATUS_NOT_FOUND, "''");
    expect_refused(folder, STATUS_NOT_FOUND, "no config.json");
    write_shard(in_folder("model.safetensors"), (const char *const[]){"w"}, 1, 5);
    expect_refused(folder, STATUS_NOT_FOUND, "no config.json|beside the weights");
    test_write_text(in_folder("model.gguf"), "GGUF");
    expect_refused(in_folder("model.gguf"), STATUS_BAD_INPUT, "model.gguf|ends within the header");
    test_write_text(in_folder("model.onnx"), "ONNX");
    expect_refused(in_folder("model.onnx"), STATUS_BAD_INPUT, "model.onnx'|expected a folder, a .safetensors");
    write_json("config.json", "{'model_type': 'gpt2'}");
    expect_refused(folder, STATUS_BAD_INPUT, "config.json|'gpt2' is not supported");
    write_json("config.json", config_text);
    write_json("generation_config.json", "{'num_beams': 2}");
    expect_refused(folder, STATUS_BAD_INPUT, "generation_config.json|'num_beams'");
    write_json("generation_config.json", "{}");
    test_write_text(in_folder("model.safetensors"), "short");
    expect_refused(folder, STATUS_BAD_INPUT, "model.safetensors|not a safetensors file");
    write_shard(in_folder("model.safetensors"), NULL, 0, 0);
    expect_refused(folder, STATUS_BAD_INPUT, "model.safetensors|no tensors");
}

TEST(test_sharded)
{
    fill_folder();
    static const char *const metadata[] = {"", "'metadata': {'total_size': 3, 'total_parameters': 3},",
                                           "'metadata': {'total_size': 3.0},", "'metadata': {},"};
    for (size_t i = 0; i < sizeof metadata / sizeof *metadata; i++) {
        const char *text =
            test_text("{%s'weight_map': {'a': 's1.safetensors', 'b': 's2.safetensors', 'c': 's1.safetensors'}}",
                      metadata[i]);
        write_json(index_name, text);
        test_expect_success(open_at(i % 2 ? in_folder(index_name) : folder, false), &status);
        assert_int_equal(checkpoint.shard_count, 2);
        assert_int_equal(checkpoint.tensor_count, 3);
        assert_int_equal(checkpoint.tensor_bytes, 3);
        assert_int_equal(*(const uint8_t *)checkpoint_find(&checkpoint, "c")->data, 10);
        assert_int_equal(*(const uint8_t *)checkpoint_find(&checkpoint, "a")->data, 11);
        assert_int_equal(*(const uint8_t *)checkpoint_find(&checkpoint, "b")->data, 20);
        for (size_t j = 0; j < 3; j++) assert_int_equal(checkpoint.tensors[j].name[0], 'a' + (int)j);
        checkpoint_close(&checkpoint);
    }
}

TEST(test_bad_index)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "not valid JSON"},
        {"[]", "object|array"},
        {"{}", "weight_map|missing"},
        {"{'weight_map': []}", "weight_map|array"},
        {"{'weight_map': {}}", "weight_map|an empty one"},
        {"{'weight_map': {'a': 1}}", "'a'|file name|integer"},
        {"{'weight_map': {'a': 's1.safetensors'}, 'shards': 2}", "'shards'|not understood"},
        {"{'weight_map': {'a': 's1.safetensors', 'a': 's2.safetensors'}}", "duplicate"},
        {"{'weight_map': {'a': '../s1.safetensors'}}", "'a'|same folder|../s1"},
        {"{'weight_map': {'a': '/etc/s1.safetensors'}}", "same folder|/etc"},
        {"{'weight_map': {'a': 'sub/s1.safetensors'}}", "same folder"},
        {"{'weight_map': {'a': '..'}}", "same folder|'..'"},
        {"{'weight_map': {'a': '.safetensors'}}", "same folder"},
        {"{'weight_map': {'a': 's1.bin'}}", "same folder|'s1.bin'"},
        {"{'weight_map': {'a': ''}}", "same folder|''"},
        {"{'metadata': 3, 'weight_map': {'a': 's1.safetensors'}}", "metadata|object|integer"},
        {"{'metadata': {'total_size': -1}, 'weight_map': {'a': 's1.safetensors'}}", "total_size|found -1"},
        {"{'metadata': {'total_size': 1.5}, 'weight_map': {'a': 's1.safetensors'}}", "total_size|found 1.5"},
        {"{'metadata': {'total_size': '3'}, 'weight_map': {'a': 's1.safetensors'}}", "total_size|\"3\""},
        {"{'weight_map': {'a': 's1.safetensors'}}", "'c'|lies in 's1.safetensors'|nothing about it"},
        {"{'weight_map': {'a': 's1.safetensors', 'c': 's2.safetensors', 'b': 's2.safetensors'}}",
         "'c'|lies in 's1.safetensors'|weight_map says s2.safetensors"},
        {"{'weight_map': {'a': 's1.safetensors', 'c': 's1.safetensors', 'd': 's1.safetensors'}}",
         "'d'|'s1.safetensors'|lacks it"},
        {"{'metadata': {'total_size': 4}, 'weight_map': {'a': 's1.safetensors', 'c': 's1.safetensors'}}",
         "total_size|expected 2|found 4"},
        {"{'weight_map': {'a': 'bad.safetensors'}}", "bad.safetensors|not a safetensors file"},
        {"{'weight_map': {'a': 's1.safetensors', 'c': 's1.safetensors', 'b': 'twin.safetensors'}}",
         "'a'|more than one shard"},
    };
    fill_folder();
    test_write_text(in_folder("bad.safetensors"), "bad");
    write_shard(in_folder("twin.safetensors"), (const char *const[]){"b", "a"}, 2, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_json(index_name, cases[i].text);
        expect_refused(folder, STATUS_BAD_INPUT, cases[i].words);
    }
    write_json(index_name, "{'weight_map': {'a': 's1.safetensors', 'b': 's9.safetensors'}}");
    expect_refused(folder, STATUS_NOT_FOUND, "names 2 shards|number 2 is missing|s9.safetensors");
}

TEST(test_index_alone)
{
    struct checkpoint_index index;
    static const char text[] = "{'metadata': {'total_size': 9007199254740991}, 'weight_map': {'b':"
                               " '2.safetensors', 'a': '1.safetensors', 'c': '2.safetensors'}}";
    test_expect_success(checkpoint_index_parse(&index, test_json(text), sizeof text - 1, "i", &status), &status);
    assert_int_equal(index.shard_count, 2);
    assert_string_equal(index.shards[0], "1.safetensors");
    assert_string_equal(index.shards[1], "2.safetensors");
    assert_string_equal(checkpoint_index_shard_of(&index, "c"), "2.safetensors");
    assert_null(checkpoint_index_shard_of(&index, "d"));
    assert_true(index.has_total_size && index.total_size == 9007199254740991u);
    checkpoint_index_free(&index);
}

int main(void) { return test_run_with(NULL, make_folder, remove_folder, NULL); }
