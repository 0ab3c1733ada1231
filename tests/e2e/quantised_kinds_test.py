# SPDX-License-Identifier: Apache-2.0
"""An engine of every kind of quantised checkpoint, of a small random model: the tokens and logits of a checkpoint with the same numbers in
float32, on one rank and on two."""

import array
import fnmatch
import functools
import json
import os
import random
import unittest

import quantised_writer as writer
from gguf_writer import convert, write_safetensors
from harness import (BUILT, ENGBUILD, ENGINFO, ENGRUN, SANITIZED, ReferenceTest, build_engine, output, output_json, scratch, succeed, tally,
                     write)

TOLERANCE = 1e-3
PROMPT = [3, 141, 59, 26, 53, 58, 97, 93, 238]
SMALL = ["--max-batch", "1", "--prefill-chunks", "16", "--max-context", "64"]
LAYER = "model.layers.0."


def config(width):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": width, "num_hidden_layers": 1,
            "num_attention_heads": width // 32, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
            "vocab_size": 256, "tie_word_embeddings": True, "hidden_act": "silu", "dtype": "float32", "bos_token_id": 0, "eos_token_id": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


@functools.lru_cache(maxsize=None)
def model(width):
    """name -> (shape, values). All matrices have `width` columns."""
    rng = random.Random(1)

    def matrix(rows, spread):
        return [rows, width], array.array("f", [rng.gauss(0, spread) for _ in range(rows * width)])
    tensors = {"model.embed_tokens.weight": matrix(256, 0.5)}
    for name, rows in (("self_attn.q_proj", width), ("self_attn.k_proj", 64), ("self_attn.v_proj", 64), ("self_attn.o_proj", width),
                       ("mlp.gate_proj", width), ("mlp.up_proj", width), ("mlp.down_proj", width)):
        tensors["%s%s.weight" % (LAYER, name)] = matrix(rows, 1.25 / width ** 0.5)
    for name in ("model.norm", LAYER + "input_layernorm", LAYER + "post_attention_layernorm"):
        tensors[name + ".weight"] = [width], array.array("f", [rng.uniform(0.8, 1.2) for _ in range(width)])
    return tensors


def gptq(bits, size, sym, version, **more):
    return {"quant_method": "gptq", "bits": bits, "group_size": size or -1, "sym": sym, "desc_act": False,
            "checkpoint_format": ["gptq", "gptq_v2"][version - 1], **more}, writer.gptq, (bits, size, sym, version)


def awq(version, size, encode, *arguments, **more):
    return {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": version, **more}, encode, (size, *arguments)


def auto_round(packing, bits, size, sym, encode, *arguments):
    return {"quant_method": "auto-round", "bits": bits, "group_size": size, "sym": sym, "data_type": "int",
            "packing_format": "auto_round:" + packing}, encode, arguments


def tensors_of(format_, weights, encode, *arguments, **more):
    """compressed-tensors."""
    return {"quant_method": "compressed-tensors", "format": format_, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, **more}}}, encode, arguments


def packed(bits, size, sym, packing=writer.dense, kind="BF16"):
    weights = {"num_bits": bits, "type": "int", "symmetric": sym, "strategy": "group" if size else "channel", "group_size": size or None}
    return tensors_of("pack-quantized", weights, writer.packed, bits, size, sym, packing, kind)


def signed(sym, kind="BF16", size=0):
    weights = {"num_bits": 8, "type": "int", "symmetric": sym, "strategy": "group" if size else "channel", "group_size": size or None}
    return tensors_of("int-quantized", weights, writer.signed_bytes, sym, kind, size)


def e4m3(config, *arguments):
    return config, writer.e4m3, arguments


def fp8_groups(size):
    weights = {"num_bits": 8, "type": "float", "strategy": "group", "group_size": size}
    return tensors_of("float-quantized", weights, writer.e4m3, (1, size), "BF16", "weight_scale")


def fp8(size=None, **more):
    return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": size and [size, size], **more}


MX = (1, 32), "E8M0"
ATTENTION = ["self_attn.%s_proj" % module for module in "qkvo"]
MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": ["lm_head"], "quantized_layers": {
    **{LAYER + module: {"quant_algo": "FP8"} for module in ATTENTION},
    **{LAYER + "mlp.%s_proj" % module: {"quant_algo": "NVFP4", "group_size": 16} for module in ("gate", "up", "down")}}}
# name -> ((quantization_config, encoder, its arguments), the encoding of the engine's matrices as a pattern, or why it does not keep the codes)
KINDS = {
    "gptq 2 bits": (gptq(2, 64, True, 2), "int4_g64"),
    "gptq 2 bits with zeros": (gptq(2, 32, False, 1), "int4_g32_zeros"),
    "gptq 3 bits": (gptq(3, 64, True, 1), "int4_g64"),
    "gptq 3 bits with zeros, version 1": (gptq(3, 64, False, 1), "int4_g64_zeros"),
    "gptq 3 bits with zeros, version 2": (gptq(3, 0, False, 2), "int4_g*_zeros"),
    "gptq 8 bits, version 1": (gptq(8, 32, True, 1), "int8_g32"),
    "awq gemm": (awq("GEMM", 64, writer.awq_gemm), "int4_g64_zeros"),
    "awq gemv 128": (awq("gemv", 128, writer.awq_gemv), "int4_g128_zeros"),
    "awq gemv 64": (awq("gemv", 64, writer.awq_gemv), "int4_g64_zeros"),
    "awq gemv 32": (awq("gemv", 32, writer.awq_gemv), "int4_g32_zeros"),
    "awq gemv_fast": (awq("gemv_fast", 128, writer.awq_gemv_fast), "with zero points between codes"),
    "awq gemv_fast with exact products": (awq("gemv_fast", 64, writer.awq_gemv_fast, "qzeros", True), "int4_g64_zeros"),
    "llm-awq": (awq("gemm", 32, writer.awq_gemv_fast, "scaled_zeros", backend="llm-awq"), "with zero points between codes"),
    "auto-round gptq": (auto_round("auto_gptq", 4, 64, True, writer.gptq, 4, 64, True, 1), "int4_g64"),
    "gptq with zeros in some modules": (gptq(4, 64, True, 1, dynamic={".*mlp.*": {"sym": False}})[:1] + (
        writer.by_module, ("mlp", ((writer.gptq, 4, 64, False, 1), (writer.gptq, 4, 64, True, 1)))), "int4_g64*"),
    "auto-round gptqmodel": (auto_round("gptqmodel", 4, 64, False, writer.gptq, 4, 64, False, 2), "int4_g64_zeros"),
    "auto-round gptq 2 bits": (auto_round("auto_gptq", 2, 32, False, writer.gptq, 2, 32, False, 1), "int4_g32_zeros"),
    "auto-round awq": (auto_round("auto_awq", 4, 32, False, writer.awq_gemm, 32), "int4_g32_zeros"),
    "auto-round awq, symmetric": (auto_round("auto_awq", 4, 64, True, writer.awq_gemm, 64, True), "int4_g64"),
    "auto-round packed": (auto_round("llm_compressor", 4, 64, True, writer.packed, 4, 64, True), "int4_g64"),
    "packed 2 bits": (packed(2, 32, True), "int4_g32"),
    "packed 3 bits": (packed(3, 64, True), "int4_g64"),
    "packed 3 bits in whole codes": (packed(3, 64, True, writer.whole), "int4_g64"),
    "packed 3 bits with zeros": (packed(3, 64, False), "int4_g64_zeros"),
    "packed 3 bits in whole codes with zeros": (packed(3, 64, False, writer.whole), "int4_g64_zeros"),
    "packed 4 bits a row": (packed(4, 0, False, kind="F16"), "int4_g*_zeros"),
    "packed 4 bits with scales of float32": (packed(4, 32, True, kind="F32"), "with scales that are not exact in float16"),
    "packed 4 bits in groups of 16": (packed(4, 16, True), "with groups of no multiple of 32 columns"),
    "packed 5 bits": (packed(5, 64, True), "int8_g64"),
    "packed 5 bits in whole codes with zeros": (packed(5, 64, False, writer.whole), "int8_g64_zeros"),
    "packed 6 bits with zeros": (packed(6, 32, False), "int8_g32_zeros"),
    "packed 6 bits a row": (packed(6, 0, True, kind="F32"), "int8_channel"),
    "packed 7 bits in whole codes": (packed(7, 64, True, writer.whole), "int8_g64"),
    "packed 8 bits": (packed(8, 64, True), "int8_g64"),
    "packed 8 bits with zeros": (packed(8, 32, False), "int8_g32_zeros"),
    "int8": (signed(True, "F32"), "int8_channel"),
    "int8 with zeros": (signed(False), "int8_g*_zeros"),
    "int8 in groups": (signed(True, "BF16", 64), "int8_g64"),
    "int8 in groups with zeros": (signed(False, "BF16", 32), "int8_g32_zeros"),
    "fp8 in groups of 128": (fp8_groups(128), "e4m3_block128"),
    "fp8 in groups of 64": (fp8_groups(64), "with blocks that no encoding has"),
    "mxfp8": (e4m3({"quant_method": "mxfp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32]}, *MX, "weight_scale_inv"), "mxfp8"),
    "mxfp8 of compressed-tensors": (tensors_of("mxfp8-quantized", {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32},
                                               writer.e4m3, *MX, "weight_scale"), "mxfp8"),
    "mxfp8 of ModelOpt": (e4m3({"quant_method": "modelopt", "quant_algo": "MXFP8"}, *MX, "weight_scale"), "mxfp8"),
    "fp8 with e8m0 scales": (e4m3(fp8(128, scale_fmt="ue8m0"), (128, 128), "E8M0", "weight_scale_inv"), "e4m3_block128"),
    "fp8 with e8m0 scales of their own type": (e4m3(fp8(128, scale_fmt="ue8m0"), (128, 128), "E8M0", "scale", None, "F8_E8M0"), "e4m3_block128"),
    "fp8 with scales of bf16": (e4m3(fp8(128), (128, 128), "BF16", "weight_scale_inv"), "e4m3_block128"),
    "fp8 in blocks of 64": (e4m3(fp8(64), (64, 64), "F32", "weight_scale_inv"), "with blocks that no encoding has"),
    "fp8 of a tensor": (e4m3(fp8(), (0, 0), "F32", "weight_scale_inv", []), "e4m3_channel"),
    "fbgemm_fp8": (e4m3({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, (1, 0), "F32", "weight_scale"), "e4m3_channel"),
    "ModelOpt FP8": (e4m3({"quant_method": "modelopt", "quant_algo": "FP8"}, (0, 0), "F32", "weight_scale", []), "e4m3_channel"),
    "ModelOpt FP8 in blocks": (e4m3({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, (128, 128), "F32", "weight_scale"), "e4m3_block128"),
    "auto-round mxfp8": (e4m3({"quant_method": "auto-round", "bits": 8, "group_size": 32, "sym": True, "data_type": "mx_fp",
                               "packing_format": "auto_round:llm_compressor"}, *MX, "weight_scale"), "mxfp8"),
    "ModelOpt NVFP4": (({"quant_method": "modelopt", "quant_algo": "NVFP4"}, writer.nvfp4, ()), "nvfp4"),
    "ModelOpt mixed precision": ((MIXED, writer.by_module, ("mlp", ((writer.nvfp4,), (writer.e4m3, (0, 0), "F32", "weight_scale", [])))), "[en]*"),
    "bitsandbytes int8": (({"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}, writer.bitsandbytes_8, ()),
                          "int8_channel"),
}


def write_model(folder, width, tensors, **changes):
    os.mkdir(folder)
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    write(os.path.join(folder, "config.json"), json.dumps({**config(width), **changes}).encode())
    return folder


FAKE = {"LD_LIBRARY_PATH": ":".join(os.path.join(BUILT, "tests", "fake_cuda", name) for name in ("whole", "compiler")),
        "FAKE_CUDA_MEMORY": "100000000"}
K_QUANTS = "with two levels of scales"


def write_models(folder, kind):
    """Folders of the quantised checkpoint and of one with its numbers."""
    method, encode, arguments = KINDS[kind][0]
    sizes = [size for argument in arguments for size in (argument if isinstance(argument, tuple) else (argument,))]
    width = 256 if 128 in sizes else 128  # two ranks have whole groups
    quantised, plain = writer.encode_layers(model(width), encode, arguments)
    return (write_model(os.path.join(folder, "codes"), width, quantised, quantization_config=method),
            write_model(os.path.join(folder, "plain"), width, plain))


class Kinds(ReferenceTest):
    def compare(self, quantised, plain, encoding, count):
        """`count` matrices of the engine have the encoding, or are in the report with that reason, and none else are quantised."""
        expected, rows = self.logits(build_engine(plain, *SMALL), PROMPT, 4)
        for ranks in ([], ["--gpus", "2"]):
            engine = quantised + ".eng"
            report = output([ENGBUILD, "--model", quantised, "--target", "cpu", "--tune", "off", "-o", engine, *SMALL, *ranks])
            found, found_rows = self.logits(engine, PROMPT, 4)
            self.assertEqual(found, expected)
            for row, other in zip(found_rows, rows):
                self.check_logits(row, other, TOLERANCE, ranks)
            matrices = output_json([ENGINFO, engine, "--json"])["matrices"]
            if encoding.startswith("with"):
                self.assertEqual(list(matrices), ["F32"])
                self.assertIn("weights are dequantised, ", report)
                self.assertIn("\n           %d matrices %s are dequantised\n" % (count, encoding), report)
            else:
                self.assertEqual(sum(matrices[name]["tensors"] for name in fnmatch.filter(matrices, encoding)), count, matrices)
                self.assertEqual(set(matrices) - set(fnmatch.filter(matrices, encoding)), {"F32"} if count < 5 else set())
                self.assertNotIn("dequantised", report)

    def test_kinds(self):
        kinds = list(KINDS)[::8 if SANITIZED else 1]
        for kind in kinds:
            with self.subTest(kind), scratch() as folder:
                self.compare(*write_models(folder, kind), KINDS[kind][1], 4)
        tally("kinds of quantised checkpoints", len(kinds))

    def test_gguf(self):
        kinds = {"Q4_1": "with zero points between codes", "Q5_0": "int8_g32", "Q5_1": "with zero points between codes", "Q2_K": K_QUANTS,
                 "Q3_K": K_QUANTS, "Q4_K": K_QUANTS, "Q5_K": K_QUANTS, "Q6_K": K_QUANTS, "IQ4_NL": "int8_g32", "IQ4_XS": K_QUANTS,
                 "MXFP4": "mxfp4"}
        with scratch() as folder:
            source = write_model(os.path.join(folder, "source"), 256, model(256))
            for kind, encoding in list(kinds.items())[::3 if SANITIZED else 1]:
                with self.subTest(kind):
                    file, plain = os.path.join(folder, kind + ".gguf"), os.path.join(folder, kind)
                    convert(source, kind, file, plain)
                    self.compare(file, plain, encoding, 5)  # with the embedding
        tally("kinds of GGUF files", len(kinds))

    def test_rounded_zero_points(self):
        """An engine for a GPU, which rounds anyway, keeps codes whose zero points are integers but for the rounding of their products."""
        with scratch() as folder:
            codes, _ = write_models(folder, "llm-awq")
            engine = os.path.join(folder, "m.eng")
            report = output_json([ENGBUILD, "--model", codes, "--lean", "-o", engine, "--tune", "off", "--tuning-cache", "none", "--json", *SMALL],
                                 env=FAKE)
            self.assertNotIn("dequantised", report)
            matrices = output_json([ENGINFO, engine, "--json", "--verify"])["matrices"]
            self.assertEqual(matrices["int4_g32_zeros"]["tensors"], 4)
            self.assertIn("selftest passed", succeed([ENGRUN, engine, "--selftest"], env=FAKE).stdout)
            report = output_json([ENGBUILD, "--model", codes, "--target", "cpu", "-o", engine, "--tune", "off", "--json", *SMALL])
            self.assertEqual(report["dequantised"], [{"reason": "with zero points between codes", "matrices": 4}])


if __name__ == "__main__":
    unittest.main()
