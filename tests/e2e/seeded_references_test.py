# SPDX-License-Identifier: Apache-2.0
"""Families and wrappers that have no checkpoint elsewhere in the tests, compared with what transformers computed in float32 from the
same weights, which are made here again (tests/models/make_references.py)."""

import json
import os
import unittest

from harness import ENGBUILD, LOGIT_TOLERANCE, ReferenceTest, build_engine, contents, read_json, run, sanitized_elsewhere, scratch, tally, write
from seeded_checkpoint import write_checkpoint

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "references")
NAMES = sorted(name[:-len(".json")] for name in os.listdir(FOLDER))


class SeededReferences(ReferenceTest):
    @classmethod
    def setUpClass(cls):
        cls.scratch = scratch()
        cls.addClassCleanup(cls.scratch.cleanup)

    def engine(self, name, *options):
        folder = os.path.join(self.scratch.name, name)
        if not os.path.isdir(folder):
            os.mkdir(folder)
            write_checkpoint(folder, read_json(FOLDER, name + ".json"))
        return build_engine(folder, *options)

    def check(self, *options):
        count = ties = 0
        for name in NAMES:
            for case in read_json(FOLDER, name + ".json")["cases"]:
                with self.subTest(name, prompt=len(case["prompt"])):
                    engine = self.engine(name, *options)
                    _, (found,) = self.logits(engine, case["prompt"])
                    self.check_logits(found, case["logits"], LOGIT_TOLERANCE, name)
                    ties += self.check_greedy(engine, case["prompt"], case["greedy"], case["top1_top2_gap"])
                    count += len(case["greedy"])
        tally("greedy tokens (%d ties)" % ties, count)

    def test_one_rank(self):
        self.check()

    @sanitized_elsewhere
    def test_two_ranks(self):
        self.check("--gpus", "2")

    def test_a_tied_head_that_is_stored(self):
        """As in published Falcon models: the LM head is the embedding once more, whose tensor has a name of the family's."""
        reference = read_json(FOLDER, "falcon.json")
        with scratch() as folder:
            write_checkpoint(folder, reference)
            path = os.path.join(folder, "model.safetensors")
            data = bytearray(contents(path))
            size = int.from_bytes(data[:8], "little")
            header, rest = json.loads(data[8:8 + size]), data[8 + size:]
            embedding = header["transformer.word_embeddings.weight"]
            first, end = embedding["data_offsets"]
            header["lm_head.weight"] = {**embedding, "data_offsets": [len(rest), len(rest) + end - first]}
            text = json.dumps(header).encode()
            data = bytearray(len(text).to_bytes(8, "little") + text + rest + rest[first:end])
            write(path, data)
            case = reference["cases"][0]
            _, (found,) = self.logits(build_engine(folder), case["prompt"])
            self.check_logits(found, case["logits"], LOGIT_TOLERANCE, "falcon")
            data[-1] ^= 1
            write(path, data)
            result = run([ENGBUILD, "--model", folder, "--target", "cpu", "--tune", "off", "-o", os.path.join(folder, "m.eng")])
            self.assertEqual(result.rc, 1, result.stderr)
            self.assertIn("'lm_head.weight' differs from 'transformer.word_embeddings.weight'", result.stderr)

    def test_families(self):
        found = {read_json(FOLDER, name + ".json")["config"]["model_type"] for name in NAMES}
        self.assertLessEqual({"gemma4_text", "qwen3_5_text", "qwen3_5_moe_text", "ministral3", "lfm2_moe", "glm4_moe_lite", "minimax_m2", "dots1",
                              "exaone_moe", "solar_open", "flex_olmo", "youtu", "afmoe", "granitemoehybrid", "bamba", "nemotron_h", "falcon_h1",
                              "arcee", "cohere", "cwm", "ernie4_5", "falcon", "glm", "gpt_bigcode", "gpt_neo", "gptj", "helium", "hunyuan_v1_dense",
                              "jais2", "ministral", "nanochat", "olmo", "phi", "vaultgemma", "granitemoeshared", "hunyuan_v1_moe", "hyperclovax",
                              "apertus", "opt", "hy_v3", "mellum", "axk1", "mistral3", "minicpm3"}, found)


if __name__ == "__main__":
    unittest.main()
