"""engbuild for a GPU from checkpoint to engine, without one: on the fake driver and the fake compiler of tests/fake_cuda,
whose kernels compute nothing. What the kernels compute is for bin/gpu-tests; here it is the path around them: targets,
the tuning cache, determinism, what is printed, and every way in which the machine can refuse."""

import json
import os
import random
import unittest

from harness import ENGBUILD, ENGINFO, ENGRUN, FABLES, SANITIZED, run, scratch, tally
from harness import _BUILT as BUILT

DRIVER = os.path.join(BUILT, "tests", "fake_cuda", "whole")
COMPILER = os.path.join(BUILT, "tests", "fake_cuda", "compiler")
LIBRARIES = os.path.join(BUILT, "tests", "fake_cuda", "libraries")
FAKE = {"LD_LIBRARY_PATH": DRIVER + ":" + COMPILER}
# Our own matmuls take a millisecond each: the library's win.
WITH_LIBRARY = {"LD_LIBRARY_PATH": DRIVER + ":" + COMPILER + ":" + LIBRARIES, "FAKE_CUDA_SLOW": "matmul_"}
SMALL = ["--max-batch", "4", "--batch-sizes", "1,4", "--prefill-chunks", "16", "--quiet"]
LEAN = SMALL + ["--lean"]


def contents(path):
    with open(path, "rb") as file:
        return file.read()


class CudaBuild(unittest.TestCase):
    def setUp(self):
        folder = scratch()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.cache = self.path("records")

    def path(self, name):
        return os.path.join(self.folder, name)

    def build(self, output, *options, env=None, rc=0, common=LEAN):
        result = run([ENGBUILD, "--model", FABLES, "-o", self.path(output), "--tuning-cache", self.cache, *common,
                      *options], env={**FAKE, **(env or {})})
        self.assertEqual(result.rc, rc, result.stderr)
        return result

    def info(self, output):
        result = run([ENGINFO, self.path(output), "--json", "--verify"])
        self.assertEqual(result.rc, 0, result.stderr)
        return json.loads(result.stdout)

    def test_a_gpu_is_the_default_target(self):
        self.build("m.eng", "--tune", "off")
        self.assertIn("cuda", json.dumps(self.info("m.eng")))
        done = run([ENGRUN, self.path("m.eng"), "--selftest"], env=FAKE)
        self.assertEqual(done.rc, 0, done.stderr)
        self.assertIn("selftest passed", done.stdout)
        self.build("c.eng", "--tune", "off", "--target", "cpu")
        self.assertNotEqual(contents(self.path("m.eng"))[:1 << 16], contents(self.path("c.eng"))[:1 << 16])

    def test_same_cache_same_bytes(self):
        first = json.loads(self.build("a.eng", "--json").stdout)
        second = json.loads(self.build("b.eng", "--json").stdout)
        self.assertGreater(first["tactics_measured"], 10)
        self.assertEqual(second["tactics_measured"], 0)
        self.assertEqual(contents(self.path("a.eng")), contents(self.path("b.eng")))
        tally("records", first["tactics_measured"])

    def test_without_measuring_two_builds_are_the_same(self):
        self.build("a.eng", "--tune", "off", "--tuning-cache", "none")
        self.build("b.eng", "--tune", "off", "--tuning-cache", "none")
        self.assertEqual(contents(self.path("a.eng")), contents(self.path("b.eng")))

    def test_libraries(self):
        # In front of a real one that the machine may have.
        nothing = self.path("nothing")
        os.mkdir(nothing)
        for name in ("libcublasLt.so.13", "libcublasLt.so.12"):
            open(os.path.join(nothing, name), "w").close()
        lean = self.build("lean.eng", env=WITH_LIBRARY)
        self.assertNotIn("cuBLASLt", lean.stderr)
        self.assertNotIn("library_plans", self.info("lean.eng"))
        missing = self.build("without.eng", common=SMALL, env={
            "LD_LIBRARY_PATH": FAKE["LD_LIBRARY_PATH"] + ":" + nothing, "FAKE_CUDA_SLOW": "matmul_"})
        self.assertIn("warning: only our own kernels take part: cuBLASLt: expected libcublasLt.so.13", missing.stderr)
        self.assertEqual(contents(self.path("lean.eng")), contents(self.path("without.eng")))

        first = json.loads(self.build("m.eng", "--json", common=SMALL, env=WITH_LIBRARY).stdout)
        self.assertGreater(first["tactics_measured"], 4)
        again = json.loads(self.build("again.eng", "--json", common=SMALL, env=WITH_LIBRARY).stdout)
        self.assertEqual(again["tactics_measured"], 0)
        self.assertEqual(contents(self.path("m.eng")), contents(self.path("again.eng")))
        libraries = self.info("m.eng")["library_plans"]
        self.assertEqual([plan["rows"] for plan in libraries], [1, 4, 16])
        self.assertGreater(libraries[0]["calls"], 4)
        self.assertIn("cublaslt", run([ENGINFO, self.path("m.eng"), "--tactics"]).stdout)

        generate = [ENGRUN, self.path("m.eng"), "--tokens", "1,2,3", "-n", "4", "--ignore-eos", "--print-tokens"]
        leaks = self.path("leaks")
        whole = run(generate, env={**WITH_LIBRARY, "FAKE_CUDA_LEAK_FILE": leaks})
        self.assertEqual((whole.rc, whole.stderr), (0, ""))
        counts = self.left_over(leaks)
        self.assertEqual([kind for kind, count in counts.items() if kind not in ("calls", "kernels") and count != "0"],
                         [])
        cases = [
            ({"LD_LIBRARY_PATH": DRIVER + ":" + nothing}, ["expected libcublasLt.so.13", "LD_LIBRARY_PATH"]),
            ({"FAKE_CUBLASLT_VERSION": "130200"}, ["expected version 130100", "found 130200"]),
            ({"FAKE_CUBLASLT_REFUSE": "1"}, ["refuses the recorded algorithm"]),
        ]
        for env, words in cases:
            with self.subTest(env=env):
                other = run(generate, env={**WITH_LIBRARY, **env})
                self.assertEqual(other.rc, 0, other.stderr)
                self.assertEqual(other.stdout, whole.stdout)
                self.assertIn("note: the engine's own kernels are used: ", other.stderr)
                for word in words:
                    self.assertIn(word, other.stderr)
        calls = int(counts["calls"])
        for call in random.Random(2).sample(range(1, calls + 1), 8 if SANITIZED else 60):
            with self.subTest(call=call):
                result = run(generate, env={**WITH_LIBRARY, "FAKE_CUDA_LEAK_FILE": leaks,
                                            "FAKE_CUDA_FAIL_CALL": str(call)})
                self.assertIn(result.rc, (0, 3))
                for kind, count in self.left_over(leaks).items():
                    if kind not in ("calls", "kernels"):
                        self.assertEqual(count, "0", "%s after call %d failed" % (kind, call))
        tally("library cases", len(cases) + 3)

    def test_nothing_is_written_by_what_only_prints(self):
        dry = self.build("d.eng", "--dry-run").stdout
        self.assertIn("nothing was written", dry)
        self.assertIn("bytes per KV page", dry)
        listed = self.build("d.eng", "--list-candidates").stdout
        for name in ("matmul_gemv", "matmul_wgmma", "rope_attention", "attention_prefill", "grid"):
            self.assertIn(name, listed)
        dumped = self.build("d.eng", "--dry-run", "--dump-after", "dead_code").stdout
        self.assertIn("rope_attention", dumped)
        self.assertIn("prologue=rms_norm", dumped)
        self.assertFalse(os.path.exists(self.path("d.eng")))

    def test_refusals(self):
        cases = [
            ({"FAKE_CUDA_DEVICES": "0"}, ["--target", "cuda"], 3, ["GPU"]),
            ({"FAKE_CUDA_DRIVER_VERSION": "11080"}, ["--target", "cuda"], 3, ["12.4", "11.8"]),
            ({"FAKE_CUDA_MEMORY": "1000000"}, ["--target", "cuda"], 3, ["bytes"]),
            ({"LD_LIBRARY_PATH": COMPILER}, ["--target", "cuda"], 3, ["driver", "--target cpu"]),
            ({"FAKE_NVRTC_REFUSE": "sample"}, ["--tune", "off"], 4, ["sample", "FAKE_NVRTC_REFUSE"]),
            ({}, ["--device", "1", "--target", "cuda"], 3, ["GPU 1"]),
            ({}, ["--gpus", "2"], 2, ["--gpus", "1 GPU"]),
            ({}, ["--gpus", "1", "--target", "cpu"], 2, ["--gpus"]),
            ({}, ["--dtype", "f32", "--target", "cuda"], 2, ["--dtype", "bf16"]),
            ({}, ["--kv-dtype", "f32", "--target", "cuda"], 2, ["--kv-dtype", "bf16"]),
            ({}, ["--device", "x"], 2, ["--device", "x"]),
        ]
        for env, options, rc, words in cases:
            with self.subTest(env=env, options=options):
                message = self.build("r.eng", *options, env=env, rc=rc).stderr
                for word in words:
                    self.assertIn(word, message)
                self.assertEqual(message.count("\n"), 1, message)
                self.assertFalse(os.path.exists(self.path("r.eng")))
        tally("refusals", len(cases))

    def left_over(self, path):
        return dict(line.split() for line in contents(path).decode().splitlines())

    def sweep(self, level, most, least, libraries=False):
        """Lets driver calls of a build fail, one in each run: it ends with an error and nothing is left anywhere."""
        leaks, output = self.path("leaks"), self.path("f.eng")
        command = [ENGBUILD, "--model", FABLES, "--target", "cuda", "-o", output, "--tune", level, "--tuning-cache",
                   "none", *(SMALL if libraries else LEAN)]
        env = {**(WITH_LIBRARY if libraries else FAKE), "FAKE_CUDA_LEAK_FILE": leaks}
        whole = run(command, env=env)
        self.assertEqual(whole.rc, 0, whole.stderr)
        os.unlink(output)
        counts = self.left_over(leaks)
        self.assertEqual(counts["misuse"], "0")
        calls, failed = int(counts["calls"]), 0
        chosen = random.Random(1).sample(range(1, calls + 1), min(calls, most))
        for call in chosen:
            with self.subTest(level=level, call=call):
                result = run(command, env={**env, "FAKE_CUDA_FAIL_CALL": str(call)})
                for kind, count in self.left_over(leaks).items():
                    if kind not in ("calls", "kernels"):
                        self.assertEqual(count, "0", "%s after call %d failed" % (kind, call))
                if result.rc == 0: # a call that gives something back may fail without harm
                    os.unlink(output)
                    continue
                failed += 1
                self.assertEqual(result.rc, 3, result.stderr)
                self.assertFalse(os.path.exists(output))
        # While candidates race, most calls may fail: that candidate is out.
        self.assertGreaterEqual(failed, least)
        tally("failing calls, --tune " + level, len(chosen))

    def test_every_failing_call_ends_the_build(self):
        self.sweep("off", 12 if SANITIZED else 200, 5)

    def test_failing_calls_while_tuning(self):
        self.sweep("quick", 4 if SANITIZED else 15, 0)
        self.sweep("quick", 4 if SANITIZED else 15, 0, libraries=True)


if __name__ == "__main__":
    unittest.main()
