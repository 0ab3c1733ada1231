#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""References for tests/e2e/seeded_references_test.py: what transformers computes in float32 from weights that need no file, as they
follow from the tensors' names (tests/e2e/seeded_checkpoint.py):

    pip install torch transformers==5.17.0
    tests/models/make_references.py tests/e2e/data/references [NAME...]

Each file has the configuration, the tensors' names, shapes, means and spreads, and for each prompt the logits after it and the greedy
tokens."""

import copy
import json
import os
import struct
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM

import make_recordings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from seeded_checkpoint import write_tensors  # noqa: E402

NAMES = ("gemma4", "qwen3_5", "qwen3_5_moe", "ministral3", "llava_next-granite", "internvl-gpt_oss", "glm46v", "lfm2_moe", "glm4_moe_lite",
         "minimax_m2", "dots1", "exaone_moe", "solar_open", "flex_olmo", "youtu", "afmoe", "granitemoehybrid", "granitemoehybrid-experts",
         "granitemoehybrid-attention", "bamba", "nemotron_h", "nemotron_h-experts", "falcon_h1", "falcon_h1-norm", "arcee", "cohere", "cwm", "ernie4_5", "falcon",
         "falcon-grouped", "falcon-serial", "glm", "gpt_bigcode", "gpt_neo", "gptj", "helium", "hunyuan_v1_dense", "jais2", "ministral", "nanochat",
         "olmo", "phi", "vaultgemma", "granitemoeshared", "hunyuan_v1_moe", "hyperclovax", "apertus", "opt", "hy_v3", "mellum", "mistral3-mistral4", "axk1", "minicpm3",
         "gpt_oss-narrow", "qwen2_moe-windows", "qwen3_moe-windows", "smollm3-windows", "glm4-dynamic", "gpt2-scales")
PROMPT_LENGTHS = (7, 40)
NEW_TOKENS = 16


def described(path, is_unscaled):
    """[name, shape, mean, spread] of the tensors of a new model: as make_recordings.fill() has them."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    first = load_file(path)
    tensors = []
    for name in sorted(set(header) - {"__metadata__"}):
        shape = header[name]["shape"]
        if len(shape) > 1 and not name.endswith("norm.weight"):
            mean, spread = 0.0, shape[-1] ** -0.5
        elif any(part in name for part in ("bias", "A_log", "dt_")):
            mean, spread = 0.0, 0.1
        else:
            mean, spread = float(first[name].flatten()[0]), 0.05
            if is_unscaled and name.endswith("q_norm.weight"):
                mean, spread = mean * shape[-1] ** -0.5, spread * shape[-1] ** -0.5
        tensors.append([name, shape, round(mean, 6), round(spread, 6)])
    return tensors


def record(model):
    generator = torch.Generator().manual_seed(make_recordings.SEED)
    for length in PROMPT_LENGTHS:
        prompt = torch.randint(3, make_recordings.VOCABULARY - 20, (length,), generator=generator)
        tokens, gaps, logits = prompt.clone(), [], None
        for _ in range(NEW_TOKENS):
            row = model(input_ids=tokens[None]).logits[0, -1].float()
            logits = row if logits is None else logits
            best = torch.topk(row, 2)
            gaps.append(round(float(best.values[0] - best.values[1]), 5))
            tokens = torch.cat([tokens, best.indices[:1]])
        yield {"prompt": prompt.tolist(), "greedy": tokens[length:].tolist(), "top1_top2_gap": gaps,
               "logits": [round(float(value), 4) for value in logits]}


def make(name, path):
    model_type, fields = make_recordings.MODELS[name]
    config = AutoConfig.for_model(model_type, **copy.deepcopy(fields))
    auto = AutoModelForMultimodalLM if "text_config" in fields else AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        make_recordings.save(auto.from_config(config, attn_implementation="eager").float().eval(), folder, False)
        weights = os.path.join(folder, "model.safetensors")
        tensors = described(weights, "gemma4" in config.model_type)
        write_tensors(weights, tensors)
        model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            description = {"transformers": transformers.__version__, "config": json.load(file)}
    description["tensors"], description["cases"] = tensors, list(record(model))
    with open(path, "w", encoding="utf-8") as file:  # a line for each tensor and case
        parts = ['"%s": %s' % (key, "[\n%s\n]" % ",\n".join(map(json.dumps, value)) if isinstance(value, list) else json.dumps(value))
                 for key, value in description.items()]
        file.write("{\n%s\n}\n" % ",\n".join(parts))
    print("%s: %d tensors, least distance %g" % (name, len(tensors), min(min(case["top1_top2_gap"]) for case in description["cases"])),
          flush=True)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    os.makedirs(sys.argv[1], exist_ok=True)
    for chosen in sys.argv[2:] or NAMES:
        make(chosen, os.path.join(sys.argv[1], chosen + ".json"))
