# SPDX-License-Identifier: Apache-2.0
"""A short run of tests/bench/soak_bench: random sequences in one session, each of which must give the same tokens as by
itself."""

import os
import re
import unittest

from harness import ENGBENCH, FABLES, SANITIZED, build_engine, run

SOAK = os.path.join(os.path.dirname(os.path.dirname(ENGBENCH)), "tests", "bench", "soak_bench")
SEQUENCES = 60 if SANITIZED else 200
# Sanitizers retain freed memory and use memory themselves; few sequences do not find all places in the allocator's memory.
OPTIONS = ["--specs", "16" if SANITIZED else "40", "--most-drift", "0" if SANITIZED else "3"]
SUMMARY = re.compile(r"^(\d+) sequences, (\d+) slots, (\d+) ranks: (\d+) tokens in .* ([\d.]+) % of \d+ steps with all slots "
                     r"busy, (\d+) cancelled, (\d+) differ from alone, resident", re.M)

OTHERS = re.compile(r"^(?:\d+) cancelled by another thread, (\d+) forks, (\d+) of them with other options, (\d+) saved and restored, "
                    r"(\d+) ended by a stop string$", re.M)


class Soak(unittest.TestCase):
    def engine(self, *options):
        return build_engine(FABLES, "--max-context", "256", "--max-batch", "4", "--prefill-chunks", "8,64", *options)

    def soak(self, ranks, *options, kv_tokens=0, session=(), seed=7):
        result = run([SOAK, self.engine(*options), str(SEQUENCES), *OPTIONS, "--seed", str(seed), "--kv-tokens", str(kv_tokens), *session])
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
