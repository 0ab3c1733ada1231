# SPDX-License-Identifier: Apache-2.0
"""engserve's /v1/embeddings, with a checkpoint as those of Qwen3-Embedding are: sentence-transformers files that ask for the last token,
tensors without "model." in their names, no LM head, and a tokenizer that ends each text with a special token. Compared with a forward
pass in Python (decoder.py), which is itself compared with recordings of transformers."""

import array
import base64
import concurrent.futures
import json
import os
import random
import unittest

from decoder import Decoder, normalised
from gguf_writer import write_safetensors
from harness import (BUILT, ENGBUILD, ENGINFO, ENGRUN, FABLES, SANITIZED, build_engine, needs_shared, output, output_json, read_json, recorded_cases, run, scratch, shared,
                     succeed, tally, write)
from server import Server

CONFIG = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1536, "max_position_embeddings": 128,
          "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "float32",
          "bos_token_id": 0, "eos_token_id": 1, "attention_bias": False, "use_sliding_window": False}
HIDDEN, CONTEXT, END = CONFIG["hidden_size"], CONFIG["max_position_embeddings"], 1
MODULES = ["Transformer", "Pooling", "Normalize"]
LAST_TOKEN = {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True, "include_prompt": True}
# Largest difference of a number, in vectors of length 1.
TOLERANCE = 1e-3
FAKE = {"FAKE_CUDA_MEMORY": "100000000", "FAKE_CUDA_DEVICES": "2",
        "LD_LIBRARY_PATH": ":".join(os.path.join(BUILT, "tests", "fake_cuda", part) for part in ("whole", "compiler"))}
TEXTS = ["Once upon a time", "The fox", "A wolf and a lamb met at a stream."]


def tensors():
    """Random, with hidden states that differ from text to text."""
    numbers, config = random.Random(5), CONFIG
    wide, narrow = config["num_attention_heads"] * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    shapes = {"embed_tokens.weight": [config["vocab_size"], HIDDEN], "norm.weight": [HIDDEN]}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in {"input_layernorm": [HIDDEN], "post_attention_layernorm": [HIDDEN], "self_attn.q_norm": [config["head_dim"]],
                            "self_attn.k_norm": [config["head_dim"]], "self_attn.q_proj": [wide, HIDDEN],
                            "self_attn.k_proj": [narrow, HIDDEN], "self_attn.v_proj": [narrow, HIDDEN], "self_attn.o_proj": [HIDDEN, wide],
                            "mlp.gate_proj": [config["intermediate_size"], HIDDEN], "mlp.up_proj": [config["intermediate_size"], HIDDEN],
                            "mlp.down_proj": [HIDDEN, config["intermediate_size"]]}.items():
            shapes["layers.%d.%s.weight" % (layer, name)] = shape
    made = {}
    for name, shape in shapes.items():
        mean, spread = (1.0, 0.1) if len(shape) == 1 else (0.0, 0.2)
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        made[name] = (shape, array.array("f", [numbers.gauss(mean, spread) for _ in range(count)]))
    return made


def checkpoint(folder, modules=MODULES, pooling=LAST_TOKEN):
    os.makedirs(os.path.join(folder, "1_Pooling"))
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors())
    tokenizer = read_json(FABLES, "tokenizer.json")
    end = {"SpecialToken": {"id": "<|end|>", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, end],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}, end],
        "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [END], "tokens": ["<|end|>"]}}}
    listed = [{"idx": i, "name": str(i), "path": "" if i == 0 else "%d_%s" % (i, kind), "type": "sentence_transformers.models." + kind}
              for i, kind in enumerate(modules)]
    for name, document in {"config.json": CONFIG, "tokenizer.json": tokenizer, "modules.json": listed, "1_Pooling/config.json": pooling}.items():
        write(os.path.join(folder, name), json.dumps(document).encode())
    return folder


def floats(text):
    return array.array("f", base64.b64decode(text)).tolist()


class Embeddings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch()
        cls.model = checkpoint(os.path.join(cls.folder.name, "embedder"))
        cls.decoder = Decoder(cls.model)
        cls.keys = os.path.join(cls.folder.name, "keys")
        write(cls.keys, b"secret-of-the-test\n")
        cls.server = Server("embedder=" + build_engine(cls.model, "--max-batch", "4"), "fables=" + build_engine(FABLES, "--max-batch", "4"),
                            "--api-key-file", cls.keys)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.log)
        cls.folder.cleanup()

    def post(self, path, body, expect=200, key="secret-of-the-test"):
        return self.server.json("POST", path, body, expect=expect, headers={"Authorization": "Bearer " + key})

    def embed(self, given, **body):
        reply = self.post("/v1/embeddings", {"model": "embedder", "input": given, **body})
        self.assertEqual((reply["object"], reply["model"]), ("list", "embedder"))
        self.assertEqual([(item["object"], item["index"]) for item in reply["data"]],
                         [("embedding", i) for i in range(len(reply["data"]))])
        return [item["embedding"] for item in reply["data"]], reply["usage"]

    def refused(self, status, param, *words, key="secret-of-the-test", **body):
        error = self.post("/v1/embeddings", {"model": "embedder", **body}, status, key)["error"]
        self.assertEqual(error["param"], param, error)
        for word in words:
            self.assertIn(word, error["message"])

    def ids(self, text):
        return self.post("/tokenize", {"model": "embedder", "prompt": text})["tokens"]

    def check(self, found, expected, tolerance=TOLERANCE):
        self.assertEqual(len(found), len(expected))
        self.assertLess(max(abs(a - b) for a, b in zip(found, expected)), tolerance)

    def test_are_hidden_states_of_the_last_token(self):
        found, usage = self.embed(TEXTS)
        ids = [self.ids(text) for text in TEXTS]
        for vector, tokens in zip(found, ids):
            self.assertEqual(tokens[-1], END)
            self.check(vector, normalised(self.decoder.last_hidden(tokens)))
            self.assertAlmostEqual(sum(value * value for value in vector), 1, delta=1e-5)
        count = sum(map(len, ids))
        self.assertEqual(usage, {"prompt_tokens": count, "total_tokens": count})
        apart = max(abs(a - b) for a, b in zip(found[0], found[1]))
        self.assertGreater(apart, 50 * TOLERANCE, "texts with one embedding would show nothing")

    def test_means(self):
        """Embeddings are the mean of all tokens where that is asked for."""
        found, usage = self.embed(TEXTS, pooling="mean")
        last, same = self.embed(TEXTS, pooling="last")
        self.assertEqual((last, usage), (self.embed(TEXTS)[0], same))
        for text, vector, other in zip(TEXTS, found, last):
            ids = self.ids(text)
            rows = [self.decoder.last_hidden(ids[:i + 1]) for i in range(len(ids))]
            self.check(vector, normalised([sum(column) / len(ids) for column in zip(*rows)]))
            self.assertGreater(max(abs(a - b) for a, b in zip(vector, other)), 50 * TOLERANCE)
        (cut,), _ = self.embed(TEXTS[0], pooling="mean", dimensions=7, encoding_format="base64")
        self.check(floats(cut), normalised(found[0][:7]), 1e-5)
        (one,), _ = self.embed([5], pooling="mean")
        self.check(one, self.embed([5])[0][0], 1e-5)
        self.embed([5] * CONTEXT, pooling="mean")
        self.refused(400, "pooling", "mean", input="x", pooling="cls")

    def test_forms_of_input(self):
        (text,), _ = self.embed(TEXTS[0])
        for given in ([TEXTS[0]], self.ids(TEXTS[0]), [self.ids(TEXTS[0])]):
            (found,), usage = self.embed(given, user="someone")
            self.check(found, text, 1e-5)
            self.assertEqual(usage["prompt_tokens"], len(self.ids(TEXTS[0])))
        mixed, _ = self.embed([self.ids(TEXTS[1]), TEXTS[0]])
        self.check(mixed[1], text, 1e-5)
        (empty,), usage = self.embed("")
        self.check(empty, normalised(self.decoder.last_hidden([END])))
        self.assertEqual(usage["prompt_tokens"], 1)

    def test_encodings_and_dimensions(self):
        whole, _ = self.embed(TEXTS, encoding_format="float")
        coded, _ = self.embed(TEXTS, encoding_format="base64")
        for vector, text in zip(whole, coded):
            self.check(floats(text), vector, 1e-6)
        for width in (1, 7, HIDDEN):
            cut, _ = self.embed(TEXTS, dimensions=width)
            for vector, short in zip(whole, cut):
                self.check(short, normalised(vector[:width]), 1e-5)

    def test_many_at_once(self):
        """Answers do not depend on what else the engine computes: other inputs, other requests, answers of the same model."""
        numbers = random.Random(3)
        inputs = [[numbers.randrange(2, 1500) for _ in range(numbers.choice([1, 5, 17, 40, CONTEXT]))] for _ in range(30 if SANITIZED else 150)]
        alone = [self.embed(given)[0][0] for given in inputs[:12]]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            texts = [pool.submit(self.post, "/v1/completions", {"model": "embedder", "prompt": "The", "max_tokens": 40}) for _ in range(3)]
            together = [pool.submit(self.embed, inputs[i::6]) for i in range(6)]
            vectors = [None] * len(inputs)
            for i, future in enumerate(together):
                vectors[i::6], usage = future.result()
                self.assertEqual(usage["prompt_tokens"], sum(map(len, inputs[i::6])))
            for future in texts:
                self.assertGreater(future.result()["usage"]["completion_tokens"], 0)
        for one, other in zip(alone, vectors):
            self.check(one, other, 1e-5)
        for given, vector in list(zip(inputs, vectors))[:6]:
            self.check(vector, normalised(self.decoder.last_hidden(given)))
        tally("embeddings at once", len(vectors))

    def test_limits(self):
        numbers = [5] * CONTEXT
        self.embed(numbers)
        self.refused(400, "input", "context of this model is %d tokens" % CONTEXT, "an input has %d" % (CONTEXT + 1), input=numbers + [5])
        self.refused(400, "input", "at least one token", input=["x", []])
        self.refused(400, "input", "below 1536", input=[1536])
        self.refused(400, "input", "1 to 2048 inputs", input=["x"] * 2049)
        self.refused(400, "input", "expected this field")
        self.refused(400, "dimensions", "at most %d" % HIDDEN, "found %d" % (HIDDEN + 1), input="x", dimensions=HIDDEN + 1)
        self.refused(400, "encoding_format", "base64", input="x", encoding_format="int8")
        self.refused(400, "temperature", "not known", input="x", temperature=1)
        self.refused(404, "model", "does not exist", input="x", model="other")
        self.refused(401, None, input="x", key="another")
        self.refused(400, "model", "engbuild --hidden", input="x", model="fables")

    def test_metrics(self):
        labels = {"model_name": "embedder"}
        before = [self.server_metric(name, **labels) for name in ("prompt_tokens_total", "generation_tokens_total")]
        self.embed([[5, 6, 7], [8]])
        after = [self.server_metric(name, **labels) for name in ("prompt_tokens_total", "generation_tokens_total")]
        self.assertEqual([b - a for a, b in zip(before, after)], [4, 0])

    def server_metric(self, name, **labels):
        lines = self.server.request("GET", "/metrics", headers={"Authorization": "Bearer secret-of-the-test"}).body.decode().splitlines()
        found = [line for line in lines if line.startswith("eng:%s{" % name) and all('%s="%s"' % item in line for item in labels.items())]
        self.assertEqual(len(found), 1, lines)
        return float(found[0].split()[-1])


class Builds(unittest.TestCase):
    def test_other_poolings(self):
        """Such a checkpoint is built as any other, without hidden states; --hidden says why it gives none."""
        with scratch() as folder:
            mean = {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True}
            cases = {"mean": (MODULES, mean, "1_Pooling/config.json: expected last-token pooling, found mean_tokens"),
                     "dense": (["Transformer", "Pooling", "Dense"], LAST_TOKEN, "modules.json: expected Normalize, found Dense")}
            for name, (modules, pooling, words) in cases.items():
                model = checkpoint(os.path.join(folder, name), modules, pooling)
                with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as file:
                    json.dump({**CONFIG, "tie_word_embeddings": True}, file)
                path = os.path.join(folder, name + ".eng")
                refused = run([ENGBUILD, "--model", model, "--hidden", "--target", "cpu", "-o", path])
                self.assertEqual(refused.rc, 1, refused.stderr)
                self.assertIn(words, refused.stderr)
                self.assertFalse(os.path.exists(path))
                built = run([ENGBUILD, "--model", model, "--target", "cpu", "--tune", "off", "-o", path])
                self.assertEqual(built.rc, 0, built.stderr)
                self.assertIn("no hidden states: the checkpoint's embeddings are made in a way that is not supported: " + words, built.stderr)
                server = Server("m=" + path)
                reply = server.json("POST", "/v1/embeddings", {"input": "x"}, expect=400)
                self.assertIn("--hidden", reply["error"]["message"])
                self.assertEqual(server.stop(), 0)

    def test_engines_for_gpus(self):
        """With the fake driver and compiler, whose kernels compute nothing: plans for one GPU and two, and rows that come from there."""
        with scratch() as folder:
            model, path = checkpoint(os.path.join(folder, "model")), os.path.join(folder, "m.eng")
            for gpus in ("1", "2"):
                built = run([ENGBUILD, "--model", model, "--target", "cuda", "--gpus", gpus, "--lean", "--tune", "off", "--tuning-cache", "none",
                             "--batch-sizes", "1,4", "--prefill-chunks", "16", "--mixed-steps", "16", "-o", path], env=FAKE)
                self.assertEqual(built.rc, 0, built.stderr)
                self.assertIn("selftest passed", succeed([ENGRUN, path, "--selftest"], env=FAKE).stdout)
                server = Server("m=" + path, env=FAKE)
                reply = server.json("POST", "/v1/embeddings", {"input": TEXTS})
                self.assertEqual([item["embedding"] for item in reply["data"]], [[0] * HIDDEN] * len(TEXTS))
                self.assertEqual(server.stop(), 0)

    def test_shipped_model(self):
        """--hidden changes no token, and the hidden states are those of the model."""
        case = read_json(FABLES, "reference.json")["cases"][0]
        decoder = Decoder(FABLES)
        self.assertLess(max(abs(a - b) for a, b in zip(decoder.logits(case["ids"]), case["logits"])), TOLERANCE)
        engine = build_engine(FABLES, "--max-batch", "4", "--hidden")
        tokens = output([ENGRUN, engine, "--tokens", ",".join(map(str, case["ids"])), "-n", "12", "--ignore-eos", "--print-tokens"])
        self.assertEqual(list(map(int, tokens.split())), case["greedy"][:12])
        self.assertIn("selftest passed", output([ENGRUN, engine, "--selftest"]))
        self.assertIn("hidden states", output([ENGINFO, engine]))
        self.assertEqual([output_json([ENGINFO, each, "--json"])["hidden_states"] for each in (engine, build_engine(FABLES))], [True, False])
        server = Server("m=" + engine)
        (item,) = server.json("POST", "/v1/embeddings", {"input": case["ids"]})["data"]
        self.assertEqual(server.stop(), 0)
        expected = normalised(decoder.last_hidden(case["ids"]))
        self.assertLess(max(abs(a - b) for a, b in zip(item["embedding"], expected)), TOLERANCE)

    @needs_shared("models", "hf-tiny", "qwen3")
    def test_forward_pass_of_qwen3(self):
        folder = shared("models", "hf-tiny", "qwen3")
        decoder = Decoder(folder)
        prompt, expected, _, _ = recorded_cases(folder)[1]
        self.assertLess(max(abs(a - b) for a, b in zip(decoder.logits(prompt), expected[-1])), TOLERANCE)


if __name__ == "__main__":
    unittest.main()
