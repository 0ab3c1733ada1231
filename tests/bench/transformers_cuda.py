# SPDX-License-Identifier: Apache-2.0
"""Times Hugging Face transformers on a GPU, for comparison with engbench on the same checkpoint in the same run:

    transformers_cuda.py CHECKPOINT [--batches 1,16] [--prompts 2048] [--context 200] [--new 64] [--repetitions 5]

Static KV cache, bfloat16; the decode step compiled by torch.compile and replayed as a CUDA graph, prefill compiled and
eager. Prints a line each: median and half the distance between the quartiles over the repetitions. Needs transformers
5. Random weights do; tokens are random too.
"""

import argparse
import statistics

import torch
from transformers import AutoModelForCausalLM, StaticCache


def spread(values):
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 2


def report(test, times_ms, tokens):
    median = statistics.median(times_ms)
    print("%-24s %9.3f +- %.3f ms %12.0f tokens/s" % (test, median, spread(times_ms), tokens / median * 1e3), flush=True)


def timed(function):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def rewind(cache, tokens):
    """Resets the cache to this many tokens; later entries are masked, and overwritten by the next steps.

    Layers of transformers 5 count their tokens themselves, in a tensor from which they also make positions and masks;
    cache_position is ignored. cache.reset() would forget the prompt and clear keys and values. The count changes in
    place, so a captured graph sees it."""
    for layer in cache.layers:
        layer.cumulative_length.fill_(tokens)
        if hasattr(layer, "cumulative_length_int"):  # of a sliding window; the host's alone, not read by a replay
            layer.cumulative_length_int = tokens


WARM_UP = 3


@torch.inference_mode()
def decode(model, batch, arguments):
    cache = StaticCache(config=model.config, max_cache_len=arguments.context + max(arguments.new, WARM_UP + 1))
    prompt = torch.randint(model.config.vocab_size, (batch, arguments.context), device="cuda")
    model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
    token = torch.randint(model.config.vocab_size, (batch, 1), device="cuda")

    def step():
        logits = model(token, past_key_values=cache, use_cache=True).logits
        token.copy_(logits[:, -1].argmax(-1, keepdim=True))

    compiled = torch.compile(step, mode="max-autotune-no-cudagraphs" if arguments.autotune else None)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            compiled()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compiled()

    def run():
        for _ in range(arguments.new):
            graph.replay()

    times = []
    for _ in range(1 + arguments.repetitions):
        rewind(cache, arguments.context)
        times.append(timed(run) / arguments.new)
    held = int(cache.layers[0].cumulative_length)
    if held != arguments.context + arguments.new:
        raise SystemExit("the graph does not count tokens as the cache does: expected %d, found %d" %
                         (arguments.context + arguments.new, held))
    report("decode batch %d" % batch, times[1:], batch)  # without the first


@torch.inference_mode()
def prefill(model, tokens, arguments):
    prompt = torch.randint(model.config.vocab_size, (1, tokens), device="cuda")

    def run(forward):
        forward(prompt, use_cache=False, logits_to_keep=1)

    for name, forward in (("eager", model.forward), ("compiled", torch.compile(model.forward))):
        if name == "compiled" and arguments.eager:
            continue
        for _ in range(3):
            run(forward)
        times = [timed(lambda: run(forward)) for _ in range(arguments.repetitions)]
        report("prefill %d %s" % (tokens, name), times, tokens)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--prompts", default="2048")
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--autotune", action="store_true", help="torch.compile's max-autotune for decode")
    parser.add_argument("--eager", action="store_true", help="prefill without torch.compile")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=torch.bfloat16, device_map="cuda").eval()
    print("torch %s, %s" % (torch.__version__, torch.cuda.get_device_name()), flush=True)
    for tokens in [int(text) for text in arguments.prompts.split(",") if text]:
        prefill(model, tokens, arguments)
    for batch in [int(text) for text in arguments.batches.split(",") if text]:
        decode(model, batch, arguments)


if __name__ == "__main__":
    main()
