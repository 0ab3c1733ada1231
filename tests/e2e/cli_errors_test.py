# SPDX-License-Identifier: Apache-2.0
"""Errors of users and of the machine: each gives a message that says what, where, expected and found, the exit code of
its kind, nothing on stdout, and no leftover files. Exit codes: 1 bad input, 2 usage, 3 machine, 4 internal."""

import json
import os
import random
import shutil
import struct
import subprocess
import unittest

from harness import (ENGBENCH, ENGBUILD, ENGINFO, ENGRUN, FABLES, SANITIZED, build_engine, fables_engine,
                     read_json, run, sanitized_elsewhere, scratch, succeed, tally)

BAD_INPUT, USAGE, MACHINE, INTERNAL = 1, 2, 3, 4
VOCABULARY, CONTEXT = 1536, 1024

NOT_NUMBERS = ["", "x", "-1", "1.5", "1e3", "0x10", " 1", "1 ", "+1", "99999999999999999999999"]


def can_mount():
    """Whether a private mount namespace with its own file systems is available (usually: run as root)."""
    if not shutil.which("unshare"):
        return False
    with scratch() as folder:
        return run(["unshare", "-m", "mount", "-t", "tmpfs", "none", folder]).rc == 0


CAN_MOUNT = can_mount()


def on_tmpfs(folder, mount_options, command, before=":", after=":"):
    """`command` with its own file system at `folder`; `before` and `after` are shell commands around it. The file
    system and its contents end with the command."""
    script = ('mount -t tmpfs -o "$2" none "$1" && { %s; } && '
              '{ [ -z "$3" ] || mount -o "remount,$3" "$1"; } || exit 99; '
              'shift 3; "$@"; rc=$?; { %s; } >&2; exit $rc' % (before, after))
    first, _, then = mount_options.partition(" then ")
    return ["unshare", "-m", "sh", "-c", script, "sh", folder, first, then, *command]


class ErrorTest(unittest.TestCase):
    def setUp(self):
        folder = scratch()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.count = 0

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def listing(self):
        return sorted(os.path.join(top, name) for top, folders, files in os.walk(self.folder)
                      for name in folders + files)

    def check_result(self, result, rc, words, command):
        self.assertEqual(result.rc, rc, "%s\n%s" % (command, result.stderr))
        self.assertEqual(result.stdout, "", command)
        message = result.stderr.strip()
        self.assertTrue(message, command)
        last = message.splitlines()[-1]
        program = os.path.basename(command[0])
        self.assertTrue(last.startswith(program + ": "), "the message says who speaks: " + last)
        self.assertGreater(len(last), len(program) + 12, "the message says what is wrong: " + last)
        for word in words:
            self.assertIn(str(word), last, command)
        self.count += 1
        return last

    def fails(self, rc, words, *command, **kwargs):
        """The command ends with this exit code and a message that contains these words; no file is added or removed."""
        before = self.listing()
        result = run(command, cwd=self.folder, **kwargs)
        last = self.check_result(result, rc, words, command)
        self.assertEqual(self.listing(), before, "nothing may be left behind: %s" % (command,))
        return last

    def refuses_values(self, command, flag, values, words=()):
        """Each value of a flag is a usage error, which names the flag and the value."""
        for value in values:
            with self.subTest(flag=flag, value=value):
                found = [value.split(",")[-1]] if value else []  # the wrong item of a list
                self.fails(USAGE, [flag, "expected", *found, *words], *command, flag, value)


class BuildFlags(ErrorTest):
    BUILD = [ENGBUILD, "--model", FABLES, "--tune", "off", "--tuning-cache", "none"]

    def test_counts(self):
        self.refuses_values(self.BUILD, "--max-batch", NOT_NUMBERS + ["0", "4097"], ["1 to 4096"])
        self.refuses_values(self.BUILD, "--max-context", NOT_NUMBERS + ["0"])
        self.refuses_values(self.BUILD, "--gpus", NOT_NUMBERS + ["0", "17", "1000000"], ["1 to 16"])
        self.refuses_values([*self.BUILD, "--target", "cpu"], "--gpus", ["0", "17"], ["1 to 16"])
        self.refuses_values(self.BUILD, "--threads", NOT_NUMBERS + ["0", "1000000"])
        tally("engbuild: counts", self.count)

    def test_lists(self):
        for flag in ("--batch-sizes", "--prefill-chunks"):
            for value in ["", ",", "1,", ",1", "1,,2", "0", "1,0", "1,x", "1;2", "-1", "100000000",
                          ",".join(map(str, range(1, 200)))]:
                with self.subTest(flag=flag, value=value):
                    self.fails(USAGE, [flag, "expected"], *self.BUILD, flag, value)
        self.fails(USAGE, ["--batch-sizes", "--max-batch", "4", "5"], *self.BUILD, "--max-batch", "4", "--batch-sizes",
                   "1,5")
        tally("engbuild: lists", self.count)

    def test_choices(self):
        words = {"--dtype": ["auto", "f32", "fp16", "bf16"], "--kv-dtype": ["auto", "f32", "fp16", "bf16", "int8", "fp8"],
                 "--compute": ["f32", "bf16", "int8", "fp8"],
                 "--tune": ["off", "quick", "full"], "--target": ["cpu", "cuda"]}
        for flag, names in words.items():
            values = ["", "x", names[0].upper(), names[0] + " ", names[0] + ",", "int3"]
            self.refuses_values(self.BUILD, flag, values, names)
        tally("engbuild: choices", self.count)

    def test_pass_names(self):
        self.refuses_values(self.BUILD, "--dump-after", ["", "x", "fuse-qkv "], ["import", "fuse", "dead"])

    def test_paths(self):
        self.fails(USAGE, ["--model"], ENGBUILD)
        self.fails(USAGE, ["--model", "expected"], ENGBUILD, "--model", "")
        self.fails(USAGE, ["-o", "expected"], *self.BUILD, "-o", "")

    def test_combinations(self):
        self.fails(USAGE, ["--dump-after", "--json"], *self.BUILD, "--json", "--dump-after", "import")
        self.fails(BAD_INPUT, ["--gpus", "3 GPUs", "intermediate_size"], *self.BUILD, "--target", "cpu", "--gpus", "3")
        self.fails(BAD_INPUT, ["--gpus", "4 GPUs", "num_attention_heads"], *self.BUILD, "--target", "cpu", "--gpus", "4")
        self.fails(MACHINE, ["cuda", "--target cpu"], *self.BUILD, "--target", "cuda")
        self.fails(USAGE, ["--compute", "f32, bf16 or int8", "found fp8", "--target cuda"], *self.BUILD, "--target", "cpu", "--dtype",
                   "fp8", "--compute", "fp8")

    def test_unknown(self):
        for flag in ("--frobnicate", "-x", "--max-batches=3"):
            self.fails(USAGE, [flag.split("=")[0], "--help"], *self.BUILD, flag)
        self.fails(USAGE, ["surprise"], *self.BUILD, "surprise")
        for flag in ("--max-batch", "--model", "-o", "--tune"):
            self.fails(USAGE, [flag, "value"], *self.BUILD, flag)
        for flag in ("--json", "--lean", "--dry-run", "--list-candidates", "--quiet"):
            self.fails(USAGE, [flag], *self.BUILD, flag + "=1")

    def test_context_beyond_the_model(self):
        self.fails(BAD_INPUT, ["--max-context", "max_position_embeddings", CONTEXT, CONTEXT + 1], *self.BUILD,
                   "--max-context", str(CONTEXT + 1))

    def test_help_and_version(self):
        for tool in (ENGBUILD, ENGRUN, ENGBENCH, ENGINFO):
            for flag in ("--help", "--version"):
                result = run([tool, flag])
                self.assertEqual((result.rc, result.stderr), (0, ""))
                self.assertIn(os.path.basename(tool), result.stdout)


class BuildInputs(ErrorTest):
    """Missing, incomplete and inconsistent checkpoints."""

    def build(self, model, *flags):
        return [ENGBUILD, "--model", model, "--tune", "off", "--tuning-cache", "none", "-o", self.path("m.eng"), *flags]

    def copy(self, **changes):
        """A copy of the shipped checkpoint; changes replace fields of its config.json, None removes one."""
        target = self.path("model")
        if os.path.exists(target):
            shutil.rmtree(target)
        shutil.copytree(FABLES, target)
        for name in os.listdir(target):
            os.chmod(os.path.join(target, name), 0o644)
        config = read_json(target, "config.json")
        config.update(changes)
        self.write("config.json", json.dumps({key: value for key, value in config.items() if value != "absent"}))
        return target

    def write(self, name, text):
        with open(self.path("model", name), "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def read(self, name):
        with open(self.path("model", name), "rb") as file:
            return file.read()

    def test_missing(self):
        self.fails(BAD_INPUT, ["/does/not/exist"], *self.build("/does/not/exist"))
        self.fails(BAD_INPUT, ["no.safetensors"], *self.build(self.path("no.safetensors")))
        os.mkdir(self.path("empty"))
        self.fails(BAD_INPUT, [self.path("empty"), "config.json"], *self.build(self.path("empty")))
        model = self.copy()
        os.remove(self.path("model", "config.json"))
        self.fails(BAD_INPUT, [model, "config.json"], *self.build(model))
        self.fails(BAD_INPUT, ["config.json"], *self.build(self.path("model", "model.safetensors")))
        model = self.copy()
        os.remove(self.path("model", "model.safetensors"))
        self.fails(BAD_INPUT, [model, "safetensors"], *self.build(model))
        self.fails(BAD_INPUT, ["/dev/null"], *self.build("/dev/null"))

    def test_missing_tokenizer(self):
        """A checkpoint without a tokenizer builds; a request for text from such an engine is refused."""
        model = self.copy()
        os.remove(self.path("model", "tokenizer.json"))
        engine = build_engine(model)
        self.fails(BAD_INPUT, ["tokenizer"], ENGRUN, engine, "-p", "Once upon a time")
        self.fails(BAD_INPUT, ["tokenizer"], ENGRUN, engine, "--tokenize", input='"fox"\n')
        self.fails(BAD_INPUT, ["tokenizer"], ENGRUN, engine, "--chat", "-p", "hello")
        result = run([ENGRUN, engine, "--tokens", "0", "-n", "4", "--print-tokens"])
        self.assertEqual((result.rc, len(result.stdout.split())), (0, 4), result.stderr)

    def test_config(self):
        for changes, words in (
                ({"model_type": "mamba"}, ["model_type", "mamba", "state spaces", "nearest"]),
                ({"model_type": "absent"}, ["model_type"]),
                ({"model_type": 7}, ["model_type"]),
                ({"hidden_size": "absent"}, ["hidden_size"]),
                ({"hidden_size": 0}, ["hidden_size"]),
                ({"hidden_size": -192}, ["hidden_size", "-192"]),
                ({"hidden_size": 192.5}, ["hidden_size"]),
                ({"hidden_size": "192"}, ["hidden_size"]),
                ({"num_attention_heads": 7}, ["num_attention_heads", "num_key_value_heads"]),
                ({"hidden_act": "tanh"}, ["hidden_act", "gelu_pytorch_tanh", "tanh"]),
                ({"rms_norm_eps": -1}, ["rms_norm_eps"]),
                ({"rope_parameters": {"rope_type": "twisted", "rope_theta": 10000.0, "factor": 2.0}}, ["twisted"]),
                ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "twist": 2.0}}, ["twist"]),
                ({"a_field_of_tomorrow": True}, ["a_field_of_tomorrow"]),
                ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, ["quantization_config"]),
                ({"vocab_size": 10 ** 18}, ["vocab_size"])):
            with self.subTest(changes=changes):
                self.fails(BAD_INPUT, ["config.json", *words], *self.build(self.copy(**changes)))
        tally("config.json", self.count)

    def test_config_is_no_json(self):
        for text, words in (("", []), ("{", []), ("[]", []), ('{"model_type": "llama",}', []), ("\xff\xfe", []),
                            ('{"model_type": "llama", "model_type": "llama"}', ["model_type"])):
            with self.subTest(text):
                model = self.copy()
                self.write("config.json", text)
                self.fails(BAD_INPUT, ["config.json", *words], *self.build(model))

    def test_tensors(self):
        """Every tensor must exist, have the shape that config.json gives it, and be used."""
        for changes, words in (
                ({"num_hidden_layers": 6}, ["model.layers.5."]),
                ({"num_hidden_layers": 4}, ["model.layers.4."]),
                ({"intermediate_size": 321}, ["mlp.", "321", "320"]),
                ({"vocab_size": 1535}, ["model.embed_tokens.weight", "1535", "1536"]),
                ({"tie_word_embeddings": False}, ["lm_head.weight"]),
                ({"attention_bias": True}, ["bias"])):
            with self.subTest(changes=changes):
                self.fails(BAD_INPUT, words, *self.build(self.copy(**changes)))
        tally("tensors", self.count)

    def test_weights_file(self):
        model = self.copy()
        data = self.read("model.safetensors")
        length, = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + length])
        first = next(name for name in header if name != "__metadata__")

        def with_header(changed):
            text = json.dumps(changed).encode()
            return struct.pack("<Q", len(text)) + text + data[8 + length:]

        for name, contents, words in (
                ("empty", b"", []), ("short", data[:5], []), ("cut header", data[:100], []),
                ("cut data", data[:-1], []), ("trailing byte", data + b"x", []),
                ("huge header", struct.pack("<Q", 1 << 60) + data[8:], []), ("no JSON", data[:8] + b"x" + data[9:], []),
                ("unknown dtype", with_header({**header, first: {**header[first], "dtype": "Q4_0"}}), ["Q4_0"]),
                ("integer weights", with_header({**header, first: {**header[first], "dtype": "I16"}}), [first, "I16"]),
                ("wrong shape", with_header({**header, first: {**header[first], "shape": [1]}}), [first])):
            with self.subTest(name):
                self.write("model.safetensors", contents)
                named = [] if name == "integer weights" else ["model.safetensors"]
                self.fails(BAD_INPUT, [*named, *words], *self.build(model))
        tally("model.safetensors", self.count)

    def test_index(self):
        model = self.copy()
        os.rename(self.path("model", "model.safetensors"), self.path("model", "model-00001-of-00002.safetensors"))
        names = list(json.loads(self.read("model-00001-of-00002.safetensors").split(b"}}", 1)[0][8:] + b"}}"))
        weights = {name: "model-00001-of-00002.safetensors" for name in names if name != "__metadata__"}
        first = next(iter(weights))
        for change, words in (({first: "model-00002-of-00002.safetensors"}, ["model-00002-of-00002.safetensors"]),
                              ({first: "../elsewhere.safetensors"}, ["elsewhere"]),
                              ({"model.stray": "model-00001-of-00002.safetensors"}, ["model.stray"])):
            with self.subTest(change=change):
                index = {"metadata": {}, "weight_map": {**weights, **change}}
                self.write("model.safetensors.index.json", json.dumps(index))
                self.fails(BAD_INPUT, words, *self.build(model))

    def test_tokenizer_file(self):
        for text in ("", "{", "{}", '{"model": {"type": "WordPiece", "vocab": {}}}'):
            with self.subTest(text):
                model = self.copy()
                self.write("tokenizer.json", text)
                self.fails(BAD_INPUT, ["tokenizer.json"], *self.build(model))
        model = self.copy()
        tokenizer = read_json(model, "tokenizer.json")
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 5000, "content": "<|far|>"})
        self.write("tokenizer.json", json.dumps(tokenizer))
        self.fails(BAD_INPUT, ["tokenizer.json"], *self.build(model))

    def test_unsupported_model(self):
        model = self.copy()
        self.write("config.json", '{"model_type": "mamba2"}')
        self.fails(BAD_INPUT, ["mamba2", "not supported", "--list-models"], *self.build(model))


class Outputs(ErrorTest):
    """A failing write leaves no engine."""

    BUILD = [ENGBUILD, "--model", FABLES, "--tune", "off", "--tuning-cache", "none"]

    def test_folder(self):
        self.fails(BAD_INPUT, ["/no/such/folder"], *self.BUILD, "-o", "/no/such/folder/m.eng")
        os.mkdir(self.path("folder"))
        self.fails(BAD_INPUT, [self.path("folder"), "directory"], *self.BUILD, "-o", self.path("folder"))
        self.fails(BAD_INPUT, [self.path("folder")], *self.BUILD, "-o", self.path("folder") + "/")
        os.mkfifo(self.path("pipe"))
        self.fails(BAD_INPUT, [self.path("pipe"), "special file"], *self.BUILD, "-o", self.path("pipe"))

    def test_read_only_folder(self):
        os.mkdir(self.path("locked"))
        output = self.path("locked", "m.eng")
        command = [*self.BUILD, "-o", output]
        if CAN_MOUNT:
            result = run(on_tmpfs(self.path("locked"), "size=16m then ro", command,
                                  after='ls -A "%s"' % self.path("locked")))
            self.check_result(result, MACHINE, [output, "Read-only file system"], command)
        os.chmod(self.path("locked"), 0o555)
        # Root writes into any folder by a capability, which a program can be started without.
        plain_root = ["setpriv", "--bounding-set=-dac_override"] if os.getuid() == 0 else []
        self.check_result(run([*plain_root, *command]), MACHINE, [output, "Permission denied"], command)
        self.assertEqual(os.listdir(self.path("locked")), [])

    @unittest.skipUnless(CAN_MOUNT, "needs the right to mount a small file system")
    def test_full_disk(self):
        """The disk fills up at different places of the file; an older file stays."""
        os.mkdir(self.path("small"))
        output = self.path("small", "m.eng")
        for size in ("4k", "16k", "1m", "3400k"):
            with self.subTest(size=size):
                command = [*self.BUILD, "-o", output]
                result = run(on_tmpfs(self.path("small"), "size=" + size, command,
                                      after='[ -z "$(ls -A "%s")" ] || echo left behind' % self.path("small")))
                self.check_result(result, MACHINE, [output, "No space left on device"], command)
        with self.subTest("an engine that was there"):
            command = [*self.BUILD, "-o", output]
            result = run(on_tmpfs(self.path("small"), "size=1m", command, before='echo precious > "%s"' % output,
                                  after='[ "$(ls -A "%s")" = m.eng ] && [ "$(cat "%s")" = precious ] || echo lost' %
                                  (self.path("small"), output)))
            self.check_result(result, MACHINE, [output, "No space left on device"], command)
        with self.subTest("enough space"):
            result = succeed(on_tmpfs(self.path("small"), "size=16m", [*self.BUILD, "--quiet", "-o", output]))

    def test_file_size_limit(self):
        for limit in (0, 5000, 1 << 20, 3 << 20):
            with self.subTest(limit=limit):
                self.fails(MACHINE, [self.path("m.eng"), "File too large"], *self.BUILD, "-o", self.path("m.eng"),
                           max_file_bytes=limit)

    @sanitized_elsewhere
    def test_full_stdout(self):
        """/dev/full simulates a redirection to a full disk."""
        engine = fables_engine()
        for command in ([*self.BUILD, "-o", self.path("m.eng"), "--json"],
                        [ENGINFO, engine], [ENGINFO, engine, "--json"],
                        [ENGRUN, engine, "-p", "Once", "-n", "3"], [ENGRUN, engine, "--selftest"], [ENGRUN, "--help"],
                        [ENGBUILD, "--version"], [ENGBENCH, engine, "-p", "4", "-n", "1", "-r", "1"]):
            with self.subTest(command=command), open("/dev/full", "wb") as full:
                done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, MACHINE, done.stderr)
                self.assertIn(b"stdout", done.stderr)
                self.assertIn(b"No space left on device", done.stderr)

    def test_logits(self):
        engine = fables_engine()
        generate = [ENGRUN, engine, "-p", "Once", "-n", "3", "--logits"]
        for path, rc, words in (("/no/such/folder/l.npy", BAD_INPUT, ["/no/such/folder"]),
                                (self.folder, BAD_INPUT, [self.folder])):
            self.fails(rc, words, *generate, path)
        before = self.listing()
        result = run([*generate, self.path("l.npy")], max_file_bytes=8192)
        self.assertEqual(result.rc, MACHINE, result.stderr)
        self.assertIn("l.npy", result.stderr)
        self.assertEqual(self.listing(), before)

    @sanitized_elsewhere
    def test_tuning_cache(self):
        """The cache only saves time: one that cannot be read or written gives a warning, even with progress off, and
        the build goes on."""
        build = [ENGBUILD, "--model", FABLES, "--tune", "quick", "--max-batch", "1", "--prefill-chunks", "16",
                 "--quiet", "-o", self.path("m.eng"), "--tuning-cache"]
        os.mkdir(self.path("folder"))
        os.mkfifo(self.path("pipe"))
        for cache, reason in ((self.path("folder"), "directory"), ("/dev/null/records", "Not a directory"),
                              (self.path("pipe"), "special file")):
            with self.subTest(cache=cache):
                result = succeed([*build, cache])
                for word in ("warning", "tuning cache", cache, reason):
                    self.assertIn(word, result.stderr)
                self.assertEqual(run([ENGINFO, self.path("m.eng"), "--verify"]).rc, 0)
                self.assertEqual(sorted(os.listdir(self.folder)), ["folder", "m.eng", "pipe"])

    @unittest.skipIf(SANITIZED, "sanitizers need the address space")
    def test_little_memory(self):
        result = run([*self.BUILD, "-o", self.path("m.eng")], max_memory_bytes=6 << 20)
        self.assertNotEqual(result.rc, 0)
        self.assertEqual(self.listing(), [])
        engine = fables_engine()
        for limit in (20 << 20, 40 << 20):
            result = run([ENGRUN, engine, "-p", "Once", "-n", "3"], max_memory_bytes=limit)
            self.assertIn(result.rc, (0, MACHINE), result.stderr)
            if result.rc:
                self.assertIn("memory", result.stderr)
                self.assertEqual(result.stdout, "")


class RunFlags(ErrorTest):
    @classmethod
    def setUpClass(cls):
        cls.engine = fables_engine()
        cls.command = [ENGRUN, cls.engine, "-p", "Once upon a time"]

    def test_values(self):
        run_engine = [ENGRUN, self.engine]
        self.refuses_values(self.command, "-n", NOT_NUMBERS)
        self.refuses_values(self.command, "--threads", NOT_NUMBERS + ["257"])
        self.refuses_values(self.command, "--seed", NOT_NUMBERS + ["18446744073709551616"])
        self.refuses_values(self.command, "--top-k", NOT_NUMBERS)
        self.refuses_values(run_engine, "--tokens", ["", ",", "x", "1,x", "-1", "1.5", "99999999999"])
        reals = ["", "x", "-0.5", "nan", "inf", "1,5", "0.5x", "1e99"]
        self.refuses_values(self.command, "--temperature", reals)
        self.refuses_values(self.command, "--top-p", reals + ["0", "1.01"])
        self.refuses_values(self.command, "--repetition-penalty", reals + ["0"])
        self.refuses_values(self.command, "--min-p", reals + ["1.01"])
        signed = ["", "x", "nan", "-inf", "1,5", "0.5x", "2.01", "-2.01", "-", "--1"]
        self.refuses_values(self.command, "--presence-penalty", signed)
        self.refuses_values(self.command, "--frequency-penalty", signed)
        self.refuses_values(self.command, "--logit-bias", ["", "5", "5:1,", "5:1,x", "5:1,7", "5;7"])
        for value, word in (("-5:1", "-5"), ("x:1", "x"), ("5:101", "101"), ("5:", "100"), ("5:nan", "nan"), ("99999999999:1", "99999999999")):
            self.fails(USAGE, ["--logit-bias", "expected", word], *self.command, "--logit-bias", value)
        self.fails(USAGE, ["1024"], *self.command, "--logit-bias", ",".join(["5:1"] * 1025))
        self.fails(USAGE, ["logit_bias", "2147483647"], *self.command, "--logit-bias", "2147483647:1")
        self.refuses_values(self.command, "--logprobs", NOT_NUMBERS + ["21"])
        for other in ("--chat", "--print-tokens"):
            self.fails(USAGE, ["--logprobs", other], *self.command, "--logprobs", "2", other)
            self.fails(USAGE, ["--score", other], *self.command, "--score", other)
        for other in (["-n", "3"], ["--logits", "x.npy"], ["--json"], ["--regex", "a"]):
            self.fails(USAGE, ["--score", other[0]], *self.command, "--score", *other)
        tally("engrun: values", self.count)

    def test_instruction_set(self):
        for name in ("", "sse", "AVX2", "avx10"):
            with self.subTest(name):
                self.fails(USAGE, ["portable", "avx2", "avx512"], *self.command, "--isa", name)

    def test_missing_value(self):
        for flag in ("-p", "-n", "--tokens", "--temperature", "--top-k", "--top-p", "--seed", "--logits", "--threads"):
            self.fails(USAGE, [flag, "value"], ENGRUN, self.engine, flag)

    def test_unknown(self):
        for flag in ("--frobnicate", "-x"):
            self.fails(USAGE, [flag, "--help"], *self.command, flag)
        for flag in ("--selftest", "--chat", "--ignore-eos", "--print-tokens", "--tokenize"):
            self.fails(USAGE, [flag], ENGRUN, self.engine, flag + "=yes")

    def test_combinations(self):
        self.fails(USAGE, ["engine file"], ENGRUN)
        self.fails(USAGE, [self.engine, "second.eng"], *self.command, "second.eng")
        for flags, words in ((["--tokens", "1"], ["-p", "--tokens"]), (["--tokenize"], ["-p", "--tokenize"]),
                             (["--selftest"], ["-p", "--selftest"]), (["--system", "x"], ["--system", "--chat"]),
                             (["--add-special"], ["--add-special", "--tokenize"]),
                             (["--skip-special"], ["--skip-special", "--detokenize"])):
            self.fails(USAGE, words, *self.command, *flags)
        self.fails(USAGE, ["--tokenize", "--detokenize"], ENGRUN, self.engine, "--tokenize", "--detokenize")
        self.fails(USAGE, ["--chat", "--tokens"], ENGRUN, self.engine, "--chat", "--tokens", "1")

    def test_prompt(self):
        result = run([ENGRUN, self.engine, "-p", "Once " * 2000])
        self.check_result(result, BAD_INPUT, ["prompt", "context", CONTEXT, "--max-context"], [ENGRUN])
        found = int(result.stderr.split("prompt has ")[1].split()[0])
        line = run([ENGRUN, self.engine, "--tokenize", "--add-special"], input=json.dumps("Once " * 2000) + "\n").stdout
        self.assertEqual(found, len(json.loads(line)), "the message counts the prompt's tokens")
        tokens = ",".join(["5"] * (CONTEXT + 1))
        self.fails(BAD_INPUT, [CONTEXT + 1, CONTEXT], ENGRUN, self.engine, "--tokens", tokens)
        self.fails(BAD_INPUT, [CONTEXT], ENGRUN, self.engine, input="Once " * 2000)
        short = build_engine(FABLES, "--max-context", "40")
        self.fails(BAD_INPUT, [41, 40, "--max-context"], ENGRUN, short, "--tokens", ",".join(["5"] * 41))

    def test_full_context(self):
        """A prompt that just fits gets one token; an answer ends at the context's limit."""
        short = build_engine(FABLES, "--max-context", "40")
        for prompt, answer in ((40, 1), (39, 2), (30, 11)):
            result = run([ENGRUN, short, "--tokens", ",".join(["5"] * prompt), "-n", "0", "--ignore-eos",
                          "--print-tokens"])
            self.assertEqual((result.rc, len(result.stdout.split())), (0, answer), result.stderr)

    def test_empty_prompt(self):
        self.assertEqual(run([ENGRUN, self.engine, "-p", "", "-n", "2"]).rc, 0, "the first token alone is a prompt")
        model = self.path("model")
        shutil.copytree(FABLES, model)
        tokenizer = {**read_json(model, "tokenizer.json"), "post_processor": None}
        os.chmod(self.path("model", "tokenizer.json"), 0o644)
        with open(self.path("model", "tokenizer.json"), "w", encoding="utf-8") as file:
            json.dump(tokenizer, file)
        engine = build_engine(model)
        self.fails(BAD_INPUT, ["prompt", "empty"], ENGRUN, engine, "-p", "")
        self.fails(BAD_INPUT, ["prompt", "empty"], ENGRUN, engine)
        self.fails(BAD_INPUT, ["prompt", "empty"], ENGRUN, engine, input="\n")

    def test_token_beyond_the_vocabulary(self):
        for token in (VOCABULARY, 2147483647):
            self.fails(BAD_INPUT, [token, VOCABULARY - 1], ENGRUN, self.engine, "--tokens", "1,%d" % token)

    def test_files(self):
        self.fails(BAD_INPUT, ["missing.eng"], ENGRUN, self.path("missing.eng"), "-p", "x")
        self.fails(BAD_INPUT, [self.folder], ENGRUN, self.folder, "-p", "x")
        self.fails(BAD_INPUT, ["/dev/null"], ENGRUN, "/dev/null", "-p", "x")
        self.fails(BAD_INPUT, ["missing.json"], ENGRUN, self.path("missing.json"), "--tokenize")
        self.fails(BAD_INPUT, ["config.json"], ENGRUN, os.path.join(FABLES, "config.json"), "-p", "x")
        self.fails(BAD_INPUT, ["config.json"], ENGRUN, os.path.join(FABLES, "config.json"), "--tokenize")
        os.mkfifo(self.path("fifo"))
        self.fails(BAD_INPUT, ["fifo"], ENGRUN, self.path("fifo"), "-p", "x")


class BenchAndInfoFlags(ErrorTest):
    @classmethod
    def setUpClass(cls):
        cls.engine = fables_engine()

    def test_bench_values(self):
        command = [ENGBENCH, self.engine]
        for flag in ("-p", "-n", "-b"):
            self.refuses_values(command, flag, ["", ",", "x", "1,x", "-1", "1.5", "99999999999"])
        self.refuses_values(command, "-b", ["0", "1,0"])
        self.refuses_values(command, "-c", NOT_NUMBERS)
        self.refuses_values(command, "-r", NOT_NUMBERS + ["0", "1001"])
        self.refuses_values(command, "--threads", NOT_NUMBERS + ["257"])
        self.fails(USAGE, ["portable", "avx2"], *command, "--isa", "sse")
        for flag in ("-p", "-n", "-b", "-c", "-r"):
            self.fails(USAGE, [flag, "value"], *command, flag)
        tally("engbench: values", self.count)

    def test_bench_limits(self):
        command = [ENGBENCH, self.engine]
        self.fails(BAD_INPUT, ["-b", 9, 8, "--max-batch"], *command, "-b", "1,9")
        self.fails(BAD_INPUT, ["-p", CONTEXT + 1, CONTEXT], *command, "-p", str(CONTEXT + 1))
        self.fails(BAD_INPUT, ["-n", CONTEXT], *command, "-n", str(CONTEXT + 1))
        self.fails(BAD_INPUT, ["-p", "-c", CONTEXT], *command, "-p", "100", "-c", str(CONTEXT - 99))

    def test_files_and_unknown_flags(self):
        for tool in (ENGBENCH, ENGINFO):
            self.fails(USAGE, ["engine file"], tool)
            self.fails(USAGE, ["a.eng", "b.eng"], tool, "a.eng", "b.eng")
            self.fails(USAGE, ["--frobnicate", "--help"], tool, self.engine, "--frobnicate")
            self.fails(USAGE, ["-x", "--help"], tool, self.engine, "-x")
            self.fails(USAGE, ["--json"], tool, self.engine, "--json=1")
            self.fails(BAD_INPUT, ["missing.eng"], tool, self.path("missing.eng"))
            self.fails(BAD_INPUT, [self.folder, "directory"], tool, self.folder)
            self.fails(BAD_INPUT, ["config.json"], tool, os.path.join(FABLES, "config.json"))


class CorruptEngines(ErrorTest):
    """Every tool reports damage anywhere in the file before it computes or prints anything."""

    TOOLS = [[ENGRUN, None, "-p", "Once", "-n", "1"], [ENGRUN, None, "--selftest"], [ENGINFO, None, "--verify"],
             [ENGBENCH, None, "-p", "4", "-n", "0", "-r", "1"]]

    def setUp(self):
        super().setUp()
        with open(build_engine(FABLES, "--max-batch", "1", "--prefill-chunks", "16"), "rb") as file:
            self.data = file.read()
        self.moments = random.Random(3)
        self.bad = self.path("bad.eng")

    def refused(self, data, trial, what):
        with open(self.bad, "wb") as file:
            file.write(data)
        tool = self.TOOLS[trial % len(self.TOOLS)]
        with self.subTest(what, tool=os.path.basename(tool[0])):
            self.fails(BAD_INPUT, [self.bad], *[word or self.bad for word in tool])

    def test_flipped_bits(self):
        for trial in range(20 if SANITIZED else 120):
            # Every other position is in the first pages, which hold more than weights.
            position = self.moments.randrange(8192 if trial % 2 else len(self.data))
            data = bytearray(self.data)
            data[position] ^= 1 << self.moments.randrange(8)
            self.refused(data, trial, "byte %d" % position)
        tally("flipped bits", self.count)

    def test_truncation(self):
        sizes = [0, 1, 7, 8, 63, 64, 4095, 4096, 4097, len(self.data) // 2, len(self.data) - 4096, len(self.data) - 1]
        sizes += [self.moments.randrange(len(self.data)) for _ in range(4 if SANITIZED else 20)]
        for trial, size in enumerate(sizes):
            self.refused(self.data[:size], trial, "%d bytes" % size)
        tally("truncations", self.count)

    def test_trailing_bytes(self):
        for trial, extra in enumerate((b"\0", b"x" * 4096)):
            self.refused(self.data + extra, trial, "%d more bytes" % len(extra))

    def test_other_file_in_its_place(self):
        for trial, data in enumerate((b"not an engine\n" * 1000, self.data[4096:], bytes(100000))):
            self.refused(data, trial, "other file %d" % trial)


if __name__ == "__main__":
    unittest.main()
