# SPDX-License-Identifier: Apache-2.0
"""GGUF files as --model: the same tokens and logits as a checkpoint with the same numbers in float32."""

import functools
import os
import unittest

from gguf_writer import convert
from harness import (ENGBUILD, ENGINFO, SANITIZED, ReferenceTest, build_engine, contents, needs_shared, output_json, recorded_cases,
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
        tally("tokens of GGUF files", count)

    def test_ranks(self):
        tally("tokens of GGUF files on two ranks",
              sum(self.compare("llama3", kind, "--gpus", "2") for kind in ("F16", "Q4_0")))

    def test_codes_are_kept(self):
        for kind, encoding in KINDS.items():
            with self.subTest(kind):
                file, _ = converted("llama3", kind, 3)
                info = output_json([ENGINFO, build_engine(file), "--json"])
                self.assertEqual(info["manifest"]["model"]["weight_dtype"], encoding)

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


if __name__ == "__main__":
    unittest.main()
