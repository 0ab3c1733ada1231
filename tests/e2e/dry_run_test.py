# SPDX-License-Identifier: Apache-2.0
"""engbuild --dry-run: for a GPU that this machine does not have, and for models that do not fit."""

import json
import os
import unittest

from harness import BUILT, ENGBUILD, FABLES, run, scratch

BAD_INPUT, USAGE, MACHINE = 1, 2, 3
FAKE = {"FAKE_CUDA_MEMORY": str(150 << 30),
        "LD_LIBRARY_PATH": ":".join(os.path.join(BUILT, "tests", "fake_cuda", part) for part in ("whole", "compiler"))}

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
          "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
          "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "vocab_size": 128256,
          "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16"}
# Two terabytes of weights: more memory than any machine of this test has.
HUGE = {**CONFIG, "hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128, "head_dim": 128,
        "num_hidden_layers": 300}
# 141 GB: too large for one H200, fits on two.
LARGE = {**CONFIG, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "head_dim": 128,
         "num_hidden_layers": 88, "tie_word_embeddings": False}


class Planning(unittest.TestCase):
    def setUp(self):
        folder = scratch()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def plan(self, config, *flags, rc=0, env=None):
        path = os.path.join(self.folder, "config.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        result = run([ENGBUILD, "--model", self.folder, "--dry-run", "--tuning-cache", "none", *flags], env=env)
        self.assertEqual(result.rc, rc, result.stderr)
        self.assertEqual(os.listdir(self.folder), ["config.json"])
        return result


class NamedGpu(Planning):
    def test_a_gpu_that_is_not_here(self):
        named = self.plan(CONFIG, "--gpu", "h200")
        self.assertEqual(named.stderr, "")
        for words in ("cuda: NVIDIA H200", "compute capability 9.0", "facts on record", "nothing was written",
                      "bytes per KV page"):
            self.assertIn(words, named.stdout)
        unnamed = self.plan(CONFIG, "--target", "cuda", env={**FAKE, "FAKE_CUDA_DEVICES": "0"})
        self.assertEqual(unnamed.stdout, named.stdout)
        self.assertRegex(unnamed.stderr, r"warning: .*--gpu h200")
        self.assertIn("no CUDA-capable device", unnamed.stderr)  # reason why no GPU of this machine was used

    def test_same_plans_as_on_such_a_gpu(self):
        """The fake driver reports an H200."""
        here = json.loads(self.plan(CONFIG, "--target", "cuda", "--json", env=FAKE).stdout)
        record = json.loads(self.plan(CONFIG, "--gpu", "H200", "--json").stdout)
        self.assertTrue(record["gpu_on_record"])
        self.assertNotIn("gpu_on_record", here)
        for key in ("memory", "limits", "parameters", "ranks"):
            self.assertEqual(here[key], record[key])
        for one, other in zip(here["plans"], record["plans"]):
            self.assertEqual({**one, "estimate_us": 0}, {**other, "estimate_us": 0})
            self.assertLess(abs(one["estimate_us"] / other["estimate_us"] - 1), 0.05)

    def test_candidates_of_a_gpu_that_is_not_here(self):
        listed = self.plan(CONFIG, "--list-candidates", "--gpu", "h200").stdout
        self.assertIn("NVIDIA H200", listed)
        self.assertIn("matmul_wgmma", listed)

    def test_wrong_names(self):
        self.assertIn("--gpu: expected one of h200; found 'a100'", self.plan(CONFIG, "--gpu", "a100", rc=USAGE).stderr)
        result = run([ENGBUILD, "--model", FABLES, "--gpu", "h200"])
        self.assertEqual(result.rc, USAGE)
        self.assertIn("--dry-run", result.stderr)
        self.assertIn("--target", self.plan(CONFIG, "--target", "cpu", "--gpu", "h200", rc=USAGE).stderr)

    def test_a_gpu_number_that_is_not_there(self):
        """If the machine has GPUs, the facts come from one of the requested kind only."""
        result = self.plan(CONFIG, "--target", "cuda", "--device", "7", env=FAKE, rc=MACHINE)
        self.assertIn("GPU 7", result.stderr)


class Fit(Planning):
    def fit(self, config, *flags, rc=0):
        report = self.plan(config, *flags, "--json", rc=rc)
        fit = json.loads(report.stdout)["fit"]
        self.assertEqual(fit["fits"], rc == 0)
        self.assertEqual(fit["fits"], fit["needed_bytes"] <= fit["available_bytes"])
        return fit, report.stderr

    def test_processors(self):
        fit, errors = self.fit(HUGE, "--target", "cpu", rc=MACHINE)
        self.assertGreater(fit["needed_bytes"], 1.9e12)
        for words in ("does not fit", str(fit["needed_bytes"]), str(fit["available_bytes"]),
                      "(%.1f GB)" % (fit["needed_bytes"] * 1e-9)):
            self.assertIn(words, errors)
        self.fit({**CONFIG, "num_hidden_layers": 1, "vocab_size": 1000}, "--target", "cpu", "--max-context", "128")

    def test_words(self):
        for flags in (["--target", "cpu"], ["--gpu", "h200"]):
            text = self.plan(HUGE, *flags, rc=MACHINE).stdout
            self.assertRegex(text, r"fit +does not fit: needs \d+ bytes \(\d+\.\d GB\)")
            self.assertIn("nothing was written", text)
        self.assertRegex(self.plan(CONFIG, "--gpu", "h200").stdout, r"fit +needs \d+ bytes \(\d+\.\d GB\) with one full sequence; a GPU has \d+ ")

    def test_gpus(self):
        fit, errors = self.fit(LARGE, "--gpu", "h200", rc=MACHINE)
        self.assertIn("--gpus", errors)
        half, _ = self.fit(LARGE, "--gpu", "h200", "--gpus", "2")
        self.assertEqual(half["available_bytes"], fit["available_bytes"])
        self.assertAlmostEqual(half["needed_bytes"] / fit["needed_bytes"], 0.5, delta=0.02)

    def test_gpus_with_norms_after_sums(self):
        sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
                 "vocab_size": 320}
        self.plan({"model_type": "gemma3_text", **sizes}, "--gpu", "h200", "--gpus", "2")
        for family in ("exaone4", "olmo2"):
            config = {"model_type": family, **sizes, "sliding_window": None}
            # The embedding is multiplied without a norm before: a sum over GPUs has a copy of 16 bits, one GPU looks it up twice.
            for gpus, copies in ((1, 0), (2, 1)):
                decode = self.plan(config, "--gpu", "h200", "--gpus", str(gpus), "--dump-after", "dead_code").stdout.split("# prefill graph")[0]
                graphs = decode.count("# decode graph")
                self.assertEqual(decode.count("= sum_parts("), copies * graphs)
                self.assertEqual(decode.count("= mean_squares("), 2 * copies * graphs if family == "olmo2" else 0)

    def test_a_router_with_codes(self):
        """The launch for few rows that a router is a part of reads its matrix in 16 bits: with codes the plan is that for many rows."""
        config = {**CONFIG, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 16, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 768, "norm_topk_prob": True}
        flags = ("--target", "cuda", "--gpu", "h200", "--batch-sizes", "1", "--max-batch", "1")
        fused = self.plan(config, *flags, "--dump-after", "dead_code")
        apart = self.plan(config, *flags, "--keep", "*mlp.gate.weight=int8")
        self.assertIn("routed_mlp(", fused.stdout)
        self.assertNotIn("warning", fused.stderr)
        self.assertRegex(apart.stderr, r"decode plan of 1 rows: made as for many rows: routed_matmul .*matrix_dtype")

    def test_experts_with_codes_in_one_matrix(self):
        """The launch for few rows that has both matmuls over the experts takes codes of both or of none: else the first has its own."""
        config = {**CONFIG, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 16, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 768, "norm_topk_prob": True}
        flags = ("--target", "cuda", "--gpu", "h200", "--batch-sizes", "1", "--max-batch", "1", "--dtype", "fp8", "--dump-after", "dead_code")
        for options, fused in (((), True), (("--keep", "*.experts.*.down_proj.weight=bf16"), False)):
            with self.subTest(fused):
                plan = self.plan(config, *flags, *options)
                self.assertEqual("routed_mlp(" in plan.stdout, fused)
                self.assertIn("routed_matmul(", plan.stdout)
                self.assertNotIn("warning", plan.stderr)

    def test_parts(self):
        """Weights, scratch and the KV pages of one full sequence."""
        report = json.loads(self.plan(CONFIG, "--gpu", "h200", "--json").stdout)
        memory = report["memory"]
        parts = sum(memory[name] for name in ("weights_bytes", "arena_bytes", "step_bytes", "state_bytes", "comm_bytes"))
        self.assertEqual(report["fit"]["needed_bytes"], parts + memory["page_bytes"] * memory["pages_per_sequence"])

    def test_gigabytes_beside_bytes(self):
        report = json.loads(self.plan(CONFIG, "--gpu", "h200", "--json").stdout)
        weights = report["memory"]["weights_bytes"]
        self.assertIn("weights %d (%.2f GB)" % (weights, weights * 1e-9), self.plan(CONFIG, "--gpu", "h200").stdout)


if __name__ == "__main__":
    unittest.main()
