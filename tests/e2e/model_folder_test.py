# SPDX-License-Identifier: Apache-2.0
"""Unsupported contents of a model's folder: entries that are not regular files, other formats of weights and
tokenizers, a name of the hub. Each is refused, or reported, by name and with what to do."""

import json
import os
import shutil
import unittest

from harness import ENGBUILD, ENGRUN, FABLES, run, scratch

BAD_INPUT = 1
BESIDE = ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json"]


class ModelFolder(unittest.TestCase):
    def setUp(self):
        self.folder = scratch()
        self.addCleanup(self.folder.cleanup)
        self.model = os.path.join(self.folder.name, "model")
        self.copy()

    def copy(self):
        shutil.copytree(FABLES, self.model)
        for name in os.listdir(self.model):
            os.chmod(self.at(name), 0o644)

    def at(self, name):
        return os.path.join(self.model, name)

    def put(self, name, text=""):
        with open(self.at(name), "w", encoding="utf-8") as file:
            file.write(text)

    def build(self, *flags, model=None):
        return run([ENGBUILD, "--model", model or self.model, "--target", "cpu", "--tune", "off", "--tuning-cache", "none",
                    "--max-context", "64", "--max-batch", "1", "--prefill-chunks", "8", "-o",
                    os.path.join(self.folder.name, "m.eng"), *flags], cwd=self.folder.name)

    def refused(self, words, **kwargs):
        result = self.build(**kwargs)
        self.assertEqual(result.rc, BAD_INPUT, result.stdout + result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_no_regular_file(self):
        kinds = {
            "a symbolic link to '../blobs/0123'": lambda path: os.symlink("../blobs/0123", path),
            "a named pipe": os.mkfifo,
            "a directory": os.mkdir,
        }
        for name in BESIDE:
            for found, make in kinds.items():
                with self.subTest(name=name, found=found):
                    shutil.rmtree(self.model)
                    self.copy()
                    if name == "model.safetensors.index.json": # searched if there are no weights of the usual name
                        os.rename(self.at("model.safetensors"), self.at("other.safetensors"))
                    elif os.path.exists(self.at(name)):
                        os.remove(self.at(name))
                    make(self.at(name))
                    self.refused([self.at(name), found])

    def test_weights_of_another_name_that_lead_nowhere(self):
        os.remove(self.at("model.safetensors"))
        os.symlink("/nowhere/at/all", self.at("weights.safetensors"))
        self.refused([self.at("weights.safetensors"), "symbolic link to '/nowhere/at/all'"])

    def test_shard_that_leads_nowhere(self):
        os.remove(self.at("model.safetensors"))
        self.put("model.safetensors.index.json", json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
        os.symlink("gone", self.at("model-00001-of-00001.safetensors"))
        self.refused(["model-00001-of-00001.safetensors", "symbolic link to 'gone'"])

    def test_link_to_a_file(self):
        """The hub's cache consists of symbolic links."""
        os.rename(self.at("tokenizer.json"), os.path.join(self.folder.name, "blob"))
        os.symlink("../blob", self.at("tokenizer.json"))
        result = self.build()
        self.assertEqual(result.rc, 0, result.stderr)
        self.assertIn("tokenizer  tokenizer.json", result.stdout)

    def test_tokenizer_of_a_pipe(self):
        os.remove(self.at("tokenizer.json"))
        os.mkfifo(self.at("tokenizer.json"))
        result = run([ENGRUN, self.at("tokenizer.json"), "--tokenize"], input='"a"\n')
        self.assertEqual(result.rc, BAD_INPUT)
        self.assertIn("a named pipe", result.stderr)

    def test_report_names_the_tokenizer(self):
        result = self.build()
        self.assertEqual(result.rc, 0, result.stderr)
        self.assertIn("tokenizer  tokenizer.json, 1536 tokens, no chat template\n", result.stdout)
        report = json.loads(self.build("--json").stdout)
        self.assertEqual(report["tokenizer"], {"file": "tokenizer.json", "tokens": 1536, "chat_templates": []})

    def test_tokenizer_model_alone(self):
        for name in ("tokenizer.model", "spiece.model", "vocab.json", "tekken.json", "qwen.tiktoken"):
            with self.subTest(name=name):
                if os.path.exists(self.at("tokenizer.json")):
                    os.remove(self.at("tokenizer.json"))
                self.put(name, "x")
                for flags in ([], ["--quiet"], ["--dry-run"]):
                    result = self.build(*flags)
                    self.assertEqual(result.rc, 0, result.stderr)
                    self.assertIn("warning: the engine has no tokenizer", result.stderr)
                    self.assertIn(name, result.stderr)
                    if name in ("tekken.json", "qwen.tiktoken"):
                        self.assertIn("hub", result.stderr)
                    else:
                        self.assertIn("AutoTokenizer as T; T.from_pretrained('.').save_pretrained('.')\"\n", result.stderr)
                    self.assertIn("tokenizer  none: ", result.stdout)
                report = self.build("--json")
                self.assertIsNone(json.loads(report.stdout)["tokenizer"])
                os.remove(self.at(name))

    def test_no_tokenizer_at_all(self):
        os.remove(self.at("tokenizer.json"))
        result = self.build()
        self.assertEqual(result.rc, 0)
        self.assertIn("warning: the engine has no tokenizer: '%s' holds no tokenizer.json" % self.model, result.stderr)
        self.assertNotIn("AutoTokenizer", result.stderr)
        self.assertIn("tokenizer  none: ", result.stdout)

    def test_other_tokenizer_models(self):
        for model in ({"type": "Morfessor", "vocab": {"a": 0}}, {"type": "unigram", "vocab": [["<unk>", 0.0]]}):
            self.put("tokenizer.json", json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
            self.refused([self.at("tokenizer.json"), "'%s'" % model["type"], "BPE", "without tokenizer.json"])

    def test_other_weights(self):
        os.remove(self.at("model.safetensors"))
        for name, words in (("pytorch_model.bin", ["PyTorch"]), ("pytorch_model.bin.index.json", ["PyTorch"]),
                            ("model.pt", ["PyTorch"]), ("consolidated.00.pth", ["PyTorch"]),
                            ("tf_model.h5", ["TensorFlow"]),
                            ("flax_model.msgpack", ["Flax"])):
            with self.subTest(name=name):
                self.put(name, "x")
                convertible = name.startswith("pytorch_model")
                self.refused([self.model, name, "safetensors", "save_pretrained" if convertible else "hub", *words])
                self.refused([name, "safetensors", *words], model=self.at(name))
                os.remove(self.at(name))

    def test_gguf_alone(self):
        for name in os.listdir(self.model):
            os.remove(self.at(name))
        self.put("model-q4.gguf", "x")
        self.refused(["model-q4.gguf", "GGUF", "engbuild --model %s" % self.at("model-q4.gguf")])
        self.refused(["model-q4.gguf", "not a GGUF file"], model=self.at("model-q4.gguf"))

    def test_name_of_the_hub(self):
        for name in ("Qwen/Qwen2.5-0.5B-Instruct", "meta-llama/Llama-3.2-1B", "a/b_c.d"):
            self.refused(["'%s'" % name, "hf download %s --local-dir %s" % (name, name.split("/")[1]),
                          "engbuild --model %s" % name.split("/")[1]], model=name)
        for name in ("/no/where", "./a/b", "a/b/c", "nothing", "a/b.safetensors", "../up", "a b/c"):
            result = self.build(model=name)
            self.assertEqual(result.rc, BAD_INPUT)
            self.assertIn("'%s'" % name, result.stderr)
            self.assertNotIn("hf download", result.stderr)


if __name__ == "__main__":
    unittest.main()
