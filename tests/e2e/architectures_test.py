"""Every supported architecture, on tiny random checkpoints, against an independent forward pass written here in plain
Python and float64, and against what transformers recorded.

The recordings were made from models that were cast to bf16 and back: their weights are bf16 values anyway, but the
rotary embedding's inverse frequencies were rounded, too, which transformers does not do when it loads a checkpoint, and
which turns positions by up to 0.4 %. So an engine is compared with the recordings when it was built with --rope-dtype
bf16, and as it is by default with the pass below; rounded the same way, that pass must reproduce the recordings itself.
Recordings with exact frequencies are recognised and compared with engines as they are by default."""

import array
import functools
import json
import math
import os
import struct
import unittest
from operator import add, mul

from harness import (ENGBUILD, LOGIT_TOLERANCE, SANITIZED, ReferenceTest, build_engine, needs_shared, read_json,
                     read_npz, rows, run, scratch, shared, tally)

SUPPORTED = ["llama3", "llama-tied-sharded", "mistral-window", "qwen2", "qwen3"]
REFUSED = {"gemma2": "gemma2", "gemma3": "gemma3_text", "gpt2": "gpt2", "mixtral": "mixtral", "olmo2": "olmo2",
           "phi3": "phi3", "qwen3_moe": "qwen3_moe"}

# transformers computed in float32.
RECORDING_TOLERANCE = 2e-5
BF16_KV_TOLERANCE = 0.05


def bf16(value):
    """The nearest bf16 value, ties to even."""
    bits, = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7FFF + (bits >> 16 & 1)
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]


def read_weights(folder):
    """{tensor: list of numbers, or list of rows} of the bf16 .safetensors files in a folder."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        length, = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + length])
        header.pop("__metadata__", None)
        for tensor, entry in header.items():
            first, end = entry["data_offsets"]
            halves = array.array("H", data[8 + length + first:8 + length + end])
            values = array.array("f", array.array("I", [half << 16 for half in halves]).tobytes()).tolist()
            if len(entry["shape"]) == 2:
                width = entry["shape"][1]
                values = [values[i:i + width] for i in range(0, len(values), width)]
            tensors[tensor] = values
    return tensors


def matmul(matrix, vector):
    return [sum(map(mul, row, vector)) for row in matrix]


def rms_norm(vector, weight, epsilon):
    scale = 1 / math.sqrt(sum(map(mul, vector, vector)) / len(vector) + epsilon)
    return [value * scale * w for value, w in zip(vector, weight)]


def inverse_frequencies(config):
    """One per pair of a head's values (transformers, modeling_rope_utils.py)."""
    rope = config["rope_parameters"]
    head_dim = config["head_dim"]
    exact = [rope["rope_theta"] ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    if rope["rope_type"] == "default":
        return exact
    assert rope["rope_type"] == "llama3"
    context, low, high = (rope[key] for key in ("original_max_position_embeddings", "low_freq_factor",
                                                "high_freq_factor"))
    scaled = []
    for frequency in exact:
        turns = context * frequency / (2 * math.pi)
        share = min(max((turns - low) / (high - low), 0), 1)
        scaled.append((1 - share) * frequency / rope["factor"] + share * frequency)
    return scaled


class ForwardPass:
    """A model in float64, one token at a time."""

    def __init__(self, folder, round_frequencies):
        self.config = read_json(folder, "config.json")
        self.config.setdefault("head_dim", self.config["hidden_size"] // self.config["num_attention_heads"])
        self.weights = read_weights(folder)
        self.frequencies = inverse_frequencies(self.config)
        if round_frequencies:
            self.frequencies = [bf16(frequency) for frequency in self.frequencies]
        self.window = self.config.get("sliding_window") if self.config["model_type"] == "mistral" else None
        self.head = self.weights.get("lm_head.weight") or self.weights["model.embed_tokens.weight"]
        self.cache = None

    def logits(self, tokens, last):
        """Logits at the last `last` positions of a prompt."""
        self.cache = [([], []) for _ in range(self.config["num_hidden_layers"])]
        return [self.step(token, position, position >= len(tokens) - last)
                for position, token in enumerate(tokens)][len(tokens) - last:]

    def step(self, token, position, wants_logits=True):
        epsilon = self.config["rms_norm_eps"]
        x = self.weights["model.embed_tokens.weight"][token]
        for layer in range(self.config["num_hidden_layers"]):
            weight = functools.partial(self.layer_weight, layer)
            y = rms_norm(x, weight("input_layernorm.weight"), epsilon)
            x = list(map(add, x, self.attention(layer, position, y)))
            y = rms_norm(x, weight("post_attention_layernorm.weight"), epsilon)
            gate, up = matmul(weight("mlp.gate_proj.weight"), y), matmul(weight("mlp.up_proj.weight"), y)
            gated = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
            x = list(map(add, x, matmul(weight("mlp.down_proj.weight"), gated)))
        if wants_logits:
            return matmul(self.head, rms_norm(x, self.weights["model.norm.weight"], epsilon))
        return None

    def layer_weight(self, layer, name):
        return self.weights.get("model.layers.%d.%s" % (layer, name))

    def attention(self, layer, position, x):
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        q, k = self.project(layer, "q", position, x), self.project(layer, "k", position, x)
        keys, values = self.cache[layer]
        keys.append(k)
        values.append(self.project(layer, "v", None, x))
        first = max(0, position + 1 - self.window) if self.window else 0
        mixed = []
        for head in range(heads):
            shared_head = head * kv_heads // heads
            scores = [sum(map(mul, q[head], key[shared_head])) / math.sqrt(len(q[head])) for key in keys[first:]]
            largest = max(scores)
            shares = [math.exp(score - largest) for score in scores]
            total = sum(shares)
            columns = zip(*(value[shared_head] for value in values[first:]))
            mixed += [sum(map(mul, shares, column)) / total for column in columns]
        return matmul(self.layer_weight(layer, "self_attn.o_proj.weight"), mixed)

    def project(self, layer, name, position, x):
        """The heads of q, k or v; turned to their position where one is given."""
        head_dim = self.config["head_dim"]
        flat = matmul(self.layer_weight(layer, "self_attn.%s_proj.weight" % name), x)
        bias = self.layer_weight(layer, "self_attn.%s_proj.bias" % name)
        if bias:
            flat = list(map(add, flat, bias))
        split = [flat[i:i + head_dim] for i in range(0, len(flat), head_dim)]
        if position is None:
            return split
        norm = self.layer_weight(layer, "self_attn.%s_norm.weight" % name)
        if norm:
            split = [rms_norm(head, norm, self.config["rms_norm_eps"]) for head in split]
        return [self.turn(head, position) for head in split]

    def turn(self, head, position):
        half = len(head) // 2
        low, high = head[:half], head[half:]
        cosines = [math.cos(position * frequency) for frequency in self.frequencies]
        sines = [math.sin(position * frequency) for frequency in self.frequencies]
        return ([a * c - b * s for a, b, c, s in zip(low, high, cosines, sines)] +
                [b * c + a * s for a, b, c, s in zip(low, high, cosines, sines)])


def largest_difference(found, expected):
    return max(abs(a - b) for x, y in zip(found, expected) for a, b in zip(x, y))


def gap(row):
    best, second = sorted(row)[:-3:-1]
    return best - second


def folder_of(name):
    return shared("models", "hf-tiny", name)


@functools.lru_cache(maxsize=None)
def recorded(name):
    """Cases of (prompt, logits at its last 4 positions, greedy ids, gaps) as transformers recorded them."""
    logits = read_npz(os.path.join(folder_of(name), "reference_logits.npz"))
    cases = read_json(folder_of(name), "reference.json")["cases"]
    return [(case["prompt"], rows(logits["logits_%d" % i]), case["greedy"], case["top1_top2_gap"])
            for i, case in enumerate(cases)]


@functools.lru_cache(maxsize=None)
def computed(name):
    """The same, from the pass in float64 with exact frequencies."""
    forward = ForwardPass(folder_of(name), round_frequencies=False)
    cases = []
    for prompt, _, recorded_greedy, _ in recorded(name):
        logits = forward.logits(prompt, min(4, len(prompt)))
        greedy, gaps, row = [], [], logits[-1]
        for step in range(len(recorded_greedy)):
            greedy.append(row.index(max(row)))
            gaps.append(gap(row))
            row = forward.step(greedy[-1], len(prompt) + step)
        cases.append((prompt, logits, greedy, gaps))
    return cases


@functools.lru_cache(maxsize=None)
def recorded_exactly(name):
    """Whether the recordings are free of rounded frequencies."""
    return all(largest_difference(mine[1], theirs[1]) <= RECORDING_TOLERANCE
               for mine, theirs in zip(computed(name), recorded(name)))


def options_of_recording(name):
    return [] if recorded_exactly(name) else ["--rope-dtype", "bf16"]


@needs_shared("models", "hf-tiny")
class Recordings(unittest.TestCase):
    def test_the_pass_reproduces_them(self):
        count = 0
        for name in SUPPORTED:
            if recorded_exactly(name):
                continue  # by computed()
            forward = ForwardPass(folder_of(name), round_frequencies=True)
            for prompt, expected, greedy, gaps in recorded(name):
                with self.subTest(name, prompt=len(prompt)):
                    found = forward.logits(prompt, len(expected))
                    self.assertLess(largest_difference(found, expected), RECORDING_TOLERANCE)
                    for step in range(4):
                        row = found[-1] if step == 0 else forward.step(greedy[step - 1], len(prompt) + step - 1)
                        self.assertEqual(row.index(max(row)), greedy[step])
                        self.assertAlmostEqual(gap(row), gaps[step], delta=2 * RECORDING_TOLERANCE)
                    count += 1
        if count:
            tally("recordings with rounded frequencies", count)


@needs_shared("models", "hf-tiny")
class Architectures(ReferenceTest):
    """Prompts of 1 to 100 tokens."""

    def check_all_greedy(self, cases_of, options_of):
        count = ties = 0
        for name in SUPPORTED:
            for prompt, _, greedy, gaps in cases_of(name):
                with self.subTest(name, prompt=len(prompt)):
                    ties += self.check_greedy(build_engine(folder_of(name), *options_of(name)), prompt, greedy, gaps)
                    count += len(greedy)
        tally("greedy tokens, %s (%d ties)" % (cases_of.__name__, ties), count)

    def check_all_logits(self, cases_of, options_of):
        count = 0
        for name in SUPPORTED:
            engine = build_engine(folder_of(name), *options_of(name))
            for prompt, expected, _, _ in cases_of(name):
                self.assertEqual(len(expected), min(4, len(prompt)))
                for back, row in enumerate(reversed(expected)):
                    with self.subTest(name, prompt=len(prompt), position=len(prompt) - 1 - back):
                        _, (found,) = self.logits(engine, prompt[:len(prompt) - back])
                        self.check_logits(found, row, LOGIT_TOLERANCE, name)
                        count += 1
        tally("rows of logits, %s" % cases_of.__name__, count)

    def test_tokens(self):
        self.check_all_greedy(computed, lambda name: [])

    def test_logits(self):
        self.check_all_logits(computed, lambda name: [])

    def test_recorded_tokens(self):
        self.check_all_greedy(recorded, options_of_recording)

    def test_recorded_logits(self):
        self.check_all_logits(recorded, options_of_recording)

    def test_decoding_computes_what_reading_computes(self):
        """Logits of tokens that were decoded one by one equal those of the same tokens read as a prompt."""
        count = 0
        for name in SUPPORTED:
            engine = build_engine(folder_of(name))
            prompt = recorded(name)[2][0]
            ids, decoded = self.logits(engine, prompt, 24)
            for step in range(0, 24, 12 if SANITIZED else 6):
                with self.subTest(name, step=step):
                    self.assertEqual(decoded[step].index(max(decoded[step])), ids[step])
                    _, (read,) = self.logits(engine, prompt + ids[:step])
                    self.check_logits(decoded[step], read, LOGIT_TOLERANCE, name)
                    count += 1
        tally("decoded rows", count)

    def test_options(self):
        """The same tokens whatever the threads, the chunks a prompt is read in, and wider weights."""
        for name in SUPPORTED:
            prompt, _, greedy, gaps = computed(name)[3]
            for options in (["--dtype", "f32"], ["--prefill-chunks", "7"],
                            ["--max-batch", "1", "--max-context", "128"]):
                with self.subTest(name, options=options):
                    self.check_greedy(build_engine(folder_of(name), *options), prompt, greedy, gaps)
            for threads in ("1", "2", "5"):
                with self.subTest(name, threads=threads):
                    self.check_greedy(build_engine(folder_of(name)), prompt, greedy, gaps, "--threads", threads)

    def test_kv_cache_in_16_bits(self):
        for name in SUPPORTED:
            prompt, logits, _, _ = computed(name)[3]
            for dtype in ("bf16", "fp16"):
                with self.subTest(name, dtype=dtype):
                    _, (found,) = self.logits(build_engine(folder_of(name), "--kv-dtype", dtype), prompt)
                    self.check_logits(found, logits[-1], BF16_KV_TOLERANCE, name)

    def test_sharded_checkpoint_by_its_index(self):
        folder = folder_of("llama-tied-sharded")
        with open(build_engine(folder), "rb") as file:
            expected = file.read()
        with open(build_engine(os.path.join(folder, "model.safetensors.index.json")), "rb") as file:
            self.assertEqual(file.read(), expected, "an index names the same checkpoint as its folder")

    def test_other_architectures_are_refused(self):
        self.assertEqual(set(os.listdir(shared("models", "hf-tiny"))), set(SUPPORTED) | set(REFUSED),
                         "every folder is either supported or refused here")
        for name, model_type in REFUSED.items():
            with self.subTest(name), scratch() as folder:
                path = os.path.join(folder, "m.eng")
                result = run([ENGBUILD, "--model", folder_of(name), "--target", "cpu", "-o", path])
                self.assertEqual(result.rc, 1, result.stderr)
                self.assertIn("'%s'" % model_type, result.stderr)
                self.assertIn("config.json", result.stderr)
                self.assertEqual(result.stdout, "")
                self.assertEqual(os.listdir(folder), [])
        tally("refused architectures", len(REFUSED))


if __name__ == "__main__":
    unittest.main()
