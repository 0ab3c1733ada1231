# SPDX-License-Identifier: Apache-2.0
"""Engines for several GPUs, without a GPU: with the fake driver, whose kernels compute nothing. bin/gpu-tests checks
the results of the collectives; this test checks the steps around them: GPUs, peer access, memory of each, and every
failure."""

import json
import os
import sys
import time
import unittest

from harness import (BUILT, ENGBENCH, ENGBUILD, ENGINFO, ENGRUN, FABLES, LIBENG, MAKE_CHECKPOINT, SANITIZED, run, scratch,
                     succeed, tally)

FOLDERS = [os.path.join(BUILT, "tests", "fake_cuda", name) for name in ("whole", "compiler")]
# GPUs with little memory: the tuner fills as much of it as it is given with random numbers.
FAKE = {"LD_LIBRARY_PATH": ":".join(FOLDERS), "FAKE_CUDA_DEVICES": "4", "FAKE_CUDA_MEMORY": "100000000"}
SMALL = ["--max-batch", "4", "--batch-sizes", "1,4", "--prefill-chunks", "16", "--quiet", "--lean"]
RANKS = 2  # the shipped model has 6 heads and 2 KV heads


# So wide that ranks exchange more than one trip carries for a long prompt.
WIDE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 512,
        "num_hidden_layers": 3, "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 512, "tie_word_embeddings": False,
        "hidden_act": "silu", "torch_dtype": "bfloat16"}

# Nothing is normalised before the matmuls, so that the sum of the embedding is multiplied.
AFTER = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
         "max_position_embeddings": 512, "sliding_window": None}

# Two sessions of one engine, one after the other and at once.
SESSIONS = """
import ctypes, sys
eng = ctypes.CDLL(sys.argv[1])
error = ctypes.create_string_buffer(1024)
engine, first, second = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
assert eng.eng_open(sys.argv[2].encode(), None, ctypes.byref(engine), error) == 0, error.raw
for _ in range(2):
    assert eng.eng_session_create(engine, None, ctypes.byref(first), error) == 0, error.raw
    assert eng.eng_session_create(engine, None, ctypes.byref(second), error) != 0
    print(error.raw[4:].split(b"\\0")[0].decode())
    eng.eng_session_destroy(ctypes.byref(first))
eng.eng_close(ctypes.byref(engine))
"""


class CudaRanks(unittest.TestCase):
    def setUp(self):
        folder = scratch()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def build(self, output, *options, env=None, rc=0, gpus=RANKS, model=FABLES):
        result = run([ENGBUILD, "--model", model, "--target", "cuda", "--gpus", str(gpus), "-o", self.path(output),
                      "--tuning-cache", self.path("records"), *SMALL, *options], env={**FAKE, **(env or {})})
        self.assertEqual(result.rc, rc, result.stderr)
        return result

    def generate(self, engine, env=None):
        return run([ENGRUN, self.path(engine), "--tokens", "1,2,3", "-n", "6", "--ignore-eos", "--print-tokens"],
                   env={**FAKE, **(env or {})})

    @unittest.skipUnless(os.path.exists(MAKE_CHECKPOINT), "needs make_checkpoint")
    def test_rows_that_belong_to_ranks(self):
        """The blocks of their kernels wait for each other: a smaller GPU of the same kind must be refused."""
        os.mkdir(self.path("shape"))
        with open(self.path("shape/config.json"), "w", encoding="utf-8") as file:
            json.dump(WIDE, file)
        made = succeed([MAKE_CHECKPOINT, "--config", self.path("shape"), "-o", self.path("wide")])
        for gpus in (2, 4):
            with self.subTest(gpus=gpus):
                built = succeed([ENGBUILD, "--model", self.path("wide"), "--target", "cuda", "--gpus", str(gpus), "-o",
                                 self.path("w.eng"), "--tune", "off", "--lean", "--tuning-cache", "none", "--quiet",
                                 "--max-batch", "2", "--batch-sizes", "2", "--prefill-chunks", "16,2048"], env=FAKE)
                tactics = run([ENGINFO, self.path("w.eng"), "--tactics"], env=FAKE).stdout
                self.assertIn("all_reduce_two_shot", tactics)
                self.assertIn("halves=2", tactics)
                self.assertEqual(self.generate("w.eng").rc, 0)
                refused = self.generate("w.eng", env={"FAKE_CUDA_RESIDENT": "512"})
                self.assertEqual(refused.rc, 3, refused.stderr)
                for word in ("rank", "1056 thread blocks must be co-resident", "holds 528 of them", "build the engine"):
                    self.assertIn(word, refused.stderr)

    def test_builds_and_runs(self):
        for gpus in (1, 2, 3):
            for level in ("off", "quick"):
                with self.subTest(gpus=gpus, level=level):
                    if gpus == 3:  # heads can be split, KV heads and the MLP cannot
                        self.assertIn("3 GPUs", self.build("m.eng", "--tune", level, gpus=3, rc=1).stderr)
                        continue
                    self.build("m.eng", "--tune", level, gpus=gpus)
                    done = succeed([ENGRUN, self.path("m.eng"), "--selftest"], env=FAKE)
                    self.assertEqual(self.generate("m.eng").stdout.split(), ["0"] * 6)
                    os.unlink(self.path("m.eng"))

    @unittest.skipUnless(os.path.exists(MAKE_CHECKPOINT), "needs make_checkpoint")
    def test_norms_after_matmuls_alone(self):
        """olmo2: norms over all heads, too, on as many GPUs as KV heads and on more."""
        for family, gpus, level in (("exaone4", 2, "quick"), ("olmo2", 2, "quick"), ("olmo2", 4, "off")):
            with self.subTest(family, gpus=gpus), scratch() as folder:
                shape, model = os.path.join(folder, "shape"), os.path.join(folder, "model")
                os.mkdir(shape)
                with open(os.path.join(shape, "config.json"), "w", encoding="utf-8") as file:
                    json.dump({**AFTER, "model_type": family}, file)
                succeed([MAKE_CHECKPOINT, "--config", shape, "-o", model])
                self.build("n.eng", "--tune", level, gpus=gpus, model=model)
                done = succeed([ENGRUN, self.path("n.eng"), "--selftest"], env=FAKE)
                self.assertIn("selftest passed", done.stdout)
                launches = succeed([ENGINFO, self.path("n.eng"), "--tactics"]).stdout
                self.assertEqual("mean_squares" in launches, family == "olmo2")
                self.assertIn("sum_parts", launches)
                os.unlink(self.path("n.eng"))

    def test_same_cache_same_bytes(self):
        first = json.loads(self.build("a.eng", "--json").stdout)
        second = json.loads(self.build("b.eng", "--json").stdout)
        self.assertGreater(first["tactics_measured"], 10)
        self.assertEqual(second["tactics_measured"], 0)
        self.assertEqual(first["ranks"], RANKS)
        with open(self.path("a.eng"), "rb") as a, open(self.path("b.eng"), "rb") as b:
            self.assertEqual(a.read(), b.read())

    def test_what_the_file_holds(self):
        self.build("m.eng", "--tune", "off")
        info = json.loads(run([ENGINFO, self.path("m.eng"), "--json", "--verify"]).stdout)
        parallel = info["manifest"]["parallel"]
        self.assertEqual(parallel["ranks"], RANKS)
        self.assertGreater(parallel["comm_bytes"], 3 * 256)
        self.assertEqual(info["manifest"]["memory"]["weights_bytes"] % (RANKS << 12), 0)
        one = json.loads(self.build("d.eng", "--dry-run", "--json", gpus=1).stdout)
        two = json.loads(self.build("d.eng", "--dry-run", "--json").stdout)
        self.assertNotIn("parallel", json.dumps(one))
        self.assertEqual(two["memory"]["page_bytes"] * RANKS, one["memory"]["page_bytes"])
        self.assertLess(two["memory"]["weights_bytes"], one["memory"]["weights_bytes"] + (1 << 16))
        tactics = succeed([ENGINFO, self.path("m.eng"), "--tactics"])

    def test_bench(self):
        self.build("m.eng", "--tune", "off")
        done = succeed([ENGBENCH, self.path("m.eng"), "-p", "16", "-n", "4", "-b", "1,4", "-c", "16", "-r", "2", "--json"],
                       env=FAKE)
        json.loads(done.stdout)

    def test_refusals(self):
        self.build("m.eng", "--tune", "off")
        cases = [
            ({"FAKE_CUDA_DEVICES": "1"}, ["2 GPUs", "GPU 1", "CUDA_VISIBLE_DEVICES"]),
            ({"FAKE_CUDA_MEMORY": "2000000"}, ["bytes free", "exchange"]),
            ({"FAKE_CUDA_CAPABILITY": "80"}, ["9.0", "8.0"]),
        ]
        for env, words in cases:
            with self.subTest(env=env):
                refused = self.generate("m.eng", env)
                self.assertEqual(refused.rc, 3, refused.stderr)
                for word in words:
                    self.assertIn(word, refused.stderr)
                self.assertEqual(refused.stderr.count("\n"), 1, refused.stderr)
                if "FAKE_CUDA_CAPABILITY" in env or "FAKE_CUDA_MEMORY" in env:
                    continue
                self.assertIn(words[0], self.build("r.eng", env=env, rc=3).stderr)
                self.assertFalse(os.path.exists(self.path("r.eng")))
        tally("refusals", len(cases))

    def test_without_peer_access(self):
        """Ranks then exchange data through host memory, which is reported; a build treats it as another tuning
        problem."""
        leaks = self.path("leaks")
        detours = [({"FAKE_CUDA_NO_PEERS": "1"}, [], ["GPU 0", "no access", "GPU 1", "topo"]),
                   ({"FAKE_CUDA_NO_MAPPING": "1"}, [], ["GPU 0", "virtual memory management"]),
                   ({}, ["--no-peer-access"], ["no_peer_access"])]
        measured = [json.loads(self.build("m.eng", "--json").stdout)["tactics_measured"]]
        for env, options, words in detours:
            built = self.build("d.eng", "--json", *options, env=env)
            measured.append(json.loads(built.stdout)["tactics_measured"])
            self.assertEqual("exchange through the host's memory" in built.stderr, not options, built.stderr)
            for engine in ("m.eng", "d.eng"):
                with self.subTest(env=env, engine=engine):
                    done = succeed([ENGRUN, self.path(engine), "--tokens", "1,2,3", "-n", "6", "--ignore-eos",
                                    "--print-tokens", *options], env={**FAKE, **env, "FAKE_CUDA_LEAK_FILE": leaks})
                    self.assertEqual(done.stdout.split(), ["0"] * 6)
                    for word in ["note: the GPUs exchange data through host memory", *words]:
                        self.assertIn(word, done.stderr)
                    self.assert_nothing_left(leaks)
        bench = succeed([ENGBENCH, self.path("m.eng"), "-p", "0", "-n", "2", "-c", "16", "-r", "2", "--no-peer-access"],
                        env=FAKE)
        self.assertIn("through host memory", bench.stderr)
        # Races run on one GPU; only whole plans show the effect of the link.
        self.assertGreater(measured[0], measured[1])
        self.assertGreater(measured[1], 0)
        self.assertEqual(measured[2], 0)

    def test_which_gpus(self):
        self.build("m.eng", "--tune", "off")
        for devices in ("0,1", "2,3", "3,0", "2", "1"):
            with self.subTest(devices=devices):
                for program in ([ENGRUN, self.path("m.eng"), "--tokens", "1", "-n", "2", "--ignore-eos"],
                                [ENGBENCH, self.path("m.eng"), "-p", "0", "-n", "2", "-c", "16", "-r", "2"]):
                    done = succeed([*program, "--device", devices], env=FAKE)
        cases = [("3", 3, ["2 GPUs", "GPU 4"]), ("0,0", 2, ["GPU 0", "twice"]), ("0,1,2", 2, ["the 2 GPUs", "3"]),
                 ("0,x", 2, ["--device", "x"]), (",".join("0" * 17), 2, ["--device", "16", "17"])]
        for devices, rc, words in cases:
            with self.subTest(devices=devices):
                refused = run([ENGRUN, self.path("m.eng"), "--tokens", "1", "--device", devices], env=FAKE)
                self.assertEqual(refused.rc, rc, refused.stderr)
                for word in words:
                    self.assertIn(word, refused.stderr)

    @unittest.skipIf(SANITIZED, "the library wants its sanitizer in the program")
    def test_one_session_at_a_time(self):
        self.build("m.eng", "--tune", "off")
        done = succeed([sys.executable, "-c", SESSIONS, LIBENG, self.path("m.eng")], env=FAKE)
        self.assertEqual(done.stdout.count("expected no other session"), 2, done.stdout)

    @unittest.skipIf(SANITIZED, "what a GPU that hangs may still touch is never freed")
    def test_a_gpu_that_hangs(self):
        self.build("m.eng", "--tune", "off")
        start = time.monotonic()
        done = self.generate("m.eng", {"FAKE_CUDA_HANG": "1"})
        self.assertLess(time.monotonic() - start, 60)
        self.assertEqual(done.rc, 3, done.stderr)
        self.assertIn("rank 0: GPU 0: its step did not end within 9", done.stderr)

    def left_over(self, path):
        with open(path, encoding="utf-8") as file:
            return dict(line.split() for line in file.read().splitlines())

    def assert_nothing_left(self, path):
        left = self.left_over(path)
        del left["calls"], left["kernels"]
        self.assertEqual({kind: count for kind, count in left.items() if count != "0"}, {})

    def test_driver_calls_that_fail(self):
        """Each driver call fails in turn: an error or none; nothing hangs, and nothing leaks except the object of a
        failed release."""
        leaks = self.path("leaks")
        self.build("m.eng", "--tune", "off", env={"FAKE_CUDA_LEAK_FILE": leaks})
        self.assert_nothing_left(leaks)
        whole = self.generate("m.eng", {"FAKE_CUDA_LEAK_FILE": leaks})
        self.assertEqual(whole.rc, 0, whole.stderr)
        self.assert_nothing_left(leaks)
        calls = int(self.left_over(leaks)["calls"])
        failed = 0
        # The order of calls of several threads differs each time, so a sample is as good as all.
        for call in range(1, calls, max(1, calls // 60)):
            with self.subTest(call=call):
                done = self.generate("m.eng", {"FAKE_CUDA_FAIL_CALL": str(call), "FAKE_CUDA_LEAK_FILE": leaks})
                self.assertIn(done.rc, (0, 3), done.stderr)
                self.assertEqual(done.stderr.count("\n"), done.rc != 0, done.stderr)
                failed += done.rc != 0
        self.assertGreater(failed, 30)
        tally("failing calls", failed)


if __name__ == "__main__":
    unittest.main()
