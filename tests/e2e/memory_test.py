# SPDX-License-Identifier: Apache-2.0
"""engbuild streams the weights: its own memory does not grow with the checkpoint, tuned or not."""

import json
import os
import sys
import time
import unittest

from harness import ENGBUILD, ENGINFO, FABLES, MAKE_CHECKPOINT, SANITIZED, output_json, run, scratch, start, succeed

# 97 M parameters.
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
          "num_hidden_layers": 5, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 2048,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 16000, "tie_word_embeddings": False,
          "hidden_act": "silu", "torch_dtype": "bfloat16"}
# Allowed growth, as a share of the difference in checkpoint size.
MOST_GROWTH = 0.125
# 20 M parameters, for builds that take longer. All weights as codes are 14.4 MB.
SMALL_CONFIG = {**CONFIG, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
                "vocab_size": 8000}
MOST_QUANTISED_BYTES = 15_000_000
# Tuning measures the read bandwidth with a buffer larger than any cache.
MOST_UNTUNED_BYTES = 40_000_000
MOST_TUNED_BYTES = 400_000_000


def own_bytes(process):
    """Private memory of the process: allocated or written, not mapped from files."""
    try:
        with open("/proc/%d/smaps_rollup" % process.pid, encoding="ascii") as file:
            for line in file:
                if line.startswith("Anonymous:"):
                    return int(line.split()[1]) << 10
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


@unittest.skipIf(SANITIZED, "sanitizers have memory of their own")
@unittest.skipUnless(os.path.exists(MAKE_CHECKPOINT), "needs make_checkpoint")
@unittest.skipUnless(os.path.exists("/proc/self/smaps_rollup"), "needs /proc/PID/smaps_rollup")
class OwnMemory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model, cls.checkpoint_bytes = cls.make("model", CONFIG)

    @classmethod
    def make(cls, name, config):
        """(folder of a random checkpoint, bytes of its weights)"""
        shape, model = (os.path.join(cls.folder.name, each) for each in (name + "-shape", name))
        os.mkdir(shape)
        with open(os.path.join(shape, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        succeed([MAKE_CHECKPOINT, "--config", shape, "-o", model])
        return model, os.path.getsize(os.path.join(model, "model.safetensors"))

    def peak_of_build(self, model, *options):
        path = os.path.join(self.folder.name, "m.eng")
        process = start([ENGBUILD, "--model", model, "--tuning-cache", "none", "--quiet", "--max-batch", "2",
                         "--prefill-chunks", "32", "--max-context", "512", "-o", path, *options])
        peak = samples = 0
        while process.poll() is None:
            peak = max(peak, own_bytes(process))
            samples += 1
            time.sleep(0.002)
        _, errors = process.communicate()
        self.assertEqual(process.returncode, 0, errors)
        self.assertGreater(peak, 0)
        print("%s, %s: at most %.1f MB of its own (%d samples)" %
              (os.path.basename(model), " ".join(options), peak * 1e-6, samples), file=sys.stderr)
        return peak

    def check(self, most_bytes, *options):
        small = self.peak_of_build(FABLES, *options)
        large = self.peak_of_build(self.model, *options)
        self.assertLess(large, most_bytes)
        self.assertLess(large - small, self.checkpoint_bytes * MOST_GROWTH)
        self.assertGreater(os.path.getsize(os.path.join(self.folder.name, "m.eng")), self.checkpoint_bytes * 0.9)

    def test_untuned(self):
        self.check(MOST_UNTUNED_BYTES, "--tune", "off")
        self.assertEqual(run([ENGINFO, os.path.join(self.folder.name, "m.eng"), "--verify"]).rc, 0)

    def test_tuned(self):
        self.check(MOST_TUNED_BYTES, "--tune", "quick")

    def test_converted(self):
        """Wider weights are converted while they are written."""
        self.check(MOST_UNTUNED_BYTES, "--tune", "off", "--dtype", "f32")

    def test_quantised(self):
        """Codes are made of weights, and calibrated, part by part. The file holds its planes and little else."""
        model, _ = self.make("small", SMALL_CONFIG)
        hidden, inner, layers = (SMALL_CONFIG[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
        codes = layers * (3 * hidden * hidden + 3 * hidden * inner)
        head = 2 * SMALL_CONFIG["vocab_size"]  # rows of int8, each with a scale
        planes = codes // 2 + codes // 128 * 2 + head * (hidden + 4) + (2 * layers + 1) * hidden * 4
        for more in (["--no-accuracy"], ["--calibrate", "self"]):
            with self.subTest(more):
                options = ["--tune", "off", "--dtype", "int4", "--group", "128", "--max-context", "16", *more]
                self.assertLess(self.peak_of_build(model, *options), MOST_QUANTISED_BYTES)
                info = output_json([ENGINFO, os.path.join(self.folder.name, "m.eng"), "--json"])
                self.assertEqual({name: kind["elements"] for name, kind in info["matrices"].items()},
                                 {"int4_g128": codes, "int8_channel": head * hidden})
                self.assertAlmostEqual(info["manifest"]["memory"]["weights_bytes"] / planes, 1, delta=0.01)
                self.assertLess(info["file_bytes"] - planes, 3 << 20)  # sections begin at multiples of 2 MiB


if __name__ == "__main__":
    unittest.main()
