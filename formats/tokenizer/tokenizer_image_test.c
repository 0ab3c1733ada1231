/* SPDX-License-Identifier: Apache-2.0 */
/* Hostile images: every single-byte change and every truncation is refused or harmless, as the sanitizers determine. */
#include "formats/tokenizer/test_tokenizer.h"
#include "formats/tokenizer/tokenizer_image.h"

/* Uses all parts of an open tokenizer: the results may be anything, but within bounds and valid UTF-8. */
static void use(const struct tokenizer *tokenizer)
{
    static const char text[] = "hello ab<x> A  12\n\u00e9 <s>\u65e5";
    uint32_t vocabulary = tokenizer_vocab_size(tokenizer);
    if (tokenizer_encode(tokenizer, text, sizeof text - 1, true, &encoded, &status))
        for (size_t i = 0; i < encoded.count; i++)
            assert_true(encoded.ids[i] >= 0 && (uint32_t)encoded.ids[i] < vocabulary);
    else
        assert_true(status.message[0] != '\0');
    for (uint32_t id = 0; id < vocabulary && id < 40; id++) {
        int32_t ids[3] = {(int32_t)id, (int32_t)(vocabulary - 1 - id), (int32_t)id};
        test_expect_success(tokenizer_decode(tokenizer, ids, 3, false, &decoded, &status), &status);
        assert_true(text_is_valid((const uint8_t *)decoded.text, decoded.size));
        free(stream_all(tokenizer, ids, 3, true));
        const char *token;
        size_t size;
        if (tokenizer_token_text(tokenizer, (int32_t)id, &token, &size))
            assert_int_equal(tokenizer_find(tokenizer, token, size), id);
    }
}

static const struct fixture small[] = {
    {.vocab = "{'<unk>':0,'▁':1,'a':2,'b':3,'ab':4,'▁ab':5,'<0x0A>':6,'h':7,'é':9}",
     .merges = "['a b','▁ ab']",
     .options = LLAMA_OPTIONS,
     .normalizer = LLAMA_NORMALIZER,
     .pre_tokenizer = "{'type':'Metaspace','replacement':'▁','prepend_scheme':'always','split':true}",
     .decoder = LLAMA_DECODER,
     .added = ADDED(0, "<unk>", true, true, true, true, true)},
    {.vocab = "{'a':0,'b':1,'ab':2,'Ġ':3,'h':4,'l':5,'Ã':6,'©':7,'1':8}",
     .merges = "['a b']",
     .normalizer = "{'type':'Sequence','normalizers':[{'type':'NFC'},{'type':'Lowercase'}]}",
     .pre_tokenizer =
         "{'type':'Sequence','pretokenizers':[{'type':'Split','pattern':{'Regex':'a+| ?\\\\p{L}'},"
         "'behavior':'Isolated','invert':false},{'type':'Digits','individual_digits':true}," BYTES_ALONE "]}",
     .post_processor = "{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'x'}},"
                       "{'Sequence':{'id':'A'}}],'special_tokens':{'x':{'id':'x','ids':[9],'tokens':['x']}}}",
     .decoder = BYTE_DECODER,
     .added = SPECIAL(9, "<x>")},
    {.model = "{'type':'Unigram','unk_id':0,'byte_fallback':true,'vocab':[['<unk>',0],['▁',-2],['a',-3],['b',-3.5],"
              "['ab',-4.25],['▁ab',-4],['<0x0A>',-9],['h',-5],['hell',-7],['',-1]]}",
     .normalizer = "{'type':'Sequence','normalizers':[{'type':'Nmt'},{'type':'Precompiled','precompiled_charsmap':"
                   "'EAAAAAAEAAAAAAAAAAAAAAAAAABhAA=='}]}",
     .pre_tokenizer = "{'type':'Metaspace','replacement':'▁','prepend_scheme':'first','split':true}",
     .decoder = "{'type':'Metaspace','replacement':'▁','prepend_scheme':'first','split':true}",
     .added = SPECIAL(10, "<x>")},
    {.model = "{'type':'WordPiece','unk_token':'[UNK]','continuing_subword_prefix':'##','max_input_chars_per_word':9,"
              "'vocab':{'[UNK]':0,'h':1,'##e':2,'##ll':3,'##o':4,'a':5,'##b':6,'.':7}}",
     .normalizer = "{'type':'BertNormalizer','clean_text':true,'handle_chinese_chars':true,'lowercase':true}",
     .pre_tokenizer = "{'type':'BertPreTokenizer'}",
     .decoder = "{'type':'WordPiece','prefix':'##','cleanup':true}",
     .added = SPECIAL(0, "[UNK]")},
};

TEST(test_every_byte)
{
    static const uint8_t changes[] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF, 0x00};
    size_t refused = 0, harmless = 0;
    for (size_t which = 0; which < sizeof small / sizeof *small; which++) {
        open_fixture(&small[which]);
        use(opened.tokenizer);
        uint8_t *image =
            malloc(opened.image_size); /* a separate block, so that the sanitizer detects accesses beyond it */
        for (size_t i = 0; i < opened.image_size; i++) {
            for (size_t k = 0; k < sizeof changes; k++) {
                memcpy(image, opened.image, opened.image_size);
                image[i] = changes[k] ? image[i] ^ changes[k] : 0;
                struct tokenizer *tokenizer = tokenizer_open(image, opened.image_size, true, &status);
                if (tokenizer) {
                    harmless++;
                    use(tokenizer);
                    tokenizer_close(tokenizer);
                } else {
                    refused++;
                    if (!status.message[0]) fail_msg("byte %zu refused without a message", i);
                }
            }
        }
        free(image);
    }
    assert_true(refused > harmless); /* most of an image is checked against other parts of it */
}

TEST(test_truncation)
{
    open_fixture(&small[0]);
    for (size_t size = 0; size < opened.image_size; size++) {
        uint8_t *image = malloc(size + 8);
        memcpy(image, opened.image, size);
        if (size >= sizeof(struct image_header))
            ((struct image_header *)image)->image_bytes = size; /* a correct size */
        assert_null(tokenizer_open(image, size, true, &status));
        assert_int_equal(status.code, STATUS_CORRUPT);
        free(image);
    }
}

static void expect_corrupt(size_t offset, uint32_t value, enum status_code code, const char *words)
{
    uint8_t *image = malloc(opened.image_size);
    memcpy(image, opened.image, opened.image_size);
    memcpy(image + offset, &value, sizeof value);
    struct tokenizer *tokenizer = tokenizer_open(image, opened.image_size, true, &status);
    test_expect_failure(tokenizer != NULL, &status, code, words);
    free(image);
}

TEST(test_header)
{
    open_fixture(&small[0]);
#define FIELD(field, value, code, words) expect_corrupt(offsetof(struct image_header, field), value, code, words)
    FIELD(magic, 0, STATUS_CORRUPT, "magic");
    FIELD(version, 3, STATUS_VERSION, "version 3|expected 1 to 2");
    FIELD(version, 0, STATUS_VERSION, "version 0|expected 1 to 2");
    FIELD(header_bytes, 8, STATUS_CORRUPT, "header size");
    FIELD(image_bytes, 5, STATUS_CORRUPT, "header says 5");
    FIELD(normalizer_count, 33, STATUS_CORRUPT, "steps");
    FIELD(splitter_count, UINT32_MAX, STATUS_CORRUPT, "steps");
    FIELD(prefix_count, 65, STATUS_CORRUPT, "template");
    FIELD(added_plain_count, UINT32_MAX, STATUS_CORRUPT, "added");
    FIELD(token_count, 0, STATUS_CORRUPT, "token count");
    FIELD(token_count, UINT32_MAX, STATUS_CORRUPT, "token count");
    FIELD(token_slot_count, UINT32_MAX, STATUS_CORRUPT, "past the end");
    FIELD(merge_count, UINT32_MAX, STATUS_CORRUPT, "merge count");
    FIELD(pool_bytes, UINT32_MAX, STATUS_CORRUPT, "past the end");
    FIELD(model_flags, 16, STATUS_CORRUPT, "model flags");
    FIELD(decoder_flags, 1 << 5, STATUS_CORRUPT, "decoder flags");
    FIELD(decoder_flags, DECODER_BYTES | DECODER_JOIN_SPACE, STATUS_CORRUPT, "contradict");
    FIELD(decoder_flags, DECODER_METASPACE_DROP, STATUS_CORRUPT, "contradict");
    FIELD(unknown_id, 8, STATUS_CORRUPT, "unknown token does not exist"); /* an unused id */
    FIELD(unknown_id, 999, STATUS_CORRUPT, "unknown token out of range");
    FIELD(strip_stop, 65, STATUS_CORRUPT, "strip");
    FIELD(strip_character, 0xD800, STATUS_CORRUPT, "scalar value");
    FIELD(word_start_character, 'b', STATUS_CORRUPT, "reaches over a word start");
    FIELD(word_start_character, 'z', STATUS_CORRUPT, "word start is no token");
    FIELD(reserved, 1, STATUS_CORRUPT, "reserved");
#undef FIELD
    /* Its first step is NFC. An image of version 1 has no newer one. */
    open_fixture(&small[1]);
    expect_corrupt(sizeof(struct image_header), STEP_CLEAN, STATUS_CORRUPT, "step 0 is malformed");
    open_fixture(&small[2]);
#define FIELD(field, value, words) \
    expect_corrupt(sizeof(struct image_header) + offsetof(struct image_extension, field), value, STATUS_CORRUPT, words)
    FIELD(model, MODEL_COUNT, "kind of model");
    FIELD(model, MODEL_BPE, "scores");
    FIELD(model, MODEL_WORD_PIECE, "scores");
    FIELD(score_count, 0, "scores");
    FIELD(order_count, 12, "ordered tokens");
    FIELD(first_count, 1, "first tokens");
    FIELD(table_bytes, UINT32_MAX, "character maps too long");
    FIELD(table_bytes, 1 << 20, "past the end");
    FIELD(prefix_bytes, 65, "prefix or suffix too long");
    FIELD(suffix_offset, UINT32_MAX, "prefix or suffix out of range");
    FIELD(reserved, 1, "reserved");
#undef FIELD
    /* sections by their place from the end: the table of 28 bytes, then before it 9 ids and 11 scores, each padded */
    const size_t tables = opened.image_size - 32, order = tables - 40, scores = order - 11 * sizeof(double);
    expect_corrupt(tables, 5, STATUS_CORRUPT, "step 1 is malformed");               /* units                     */
    expect_corrupt(tables + 24, 0xFF, STATUS_CORRUPT, "step 1 is malformed");       /* text that is not UTF-8    */
    expect_corrupt(order, 10, STATUS_CORRUPT, "ordered token is none");             /* an added token            */
    expect_corrupt(order, 11, STATUS_CORRUPT, "ordered token is none");             /* out of range              */
    expect_corrupt(order + 4, 6, STATUS_CORRUPT, "not in the order");               /* twice, or too late        */
    expect_corrupt(scores + 4, 0x7FF00000, STATUS_CORRUPT, "a score is no number"); /* infinite               */
    uint8_t *shifted = malloc(opened.image_size + 8);
    memcpy(shifted + 4, opened.image, opened.image_size);
    assert_null(tokenizer_open(shifted + 4, opened.image_size, true, &status));
    assert_int_equal(status.code, STATUS_USAGE);
    free(shifted);
}

int main(void) { return test_run_with(NULL, NULL, close_fixture, NULL); }
