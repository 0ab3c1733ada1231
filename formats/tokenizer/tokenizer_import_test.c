/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of files that import refuses, by name, and parts that it accepts without applying them. */
#include "formats/tokenizer/test_tokenizer.h"

static void expect_refused(const struct fixture *fixture, const char *words)
{
    uint8_t *image;
    size_t size;
    char *json = fixture_json(fixture);
    bool good = tokenizer_import(json, strlen(json), "dir/tokenizer.json", &image, &size, &status);
    test_expect_failure(good, &status, STATUS_BAD_INPUT, "dir/tokenizer.json");
    test_expect_message(&status, words);
    assert_null(image);
    free(json);
}

#define REFUSED(words, ...) expect_refused(&(const struct fixture){__VA_ARGS__}, words)

TEST(test_normalizer)
{
    REFUSED("normalizer|'Transliterate'|supported", .normalizer = "{'type':'Transliterate'}");
    REFUSED("'clean_text'", .normalizer = "{'type':'BertNormalizer'}");
    REFUSED("'strip_accents'|true or false",
            .normalizer = "{'type':'BertNormalizer','clean_text':true,'handle_chinese_chars':true,'strip_accents':1,"
                          "'lowercase':true}");
    REFUSED("field 'form'|not understood", .normalizer = "{'type':'Nmt','form':1}");
    REFUSED("field 'type'", .normalizer = "{}");
    REFUSED("expected an object|string", .normalizer = "'NFC'");
    REFUSED("field 'form'|not understood", .normalizer = "{'type':'NFC','form':1}");
    REFUSED("'normalizers'|array", .normalizer = "{'type':'Sequence'}");
    REFUSED("'prepend'", .normalizer = "{'type':'Prepend'}");
    REFUSED("'pattern'", .normalizer = "{'type':'Replace','content':'a'}");
    REFUSED("'pattern'", .normalizer = "{'type':'Replace','pattern':{'Glob':'a'},'content':'a'}");
    REFUSED("'content'", .normalizer = "{'type':'Replace','pattern':{'String':'a'}}");
    REFUSED("empty pattern", .normalizer = "{'type':'Replace','pattern':{'String':''},'content':'a'}");
    REFUSED("pattern '(a'|unfinished group", .normalizer = "{'type':'Replace','pattern':{'Regex':'(a'},'content':''}");
    REFUSED("strip_right", .normalizer = "{'type':'Strip','strip_left':true}");
    char nested[800] = "", *at = nested;
    for (int i = 0; i < 12; i++) at += sprintf(at, "{'type':'Sequence','normalizers':[");
    at += sprintf(at, "{'type':'NFC'}");
    for (int i = 0; i < 12; i++) at += sprintf(at, "]}");
    REFUSED("nested too deep", .normalizer = nested);
    char many[1200] = "{'type':'Sequence','normalizers':[{'type':'NFC'}";
    for (int i = 0; i < 32; i++) strcat(many, ",{'type':'NFC'}");
    strcat(many, "]}");
    REFUSED("more than 32 steps", .normalizer = many);
}

#define CHARSMAP(text) "{'type':'Precompiled','precompiled_charsmap':'" text "'}"

/* A double array of one unit, 0, and no text: AAAABAAAAAA= is u32 4, u32 0. */
TEST(test_precompiled)
{
    REFUSED("'precompiled_charsmap'", .normalizer = "{'type':'Precompiled'}");
    REFUSED("found 0 bytes", .normalizer = CHARSMAP(""));
    REFUSED("base64|multiple of 4", .normalizer = CHARSMAP("BAAAAAAAAA="));
    REFUSED("base64|character 2", .normalizer = CHARSMAP("BA?AAAAAAAA="));
    REFUSED("base64|character 3", .normalizer = CHARSMAP("BAA=AAAAAAA="));
    REFUSED("array of 4", .normalizer = CHARSMAP("BAAAAAAA"));
    REFUSED("array of 5", .normalizer = CHARSMAP("BQAAAAAAAAAA"));
    REFUSED("array of 0", .normalizer = CHARSMAP("AAAAAAAAAAA="));
    REFUSED("not UTF-8", .normalizer = CHARSMAP("BAAAAAAAAAD/"));
    OPEN(.normalizer = CHARSMAP("BAAAAAAAAAA="), .pre_tokenizer = BYTES_ALONE);
    check_case("empty map", "ab", 2, false, (const int32_t[]){262}, 1, false);
}

#define METASPACE(more) "{'type':'Metaspace'," more "}"
#define SPLIT(more)     "{'type':'Split','pattern':{'String':'a'}," more "}"

TEST(test_pre_tokenizer)
{
    REFUSED("pre_tokenizer|'UnicodeScripts'|supported", .pre_tokenizer = "{'type':'UnicodeScripts'}");
    REFUSED("'Sideways'", .pre_tokenizer = "{'type':'Punctuation','behavior':'Sideways'}");
    REFUSED("'delimiter'", .pre_tokenizer = "{'type':'CharDelimiterSplit'}");
    REFUSED("'delimiter'|one character", .pre_tokenizer = "{'type':'CharDelimiterSplit','delimiter':'ab'}");
    REFUSED("'length'", .pre_tokenizer = "{'type':'FixedLength','length':0}");
    REFUSED("'add_prefix_space'", .pre_tokenizer = "{'type':'ByteLevel','trim_offsets':true}");
    REFUSED("second ByteLevel",
            .pre_tokenizer = "{'type':'Sequence','pretokenizers':[" GPT2_SPLIT "," BYTES_ALONE "]}");
    REFUSED("'behavior'", .pre_tokenizer = SPLIT("'invert':false"));
    REFUSED("'invert'", .pre_tokenizer = SPLIT("'behavior':'Isolated'"));
    REFUSED("'Sideways'", .pre_tokenizer = SPLIT("'behavior':'Sideways','invert':false"));
    REFUSED("'individual_digits'", .pre_tokenizer = "{'type':'Digits'}");
    REFUSED("'replacement'", .pre_tokenizer = METASPACE("'split':true"));
    REFUSED("one character|'ab'", .pre_tokenizer = METASPACE("'replacement':'ab'"));
    REFUSED("one character", .pre_tokenizer = METASPACE("'replacement':''"));
    REFUSED("'sometimes'", .pre_tokenizer = METASPACE("'replacement':'_','prepend_scheme':'sometimes'"));
    REFUSED("contradicts", .pre_tokenizer = METASPACE("'replacement':'_','add_prefix_space':false"));
    REFUSED("\\h|not supported",
            .pre_tokenizer = "{'type':'Split','pattern':{'Regex':'\\\\h'},'behavior':'Isolated','invert':false}");
}

TEST(test_post_processor)
{
#define ROBERTA(cls) "{'type':'RobertaProcessing','sep':['</s>',2],'cls':" cls "}"
    REFUSED("post_processor|'PairProcessing'|supported", .post_processor = "{'type':'PairProcessing'}");
    REFUSED("'cls'|missing", .post_processor = "{'type':'BertProcessing','sep':['[SEP]',1]}");
    REFUSED("'cls'|[\"text\", id]|array", .post_processor = ROBERTA("['<s>']"));
    REFUSED("'cls'|[\"text\", id]|array", .post_processor = ROBERTA("['<s>',-1]"));
    REFUSED("id 999 does not exist", .post_processor = ROBERTA("['<s>',999]"));
    REFUSED("second processor", .sentencepiece = true,
            .post_processor = "{'type':'Sequence','processors':[" TEMPLATE "," ROBERTA("['<s>',1]") "]}");
    REFUSED("second processor", .sentencepiece = true,
            .post_processor = "{'type':'Sequence','processors':[" TEMPLATE "," TEMPLATE "]}");
#define SINGLE(single, tokens) "{'type':'TemplateProcessing','single':" single ",'special_tokens':" tokens "}"
#define A                      "{'Sequence':{'id':'A','type_id':0}}"
    REFUSED("'single'", .post_processor = SINGLE("null", "{}"));
    REFUSED("Sequence A 0 times", .post_processor = SINGLE("[]", "{}"));
    REFUSED("Sequence A 2 times", .post_processor = SINGLE("[" A "," A "]", "{}"));
    REFUSED("other than A", .post_processor = SINGLE("[{'Sequence':{'id':'B'}}]", "{}"));
    REFUSED("piece 0", .post_processor = SINGLE("['$A']", "{}"));
    REFUSED("'x' has no ids", .post_processor = SINGLE("[{'SpecialToken':{'id':'x'}}]", "{}"));
    REFUSED("no token id", .post_processor = SINGLE("[{'SpecialToken':{'id':'x'}}]", "{'x':{'ids':[-1]}}"));
    REFUSED("id 999 does not exist",
            .post_processor = SINGLE("[{'SpecialToken':{'id':'x'}}," A "]", "{'x':{'ids':[999]}}"));
    REFUSED("without an id", .post_processor = SINGLE("[{'SpecialToken':{}}]", "{}"));
}

#define DECODERS(...) "{'type':'Sequence','decoders':[" __VA_ARGS__ "]}"
#define FUSE          "{'type':'Fuse'}"
#define FALLBACK      "{'type':'ByteFallback'}"
#define STRIP         "{'type':'Strip','content':' ','start':1,'stop':0}"
#define REPLACE       "{'type':'Replace','pattern':{'String':'a'},'content':'b'}"
#define META_DECODER  "{'type':'Metaspace','replacement':'_'}"

TEST(test_decoder)
{
    REFUSED("'prefix'", .decoder = "{'type':'WordPiece'}");
    REFUSED("'WordPiece' at this place",
            .decoder = DECODERS(FUSE ",{'type':'WordPiece','prefix':'##','cleanup':true}"));
    REFUSED("'BPEDecoder' at this place", .decoder = DECODERS(FUSE ",{'type':'BPEDecoder','suffix':'</w>'}"));
    REFUSED("'Strip' at this place", .decoder = DECODERS("{'type':'BPEDecoder','suffix':'</w>'}," STRIP));
    REFUSED("empty suffix", .decoder = "{'type':'BPEDecoder','suffix':''}");
    REFUSED("'hell'|not only at its end", .decoder = "{'type':'BPEDecoder','suffix':'e'}");
    REFUSED("'CTC'", .decoder = DECODERS("{'type':'CTC'}"));
    REFUSED("'Replace' at this place", .decoder = DECODERS(FUSE "," REPLACE));
    REFUSED("'Replace' at this place", .decoder = DECODERS(FALLBACK "," REPLACE));
    REFUSED("'Strip' at this place", .decoder = DECODERS(FALLBACK "," STRIP));
    REFUSED("'Strip' at this place", .decoder = DECODERS(FUSE "," STRIP "," STRIP));
    REFUSED("'ByteFallback' at this place", .decoder = DECODERS(FUSE "," FALLBACK));
    REFUSED("'ByteLevel' at this place", .decoder = DECODERS(FUSE "," BYTE_DECODER));
    REFUSED("'ByteLevel' at this place", .decoder = DECODERS(META_DECODER "," BYTE_DECODER));
    REFUSED("'Metaspace' at this place", .decoder = DECODERS(FALLBACK "," META_DECODER));
    REFUSED("ASCII replacement", .decoder = DECODERS(META_DECODER "," FALLBACK));
    REFUSED("'decoders'", .decoder = "{'type':'Sequence'}");
    REFUSED("'pattern'", .decoder = "{'type':'Replace','pattern':{'String':''},'content':''}");
    REFUSED("one character", .decoder = "{'type':'Strip','content':'ab','start':0,'stop':0}");
    REFUSED("'stop'", .decoder = "{'type':'Strip','content':'a','start':0,'stop':65}");
    REFUSED("'sometimes'", .decoder = "{'type':'Metaspace','replacement':'_','prepend_scheme':'sometimes'}");
    REFUSED("not understood", .decoder = "{'type':'Fuse','x':1}");
    char *large = NULL, content[4001];
    memset(content, 'c', 4000);
    content[4000] = '\0';
    assert_true(asprintf(&large,
                         "{'type':'Sequence','decoders':[{'type':'Replace','pattern':{'String':'a'},"
                         "'content':'%s'},{'type':'Replace','pattern':{'String':'c'},'content':'%s'}]}",
                         content, content) > 0);
    REFUSED("more than 65536 bytes of one token", .decoder = large);
    free(large);
    REFUSED("unfinished group", .decoder = "{'type':'Replace','pattern':{'Regex':'('},'content':''}");
}

TEST(test_model)
{
    REFUSED("'dropout'", .options = "'dropout':0.1,");
    REFUSED("merge 0|'e' does not begin with a prefix of 2 bytes", .options = "'continuing_subword_prefix':'##',");
    REFUSED("'end_of_word_suffix'|65 bytes|at most 64",
            .options = "'end_of_word_suffix':'"
                       "12345678901234567890123456789012345678901234567890123456789012345',");
    REFUSED("'fuse_unk'", .options = "'fuse_unk':1,");
    REFUSED("'max_input_chars'|not understood", .options = "'max_input_chars':100,");
    REFUSED("'vocab'", .vocab = "null");
    REFUSED("'vocab'|array", .vocab = "[]");
    REFUSED("'vocab'|empty", .vocab = "{}");
    REFUSED("'a'|id from 0", .vocab = "{'a':-1}");
    REFUSED("'a'|id from 0", .vocab = "{'a':16777216}");
    REFUSED("'a'|id from 0", .vocab = "{'a':'1'}");
    REFUSED("id 0 is given to both 'a' and 'b'", .vocab = "{'a':0,'b':0}");
    REFUSED("too many holes", .vocab = "{'a':1000000}");
    REFUSED("'merges'", .merges = "null");
    REFUSED("merge 0", .merges = "['ab']");
    REFUSED("merge 0", .merges = "['a b c']");
    REFUSED("merge 0", .merges = "[1]");
    REFUSED("merge 0", .merges = "[['a']]");
    REFUSED("merge 0", .merges = "[['a',1]]");
    REFUSED("merge 1 is of another kind", .merges = "['h e',['l','l']]");
    REFUSED("merge 0|'zz' is not in the vocabulary", .merges = "['zz e']");
    REFUSED("merge 0|'zz' is not in the vocabulary", .merges = "['e zz']");
    REFUSED("merge 0|'ez' is not in the vocabulary", .merges = "['e z']");
    char *vocab = malloc(70000);
    memset(vocab, 'a', 70000);
    memcpy(vocab, "{'", 2);
    strcpy(vocab + 65536 + 3, "':0}");
    REFUSED("longer than 65536", .vocab = vocab);
    free(vocab);
}

TEST(test_added)
{
    REFUSED("added_tokens|'content'", .added = "{'id':1}");
    REFUSED("'special'",
            .added = "{'id':265,'content':'x','single_word':false,'lstrip':false,'rstrip':false,'normalized':false}");
    REFUSED("'<x>' has id 270|gives it 265", .added = SPECIAL(270, "<x>"));
    REFUSED("'hello' has id 265|gives it 259", .added = SPECIAL(265, "hello"));
    REFUSED("'<x>' is added twice",
            .added = SPECIAL(265, "<x>") "," ADDED(265, "<x>", false, false, false, false, false));
    REFUSED("id 1 is given to both 'b' and '<x>'", .vocab = "{'b':1}", .merges = "[]", .added = SPECIAL(1, "<x>"));
    REFUSED("same after normalization", .normalizer = "{'type':'Lowercase'}",
            .added = ADDED(265, "<X>", false, false, false, true, true) "," ADDED(266, "<x>", false, false, false, true,
                                                                                  true));
    REFUSED("0 bytes after normalization", .normalizer = "{'type':'Strip','strip_left':true,'strip_right':true}",
            .added = ADDED(265, "  ", false, false, false, true, true));
    char *added, *name = malloc(1100);
    memset(name, 'x', 1099);
    name[1099] = '\0';
    assert_true(asprintf(&added,
                         "{'id':265,'content':'%s','single_word':false,'lstrip':false,'rstrip':false,"
                         "'normalized':false,'special':true}",
                         name) > 0);
    REFUSED("longer than 1024", .added = added);
    free(added);
    free(name);
}

TEST(test_top_level)
{
    static const char *const files[][2] = {
        {"", "not valid JSON"},
        {"[]", "expected an object"},
        {"{'version':'2.0'}", "version '2.0'"},
        {"{'version':'1.0'}", "model|expected an object"},
        {"{'model':{'type':'Neural','vocab':{'a':0},'merges':[]}}", "'Neural'|supported: BPE"},
        {"{'model':{'type':'Unigram','vocab':{'a':0}}}", "'vocab'|array|object"},
        {"{'model':{'type':'Unigram','vocab':[]}}", "'vocab'|array of 1"},
        {"{'model':{'type':'Unigram','vocab':[['a']]}}", "token 0|[\"text\", score]"},
        {"{'model':{'type':'Unigram','vocab':[['a',0],['b','0']]}}", "token 1|[\"text\", score]"},
        {"{'model':{'type':'Unigram','vocab':[['a',0],['b',-1],['a',-2]]}}", "token 2|'a' has been there before"},
        {"{'model':{'type':'Unigram','unk_id':1,'vocab':[['a',0]]}}", "'unk_id'"},
        {"{'model':{'type':'Unigram','fuse_unk':false,'vocab':[['a',0]]}}", "'fuse_unk'|not understood"},
        {"{'model':{'type':'WordPiece','vocab':{'a':0},'max_input_chars_per_word':9}}", "'unk_token'"},
        {"{'model':{'type':'WordPiece','vocab':{'a':0},'unk_token':'a'}}", "'max_input_chars_per_word'"},
        {"{'model':{'type':'WordLevel','vocab':[],'unk_token':'a'}}", "'vocab'|array"},
        {"{'model':{'type':'BPE','vocab':{'a':0,'a':1},'merges':[]}}", "duplicate"},
        {"{'surprise':1,'model':{'vocab':{'a':0},'merges':[]}}", "'surprise'|not understood"},
        {"{'added_tokens':{},'model':{'vocab':{'a':0},'merges':[]}}", "added_tokens|object"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        uint8_t *image;
        size_t size;
        bool good = tokenizer_import(test_json(files[i][0]), strlen(files[i][0]), "x.json", &image, &size, &status);
        test_expect_failure(good, &status, STATUS_BAD_INPUT, files[i][1]);
        assert_null(image);
    }
}

/* The smallest tokenizer; the older form without "type"; leftovers of training; empty added tokens. */
TEST(test_accepted)
{
    static const char *const files[] = {
        "{'model':{'vocab':{'a':0},'merges':[]}}",
        "{'model':{'vocab':{'a':0,'b':1,'ab':2},'merges':['#version: 0.2','a b']}}",
        "{'truncation':{'max_length':4},'padding':{'strategy':'BatchLongest'},"
        "'model':{'vocab':{'a':0},'merges':[]}}",
        "{'added_tokens':[" ADDED(0, "", false, false, false, false, false) "],'model':{'vocab':{'a':0},'merges':[]}}",
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        open_json(test_json(files[i]), strlen(files[i]));
        check_case(files[i], "aaaaaa", 6, true, (const int32_t[6]){0}, 6, false);
    }
}

/* The same input gives the same bytes. */
TEST(test_deterministic)
{
    const struct fixture fixture = {.sentencepiece = true,
                                    .normalizer = LLAMA_NORMALIZER,
                                    .decoder = LLAMA_DECODER,
                                    .options = LLAMA_OPTIONS,
                                    .post_processor = TEMPLATE,
                                    .added = ADDED(1, "<s>", false, false, false, true, true)};
    open_fixture(&fixture);
    const struct opened first = opened;
    opened = (struct opened){0};
    open_fixture(&fixture);
    assert_int_equal(first.image_size, opened.image_size);
    assert_memory_equal(first.image, opened.image, opened.image_size);
    tokenizer_close(first.tokenizer);
    free(first.image);
}

int main(void) { return test_run_with(NULL, NULL, close_fixture, NULL); }
