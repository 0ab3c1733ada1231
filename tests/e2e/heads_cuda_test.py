# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 and StableLM 2 with norms of each head, for GPUs, without a GPU: dry runs of published shapes, and small engines that are built,
tuned and run with the fake driver and fake compiler of tests/fake_cuda, whose kernels compute nothing."""

import json
import os
import unittest

from harness import BUILT, ENGBUILD, ENGRUN, MAKE_CHECKPOINT, SANITIZED, run, sanitized_elsewhere, scratch, succeed, tally, write

FAKE = {"FAKE_CUDA_MEMORY": "100000000", "FAKE_CUDA_DEVICES": "2",
        "LD_LIBRARY_PATH": ":".join(os.path.join(BUILT, "tests", "fake_cuda", part) for part in ("whole", "compiler"))}
SMALL = ["--target", "cuda", "--max-batch", "4", "--batch-sizes", "1,4", "--prefill-chunks", "16", "--max-context", "128", "--quiet",
         "--lean", "--tuning-cache", "none"]


def gemma4(layers, every, hidden, inner, heads, kv_heads, **changes):
    """Every so many layers one without a window, and the last one."""
    kinds = ["full_attention" if (i + 1) % every == 0 or i + 1 == layers else "sliding_attention" for i in range(layers)]
    return {"model_type": "gemma4_text", "num_hidden_layers": layers, "layer_types": kinds, "hidden_size": hidden, "intermediate_size": inner,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 256, "global_head_dim": 512, "sliding_window": 512,
            "hidden_size_per_layer_input": 0, "vocab_size": 262144, "vocab_size_per_layer_input": 262144,
            "final_logit_softcapping": 30.0, **changes}


STABLELM = {"model_type": "stablelm", "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 100352, "qk_layernorm": True, "use_parallel_residual": True}
INPUTS = {"hidden_size_per_layer_input": 256}
GLOBAL_KEYS = {"attention_k_eq_v": True, "sliding_window": 1024}
# Shapes of published models, and the numbers of GPUs of this test.
PUBLISHED = {
    "E2B": (gemma4(35, 5, 1536, 6144, 8, 1, num_kv_shared_layers=20, use_double_wide_mlp=True, **INPUTS), (1, 2)),
    "E4B": (gemma4(42, 6, 2560, 10240, 8, 2, num_kv_shared_layers=18, **INPUTS), (1, 2)),
    "31B": (gemma4(60, 6, 5376, 21504, 32, 16, num_global_key_value_heads=4, **GLOBAL_KEYS), (1, 4)),
    "26B-A4B": (gemma4(30, 6, 2816, 2112, 16, 8, num_global_key_value_heads=2, enable_moe_block=True, num_experts=128, top_k_experts=8,
                       moe_intermediate_size=704, **GLOBAL_KEYS), (1, 2)),
    "StableLM 2 12B": (STABLELM, (1, 2)),
}
TINY = {"vocab_size": 320, "vocab_size_per_layer_input": 320, "max_position_embeddings": 512}
ENGINES = {
    "inputs of layers": gemma4(6, 3, 64, 96, 2, 1, num_kv_shared_layers=3, **{**INPUTS, **TINY, "hidden_size_per_layer_input": 16}),
    "experts": gemma4(4, 2, 64, 96, 4, 2, head_dim=32, global_head_dim=64, enable_moe_block=True, num_experts=8, top_k_experts=3,
                       moe_intermediate_size=48, attention_k_eq_v=True, **TINY),
    "norms of heads": {**STABLELM, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                       "num_key_value_heads": 2, "vocab_size": 320},
}


class Heads(unittest.TestCase):
    def setUp(self):
        folder = scratch()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def shape(self, config):
        os.makedirs(self.path("shape"), exist_ok=True)
        write(self.path("shape/config.json"), json.dumps(config).encode())
        return self.path("shape")

    def test_published_shapes(self):
        count = 0
        for name, (config, gpus) in PUBLISHED.items():
            for flags in ([], ["--kv-dtype", "fp8"], ["--dtype", "int4"], ["--dtype", "fp8", "--compute", "fp8"],
                          ["--dtype", "int8", "--compute", "int8"])[::3 if SANITIZED else 1]:
                for ranks in gpus:
                    with self.subTest(name, flags=flags, ranks=ranks):
                        result = run([ENGBUILD, "--model", self.shape(config), "--gpu", "h200", "--dry-run", "--tuning-cache", "none",
                                      "--max-context", "4096", "--gpus", str(ranks), *flags])
                        self.assertEqual((result.rc, result.stderr), (0, ""))
                        count += 1
        tally("dry runs", count)

    @sanitized_elsewhere
    def test_kernels_of_layers(self):
        """Decode attends in one launch; only E2B and E4B have layers without keys, which a prompt's plan rotates alone."""
        for name, (config, _) in PUBLISHED.items():
            dumped = succeed([ENGBUILD, "--model", self.shape(config), "--gpu", "h200", "--dry-run", "--tuning-cache", "none",
                              "--dump-after", "dead_code", "--quiet"]).stdout
            decode, prefill = dumped.split("# prefill graph")
            shared = config.get("num_kv_shared_layers", 0)
            with self.subTest(name):
                self.assertEqual(decode.count("appended=1"), 2 * shared)  # graphs of few rows and of many
                self.assertEqual((decode.count("rope_query("), prefill.count("rope_query(")), (0, shared))
                self.assertEqual(decode.count("= attention("), 0)

    def test_engines(self):
        for name, config in ENGINES.items():
            model = self.path("model of " + name)
            succeed([MAKE_CHECKPOINT, "--config", self.shape(config), "-o", model])
            for flags in ([], ["--tune", "off", "--gpus", "2"], ["--tune", "off", "--kv-dtype", "int8"])[:2 if SANITIZED else 3]:
                with self.subTest(name, flags=flags):
                    built = run([ENGBUILD, "--model", model, "-o", self.path("m.eng"), *SMALL, *flags], env=FAKE)
                    self.assertEqual(built.rc, 0, built.stderr)
                    done = succeed([ENGRUN, self.path("m.eng"), "--selftest"], env=FAKE)
                    self.assertIn("selftest passed", done.stdout)


if __name__ == "__main__":
    unittest.main()
