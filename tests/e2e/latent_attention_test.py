# SPDX-License-Identifier: Apache-2.0
"""Latent attention and the experts of DeepSeek-V2 and V3 with settings that the recorded checkpoints lack, on random weights: the
logits equal those of a plain model in Python that makes keys and values of all heads, as the papers describe it (arXiv
2405.04434, 2412.19437)."""

import array
import json
import math
import os
import random
import struct
import unittest

from harness import (ENGBUILD, ENGINFO, INSTRUCTION_SETS, LOGIT_TOLERANCE, MAKE_CHECKPOINT, SANITIZED, ReferenceTest, build_engine, contents, output_json, run,
                     runs_here, scratch, succeed, tally, write)

SIZES = {"hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 64,
         "max_position_embeddings": 256, "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 3,
         "moe_intermediate_size": 16, "n_shared_experts": 2, "kv_lora_rank": 24, "q_lora_rank": 20,
         "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 20, "rope_theta": 10000.0}
YARN = {"type": "yarn", "factor": 8, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1}
V2, V3 = {"model_type": "deepseek_v2"}, {"model_type": "deepseek_v3", "n_group": 4, "topk_group": 2}

CASES = {
    "v2": V2,
    "v2, direct q": {**V2, "q_lora_rank": None},
    "v2, direct q, rows of q that are no multiple of 8": {**V2, "q_lora_rank": None, "qk_nope_head_dim": 11},
    "v2, direct q, biases": {**V2, "q_lora_rank": None, "attention_bias": True},
    "v2, groups": {**V2, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                   "routed_scaling_factor": 16.0},
    "v2, yarn": {**V2, "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}},
    "v2, yarn of one factor": {**V2, "rope_scaling": YARN},
    "v3": V3,
    "v3, yarn, another eps": {**V3, "rms_norm_eps": 0.1, "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
    "v3, halves": {**V3, "rope_interleave": False, "norm_topk_prob": False, "attention_bias": True},
    "v3, widths of V3": {**V3, "num_hidden_layers": 1, "first_k_dense_replace": 0, "hidden_size": 32, "kv_lora_rank": 512, "q_lora_rank": 24,
                         "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
}
# Settings whose engines ranks share.
OF_RANKS = ["v2, direct q", "v2, direct q, biases", "v3"]


# ---- the plain model ----

def read_tensors(folder):
    """{name: rows} of a float32 checkpoint; a vector is one row."""
    data = contents(os.path.join(folder, "model.safetensors"))
    (size,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, tensor in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in tensor["data_offsets"])
        values = array.array("f", data[begin:end])
        columns = tensor["shape"][-1]
        tensors[name] = [list(values[i:i + columns]) for i in range(0, len(values), columns)]
    return tensors


def dot(a, b):
    return sum(map(float.__mul__, a, b))


def norm(x, weight, eps):
    scale = 1 / math.sqrt(dot(x, x) / len(x) + eps)
    return [value * scale * factor for value, factor in zip(x, weight)]


def softmax(scores):
    powers = [math.exp(score - max(scores)) for score in scores]
    return [power / sum(powers) for power in powers]


def best(claims, count):
    return sorted(range(len(claims)), key=lambda i: -claims[i])[:count]


def silu(x):
    return x / (1 + math.exp(-x))


class Model:
    def __init__(self, config, tensors):
        self.config, self.tensors = config, tensors
        self.is_v3 = config["model_type"] == "deepseek_v3"
        self.layers = []  # of each layer keys and values of the tokens so far
        self.yarn = config.get("rope_scaling")

    def linear(self, name, x):
        y = [dot(row, x) for row in self.tensors[name + ".weight"]]
        bias = self.tensors.get(name + ".bias")
        return [a + b for a, b in zip(y, bias[0])] if bias else y

    def norm(self, name, x, eps):
        return norm(x, self.tensors[name + ".weight"][0], eps)

    def mscale(self, of):
        return 0.1 * of * math.log(self.yarn["factor"]) + 1

    def angles(self, position):
        """(angle of each pair, factor of cosines and sines)"""
        width, theta, yarn = self.config["qk_rope_head_dim"], self.config["rope_theta"], self.yarn
        frequencies = [theta ** (-2 * i / width) for i in range(width // 2)]
        if not yarn:
            return [position * frequency for frequency in frequencies], 1
        turns = [width * math.log(yarn["original_max_position_embeddings"] / (beta * 2 * math.pi)) / (2 * math.log(theta))
                 for beta in (yarn["beta_fast"], yarn["beta_slow"])]
        low, high = max(math.floor(turns[0]), 0), min(math.ceil(turns[1]), width - 1)
        ramp = [min(max((i - low) / (high - low or 0.001), 0), 1) for i in range(width // 2)]
        frequencies = [f * (1 - part) + f / yarn["factor"] * part for f, part in zip(frequencies, ramp)]
        factor = self.mscale(1)
        if "mscale" in yarn:
            factor = self.mscale(yarn["mscale"]) / self.mscale(yarn["mscale_all_dim"])
        return [position * frequency for frequency in frequencies], factor

    def rotate(self, x, position):
        angles, factor = self.angles(position)
        half = len(x) // 2
        interleaved = self.config.get("rope_interleave", True)
        rotated = list(x)
        for i, angle in enumerate(angles):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, half + i)
            cosine, sine = math.cos(angle) * factor, math.sin(angle) * factor
            rotated[a], rotated[b] = x[a] * cosine - x[b] * sine, x[b] * cosine + x[a] * sine
        return rotated

    def attention(self, name, x, position, cache):
        config, nope = self.config, self.config["qk_nope_head_dim"]
        rank, width = config["kv_lora_rank"], nope + config["qk_rope_head_dim"]
        if config["q_lora_rank"] is None:
            q = self.linear(name + "q_proj", x)
        else:
            q = self.linear(name + "q_b_proj", self.norm(name + "q_a_layernorm", self.linear(name + "q_a_proj", x), 1e-6))
        row = self.linear(name + "kv_a_proj_with_mqa", x)
        shared = self.rotate(row[rank:], position)
        kv = self.linear(name + "kv_b_proj", self.norm(name + "kv_a_layernorm", row[:rank], 1e-6))
        step = nope + config["v_head_dim"]
        heads = range(config["num_attention_heads"])
        cache.append([(kv[h * step:h * step + nope] + shared, kv[h * step + nope:(h + 1) * step]) for h in heads])
        scale = width ** -0.5
        if self.yarn and self.yarn.get("mscale_all_dim"):
            scale *= self.mscale(self.yarn["mscale_all_dim"]) ** 2
        mixed = []
        for h in heads:
            own = q[h * width:(h + 1) * width]
            own = own[:nope] + self.rotate(own[nope:], position)
            weights = softmax([scale * dot(own, token[h][0]) for token in cache])
            mixed += [dot(weights, column) for column in zip(*(token[h][1] for token in cache))]
        return self.linear(name + "o_proj", mixed)

    def mlp(self, name, x):
        gate, up = self.linear(name + ".gate_proj", x), self.linear(name + ".up_proj", x)
        return self.linear(name + ".down_proj", [silu(a) * b for a, b in zip(gate, up)])

    def routes(self, name, x):
        """(expert, weight) of each choice."""
        config = self.config
        logits = self.linear(name + "gate", x)
        scores = [1 / (1 + math.exp(-a)) for a in logits] if self.is_v3 else softmax(logits)
        claims = scores
        if self.is_v3:
            claims = [a + b for a, b in zip(scores, self.tensors[name + "gate.e_score_correction_bias"][0])]
        if self.is_v3 or config.get("topk_method") == "group_limited_greedy":
            size = len(claims) // config["n_group"]
            groups = [sorted(claims[i:i + size])[-2 if self.is_v3 else -1:] for i in range(0, len(claims), size)]
            chosen = best([sum(group) for group in groups], config["topk_group"])
            claims = [claim if i // size in chosen else -math.inf for i, claim in enumerate(claims)]
        ids = best(claims, config["num_experts_per_tok"])
        total = sum(scores[i] for i in ids) if self.is_v3 and config.get("norm_topk_prob", True) else 1
        factor = config.get("routed_scaling_factor", 2.5 if self.is_v3 else 1) / total
        return [(i, scores[i] * factor) for i in ids]

    def step(self, token, position):
        """The logits after one more token."""
        config, eps = self.config, self.config.get("rms_norm_eps", 1e-6)
        x = self.tensors["model.embed_tokens.weight"][token]
        for i in range(config["num_hidden_layers"]):
            if len(self.layers) <= i:
                self.layers.append([])
            layer = "model.layers.%d." % i
            out = self.attention(layer + "self_attn.", self.norm(layer + "input_layernorm", x, eps), position,
                                 self.layers[i])
            x = [a + b for a, b in zip(x, out)]
            normal = self.norm(layer + "post_attention_layernorm", x, eps)
            if i < config["first_k_dense_replace"]:
                parts = [(1, self.mlp(layer + "mlp", normal))]
            else:
                parts = [(weight, self.mlp(layer + "mlp.experts.%d" % expert, normal))
                         for expert, weight in self.routes(layer + "mlp.", normal)]
                parts.append((1, self.mlp(layer + "mlp.shared_experts", normal)))
            for weight, part in parts:
                x = [a + weight * b for a, b in zip(x, part)]
        return self.linear("lm_head", self.norm("model.norm", x, eps))

    def logits(self, tokens):
        self.layers = []
        return [self.step(token, position) for position, token in enumerate(tokens)]


# ---- the tests ----

class LatentAttention(ReferenceTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch()
        cls.made = {}

    def checkpoint(self, name):
        """(folder, model) of a case."""
        if name not in self.made:
            config = {**SIZES, **CASES[name]}
            shape = os.path.join(self.folder.name, "shape-%d" % len(self.made))
            folder = os.path.join(self.folder.name, "model-%d" % len(self.made))
            os.mkdir(shape)
            write(os.path.join(shape, "config.json"), json.dumps(config).encode())
            succeed([MAKE_CHECKPOINT, "--config", shape, "-o", folder, "--dtype", "f32"])
            self.made[name] = (folder, Model(config, read_tensors(folder)))
        return self.made[name]

    def check(self, name, tokens, *options, flags=(), tolerance=LOGIT_TOLERANCE):
        folder, model = self.checkpoint(name)
        engine = build_engine(folder, *options)
        ids, found = self.logits(engine, tokens, 3, *flags)
        expected = model.logits(tokens + ids[:-1])[-len(ids):]
        for row, wanted in zip(found, expected):
            self.check_logits(row, wanted, tolerance, name)
        return len(found)

    def test_logits(self):
        count, random_numbers = 0, random.Random(5)
        for name in CASES:
            for length in (1, 9) if SANITIZED else (1, 9, 40):
                with self.subTest(name, length=length):
                    count += self.check(name, [random_numbers.randrange(64) for _ in range(length)])
        tally("rows of logits", count)

    def test_ranks_share_heads(self):
        tokens, count = [7, 3, 61, 12, 30, 5, 5, 44], 0
        for name in OF_RANKS:
            for ranks in ("2", "4"):
                with self.subTest(name, ranks=ranks):
                    count += self.check(name, tokens, "--gpus", ranks)
        tally("rows of logits", count)

    def test_instruction_sets(self):
        name, count = "v3, widths of V3", 0
        engine = build_engine(self.checkpoint(name)[0])
        for instruction_set in INSTRUCTION_SETS:
            if not runs_here(engine, instruction_set):
                continue
            with self.subTest(instruction_set):
                count += self.check(name, [9, 62, 17, 17, 2], flags=("--isa", instruction_set))
        tally("rows of logits", count)

    def test_the_cache_has_one_row_for_each_token(self):
        for name in ("v2", "v3, widths of V3"):
            config = {**SIZES, **CASES[name]}
            width = config["kv_lora_rank"] + config["qk_rope_head_dim"]
            for options, element, more in ((), 4, 0), (("--kv-dtype", "bf16"), 2, 0), (("--kv-dtype", "int8"), 1, 4):
                with self.subTest(name, options=options):
                    engine = build_engine(self.checkpoint(name)[0], *options)
                    cache = output_json([ENGINFO, engine, "--json"])["manifest"]["kv_cache"]
                    rows = config["num_hidden_layers"] * cache["page_tokens"]
                    padding = 256 * config["num_hidden_layers"] if more else 0  # scales begin at a multiple of 256
                    self.assertEqual(cache["latent_dim"], config["kv_lora_rank"])
                    self.assertGreaterEqual(cache["page_bytes"], rows * (width * element + more))
                    self.assertLess(cache["page_bytes"], rows * (width * element + more) + padding + 1)

    def test_a_gpu(self):
        """The widths of this test are none that a GPU's kernels take, but for those of V3."""
        command = [ENGBUILD, "--target", "cuda", "--gpu", "h200", "--dry-run", "--model"]
        for options in ((), ("--kv-dtype", "fp8"), ("--dtype", "int8"), ("--gpus", "2"), ("--dtype", "fp8", "--compute", "fp8"),
                        ("--gpus", "2", "--dtype", "fp8", "--compute", "fp8")):
            with self.subTest(options=options):
                result = run([*command, self.checkpoint("v3, widths of V3")[0], *options])
                self.assertEqual((result.rc, result.stderr), (0, ""))
        result = run([*command, self.checkpoint("v2")[0]])
        self.assertEqual(result.rc, 1)
        self.assertIn("no kernel for this model on 'NVIDIA H200'", result.stderr)


if __name__ == "__main__":
    unittest.main()
