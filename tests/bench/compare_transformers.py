# SPDX-License-Identifier: Apache-2.0
"""Compares an engine with Hugging Face transformers on the same checkpoint and GPU:

    compare_transformers.py CHECKPOINT ENGINE --engrun PATH [--prompt 64] [--new 16] [--dtype bfloat16] [--float32]

engrun continues a random prompt greedily and writes its logits; transformers is fed the same tokens and must give the
same logits within --bound of the largest one, and the same greedy token wherever its own two best are further apart than
twice the largest difference seen. Exit code 1 if not. Needs torch and transformers.

Rounding makes a router of experts choose otherwise, so that two engines in bfloat16 may differ by more. With --float32 both are
compared with transformers in float32 instead: the engine must be as close to it as transformers in bfloat16 is, in its mean and
its largest difference, within a factor of 1.5, or within the bound.
"""

import argparse
import subprocess
import sys
import tempfile

import numpy
import torch
from transformers import AutoConfig, AutoModelForCausalLM


def logits_of(checkpoint, dtype, tokens, first):
    """Rows from position `first` on."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype, device_map="cuda").eval()
    return model(torch.tensor([tokens], device="cuda")).logits[0, first:].double().cpu()


def compare_with_float32(arguments, found, rounded, exact):
    scale = exact.abs().max().item()
    ours, theirs = (found - exact).abs() / scale, (rounded - exact).abs() / scale
    good = all(a <= max(1.5 * b, arguments.bound) for a, b in
               ((ours.max().item(), theirs.max().item()), (ours.mean().item(), theirs.mean().item())))
    for name, error in (("engine", ours), ("transformers", theirs)):
        rows = error.max(dim=1).values
        print("%s against float32: largest %.2e, mean %.2e, %d of %d rows beyond %g" % (
            name, error.max().item(), error.mean().item(), (rows > arguments.bound).sum().item(), len(rows), arguments.bound))
    print("as close as transformers: %s" % ("good" if good else "BAD"))
    return good


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
    parser.add_argument("--float32", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(2)
    vocab = AutoConfig.from_pretrained(arguments.checkpoint).get_text_config().vocab_size
    prompt = torch.randint(vocab, (arguments.prompt,)).tolist()
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        answer = subprocess.run(
            [arguments.engrun, arguments.engine, "--tokens", ",".join(map(str, prompt)), "-n", str(arguments.new),
             "--ignore-eos", "--print-tokens", "--logits", file.name],
            check=True, capture_output=True, text=True)
        found = torch.from_numpy(numpy.load(file.name)).double()
    tokens = [int(word) for word in answer.stdout.split()]
    inputs, first = prompt + tokens[:-1], len(prompt) - 1
    expected = logits_of(arguments.checkpoint, getattr(torch, arguments.dtype), inputs, first)
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
    if arguments.float32:
        torch.cuda.empty_cache()
        good = compare_with_float32(arguments, found, expected, logits_of(arguments.checkpoint, torch.float32, inputs, first))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
