# SPDX-License-Identifier: Apache-2.0
"""Compares an engine with Hugging Face transformers on the same checkpoint and GPU:

    compare_transformers.py CHECKPOINT ENGINE --engrun PATH [--prompt 64] [--new 16] [--dtype bfloat16]

engrun continues a random prompt greedily and writes its logits; transformers is fed the same tokens and must give the
same logits within --bound of the largest one, and the same greedy token wherever its own two best are further apart than
twice the largest difference seen. Exit code 1 if not. Needs torch and transformers.
"""

import argparse
import subprocess
import sys
import tempfile

import numpy
import torch
from transformers import AutoModelForCausalLM


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("engine")
    parser.add_argument("--engrun", default="engrun")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--bound", type=float, default=3e-2)
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=getattr(torch, arguments.dtype),
                                                 device_map="cuda").eval()
    torch.manual_seed(2)
    prompt = torch.randint(model.config.vocab_size, (arguments.prompt,)).tolist()
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        answer = subprocess.run(
            [arguments.engrun, arguments.engine, "--tokens", ",".join(map(str, prompt)), "-n", str(arguments.new),
             "--ignore-eos", "--print-tokens", "--logits", file.name],
            check=True, capture_output=True, text=True)
        found = torch.from_numpy(numpy.load(file.name)).double()
    tokens = [int(word) for word in answer.stdout.split()]
    inputs = torch.tensor([prompt + tokens[:-1]], device="cuda")
    expected = model(inputs).logits[0, len(prompt) - 1:].double().cpu()
    scale = expected.abs().max().item()
    difference = (found - expected).abs().max().item()
    ties, wrong = 0, 0
    for row, token in enumerate(tokens):
        best = expected[row].topk(2)
        if best.indices[0].item() != token:
            if (best.values[0] - best.values[1]).item() <= 2 * difference:
                ties += 1
            else:
                wrong += 1
    good = difference <= arguments.bound * scale and wrong == 0
    print("%s: prompt %d, %d tokens: largest difference %.5f of %.3f (%.2e), %d ties, %d wrong: %s" % (
        arguments.dtype, len(prompt), len(tokens), difference, scale, difference / scale, ties, wrong,
        "good" if good else "BAD"))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
