# SPDX-License-Identifier: Apache-2.0
"""Trained models give the tokens of the reference implementations: the shipped fables, and real stories. Tokens equal
the recorded ones, except where the recorded distance between the two best logits is below the arithmetic's own error;
logits lie within a stated bound."""

import json
import os
import shutil
import unittest

from harness import (ENGRUN, FABLES, INSTRUCTION_SETS, LOGIT_TOLERANCE, SANITIZED, TIE_GAP, FablesReference,
                     ReferenceTest, build_engine, fables_engine, needs_shared, read_json, run, runs_here, scratch,
                     shared, succeed, tally)

# A KV cache in bf16 has 8 significant bits, in fp16 11; int8 has steps of 2^-7 of a row's largest, fp8 4 significant bits.
KV_TOLERANCES = {"bf16": 0.25, "fp16": 0.05, "int8": 0.5, "fp8": 1.5}
# Largest part of the tokens, each drawn after the reference's own, that may differ.
KV_DIFFERENCES = {"bf16": 0.01, "fp16": 0.01, "int8": 0.02, "fp8": 0.06}


class Stories(ReferenceTest):
    """A trained model of 260 K parameters with a SentencePiece tokenizer."""

    MODELS = ["stories260K", "stories260K-bf16"]

    def reference(self):
        reference = read_json(shared("models", "stories260K", "greedy_reference.json"))
        return reference["greedy_ids_from_bos"], reference["text"]

    @needs_shared("models", "stories260K")
    def test_tokens(self):
        ids, _ = self.reference()
        self.assertEqual(len(ids), 101)
        for model in self.MODELS:
            with self.subTest(model):
                self.assertEqual(self.generate(build_engine(shared("models", model)), [1], 100), ids[1:])
        tally("stories: models", len(self.MODELS))

    @needs_shared("models", "stories260K")
    def test_text(self):
        prompt = "Once upon a time"
        ids, text = self.reference()
        self.assertEqual(text.strip().find(prompt), 0)
        for model in self.MODELS:
            with self.subTest(model):
                engine = build_engine(shared("models", model))
                line = run([ENGRUN, engine, "--tokenize", "--add-special"], input=json.dumps(prompt) + "\n")
                tokens = json.loads(line.stdout)
                self.assertEqual(tokens, ids[:len(tokens)])
                result = succeed([ENGRUN, engine, "-p", prompt, "-n", str(len(ids) - len(tokens))])
                self.assertEqual(result.stdout, text.lstrip(" ")[len(prompt):] + "\n")
                self.assertEqual(result.stderr, "")

    @needs_shared("models", "stories260K")
    def test_text_from_the_beginning(self):
        _, text = self.reference()
        result = succeed([ENGRUN, build_engine(shared("models", "stories260K")), "--tokens", "1", "-n", "100"])
        self.assertEqual(result.stdout.strip("\n").lstrip(" "), text.lstrip(" "))

    @needs_shared("models", "stories260K")
    def test_options(self):
        ids, _ = self.reference()
        for model in self.MODELS:
            for options in (["--dtype", "f32"], ["--dtype", "bf16"], ["--dtype", "fp16"], ["--prefill-chunks", "1"]):
                if model == "stories260K" and "16" in options[1]:
                    continue  # rounds the weights, which makes it another model
                with self.subTest(model, options=options):
                    engine = build_engine(shared("models", model), *options)
                    self.assertEqual(self.generate(engine, [1], 100), ids[1:])
            with self.subTest(model, options="instruction sets"):
                engine = build_engine(shared("models", model))
                for name in INSTRUCTION_SETS:
                    if runs_here(engine, name):
                        self.assertEqual(self.generate(engine, [1], 100, "--isa", name), ids[1:], name)

    @needs_shared("models", "stories260K")
    def test_kv_cache_in_fewer_bits(self):
        ids, _ = self.reference()
        model = shared("models", "stories260K")
        exact_ids, exact = self.logits(build_engine(model), [1], 100)
        self.assertEqual(exact_ids, ids[1:])
        gaps = [sorted(row)[-1] - sorted(row)[-2] for row in exact]
        for dtype, tolerance in KV_TOLERANCES.items():
            with self.subTest(dtype):
                engine = build_engine(model, "--kv-dtype", dtype)
                ties = self.check_greedy(engine, [1], ids[1:], gaps, tie_gap=2 * tolerance)
                self.assertLessEqual(ties, KV_DIFFERENCES[dtype] * len(ids))
                for step in (0, 10, 50, 99):
                    _, (row,) = self.logits(engine, ids[:step + 1])
                    self.check_logits(row, exact[step], tolerance, "%s, step %d" % (dtype, step))


class Fables(FablesReference, ReferenceTest):
    """The shipped model."""

    @classmethod
    def setUpClass(cls):
        cls.cases = read_json(FABLES, "reference.json")["cases"]
        cls.engine = fables_engine()

    def test_prompt_ids(self):
        lines = "".join(json.dumps(case["prompt"]) + "\n" for case in self.cases)
        result = succeed([ENGRUN, self.engine, "--tokenize", "--add-special"], input=lines)
        found = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual(found, [case["ids"] for case in self.cases])
        tally("fables: prompts", len(self.cases))

    def test_text(self):
        for case in self.cases:
            with self.subTest(case["prompt"]):
                count = str(len(case["greedy"]))
                result = succeed([ENGRUN, self.engine, "-p", case["prompt"], "-n", count, "--ignore-eos"])
                self.assertEqual(result.stdout, case["text"] + "\n")

    def test_gaps(self):
        """The distance between the two best logits at every step is the recorded one."""
        count = 0
        for case in self.cases[:2 if SANITIZED else None]:
            ids, found = self.logits(self.engine, case["ids"], len(case["greedy"]))
            if ids != case["greedy"]:
                continue  # a tie, which test_tokens handles
            for step, row in enumerate(found):
                best, second = sorted(row)[:-3:-1]
                self.assertAlmostEqual(best - second, case["gaps"][step], delta=TIE_GAP, msg="step %d" % step)
                count += 1
        tally("fables: gaps", count)

    def test_options(self):
        case = self.cases[0]
        for options in (["--dtype", "f32"], ["--dtype", "bf16"], ["--prefill-chunks", "1"],
                        ["--prefill-chunks", "3,300"], ["--batch-sizes", "3"], ["--max-batch", "1"],
                        ["--max-context", "128"]):
            with self.subTest(options=options):
                engine = build_engine(FABLES, *options)
                self.check_greedy(engine, case["ids"], case["greedy"], case["gaps"])
                _, (row,) = self.logits(engine, case["ids"])
                self.check_logits(row, case["logits"], LOGIT_TOLERANCE, str(options))

    def test_weights_in_fp16(self):
        """bf16 weights of usual magnitude are exact in fp16, except for the smallest, which become subnormal."""
        case = self.cases[0]
        engine = build_engine(FABLES, "--dtype", "fp16")
        self.check_greedy(engine, case["ids"], case["greedy"], case["gaps"])
        _, (row,) = self.logits(engine, case["ids"])
        self.check_logits(row, case["logits"], LOGIT_TOLERANCE, "fp16")

    def test_kv_cache_in_fewer_bits(self):
        for dtype, tolerance in KV_TOLERANCES.items():
            engine = build_engine(FABLES, "--kv-dtype", dtype)
            ties = tokens = 0
            for case in self.cases:
                with self.subTest(dtype, prompt=case["prompt"]):
                    ties += self.check_greedy(engine, case["ids"], case["greedy"], case["gaps"], tie_gap=2 * tolerance)
                    tokens += len(case["greedy"])
                    if "logits" in case:
                        _, (row,) = self.logits(engine, case["ids"])
                        self.check_logits(row, case["logits"], tolerance, dtype)
            with self.subTest(dtype, ties=ties):
                self.assertLessEqual(ties, KV_DIFFERENCES[dtype] * tokens)
            tally("fables: tokens of a KV cache in %s (%d differ)" % (dtype, ties), tokens)

    def test_config_of_either_generation(self):
        """transformers 4 and 5 name things differently: the same engine either way."""
        with scratch() as folder:
            older = os.path.join(folder, "fables")
            shutil.copytree(FABLES, older)
            path = os.path.join(older, "config.json")
            config = read_json(path)
            config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
            config["rope_scaling"] = None
            config["torch_dtype"] = config.pop("dtype")
            config["transformers_version"] = "4.44.0"
            os.chmod(path, 0o644)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(config, file)
            with open(build_engine(older), "rb") as found, open(self.engine, "rb") as expected:
                self.assertEqual(found.read(), expected.read())


if __name__ == "__main__":
    unittest.main()
