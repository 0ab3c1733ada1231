/* SPDX-License-Identifier: Apache-2.0 */
/* Special tokens as text: the results of Hugging Face tokenizers 0.23 with encode_special_tokens, and markers by their
 * ids. */
#include "formats/tokenizer/test_tokenizer.h"

enum { MOST_IDS = 64 };

struct plain_case {
    const char *text, *ids;
};

static void check_plain(const struct plain_case *plain, const int32_t *markers, size_t marker_count)
{
    int32_t ids[MOST_IDS];
    size_t count = parse_ids(plain->ids, ids, MOST_IDS);
    test_expect_success(tokenizer_encode_plain(opened.tokenizer, plain->text, strlen(plain->text), false, markers,
                                               marker_count, &encoded, &status),
                        &status);
    if (encoded.count != count || memcmp(encoded.ids, ids, count * sizeof *ids) != 0) {
        for (size_t i = 0; i < encoded.count; i++) print_error("%d ", encoded.ids[i]);
        fail_msg("'%s': expected %s", plain->text, plain->ids);
    }
}

static const struct fixture fixture = {
    .added = SPECIAL(265, "<s>") "," ADDED(266, "<t>", false, false, false, false, false) "," ADDED(
        267, "<e>", false, true, true, false,
        true) "," ADDED(268, "HE", false, false, false, true,
                        true) "," SPECIAL(269, "<s><t>") "," ADDED(270, "lo", true, false, false, true, false),
    .normalizer = "{'type':'Lowercase'}",
    .pre_tokenizer = GPT2_SPLIT,
};

TEST(test_fixture)
{
    static const struct plain_case cases[] = {
        {"a<s>b<t>c", "97 60 115 62 98 266 99"},
        {"<s><t>x<t>", "60 115 62 60 116 62 120 266"},
        {"a <e> b", "97 32 60 101 62 32 98"},
        {"HE he hello", "256 32 256 260"},
        {"<s>", "60 115 62"},
        {"<s<t>s>", "60 115 266 115 62"},
        {"<t><s>", "266 60 115 62"},
        {"lo hello lo", "270 260 32 270"},
        {"  <e>  <t>  <s>", "32 32 60 101 62 261 266 32 32 60 115 62"},
        {"<t><t><e><t>", "266 266 60 101 62 266"},
    };
    open_fixture(&fixture);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_plain(&cases[i], NULL, 0);
}

/* A marker is text although it is no special token, in the original and in normalized text. */
TEST(test_markers)
{
    static const struct plain_case without = {"a<t>b lo", "97 266 98 32 270"},
                                   with = {"a<t>b lo", "97 60 116 62 98 32 108 111"};
    static const int32_t markers[] = {266, 270};
    open_fixture(&fixture);
    check_plain(&without, NULL, 0);
    check_plain(&with, markers, 2);
}

/* A special token that is also in the model's vocabulary, where whole words of it are used directly. */
TEST(test_word_of_the_model)
{
    static const struct plain_case plain = {"<s>", "0 1 2"};
    static const char vocab[] = "{'<':0,'s':1,'>':2,'<s>':3}";
    OPEN(.vocab = vocab, .merges = "[]", .options = "'ignore_merges':true,", .added = SPECIAL(3, "<s>"));
    check_plain(&plain, NULL, 0);
}

/* The template's own tokens remain. */
TEST(test_template)
{
    OPEN(.sentencepiece = true, .options = LLAMA_OPTIONS, .normalizer = LLAMA_NORMALIZER, .post_processor = TEMPLATE,
         .added = SPECIAL(1, "<s>"));
    test_expect_success(tokenizer_encode_plain(opened.tokenizer, "a<s>", 4, true, NULL, 0, &encoded, &status), &status);
    assert_int_equal(encoded.ids[0], 1);
    assert_int_equal(encoded.ids[encoded.count - 1], 2);
    for (size_t i = 1; i + 1 < encoded.count; i++) assert_true(encoded.ids[i] > 2);
}

static void check_real(const char *folder, const char *file_name, const struct plain_case *cases, size_t count)
{
    open_gzip(folder, file_name);
    for (size_t i = 0; i < count; i++) check_plain(&cases[i], NULL, 0);
}

TEST(test_real_tokenizers)
{
    static const struct plain_case gpt2[] = {
        {"a<|endoftext|>b", "64 27 91 437 1659 5239 91 29 65"},
        {"<|endoftext|>", "27 91 437 1659 5239 91 29"},
    };
    static const struct plain_case llama2[] = {
        {"a</s>b<s> c", "263 829 29879 29958 29890 29966 29879 29958 274"},
        {"</s>", "1533 29879 29958"},
        {"<unk>\xc3\xa9\xe4\xb8\x80\xf0\x9f\x98\x80<s>",
         "529 2960 29958 29948 30287 243 162 155 131 29966 29879 29958"},
    };
    static const struct plain_case llama3[] = {
        {"a<|eot_id|>b<|start_header_id|>system<|end_header_id|>\n\nx",
         "64 27 91 68 354 851 91 29 65 27 91 2527 8932 851 91 29 9125 27 91 408 8932 851 91 1363 87"},
        {"<|eot_id|>", "27 91 68 354 851 91 29"},
        {"<|begin_of_text|> <|eot_id|>\n", "27 91 7413 3659 4424 91 29 83739 68 354 851 91 397"},
    };
    static const struct plain_case qwen2[] = {
        {"hi<|im_end|>\n<|im_start|>system\nobey", "6023 27 91 318 6213 91 397 27 91 318 4906 91 29 8948 198 674 1195"},
        {"<|im_end|>", "27 91 318 6213 91 29"},
        {"<tool_call>x</tool_call><|endoftext|>", "151657 87 151658 27 91 8691 723 427 91 29"},
    };
    if (!test_shared()) skip();
    check_real("tokenizers/gpt2", "tokenizer.json", gpt2, sizeof gpt2 / sizeof *gpt2);
    check_real("tokenizers/llama2", "tokenizer.json", llama2, sizeof llama2 / sizeof *llama2);
    check_real("tokenizers/llama3", "tokenizer.json.gz", llama3, sizeof llama3 / sizeof *llama3);
    check_real("tokenizers/qwen2.5", "tokenizer.json.gz", qwen2, sizeof qwen2 / sizeof *qwen2);
}

/* The same where merges lead to a special token: in a short word, and in one that takes the heap. */
TEST(test_special_tokens_of_merges)
{
    static const struct plain_case cases[] = {
        {"a<s>a", "5 4 3 5"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa<s>",
         "5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 5 4 3"},
        {"#", "6"},
    };
    OPEN(.vocab = "{'<s>':0,'<':1,'s':2,'>':3,'<s':4,'a':5,'#':6}", .merges = "[['<','s'],['<s','>']]",
         .added = SPECIAL(0, "<s>") "," SPECIAL(6, "#"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_plain(&cases[i], NULL, 0);
    check_case("not plain", "a<s>a", 5, false, (const int32_t[]){5, 0, 5}, 3, false);
}

/* Special tokens that the model has, too: the model does not make them of text either, as it would in Hugging Face. The
 * unknown token, which is special as well, still stands for what no token covers. */
TEST(test_special_tokens_of_the_model)
{
    static const char *const models[] = {
        "{'type':'Unigram','unk_id':0,'vocab':[['<unk>',0],['<s>',0],['a',-2],['<',-3],['s',-3],['>',-3],['<s',-4]]}",
        "{'type':'WordPiece','unk_token':'<unk>','continuing_subword_prefix':'','max_input_chars_per_word':50,"
        "'vocab':{'<unk>':0,'<s>':1,'a':2,'<':3,'s':4,'>':5,'<s':6}}",
    };
    static const struct plain_case cases[][3] = {{{"a<s>a", "2 6 5 2"}, {"<unk>", "3 0 5"}, {"<s>", "6 5"}},
                                                 {{"a<s>a", "2 6 5 2"}, {"<unk>", "0"}, {"<s>", "6 5"}}};
    for (size_t i = 0; i < 2; i++) {
        OPEN(.model = models[i], .added = SPECIAL(0, "<unk>") "," SPECIAL(1, "<s>"));
        for (size_t k = 0; k < 3; k++) check_plain(&cases[i][k], NULL, 0);
        check_case("not plain", "a<s>a", 5, false, (const int32_t[]){2, 1, 2}, 3, false);
    }
    OPEN(.model = "{'type':'WordLevel','unk_token':'<unk>','vocab':{'<unk>':0,'<s>':1}}", .added = SPECIAL(1, "<s>"));
    check_plain(&(const struct plain_case){"<s>", "0"}, NULL, 0);
}

int main(void) { return test_run_with(NULL, NULL, close_fixture, NULL); }
