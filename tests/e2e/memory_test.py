# SPDX-License-Identifier: Apache-2.0
"""engbuild streams the weights: its own memory does not grow with the checkpoint, tuned or not."""

import json
import os
import sys
import time
import unittest

from harness import ENGBUILD, ENGINFO, FABLES, MAKE_CHECKPOINT, SANITIZED, run, scratch, start

# 97 M parameters.
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
          "num_hidden_layers": 5, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 2048,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 16000, "tie_word_embeddings": False,
          "hidden_act": "silu", "torch_dtype": "bfloat16"}
# Allowed growth, as a share of the difference in checkpoint size.
MOST_GROWTH = 0.125
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
        shape = os.path.join(cls.folder.name, "shape")
        cls.model = os.path.join(cls.folder.name, "model")
        os.mkdir(shape)
        with open(os.path.join(shape, "config.json"), "w", encoding="utf-8") as file:
            json.dump(CONFIG, file)
        made = run([MAKE_CHECKPOINT, "--config", shape, "-o", cls.model])
        if made.rc:
            raise AssertionError("make_checkpoint: exit %d\n%s" % (made.rc, made.stderr))
        cls.checkpoint_bytes = os.path.getsize(os.path.join(cls.model, "model.safetensors"))

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


if __name__ == "__main__":
    unittest.main()
