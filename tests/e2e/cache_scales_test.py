# SPDX-License-Identifier: Apache-2.0
"""Static scales of a KV cache (k_scale, v_scale) that a quantised checkpoint brings, on a random model of two layers. The reference is a
Llama in plain Python that rounds keys and values to e4m3 with those scales."""

import array
import json
import math
import os
import random
import struct
import unittest

from gguf_writer import write_safetensors
from harness import (BUILT, ENGBUILD, ENGINFO, ENGRUN, ReferenceTest, build_engine, output, output_json, run, scratch, succeed,
                     tally, write)

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 32, 48, 2, 4, 2, 16, 40
EPS, THETA = 1e-5, 10000.0
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
          "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
          "vocab_size": VOCAB, "max_position_embeddings": 64, "rms_norm_eps": EPS, "rope_theta": THETA, "hidden_act": "silu",
          "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": None}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
ARGUMENTS = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized",
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": ARGUMENTS, "input_activations": None}}}
# The fake driver and the fake compiler, whose kernels compute nothing.
FAKE = {"LD_LIBRARY_PATH": ":".join(os.path.join(BUILT, "tests", "fake_cuda", name) for name in ("whole", "compiler")),
        "FAKE_CUDA_MEMORY": "100000000"}
TOLERANCE = 2e-4  # of logits up to 5 or so; a scale of another head changes them by more than a hundred times as much
PROMPT = [1, 7, 30, 5, 39, 22, 8, 16, 3, 11, 28]


def e4m3_value(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    value = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0 ** -9
    return -value if code & 128 else value


MAGNITUDES = [e4m3_value(code) for code in range(127)]


def rounded(value, scale):
    """value / scale as e4m3, times scale."""
    number = min(abs(value) / scale, 448.0)
    code = min(range(127), key=lambda code: (abs(MAGNITUDES[code] - number), code % 2))
    return math.copysign(MAGNITUDES[code], value) * scale


def random_model():
    """Matrices as codes with one scale, and all else as floats."""
    draw = random.Random(3)
    matrices, floats = {}, {"model.norm.weight": [draw.uniform(0.5, 1.5) for _ in range(HIDDEN)]}
    for name in ("model.embed_tokens", "lm_head"):
        floats[name + ".weight"] = [[draw.uniform(-0.5, 0.5) for _ in range(HIDDEN)] for _ in range(VOCAB)]
    for layer in range(LAYERS):
        prefix = "model.layers.%d." % layer
        for name in ("input_layernorm", "post_attention_layernorm"):
            floats[prefix + name + ".weight"] = [draw.uniform(0.5, 1.5) for _ in range(HIDDEN)]
        for name, rows, columns in (("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN), ("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN),
                                    ("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN), ("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM),
                                    ("mlp.gate_proj", INNER, HIDDEN), ("mlp.up_proj", INNER, HIDDEN), ("mlp.down_proj", HIDDEN, INNER)):
            codes = [[draw.choice((0, 128)) | draw.randrange(0x60) for _ in range(columns)] for _ in range(rows)]
            matrices[prefix + name] = (codes, 2.0 ** -6)
    floats = {name: [struct.unpack("<f", struct.pack("<f", x))[0] for x in value] if isinstance(value[0], float) else
              [[struct.unpack("<f", struct.pack("<f", x))[0] for x in row] for row in value] for name, value in floats.items()}
    return matrices, floats


def write_checkpoint(folder, model, quantisation, scales):
    """`scales`: name of a tensor -> its shape and numbers."""
    matrices, floats = model
    tensors = {}
    for name, (codes, scale) in matrices.items():
        tensors[name + ".weight"] = ([len(codes), len(codes[0])], b"".join(map(bytes, codes)), "F8_E4M3")
        tensors[name + ".weight_scale"] = ([1], array.array("f", [scale]))
    for name, value in floats.items():
        rows = value if isinstance(value[0], list) else [value]
        shape = [len(rows), len(rows[0])] if rows is value else [len(value)]
        tensors[name] = (shape, array.array("f", [number for row in rows for number in row]))
    tensors.update((name, (shape, array.array("f", numbers))) for name, (shape, numbers) in scales.items())
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    write(os.path.join(folder, "config.json"), json.dumps({**CONFIG, "quantization_config": quantisation}).encode())


def product(rows, x):
    return [sum(a * b for a, b in zip(row, x)) for row in rows]


def normalised(x, weight):
    factor = 1 / math.sqrt(sum(v * v for v in x) / len(x) + EPS)
    return [v * factor * w for v, w in zip(x, weight)]


def rotated(x, position):
    half = HEAD_DIM // 2
    turns = [(math.cos(angle), math.sin(angle)) for angle in (position / THETA ** (i / half) for i in range(half))]
    return ([x[i] * turns[i][0] - x[half + i] * turns[i][1] for i in range(half)] +
            [x[half + i] * turns[i][0] + x[i] * turns[i][1] for i in range(half)])


class Reference:
    """Logits after each token; scales[layer][KV head] is (k, v), or scales is None: keys and values are not rounded."""

    def __init__(self, model, scales):
        matrices, self.floats = model
        self.matrices = {name: [[e4m3_value(code) * scale for code in row] for row in codes] for name, (codes, scale) in matrices.items()}
        self.scales = scales
        self.cache = [[([], []) for _ in range(KV_HEADS)] for _ in range(LAYERS)]

    def attention(self, layer, x):
        prefix, position = "model.layers.%d.self_attn." % layer, len(self.cache[layer][0][0])
        q, k, v = (product(self.matrices[prefix + name], x) for name in ("q_proj", "k_proj", "v_proj"))
        for head, (keys, values) in enumerate(self.cache[layer]):
            part = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            new = rotated(k[part], position), v[part]
            if self.scales:
                new = tuple([rounded(x, scale) for x in row] for row, scale in zip(new, self.scales[layer][head]))
            keys.append(new[0])
            values.append(new[1])
        out = []
        for head in range(HEADS):
            keys, values = self.cache[layer][head * KV_HEADS // HEADS]
            query = rotated(q[head * HEAD_DIM:(head + 1) * HEAD_DIM], position)
            scores = [sum(a * b for a, b in zip(query, key)) / math.sqrt(HEAD_DIM) for key in keys]
            weights = [math.exp(score - max(scores)) for score in scores]
            out += [sum(w * value[i] for w, value in zip(weights, values)) / sum(weights) for i in range(HEAD_DIM)]
        return product(self.matrices[prefix + "o_proj"], out)

    def step(self, token):
        x = self.floats["model.embed_tokens.weight"][token]
        for layer in range(LAYERS):
            prefix = "model.layers.%d." % layer
            x = [a + b for a, b in zip(x, self.attention(layer, normalised(x, self.floats[prefix + "input_layernorm.weight"])))]
            y = normalised(x, self.floats[prefix + "post_attention_layernorm.weight"])
            gate, up = (product(self.matrices[prefix + "mlp." + name], y) for name in ("gate_proj", "up_proj"))
            inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]
            x = [a + b for a, b in zip(x, product(self.matrices[prefix + "mlp.down_proj"], inner))]
        return product(self.floats["lm_head.weight"], normalised(x, self.floats["model.norm.weight"]))


class CacheScales(ReferenceTest):
    MODEL = random_model()
    # Values of the random model reach 20 or so: the smaller scales saturate, others leave few codes.
    SCALES = [[(0.011, 0.02), (0.03, 0.31)], [(0.5, 0.009), (0.02, 0.05)]]
    SAME = [[(0.011, 0.02)] * KV_HEADS, [(0.5, 0.05)] * KV_HEADS]

    def setUp(self):
        self.scratch = scratch()
        self.folder = self.scratch.__enter__()
        self.addCleanup(self.scratch.__exit__, None, None, None)

    def checkpoint(self, name, quantisation, scales):
        folder = os.path.join(self.folder, name)
        os.mkdir(folder)
        write_checkpoint(folder, self.MODEL, quantisation, scales)
        return folder

    @staticmethod
    def exact(scales):
        return [[tuple(struct.unpack("<2f", struct.pack("<2f", *pair))) for pair in layer] for layer in scales]

    def check(self, folder, scales, *options):
        reference = Reference(self.MODEL, scales and self.exact(scales))
        engine = build_engine(folder, "--tune", "off", *options)
        expected = [reference.step(token) for token in PROMPT][-1]
        tokens, rows = self.logits(engine, PROMPT, 4)
        for token, row in zip(tokens, rows):
            self.check_logits(row, expected, TOLERANCE, "%s %s" % (os.path.basename(folder), options))
            self.assertEqual(token, max(range(VOCAB), key=lambda i: row[i]))
            expected = reference.step(token)
        return len(rows)

    def checkpoints(self):
        """Each way of writing scales, by tensor and by head, with what the configuration says."""
        scheme = {**COMPRESSED, "kv_cache_scheme": {**ARGUMENTS, "strategy": "attn_head"}}
        prefix = "model.layers.%d.self_attn."
        heads = {(prefix + "%s_scale") % (layer, part): ([KV_HEADS, 1, 1], [head[i] for head in self.SCALES[layer]])
                 for layer in range(LAYERS) for i, part in enumerate("kv")}
        yield self.checkpoint("heads", scheme, heads), self.SCALES
        tensor = {(prefix + "%s_proj.%s_scale") % (layer, part, part): ([1], [self.SAME[layer][0][i]])
                  for layer in range(LAYERS) for i, part in enumerate("kv")}
        yield self.checkpoint("tensor", {**FP8, "kv_cache_scheme": "static"}, tensor), self.SAME
        both = {(prefix + "kv_scale") % layer: ([], [0.02]) for layer in range(LAYERS)}
        yield self.checkpoint("both", {**FP8, "kv_cache_scheme": "static"}, both), [[(0.02, 0.02)] * KV_HEADS] * LAYERS

    def test_logits(self):
        plain = Reference(self.MODEL, None)
        exact = [plain.step(token) for token in PROMPT][-1]
        count = 0
        for folder, scales in self.checkpoints():
            with self.subTest(os.path.basename(folder)):
                reference = Reference(self.MODEL, self.exact(scales))
                largest = max(abs(a - b) for a, b in zip([reference.step(token) for token in PROMPT][-1], exact))
                self.assertGreater(largest, 100 * TOLERANCE)
                for options in ([], ["--gpus", "2"], ["--gpus", "4"], ["--kv-dtype", "fp8"], ["--prefill-chunks", "4"]):
                    count += self.check(folder, scales, *options)
                for options in (["--kv-dtype", "f32"], ["--kv-dtype", "f32", "--gpus", "2"]):
                    count += self.check(folder, None, *options)
        tally("rows of logits with static scales of the KV cache", count)

    def test_what_the_configuration_says(self):
        (_, _), (folder, scales), (_, _) = self.checkpoints()
        config = os.path.join(folder, "config.json")
        for said, default, layers in (("static", "e4m3_channel", LAYERS), (None, "F32", 0), ({"num_bits": 8, "type": "int"}, "F32", 0)):
            write(config, json.dumps({**CONFIG, "quantization_config": {**FP8, "kv_cache_scheme": said}}).encode())
            for options in ([], ["--kv-dtype", "auto"]):
                engine = os.path.join(self.folder, "m.eng")
                report = json.loads(succeed([ENGBUILD, "--model", folder, "--target", "cpu", "-o", engine, "--tune", "off", "--json",
                                             "--tuning-cache", "none", *options]).stdout)
                self.assertEqual(output_json([ENGINFO, engine, "--json"])["manifest"]["kv_cache"]["dtype"], default)
                self.assertEqual(report.get("kv_cache"), {"as_checkpoint": True, "layers_with_static_scales": layers} if layers else None)
            report = json.loads(succeed([ENGBUILD, "--model", folder, "--target", "cpu", "-o", engine, "--tune", "off", "--json",
                                         "--tuning-cache", "none", "--kv-dtype", "fp8"]).stdout)
            used = LAYERS if not isinstance(said, dict) else 0
            self.assertEqual(report["kv_cache"], {"as_checkpoint": False, "layers_with_static_scales": used})

    def test_gpus(self):
        """Decode and prefill get the scales, of one GPU and of two, which share the heads; another KV cache does without."""
        folder, _ = next(self.checkpoints())
        for options, expected in (([], True), (["--gpus", "2"], True), (["--compute", "bf16"], True), (["--kv-dtype", "bf16"], False)):
            with self.subTest(options):
                engine = os.path.join(self.folder, "m.eng")
                environment = {**FAKE, "FAKE_CUDA_DEVICES": "2"}
                succeed([ENGBUILD, "--model", folder, "--lean", "-o", engine, "--tune", "off", "--tuning-cache", "none", "--max-batch",
                         "4", "--batch-sizes", "1,4", "--prefill-chunks", "16", *options],
                        env=environment)
                info = output_json([ENGINFO, engine, "--json", "--verify"])
                self.assertEqual(info["manifest"]["kv_cache"]["dtype"], "e4m3_channel" if expected else "BF16")
                dumped = output([ENGBUILD, "--model", folder, "--dry-run", "--tuning-cache", "none", "--tune", "off",
                                 "--dump-after", "dead_code", *options], env=environment)
                for op in ("rope_attention", "rope_append"):
                    lines = [line for line in dumped.splitlines() if " = %s(" % op in line]
                    self.assertGreaterEqual(len(lines), LAYERS)
                    for line in lines:
                        self.assertEqual("kv_scales" in line, expected, line)
                self.assertIn("selftest passed", succeed([ENGRUN, engine, "--selftest"], env=environment).stdout)

    def test_accuracy_of_cuda(self):
        """The model in bf16 beside the engine has no scales of its cache; the kernels of this driver find the same for both."""
        folder, _ = next(self.checkpoints())
        engine = os.path.join(self.folder, "m.eng")
        report = output_json([ENGBUILD, "--model", folder, "--lean", "-o", engine, "--tune", "off", "--tuning-cache", "none", "--max-batch",
                              "4", "--batch-sizes", "4", "--prefill-chunks", "16", "--dtype", "int8", "--json"], env=FAKE)
        info = output_json([ENGINFO, engine, "--json"])
        self.assertEqual(info["manifest"]["kv_cache"]["dtype"], "e4m3_channel")
        self.assertEqual((report["accuracy"]["tokens"], report["accuracy"]["kl"]), (1024, 0))

    def test_bad_scales(self):
        for number in (0.0, -1.0, math.inf, math.nan):
            name = "model.layers.1.self_attn.v_scale"
            scales = {"model.layers.1.self_attn.k_scale": ([1], [1.0]), name: ([1], [number])}
            folder = self.checkpoint("bad%s" % number, {**FP8, "kv_cache_scheme": "static"}, scales)
            command = [ENGBUILD, "--model", folder, "--target", "cpu", "--tune", "off", "-o", os.path.join(self.folder, "m.eng")]
            result = run(command)
            self.assertEqual(result.rc, 1, result.stderr)
            for word in (name, "KV cache", "--kv-dtype"):
                self.assertIn(word, result.stderr)
            succeed(command + ["--kv-dtype", "f32"])


if __name__ == "__main__":
    unittest.main()
