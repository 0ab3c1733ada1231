# SPDX-License-Identifier: Apache-2.0
"""Quantised checkpoints in the containers of the hub, on tiny random models, compared with what transformers recorded for
the dequantised weights in float32; on one rank and on two."""

import json
import os
import re
import shutil
import struct
import unittest

from harness import (ENGBUILD, ENGINFO, ENGRUN, FABLES, INSTRUCTION_SETS, LOGIT_TOLERANCE, SANITIZED, SHARED, ReferenceTest, build_engine,
                     needs_shared, output, output_json, read_json, recorded_cases, run, sanitized_elsewhere, scratch, shared, tally, write)

SUPPORTED = ["awq-w4-g32", "ct-fp8-channel", "ct-mxfp4", "ct-nvfp4", "ct-w4a16-g32", "ct-w4a16-g64-asym", "ct-w8a8-int",
         "fp8-block", "fp8-tensor-static", "gptq-w4-g32-sym", "gptq-w4-g64-asym-actorder", "gptq-w8-channel-v2",
         "modelopt-nvfp4", "moe-awq-w4-g32", "moe-fp8-block", "gpt_oss-mxfp4"]
# The encoding of most matrices: codes stay as they are where an encoding has them.
ENCODINGS = {"awq-w4-g32": "int4_g32_zeros", "ct-fp8-channel": "e4m3_channel", "ct-mxfp4": "mxfp4", "ct-nvfp4": "nvfp4",
             "ct-w4a16-g32": "int4_g32", "ct-w4a16-g64-asym": "int4_g64_zeros", "ct-w8a8-int": "int8_channel",
             "fp8-block": "e4m3_channel", "fp8-tensor-static": "e4m3_channel", "gptq-w4-g32-sym": "int4_g32",
             "gptq-w4-g64-asym-actorder": "int4_g64_zeros", "gptq-w8-channel-v2": "int8_channel", "modelopt-nvfp4": "nvfp4", "moe-awq-w4-g32": "int4_g32_zeros",
             "moe-fp8-block": "e4m3_channel", "gpt_oss-mxfp4": "mxfp4"}
RANKS = [[], ["--gpus", "2"]]
CONTAINERS = SUPPORTED[::3] if SANITIZED else SUPPORTED


def folder_of(name):
    return shared("models", "quantised", name)


@needs_shared("models", "quantised")
class Quantised(ReferenceTest):
    def test_tokens(self):
        count = ties = 0
        for name in CONTAINERS:
            for ranks in RANKS[1:] if SANITIZED else RANKS:
                engine = build_engine(folder_of(name), *ranks)
                for prompt, _, greedy, gaps in recorded_cases(folder_of(name)):
                    with self.subTest(name, ranks=ranks, prompt=len(prompt)):
                        ties += self.check_greedy(engine, prompt, greedy, gaps)
                        count += len(greedy)
        tally("greedy tokens of quantised models (%d ties)" % ties, count)

    def test_logits(self):
        count = 0
        for name in CONTAINERS:
            for ranks in RANKS[1:] if SANITIZED else RANKS:
                engine = build_engine(folder_of(name), *ranks)
                for prompt, expected, _, _ in recorded_cases(folder_of(name)):
                    for back, row in enumerate(reversed(expected[-1 if SANITIZED else -4:])):
                        with self.subTest(name, ranks=ranks, prompt=len(prompt), position=len(prompt) - 1 - back):
                            _, (found,) = self.logits(engine, prompt[:len(prompt) - back])
                            self.check_logits(found, row, LOGIT_TOLERANCE, name)
                            count += 1
        tally("rows of logits of quantised models", count)

    def test_codes_are_kept(self):
        for name in CONTAINERS:
            for ranks in RANKS[1:] if SANITIZED else RANKS:
                with self.subTest(name, ranks=ranks):
                    manifest = output_json([ENGINFO, build_engine(folder_of(name), *ranks), "--json"])["manifest"]
                    self.assertEqual(manifest["model"]["weight_dtype"], ENCODINGS[name])

    def test_divided_groups(self):
        """Codes that ranks cannot share are decoded for a processor, and for a GPU where a type is asked for; it refuses them by name."""
        cases = [(folder_of(name), "model.layers.0.mlp." + tensor, words) for name, tensor, words in
                 (("fp8-block", "down_proj.weight", "(e4m3_block128) with one scale for 128 columns, and each GPU would have 64 "),
                  ("moe-awq-w4-g32", "experts.0.down_proj.weight",
                   "(int4_g32_zeros) with one scale for 32 columns, and each GPU would have 16 "))]
        if os.path.exists(shared("configs", "gpt-oss-20b")):
            cases.append((shared("configs", "gpt-oss-20b"), "model.layers.0.mlp.experts.down_proj",
                          "(mxfp4) with one scale for 32 columns, and each GPU would have 720 "))
        for model, tensor, words in cases:
            with self.subTest(model), scratch() as folder:
                command = [ENGBUILD, "--model", model, "--target", "cuda", "--gpu", "h200", "--tune", "off", "--gpus", "4", "--dry-run",
                           "-o", os.path.join(folder, "m.eng")]
                result = run(command)
                self.assertEqual(result.rc, 1, result.stderr)
                self.assertIn("--gpus 4: tensor '%s' has codes %scolumns; expected whole groups" % (tensor, words), result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1)
                self.assertIn("weights are dequantised", output(command + ["--dtype", "bf16"]))
                if "gpt-oss" in model:
                    self.assertIn("weights mxfp4,", output(["2" if word == "4" else word for word in command]))
        for name in "fp8-block", "moe-awq-w4-g32":
            engine = build_engine(folder_of(name), "--gpus", "4")
            with self.subTest(name), scratch() as folder:
                report = output([ENGBUILD, "--model", folder_of(name), "--target", "cpu", "--tune", "off", "--gpus", "4", "-o",
                                 os.path.join(folder, "m.eng")])
                self.assertIn("\n           2 matrices whose groups would be divided are dequantised\n", report)
                self.assertEqual(output_json([ENGINFO, engine, "--json"])["matrices"]["F32"]["tensors"], 2)
                for prompt, expected, greedy, gaps in recorded_cases(folder_of(name)):
                    self.check_greedy(engine, prompt, greedy, gaps)
                    _, (found,) = self.logits(engine, prompt)
                    self.check_logits(found, expected[-1], LOGIT_TOLERANCE, name)
        for dtype in ("bf16", "int8"):  # int8 is compared with the model whose codes are decoded
            build_engine(folder_of("fp8-block"), "--gpus", "4", "--dtype", dtype)

    def test_decoded(self):
        """Asked for another type, codes are decoded."""
        for name in CONTAINERS:
            engine = build_engine(folder_of(name), "--dtype", "f32")
            self.assertEqual(list(output_json([ENGINFO, engine, "--json"])["matrices"]), ["F32"])
            prompt, expected, _, _ = recorded_cases(folder_of(name))[0]
            with self.subTest(name):
                _, (found,) = self.logits(engine, prompt)
                self.check_logits(found, expected[-1], LOGIT_TOLERANCE, name)

    def test_configuration_in_a_file_of_its_own(self):
        """Older writers put it beside config.json: the engine is the same, byte for byte."""
        for name, file, key in (("gptq-w4-g32-sym", "quantize_config.json", None), ("awq-w4-g32", "quant_config.json", None),
                                ("modelopt-nvfp4", "hf_quant_config.json", "quantization")):
            with self.subTest(name), scratch() as folder:
                model = os.path.join(folder, name)
                shutil.copytree(folder_of(name), model)
                config = read_json(model, "config.json")
                found = config.pop("quantization_config")
                if name != "modelopt-nvfp4":
                    del found["quant_method"]
                for path, value in (("config.json", config), (file, {key: found} if key else found)):
                    os.chmod(model, 0o755)
                    if os.path.exists(os.path.join(model, path)):
                        os.remove(os.path.join(model, path))
                    write(os.path.join(model, path), json.dumps(value).encode())
                with open(build_engine(model), "rb") as file, open(build_engine(folder_of(name)), "rb") as expected:
                    self.assertEqual(file.read(), expected.read())

    def test_experts_without_codes(self):
        """gpt-oss stores matrices without codes transposed. A square one in a checkpoint of codes would be read wrongly."""
        with scratch() as folder:
            with open(os.path.join(folder_of("gpt_oss-mxfp4"), "model.safetensors"), "rb") as file:
                header = json.loads(file.read(*struct.unpack("<Q", file.read(8))))
                data = file.read()
            prefix, tensors, used = "model.layers.1.mlp.experts.down_proj", {}, b""
            for name, entry in header.items():
                if name in ("__metadata__", prefix + "_scales"):
                    continue
                part = data[slice(*entry["data_offsets"])]
                if name == prefix + "_blocks":
                    experts, out, groups, _ = entry["shape"]
                    self.assertEqual(out, 32 * groups)
                    name, entry = prefix, {"dtype": "BF16", "shape": [experts, out, out]}
                    part = bytes(2 * experts * out * out)
                tensors[name] = {**entry, "data_offsets": [len(used), len(used) + len(part)]}
                used += part
            text = json.dumps(tensors).encode()
            write(os.path.join(folder, "model.safetensors"), struct.pack("<Q", len(text)) + text + used)
            shutil.copy(os.path.join(folder_of("gpt_oss-mxfp4"), "config.json"), folder)
            result = run([ENGBUILD, "--model", folder, "--target", "cpu", "-o", os.path.join(folder, "m.eng")])
            self.assertEqual(result.rc, 1, result.stderr)
            self.assertIn("'%s': expected codes, as the quantization_config says, found BF16" % prefix, result.stderr)

    def test_codes_that_are_no_numbers(self):
        """One byte of a plane in e4m3 becomes that format's NaN: the tensor is named, its place is found, and no file is left."""
        for name, kind in (("fp8-block", "weight"), ("ct-fp8-channel", "weight"), ("fp8-tensor-static", "weight"), ("moe-fp8-block", "weight"),
                           ("ct-nvfp4", "weight_scale"), ("modelopt-nvfp4", "weight_scale")):
            with self.subTest(name), scratch() as folder:
                shutil.copy(os.path.join(folder_of(name), "config.json"), folder)
                with open(os.path.join(folder_of(name), "model.safetensors"), "rb") as file:
                    data = bytearray(file.read())
                begin = 8 + struct.unpack("<Q", data[:8])[0]
                tensor, entry = next((tensor, entry) for tensor, entry in sorted(json.loads(data[8:begin]).items())
                                     if tensor.endswith("." + kind) and entry["dtype"] == "F8_E4M3")
                columns = entry["shape"][1]
                data[begin + entry["data_offsets"][0] + columns + 3] = 0xff
                write(os.path.join(folder, "model.safetensors"), data)
                engine = os.path.join(folder, "m.eng")
                result = run([ENGBUILD, "--model", folder, "--target", "cpu", "--tune", "off", "--no-accuracy", "--quiet", "-o", engine])
                self.assertEqual(result.rc, 1, result.stderr)
                place = "row 1, column 3 is NaN" if kind == "weight" else "found nan at element %d" % (columns + 3)
                self.assertRegex(result.stderr, "tensor '%s': .*%s" % (re.escape(tensor), place))
                self.assertEqual([file for file in os.listdir(folder) if file.startswith("m.eng")], [])

    def test_every_folder_is_known(self):
        self.assertEqual(set(os.listdir(shared("models", "quantised"))), set(SUPPORTED))


class OwnCodes(ReferenceTest):
    """Encodings that engbuild makes of 16-bit weights (--dtype), on the shipped model."""

    # Flags, the encoding that enginfo names, most bits an element of the engine's weights, and the largest difference of a
    # logit (they reach 20): about twice that found, so that a group with a wrong scale shows.
    TYPES = [(["int8"], "int8_channel", 8.5, 0.37), (["int8", "--group", "64"], "int8_g64", 8.7, 0.3),
             (["int4"], "int4_g128", 6, 3.5), (["int4", "--group", "32"], "int4_g32", 6.5, 2.5),
             (["fp8"], "e4m3_channel", 8.5, 1.5), (["mxfp4"], "mxfp4", 6.5, 4.5), (["nvfp4"], "nvfp4", 6.5, 2.3)]

    if SANITIZED:
        TYPES = TYPES[1::3]

    # Few plans, and as many tokens as accuracy is measured over.
    SMALL = ["--model", FABLES, "--target", "cpu", "--tune", "off", "--tuning-cache", "none", "--json", "--quiet",
             "--prefill-chunks", "16", "--batch-sizes", "1,8", "--max-context", "48" if SANITIZED else "256"]
    TOKENS = 8 * int(SMALL[-1])

    @classmethod
    def setUpClass(cls):
        cls.cases = [case for case in read_json(FABLES, "reference.json")["cases"] if "logits" in case]

    def engine(self, flags, *more):
        return build_engine(FABLES, "--no-accuracy", "--dtype", *flags, *more)

    def test_logits(self):
        parameters = output_json([ENGINFO, build_engine(FABLES), "--json"])["manifest"]["model"]["parameters"]
        for flags, name, bits, tolerance in self.TYPES:
            with self.subTest(name):
                engine = self.engine(flags)
                manifest = output_json([ENGINFO, engine, "--json"])["manifest"]
                self.assertEqual(manifest["model"]["weight_dtype"], name)
                self.assertLess(manifest["memory"]["weights_bytes"] * 8, parameters * bits)
                largest = 0
                for case in self.cases[:2 if SANITIZED else None]:
                    _, (row,) = self.logits(engine, case["ids"])
                    self.check_logits(row, case["logits"], tolerance, name)
                    largest = max(largest, max(abs(a - b) for a, b in zip(row, case["logits"])))
                self.assertGreater(largest, 1e-3, "nothing is rounded")
                output([ENGRUN, engine, "--selftest"])

    def test_accuracy(self):
        """What the build measures, prints, stores and shows: more bits are nearer to the model that they were made of."""
        found = {}
        with scratch() as folder:
            for flags in (["bf16"], ["int8"], ["int4", "--head-dtype", "int4"]):
                path = os.path.join(folder, "m.eng")
                report = output_json([ENGBUILD, *self.SMALL, "-o", path, "--dtype", *flags])
                manifest = output_json([ENGINFO, path, "--json"])["manifest"]
                self.assertEqual(os.listdir(folder), ["m.eng"])
                if flags == ["bf16"]:
                    self.assertNotIn("accuracy", report)
                    self.assertNotIn("extra", manifest)
                    continue
                accuracy = report["accuracy"]
                for name, value in manifest["extra"]["accuracy"].items():
                    self.assertAlmostEqual(value, accuracy[name], 8)
                self.assertEqual(accuracy["tokens"], self.TOKENS)
                self.assertIn("%.1f %% of %d tokens" % (100 * accuracy["top1"], self.TOKENS), output([ENGINFO, path]))
                found[" ".join(flags)] = accuracy
        divergences = [accuracy["kl"] for accuracy in found.values()]
        self.assertEqual(divergences, sorted(divergences))
        self.assertGreater(divergences[0], 1e-6)
        self.assertLess(divergences[0], 0.002)
        self.assertLess(divergences[1], 0.1)
        self.assertGreater(found["int8"]["top1"], 0.97)
        # A quantised checkpoint loses nothing.
        if SHARED:
            self.assertNotIn("extra", output_json([ENGINFO, build_engine(folder_of("awq-w4-g32")), "--json"])["manifest"])

    @sanitized_elsewhere
    def test_calibration(self):
        """Calibrated weights are nearer to the model, on other text than that of the calibration."""
        flags = self.SMALL
        with scratch() as folder:
            path, text = os.path.join(folder, "m.eng"), os.path.join(folder, "text")
            prompts = ["Once", "The fox", "A", "One day", "In the", "There", "She", "He"]
            write(text, "\n".join(output([ENGRUN, build_engine(FABLES), "-p", prompt, "-n", "250", "--temperature", "1",
                                          "--seed", "3"]) for prompt in prompts).encode())
            for dtype in (["int4", "--group", "32"], ["nvfp4"]):
                found = {}
                for name, more in (("plain", []), ("self", ["--calibrate", "self"]), ("text", ["--calibrate", text]),
                                   ("ranks", ["--calibrate", "self", "--gpus", "2"])):
                    if name == "ranks" and dtype != ["int4", "--group", "32"]:
                        continue
                    report = output_json([ENGBUILD, *flags, "-o", path, "--dtype", *dtype, *more])
                    self.assertEqual("calibration_tokens" in report["accuracy"], name != "plain")
                    self.assertEqual("channel_scales" in report, name != "plain" and dtype[0] == "int4")
                    self.assertEqual(sorted(os.listdir(folder)), ["m.eng", "text"])
                    output([ENGRUN, path, "--selftest"])
                    found[name] = report["accuracy"]["kl"]
                self.assertLess(found["self"], 0.95 * found["plain"], dtype)
                self.assertLess(found.get("text", 0), found["plain"], dtype)
                self.assertLess(found.get("ranks", 0), found["plain"], dtype)
            write(text, b"")
            for more, words, rc in ((["--dtype", "int8", "--calibrate", "self"], "codes of 4 bits", 2),
                                    (["--calibrate", "self"], "codes of 4 bits", 2),
                                    (["--dtype", "int4", "--calibrate", ""], "--calibrate: expected", 2),
                                    (["--dtype", "int4", "--calibrate", text], "the text has 1 tokens", 1),
                                    (["--dtype", "int4", "--calibrate", text + ".none"], "--calibrate", 1)):
                with self.subTest(more):
                    result = run([ENGBUILD, *flags, "-o", os.path.join(folder, "n.eng"), *more])
                    self.assertEqual(result.rc, rc, result.stderr)
                    self.assertIn(words, result.stderr)
                    self.assertEqual(sorted(os.listdir(folder)), ["m.eng", "text"])

    @sanitized_elsewhere
    def test_instruction_sets(self):
        """The same weights in every instruction set that this processor has."""
        prompt = self.cases[0]["ids"]
        for flags, name, _, _ in self.TYPES:
            _, (expected,) = self.logits(self.engine(flags), prompt, 1, "--isa", "portable")
            for isa in INSTRUCTION_SETS[1:]:
                with self.subTest(name, isa=isa):
                    if run([ENGRUN, self.engine(flags), "--tokens", "1", "-n", "1", "--isa", isa]).rc:
                        continue
                    _, (found,) = self.logits(self.engine(flags), prompt, 1, "--isa", isa)
                    self.check_logits(found, expected, 2e-3, name)

    @sanitized_elsewhere
    def test_ranks(self):
        """Groups of 128 would be divided: they become smaller unless their size was asked for."""
        prompt = self.cases[0]["ids"]
        for flags in (["int8"], ["int4", "--group", "32"], ["fp8"], ["mxfp4"]):
            with self.subTest(flags):
                _, (expected,) = self.logits(self.engine(flags), prompt, 1, "--isa", "portable")
                _, (found,) = self.logits(self.engine(flags, "--gpus", "2"), prompt, 1, "--isa", "portable")
                self.check_logits(found, expected, 1e-3 if flags[0] in ("mxfp4",) or "--group" in flags else 1, str(flags))
        self.engine(["int4"], "--gpus", "2")
        with scratch() as folder:
            result = run([ENGBUILD, "--model", FABLES, "--target", "cpu", "--dtype", "int4", "--group", "128", "--gpus", "2",
                          "-o", os.path.join(folder, "m.eng")])
            self.assertEqual(result.rc, 1, result.stderr)
            self.assertIn("would divide a group of 128 columns", result.stderr)
            self.assertEqual(os.listdir(folder), [])

    @sanitized_elsewhere
    def test_some_weights_keep_another_type(self):
        def types(*flags):
            info = output_json([ENGINFO, self.engine(["int4", "--group", "32"], *flags), "--json"])
            return {name: kind["tensors"] for name, kind in info["matrices"].items()}
        # Five layers of four matrices, and the embedding, which is the LM head.
        self.assertEqual(types(), {"int4_g32": 20, "int8_channel": 1})
        self.assertEqual(types("--head-dtype", "int4"), {"int4_g32": 20, "int4_g128": 1})
        self.assertEqual(types("--head-dtype", "auto"), {"int4_g32": 20, "BF16": 1})
        self.assertEqual(types("--head-dtype", "bf16", "--keep", "*.down_proj.weight=int8,*.layers.0.*=bf16"),
                         {"int4_g32": 12, "int8_channel": 5, "BF16": 4})
        self.assertIn("matrices", output([ENGINFO, self.engine(["int4"])]))

    @sanitized_elsewhere
    def test_rounded_activations(self):
        """--compute bf16, int8: less exact than float32, exact enough for the same tokens."""
        for compute, tolerance in (("bf16", 0.25), ("int8", 0.5)):
            engine = build_engine(FABLES, "--compute", compute)
            largest = 0
            for case in self.cases:
                _, (row,) = self.logits(engine, case["ids"])
                self.check_logits(row, case["logits"], tolerance, f"--compute {compute}")
                largest = max(largest, max(abs(a - b) for a, b in zip(row, case["logits"])))
            self.assertGreater(largest, 1e-3, "nothing is rounded")
            output([ENGRUN, engine, "--selftest"])

    @needs_shared("models")
    @sanitized_elsewhere
    def test_rounded_activations_of_experts(self):
        """--compute int8 rounds what experts multiply, in both products, but not what their router does, and costs them what it costs a dense
        model (the first). A row that chooses another expert differs more, so that the bound is for the middle one."""
        for name, *flags in (("hf-tiny/qwen3", "--dtype", "int8"), ("hf-tiny/mixtral", "--dtype", "int8"),
                             ("hf-tiny/gpt_oss", "--dtype", "int4", "--group", "32"), ("quantised/moe-awq-w4-g32",)):
            model = shared("models", name)
            exact, rounded = (build_engine(model, "--no-accuracy", "--compute", compute, *flags) for compute in ("f32", "int8"))
            differences = []
            for prompt, _, _, _ in recorded_cases(model):
                for end in range(max(1, len(prompt) - 3), len(prompt) + 1):
                    _, (expected,) = self.logits(exact, prompt[:end])
                    _, (found,) = self.logits(rounded, prompt[:end])
                    differences.append(max(abs(a - b) for a, b in zip(found, expected)) / max(map(abs, expected)))
            with self.subTest(name), scratch() as folder:
                self.assertGreater(sorted(differences)[0], 1e-3, "nothing is rounded")
                self.assertLess(sorted(differences)[len(differences) // 2], 0.05)
                passes = run([ENGBUILD, "--model", model, "--target", "cpu", "--tune", "off", "--no-accuracy", "--compute", "int8", *flags,
                              "--dump-after", "compute_dtype", "-o", os.path.join(folder, "m.eng")])
                products = re.findall(r".*= matmul\(.*", passes.stdout + passes.stderr)
                self.assertEqual([line for line in products if ("compute_dtype=" in line) == ("router_logits" in line)], [])
                graphs = sum("lm_head" in line for line in products)
                self.assertGreater(graphs, 0)
                self.assertEqual(sum("experts=" in line for line in products), 0 if name.endswith("qwen3") else 4 * graphs)

    @sanitized_elsewhere
    def test_rounded_activations_count_as_divergence(self):
        def divergence(*flags):
            engine = build_engine(FABLES, "--dtype", "int8", *flags)
            return output_json([ENGINFO, engine, "--json"])["manifest"]["extra"]["accuracy"]["kl"]
        exact, rounded = divergence(), divergence("--compute", "int8")
        self.assertGreater(rounded, exact)
        self.assertLess(rounded, 0.01)

    def test_refusals(self):
        for flags, words, rc in ((["--group", "32"], "--group: only with --dtype int4 or int8", 2),
                                 (["--dtype", "fp8", "--group", "32"], "--group: only with", 2),
                                 (["--dtype", "int4", "--group", "48"], "--group", 2),
                                 (["--dtype", "int4", "--keep", "x"], "--keep: expected PATTERN=TYPE", 2),
                                 (["--dtype", "int4", "--keep", "=int8"], "--keep: expected PATTERN=TYPE", 2),
                                 (["--dtype", "int4", "--keep", "*=int5"], "--keep: expected PATTERN=TYPE", 2),
                                 (["--dtype", "int4", "--keep", ",".join(["*=int8"] * 40)], "--keep: expected at most", 2),
                                 (["--dtype", "int4", "--keep", "*.nothing=int8"], "matches no matrix", 1)):
            with self.subTest(flags), scratch() as folder:
                result = run([ENGBUILD, "--model", FABLES, "--target", "cpu", "-o", os.path.join(folder, "m.eng"), *flags])
                self.assertEqual(result.rc, rc, result.stderr)
                self.assertIn(words, result.stderr)
                self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
