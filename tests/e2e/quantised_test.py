# SPDX-License-Identifier: Apache-2.0
"""Quantised checkpoints in the containers of the hub, on tiny random models, compared with what transformers recorded for
the dequantised weights in float32; on one rank and on two."""

import json
import os
import shutil
import unittest

from harness import (ENGBUILD, LOGIT_TOLERANCE, SANITIZED, ReferenceTest, build_engine, needs_shared, read_json,
                     recorded_cases, run, scratch, shared, tally, write)

DENSE = ["awq-w4-g32", "ct-fp8-channel", "ct-mxfp4", "ct-nvfp4", "ct-w4a16-g32", "ct-w4a16-g64-asym", "ct-w8a8-int",
         "fp8-block", "fp8-tensor-static", "gptq-w4-g32-sym", "gptq-w4-g64-asym-actorder", "gptq-w8-channel-v2",
         "modelopt-nvfp4"]
EXPERTS = ["gpt_oss-mxfp4", "moe-awq-w4-g32", "moe-fp8-block"]  # their families are not supported
RANKS = [[], ["--gpus", "2"]]


def folder_of(name):
    return shared("models", "quantised", name)


@needs_shared("models", "quantised")
class Quantised(ReferenceTest):
    def test_tokens(self):
        count = ties = 0
        for name in DENSE:
            for ranks in RANKS[1:] if SANITIZED else RANKS:
                engine = build_engine(folder_of(name), *ranks)
                for prompt, _, greedy, gaps in recorded_cases(folder_of(name)):
                    with self.subTest(name, ranks=ranks, prompt=len(prompt)):
                        ties += self.check_greedy(engine, prompt, greedy, gaps)
                        count += len(greedy)
        tally("greedy tokens of quantised models (%d ties)" % ties, count)

    def test_logits(self):
        count = 0
        for name in DENSE:
            for ranks in RANKS[1:] if SANITIZED else RANKS:
                engine = build_engine(folder_of(name), *ranks)
                for prompt, expected, _, _ in recorded_cases(folder_of(name)):
                    for back, row in enumerate(reversed(expected[-1 if SANITIZED else -4:])):
                        with self.subTest(name, ranks=ranks, prompt=len(prompt), position=len(prompt) - 1 - back):
                            _, (found,) = self.logits(engine, prompt[:len(prompt) - back])
                            self.check_logits(found, row, LOGIT_TOLERANCE, name)
                            count += 1
        tally("rows of logits of quantised models", count)

    def test_configuration_in_a_file_of_its_own(self):
        """Older writers put it beside config.json: the engine is the same, byte for byte."""
        for name, file, key in (("gptq-w4-g32-sym", "quantize_config.json", None), ("awq-w4-g32", "quant_config.json", None),
                                ("modelopt-nvfp4", "hf_quant_config.json", "quantization")):
            with self.subTest(name), scratch() as folder:
                model = os.path.join(folder, name)
                shutil.copytree(folder_of(name), model)
                config = read_json(model, "config.json")
                found = config.pop("quantization_config")
                if name != "modelopt-nvfp4":
                    del found["quant_method"]
                for path, value in (("config.json", config), (file, {key: found} if key else found)):
                    os.chmod(model, 0o755)
                    if os.path.exists(os.path.join(model, path)):
                        os.remove(os.path.join(model, path))
                    write(os.path.join(model, path), json.dumps(value).encode())
                with open(build_engine(model), "rb") as file, open(build_engine(folder_of(name)), "rb") as expected:
                    self.assertEqual(file.read(), expected.read())

    def test_every_folder_is_known(self):
        self.assertEqual(set(os.listdir(shared("models", "quantised"))), set(DENSE) | set(EXPERTS))
        for name in EXPERTS:
            with self.subTest(name), scratch() as folder:
                result = run([ENGBUILD, "--model", folder_of(name), "--target", "cpu", "-o", os.path.join(folder, "m.eng")])
                self.assertEqual(result.rc, 1, result.stderr)
                self.assertIn("model_type", result.stderr)


if __name__ == "__main__":
    unittest.main()
