# SPDX-License-Identifier: Apache-2.0
"""Families and wrappers that have no checkpoint elsewhere in the tests, compared with what transformers computed in float32 from the
same weights, which are made here again (tests/models/make_references.py)."""

import os
import unittest

from harness import LOGIT_TOLERANCE, ReferenceTest, build_engine, read_json, sanitized_elsewhere, scratch, tally
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

    def test_families(self):
        found = {read_json(FOLDER, name + ".json")["config"]["model_type"] for name in NAMES}
        self.assertLessEqual({"gemma4_text", "qwen3_5_text", "qwen3_5_moe_text", "ministral3", "arcee", "cohere", "cwm", "ernie4_5", "falcon", "glm",
                              "gpt_bigcode", "gpt_neo", "gptj", "granitemoehybrid", "helium", "hunyuan_v1_dense", "jais2", "ministral", "nanochat", "olmo", "phi", "vaultgemma"}, found)


if __name__ == "__main__":
    unittest.main()
