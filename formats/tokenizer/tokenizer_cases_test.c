/* SPDX-License-Identifier: Apache-2.0 */
/* Feature by feature: small tokenizer.json files, with the ids and text of Hugging Face tokenizers 0.23. */
#include "formats/tokenizer/test_tokenizer.h"

struct encode_case {
    const char *name;
    struct fixture fixture;
    const char *text;
    bool add_special;
    const char *ids;     /* space separated */
    const char *decoded; /* of those ids    */
};

#define PARTS(...)  \
    {               \
        __VA_ARGS__ \
    }
#define LLAMA(...)                                                                                                 \
    {                                                                                                              \
        .sentencepiece = true, .normalizer = LLAMA_NORMALIZER, .decoder = LLAMA_DECODER, .options = LLAMA_OPTIONS, \
        __VA_ARGS__                                                                                                \
    }
#define PIECES(...)                                                  \
    {                                                                \
        .sentencepiece = true, .options = LLAMA_OPTIONS, __VA_ARGS__ \
    }
#define BYTES(...)                                                        \
    {                                                                     \
        .pre_tokenizer = GPT2_SPLIT, .decoder = BYTE_DECODER, __VA_ARGS__ \
    }
#define SPLIT(kind, pattern, behavior, invert) \
    "{'type':'Split','pattern':{'" kind "':'" pattern "'},'behavior':'" behavior "','invert':" invert "}"
#define METASPACE(scheme, split) \
    "{'type':'Metaspace','replacement':'▁','prepend_scheme':'" scheme "','split':" split "}"
#define CASE(name, fixture, text, ids, decoded)  \
    {                                            \
        name, fixture, text, false, ids, decoded \
    }
#define CASE_WITH_SPECIAL(name, fixture, text, ids, decoded) \
    {                                                        \
        name, fixture, text, true, ids, decoded              \
    }

static const struct encode_case cases[] = {
    CASE_WITH_SPECIAL("llama", LLAMA(.post_processor = TEMPLATE), "hello the ab", "1 276 279 281 2",
                      "<s> hello the ab</s>"),
    CASE("llama: byte fallback", LLAMA(), "hello \346\227\245 z", "276 259 233 154 168 259 125",
         "hello \346\227\245 z"),
    CASE("llama: runs of spaces, several words", LLAMA(), "   hello  hello ", "271 271 275 271 275 259",
         "   hello  hello "),
    CASE_WITH_SPECIAL("llama: special tokens in text",
                      LLAMA(.added = SPECIAL(1, "<s>") "," SPECIAL(2, "</s>"), .post_processor = TEMPLATE),
                      "<s>hello</s> the", "1 1 276 2 271 267 272 2", "<s><s> hello</s>  the</s>"),
    CASE("llama: a special token found after normalization",
         LLAMA(.added = ADDED(1, "<s>", false, false, false, true, true)), "<s>hello <s>", "1 275 1", "<s>hello <s>"),
    CASE_WITH_SPECIAL("nothing", LLAMA(.post_processor = TEMPLATE), "", "1 2", "<s></s>"),
    CASE("gpt2", BYTES(), "hello hello  hello's ab 12\012\012 \303\251",
         "259 260 32 260 39 115 32 262 32 264 10 10 32 263", "hello hello  hello's ab 12\012\012 \303\251"),
    CASE("gpt2: prefix space", PARTS(.pre_tokenizer = BYTE_DECODER, .decoder = BYTE_DECODER), "hello", "260", " hello"),
    CASE("gpt2: prefix space not doubled", PARTS(.pre_tokenizer = BYTE_DECODER, .decoder = BYTE_DECODER), " hello",
         "260", " hello"),
    CASE("byte level without a regex", PARTS(.pre_tokenizer = BYTES_ALONE, .decoder = BYTE_DECODER), "hello hello",
         "259 260", "hello hello"),
    CASE("NFC", BYTES(.normalizer = "{'type':'NFC'}"), "e\314\201 hello", "263 260", "\303\251 hello"),
    CASE("NFD", PIECES(.normalizer = "{'type':'NFD'}", .decoder = LLAMA_DECODER), "\303\251a", "263 207 132 260",
         "e\314\201a"),
    CASE("NFKC", BYTES(.normalizer = "{'type':'NFKC'}"), "\342\221\240\357\254\201 e\314\201\314\243",
         "49 102 105 32 225 186 185 204 129", "1fi \341\272\271\314\201"),
    CASE("NFKD", BYTES(.normalizer = "{'type':'NFKD'}"), "\302\275\303\251", "49 226 129 132 50 101 204 129",
         "1\342\201\2042e\314\201"),
    CASE("Lowercase", BYTES(.normalizer = "{'type':'Lowercase'}"), "HELLO \304\260\303\200",
         "259 32 105 204 135 195 160", "hello i\314\207\303\240"),
    CASE("Strip both", BYTES(.normalizer = "{'type':'Strip','strip_left':true,'strip_right':true}"),
         " \343\200\200hello \012", "259", "hello"),
    CASE("Strip left", BYTES(.normalizer = "{'type':'Strip','strip_left':true,'strip_right':false}"), "  hello  ",
         "259 261", "hello  "),
    CASE("Strip leaves nothing", BYTES(.normalizer = "{'type':'Strip','strip_left':false,'strip_right':true}"), "   ",
         "", ""),
    CASE("Replace by regex", BYTES(.normalizer = "{'type':'Replace','pattern':{'Regex':'e+|\\\\s+'},'content':'e'}"),
         "heeello  12", "259 101 264", "helloe12"),
    CASE("Replace where the match is empty",
         PARTS(.normalizer = "{'type':'Replace','pattern':{'Regex':'x*'},'content':'1'}", .pre_tokenizer = BYTES_ALONE,
               .decoder = BYTE_DECODER),
         "ab", "49 97 49 98 49", "1a1b1"),
    CASE("Split Isolated", PIECES(.pre_tokenizer = SPLIT("String", "ll", "Isolated", "false")), "llhellllohea",
         "273 272 273 273 266 272 260", "ll he ll ll o he a"),
    CASE("Split inverted Isolated", PIECES(.pre_tokenizer = SPLIT("Regex", "a|b", "Isolated", "true")), "aabheahellob",
         "260 260 261 272 260 275 261", "a a b he a hello b"),
    CASE("Split Removed", PIECES(.pre_tokenizer = SPLIT("String", "ll", "Removed", "false")), "llhellllohea",
         "272 266 272 260", "he o he a"),
    CASE("Split inverted Removed", PIECES(.pre_tokenizer = SPLIT("Regex", "a|b", "Removed", "true")), "aabheahellob",
         "260 260 261 260 261", "a a b a b"),
    CASE("Split MergedWithPrevious", PIECES(.pre_tokenizer = SPLIT("String", "ll", "MergedWithPrevious", "false")),
         "llhellllohea", "273 274 273 266 272 260", "ll hell ll o he a"),
    CASE("Split inverted MergedWithPrevious",
         PIECES(.pre_tokenizer = SPLIT("Regex", "a|b", "MergedWithPrevious", "true")), "aabheahellob",
         "260 260 261 272 260 275 261", "a a b he a hello b"),
    CASE("Split MergedWithNext", PIECES(.pre_tokenizer = SPLIT("String", "ll", "MergedWithNext", "false")),
         "llhellllohea", "273 272 273 273 266 272 260", "ll he ll ll o he a"),
    CASE("Split inverted MergedWithNext", PIECES(.pre_tokenizer = SPLIT("Regex", "a|b", "MergedWithNext", "true")),
         "aabheahellob", "260 260 261 272 260 275 261", "a a b he a hello b"),
    CASE("Split Contiguous", PIECES(.pre_tokenizer = SPLIT("String", "ll", "Contiguous", "false")), "llhellllohea",
         "273 272 273 273 266 272 260", "ll he ll ll o he a"),
    CASE("Split inverted Contiguous", PIECES(.pre_tokenizer = SPLIT("Regex", "a|b", "Contiguous", "true")),
         "aabheahellob", "260 280 272 260 275 261", "a ab he a hello b"),
    CASE("Digits apart",
         PARTS(.pre_tokenizer = "{'type':'Sequence','pretokenizers':[{'type':'Digits','individual_digits':"
                                "true}," BYTES_ALONE "]}",
               .decoder = BYTE_DECODER),
         "ab1212 12", "262 49 50 49 50 32 49 50", "ab1212 12"),
    CASE("Digits together",
         PARTS(.pre_tokenizer = "{'type':'Sequence','pretokenizers':[{'type':'Digits','individual_digits':"
                                "false}," BYTES_ALONE "]}",
               .decoder = BYTE_DECODER),
         "ab1212 12", "262 264 264 32 264", "ab1212 12"),
    CASE("Metaspace first",
         PIECES(.added = SPECIAL(1, "<s>"), .pre_tokenizer = METASPACE("first", "true"),
                .decoder = METASPACE("first", "true")),
         "hello the<s>ab ab", "276 279 1 280 281", "hello the<s>ab ab"),
    CASE("Metaspace always",
         PIECES(.added = SPECIAL(1, "<s>"), .pre_tokenizer = METASPACE("always", "true"),
                .decoder = METASPACE("always", "true")),
         "hello the<s>ab ab", "276 279 1 281 281", "hello the<s> ab ab"),
    CASE("Metaspace never",
         PIECES(.added = SPECIAL(1, "<s>"), .pre_tokenizer = METASPACE("never", "true"),
                .decoder = METASPACE("never", "true")),
         "hello the<s>ab ab", "275 279 1 280 281", "hello the<s>ab ab"),
    CASE("Metaspace without split",
         PIECES(.pre_tokenizer = METASPACE("first", "false"), .decoder = METASPACE("first", "false")), "hello the ab",
         "276 279 281", "hello the ab"),
    CASE("Metaspace after a split",
         PIECES(.pre_tokenizer = "{'type':'Sequence','pretokenizers':[{'type':'Split','pattern':{'String':"
                                 "'\\\\n'},'behavior':'Removed','invert':false},{'type':'Metaspace','replacement':"
                                 "'▁','prepend_scheme':'always','split':true}]}",
                .decoder = METASPACE("always", "true")),
         "hello\012ab", "276 13 280", "hello<0x0A>ab"),
    CASE("llama3's pattern",
         PARTS(.pre_tokenizer =
                   "{'type':'Sequence','pretokenizers':[{'type':'Split','pattern':{'Regex':'(?i:\\u0027s|\\u0027t|"
                   "\\u0027re|\\u0027ve|\\u0027m|\\u0027ll|\\u0027d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{"
                   "1,3}| "
                   "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+'},'behavior':'"
                   "Isolated','invert':false}," BYTES_ALONE "]}",
               .decoder = BYTE_DECODER),
         "hello 1212's  \012 ab\302\240\303\251", "259 32 264 49 50 39 115 261 10 32 262 194 160 263",
         "hello 1212's  \012 ab\302\240\303\251"),
    CASE("single_word", BYTES(.added = ADDED(262, "ab", true, false, false, false, false)), "ab cab ab! ab\303\251",
         "262 32 99 262 32 262 33 32 262 263", "ab cab ab! ab\303\251"),
    CASE("lstrip and rstrip",
         BYTES(.added = ADDED(265, "<x>", false, true, false, false, false) "," ADDED(266, "<y>", false, false, true,
                                                                                      false, false)),
         "hello  <x>  ab <y> 1", "259 265 32 32 262 32 266 49", "hello<x>  ab <y>1"),
    CASE("the longest added token",
         BYTES(.added = ADDED(265, "<x", false, false, false, false,
                              false) "," ADDED(266, "<x>", false, false, false, false,
                                               false) "," ADDED(267, "<xy>", false, false, false, false, false)),
         "<x><xy><x", "266 267 265", "<x><xy><x"),
    CASE("an added token matched after lowercasing",
         BYTES(.added = ADDED(265, "Day", false, false, false, true, false), .normalizer = "{'type':'Lowercase'}"),
         "hello DAY ab", "259 32 265 32 262", "hello day ab"),
    CASE("an added token that is white space which another one has stripped",
         BYTES(.added = ADDED(265, " ", false, true, false, false, false) "," ADDED(97, "a", false, false, true, false,
                                                                                    false)),
         "a b", "97 98", "ab"),
    CASE("unknown characters fused", PARTS(.sentencepiece = true, .options = "'unk_token':'<unk>','fuse_unk':true,"),
         "axyzb\346\227\245", "260 0 261 0", "a <unk> b <unk>"),
    CASE("unknown characters apart", PARTS(.sentencepiece = true, .options = "'unk_token':'<unk>','fuse_unk':false,"),
         "axyb", "260 0 0 261", "a <unk> <unk> b"),
    CASE("unknown characters dropped", PARTS(.sentencepiece = true), "axyb", "280", "ab"),
    CASE("ignore_merges", PARTS(.sentencepiece = true, .options = "'ignore_merges':true,"), "\342\226\201hello", "276",
         "\342\226\201hello"),
    CASE("empty affixes, dropout 0",
         PARTS(.sentencepiece = true,
               .options = "'dropout':0.0,'continuing_subword_prefix':'','end_of_word_suffix':'',"),
         "hello", "275", "hello"),
    CASE("decoder: none", PIECES(), "hello ab", "275 35 280", "hello <0x20> ab"),
    CASE("decoder: Fuse alone", PIECES(.decoder = "{'type':'Fuse'}"), "hello ab", "275 35 280", "hello<0x20>ab"),
    CASE("decoder: Strip of each token",
         PIECES(.normalizer = LLAMA_NORMALIZER, .decoder = "{'type':'Strip','content':'▁','start':1,'stop':0}"),
         "hello the", "276 279", "hellothe"),
    CASE("decoder: Replace by regex",
         PIECES(.normalizer = LLAMA_NORMALIZER,
                .decoder = "{'type':'Sequence','decoders':[{'type':'Replace','pattern':{'Regex':'[▁l]+'},"
                           "'content':'_'},{'type':'Fuse'}]}"),
         "hello the", "276 279", "_he_o_the"),
    CASE("decoder: Strip before ByteLevel",
         PARTS(.pre_tokenizer = GPT2_SPLIT,
               .decoder = "{'type':'Sequence','decoders':[{'type':'Strip','content':'Ġ','start':1,'stop':0}"
                          "," BYTE_DECODER "]}"),
         "hello hello", "259 260", "hellohello"),
};

TEST(test_cases)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_fixture(&cases[i].fixture);
        int32_t ids[64];
        size_t count = parse_ids(cases[i].ids, ids, 64);
        check_case(cases[i].name, cases[i].text, strlen(cases[i].text), cases[i].add_special, ids, count, false);
        check_decoded(cases[i].name, ids, count, cases[i].decoded, strlen(cases[i].decoded));
    }
}

int main(void) { return test_run_with(NULL, NULL, close_fixture, NULL); }
