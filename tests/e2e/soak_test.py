# SPDX-License-Identifier: Apache-2.0
"""A short run of tests/bench/soak_bench: random sequences in one session, each of which must give the same tokens as by
itself."""

import json
import os
import re
import shutil
import unittest

from harness import ENGBENCH, FABLES, MAKE_CHECKPOINT, SANITIZED, build_engine, run, scratch, succeed

SOAK = os.path.join(os.path.dirname(os.path.dirname(ENGBENCH)), "tests", "bench", "soak_bench")
SEQUENCES = 60 if SANITIZED else 200
# Sanitizers retain freed memory and use memory themselves; few sequences do not find all places in the allocator's memory.
OPTIONS = ["--specs", "16" if SANITIZED else "40", "--most-drift", "0" if SANITIZED else "3"]
SUMMARY = re.compile(r"^(\d+) sequences, (\d+) slots, (\d+) ranks: (\d+) tokens in .* ([\d.]+) % of \d+ steps with all slots "
                     r"busy, (\d+) cancelled, (\d+) differ from alone, resident", re.M)

OTHERS = re.compile(r"^(?:\d+) cancelled by another thread, (\d+) forks, (\d+) of them with other options, (\d+) saved and restored, "
                    r"(\d+) ended by a stop string$", re.M)


class Soak(unittest.TestCase):
    def engine(self, *options, model=FABLES):
        return build_engine(model, "--max-context", "256", "--max-batch", "4", "--prefill-chunks", "8,64", *options)

    def soak(self, ranks, *options, kv_tokens=0, session=(), seed=7, model=FABLES):
        result = run([SOAK, self.engine(*options, model=model), str(SEQUENCES), *OPTIONS, "--seed", str(seed), "--kv-tokens", str(kv_tokens), *session])
        self.assertEqual((result.rc, result.stderr), (0, ""), result.stdout)
        count, slots, found_ranks, tokens, busy, cancelled, differing = SUMMARY.search(result.stdout).groups()
        self.assertEqual((int(count), int(slots), int(found_ranks), int(differing)), (SEQUENCES, 4, ranks, 0))
        self.assertGreater(int(tokens), 5 * SEQUENCES)
        self.assertGreater(int(cancelled), 0)
        cached, aside = map(int, re.search(r"(\d+) tokens of prompts from the cache, (\d+) times set aside",
                                           result.stdout).groups())
        self.assertGreater(cached, SEQUENCES)
        forks, other_forks, saved, stopped = map(int, OTHERS.search(result.stdout).groups())
        self.assertGreater(forks, other_forks)
        if not SANITIZED:  # which run too few for all of these
            self.assertGreater(min(other_forks, saved, stopped), 0, result.stdout)
        if not kv_tokens:
            self.assertGreater(float(busy), 15 if SANITIZED else 30)
        elif not SANITIZED:
            self.assertGreater(aside, 0)
        return result.stdout

    def test_one_rank(self):
        self.soak(1)

    def test_two_ranks(self):
        self.soak(2, "--gpus", "2")

    def test_too_few_pages(self):
        self.soak(1, kv_tokens=256, seed=5)

    def test_bounded_parts_of_prompts(self):
        self.soak(1, session=["--prompt-step", "5"])
        self.soak(1, session=["--step-ms", "1"])

    def test_without_mixed_plans(self):
        self.soak(1, "--mixed-steps", "0", session=["--step-ms", "1"])

    def test_drafts(self):
        """By a sequence's own text, and by an engine that is always right."""
        for words in ([], ["--draft", self.engine()]):
            drafted, accepted = map(int, re.search(r"(\d+) tokens drafted, (\d+) of them accepted",
                                                   self.soak(1, session=["--speculate", "4", *words])).groups())
            self.assertTrue(0 < accepted < drafted, (words, drafted, accepted))
            if words:
                self.assertGreater(accepted, 2 * SEQUENCES)

    def test_drafts_of_the_model_s_own_layer(self):
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                 "head_dim": 32, "vocab_size": 1536, "max_position_embeddings": 512, "first_k_dense_replace": 1, "n_routed_experts": 8,
                 "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
                 "num_nextn_predict_layers": 1, "bos_token_id": 0, "eos_token_id": 1}
        with scratch() as folder:
            shape, model = os.path.join(folder, "shape"), os.path.join(folder, "model")
            os.mkdir(shape)
            with open(os.path.join(shape, "config.json"), "w", encoding="utf-8") as file:
                json.dump({"model_type": "glm4_moe", **sizes}, file)
            succeed([MAKE_CHECKPOINT, "--config", shape, "-o", model, "--mtp"])
            shutil.copy(os.path.join(FABLES, "tokenizer.json"), model)
            for ranks in (1, 2):
                found = self.soak(ranks, "--mtp", "--gpus", str(ranks), session=["--speculate", "4"], model=model)
                self.assertGreater(int(re.search(r"(\d+) tokens drafted", found).group(1)), 0)

    def test_usage(self):
        for words, expected in (([], "usage"), (["x", "5"], "COUNT: expected a number from 10"),
                                (["x", "10", "--seed"], "--seed: expected a number"),
                                (["x", "10", "--sed", "1"], "--sed: unknown option")):
            with self.subTest(words):
                result = run([SOAK, *words])
                self.assertEqual(result.rc, 2, result.stderr)
                self.assertIn(expected, result.stderr)
        self.assertEqual(run([SOAK, "/no/such.eng", "10"]).rc, 3)


if __name__ == "__main__":
    unittest.main()
