# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in 4 bits as bitsandbytes writes them, and in 4 bits in act-order and in 8 bits with zero points as GPTQ does, made of the
shipped model: engines keep the codes, and give the logits of a checkpoint with the same numbers in float32."""

import array
import bisect
import json
import os
import random
import struct
import unittest

from gguf_writer import read_checkpoint, write_safetensors
from harness import (BUILT, ENGBUILD, ENGINFO, ENGRUN, FABLES, SANITIZED, ReferenceTest, build_engine, output, output_json, read_json, sanitized_elsewhere,
                     scratch, succeed, tally, write)
from quantised_writer import encode_layers

TOLERANCE = 2e-3  # of logits up to 24
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
FP4 = [sign * number / 12 for sign in (1, -1) for number in (0.0, 0.0625, 8, 12, 4, 6, 2, 3)]
OTHER = NF4[:8] + [0.08] + NF4[9:]
FAKE = {"LD_LIBRARY_PATH": ":".join(os.path.join(BUILT, "tests", "fake_cuda", name) for name in ("whole", "compiler")),
        "FAKE_CUDA_MEMORY": "100000000"}


def encoded_4_bits(name, values, shape, kind, table, size, nested):
    """(tensors of the module, the numbers that they stand for)"""
    order = sorted(range(16), key=lambda code: table[code])
    middles = [(table[a] + table[b]) / 2 for a, b in zip(order, order[1:])]
    largest = array.array("f", [max(map(abs, values[i:i + size])) for i in range(0, len(values), size)])
    state = {"quant_type": kind, "blocksize": size, "dtype": "bfloat16", "shape": shape}
    tensors = {name + ".weight.quant_map": ([16], array.array("f", table))}
    if nested:
        offset = sum(largest) / len(largest)
        levels = array.array("f", [i / 127.5 - 1 for i in range(256)])
        groups = array.array("f", [max(abs(x - offset) for x in largest[i:i + 256]) for i in range(0, len(largest), 256)])
        bytes_ = bytes(min(255, max(0, round(((x - offset) / groups[i // 256] + 1) * 127.5))) for i, x in enumerate(largest))
        state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=offset)
        tensors[name + ".weight.absmax"] = ([len(bytes_)], bytes_, "U8")
        tensors[name + ".weight.nested_absmax"] = ([len(groups)], groups)
        tensors[name + ".weight.nested_quant_map"] = ([256], levels)
        largest = array.array("f", [levels[code] * groups[i // 256] + offset for i, code in enumerate(bytes_)])
    else:
        tensors[name + ".weight.absmax"] = ([len(largest)], largest)
    codes = [order[bisect.bisect(middles, value / largest[i // size])] if largest[i // size] else order[7] for i, value in enumerate(values)]
    packed = bytes(codes[i] << 4 | codes[i + 1] for i in range(0, len(codes), 2))
    text = json.dumps(state).encode()
    tensors[name + ".weight"] = ([len(packed), 1], packed, "U8")
    tensors["%s.weight.quant_state.bitsandbytes__%s" % (name, kind)] = ([len(text)], text, "U8")
    table = array.array("f", table)
    return tensors, array.array("f", [table[code] * largest[i // size] for i, code in enumerate(codes)])


def encoded_8_bits(name, values, shape, size, sign):
    """GPTQ, version 2. `sign`: codes and zero points that stand for the values, or for those times -1."""
    rows, columns = shape
    groups = columns // size
    scales, zeros, codes, numbers = [0.0] * (groups * rows), bytearray(groups * rows), bytearray(rows * columns), array.array("f")
    for row in range(rows):
        for group in range(groups):
            part = [sign * value for value in values[row * columns + group * size:row * columns + (group + 1) * size]]
            least, most = min(0.0, *part), max(0.0, *part)
            scale = struct.unpack("<e", struct.pack("<e", max((most - least) / 255, 1e-4)))[0]
            zero = max(0, min(255, round(-least / scale)))
            scales[group * rows + row], zeros[group * rows + row] = scale * sign, zero
            for i, value in enumerate(part):
                code = max(0, min(255, round(value / scale) + zero))
                column = group * size + i
                codes[(column // 4 * rows + row) * 4 + column % 4] = code
                numbers.append((code - zero) * scale * sign)
    return {name + ".qweight": ([columns // 4, rows], bytes(codes), "I32"), name + ".qzeros": ([groups, rows // 4], bytes(zeros), "I32"),
            name + ".scales": ([groups, rows], struct.pack("<%de" % len(scales), *scales), "F16")}, numbers


def encoded_in_act_order(name, values, shape, size, unequal):
    """GPTQ, 4 bits, symmetric. Groups are of random columns, the same for matrices of one x, except for modules that `unequal` names."""
    rows, columns = shape
    module = name.split(".")[-1]
    of_one_x = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
    key = module if module in unequal else of_one_x.get(module, module)
    order = list(range(columns))
    random.Random("%s %s" % (name.split(".")[2], key)).shuffle(order)
    groups = -(-columns // size)
    indices, scales, words, numbers = [0] * columns, [0.0] * (groups * rows), array.array("I", bytes(columns * rows // 2)), array.array("f", values)
    for place, column in enumerate(order):
        indices[column] = place // size
    for row in range(rows):
        for group in range(groups):
            members = order[group * size:(group + 1) * size]
            largest = max(abs(values[row * columns + column]) for column in members)
            scale = struct.unpack("<e", struct.pack("<e", max(largest / 7, 1e-4)))[0]
            scales[group * rows + row] = scale
            for column in members:
                code = max(0, min(15, round(values[row * columns + column] / scale) + 8))
                words[column // 8 * rows + row] |= code << column % 8 * 4
                numbers[row * columns + column] = (code - 8) * scale
    return {name + ".qweight": ([columns // 8, rows], words.tobytes(), "I32"), name + ".g_idx": ([columns], struct.pack("<%di" % columns, *indices), "I32"),
            name + ".scales": ([groups, rows], struct.pack("<%de" % len(scales), *scales), "F16")}, numbers


def write_models(folder, method, encode, *arguments):
    """Folders of the quantised checkpoint and of one with its numbers."""
    quantised, plain = encode_layers(read_checkpoint(FABLES), encode, arguments)
    folders = []
    for part, tensors, changes in (("codes", quantised, {"quantization_config": method}), ("plain", plain, {})):
        folders.append(os.path.join(folder, part))
        os.mkdir(folders[-1])
        write_safetensors(os.path.join(folders[-1], "model.safetensors"), tensors)
        write(os.path.join(folders[-1], "config.json"), json.dumps({**read_json(FABLES, "config.json"), **changes}).encode())
    return folders


def method_4_bits(kind, nested):
    return {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": nested}


class KeptCodes(ReferenceTest):
    CASES = [("nf4", NF4, 64, False, "nf4_g64"), ("nf4", NF4, 64, True, "nf4_g64"), ("fp4", FP4, 64, False, "fp4_g64"),
             ("nf4", NF4, 32, False, "F32"), ("nf4", OTHER, 64, False, "F32")][:1 if SANITIZED else None]

    @classmethod
    def setUpClass(cls):
        cls.prompts = [case["ids"] for case in read_json(FABLES, "reference.json")["cases"]][:2]

    def compare(self, codes, plain, encoding, more=(), divided=False):
        """Returns how many rows of logits were compared. `divided`: two ranks would have parts of groups, unless codes are decoded."""
        count = 0
        expected = [self.logits(build_engine(plain), prompt, 6) for prompt in self.prompts]
        for options in ([], ["--gpus", "2", *(["--dtype", "f32"] if divided else [])], ["--compute", "bf16"], ["--dtype", "f32"], *more)[:2 if SANITIZED else None]:
            engine = build_engine(codes, *options)
            manifest = output_json([ENGINFO, engine, "--json"])["manifest"]
            self.assertEqual(manifest["model"]["weight_dtype"], "F32" if "--dtype" in options else encoding)
            tolerance = 0.3 if "--compute" in options else TOLERANCE
            for prompt, (wanted, rows) in zip(self.prompts, expected):
                found, found_rows = self.logits(engine, prompt, 6)
                if "--compute" not in options:
                    self.assertEqual(found, wanted)
                self.check_logits(found_rows[0], rows[0], tolerance, options)
                count += len(found_rows)
        return count

    @sanitized_elsewhere
    def test_8_bits_with_zeros(self):
        count = 0
        method = {"quant_method": "gptq", "bits": 8, "group_size": 64, "sym": False, "desc_act": False, "checkpoint_format": "gptq_v2"}
        for sign in (1, -1):
            with scratch() as folder:
                codes, plain = write_models(folder, method, encoded_8_bits, 64, sign)
                count += self.compare(codes, plain, "int8_g64_zeros", [["--compute", "int8"]])
        tally("rows of logits of codes of 8 bits with zeros", count)

    ACT_ORDER = {"quant_method": "gptq", "bits": 4, "sym": True, "desc_act": True, "checkpoint_format": "gptq_v2"}

    def test_act_order(self):
        """Groups of 128 columns, the last of which is short; two ranks have o_proj decoded."""
        with scratch() as folder:
            codes, plain = write_models(folder, {**self.ACT_ORDER, "group_size": 128}, encoded_in_act_order, 128, ())
            tally("rows of logits of codes in act-order", self.compare(codes, plain, "int4_g128", [["--compute", "int8"]]))

    @sanitized_elsewhere
    def test_unequal_orders(self):
        """q, k and v are one matrix, which cannot have two orders; a matrix that --dtype is for has none."""
        with scratch() as folder:
            codes, plain = write_models(folder, {**self.ACT_ORDER, "group_size": 64}, encoded_in_act_order, 64, ["k_proj"])
            expected = self.logits(build_engine(plain), self.prompts[0], 6)
            for options, tensors in (([], {"int4_g64": 15, "F32": 6}), (["--keep", "*.down_proj.weight=int8"], {"int4_g64": 10, "F32": 6, "int8_channel": 5}),
                                     (["--gpus", "2"], {"int4_g64": 5, "int4_g32": 5, "F32": 11})):  # F32: with the embedding
                with self.subTest(options):
                    engine = os.path.join(folder, "m.eng")
                    report = output([ENGBUILD, "--model", codes, "--target", "cpu", "-o", engine, "--tune", "off", *options])
                    decoded = tensors["F32"] - 1 + tensors.get("int8_channel", 0)
                    self.assertIn("activations are not quantised\n           %d matrices in act-order are dequantised\n" % decoded, report)
                    found = output_json([ENGINFO, engine, "--json", "--verify"])["matrices"]
                    self.assertEqual({name: kind["tensors"] for name, kind in found.items()}, tensors)
                    if "--keep" not in options:  # which rounds the numbers
                        ids, rows = self.logits(engine, self.prompts[0], 6)
                        self.assertEqual(ids, expected[0])
                        self.check_logits(rows[0], expected[1][0], TOLERANCE, options)

    def test_act_order_on_gpus(self):
        """Codes of activations are formed of selected columns."""
        with scratch() as folder:
            codes, _ = write_models(folder, {**self.ACT_ORDER, "group_size": 64}, encoded_in_act_order, 64, ())
            for options in ([], ["--compute", "int8"], ["--gpus", "2"])[:2 if SANITIZED else None]:
                env, engine = {**FAKE, "FAKE_CUDA_DEVICES": "2"}, os.path.join(folder, "m.eng")
                succeed([ENGBUILD, "--model", codes, "--lean", "-o", engine, "--tune", "off", "--tuning-cache", "none", "--max-batch", "4",
                         "--batch-sizes", "1,4", "--prefill-chunks", "16,64", "--max-context", "128", *options], env=env)
                matrices = output_json([ENGINFO, engine, "--json", "--verify"])["matrices"]
                self.assertEqual(sum(matrices[name]["tensors"] for name in ("int4_g32", "int4_g64") if name in matrices),
                                 15 if "--gpus" in options else 20)
                launches = output([ENGINFO, engine, "--tactics"])
                self.assertIn("select_columns", launches)
                self.assertEqual("quantise" in launches, "--compute" in options)
                self.assertIn("selftest passed", succeed([ENGRUN, engine, "--selftest"], env=env).stdout)

    def test_4_bits(self):
        """Blocks and tables that no encoding has are decoded."""
        count = 0
        for kind, table, size, nested, encoding in self.CASES:
            with self.subTest(kind, size=size, nested=nested, encoding=encoding), scratch() as folder:
                codes, plain = write_models(folder, method_4_bits(kind, nested), encoded_4_bits, kind, table, size, nested)
                count += self.compare(codes, plain, encoding, divided=encoding != "F32")
        tally("rows of logits of bitsandbytes", count)

    def test_gpus(self):
        with scratch() as folder:
            codes, _ = write_models(folder, method_4_bits("nf4", True), encoded_4_bits, "nf4", NF4, 64, True)
            engine = os.path.join(folder, "m.eng")
            succeed([ENGBUILD, "--model", codes, "--lean", "-o", engine, "--tune", "off", "--tuning-cache", "none", "--max-batch", "4",
                     "--batch-sizes", "1,4", "--prefill-chunks", "16", "--max-context", "128"], env=FAKE)
            matrices = output_json([ENGINFO, engine, "--json", "--verify"])["matrices"]
            self.assertEqual(matrices["nf4_g64"]["tensors"], 20)
            self.assertIn("selftest passed", succeed([ENGRUN, engine, "--selftest"], env=FAKE).stdout)


if __name__ == "__main__":
    unittest.main()
