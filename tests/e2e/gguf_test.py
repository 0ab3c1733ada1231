# SPDX-License-Identifier: Apache-2.0
"""GGUF files as --model: the same tokens and logits as a checkpoint with the same numbers in float32."""

import functools
import gzip
import json
import os
import unittest

from gguf_writer import Int32, convert, tokenizer_keys, write_zero_model
from harness import (ENGBUILD, ENGINFO, ENGRUN, SANITIZED, ReferenceTest, build_engine, contents, needs_shared, output, output_json, recorded_cases,
                     run, scratch, shared, tally, write)

TOLERANCE = 1e-3
MODELS = ["llama3", "llama-tied-sharded", "qwen2", "qwen3"]
# The encoding that enginfo names for most matrices.
KINDS = {"F16": "F16", "BF16": "BF16", "F32": "F32", "Q8_0": "int8_g32", "Q4_0": "int4_g32"}


@functools.lru_cache(maxsize=None)
def _folder():
    return scratch()


@functools.lru_cache(maxsize=None)
def converted(model, kind, version):
    """(GGUF file, folder with the same numbers)"""
    name = os.path.join(_folder().name, "%s-%s-%d" % (model, kind, version))
    convert(shared("models", "hf-tiny", model), kind, name + ".gguf", name, version)
    return name + ".gguf", name


@needs_shared("models", "hf-tiny")
class Gguf(ReferenceTest):
    def compare(self, model, kind, *options, version=3):
        file, folder = converted(model, kind, version)
        engine, expected = build_engine(file, *options), build_engine(folder)
        count = 0
        for prompt, *_ in recorded_cases(shared("models", "hf-tiny", model)):
            with self.subTest(model, kind=kind, options=options, prompt=len(prompt)):
                wanted, rows = self.logits(expected, prompt, 8)
                found, found_rows = self.logits(engine, prompt, 8)
                self.assertEqual(found, wanted)
                for row, other in zip(found_rows, rows):
                    self.check_logits(row, other, TOLERANCE, model)
                count += len(found)
        return count

    def test_same_as_safetensors(self):
        count = sum(self.compare(model, kind) for model in (MODELS[:1] if SANITIZED else MODELS)
                    for kind in ("F16", "Q8_0", "Q4_0"))
        count += self.compare("qwen3", "F32") + self.compare("llama3", "BF16", version=2)
        count += self.compare("mixtral", "Q8_0") + self.compare("qwen3_moe", "F16")
        tally("tokens of GGUF files", count)

    def test_ranks(self):
        tally("tokens of GGUF files on two ranks",
              sum(self.compare("llama3", kind, "--gpus", "2") for kind in ("F16", "Q4_0")) + self.compare("mixtral", "Q8_0", "--gpus", "2"))

    def test_codes_are_kept(self):
        for kind, encoding in KINDS.items():
            with self.subTest(kind):
                file, _ = converted("llama3", kind, 3)
                info = output_json([ENGINFO, build_engine(file), "--json"])
                self.assertEqual(info["manifest"]["model"]["weight_dtype"], encoding)
                self.assertEqual(list(info["matrices"]), [encoding])  # the embedding's, too
                self.assertEqual(info["manifest"]["model"]["name"], "llama3-%s-3" % kind)

    def test_damage(self):
        """Half a file, and no GGUF file at all."""
        file, _ = converted("llama3", "F16", 3)
        with scratch() as folder:
            for name, data, words in (("half.gguf", contents(file)[:200000], ["half.gguf", "truncated"]),
                                      ("text.gguf", b"{}", ["text.gguf", "not a GGUF file"])):
                path = os.path.join(folder, name)
                write(path, data)
                result = run([ENGBUILD, "--model", path, "--target", "cpu", "-o", os.path.join(folder, "m.eng")])
                self.assertEqual(result.rc, 1, result.stderr)
                for word in words:
                    self.assertIn(word, result.stderr)


# Kinds of tokenizers, and the token that begins a text.
TOKENIZERS = {"gpt2": ("gpt2", "gpt-2", None), "llama3": ("gpt2", "llama-bpe", "<|begin_of_text|>"),
              "qwen2.5": ("gpt2", "qwen2", None), "llama2": ("llama", None, "<s>")}


@needs_shared("tokenizers")
class Tokenizers(ReferenceTest):
    """Tokenizers of real models as keys of a GGUF file, on the cases that Hugging Face's tokenizers recorded."""

    def read(self, name):
        folder = shared("tokenizers", name)
        path = os.path.join(folder, "tokenizer.json")
        data = contents(path) if os.path.exists(path) else gzip.decompress(contents(path + ".gz"))
        return json.loads(data), json.loads(contents(os.path.join(folder, "cases.json")))

    def lines(self, engine, direction, values, *flags):
        text = output([ENGRUN, engine, direction, *flags], input="".join(json.dumps(value) + "\n" for value in values))
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def test_real_ones(self):
        for name, (kind, pre, bos) in list(TOKENIZERS.items())[-1 if SANITIZED else 0:]:
            with self.subTest(name), scratch() as folder:
                tokenizer, cases = self.read(name)
                if name == "llama2":  # whose tokenizer.json finds special tokens in normalised text alone, with a space in front
                    cases = [case for case in cases if "<s>" not in case["text"] and "</s>" not in case["text"]]
                keys = tokenizer_keys(tokenizer, kind, pre, bos)
                path = os.path.join(folder, "m.gguf")
                write_zero_model(path, keys, len(keys["tokenizer.ggml.tokens"]))
                engine = build_engine(path, "--max-batch", "1", "--prefill-chunks", "16")
                texts = [case["text"] for case in cases]
                for flags, field in ((), "ids"), (("--add-special",), "with_special"):
                    for found, case in zip(self.lines(engine, "--tokenize", texts, *flags), cases):
                        expected = case[field]
                        self.assertEqual(found[:len(expected)], expected, "%s: %s of %r" % (name, field, case["text"]))
                for found, case in zip(self.lines(engine, "--detokenize", [case["ids"] for case in cases]), cases):
                    self.assertEqual(found, case["decoded"], "%s: text of %r" % (name, case["ids"]))
                tally(name, len(cases))

    def test_unknown_kinds(self):
        """An engine without a tokenizer, and the reason."""
        tokens = {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.token_type": Int32([1, 1]),
                  "tokenizer.ggml.merges": []}
        for keys, words in (({}, "no tokenizer"), ({"tokenizer.ggml.model": "t5"}, "not llama or gpt2"),
                            ({"tokenizer.ggml.model": "gpt2", **tokens}, "tokenizer.ggml.pre"),
                            ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "unheard-of", **tokens},
                             "tokenizer.ggml.pre")):
            with self.subTest(words), scratch() as folder:
                path = os.path.join(folder, "m.gguf")
                write_zero_model(path, keys, 2)
                result = run([ENGBUILD, "--model", path, "--target", "cpu", "--tune", "off", "-o", path + ".eng"])
                self.assertEqual(result.rc, 0, result.stderr)
                self.assertIn("warning: the engine has no tokenizer: '%s': " % path, result.stderr)
                self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()
