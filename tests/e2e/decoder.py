# SPDX-License-Identifier: Apache-2.0
"""The forward pass of Llama and Qwen3 in plain Python, for tests that compare hidden states: written from the models' definitions, and
itself compared with recordings of transformers (serve_embeddings_test.py)."""

import json
import math
import operator
import os

from gguf_writer import read_checkpoint


class Decoder:
    """`last_hidden(ids)`: what the LM head multiplies, of the last token."""

    def __init__(self, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            self.config = json.load(file)
        self.rows = {}
        for name, (shape, values) in read_checkpoint(folder).items():
            width = shape[-1]
            rows = [values[i:i + width].tolist() for i in range(0, len(values), width)]
            self.rows[name if name.startswith(("model.", "lm_head.")) else "model." + name] = rows if len(shape) == 2 else rows[0]
        config = self.config
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]

    def multiply(self, name, x):
        return [sum(map(operator.mul, row, x)) for row in self.rows[name]]

    def norm(self, name, x):
        scale = 1 / math.sqrt(sum(value * value for value in x) / len(x) + self.config["rms_norm_eps"])
        return [value * scale * weight for value, weight in zip(x, self.rows[name])]

    def heads_of(self, layer, kind, x, position):
        """Heads of q or k, normalised where the model has such norms, and rotated."""
        flat, dim, half = self.multiply("%sself_attn.%s_proj.weight" % (layer, kind), x), self.head_dim, self.head_dim // 2
        norm, heads = "%sself_attn.%s_norm.weight" % (layer, kind), []
        for begin in range(0, len(flat), dim):
            head = flat[begin:begin + dim]
            head = self.norm(norm, head) if norm in self.rows else head
            turned = [0.0] * dim
            for i in range(half):
                angle = position * self.theta ** (-2 * i / dim)
                cosine, sine = math.cos(angle), math.sin(angle)
                turned[i] = head[i] * cosine - head[i + half] * sine
                turned[i + half] = head[i + half] * cosine + head[i] * sine
            heads.append(turned)
        return heads

    def attend(self, layer, x, position, keys, values):
        keys.append(self.heads_of(layer, "k", x, position))
        flat, dim = self.multiply(layer + "self_attn.v_proj.weight", x), self.head_dim
        values.append([flat[begin:begin + dim] for begin in range(0, len(flat), dim)])
        mixed = []
        for index, query in enumerate(self.heads_of(layer, "q", x, position)):
            group = index * self.kv_heads // self.heads
            scores = [sum(map(operator.mul, query, key[group])) / math.sqrt(dim) for key in keys]
            weights = [math.exp(score - max(scores)) for score in scores]
            total = sum(weights)
            mixed += [sum(weight * value[group][i] for weight, value in zip(weights, values)) / total for i in range(dim)]
        return self.multiply(layer + "self_attn.o_proj.weight", mixed)

    def mlp(self, layer, x):
        gate, up = (self.multiply("%smlp.%s_proj.weight" % (layer, kind), x) for kind in ("gate", "up"))
        return self.multiply(layer + "mlp.down_proj.weight", [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)])

    def last_hidden(self, ids):
        layers = ["model.layers.%d." % i for i in range(self.config["num_hidden_layers"])]
        cache = [([], []) for _ in layers]
        for position, token in enumerate(ids):
            x = self.rows["model.embed_tokens.weight"][token]
            for layer, (keys, values) in zip(layers, cache):
                out = self.attend(layer, self.norm(layer + "input_layernorm.weight", x), position, keys, values)
                x = list(map(operator.add, x, out))
                x = list(map(operator.add, x, self.mlp(layer, self.norm(layer + "post_attention_layernorm.weight", x))))
        return self.norm("model.norm.weight", x)

    def logits(self, ids):
        head = "lm_head.weight" if "lm_head.weight" in self.rows else "model.embed_tokens.weight"
        return self.multiply(head, self.last_hidden(ids))


def normalised(vector):
    length = math.sqrt(sum(value * value for value in vector))
    return [value / length for value in vector]
