# SPDX-License-Identifier: Apache-2.0
"""Every supported architecture, on tiny random checkpoints, compared with outputs that transformers recorded in
float32, rotary frequencies included."""

import json
import math
import os
import shutil
import struct
import unittest

from harness import (ALL_BLOCKS, ENGBUILD, ENGRUN, LOGIT_TOLERANCE, SANITIZED, SHARED, ReferenceTest, build_engine, needs_shared, recorded_cases,
                     run, scratch, shared, succeed, tally)

SUPPORTED = ["llama3", "llama-tied-sharded", "mistral-window", "qwen2", "qwen3", "granite", "olmo2",
             "phi3", "phi3-longrope", "phi4-mini", "smollm3", "seed_oss", "glm4", "exaone4", "olmo3", "gemma",
             "gemma2", "gemma3", "cohere2", "stablelm", "starcoder2", "nemotron", "gpt2", "gpt_neox",
             "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "ernie4_5_moe", "glm4_moe",
             "gpt_oss", "deepseek_v2", "deepseek_v3", "lfm2", "qwen3_next"]

KV_TOLERANCES = {"bf16": 0.05, "fp16": 0.05, "int8": 0.1, "fp8": 0.35}
# Gemma 4 does not divide the products of q and k, which are normalised, by the root of their width: errors of k count more.
UNSCALED = {"gemma4": 4}
# With such errors other experts are chosen, too.
OTHER_EXPERTS = ["gemma4-experts"]

# A folder of further recordings (tests/models/make_recordings.py makes them), or None.
RECORDINGS = os.environ.get("ENG_RECORDINGS") or None
MORE = sorted(os.listdir(RECORDINGS)) if RECORDINGS else []
ALL = ((ALL_BLOCKS if SANITIZED else SUPPORTED) if SHARED else []) + MORE


def folder_of(name):
    return os.path.join(RECORDINGS, name) if name in MORE else shared("models", "hf-tiny", name)


def recorded(name):
    return recorded_cases(folder_of(name))


def one_of(index, values):
    """One value for each architecture, in turn."""
    return values[index % len(values)]


@unittest.skipUnless(ALL, "needs ENG_SHARED/models/hf-tiny or ENG_RECORDINGS")
class Architectures(ReferenceTest):
    """Prompts of 1 to 100 tokens."""

    def test_tokens(self):
        count = ties = 0
        for name in ALL:
            for prompt, _, greedy, gaps in recorded(name):
                with self.subTest(name, prompt=len(prompt)):
                    ties += self.check_greedy(build_engine(folder_of(name)), prompt, greedy, gaps)
                    count += len(greedy)
        tally("greedy tokens (%d ties)" % ties, count)

    def test_logits(self):
        count = 0
        for name in ALL:
            engine = build_engine(folder_of(name))
            for prompt, expected, _, _ in recorded(name):
                self.assertEqual(len(expected), min(4, len(prompt)))
                for back, row in enumerate(reversed(expected)):
                    with self.subTest(name, prompt=len(prompt), position=len(prompt) - 1 - back):
                        _, (found,) = self.logits(engine, prompt[:len(prompt) - back])
                        self.check_logits(found, row, LOGIT_TOLERANCE, name)
                        count += 1
        tally("rows of logits", count)

    def test_prompt_logprobs(self):
        """Log-probabilities of prompts are those of the recorded logits: of the last tokens, and of the first one of the continuation."""
        count = 0
        for name in ALL:
            engine = build_engine(folder_of(name))
            for prompt, logits, greedy, _ in recorded(name)[2:]:
                tokens = prompt + greedy[:1]
                printed = succeed([ENGRUN, engine, "--tokens", ",".join(map(str, tokens)), "--score", "--logprobs", "3"]).stdout
                *lines, last = map(json.loads, printed.splitlines())
                with self.subTest(name, prompt=len(prompt)):
                    self.assertEqual([line["token"] for line in lines], tokens[1:])
                    self.assertEqual(last["tokens"], len(prompt))
                    self.assertAlmostEqual(last["logprob"], sum(line["logprob"] for line in lines), delta=1e-4 * len(prompt))
                    self.assertAlmostEqual(last["perplexity"], math.exp(-last["logprob"] / len(prompt)), delta=1e-4 * last["perplexity"])
                    for line, row in zip(lines[-len(logits):], logits):
                        total = math.log(sum(math.exp(value) for value in row))
                        for entry in [line, *line["top"]]:
                            self.assertAlmostEqual(entry["logprob"], row[entry["token"]] - total, delta=2 * LOGIT_TOLERANCE)
                        for entry, value in zip(line["top"], sorted(row, reverse=True)):
                            self.assertAlmostEqual(entry["logprob"], value - total, delta=2 * LOGIT_TOLERANCE)
                        count += 1
        tally("rows of prompts", count)

    def test_decoding_computes_what_reading_computes(self):
        """Logits of tokens decoded one by one equal those of the same tokens read as a prompt."""
        count = 0
        for name in ALL:
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
        """The same tokens for any number of threads, any chunks of the prompt, and wider weights."""
        for i, name in enumerate(ALL):
            prompt, _, greedy, gaps = recorded(name)[3]
            options = one_of(i, [["--dtype", "f32"], ["--prefill-chunks", "7"],
                                 ["--max-batch", "1", "--max-context", "128"]])
            with self.subTest(name, options=options):
                self.check_greedy(build_engine(folder_of(name), *options), prompt, greedy, gaps)
            threads = one_of(i, ["1", "2", "5", "3"])
            with self.subTest(name, threads=threads):
                self.check_greedy(build_engine(folder_of(name)), prompt, greedy, gaps, "--threads", threads)

    def test_kv_cache_in_fewer_bits(self):
        for i, name in enumerate(ALL):
            if name in OTHER_EXPERTS:
                continue
            prompt, logits, _, _ = recorded(name)[3]
            dtype = one_of(i, list(KV_TOLERANCES))
            with self.subTest(name, dtype=dtype):
                _, (found,) = self.logits(build_engine(folder_of(name), "--kv-dtype", dtype), prompt)
                tolerance = KV_TOLERANCES[dtype] * UNSCALED.get(name.split("-")[0], 1)
                self.check_logits(found, logits[-1], tolerance, name)

    def test_two_ranks(self):
        for name in MORE:
            for prompt, logits, greedy, gaps in recorded(name)[1:3]:
                with self.subTest(name, prompt=len(prompt)):
                    engine = build_engine(folder_of(name), "--gpus", "2")
                    self.check_greedy(engine, prompt, greedy, gaps)
                    _, (found,) = self.logits(engine, prompt)
                    self.check_logits(found, logits[-1], LOGIT_TOLERANCE, name)

    @needs_shared("models", "hf-tiny")
    def test_sharded_checkpoint_by_its_index(self):
        folder = folder_of("llama-tied-sharded")
        with open(build_engine(folder), "rb") as file:
            expected = file.read()
        with open(build_engine(os.path.join(folder, "model.safetensors.index.json")), "rb") as file:
            self.assertEqual(file.read(), expected, "an index names the same checkpoint as its folder")

    @needs_shared("models", "hf-tiny")
    def test_names_without_the_model_s(self):
        """As openai-community/gpt2 has them: the decoder's own names, and causal masks beside the weights."""
        prompt, _, greedy, gaps = recorded("gpt2")[3]
        with scratch() as folder:
            source, model = folder_of("gpt2"), os.path.join(folder, "gpt2")
            shutil.copytree(source, model)
            path = os.path.join(model, "model.safetensors")
            with open(path, "rb") as file:
                size = struct.unpack("<Q", file.read(8))[0]
                header, data = json.loads(file.read(size)), file.read()
            end = len(data)
            renamed = {name.removeprefix("transformer."): value for name, value in header.items()}
            self.assertGreater(len(set(renamed) - set(header)), 10)
            for layer in range(2):
                renamed["h.%d.attn.bias" % layer] = {"dtype": "U8", "shape": [1, 1, 4, 4], "data_offsets": [end, end + 16]}
                end += 16
            text = json.dumps(renamed).encode()
            with open(path, "wb") as file:
                file.write(struct.pack("<Q", len(text)) + text + data + bytes(end - len(data)))
            engine = os.path.join(folder, "m.eng")
            succeed([ENGBUILD, "--model", model, "--target", "cpu", "--tune", "off", "-o", engine])
            self.check_greedy(engine, prompt, greedy, gaps)

    @needs_shared("models", "hf-tiny")
    def test_layers_that_predict_further_tokens(self):
        """As ERNIE 4.5 has them: they are left out, and no other tensor is."""
        prompt, _, greedy, gaps = recorded("ernie4_5_moe")[3]
        for name, is_known in (("model.mtp_block.0.mlp.up_proj.weight", True), ("model.mtp_linear_proj.0.weight", True),
                               ("model.other_block.0.weight", False)):
            with self.subTest(name), scratch() as folder:
                model, engine = os.path.join(folder, "ernie"), os.path.join(folder, "m.eng")
                shutil.copytree(folder_of("ernie4_5_moe"), model)
                with open(os.path.join(model, "model.safetensors"), "rb") as file:
                    header, data = json.loads(file.read(struct.unpack("<Q", file.read(8))[0])), file.read()
                header[name] = {"dtype": "F32", "shape": [4, 4], "data_offsets": [len(data), len(data) + 64]}
                text = json.dumps(header).encode()
                with open(os.path.join(model, "model.safetensors"), "wb") as file:
                    file.write(struct.pack("<Q", len(text)) + text + data + bytes(64))
                result = run([ENGBUILD, "--model", model, "--target", "cpu", "--tune", "off", "-o", engine])
                self.assertEqual(result.rc, 0 if is_known else 1, result.stderr)
                if is_known:
                    self.check_greedy(engine, prompt, greedy, gaps)
                else:
                    self.assertIn("tensor '%s' is not used" % name, result.stderr)

    @needs_shared("models", "hf-tiny")
    def test_every_folder_is_supported(self):
        self.assertEqual(set(os.listdir(shared("models", "hf-tiny"))), set(SUPPORTED))


if __name__ == "__main__":
    unittest.main()
