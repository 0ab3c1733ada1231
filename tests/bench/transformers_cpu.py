# SPDX-License-Identifier: Apache-2.0
"""Times Hugging Face transformers on the CPU, for comparison with engbench on the same checkpoint:

    transformers_cpu.py CHECKPOINT [--prompt 128] [--new 32] [--repetitions 3] [--threads N] [--dtype bfloat16]

Prints one line each for prefill and decode at batch 1: mean and standard deviation of tokens/s over the repetitions,
after one that does not count. Needs torch and transformers. Random weights do; tokens are random too.
"""

import argparse
import statistics
import time

import torch
from transformers import AutoModelForCausalLM


def report(test, rates):
    spread = statistics.stdev(rates) if len(rates) > 1 else 0.0
    print("%-8s %10.2f +- %.2f tokens/s" % (test, statistics.mean(rates), spread), flush=True)


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--dtype", default="bfloat16")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=getattr(torch, arguments.dtype))
    model.eval()
    print("torch %s, %d threads, %s, loaded in %.1f s" % (torch.__version__, torch.get_num_threads(), arguments.dtype,
                                                          time.perf_counter() - start), flush=True)
    torch.manual_seed(1)
    prefill, decode = [], []
    for repetition in range(-1, arguments.repetitions):
        prompt = torch.randint(model.config.vocab_size, (1, arguments.prompt))
        start = time.perf_counter()
        out = model(prompt, use_cache=True, logits_to_keep=1)
        middle = time.perf_counter()
        for _ in range(arguments.new):
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
        end = time.perf_counter()
        if repetition >= 0:
            prefill.append(arguments.prompt / (middle - start))
            decode.append(arguments.new / (end - middle))
    report("pp%d" % arguments.prompt, prefill)
    report("tg%d" % arguments.new, decode)


if __name__ == "__main__":
    main()
