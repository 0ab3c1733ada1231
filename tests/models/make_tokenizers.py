# SPDX-License-Identifier: Apache-2.0
"""Makes formats/testdata/tokenizers: a small tokenizer of each kind that model families ship, with texts and their ids.

Needs tokenizers 0.23 and sentencepiece 0.2 (for the character map of Unigram): python3 tests/models/make_tokenizers.py
The same versions make the same bytes. Each file is compressed JSON: {"tokenizer": the text of tokenizer.json,
"cases": [{"text", "ids", "with_special", "decoded"}]}, where "decoded" keeps special tokens.
"""

import base64
import gzip
import io
import json
import os
import random

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from fable_text import story

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "formats", "testdata", "tokenizers")
CASES = 320
VOCABULARY = 500
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

SCRIPTS = [
    "Привет мир, это проверка", "Γειά σου Κόσμε", "שלום עולם", "مرحبا بالعالم ١٢٣", "नमस्ते दुनिया १२३", "สวัสดีชาวโลก",
    "日本語のテキストです。カタカナ", "中文文本，测试。", "한국어 텍스트 입니다", "የአማርኛ ጽሑፍ", "ქართული", "Հայերեն",
    "Ünïcödé ÀÉÎÕÜ ß İı ſ", "e\u0301 a\u0308 o\u0302\u0323 n\u0303", "ﬁ ﬂ ﬃ ① ² ½ ™ ㎏ Å", "👩‍👩‍👧 🇩🇪 👍🏽 😀😁 ☃️",
    "\u200b\u200d\u200e\ufeff\u00ad", "ａｂｃ１２３！", "ﬁ\u0301x ①\u0323", "𝔘𝔫𝔦 𝟘𝟙", "𠀀𪛟 漢字", "ཨོཾ", "ﷺ"]
CODE = [
    "def f(x):\n\treturn x**2  # sq\n", "for (int i=0;i<10;i++){ a[i]+=1; }", "<html><body class=\"x\">&amp;</body>",
    "WHERE a='b' AND c>=10;", "https://example.com/a?b=c&d=e#f", "C:\\path\\file.txt", "a_b-c.d@e.f",
    "{\"k\": [1, 2.5, -3e10, null]}", "#include <stdio.h>\r\nint main(void)\r\n{\r\n}\r\n"]
PIECES = ["<s>", "</s>", "<unk>", "[MASK]", "<0x0A>", "<|end|>", " <mask> ", "##ing", "</w>", "▁", "▁▁", "'s", "don't",
          "do not", "I'm", "WE'VE", " . , ! ?", "--", "x" * 30, "123456789", "3.14"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2003", "\x0b", "\x85"]
RANGES = [(0x20, 0x7e), (0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x6ff), (0x900, 0x11ff), (0x1e00, 0x1fff),
          (0x2010, 0x218f), (0x3040, 0x30ff), (0x4e00, 0x9fa0), (0xac00, 0xd7a3), (0xf900, 0xfaff), (0xff01, 0xffee),
          (0x1f300, 0x1f6ff)]


def case_texts():
    """Texts in many scripts, with code, runs of spaces, special tokens and marks; the same each time."""
    source = random.Random(5)
    words = [word for number in range(20) for word in story(number).split()]
    texts = ["", " ", "  ", "\n", "a", " a", "a ", "  a  b  ", "\x00a", "a\x01b\x7f", "\u0301a", "a" * 60, "ab" * 40,
             "日" * 50, "." * 40, " " * 30, "hello" * 12] + SCRIPTS + CODE + PIECES
    while len(texts) < CASES:
        parts = []
        for _ in range(source.randint(1, 5)):
            kind = source.random()
            if kind < 0.45:
                parts.append(" ".join(source.choice(words) for _ in range(source.randint(1, 5))))
            elif kind < 0.8:
                parts.append(source.choice(source.choice([SCRIPTS, CODE, PIECES, PIECES])))
            else:
                parts.append("".join(chr(source.randint(*source.choice(RANGES))) for _ in range(source.randint(1, 3))))
            parts.append(source.choice(SPACES + [" ", "", ""]) if source.random() < 0.7 else "")
        texts.append("".join(parts))
    return texts


def corpus():
    return [line for number in range(150) for line in story(number).splitlines() if line] + SCRIPTS


def trained(model, trainer, normalizer=None, pre_tokenizer=None, decoder=None, post_processor=None, added=()):
    tokenizer = Tokenizer(model)
    for name, part in (("normalizer", normalizer), ("pre_tokenizer", pre_tokenizer), ("decoder", decoder)):
        if part is not None:
            setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(corpus(), trainer)
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    tokenizer.add_tokens(list(added))
    return tokenizer


def template(single, *tokens):
    return processors.TemplateProcessing(single=single, pair="$A $B:1", special_tokens=list(tokens))


def split(regex):
    return pre_tokenizers.Split(Regex(regex), "isolated")


def byte_level(pre_tokenizer, normalizer=None, added=("<|end|>",)):
    """Byte-level BPE, split by `pre_tokenizer`, which is followed by the byte alphabet."""
    return trained(
        models.BPE(),
        trainers.BpeTrainer(vocab_size=VOCABULARY, show_progress=False,
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
        normalizer, pre_tokenizers.Sequence(pre_tokenizer), decoders.ByteLevel(), None,
        [AddedToken(text, special=True) for text in added])


def bytes_alone():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def unigram(byte_fallback):
    """SentencePiece's Unigram model with a character map of its own; returns its proto."""
    rules = [("\ufb01", "fi"), ("\ufb02", "fl"), ("\u2460", "1"), ("\u2122", "TM"), ("e\u0301", "\u00e9"), ("\u200b", ""),
             ("\u3000", " "), ("\u00a0", " "), ("\t", " "), ("\n", " "), ("\r", " "), ("\u0301", ""), ("a\u0308", "\u00e4")]
    rules += [(chr(0xff01 + i), chr(0x21 + i)) for i in range(94)]
    path = os.path.join("/tmp", f"rules-{os.getpid()}.tsv")
    with open(path, "w", encoding="utf-8") as file:
        for source, target in rules:
            file.write("%s\t%s\n" % (" ".join("%X" % ord(c) for c in source), " ".join("%X" % ord(c) for c in target)))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=model, vocab_size=VOCABULARY + (256 if byte_fallback else 0),
        model_type="unigram", byte_fallback=byte_fallback, character_coverage=0.995, normalization_rule_tsv=path,
        num_threads=1, minloglevel=2)
    os.remove(path)
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto


def unigram_tokenizer(proto, normalizer, pre_tokenizer, decoder, post_processor):
    """From the parts of tokenizer.json: the library's own trainer does not give the same scores each time."""
    special = [(number, piece.piece) for number, piece in enumerate(proto.pieces) if piece.type in (2, 3)]
    character_map = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    return Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for number, text in special],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": character_map}, *normalizer]},
        "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder,
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": proto.trainer_spec.byte_fallback,
                  "vocab": [[piece.piece, piece.score] for piece in proto.pieces]}}))


def metaspace(scheme, splits=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": splits}


ENDS = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}}
CLITICS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def t5():
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
    return unigram_tokenizer(unigram(False), [{"type": "Strip", "strip_left": False, "strip_right": True}, spaces],
                             metaspace("always"), metaspace("always"), ENDS)


def unigram_first():
    return unigram_tokenizer(unigram(False), [{"type": "Nmt"}, {"type": "NFKC"}], metaspace("first", False), metaspace("first"), ENDS)


def unigram_bytes():
    steps = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
             {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    return unigram_tokenizer(unigram(True), [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
                             None, {"type": "Sequence", "decoders": steps}, ENDS)


def renumbered(tokenizer):
    """With ids after the special tokens by text: the trainer of WordPiece gives some of them in another order each time."""
    content = json.loads(tokenizer.to_str())
    vocabulary = content["model"]["vocab"]
    special = [token["content"] for token in content["added_tokens"]]
    rest = sorted(set(vocabulary) - set(special))
    content["model"]["vocab"] = {text: number for number, text in enumerate(special + rest)}
    return Tokenizer.from_str(json.dumps(content))


def bpe_with_affixes(normalizer, pre_tokenizer, prefix="", suffix="", **options):
    """BPE with symbols that tell their place in a word. Trained here: the library's trainer takes equal counts in any order."""
    counts = {}
    for line in corpus():
        for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(line)):
            symbols = [(prefix if place else "") + symbol for place, symbol in enumerate(word)]
            symbols[-1] += suffix
            counts[tuple(symbols)] = counts.get(tuple(symbols), 0) + 1
    vocabulary, merges = SPECIAL + sorted({symbol for word in counts for symbol in word}), []
    while len(vocabulary) < VOCABULARY:
        pairs = {}
        for word, count in counts.items():
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        joined = best[0] + best[1][len(prefix):]
        merges.append(best)
        if joined not in vocabulary:
            vocabulary.append(joined)
        merged = {}
        for word, count in counts.items():
            symbols, place = [], 0
            while place < len(word):
                found = word[place:place + 2] == best
                symbols.append(joined if found else word[place])
                place += 2 if found else 1
            merged[tuple(symbols)] = merged.get(tuple(symbols), 0) + count
        counts = merged
    tokenizer = Tokenizer(models.BPE(
        vocab={text: number for number, text in enumerate(vocabulary)}, merges=merges, unk_token="<unk>",
        continuing_subword_prefix=prefix, end_of_word_suffix=suffix, **options))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def bert():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return renumbered(trained(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20),
                   trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False),
                   normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(),
                   processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))))


def word_level():
    return trained(models.WordLevel(unk_token="<unk>"),
                   trainers.WordLevelTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, show_progress=False),
                   normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
                   pre_tokenizers.Whitespace(), None, template("<s> $A </s>", ("<s>", 2), ("</s>", 3)))


def word_suffix():
    pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    tokenizer = bpe_with_affixes(normalizers.Lowercase(), pre_tokenizer, suffix="</w>", fuse_unk=True)
    tokenizer.decoder = decoders.BPEDecoder()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 3), ("<s>", 2))
    return tokenizer


def word_prefix():
    tokenizer = bpe_with_affixes(normalizers.NFKD(), pre_tokenizers.Whitespace(), prefix="##")
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


def gemma():
    tokenizer = trained(
        models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        trainers.BpeTrainer(vocab_size=VOCABULARY + 400, special_tokens=SPECIAL + BYTES, show_progress=False),
        normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        template("<s> $A", ("<s>", 2)))
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("▁▁", normalized=False)])
    return tokenizer


def deepseek():
    letters = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
               r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    return byte_level([split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(letters), bytes_alone()])


def o200k():
    regex = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CLITICS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CLITICS}?|"
             rf"\p{{N}}{{1,3}}{REST}")
    return byte_level([split(regex), bytes_alone()], added=["<|end|>", "<mask>"])


def exaone():
    regex = rf"{CLITICS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}{REST}"
    return byte_level([split(regex), bytes_alone()], normalizers.NFC())


def digits():
    return byte_level([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)], normalizers.NFC())


def falcon():
    return byte_level([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
                       pre_tokenizers.Digits(individual_digits=False), split("[0-9][0-9][0-9]")])


def main():
    os.makedirs(FOLDER, exist_ok=True)
    texts = case_texts()
    for make in (t5, unigram_first, unigram_bytes, bert, word_level, word_suffix, word_prefix, gemma, deepseek, o200k, exaone, digits, falcon):
        tokenizer = make()
        cases = []
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "with_special": tokenizer.encode(text).ids,
                          "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
        content = json.dumps({"tokenizer": tokenizer.to_str(), "cases": cases}, ensure_ascii=False, separators=(",", ":"))
        with open(os.path.join(FOLDER, make.__name__ + ".json.gz"), "wb") as file:
            file.write(gzip.compress(content.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
