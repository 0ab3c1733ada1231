/* SPDX-License-Identifier: Apache-2.0 */
/* Small trained tokenizers of the kinds that model families ship, against Hugging Face tokenizers 0.23. The files are
 * written by tests/models/make_tokenizers.py. */
#include "formats/tokenizer/test_tokenizer.h"
#include "formats/tokenizer/tokenizer_image.h"

static void check_trained(const char *name, uint32_t image_version)
{
    size_t size;
    json_error_t error;
    char *text = read_gzip_path(test_text("formats/testdata/tokenizers/%s.json.gz", name), &size);
    json_t *file = json_loadb(text, size, JSON_ALLOW_NUL, &error), *tokenizer = json_object_get(file, "tokenizer");
    assert_true(json_is_string(tokenizer));
    open_json(json_string_value(tokenizer), json_string_length(tokenizer));
    assert_int_equal(((const struct image_header *)opened.image)->version, image_version);
    check_cases(name, json_object_get(file, "cases"), true);
    json_decref(file);
    free(text);
}

TEST(test_unigram)
{
    check_trained("t5", 2);
    check_trained("unigram_first", 2);
    check_trained("unigram_bytes", 2);
}

TEST(test_words)
{
    check_trained("bert", 2);
    check_trained("word_level", 2);
}

TEST(test_affixes)
{
    check_trained("word_suffix", 2);
    check_trained("word_prefix", 2);
}

/* The first version of the image is sufficient, so that older libraries run engines with these. */
TEST(test_bpe)
{
    check_trained("gemma", 1);
    check_trained("deepseek", 1);
    check_trained("o200k", 1);
    check_trained("exaone", 1);
    check_trained("digits", 1);
    check_trained("falcon", 2);
}

int main(void) { return test_run_with(NULL, NULL, close_fixture, NULL); }
