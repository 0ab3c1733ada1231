# SPDX-License-Identifier: Apache-2.0
"""Token ids and decoded text equal those of Hugging Face tokenizers: every recorded case, from tokenizer.json and from
an engine with the tokenizer."""

import gzip
import json
import os
import shutil
import struct
import unittest

from harness import (ENGRUN, FABLES, build_engine, fables_engine, needs_shared, read_json, run, scratch, shared,
                     succeed, tally)

TOKENIZERS = ["gpt2", "llama2", "llama3", "qwen2.5"]

# Characters of every length in UTF-8, marks that combine, joined emoji, and every kind of space.
TEXTS = ["", " ", "\n", "a", "Once upon a time", "  two  spaces  ", "tab\tand\r\nnewline",
         "\u00e9 e\u0301 \u00df \u0130", "\u4f60\u597d, \u4e16\u754c", "\U0001f469\u200d\U0001f469\u200d\U0001f467",
         "\u0928\u092e\u0938\u094d\u0924\u0947", "\u00a0\u2003\u3000\u200b", "nul \u0000 inside", "\ufffd\ufeff",
         "<|end|><|begin|>", "1234567890" * 20, "x" * 5000, "'s 't 'RE don't I'LL"]


def tensor_bytes(shape):
    count = 2
    for extent in shape:
        count *= extent
    return count


def write_zero_checkpoint(folder, vocab_size):
    """The smallest Llama with a vocabulary of this size."""
    width = 16
    layer = "model.layers.0."
    shapes = {"model.embed_tokens.weight": [vocab_size, width], "model.norm.weight": [width],
              layer + "input_layernorm.weight": [width], layer + "post_attention_layernorm.weight": [width],
              layer + "mlp.gate_proj.weight": [width, width], layer + "mlp.up_proj.weight": [width, width],
              layer + "mlp.down_proj.weight": [width, width]}
    for name in "qkvo":
        shapes[layer + "self_attn.%s_proj.weight" % name] = [width, width]
    header, at = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + tensor_bytes(shape)]}
        at += tensor_bytes(shape)
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + at)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width,
                   "intermediate_size": width, "num_hidden_layers": 1, "num_attention_heads": 1,
                   "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
                   "rope_theta": 10000.0, "vocab_size": vocab_size, "tie_word_embeddings": True,
                   "hidden_act": "silu", "torch_dtype": "bfloat16"}, file)


class TokenizerTest(unittest.TestCase):
    def convert(self, path, direction, values, *flags):
        lines = "".join(json.dumps(value) + "\n" for value in values)
        result = succeed([ENGRUN, path, direction, *flags], input=lines)
        self.assertEqual(result.stderr, "")
        found = [json.loads(line) for line in result.stdout.split("\n")[:-1]]
        self.assertEqual(len(found), len(values), "a line for each line")
        return found

    def check_cases(self, path, cases, what):
        texts = [case["text"] for case in cases]
        for found, case in zip(self.convert(path, "--tokenize", texts), cases):
            self.assertEqual(found, case["ids"], "%s: ids of %r" % (what, case["text"]))
        for found, case in zip(self.convert(path, "--tokenize", texts, "--add-special"), cases):
            first = case["with_special"]
            self.assertEqual(found[:len(first)], first, "%s: ids with special tokens of %r" % (what, case["text"]))
        for found, case in zip(self.convert(path, "--detokenize", [case["ids"] for case in cases]), cases):
            self.assertEqual(found, case["decoded"], "%s: text of %r" % (what, case["ids"]))
        tally(what, len(cases))


class Recorded(TokenizerTest):
    def unpacked(self, name, folder):
        """Writes a tokenizer.json into `folder` and returns its path."""
        path = os.path.join(folder, "tokenizer.json")
        packed = shared("tokenizers", name, "tokenizer.json.gz")
        if os.path.exists(packed):
            with gzip.open(packed) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)
        else:
            shutil.copyfile(shared("tokenizers", name, "tokenizer.json"), path)
        return path

    @needs_shared("tokenizers")
    def test_tokenizer_files(self):
        for name in TOKENIZERS:
            with self.subTest(name), scratch() as folder:
                self.check_cases(self.unpacked(name, folder), read_json(shared("tokenizers", name, "cases.json")), name)

    @needs_shared("tokenizers")
    def test_engines(self):
        for name in TOKENIZERS:
            with self.subTest(name), scratch() as folder:
                tokenizer = read_json(self.unpacked(name, folder))
                ids = list(tokenizer["model"]["vocab"].values()) + [token["id"] for token in tokenizer["added_tokens"]]
                write_zero_checkpoint(folder, max(ids) + 1)
                engine = build_engine(folder, "--max-batch", "1", "--prefill-chunks", "16")
                self.check_cases(engine, read_json(shared("tokenizers", name, "cases.json")), name + " in an engine")

    @needs_shared("models", "stories260K")
    def test_stories(self):
        cases = read_json(shared("models", "stories260K", "tokenizer_cases.json"))
        model = shared("models", "stories260K")
        with self.subTest("tokenizer.json"):
            self.check_cases(os.path.join(model, "tokenizer.json"), cases, "stories260K")
        with self.subTest("engine"):
            self.check_cases(build_engine(model), cases, "stories260K in an engine")


class Shipped(TokenizerTest):
    """The shipped model's byte-level tokenizer."""

    FILE = os.path.join(FABLES, "tokenizer.json")

    def test_recorded(self):
        cases = read_json(FABLES, "reference.json")["cases"]
        for path in (self.FILE, fables_engine()):
            self.assertEqual(self.convert(path, "--tokenize", [case["prompt"] for case in cases], "--add-special"),
                             [case["ids"] for case in cases])
            self.assertEqual(self.convert(path, "--detokenize", [case["greedy"] for case in cases], "--skip-special"),
                             [case["text"] for case in cases])

    def test_every_text_comes_back(self):
        ids = self.convert(self.FILE, "--tokenize", TEXTS)
        self.assertEqual(self.convert(self.FILE, "--detokenize", ids), TEXTS)
        tally("texts", len(TEXTS))

    def test_file_and_engine_agree(self):
        texts = TEXTS + [case["text"] for case in read_json(FABLES, "reference.json")["cases"]]
        for flags in ((), ("--add-special",)):
            self.assertEqual(self.convert(self.FILE, "--tokenize", texts, *flags),
                             self.convert(fables_engine(), "--tokenize", texts, *flags))
        ids = [[i] for i in range(1536)]
        for flags in ((), ("--skip-special",)):
            self.assertEqual(self.convert(self.FILE, "--detokenize", ids, *flags),
                             self.convert(fables_engine(), "--detokenize", ids, *flags))

    def test_special_tokens(self):
        (begin, end), = self.convert(self.FILE, "--tokenize", ["<|begin|><|end|>"])
        self.assertEqual((begin, end), (0, 1))
        (plain,) = self.convert(self.FILE, "--tokenize", ["fox"])
        (added,) = self.convert(self.FILE, "--tokenize", ["fox"], "--add-special")
        self.assertEqual(added, [begin] + plain)
        self.assertEqual(self.convert(self.FILE, "--detokenize", [added, added + [end]]),
                         ["<|begin|>fox", "<|begin|>fox<|end|>"])
        self.assertEqual(self.convert(self.FILE, "--detokenize", [added, added + [end]], "--skip-special"),
                         ["fox", "fox"])

    def test_lines(self):
        """Answers come line by line, so that a program can interact."""
        self.assertEqual(self.convert(self.FILE, "--tokenize", []), [])
        result = run([ENGRUN, self.FILE, "--tokenize"], input='"fox"')
        self.assertEqual((result.rc, len(result.stdout.splitlines())), (0, 1))

    def test_bad_lines(self):
        for direction, line, words in (
                ("--tokenize", "fox", ["line 2"]),
                ("--tokenize", "[1]", ["line 2", "JSON string"]),
                ("--tokenize", '"\\ud800"', ["line 2"]),
                ("--detokenize", '"fox"', ["line 2", "JSON array"]),
                ("--detokenize", "[1, -1]", ["line 2", "element 1"]),
                ("--detokenize", "[1.5]", ["line 2", "element 0"]),
                ("--detokenize", "[1", ["line 2"]),
                ("--detokenize", "[99999999999]", ["line 2", "element 0"])):
            with self.subTest(direction, line=line):
                good = '"fox"' if direction == "--tokenize" else "[1, 2]"
                result = run([ENGRUN, self.FILE, direction], input=good + "\n" + line + "\n" + good + "\n")
                self.assertEqual(result.rc, 1, result.stderr)
                self.assertEqual(len(result.stdout.splitlines()), 1, "what came before the bad line, and no more")
                for word in words:
                    self.assertIn(word, result.stderr)


if __name__ == "__main__":
    unittest.main()
