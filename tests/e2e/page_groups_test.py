# SPDX-License-Identifier: Apache-2.0
"""KV pages of groups of layers: layers with a window hold the pages of their window alone, and every result is that of an engine
whose sequences keep all pages."""

import json
import os
import shutil
import unittest

from harness import (BUILT, ENGBENCH, ENGBUILD, ENGINFO, ENGRUN, LOGIT_TOLERANCE, MAKE_CHECKPOINT, SANITIZED, ReferenceTest,
                     build_engine, needs_shared, output_json, read_json, run, scratch, shared, succeed, tally)

WINDOW, CONTEXT, CHUNK, PAGE = 16, 512, 16, 16
# A prefill plan as long as the context: a step may write all pages, so no window saves one, and there is one page group.
WINDOWED = ("--prefill-chunks", str(CHUNK), "--max-context", str(CONTEXT), "--max-batch", "2")
WHOLE = ("--prefill-chunks", "%d,%d" % (CHUNK, CONTEXT), "--max-context", str(CONTEXT), "--max-batch", "2")
RING = (WINDOW + CHUNK - 2 + PAGE - 1) // PAGE + 1  # pages that WINDOW + CHUNK - 1 tokens in a row touch
TINY = {"gemma2": [16, 0], "gemma3": [16] * 5 + [0], "cohere2": [16] * 3 + [0], "olmo3": [16] * 3 + [0],
        "exaone4": [16] * 3 + [0], "gpt_oss": [16, 0], "mistral-window": [16], "phi3": [16]}

GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96,
          "num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 320,
          "max_position_embeddings": CONTEXT, "sliding_window": WINDOW, "query_pre_attn_scalar": 32, "rms_norm_eps": 1e-6,
          "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
          "sliding_window_pattern": 6, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "bos_token_id": 1,
          "eos_token_id": 2, "pad_token_id": 0}
# Layers in their order, two in a page: layer 5 opens the fourth group.
GEMMA3_WINDOWS = [WINDOW] * 3 + [0] + [WINDOW] * 2
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 64, "intermediate_size": 96,
           "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320,
           "max_position_embeddings": CONTEXT, "sliding_window": WINDOW, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
           "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}

DRIVER = os.path.join(BUILT, "tests", "fake_cuda", "whole")
COMPILER = os.path.join(BUILT, "tests", "fake_cuda", "compiler")
FAKE = {"LD_LIBRARY_PATH": DRIVER + ":" + COMPILER, "FAKE_CUDA_MEMORY": "100000000", "FAKE_CUDA_DEVICES": "2"}


def prompt_of(length):
    return [1] + [3 + 7 * i % 311 for i in range(length - 1)]


def manifest_of(engine):
    return output_json([ENGINFO, engine, "--json"])["manifest"]


class PageGroups(ReferenceTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch()
        cls.models = {name: cls.make(name, config) for name, config in (("gemma3", GEMMA3), ("mistral", MISTRAL))}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def make(cls, name, config):
        shape, model = (os.path.join(cls.folder.name, name + end) for end in ("-shape", ""))
        os.mkdir(shape)
        with open(os.path.join(shape, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        succeed([MAKE_CHECKPOINT, "--config", shape, "-o", model])
        return model

    def check_same(self, model, what, lengths=((1, 250), (40, 100), (330, 60))):
        """Tokens and logits of sequences that pass their window many times."""
        windowed, whole = build_engine(model, *WINDOWED), build_engine(model, *WHOLE)
        self.assertNotIn("windows", manifest_of(whole)["kv_cache"])
        rows = 0
        for length, count in lengths[1:2] if SANITIZED else lengths:
            ids, expected = self.logits(whole, prompt_of(length), count)
            found_ids, found = self.logits(windowed, prompt_of(length), count)
            for step, (row, wanted) in enumerate(zip(found, expected)):
                self.check_logits(row, wanted, LOGIT_TOLERANCE, "%s, prompt of %d, step %d" % (what, length, step))
                if found_ids[step] != ids[step]:
                    best, second = sorted(wanted)[:-3:-1]
                    self.assertLess(best - second, 2 * LOGIT_TOLERANCE, "%s, step %d is no tie" % (what, step))
                    break
                rows += 1
            self.assertGreater(rows, 0)
        return rows

    def test_windows_of_the_groups(self):
        for name, windows in (("gemma3", GEMMA3_WINDOWS), ("mistral", [WINDOW])):
            cache = manifest_of(build_engine(self.models[name], *WINDOWED))["kv_cache"]
            self.assertEqual(cache["windows"], windows)
        one = manifest_of(build_engine(self.models["gemma3"], *WHOLE))["kv_cache"]["page_bytes"]
        several = manifest_of(build_engine(self.models["gemma3"], *WINDOWED))["kv_cache"]["page_bytes"]
        self.assertEqual(one, 6 * several)

    def test_same_results(self):
        tally("rows of logits", sum(self.check_same(model, name) for name, model in self.models.items()))

    def test_selftest(self):
        """Golden outputs reach pages that were used again."""
        for model in self.models.values():
            engine = build_engine(model, *WINDOWED)
            self.assertIn("selftest passed", succeed([ENGRUN, engine, "--selftest"]).stdout)
            golden = output_json([ENGINFO, engine, "--json"])["golden"]
            self.assertGreater(golden["plans"]["longest_context"], RING * PAGE)

    def test_several_ranks(self):
        for model in self.models.values():
            one = build_engine(model, *WINDOWED)
            two = build_engine(model, *WINDOWED, "--gpus", "2")
            self.assertEqual(manifest_of(one)["kv_cache"]["windows"], manifest_of(two)["kv_cache"]["windows"])
            self.assertIn("selftest passed", succeed([ENGRUN, two, "--selftest"]).stdout)
            _, expected = self.logits(one, prompt_of(200), 1)
            _, found = self.logits(two, prompt_of(200), 1)
            self.check_logits(found[0], expected[0], LOGIT_TOLERANCE, "two ranks")

    def test_exact_bytes(self):
        """The report of a build, of a dry run and enginfo: pages of a window do not grow with the context."""
        layer = PAGE * 2 * 2 * 32 * 4  # tokens, K and V, KV heads, head_dim, float32
        for context in (CONTEXT, CONTEXT // 2):
            flags = ["--prefill-chunks", str(CHUNK), "--max-context", str(context), "--max-batch", "2"]
            report = output_json([ENGBUILD, "--model", self.models["gemma3"], "--target", "cpu", "--dry-run", "--json", *flags])
            sliding, full = 5 * RING, context // PAGE
            self.assertEqual(report["memory"]["page_bytes"], 2 * layer)
            self.assertEqual(report["memory"]["pages_per_sequence"], sliding + full)
            expected = {"tokens": context, "pages": sliding + full, "bytes": (sliding + full) * 2 * layer, "windows": [
                {"window": WINDOW, "groups": 5, "pages": sliding, "bytes": sliding * 2 * layer},
                {"window": 0, "groups": 1, "pages": full, "bytes": full * 2 * layer}]}
            self.assertEqual(report["memory"]["kv_of_sequence"], expected)
            fixed = sum(report["memory"][part + "_bytes"] for part in ("weights", "comm", "arena", "step", "state"))
            self.assertEqual(report["fit"]["needed_bytes"], fixed + expected["bytes"])
        engine = build_engine(self.models["gemma3"], *WINDOWED)
        self.assertEqual(output_json([ENGINFO, engine, "--json"])["kv_of_sequence"]["pages"], 5 * RING + CONTEXT // PAGE)
        self.assertIn("layers with a window of 16 tokens: at most %d pages, %d bytes" % (5 * RING, 5 * RING * 2 * layer),
                      succeed([ENGINFO, engine]).stdout)
        text = succeed([ENGBUILD, "--model", self.models["gemma3"], "--target", "cpu", "--dry-run", *WINDOWED]).stdout
        self.assertIn("%d of its pages, %d bytes, are those of layers with a window" % (5 * RING, 5 * RING * 2 * layer), text)

    def test_a_pool_of_one_sequence(self):
        """A session takes no more than the bound; engbench asks for exactly the pages that it needs."""
        engine = build_engine(self.models["gemma3"], *WINDOWED)
        result = succeed([ENGBENCH, engine, "-p", "64", "-n", "200", "-b", "2", "-r", "1", "--json"])
        self.assertTrue(json.loads(result.stdout))

    def test_for_a_gpu(self):
        """Lowering, load and selftest with the fake driver, on one and two GPUs; results of kernels are not checked there."""
        with scratch() as folder:
            engine = os.path.join(folder, "m.eng")
            for options in ([], ["--gpus", "2"], ["--kv-dtype", "fp8"]):
                with self.subTest(options):
                    model = self.models["mistral" if options else "gemma3"]
                    succeed([ENGBUILD, "--model", model, "--target", "cuda", "-o", engine, "--tuning-cache", "none", "--tune",
                             "off", "--lean", "--quiet", *WINDOWED, *options], env=FAKE)
                    self.assertIn("selftest passed", succeed([ENGRUN, engine, "--selftest"], env=FAKE).stdout)
                    windows = manifest_of(engine)["kv_cache"]["windows"]
                    self.assertEqual(windows, [WINDOW] if options else GEMMA3_WINDOWS)

    @needs_shared("models", "hf-tiny")
    def test_families(self):
        rows = 0
        for name, windows in list(TINY.items())[::4 if SANITIZED else 1]:
            model = shared("models", "hf-tiny", name)
            if name == "phi3":
                copied = os.path.join(self.folder.name, name)
                shutil.copytree(model, copied)
                config = {**read_json(model, "config.json"), "sliding_window": WINDOW}
                with open(os.path.join(copied, "config.json"), "w", encoding="utf-8") as file:
                    json.dump(config, file)
                model = copied
            with self.subTest(name):
                self.assertEqual(manifest_of(build_engine(model, *WINDOWED))["kv_cache"]["windows"], windows)
                rows += self.check_same(model, name, ((1, 120), (90, 80)))
        tally("rows of logits", rows)


if __name__ == "__main__":
    unittest.main()
