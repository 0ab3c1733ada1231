# SPDX-License-Identifier: Apache-2.0
"""Shared experts as experts of the routed ones' matrices: the same logits as with matrices of their own, on one rank and on two, and
where they stay apart. Dry runs of published shapes for GPUs; small engines for GPUs with the fake driver of tests/fake_cuda."""

import array
import json
import os
import struct
import unittest

from gguf_writer import read_checkpoint, write_safetensors
from harness import (BUILT, ENGBUILD, ENGINFO, ENGRUN, MAKE_CHECKPOINT, SANITIZED, ReferenceTest, build_engine, contents, output, output_json, run,
                     sanitized_elsewhere, scratch, succeed, tally, write)

FAKE = {"FAKE_CUDA_MEMORY": "100000000", "FAKE_CUDA_DEVICES": "2",
        "LD_LIBRARY_PATH": ":".join(os.path.join(BUILT, "tests", "fake_cuda", part) for part in ("whole", "compiler"))}
SMALL = ["--target", "cuda", "--max-batch", "4", "--batch-sizes", "1,4", "--prefill-chunks", "16", "--max-context", "128", "--quiet",
         "--lean", "--tuning-cache", "none"]

USUAL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 256, "tie_word_embeddings": False,
         "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2}
LATENT = {"kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
          "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 3}
DELTA_RULE = {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
              "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "full_attention_interval": 2}
# Shared experts, of as many times the width of a routed one as its last number says.
MODELS = {
    "qwen2_moe of 1": ({"model_type": "qwen2_moe", "num_experts": 6, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 32}, 1),
    "qwen2_moe of 4": ({"model_type": "qwen2_moe", "num_experts": 5, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 128}, 4),
    "qwen3_next": ({"model_type": "qwen3_next", "num_experts": 8, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 32,
                    **DELTA_RULE}, 1),
    "qwen3_5_moe": ({"model_type": "qwen3_5_moe_text", "num_experts": 8, "num_experts_per_tok": 3,
                     "shared_expert_intermediate_size": 64, **DELTA_RULE}, 2),
    "deepseek_v2": ({"model_type": "deepseek_v2", **LATENT, "n_shared_experts": 2, "routed_scaling_factor": 1.5,
                     "first_k_dense_replace": 1, "topk_method": "greedy"}, 2),
    "deepseek_v3": ({"model_type": "deepseek_v3", **LATENT, "n_shared_experts": 3, "n_group": 4, "topk_group": 2,
                     "first_k_dense_replace": 0}, 3),
    "glm4_moe": ({"model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
                  "n_shared_experts": 2, "first_k_dense_replace": 1, "head_dim": 16}, 2),
    "afmoe": ({"model_type": "afmoe", "num_experts": 8, "num_experts_per_tok": 3, "num_shared_experts": 2, "num_dense_layers": 1,
               "head_dim": 16, "sliding_window": 64}, 2),
    "nemotron_h": ({"model_type": "nemotron_h", "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_shared_expert_intermediate_size": 64,
                    "num_hidden_layers": 3, "layers_block_type": ["mamba", "moe", "attention"], "head_dim": 16, "mamba_num_heads": 4,
                    "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2}, 2),
    "ernie4_5_moe": ({"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 2}, 2),
}
PUBLISHED = {
    "DeepSeek-V2-Lite": ({"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
                          "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512,
                          "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
                          "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
                          "topk_method": "greedy", "vocab_size": 102400, "max_position_embeddings": 163840}, 26, 2, 66),
    "Qwen1.5-MoE-A2.7B": ({"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408,
                           "shared_expert_intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16,
                           "num_key_value_heads": 16, "num_experts": 60, "num_experts_per_tok": 4, "vocab_size": 151936}, 24, 4, 64),
    "Qwen3-Next-80B-A3B": ({"model_type": "qwen3_next", "hidden_size": 2048, "intermediate_size": 5120, "moe_intermediate_size": 512,
                            "shared_expert_intermediate_size": 512, "num_hidden_layers": 48, "num_attention_heads": 16,
                            "num_key_value_heads": 2, "head_dim": 256, "num_experts": 512, "num_experts_per_tok": 10,
                            "vocab_size": 151936}, 48, 1, 513),
    "Nemotron 3 Nano": ({"model_type": "nemotron_h", "hidden_size": 2688, "intermediate_size": 1856, "moe_intermediate_size": 1856,
                         "num_hidden_layers": 52, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
                         "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64,
                         "ssm_state_size": 128, "n_groups": 8, "n_routed_experts": 128, "num_experts_per_tok": 6,
                         "moe_shared_expert_intermediate_size": 3712, "vocab_size": 131072, "max_position_embeddings": 262144}, 23, 2, 130),
}
TOLERANCE = 2e-4  # of logits around 1: the order of sums
# A pattern for the shared expert alone, which changes nothing else.
APART = ["--keep", "*.shared_expert*=f32"]


def decode_graphs(model, after, *options):
    """All decode graphs after a pass."""
    dumped = succeed([ENGBUILD, "--model", model, "--dry-run", "--dump-after", after, "--quiet", *options]).stdout
    return dumped.split("# prefill graph")[0].split("# decode graph")[1:]


def graph_of(model, *options):
    """The decode graph, after the import."""
    return decode_graphs(model, "import", *options)[0]


def shared_in(graph):
    """The number of shared experts of each router that has some."""
    return [int(line.split(" shared=")[1].split()[0]) for line in graph.splitlines() if "= router(" in line and " shared=" in line]


def change_dtypes(model, matches):
    """Tensors that match become bfloat16, rounded towards zero."""
    path = os.path.join(model, "model.safetensors")
    data = contents(path)
    size = struct.unpack("<Q", data[:8])[0]
    header, data = json.loads(data[8:8 + size]), data[8 + size:]
    made = b""
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        part = data[first:end]
        if matches(name):
            part = b"".join(part[i + 2:i + 4] for i in range(0, len(part), 4))
            entry["dtype"] = "BF16"
        entry["data_offsets"] = [len(made), len(made) + len(part)]
        made += part
    text = json.dumps(header).encode()
    write(path, struct.pack("<Q", len(text)) + text + made)


def encoded(name, values, shape, size):
    """GPTQ in 8 bits without zero points: (tensors of the module, the numbers that they stand for)."""
    rows, columns = shape
    scales, codes, numbers = [0.0] * (columns // size * rows), bytearray(rows * columns), array.array("f")
    for at in range(0, len(values), size):
        row, column = divmod(at, columns)
        part = values[at:at + size]
        scale = struct.unpack("<e", struct.pack("<e", max(map(abs, part)) / 127))[0]
        scales[column // size * rows + row] = scale
        for i, value in enumerate(part):
            code = max(-128, min(127, round(value / scale)))
            codes[((column + i) // 4 * rows + row) * 4 + (column + i) % 4] = code + 128
            numbers.append(code * scale)
    zeros = bytes([127]) * (columns // size * rows)
    return {name + ".qweight": ([columns // 4, rows], bytes(codes), "I32"), name + ".qzeros": ([columns // size, rows // 4], zeros, "I32"),
            name + ".scales": ([columns // size, rows], struct.pack("<%de" % len(scales), *scales), "F16")}, numbers


@unittest.skipUnless(os.path.exists(MAKE_CHECKPOINT), "needs make_checkpoint")
class SharedExperts(ReferenceTest):
    def setUp(self):
        folder = scratch()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def shape(self, config):
        path = os.path.join(self.folder, "shape")
        os.makedirs(path, exist_ok=True)
        write(os.path.join(path, "config.json"), json.dumps(config).encode())
        return path

    def model(self, name, **changes):
        path = os.path.join(self.folder, "model of " + name)
        succeed([MAKE_CHECKPOINT, "--config", self.shape({**USUAL, **MODELS[name][0], **changes}), "-o", path, "--dtype", "f32"])
        return path

    def check_same(self, model, joined, apart, what):
        prompt = [(7 * i + 3) % 320 for i in range(37)]
        expected_ids, expected = self.logits(build_engine(model, *apart), prompt, 6)
        found_ids, found = self.logits(build_engine(model, *joined), prompt, 6)
        self.assertEqual(found_ids, expected_ids, what)
        for a, b in zip(found, expected):
            self.check_logits(a, b, TOLERANCE, what)

    def test_same_logits(self):
        for name, (_, count) in list(MODELS.items())[::4 if SANITIZED else 1]:
            model = self.model(name)
            graphs = graph_of(model, "--target", "cpu"), graph_of(model, "--target", "cpu", *APART)
            with self.subTest(name):
                self.assertEqual(set(shared_in(graphs[0])), {count})
                self.assertEqual(shared_in(graphs[1]), [])
                self.assertEqual(graphs[0].count("shared_gate=1") > 0, "qwen" in name)
                self.check_same(model, ["--dtype", "f32"], ["--dtype", "f32", *APART], name)
                self.check_same(model, ["--dtype", "f32", "--gpus", "2"], ["--dtype", "f32", *APART], name)
            output([ENGRUN, build_engine(model, "--dtype", "f32", "--gpus", "2"), "--selftest"])
            output([ENGINFO, build_engine(model, "--dtype", "f32"), "--verify"])
        tally("models", len(MODELS))

    @sanitized_elsewhere
    def test_codes(self):
        """Codes of the builder, whose groups must end where an expert's columns do."""
        model = self.model("deepseek_v2", moe_intermediate_size=64)
        for dtype, options, joined in (("int8", [], True), ("int4", ["--group", "32"], True), ("int4", ["--group", "128"], False),
                                       ("fp8", [], True), ("int4", ["--group", "32", "--calibrate", "self"], False)):
            with self.subTest(dtype, options=options):
                graph = graph_of(model, "--target", "cpu", "--dtype", dtype, *options)
                self.assertEqual(shared_in(graph) != [], joined)
                output([ENGRUN, build_engine(model, "--dtype", dtype, *options), "--selftest"])

    def test_calibration_leaves_out_gated_ones_anyway(self):
        model = self.model("qwen2_moe of 4")
        options = ["--dtype", "int4", "--group", "32", "--calibrate", "self"]
        self.assertEqual(shared_in(graph_of(model, "--target", "cpu", *options)), [4, 4])
        output([ENGRUN, build_engine(model, *options), "--selftest"])

    @sanitized_elsewhere
    def test_kept_codes(self):
        """Codes of a checkpoint are kept in joined matrices, whose columns are parts of the shared expert's; where its tensors have none,
        it stays apart."""
        method = {"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": True, "desc_act": False}
        for name, excluded, joined in (("qwen2_moe of 4", "no module", True), ("deepseek_v2", "no module", True),
                                       ("deepseek_v2", "shared_experts.down_proj", False), ("qwen2_moe of 4", "mlp.experts.1.gate", False)):
            with self.subTest(name, excluded=excluded):
                widths = {"moe_intermediate_size": 64}  # two groups of an expert
                if "qwen2" in name:
                    widths["shared_expert_intermediate_size"] = 256
                base, tensors, numbers = self.model(name, **widths), {}, {}
                for tensor, (shape, values) in read_checkpoint(base).items():
                    if ".mlp." in tensor and "expert" in tensor and "_gate." not in tensor and excluded not in tensor:
                        made, values = encoded(tensor[:-len(".weight")], values, shape, 32)
                        tensors.update(made)
                    else:
                        tensors[tensor] = (shape, values)
                    numbers[tensor] = (shape, values)
                folders = [os.path.join(self.folder, "%s without %s %s" % (name, excluded, kind)) for kind in ("codes", "numbers")]
                for folder, parts, changes in zip(folders, (tensors, numbers), ({"quantization_config": method}, {})):
                    os.mkdir(folder)
                    write_safetensors(os.path.join(folder, "model.safetensors"), parts)
                    write(os.path.join(folder, "config.json"), json.dumps({**USUAL, **MODELS[name][0], **widths, **changes}).encode())
                for options in ([], ["--gpus", "2"]):
                    self.assertEqual(shared_in(graph_of(folders[0], "--target", "cpu", *options)) != [], joined)
                    prompt = [(11 * i + 5) % 320 for i in range(29)]
                    expected = self.logits(build_engine(folders[1], *APART), prompt, 4)
                    found = self.logits(build_engine(folders[0], *options), prompt, 4)
                    self.assertEqual(found[0], expected[0])
                    for a, b in zip(found[1], expected[1]):
                        self.check_logits(a, b, TOLERANCE, options)
                manifest = output_json([ENGINFO, build_engine(folders[0]), "--json"])["manifest"]
                if joined:
                    self.assertEqual(manifest["model"]["weight_dtype"], "int8_g32")

    def test_apart_where_parts_differ(self):
        """Types of the checkpoint's tensors, of --keep, widths that are no multiple."""
        model = self.model("qwen2_moe of 4")
        self.assertEqual(shared_in(graph_of(model, "--target", "cpu")), [4, 4])
        for pattern, joined in (("*.shared_expert.down_proj.weight=bf16", False), ("*.shared_expert_gate.weight=bf16", False),
                                ("*.mlp.experts.*=bf16", False), ("*.mlp.gate.weight=bf16", False), ("*.mlp.*=bf16", True),
                                ("model.layers.0.mlp.shared_expert.up_proj.weight=bf16", None)):
            with self.subTest(pattern):
                found = shared_in(graph_of(model, "--target", "cpu", "--keep", pattern))
                self.assertEqual(found, [4] if joined is None else [4, 4] * joined)
        change_dtypes(model, lambda name: "layers.1.mlp.shared_expert." in name)
        self.assertEqual(shared_in(graph_of(model, "--target", "cpu")), [4])
        self.assertEqual(shared_in(graph_of(model, "--target", "cpu", "--dtype", "bf16")), [4, 4])
        self.check_same(model, [], ["--keep", "model.layers.0.mlp.shared_expert.*=f32"], "one layer of two")
        other = self.model("qwen2_moe of 4", shared_expert_intermediate_size=80)
        self.assertEqual(shared_in(graph_of(other, "--target", "cpu")), [])
        output([ENGRUN, build_engine(other), "--selftest"])

    @sanitized_elsewhere
    def test_published_shapes(self):
        for name, (config, layers, shared, experts) in PUBLISHED.items():
            for options in (["--dtype", "fp8"], ["--dtype", "int4", "--group", "64"], ["--gpus", "2"]):
                with self.subTest(name, options=options):
                    model = self.shape({**config, "torch_dtype": "bfloat16"})
                    graph = graph_of(model, "--gpu", "h200", "--tuning-cache", "none", "--max-context", "4096", *options)
                    self.assertEqual(shared_in(graph), [shared] * layers)
                    self.assertEqual(graph.count(" experts=%d " % experts), 2 * layers)
                    if "--gpus" in options:
                        continue
                    _, apart, few_rows, more_rows = decode_graphs(model, "dead_code", "--gpu", "h200", "--tuning-cache", "none", "--max-context",
                                                                  "4096", *options)
                    # Nemotron's 168 tiles of 16 rows are no equal shares for 132 multiprocessors.
                    launch = "routed_matmul" if config["hidden_size"] == 2688 else "routed_mlp"
                    for graph, op in ((apart, "routed_matmul"), (few_rows, launch), (more_rows, "norm_router")):
                        fused = [line for line in graph.splitlines() if "= %s(" % op in line]
                        self.assertEqual(len(fused), layers)
                        for line in fused:
                            self.assertRegex(line + " ", " shared=%d " % shared)

    def test_engines_for_gpus(self):
        for name in ("qwen2_moe of 4", "deepseek_v3"):
            model = self.model(name)
            for flags in ([], ["--tune", "off", "--gpus", "2"])[:1 if SANITIZED else 2]:
                with self.subTest(name, flags=flags):
                    engine = os.path.join(self.folder, "m.eng")
                    built = run([ENGBUILD, "--model", model, "-o", engine, *SMALL, *flags], env=FAKE)
                    self.assertEqual(built.rc, 0, built.stderr)
                    self.assertIn("selftest passed", succeed([ENGRUN, engine, "--selftest"], env=FAKE).stdout)


if __name__ == "__main__":
    unittest.main()
