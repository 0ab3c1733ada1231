"""engbuild streams the weights: its own memory stays far below the checkpoint's size, tuned or not."""

import json
import os
import time
import unittest

from harness import ENGBUILD, ENGINFO, MAKE_CHECKPOINT, SANITIZED, run, scratch, start

# 97 M parameters.
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
          "num_hidden_layers": 5, "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 2048,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 16000, "tie_word_embeddings": False,
          "hidden_act": "silu", "torch_dtype": "bfloat16"}
LIMIT_SHARE = 0.25


def own_bytes(process):
    """Memory that is this process's alone: what it allocated or wrote to, not what it mapped from files."""
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

    def peak_of_build(self, *options):
        path = os.path.join(self.folder.name, "m.eng")
        process = start([ENGBUILD, "--model", self.model, "--tuning-cache", "none", "--quiet", "--max-batch", "2",
                         "--prefill-chunks", "32", "--max-context", "512", "-o", path, *options])
        peak = samples = 0
        while process.poll() is None:
            peak = max(peak, own_bytes(process))
            samples += 1
            time.sleep(0.005)
        _, errors = process.communicate()
        self.assertEqual(process.returncode, 0, errors)
        self.assertGreater(samples, 10)
        self.assertGreater(os.path.getsize(path), self.checkpoint_bytes * 0.9)
        print("%s: at most %.1f MB of its own for a checkpoint of %.1f MB (%d samples)" %
              (" ".join(options), peak * 1e-6, self.checkpoint_bytes * 1e-6, samples))
        return path, peak

    def test_untuned(self):
        path, peak = self.peak_of_build("--tune", "off")
        self.assertLess(peak, self.checkpoint_bytes * LIMIT_SHARE)
        self.assertEqual(run([ENGINFO, path, "--verify"]).rc, 0)

    def test_tuned(self):
        _, peak = self.peak_of_build("--tune", "quick")
        self.assertLess(peak, self.checkpoint_bytes * LIMIT_SHARE)

    def test_converted(self):
        """Wider weights are converted on the way."""
        _, peak = self.peak_of_build("--tune", "off", "--dtype", "f32")
        self.assertLess(peak, self.checkpoint_bytes * LIMIT_SHARE)


if __name__ == "__main__":
    unittest.main()
