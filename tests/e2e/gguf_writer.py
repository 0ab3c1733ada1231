# SPDX-License-Identifier: Apache-2.0
"""Writes Hugging Face checkpoints of tests as GGUF files, and as safetensors with the same numbers in float32. Plain code after
the specification of GGUF; nothing of engbuild is used."""

import array
import json
import math
import os
import struct

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
         "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39}
GLOBALS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYERS = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
          "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
          "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
          "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp"}
EXPERTS = {"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps",
           "gate_proj": "ffn_gate_exps", "down_proj": "ffn_down_exps", "up_proj": "ffn_up_exps"}
ARCHITECTURES = {"mixtral": "llama", "qwen3_moe": "qwen3moe"}


# ---- safetensors ----

def read_checkpoint(folder):
    """name -> (shape, array of floats), for tensors in BF16, F16 and F32."""
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, name), "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
            data = file.read()
        for tensor, entry in header.items():
            if tensor == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            part = data[begin:end]
            if entry["dtype"] == "BF16":
                bits = array.array("I", [half << 16 for half in array.array("H", part)])
                values = array.array("f", bits.tobytes())
            elif entry["dtype"] == "F16":
                values = array.array("f", struct.unpack("<%de" % (len(part) // 2), part))
            else:
                values = array.array("f", part)
            tensors[tensor] = (entry["shape"], values)
    return tensors


def write_safetensors(path, tensors):
    """tensors: name -> (shape, array of floats), or (shape, bytes, name of their type)."""
    header, data = {}, b""
    for name, (shape, values, *dtype) in tensors.items():
        part = values if dtype else values.tobytes()
        header[name] = {"dtype": dtype[0] if dtype else "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


# ---- element types: encoded bytes, and the numbers that they stand for ----

def _half(value):
    packed = struct.pack("<e", value)
    return packed, struct.unpack("<e", packed)[0]


def _encode_q8_0(block):
    packed, scale = _half(max(map(abs, block)) / 127)
    codes = [max(-127, min(127, round(value / scale))) if scale else 0 for value in block]
    return packed + struct.pack("32b", *codes), [code * scale for code in codes]


def _encode_q4_0(block):
    packed, scale = _half(max(block, key=abs) / -8)
    codes = [max(0, min(15, int(value / scale + 8.5))) if scale else 8 for value in block]
    return (packed + bytes(codes[i] | codes[i + 16] << 4 for i in range(16)),
            [(code - 8) * scale for code in codes])


def _nearest(value, least, most):
    return max(least, min(most, round(value)))


def _halves(codes):
    """32 codes of 4 bits: those of the first half in the low halves of bytes."""
    return bytes(codes[i] | codes[i + 16] << 4 for i in range(16))


def _encode_small(block, bits, minimum):
    """Q4_1, Q5_0, Q5_1: 32 codes with a scale and, if they have one, a minimum."""
    most = (1 << bits) - 1
    least = min(0.0, *block) if minimum else -max(map(abs, block))
    packed, scale = _half((max(0.0, *block) - least) / most if minimum else -least / (1 << bits - 1))
    packed_m, m = _half(least) if minimum else (b"", -scale * (1 << bits - 1))
    codes = [_nearest((value - m) / scale, 0, most) if scale else 0 for value in block]
    high = sum(code >> 4 << i for i, code in enumerate(codes)).to_bytes(4, "little") if bits == 5 else b""
    return packed + packed_m + high + _halves([code & 15 for code in codes]), [code * scale + m for code in codes]


NON_LINEAR = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]


def _non_linear(part, scale):
    return [min(range(16), key=lambda code: abs(NON_LINEAR[code] * scale - value)) for value in part]


def _encode_iq4_nl(block):
    packed, scale = _half(max(map(abs, block)) / 127)
    codes = _non_linear(block, scale)
    return packed + _halves(codes), [NON_LINEAR[code] * scale for code in codes]


def _encode_iq4_xs(block):
    """8 parts, each with a scale of 6 bits less 32, here positive."""
    largest = [max(map(abs, block[i:i + 32])) / 127 for i in range(0, 256, 32)]
    packed, d = _half(max(largest) / 31)
    scales = [_nearest(each / d, 0, 31) if d else 0 for each in largest]
    codes = [_non_linear(block[32 * j:32 * j + 32], d * scales[j]) for j in range(8)]
    high = sum((scale + 32 >> 4) << 2 * j for j, scale in enumerate(scales)).to_bytes(2, "little")
    low = bytes((scales[j] & 15) | (scales[j + 1] & 15) << 4 for j in range(0, 8, 2))
    return packed + high + low + b"".join(map(_halves, codes)), [d * scales[j] * NON_LINEAR[code] for j in range(8) for code in codes[j]]


def _pairs(codes):
    """256 codes of 2 bits: element i + 32 k of each half at bit 2 k of byte i."""
    return bytes(sum(codes[h + i + 32 * k] << 2 * k for k in range(4)) for h in (0, 128) for i in range(32))


def _encode_q2_k(block):
    """16 parts, each with a scale and a minimum of 4 bits."""
    parts = [block[i:i + 16] for i in range(0, 256, 16)]
    minima = [-min(0.0, *part) for part in parts]
    steps = [(max(0.0, *part) + least) / 3 for part, least in zip(parts, minima)]
    (packed_d, d), (packed_m, m) = _half(max(steps) / 15), _half(max(minima) / 15)
    scales = [_nearest(step / d, 0, 15) if d else 0 for step in steps]
    minima = [_nearest(least / m, 0, 15) if m else 0 for least in minima]
    codes = [_nearest((value + m * minima[i // 16]) / (d * scales[i // 16]), 0, 3) if d * scales[i // 16] else 0 for i, value in enumerate(block)]
    return (bytes(scale | least << 4 for scale, least in zip(scales, minima)) + _pairs(codes) + packed_d + packed_m,
            [d * scales[i // 16] * code - m * minima[i // 16] for i, code in enumerate(codes)])


def _encode_q3_k(block):
    """16 parts, each with a scale of 6 bits less 32, here positive; bit i // 32 of byte i % 32 is the highest of a code."""
    largest = [max(map(abs, block[i:i + 16])) / 4 for i in range(0, 256, 16)]
    packed, d = _half(max(largest) / 31)
    scales = [_nearest(each / d, 0, 31) if d else 0 for each in largest]
    codes = [_nearest(value / (d * scales[i // 16]), -4, 3) + 4 if d * scales[i // 16] else 4 for i, value in enumerate(block)]
    stored = [scale + 32 for scale in scales]
    high = bytes(sum((codes[i + 32 * k] >> 2) << k for k in range(8)) for i in range(32))
    low = bytes(stored[i] & 15 | (stored[i + 8] & 15) << 4 for i in range(8)) + bytes(
        sum((stored[i + 4 * k] >> 4) << 2 * k for k in range(4)) for i in range(4))
    return high + _pairs([code & 3 for code in codes]) + low + packed, [d * scales[i // 16] * (code - 4) for i, code in enumerate(codes)]


def _encode_k(block, bits):
    """Q4_K, Q5_K: eight parts, each with a scale and a minimum of 6 bits."""
    parts = [block[i:i + 32] for i in range(0, 256, 32)]
    minima = [-min(0.0, *part) for part in parts]
    steps = [(max(0.0, *part) + least) / ((1 << bits) - 1) for part, least in zip(parts, minima)]
    (packed_d, d), (packed_m, m) = _half(max(steps) / 63), _half(max(minima) / 63)
    scales = [_nearest(step / d, 0, 63) if d else 0 for step in steps]
    minima = [_nearest(least / m, 0, 63) if m else 0 for least in minima]
    codes, numbers = [], []
    for part, scale, least in zip(parts, scales, minima):
        found = [_nearest((value + m * least) / (d * scale), 0, (1 << bits) - 1) if d * scale else 0 for value in part]
        codes.append(found)
        numbers += [d * scale * code - m * least for code in found]
    data = packed_d + packed_m + bytes(list_[j] | list_[j + 4] >> 4 << 6 for list_ in (scales, minima) for j in range(4))
    data += bytes(scales[j] & 15 | (minima[j] & 15) << 4 for j in range(4, 8))
    if bits == 5:
        data += bytes(sum(codes[j][i] >> 4 << j for j in range(8)) for i in range(32))
    return data + bytes(codes[j][i] & 15 | (codes[j + 1][i] & 15) << 4 for j in range(0, 8, 2) for i in range(32)), numbers


def _encode_q6_k(block):
    """16 parts, each with a scale of 8 bits. Two halves; of each, element i + 32 k has its 2 high bits at bit 2 k of byte i."""
    largest = [max(map(abs, block[i:i + 16])) / 31 for i in range(0, 256, 16)]
    packed, d = _half(max(largest) / 127)
    scales = [_nearest(each / d, 0, 127) if d else 0 for each in largest]
    codes = [_nearest(value / (d * scales[i // 16]), -32, 31) + 32 if d * scales[i // 16] else 32 for i, value in enumerate(block)]
    low = bytes(codes[h + i] & 15 | (codes[h + i + 64] & 15) << 4 for h in (0, 128) for i in range(64))
    high = bytes(sum(codes[h + i + 32 * k] >> 4 << 2 * k for k in range(4)) for h in (0, 128) for i in range(32))
    return low + high + bytes(scales) + packed, [d * scales[i // 16] * (code - 32) for i, code in enumerate(codes)]


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def _encode_mxfp4(block):
    """Halves of a block lie in the low and high halves of its bytes."""
    largest = max(map(abs, block))
    exponent = math.ceil(math.log2(largest / 6)) if largest else -126
    scale = 2.0 ** exponent
    codes = [min(range(8), key=lambda code: abs(E2M1[code] - abs(value) / scale)) | (value < 0) << 3 for value in block]
    return (bytes([127 + exponent]) + bytes(codes[i] | codes[i + 16] << 4 for i in range(16)),
            [math.copysign(E2M1[code & 7] * scale, 7.5 - code) for code in codes])


BLOCKS = {"Q8_0": (32, _encode_q8_0), "Q4_0": (32, _encode_q4_0), "Q4_K": (256, lambda block: _encode_k(block, 4)),
          "Q5_K": (256, lambda block: _encode_k(block, 5)), "Q6_K": (256, _encode_q6_k), "MXFP4": (32, _encode_mxfp4),
          "Q4_1": (32, lambda block: _encode_small(block, 4, True)), "Q5_0": (32, lambda block: _encode_small(block, 5, False)),
          "Q5_1": (32, lambda block: _encode_small(block, 5, True)), "Q2_K": (256, _encode_q2_k), "Q3_K": (256, _encode_q3_k),
          "IQ4_NL": (32, _encode_iq4_nl), "IQ4_XS": (256, _encode_iq4_xs)}


def encode(kind, values):
    """(bytes, array of floats)"""
    if kind == "F32":
        return values.tobytes(), values
    if kind == "F16":
        data = struct.pack("<%de" % len(values), *values)
        return data, array.array("f", struct.unpack("<%de" % len(values), data))
    if kind == "BF16":
        bits = array.array("H", [word >> 16 for word in array.array("I", values.tobytes())])
        return bits.tobytes(), array.array("f", array.array("I", [half << 16 for half in bits]).tobytes())
    size, make = BLOCKS[kind]
    parts, floats = [], array.array("f")
    for i in range(0, len(values), size):
        part, numbers = make(values[i:i + size])
        parts.append(part)
        floats.extend(numbers)
    return b"".join(parts), floats


# ---- GGUF ----

def _string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


class Int32(list):
    """A list of integers that is stored as i32."""


def _value(value):
    """A value with its type: bool, int (u32), float (f32), text, or a list of one of these."""
    if isinstance(value, Int32):
        return 9, struct.pack("<IQ%di" % len(value), 5, len(value), *value)
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, (str, bytes)):
        return 8, _string(value)
    parts = [_value(each) for each in value]
    return 9, struct.pack("<IQ", parts[0][0] if parts else 8, len(parts)) + b"".join(part for _, part in parts)


def write_gguf(path, keys, tensors, version=3):
    """keys: name -> value. tensors: name -> (type, shape, bytes)."""
    alignment = keys.get("general.alignment", 32)
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(keys))]
    for name, value in keys.items():
        kind, data = _value(value)
        parts.append(_string(name) + struct.pack("<I", kind) + data)
    data = b""
    for name, (kind, shape, part) in tensors.items():
        data += bytes(-len(data) % alignment)
        parts.append(_string(name) + struct.pack("<I", len(shape)) +
                     struct.pack("<%dQ" % len(shape), *reversed(shape)) + struct.pack("<IQ", TYPES[kind], len(data)))
        data += part
    head = b"".join(parts)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % alignment) + data)


def gguf_name(name):
    module, kind = name.rsplit(".", 1)
    if module in GLOBALS:
        return GLOBALS[module] + "." + kind
    _, _, layer, module = module.split(".", 3)
    return "blk.%s.%s.%s" % (layer, LAYERS[module], kind)


def interleave(values, rows, heads):
    """Rows of a head in the order of llama's files: the first of each half, the second of each half, .."""
    width, head = len(values) // rows, rows // heads
    order = [h * head + i % 2 * (head // 2) + i // 2 for h in range(heads) for i in range(head)]
    mixed = array.array("f")
    for row in order:
        mixed.extend(values[row * width:(row + 1) * width])
    return mixed


def metadata(config):
    kind, rope = ARCHITECTURES.get(config["model_type"], config["model_type"]), config["rope_parameters"]
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    keys = {"general.architecture": kind, "general.name": "test", "general.file_type": 1,
            kind + ".context_length": config["max_position_embeddings"],
            kind + ".embedding_length": config["hidden_size"],
            kind + ".block_count": config["num_hidden_layers"],
            kind + ".feed_forward_length": config["intermediate_size"],
            kind + ".attention.head_count": config["num_attention_heads"],
            kind + ".attention.head_count_kv": config["num_key_value_heads"],
            kind + ".attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
            kind + ".rope.freq_base": float(rope["rope_theta"]),
            "tokenizer.ggml.model": "none",
            "tokenizer.ggml.bos_token_id": config["bos_token_id"],
            "tokenizer.ggml.eos_token_id": config["eos_token_id"]}
    if "head_dim" in config:
        keys.update({kind + ".attention.key_length": head, kind + ".attention.value_length": head})
    if kind == "llama":
        keys.update({"llama.vocab_size": config["vocab_size"], "llama.rope.dimension_count": head})
    if "num_local_experts" in config:
        keys.update({kind + ".expert_count": config["num_local_experts"], kind + ".expert_used_count": config["num_experts_per_tok"]})
    if "moe_intermediate_size" in config:
        keys[kind + ".expert_feed_forward_length"] = config["moe_intermediate_size"]
    return keys


def tokenizer_keys(tokenizer, kind, pre=None, bos=None):
    """The keys of a tokenizer.json with BPE. kind: "gpt2", or "llama", whose merges become scores."""
    vocab = dict(tokenizer["model"]["vocab"])
    types = [1] * (1 + max(list(vocab.values()) + [added["id"] for added in tokenizer["added_tokens"]]))
    for added in tokenizer["added_tokens"]:
        vocab[added["content"]] = added["id"]
        types[added["id"]] = 3 if added["special"] else 4
    tokens = [""] * len(types)
    for token, i in vocab.items():
        tokens[i] = token
    for i, token in enumerate(tokens):
        if token == "":
            tokens[i], types[i] = "[PAD%d]" % i, 5
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    keys = {"tokenizer.ggml.model": kind, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": Int32(types)}
    if kind == "gpt2":
        keys["tokenizer.ggml.merges"] = merges
        keys["tokenizer.ggml.pre"] = pre
    else:  # the first merge that makes a piece ranks it; pieces without one are single characters
        ranks = {}
        for rank, merge in enumerate(merges):
            ranks.setdefault(merge.replace(" ", ""), rank)
        for i, token in enumerate(tokens):
            if len(token) == 6 and token.startswith("<0x"):
                types[i] = 6
            elif token == "<unk>":
                types[i] = 2
        keys["tokenizer.ggml.token_type"] = Int32(types)
        keys["tokenizer.ggml.scores"] = [float(-ranks.get(token, 1000000)) for token in tokens]
    if bos is not None:
        keys["tokenizer.ggml.bos_token_id"] = vocab[bos]
        keys["tokenizer.ggml.add_bos_token"] = True
    return keys


def write_zero_model(path, keys, vocabulary):
    """The smallest llama, of zeros, with these keys."""
    def zeros(*shape):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        return ("F32" if len(shape) == 1 else "F16", list(shape), bytes(count * (4 if len(shape) == 1 else 2)))
    tensors = {"token_embd.weight": zeros(vocabulary, 32), "output_norm.weight": zeros(32)}
    for name, shape in (("attn_norm", [32]), ("attn_q", [32, 32]), ("attn_k", [32, 32]), ("attn_v", [32, 32]),
                        ("attn_output", [32, 32]), ("ffn_norm", [32]), ("ffn_gate", [32, 32]), ("ffn_up", [32, 32]),
                        ("ffn_down", [32, 32])):
        tensors["blk.0.%s.weight" % name] = zeros(*shape)
    sizes = {"context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32,
             "attention.head_count": 1, "attention.layer_norm_rms_epsilon": 1e-5}
    write_gguf(path, {"general.architecture": "llama", **{"llama." + name: value for name, value in sizes.items()},
                      **keys}, tensors)


def rope_divisors(config):
    """rope_freqs.weight as the converter computes it for rope_type llama3."""
    rope, factors = config["rope_parameters"], array.array("f")
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for i in range(0, config["head_dim"], 2):
        length = 2 * 3.141592653589793 * rope["rope_theta"] ** (i / config["head_dim"])
        smooth = ((rope["original_max_position_embeddings"] / length - rope["low_freq_factor"]) /
                  (rope["high_freq_factor"] - rope["low_freq_factor"]))
        factors.append(1 if length < high else rope["factor"] if length > low else
                       1 / ((1 - smooth) / rope["factor"] + smooth))
    return factors


def convert(source, kind, target, folder, version=3, more_keys=None):
    """Writes the checkpoint in `source` as the GGUF file `target`, matrices in the type, and into `folder` the same numbers as
    a checkpoint in float32."""
    with open(os.path.join(source, "config.json"), "rb") as file:
        config = json.load(file)
    os.makedirs(folder)
    tensors, plain, experts = {}, {}, {}
    for name, (shape, values) in read_checkpoint(source).items():
        type_ = kind if len(shape) == 2 and not name.endswith(".gate.weight") else "F32"
        data, floats = encode(type_, values)
        plain[name] = (shape, floats)
        if ".experts." in name:
            _, _, layer, _, _, expert, part, _ = name.split(".")
            experts.setdefault("blk.%s.%s.weight" % (layer, EXPERTS[part]), {})[int(expert)] = (shape, data)
            continue
        if config["model_type"] in ("llama", "mixtral") and (".q_proj" in name or ".k_proj" in name):
            heads = config["num_attention_heads" if ".q_proj" in name else "num_key_value_heads"]
            data, _ = encode(type_, interleave(values, shape[0], heads))
        tensors[gguf_name(name)] = (type_, shape, data)
    for name, parts in experts.items():
        tensors[name] = (kind, [len(parts), *parts[0][0]], b"".join(parts[expert][1] for expert in sorted(parts)))
    if config["rope_parameters"]["rope_type"] == "llama3":
        divisors = rope_divisors(config)
        tensors["rope_freqs.weight"] = ("F32", [len(divisors)], divisors.tobytes())
    write_gguf(target, {**metadata(config), **(more_keys or {})}, tensors, version)
    write_safetensors(os.path.join(folder, "model.safetensors"), plain)
    config["dtype"] = "float32"
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
