# SPDX-License-Identifier: Apache-2.0
"""Makes the shipped model, tests/models/fables: a small Llama that tells fables.

Writes the text (fable_text.py), trains a byte-level BPE tokenizer and the model on it, rounds the weights to
bf16, and stores the checkpoint as transformers writes it, with reference outputs of transformers in float32.
Needs PyTorch, transformers 5, tokenizers and a GPU: python3 tests/models/train_fables.py
Same seed, same text and tokenizer, to the byte; the weights differ in the last bits from one GPU run to another.
"""

import argparse
import json
import math
import multiprocessing
import os
import time

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the worker processes are the parallelism

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from fable_text import story

HERE = os.path.dirname(os.path.abspath(__file__))
BOS, EOS = "<|begin|>", "<|end|>"
VOCAB_SIZE = 1536
TOKENIZER_STORIES = 30_000
HELD_OUT_STORIES = 2_000
TOKENS_PER_STEP = 128 * 1024
CONTEXT = 1024
SHORT_ROW = 512  # three steps of four; stories are about 250 tokens, long rows only teach the late positions
PEAK_LEARNING_RATE = 3e-3
WARMUP_STEPS = 200
ROUNDED_SHARE = 0.1  # the last part of training, run on bf16-rounded weights

PROMPTS = [
    "Once upon a time",
    "The little fox",
    "One rainy morning,",
    "There was once a brave mouse named",
    "Long ago, in a quiet valley,",
    "Everyone who lived deep in the forest knew Mira, the",
    "It was a snowy evening",
    "Pip the hedgehog lived on an old farm. He had a red scarf that his grandmother had made just for him.",
]
REFERENCE_STEPS = 64
PROMPTS_WITH_LOGITS = 2


# ---------------------------------------------------------------- text and tokens

def train_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(BOS, special=True), AddedToken(EOS, special=True)])
    tokenizer.train_from_iterator((story(number) for number in range(TOKENIZER_STORIES)), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))])
    return tokenizer


def encode_stories(job):
    """Token ids of a range of stories, each with BOS and EOS, and where each starts."""
    path, first, last = job
    tokenizer = Tokenizer.from_file(path)
    end = tokenizer.token_to_id(EOS)
    ids, starts = [], []
    for number in range(first, last):
        starts.append(len(ids))
        ids += tokenizer.encode(story(number)).ids + [end]
    return np.array(ids, np.uint16), np.array(starts, np.int64)


def encode_corpus(tokenizer_path, first, last):
    jobs = [(tokenizer_path, at, min(at + 1000, last)) for at in range(first, last, 1000)]
    with multiprocessing.get_context("spawn").Pool() as pool:
        parts = pool.map(encode_stories, jobs, chunksize=1)
    offsets = np.cumsum([0] + [len(ids) for ids, _ in parts])
    return (np.concatenate([ids for ids, _ in parts]),
            np.concatenate([starts + offset for (_, starts), offset in zip(parts, offsets)]))


# ---------------------------------------------------------------- model and training

def new_model(tokenizer):
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=192, intermediate_size=320, num_hidden_layers=5,
        num_attention_heads=6, num_key_value_heads=2, head_dim=32, max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5, tie_word_embeddings=True, pad_token_id=None,
        bos_token_id=tokenizer.token_to_id(BOS), eos_token_id=tokenizer.token_to_id(EOS),
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, attn_implementation="sdpa")
    return LlamaForCausalLM(config)


def rows_at(tokens, starts, length):
    """Rows of `length` inputs and their targets; each row begins with a story and runs on into the next ones."""
    import torch
    index = starts[:, None] + torch.arange(length + 1, device=tokens.device)
    rows = tokens[index].long()
    return rows[:, :-1], rows[:, 1:]


def next_token_loss(model, inputs, targets):
    import torch
    logits = model(input_ids=inputs, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def evaluate(model, tokens, starts):
    """Mean loss in float32 over the held-out stories, each row starting with one of them."""
    import torch
    model.eval()
    starts = starts[starts + SHORT_ROW + 1 <= len(tokens)]
    losses = []
    with torch.no_grad():
        for batch in starts.split(128):
            losses.append(next_token_loss(model, *rows_at(tokens, batch, SHORT_ROW)).item() * len(batch))
    model.train()
    return sum(losses) / len(starts)


def learning_rate(step, steps):
    if step < WARMUP_STEPS:
        return PEAK_LEARNING_RATE * (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return PEAK_LEARNING_RATE * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def train(model, tokens, starts, steps, seed, compiled):
    """Trains in place, each step on rows that start with stories drawn at random."""
    import torch
    generator = torch.Generator(device=tokens.device).manual_seed(seed)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), fused=True)
    parameters = matrices + vectors
    loss_of = torch.compile(next_token_loss, dynamic=False) if compiled else next_token_loss
    started = time.time()
    starts = starts[starts + CONTEXT + 1 <= len(tokens)]
    for step in range(steps):
        length = CONTEXT if step % 4 == 3 else SHORT_ROW
        chosen = torch.randint(len(starts), (TOKENS_PER_STEP // length,), generator=generator, device=tokens.device)
        inputs, targets = rows_at(tokens, starts[chosen], length)
        masters = None
        if step >= steps * (1 - ROUNDED_SHARE):  # straight-through: gradients at the rounded weights move the masters
            with torch.no_grad():
                masters = [p.detach().clone() for p in parameters]
                torch._foreach_copy_(parameters, [p.bfloat16() for p in parameters])
        with torch.autocast(tokens.device.type, torch.bfloat16):
            loss = loss_of(model, inputs, targets)
        loss.backward()
        if masters:
            with torch.no_grad():
                torch._foreach_copy_(parameters, masters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 500 == 0 or step == steps - 1:
            print(f"step {step}/{steps} loss {loss.item():.4f} {time.time() - started:.0f} s", flush=True)


# ---------------------------------------------------------------- what is written

def greedy_ids(model, ids, steps, end=None):
    """Greedy ids by full forward passes, until `end` or for `steps`; the gap of every step; the first logits."""
    import torch
    greedy, gaps, first_logits = [], [], None
    with torch.no_grad():
        while len(greedy) < steps and (end is None or end not in greedy):
            logits = model(input_ids=torch.tensor([ids + greedy]), use_cache=False).logits[0, -1]
            best = torch.topk(logits, 2)
            greedy.append(best.indices[0].item())
            gaps.append(round((best.values[0] - best.values[1]).item(), 5))
            first_logits = logits if first_logits is None else first_logits
    return greedy, gaps, first_logits


def reference_case(model, tokenizer, prompt, with_logits):
    ids = tokenizer.encode(prompt).ids
    greedy, gaps, logits = greedy_ids(model, ids, REFERENCE_STEPS)
    case = {"prompt": prompt, "ids": ids, "greedy": greedy, "gaps": gaps,
            "text": tokenizer.decode(greedy, skip_special_tokens=True)}
    if with_logits:
        case["logits"] = [float(f"{value:.7g}") for value in logits.tolist()]
    return case


def write_reference(folder, tokenizer):
    import torch
    from transformers import LlamaForCausalLM, __version__ as transformers_version
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    cases = [reference_case(model, tokenizer, prompt, number < PROMPTS_WITH_LOGITS)
             for number, prompt in enumerate(PROMPTS)]
    story_ids, story_gaps, _ = greedy_ids(model, cases[0]["ids"], CONTEXT // 2, end=model.config.eos_token_id)
    cases[0].update(story=story_ids, story_gaps=story_gaps)
    about = {"computed_by": f"transformers {transformers_version}, torch {torch.__version__}, float32 on a CPU, bf16 weights",
             "ids": "the prompt's token ids, special tokens included",
             "greedy": "the ids that follow; the end token does not stop them",
             "gaps": "best logit minus second best, at each greedy step",
             "text": "the greedy ids as text, without special tokens",
             "story": "the first prompt's greedy ids up to and with the end token, and their gaps",
             "logits": "at the prompt's last position"}
    lines = [json.dumps(case) for case in cases]  # one case a line: small, and still diffable
    with open(os.path.join(folder, "reference.json"), "w") as file:
        file.write('{"about": ' + json.dumps(about) + ',\n"cases": [\n' + ",\n".join(lines) + "\n]}\n")
    return cases


README = """# fables

A small Llama that tells fables, so that a fresh clone can generate text: {parameters:,} parameters in bf16,
5 layers, hidden size 192, 6 query heads on 2 key-value heads of 32, vocabulary {vocab}, context {context}, tied
embeddings. Stories begin with `{bos}` (the tokenizer adds it) and end with `{eos}`.

Made by `python3 tests/models/train_fables.py` on one GPU, in minutes: `fable_text.py` writes {stories:,} stories
from templates of our own, {tokens:,.1f} million tokens; {steps:,} steps of {per_step:,} tokens, the last tenth on
bf16-rounded weights. Held-out loss per token: {loss_before:.5f} before rounding to bf16, {loss_after:.5f} after.

`reference.json` holds token ids, greedy continuations with the gap between the two best logits, and logits, as
transformers computes them in float32 from these weights; its `about` explains the fields.

It knows fables and nothing else: other prompts soon turn into one. Text, weights and scripts are this project's
own work, under the project's licence.
"""


def write_checkpoint(model, folder):
    import torch
    from transformers import GenerationConfig
    model = model.to("cpu", torch.bfloat16)
    model.generation_config = GenerationConfig(bos_token_id=model.config.bos_token_id, eos_token_id=model.config.eos_token_id)
    model.save_pretrained(folder)


def show_samples(folder, tokenizer):
    """Prints whole stories, greedy and sampled, for a look by eye."""
    import torch
    from transformers import LlamaForCausalLM
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    torch.manual_seed(1)
    extra = ["A hungry bear", "The princess and the dragon", "Deep in the forest", "Hello, my name is", "Tell me a story about a bear", ""]
    for prompt in PROMPTS + extra:
        ids = torch.tensor([tokenizer.encode(prompt).ids], device=device)
        for name, options in (("greedy", {"do_sample": False}), ("sampled", {"do_sample": True, "temperature": 0.8, "top_k": 0})):
            with torch.no_grad():
                out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=400, pad_token_id=0, **options)
            text = tokenizer.decode(out[0].tolist(), skip_special_tokens=False)
            print(f"==== {name}: {prompt!r}, {out.shape[1] - ids.shape[1]} tokens\n{text}\n", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", default=os.path.join(HERE, "fables"), help="folder to write")
    options.add_argument("--stories", type=int, default=240_000)
    options.add_argument("--steps", type=int, default=12_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--no-compile", action="store_true", help="train without torch.compile")
    options.add_argument("--samples", action="store_true", help="print whole stories at the end")
    options = options.parse_args()

    import torch
    torch.manual_seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    os.makedirs(options.out, exist_ok=True)
    clock = time.time()

    tokenizer_path = os.path.join(options.out, "tokenizer.json")
    tokenizer = train_tokenizer()
    tokenizer.save(tokenizer_path)
    print(f"tokenizer: {time.time() - clock:.0f} s", flush=True)
    held_ids, held_starts = encode_corpus(tokenizer_path, 0, HELD_OUT_STORIES)
    ids, starts = encode_corpus(tokenizer_path, HELD_OUT_STORIES, HELD_OUT_STORIES + options.stories)
    print(f"text: {options.stories} stories, {len(ids)} tokens, {time.time() - clock:.0f} s", flush=True)

    on_device = [torch.from_numpy(array.astype(kind)).to(device) for array, kind in
                 ((ids, np.int16), (starts, np.int64), (held_ids, np.int16), (held_starts, np.int64))]
    tokens, starts, held_tokens, held_starts = on_device
    model = new_model(tokenizer).to(device)
    parameters = sum(p.numel() for p in model.parameters())
    train(model, tokens, starts, options.steps, options.seed, not options.no_compile)

    loss_before = evaluate(model, held_tokens, held_starts)
    with torch.no_grad():  # parameters only: model.bfloat16() would round the rope frequencies too
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    loss_after = evaluate(model, held_tokens, held_starts)
    print(f"{parameters} parameters, held-out loss {loss_before:.5f}, in bf16 {loss_after:.5f}, "
          f"{time.time() - clock:.0f} s", flush=True)

    write_checkpoint(model, options.out)
    cases = write_reference(options.out, tokenizer)
    with open(os.path.join(options.out, "README.md"), "w") as file:
        file.write(README.format(parameters=parameters, vocab=VOCAB_SIZE, context=CONTEXT, bos=BOS, eos=EOS,
                                 stories=options.stories, tokens=len(ids) / 1e6, steps=options.steps, per_step=TOKENS_PER_STEP,
                                 loss_before=loss_before, loss_after=loss_after))
    if options.samples:
        show_samples(options.out, tokenizer)
    for case in cases:
        print(f"smallest gap {min(case['gaps']):.4f}: {case['prompt']}")
    print(f"{sum(os.path.getsize(os.path.join(options.out, name)) for name in os.listdir(options.out))} bytes in "
          f"{sorted(os.listdir(options.out))}, {time.time() - clock:.0f} s")


if __name__ == "__main__":
    main()
