# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of models that read images or sound, too: their text part becomes the engine that a checkpoint of it alone becomes,
the other parts are left out and named. The checkpoints are made up: a small model, its tensors renamed, towers beside it."""

import json
import os
import shutil
import struct
import unittest

from harness import (ENGBUILD, ENGRUN, FABLES, MAKE_CHECKPOINT, SANITIZED, ReferenceTest, contents, output_json, read_json, run, scratch,
                     succeed, tally, write)

SIZES = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "vocab_size": 96, "max_position_embeddings": 256}
SECTIONS = {"rope_type": "default", "type": "default", "mrope_section": [2, 2, 2]}
VISION = {"hidden_size": 8, "num_hidden_layers": 1, "model_type": "siglip_vision_model"}
TOWER, PROJECTOR = "vision_tower.encoder.weight", "multi_modal_projector.linear.weight"


def before(prefix):
    """Tensors of the text part in another module; the head stays where it is, or moves with the rest."""
    return lambda name: prefix + name


def inside(module):
    """model.x becomes model.MODULE.x; the head stays where it is."""
    return lambda name: name.replace("model.", "model.%s." % module, 1) if name.startswith("model.") else name


def between(crossing):
    """Layers of the text part with others among them, whose numbers are given."""
    def rename(name):
        before, dot, rest = name.partition("model.layers.")
        if not dot:
            return "language_model." + name
        layer, _, module = rest.partition(".")
        own = [number for number in range(32) if number not in crossing]
        return "language_model.model.layers.%d.%s" % (own[int(layer)], module)
    return rename


# Each: the text part's own configuration, what the outer one and text_config then are, names of tensors, towers.
# `text`: what text_config says in another way; None takes a field out. `beside`: tensors that the family leaves out. `unused`: those
# that the last tower's name stands for; `embedding_rows`: more rows of the embedding, which it stands for, too.
CASES = {
    "gemma3": dict(
        own={"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 8, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        outer={"model_type": "gemma3", "boi_token_index": 90, "eoi_token_index": 91, "image_token_index": 92,
               "mm_tokens_per_image": 4, "torch_dtype": "float32", "eos_token_id": [1, 5], "initializer_range": 0.02},
        names=before("language_model."), towers={TOWER: [8, 8], PROJECTOR: [4, 8]}),
    "gemma4": dict(
        own={"model_type": "gemma4_text", "head_dim": 8, "global_head_dim": 16, "sliding_window": 8, "num_hidden_layers": 4,
             "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
             "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96},
        outer={"model_type": "gemma4", "audio_config": {"hidden_size": 8}, "image_token_id": 90, "boa_token_id": 91,
               "eoa_token_index": 92},
        names=inside("language_model"), towers={"model." + TOWER: [8, 8], "model.embed_vision.weight": [8, 8],
                                                "model.audio_tower.weight": [8, 8]},
        beside={"model.language_model.layers.2.self_attn.k_proj.weight": [16, 48],
                "model.language_model.layers.3.self_attn.k_norm.weight": [16]}),
    "gemma3, as 5.17 names tensors": dict(
        own={"model_type": "gemma3_text", "head_dim": 16, "tie_word_embeddings": False},
        outer={"model_type": "gemma3", "tie_word_embeddings": False},
        names=inside("language_model"), towers={"model." + TOWER: [8, 8]}),
    "mistral3": dict(
        own={"model_type": "mistral", "head_dim": 16, "sliding_window": None, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
        outer={"model_type": "mistral3", "image_token_index": 10, "multimodal_projector_bias": False,
               "projector_hidden_act": "gelu", "spatial_merge_size": 2, "vision_feature_layer": -1},
        text={"tie_word_embeddings": None}, names=before("language_model."), towers={TOWER: [8, 8], PROJECTOR: [4, 8]}),
    "mistral3 of a ministral3": dict(
        own={"model_type": "ministral3", "head_dim": 16, "rope_parameters": {
            "type": "yarn", "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}},
        outer={"model_type": "mistral3", "image_token_index": 10, "multimodal_projector_bias": False, "spatial_merge_size": 2,
               "tie_word_embeddings": False, "dtype": "float32"},
        names=inside("language_model"), towers={"model." + TOWER: [8, 8], "model." + PROJECTOR: [4, 8]}),
    "mllama": dict(
        own={"model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": False, "num_hidden_layers": 12,
             "bos_token_id": 1, "eos_token_id": 2, "num_key_value_heads": 4},
        outer={"model_type": "mllama", "image_token_index": 96, "torch_dtype": "float32"},
        text={"model_type": "mllama_text_model", "num_hidden_layers": 15, "cross_attention_layers": [3, 8, 13], "dropout": 0,
              "rope_theta": None, "rms_norm_eps": None},
        names=between([3, 8, 13]), towers={"vision_model.patch_embedding.weight": [8, 8], PROJECTOR: [4, 8]},
        unused={"language_model.model.layers.3.cross_attn.q_proj.weight": [48, 48],
                "language_model.model.layers.13.cross_attn_mlp_gate": [1], "language_model.model.layers.8.mlp.up_proj.weight": [64, 48]},
        embedding_rows=8),
    "got_ocr2": dict(
        own={"model_type": "qwen2", "rope_theta": 1e6, "sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 21,
             "tie_word_embeddings": True},
        outer={"model_type": "got_ocr2", "image_seq_length": 576, "image_token_index": 95, "pad_token_id": -1, "ignore_index": -100},
        names=before("language_model."), towers={TOWER: [8, 8], PROJECTOR: [4, 8]}),
    "ovis2": dict(
        own={"model_type": "qwen2", "rope_theta": 1e6, "tie_word_embeddings": False},
        outer={"model_type": "ovis2", "image_token_id": 90, "visual_indicator_token_ids": [91, 92, 93, 94, 95], "hidden_size": 48,
               "vocab_size": 96, "tie_word_embeddings": False},
        names=inside("language_model"), towers={"model." + TOWER: [8, 8], "model.visual_embeddings_table.weight": [8, 48]}),
    "perception_lm": dict(
        own={"model_type": "llama", "head_dim": 16, "rope_theta": 5e5, "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128}, "tie_word_embeddings": True},
        outer={"model_type": "perception_lm", "image_token_id": 90, "video_token_id": 91, "projector_pooling_ratio": 2,
               "vision_use_cls_token": True},
        names=inside("language_model"), towers={"model." + TOWER: [8, 8], "model." + PROJECTOR: [4, 8]}),
    "granite_speech": dict(
        own={"model_type": "granite", "attention_multiplier": 0.1, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
             "residual_multiplier": 0.22, "tie_word_embeddings": True},
        outer={"model_type": "granite_speech", "audio_token_index": 90, "downsample_rate": 5, "window_size": 15, "has_lora_adapter": True,
               "encoder_config": {"hidden_dim": 8, "num_layers": 1}, "projector_config": {"hidden_size": 8}, "initializer_range": 0.02,
               "vision_config": None},
        names=before("language_model."), towers={"encoder.input_linear.weight": [8, 8], "projector.query": [4, 8]}),
    "llava": dict(
        own={"model_type": "llama", "tie_word_embeddings": False},
        outer={"model_type": "llava", "ignore_index": -100, "image_token_index": 32000, "pad_token_id": 95, "vocab_size": 96,
               "tie_word_embeddings": False, "vision_feature_layer": -2, "vision_feature_select_strategy": "default"},
        text={"model_type": None}, names=before("language_model."),
        towers={TOWER: [8, 8], PROJECTOR: [4, 8], "image_newline": [48]}),
    "llava_next of a qwen2": dict(
        own={"model_type": "qwen2", "tie_word_embeddings": True},
        outer={"model_type": "llava_next", "image_grid_pinpoints": [[336, 672]], "use_image_newline_parameter": True},
        names=inside("language_model"), towers={"model." + TOWER: [8, 8], "model.image_newline": [48]}),
    "smolvlm": dict(
        own={"model_type": "llama", "tie_word_embeddings": False},
        outer={"model_type": "smolvlm", "image_token_id": 90, "scale_factor": 4},
        text={"perceiver_config": {"model_type": "vllama3"}, "qk_layer_norms": False, "use_resampler": False,
              "pixel_shuffle_factor": 4},
        names=inside("text_model"), towers={"model.vision_model.embeddings.weight": [8, 8], "model.connector.weight": [4, 8]}),
    "qwen2_vl, flat": dict(
        own={"model_type": "qwen2", "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": False},
        outer={"model_type": "qwen2_vl", "image_token_id": 90, "vision_start_token_id": 91, "vision_token_id": 92},
        text={"rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2]}, "bos_token_id": 1, "eos_token_id": 2}, flat=True,
        names=before(""), towers={"visual.patch_embed.weight": [8, 8]}),
    "qwen2_5_vl": dict(
        own={"model_type": "qwen2", "rope_theta": 1e6, "rms_norm_eps": 1e-5, "max_window_layers": 80},
        outer={"model_type": "qwen2_5_vl", "image_token_id": 90, "tie_word_embeddings": False},
        text={"model_type": "qwen2_5_vl_text", "bos_token_id": 1, "eos_token_id": 2, "rope_theta": None, "rms_norm_eps": None, "max_window_layers": None,
              "rope_parameters": {**SECTIONS, "rope_theta": 1e6}},
        names=inside("language_model"), towers={"model.visual.blocks.0.weight": [8, 8]}),
    "qwen3_vl": dict(
        own={"model_type": "qwen3", "head_dim": 16, "rope_theta": 5e5, "tie_word_embeddings": True},
        outer={"model_type": "qwen3_vl", "image_token_id": 90, "vision_end_token_id": 91, "tie_word_embeddings": True},
        text={"model_type": "qwen3_vl_text", "rope_theta": None, "rope_scaling": {**SECTIONS, "mrope_interleaved": True}},
        names=inside("language_model"), towers={"model.visual.deepstack_merger_list.0.weight": [8, 8]}),
    "qwen3_5": dict(
        own={"model_type": "qwen3_5_text", "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
             "linear_key_head_dim": 8, "linear_value_head_dim": 8, "full_attention_interval": 3, "partial_rotary_factor": 0.25},
        outer={"model_type": "qwen3_5", "image_token_id": 90, "language_model_only": False, "tie_word_embeddings": False},
        text={"attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1},
        names=inside("language_model"), towers={"model.visual.patch_embed.weight": [8, 8]}, beside={"mtp.norm.weight": [48]}),
    "lfm2_vl": dict(
        own={"model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
        outer={"model_type": "lfm2_vl", "image_token_id": 90, "downsample_factor": 2, "projector_hidden_act": "gelu",
               "projector_bias": True, "max_tiles": 10, "use_thumbnail": True},
        names=inside("language_model"), towers={"model." + TOWER: [8, 8], "model." + PROJECTOR: [4, 8]}),
    "qwen2_audio": dict(
        own={"model_type": "qwen2", "tie_word_embeddings": False},
        outer={"model_type": "qwen2_audio", "audio_config": {"d_model": 8}, "audio_token_index": 90, "ignore_index": -100},
        names=before("language_model."), towers={"audio_tower.conv1.weight": [8, 8], PROJECTOR: [4, 8]}),
}


def read_checkpoint(folder):
    """(header without metadata, bytes of all tensors) of model.safetensors."""
    data = contents(os.path.join(folder, "model.safetensors"))
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return header, data[8 + size:]


def write_checkpoint(folder, header, data):
    text = json.dumps(header).encode()
    write(os.path.join(folder, "model.safetensors"), struct.pack("<Q", len(text)) + text + data)


def with_rows(header, data, name, count):
    """The tensor with more rows, of zeros."""
    made, pieces, end = {}, [], 0
    for key, value in header.items():
        start, stop = value["data_offsets"]
        piece, shape = data[start:stop], list(value["shape"])
        if key == name:
            piece += bytes(count * len(piece) // shape[0])
            shape[0] += count
        made[key] = {"dtype": value["dtype"], "shape": shape, "data_offsets": [end, end + len(piece)]}
        pieces.append(piece)
        end += len(piece)
    return made, b"".join(pieces)


def wrap(source, folder, case):
    """A checkpoint of the model in `source` and of towers of ones."""
    header, data = read_checkpoint(source)
    if "embedding_rows" in case:
        header, data = with_rows(header, data, "model.embed_tokens.weight", case["embedding_rows"])
    renamed = {case["names"](name): value for name, value in header.items()}
    for name, shape in {**case["towers"], **case.get("unused", {}), **case.get("beside", {})}.items():
        size = 4
        for extent in shape:
            size *= extent
        renamed[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += struct.pack("<%df" % (size // 4), *[1.0] * (size // 4))
    write_checkpoint(folder, renamed, data)
    text = {**read_json(source, "config.json"), **case.get("text", {})}
    text = {key: value for key, value in text.items() if value is not None}
    outer = {"architectures": [], "vision_config": VISION, **case["outer"]}
    outer["architectures"] = [case["class"]] if "class" in case else None
    if case.get("flat"):
        outer = {**text, **outer}
    else:
        outer["text_config"] = text
    write(os.path.join(folder, "config.json"), json.dumps({k: v for k, v in outer.items() if v is not None}).encode())


class Wrappers(ReferenceTest):
    def setUp(self):
        self.scratch = scratch()
        self.addCleanup(self.scratch.cleanup)
        self.count = 0

    def folder(self):
        self.count += 1
        path = os.path.join(self.scratch.name, str(self.count))
        os.mkdir(path)
        return path

    def text_part(self, case):
        """The checkpoint of the text part alone."""
        shape, model = self.folder(), self.folder()
        write(os.path.join(shape, "config.json"), json.dumps({**SIZES, **case["own"]}).encode())
        succeed([MAKE_CHECKPOINT, "--config", shape, "-o", model, "--dtype", "f32"])
        return model

    def wrapped(self, case, **changes):
        folder = self.folder()
        wrap(self.text_part(case), folder, {**case, **changes})
        return folder

    def build(self, model, *options):
        engine = os.path.join(self.folder(), "m.eng")
        report = output_json([ENGBUILD, "--model", model, "--target", "cpu", "--tune", "off", "--json", "-o", engine, *options])
        return engine, report

    def refused(self, model, *words):
        result = run([ENGBUILD, "--model", model, "--target", "cpu", "--tune", "off", "-o", os.path.join(self.scratch.name, "no.eng")])
        self.assertEqual(result.rc, 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_engines_are_those_of_the_text_part(self):
        count = 0
        for name, case in list(CASES.items())[::6 if SANITIZED else 1]:
            with self.subTest(name):
                own = self.text_part(case)
                folder = self.folder()
                wrap(own, folder, case)
                expected, plain = self.build(own)
                found, report = self.build(folder)
                self.assertEqual(report["model_type"], plain["model_type"])
                self.assertEqual(report["parameters"], plain["parameters"])
                self.assertNotIn("left_out", plain)
                left_out = {tower["name"]: (tower["tensors"], tower["bytes"]) for tower in report["left_out"]}
                unused = case.get("unused", {})
                self.assertEqual(len(left_out), len(case["towers"]) + bool(unused))
                if unused:
                    rows = case["embedding_rows"]
                    elements = rows * SIZES["hidden_size"] + sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in unused.values())
                    self.assertEqual(left_out["cross_attention_layers"], (len(unused) + bool(rows), 4 * elements))
                for tensor, shape in case["towers"].items():
                    tower = tensor.removeprefix("model.").split(".")[0]
                    bytes = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
                    self.assertEqual(left_out[tower], (1, bytes))
                tokens = [7, 3, 90, 11, 5, 64, 2, 8, 33, 12]
                for options in [[], ["--threads", "1"]]:
                    self.assertEqual(self.logits(found, tokens, 12, *options), self.logits(expected, tokens, 12, *options))
                count += 1
        tally("wrappers", count)

    def test_two_ranks(self):
        case = CASES["qwen3_vl"]
        engine, _ = self.build(self.wrapped(case), "--gpus", "2")
        single, _ = self.build(self.wrapped(case))
        tokens = [7, 3, 90, 11, 5]
        (_, found), (_, expected) = self.logits(engine, tokens, 6), self.logits(single, tokens, 6)
        for a, b in zip(found, expected):
            self.check_logits(a, b, 1e-4, "two ranks")

    def test_shipped_model_with_its_tokenizer(self):
        model = self.folder()
        wrap(FABLES, model, {"outer": {"model_type": "llava", "vision_config": VISION}, "names": before("language_model."),
                             "towers": {TOWER: [8, 8]}, "class": "LlavaForConditionalGeneration"})
        for name in os.listdir(FABLES):
            if name.endswith(".json") and name != "config.json":
                shutil.copy(os.path.join(FABLES, name), model)
        engine = os.path.join(model, "m.eng")
        result = succeed([ENGBUILD, "--model", model, "--target", "cpu", "--tune", "off", "-o", engine])
        self.assertIn("left out: vision_tower (1 tensors, 256 bytes)", result.stdout)
        story = succeed([ENGRUN, engine, "-p", "Once upon a time", "-n", "12"]).stdout
        self.assertIn("there was a little fox named Mira", story)

    def test_token_for_images(self):
        """The tokenizer of Mllama has a token after the vocabulary, which stands for an image: a prompt with it is refused."""
        model = self.folder()
        config = read_json(FABLES, "config.json")
        size, layers = config["vocab_size"], config["num_hidden_layers"]
        case = {"outer": {"model_type": "mllama", "image_token_index": size}, "names": between([1]), "towers": {PROJECTOR: [4, 8]},
                "text": {"model_type": "mllama_text_model", "num_hidden_layers": layers + 1, "cross_attention_layers": [1]},
                "embedding_rows": 8}
        wrap(FABLES, model, case)
        tokenizer = read_json(FABLES, "tokenizer.json")
        image = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                 "special": True}
        for count, accepted in (8, True), (9, False):
            added = [{**image, "id": size + i, "content": "<|image%d|>" % i} for i in range(count)]
            write(os.path.join(model, "tokenizer.json"),
                  json.dumps({**tokenizer, "added_tokens": tokenizer["added_tokens"] + added}).encode())
            if not accepted:
                self.refused(model, "token ids up to %d" % (size + 8), "vocab_size is %d" % size)
                continue
            engine = os.path.join(model, "m.eng")
            succeed([ENGBUILD, "--model", model, "--target", "cpu", "--tune", "off", "-o", engine])
            story = succeed([ENGRUN, engine, "-p", "Once upon a time", "-n", "12"]).stdout
            self.assertIn("there was a little fox named Mira", story)
            result = run([ENGRUN, engine, "-p", "<|image0|>Once upon a time", "-n", "12"])
            self.assertEqual(result.rc, 1, result.stderr)
            self.assertIn("is %d, expected 0 to %d" % (size, size - 1), result.stderr)

    def test_tied_embeddings_where_configurations_differ(self):
        """The checkpoint has a head or not: that says which configuration is meant."""
        case = CASES["llava"]
        tied = {**case, "own": {**case["own"], "tie_word_embeddings": True}, "outer": {**case["outer"], "tie_word_embeddings": False}}
        tied["outer"].pop("vocab_size")
        own = self.text_part(tied)
        folder = self.folder()
        wrap(own, folder, tied)
        tokens = [7, 3, 90, 11, 5]
        self.assertEqual(self.logits(self.build(folder)[0], tokens, 4), self.logits(self.build(own)[0], tokens, 4))

    def test_what_is_refused(self):
        case = CASES["mistral3"]
        outer = case["outer"]
        self.refused(self.wrapped(case, outer={**outer, "attention_layers": 3}), "config.json: field 'attention_layers'",
                     "not understood")
        self.refused(self.wrapped(case, outer={**outer, "vocab_size": 95}), "field 'vocab_size'", "the same as in text_config",
                     "found 95")
        self.refused(self.wrapped(case, text={"llama_4_scaling_beta": 0.1}), "config.json: text_config: field",
                     "'llama_4_scaling_beta'")
        self.refused(self.wrapped(case, text={"model_type": "mistral5"}), "text_config", "'model_type'", "mistral ministral3 mistral4", "mistral5")
        speech = CASES["granite_speech"]
        adapter = "language_model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
        self.refused(self.wrapped(speech, beside={adapter: [8, 48]}), "tensor '%s' is not used" % adapter[len("language_model."):])
        self.refused(self.wrapped(speech, outer={**speech["outer"], "attention_window": 3}), "field 'attention_window'", "not understood")
        self.refused(self.wrapped(speech, text={"window_size": 15}), "text_config: field 'window_size'", "not understood")
        mllama = CASES["mllama"]
        crossing = "text_config: field 'cross_attention_layers'"
        for layers, found in ([3, 3], "3"), ([15], "15"), ([-1], "-1"), (["3"], '"3"'), (3, "3"), (list(range(15)), "fewer layers"):
            self.refused(self.wrapped(mllama, text={**mllama["text"], "cross_attention_layers": layers}), crossing, found)
        self.refused(self.wrapped(mllama, text={**mllama["text"], "cross_attention_layers": [2, 8, 13]}),
                     "tensor 'model.layers.2.self_attn", "cross_attention_layers")
        self.refused(self.wrapped(mllama, embedding_rows=7), "tensor 'model.embed_tokens.weight'", "[96, 48]", "[103, 48]")
        scaled = self.wrapped(CASES["mistral3 of a ministral3"])
        engine = os.path.join(self.scratch.name, "no.eng")
        result = run([ENGBUILD, "--model", scaled, "--target", "cpu", "--tune", "off", "--max-context", "65", "-o", engine])
        self.assertEqual(result.rc, 1, result.stderr)
        self.assertIn("--max-context: expected at most 64 (original_max_position_embeddings", result.stderr)
        self.assertIn("llama_4_scaling_beta", result.stderr)
        self.refused(self.wrapped(case, **{"class": "MistralForCausalLM"}), "'architectures'", "Mistral3ForConditionalGeneration")
        self.refused(self.wrapped(case, towers={"audio_tower.weight": [8, 8]}), "tensor 'audio_tower.weight' is not used")
        twice = self.wrapped(case)
        header, data = read_checkpoint(twice)
        header["model.norm.weight"] = {"dtype": "F32", "shape": [48], "data_offsets": [len(data), len(data) + 192]}
        write_checkpoint(twice, header, data + bytes(192))
        self.refused(twice, "tensor 'model.norm.weight'", "twice")
        vl = CASES["qwen3_vl"]
        for sections in ([2, 2], [2, 2, "2"], 6):
            self.refused(self.wrapped(vl, text={**vl["text"], "rope_scaling": {**SECTIONS, "mrope_section": sections}}),
                         "text_config: rope_scaling: field 'mrope_section'", "three sizes")
        self.refused(self.wrapped(vl, text={**vl["text"], "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "zoom": 3}}), "zoom")

    def test_real_configurations(self):
        """Configurations with fields and sizes of published models, those of the other parts cut: parameters of the text part."""
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "wrapper_configs.json")
        with open(path, encoding="utf-8") as file:
            models = json.load(file)
        for name, model in models.items():
            with self.subTest(name):
                folder = self.folder()
                write(os.path.join(folder, "config.json"), json.dumps(model["config"]).encode())
                result = run([ENGBUILD, "--model", folder, "--target", "cpu", "--dry-run", "--max-context", "1024", "--max-batch", "1",
                              "--json"])
                self.assertIn(result.rc, (0, 3), result.stderr)  # 3: this machine may be too small
                self.assertEqual(json.loads(result.stdout)["parameters"], model["parameters"])
        tally("real configurations", len(models))

    def test_without_weights(self):
        """A dry run needs the configuration alone, and fields that it omits are those of the class."""
        folder = self.folder()
        write(os.path.join(folder, "config.json"), json.dumps({
            "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
            "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
            "model_type": "gemma3", "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
            "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                            "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                            "sliding_window": 1024},
            "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model"}}).encode())
        result = run([ENGBUILD, "--model", folder, "--target", "cpu", "--dry-run", "--max-context", "1024", "--json"])
        self.assertIn(result.rc, (0, 3), result.stderr)  # 3: this machine may be too small
        self.assertEqual(json.loads(result.stdout)["parameters"], 3880263168)  # google/gemma-3-4b-it without its tower


if __name__ == "__main__":
    unittest.main()
