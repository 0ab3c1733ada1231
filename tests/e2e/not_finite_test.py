# SPDX-License-Identifier: Apache-2.0
"""Weights and logits that are not finite: engbuild refuses such weights by name, engrun and engbench stop at such
logits."""

import json
import os
import shutil
import struct
import unittest

from harness import ENGBENCH, ENGBUILD, ENGRUN, FABLES, build_engine, run, scratch, succeed

BF16_MAX, BF16_NAN = 0x7F7F, 0x7FC0
ALWAYS = 0  # a column of the embeddings
BAD_TOKEN = 1500


class Checkpoint:
    """The shipped model with changed values, in its own folder."""

    def __init__(self):
        self.folder = scratch()
        self.path = os.path.join(self.folder.name, "model")
        shutil.copytree(FABLES, self.path)
        self.file = os.path.join(self.path, "model.safetensors")
        os.chmod(self.file, 0o600)
        with open(self.file, "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            self.header = json.loads(file.read(size))
        self.data = 8 + size

    def set(self, name, row, column, bits):
        tensor = self.header[name]
        assert tensor["dtype"] == "BF16"
        columns = tensor["shape"][1] if len(tensor["shape"]) == 2 else 1
        with open(self.file, "r+b") as file:
            file.seek(self.data + tensor["data_offsets"][0] + 2 * (row * columns + column))
            file.write(struct.pack("<H", bits))


class Weights(unittest.TestCase):
    def test_a_nan_is_refused_by_tensor_and_place(self):
        name = "model.layers.3.mlp.up_proj.weight"
        checkpoint = Checkpoint()
        checkpoint.set(name, 17, 5, BF16_NAN)
        path = os.path.join(checkpoint.folder.name, "x.eng")
        result = run([ENGBUILD, "--model", checkpoint.path, "-o", path, "--tune", "off"])
        self.assertEqual(result.rc, 1, result.stderr)
        for part in (name, "row 17, column 5", "NaN", "finite"):
            self.assertIn(part, result.stderr)
        self.assertEqual(os.listdir(checkpoint.folder.name), ["model"])

    def test_a_value_that_becomes_infinite_is_refused_by_place(self):
        checkpoint = Checkpoint()
        checkpoint.set("model.embed_tokens.weight", 3, 4, BF16_MAX)
        path = os.path.join(checkpoint.folder.name, "x.eng")
        result = run([ENGBUILD, "--model", checkpoint.path, "-o", path, "--tune", "off", "--dtype", "fp16"])
        self.assertEqual(result.rc, 1, result.stderr)
        for part in ("model.embed_tokens.weight", "row 3, column 4", "F16", "--dtype"):
            self.assertIn(part, result.stderr)
        self.assertEqual(os.listdir(checkpoint.folder.name), ["model"])


class Logits(unittest.TestCase):
    def test_an_answer_ends_with_a_message_and_code_1(self):
        """A token whose embedding overflows in the first layer: finite weights, then infinite values."""
        checkpoint = Checkpoint()
        for row in range(64):
            checkpoint.set("model.layers.0.self_attn.v_proj.weight", row, ALWAYS, BF16_MAX)
        for token in range(1536):  # the column is zero except for this token
            checkpoint.set("model.embed_tokens.weight", token, ALWAYS, 0x4000 if token == BAD_TOKEN else 0)
        for column in range(1, 192):
            checkpoint.set("model.embed_tokens.weight", BAD_TOKEN, column, 0)
        engine = build_engine(checkpoint.path)
        sound = succeed([ENGRUN, engine, "--tokens", "300,301", "-n", "8", "--print-tokens"])
        for prompt in (f"{BAD_TOKEN}", f"300,{BAD_TOKEN},301"):
            for more in ([], ["--temperature", "1"]):
                result = run([ENGRUN, engine, "--tokens", prompt, "-n", "8", "--print-tokens", *more])
                self.assertEqual(result.rc, 1, result)
                self.assertIn("not finite", result.stderr)
                self.assertEqual(result.stdout.strip(), "")
        # Prompts of engbench are random tokens of the whole vocabulary.
        result = run([ENGBENCH, engine, "-p", "512", "-n", "0", "-r", "20"])
        self.assertEqual(result.rc, 1, result)
        self.assertIn("not finite", result.stderr)


if __name__ == "__main__":
    unittest.main()
