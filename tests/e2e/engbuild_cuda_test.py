# SPDX-License-Identifier: Apache-2.0
"""engbuild for a GPU, from checkpoint to engine, without a GPU: with the fake driver and fake compiler of
tests/fake_cuda, whose kernels compute nothing. bin/gpu-tests checks the results of kernels; this test checks the steps
around them: targets, the tuning cache, determinism, output, and every failure of the machine."""

import glob
import json
import os
import random
import tempfile
import unittest

from harness import (BUILT, ENGBUILD, ENGINFO, ENGRUN, FABLES, MAKE_CHECKPOINT, SANITIZED, contents, needs_shared, output_json, read_json, run, sanitized_elsewhere, scratch,
                     shared, succeed, tally, write)
from seeded_checkpoint import write_checkpoint

DRIVER = os.path.join(BUILT, "tests", "fake_cuda", "whole")
COMPILER = os.path.join(BUILT, "tests", "fake_cuda", "compiler")
LIBRARIES = os.path.join(BUILT, "tests", "fake_cuda", "libraries")
REFERENCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "references")
# A GPU with little memory: the tuner fills as much of it as it is given with random numbers.
FAKE = {"LD_LIBRARY_PATH": DRIVER + ":" + COMPILER, "FAKE_CUDA_MEMORY": "100000000"}
# Room for an engine of the shipped model, not for the model in bf16 beside it.
LITTLE = {"FAKE_CUDA_MEMORY": "5000000"}
# Our own matmuls and attentions take a millisecond each, so that the libraries win.
WITH_LIBRARY = {**FAKE, "LD_LIBRARY_PATH": DRIVER + ":" + COMPILER + ":" + LIBRARIES,
                "FAKE_CUDA_SLOW": "matmul_,attention_prefill,attention_generic"}
CUBLASLT, CUDNN = ("libcublasLt.so.13", "libcublasLt.so.12"), ("libcudnn.so.9",)
# A short context: the tuner fills the whole KV cache before each race.
SMALL = ["--max-batch", "4", "--batch-sizes", "1,4", "--prefill-chunks", "16", "--max-context", "128", "--quiet"]
LEAN = SMALL + ["--lean"]


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
        result = succeed([ENGINFO, self.path(output), "--json", "--verify"])
        return json.loads(result.stdout)

    def test_a_gpu_is_the_default_target(self):
        self.build("m.eng", "--tune", "off")
        self.assertIn("cuda", json.dumps(self.info("m.eng")))
        done = succeed([ENGRUN, self.path("m.eng"), "--selftest"], env=FAKE)
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

    def matrices(self, output):
        return {name: kind["tensors"] for name, kind in self.info(output)["matrices"].items()}

    @sanitized_elsewhere
    def test_codes(self):
        """--dtype, --head-dtype and --keep as for the CPU, whose accuracy engines have that leave no room for the model in bf16 on their GPU."""
        cases = [(["int8"], {"int8_channel": 21}), (["int8", "--group", "64"], {"int8_g64": 21}), (["fp8"], {"e4m3_channel": 21}),
                 (["mxfp4"], {"mxfp4": 20, "int8_channel": 1}), (["int4", "--group", "32"], {"int4_g32": 20, "int8_channel": 1}),
                 (["nvfp4", "--head-dtype", "bf16", "--keep", "*.down_proj.weight=bf16,*.layers.0.*=int8"],
                  {"nvfp4": 12, "int8_channel": 3, "BF16": 6})]
        for flags, expected in cases[-2 if SANITIZED else 0:]:
            with self.subTest(flags):
                common = [*LEAN, "--tune", "off", "--dtype", *flags]
                report = json.loads(self.build("m.eng", "--json", common=common, env=LITTLE).stdout)
                self.assertEqual(self.matrices("m.eng"), expected)
                done = succeed([ENGRUN, self.path("m.eng"), "--selftest"], env=FAKE)
                self.assertIn("selftest passed", done.stdout)
                on_cpu = json.loads(self.build("c.eng", "--json", "--target", "cpu", common=common).stdout)
                self.assertEqual(report["accuracy"]["tokens"], on_cpu["accuracy"]["tokens"])
                # Matrices without codes are not those of the CPU.
                self.assertAlmostEqual(report["accuracy"]["kl"], on_cpu["accuracy"]["kl"], delta=1e-3)
                self.assertEqual(sorted(name for name in os.listdir(self.folder) if "quantised" in name), [])
        dumped = self.build("d.eng", "--dry-run", "--dtype", "int4", "--dump-after", "dead_code", common=LEAN).stdout
        self.assertEqual(dumped.count("rope_table"), 3) # of the engine's graphs alone
        dumped = self.build("d.eng", "--dtype", "int4", "--tune", "off", "--dump-after", "dead_code", common=LEAN).stdout
        self.assertEqual(dumped.count("rope_table"), 3)

    def test_kv_cache_of_8_bits(self):
        plain = json.loads(self.build("p.eng", "--json", "--tune", "off").stdout)
        for flag, name, options in (("fp8", "e4m3_channel", []), ("int8", "int8_channel", ["--tune", "off", "--gpus", "2"])):
            with self.subTest(flag):
                report = json.loads(self.build("m.eng", "--json", "--kv-dtype", flag, *options,
                                               env={"FAKE_CUDA_DEVICES": "2"}).stdout)
                ranks = 2 if options else 1
                self.assertIn("KV cache %s\n" % name, succeed([ENGINFO, self.path("m.eng")]).stdout)
                # Codes and a scale for each row of 32: 36 bytes of 64.
                self.assertEqual(report["memory"]["page_bytes"] * ranks, plain["memory"]["page_bytes"] * 36 // 64)
                done = succeed([ENGRUN, self.path("m.eng"), "--selftest"], env={**FAKE, "FAKE_CUDA_DEVICES": "2"})
                self.assertIn("selftest passed", done.stdout)
        # cuDNN's attention knows no codes.
        self.build("m.eng", "--kv-dtype", "fp8", common=SMALL, env=WITH_LIBRARY)

    @sanitized_elsewhere
    def test_state_spaces(self):
        """Built and run by one GPU and by two, which share the columns of a norm; tuned; attention beside a state space."""
        for name, flags in (("granitemoehybrid", ["--tune", "off", "--gpus", "2"]), ("nemotron_h", []), ("nemotron_h-experts", ["--gpus", "2"]),
                            ("falcon_h1", ["--tune", "off"])):
            with self.subTest(name):
                os.mkdir(self.path(name))
                write_checkpoint(self.path(name), read_json(REFERENCES, name + ".json"))
                env = {"FAKE_CUDA_DEVICES": "2"}
                self.build("m.eng", "--model", self.path(name), *flags, env=env)
                done = succeed([ENGRUN, self.path("m.eng"), "--selftest"], env={**FAKE, **env})
                self.assertIn("selftest passed", done.stdout)
                self.assertIn("state_space", run([ENGINFO, self.path("m.eng"), "--tactics"]).stdout)

    @needs_shared("models", "hf-tiny")
    @sanitized_elsewhere
    def test_recurrent_state(self):
        """Two copies of it on a GPU; built, tuned and run, by one GPU and two."""
        for name in ("lfm2", "qwen3_next"):
            model = ["--model", shared("models", "hf-tiny", name)]
            state = {}
            for target in ("cpu", "cuda"):
                for batch in ("4", "5"):
                    report = json.loads(self.build("d.eng", *model, "--dry-run", "--json", "--target", target, "--max-batch", batch,
                                                   "--batch-sizes", "1", common=["--max-context", "64", "--quiet"]).stdout)
                    state[target, batch] = report["memory"]["state_bytes"]
            with open(shared("models", "hf-tiny", name, "config.json")) as file:
                vocab = json.load(file)["vocab_size"]
            options = 4 * (1028 + vocab) + 4 * ((vocab + 31) // 32)  # logit biases, counts and allowed tokens
            slot = {target: state[target, "5"] - state[target, "4"] - options for target in ("cpu", "cuda")}
            self.assertGreater(slot["cuda"], 2 * slot["cpu"] - 512)
            self.assertLess(slot["cuda"], 2 * slot["cpu"] + 512)
            for flags in ([], ["--tune", "off", "--gpus", "2"] if name == "qwen3_next" else ["--tune", "off", "--compute", "bf16"]):
                with self.subTest(name, flags=flags):
                    env = {"FAKE_CUDA_DEVICES": "2"}
                    self.build("m.eng", *model, *flags, env=env)
                    done = succeed([ENGRUN, self.path("m.eng"), "--selftest"], env={**FAKE, **env})
                    self.assertIn("selftest passed", done.stdout)

    @needs_shared("models", "hf-tiny")
    @sanitized_elsewhere
    def test_drafts_by_the_model_s_own_layer(self):
        """Built, tuned and run, by one GPU and two; what enginfo and the verification of an engine say of it."""
        for name in ("glm4_moe", "deepseek_v3", "ernie4_5_moe", "qwen3_next"):
            config, model = self.path(name + ".config"), self.path(name)
            with open(shared("models", "hf-tiny", name, "config.json"), encoding="utf-8") as file:
                keys = {**json.load(file), "num_nextn_predict_layers": 1}
            os.mkdir(config)
            with open(os.path.join(config, "config.json"), "w", encoding="utf-8") as file:
                json.dump(keys, file)
            succeed([MAKE_CHECKPOINT, "--config", config, "-o", model, "--mtp"])
            for flags in ([], ["--tune", "off", "--gpus", "2"]):
                with self.subTest(name, flags=flags):
                    env = {"FAKE_CUDA_DEVICES": "2"}
                    self.build("m.eng", "--model", model, "--mtp", *flags, env=env)
                    info = self.info("m.eng")
                    self.assertTrue(info["mtp"])
                    self.assertIn("the last layer predicts", succeed([ENGINFO, self.path("m.eng")]).stdout)
                    done = succeed([ENGRUN, self.path("m.eng"), "--selftest"], env={**FAKE, **env})
                    self.assertIn("selftest passed", done.stdout)
                    plain, drafted = (succeed([ENGRUN, self.path("m.eng"), "--tokens", "5,6,7", "-n", "20", "--print-tokens", "--ignore-eos",
                                               *speculate], env={**FAKE, **env}).stdout for speculate in ([], ["--speculate", "3"]))
                    self.assertEqual(len(plain.split()), len(drafted.split()))

    def test_fp8_activations_in_plans_of_many_rows_alone(self):
        small = ["--dtype", "fp8", "--tune", "off", "--no-accuracy"]
        result = self.build("m.eng", "--compute", "fp8", *small)
        self.assertIn("warning: --compute fp8: no plan has 32 rows or more (--max-batch, --prefill-chunks)", result.stderr)
        self.assertNotIn("compute  ", result.stdout)
        self.build("b.eng", *small)
        self.assertEqual(contents(self.path("m.eng")), contents(self.path("b.eng")))

    @sanitized_elsewhere
    def test_engines_with_codes_of_activations(self):
        """--compute fp8 and int8: with one GPU and two, tuned and not; plans of fewer rows are those of a build without it."""
        for codes, flags in (("fp8", ["--no-accuracy"]), ("fp8", ["--tune", "off", "--gpus", "2"]), ("int8", ["--no-accuracy"]),
                             ("int8", ["--tune", "off", "--gpus", "2"]), ("int4", ["--group", "64", "--no-accuracy"])):
            compute, rows = ("int8", 16) if codes == "int4" else (codes, 32)
            many = ["--dtype", codes, "--compute", compute, "--max-batch", "32", "--batch-sizes", "1,16,32", "--prefill-chunks", "16,64"]
            with self.subTest(codes, flags=flags):
                env = {"FAKE_CUDA_DEVICES": "2"}
                report = json.loads(self.build("m.eng", *many, *flags, "--json", env=env).stdout)
                self.assertEqual(report["compute"], {compute + "_from_rows": rows, "as_checkpoint": False,
                                                     "bf16_experts": False, "bf16_latent_blocks": False})
                plain = json.loads(self.build("p.eng", *many, *flags, "--compute", "bf16", "--json", env=env).stdout)
                self.assertNotIn("compute", plain)
                self.assertEqual([plan["rows"] for plan, other in zip(report["plans"], plain["plans"])
                                  if plan["launches"] != other["launches"]],
                                 [count for count in (16, 32, 16, 64) if count >= rows])
                self.assertIn("compute:    %s in plans of %d rows or more, else bf16\n" % (compute, rows),
                              succeed([ENGINFO, self.path("m.eng")]).stdout)
                self.assertIn("tolerance 0.3", succeed([ENGRUN, self.path("m.eng"), "--selftest"], env={**FAKE, **env}).stdout)
                self.assertIn("tolerance 0.03", succeed([ENGRUN, self.path("p.eng"), "--selftest"], env={**FAKE, **env}).stdout)

    @needs_shared("models", "quantised")
    def test_codes_of_activations_are_the_default(self):
        for name, codes in (("ct-fp8-channel", "fp8"), ("fp8-block", "fp8"), ("fp8-tensor-static", "fp8"), ("ct-w8a8-int", "int8")):
            with self.subTest(name):
                result = self.build("m.eng", "--model", shared("models", "quantised", name), "--dry-run", "--prefill-chunks", "32")
                self.assertEqual(result.stderr, "")
                self.assertIn("\ncompute    %s from 32 rows on (as the checkpoint's activations), else bf16\n" % codes, result.stdout)

    @needs_shared("models", "quantised")
    def test_matrices_without_codes_of_activations_are_named(self):
        for name, left in (("fp8-block", False), ("moe-fp8-block", True)):
            with self.subTest(name):
                result = self.build("m.eng", "--model", shared("models", "quantised", name), "--dry-run", "--prefill-chunks", "32")
                self.assertEqual("\n           matrices of experts are multiplied in bf16\n" in result.stdout, left)

    @needs_shared("models", "quantised")
    def test_codes_of_activations_of_a_checkpoint(self):
        """Where the GPU has no kernels for them, the build says so, unless it need not decide."""
        older, large = {"FAKE_CUDA_CAPABILITY": "80"}, ["--dry-run", "--prefill-chunks", "32"]
        for name, codes in (("ct-fp8-channel", "fp8"), ("fp8-block", "fp8"), ("fp8-tensor-static", "fp8"), ("ct-w8a8-int", "int8")):
            model = ["--model", shared("models", "quantised", name)]
            with self.subTest(name):
                result = self.build("m.eng", *model, *large, env=older)
                self.assertIn("warning: the checkpoint's activations are %s, but this engine's are bf16: no kernels for compute "
                              "capability 8.0" % codes, result.stderr)
                self.assertIn("codes are kept, activations are not quantised", result.stdout)
                message = self.build("m.eng", *model, *large, "--compute", codes, env=older, rc=1).stderr
                self.assertIn("no kernels for compute capability 8.0", message)
                for flags in (["--compute", "bf16"], ["--dtype", "bf16"], ["--prefill-chunks", "16"]):
                    result = self.build("m.eng", *model, *large, *flags, env=older)
                    self.assertEqual(result.stderr, "")
                    self.assertNotIn("compute  ", result.stdout)

    @sanitized_elsewhere
    def test_accuracy_on_the_gpu(self):
        """Where the model fits in bf16 beside the engine; the kernels of this driver find the same for all weights."""
        for more in ([], ["--calibrate", "self"]):
            with self.subTest(more):
                report = json.loads(self.build("m.eng", "--json", "--dtype", "int4", *more, "--tune", "off", common=LEAN).stdout)
                accuracy = report["accuracy"]
                self.assertEqual("calibration_tokens" in accuracy, "--calibrate" in more)
                self.assertEqual((accuracy["tokens"], accuracy["kl"], accuracy["top1"]), (1024, 0, 1)) # four sequences, twice
                self.assertEqual(sorted(name for name in os.listdir(self.folder) if "quantised" in name), [])

    @sanitized_elsewhere
    def test_accuracy_on_the_gpu_of_few_rows(self):
        """At least 1024 tokens; the context has 128."""
        for sizes, tokens in (("1", 1024), ("1,2", 1024), ("1,8", 1024)):
            report = json.loads(self.build("m.eng", "--json", "--dtype", "int8", "--tune", "off", "--batch-sizes", sizes, "--max-batch",
                                           "8").stdout)
            self.assertEqual((report["accuracy"]["tokens"], report["accuracy"]["kl"]), (tokens, 0), sizes)

    @sanitized_elsewhere
    def test_accuracy_without_a_kernel_for_the_gpu(self):
        """The model in bf16 needs kernels that the engine has not; where they do not compile the processor measures."""
        common = ["--json", "--dtype", "int8", "--tune", "off", "--threads", "1", "--tuning-cache", "none"]
        on_cpu = json.loads(self.build("c.eng", *common, env=LITTLE).stdout)["accuracy"]
        for most in range(1, 200): # the engine's kernels, then the other model's
            result = run([ENGBUILD, "--model", FABLES, "-o", self.path("m.eng"), *LEAN, *common], env={**FAKE, "FAKE_NVRTC_MOST": str(most)})
            if result.rc == 0:
                break
        self.assertEqual(result.rc, 0)
        self.assertIn("the accuracy of the weights is measured on the processor", result.stderr)
        self.assertEqual(json.loads(result.stdout)["accuracy"], on_cpu)

    @sanitized_elsewhere
    def test_calibrated_codes(self):
        found = {}
        for more in ([], ["--calibrate", "self"], ["--calibrate", "self", "--gpus", "2"]):
            report = json.loads(self.build("m.eng", "--json", "--dtype", "int4", "--group", "32", *more, "--tune", "off", common=LEAN,
                                           env={**LITTLE, "FAKE_CUDA_DEVICES": "2"}).stdout)
            self.assertEqual("calibration_tokens" in report["accuracy"], bool(more))
            found[" ".join(more)] = report["accuracy"]["kl"]
            self.assertEqual(sorted(name for name in os.listdir(self.folder) if "quantised" in name or "calib" in name), [])
        self.assertLess(max(kl for more, kl in found.items() if more), found[""])

    @sanitized_elsewhere
    def test_tuned_codes(self):
        first = json.loads(self.build("a.eng", "--json", "--dtype", "int4", common=LEAN).stdout)
        second = json.loads(self.build("b.eng", "--json", "--dtype", "int4", common=LEAN).stdout)
        plain = json.loads(self.build("c.eng", "--json", common=LEAN).stdout)
        self.assertGreater(first["tactics_measured"], 5)
        self.assertEqual(second["tactics_measured"], 0)
        self.assertGreater(plain["tactics_measured"], 5) # other problems
        self.assertEqual(contents(self.path("a.eng")), contents(self.path("b.eng")))
        self.assertLess(first["memory"]["weights_bytes"], 0.6 * plain["memory"]["weights_bytes"])
        # cuBLASLt knows no codes; cuDNN's attention does not depend on them.
        self.build("m.eng", "--dtype", "int4", common=SMALL, env=WITH_LIBRARY)
        self.assertEqual(self.libraries_of("m.eng"), ["attention_cudnn"])

    @needs_shared("models", "quantised")
    def test_codes_of_a_checkpoint(self):
        kept = {"awq-w4-g32": "int4_g32_zeros", "ct-nvfp4": "nvfp4", "fp8-block": "e4m3_channel", "gptq-w8-channel-v2": "int8_channel",
                "gptq-w4-g64-asym-actorder": "int4_g64_zeros"}
        for name, expected in kept.items():
            model = shared("models", "quantised", name)
            with self.subTest(name):
                report = self.build("m.eng", "--model", model, "--tune", "off", common=LEAN).stdout
                self.assertEqual(self.info("m.eng")["manifest"]["model"]["weight_dtype"], expected)
                self.assertIn("codes are kept", report)
                self.assertNotIn("act-order", report)
                self.assertNotIn("accuracy", report)
                self.assertLessEqual(set(self.matrices("m.eng")), {expected, "BF16", "e4m3_block128"})
                succeed([ENGRUN, self.path("m.eng"), "--selftest"], env=FAKE)
                for dtype, label in (("fp16", "F16"), ("bf16", "BF16")):
                    self.build("m.eng", "--model", model, "--dtype", dtype, "--tune", "off", common=LEAN)
                    self.assertEqual(list(self.matrices("m.eng")), [label])
        message = self.build("r.eng", "--model", shared("models", "quantised", "awq-w4-g32"), "--dtype", "fp16", "--keep",
                             "*.down_proj.weight=auto", common=LEAN, rc=1).stderr
        self.assertIn("codes (int4_g32_zeros) as BF16, and the other matrices are F16", message)

    @sanitized_elsewhere
    def test_without_measuring_two_builds_are_the_same(self):
        self.build("a.eng", "--tune", "off", "--tuning-cache", "none")
        self.build("b.eng", "--tune", "off", "--tuning-cache", "none")
        self.assertEqual(contents(self.path("a.eng")), contents(self.path("b.eng")))

    def without(self, *names):
        """WITH_LIBRARY with these files, which are no libraries, first in the search path."""
        folder = tempfile.mkdtemp(dir=self.folder)
        for name in names:
            open(os.path.join(folder, name), "w").close()
        return {**WITH_LIBRARY, "LD_LIBRARY_PATH": ":".join((DRIVER, COMPILER, folder, LIBRARIES))}

    def libraries_of(self, output):
        """Returns the library tactics that the engine's records name."""
        tactics = run([ENGINFO, self.path(output), "--tactics"]).stdout
        return [name for name in ("cublaslt", "attention_cudnn") if name in tactics]

    def blobs(self, cache="records"):
        return sorted(glob.glob(self.path(cache + ".kernels/*.blob")))

    def build_twice(self):
        """Builds m.eng, and again from the cache."""
        first = json.loads(self.build("m.eng", "--json", common=SMALL, env=WITH_LIBRARY).stdout)
        again = json.loads(self.build("again.eng", "--json", common=SMALL, env=WITH_LIBRARY).stdout)
        self.assertEqual(again["tactics_measured"], 0)
        self.assertEqual(contents(self.path("m.eng")), contents(self.path("again.eng")))
        return first["tactics_measured"]

    def test_libraries(self):
        lean = self.build("lean.eng", env=WITH_LIBRARY)
        self.assertNotIn("cuBLASLt", lean.stderr)
        self.assertNotIn("cuDNN", lean.stderr)
        self.assertNotIn("library_plans", self.info("lean.eng"))
        missing = self.build("without.eng", common=SMALL, env=self.without(*CUBLASLT, *CUDNN)).stderr.splitlines()
        self.assertEqual(len(missing), 2, missing)
        for op, line in zip(("matmul: cuBLASLt: expected libcublasLt", "attention: cuDNN: expected libcudnn"), missing):
            self.assertIn("warning: only our own kernels take part in " + op, line)
        self.assertEqual(contents(self.path("lean.eng")), contents(self.path("without.eng")))
        self.assertEqual(self.blobs(), [])

        self.assertGreater(self.build_twice(), 4)
        # The cache says that the library won, but the library is missing: the result is that of a lean build.
        self.build("gone.eng", common=SMALL, env=self.without(*CUBLASLT, *CUDNN))
        self.build("lean-again.eng", env=WITH_LIBRARY)
        self.assertEqual(contents(self.path("gone.eng")), contents(self.path("lean-again.eng")))
        libraries = self.info("m.eng")["library_plans"]
        self.assertEqual([plan["rows"] for plan in libraries], [1, 4, 16])
        self.assertGreater(libraries[0]["calls"], 4)
        self.assertEqual(self.libraries_of("m.eng"), ["cublaslt", "attention_cudnn"])
        tactics = json.loads(run([ENGINFO, self.path("m.eng"), "--tactics", "--json"]).stdout)["tactics"]
        self.assertEqual([plan["rows"] for plan in tactics if plan["with_libraries"]], [1, 4, 16])

        leaks = self.path("leaks")
        whole = run(self.generate("m.eng"), env={**WITH_LIBRARY, "FAKE_CUDA_LEAK_FILE": leaks})
        self.assertEqual((whole.rc, whole.stderr), (0, ""))
        counts = self.left_over(leaks)
        self.assertEqual([kind for kind, count in counts.items() if kind not in ("calls", "kernels") and count != "0"],
                         [])
        cases = [
            (self.without(*CUBLASLT), ["expected libcublasLt.so.13", "LD_LIBRARY_PATH"]),
            ({"FAKE_CUBLASLT_VERSION": "130200"}, ["expected version 130100", "found 130200", "engine again"]),
            ({"FAKE_CUBLASLT_REFUSE": "1"}, ["refuses the recorded algorithm"]),
            ({"FAKE_CUBLASLT_FAIL": "1"}, ["cublasLtMatmul failed with status 13"]),
            (self.without(*CUDNN), ["expected libcudnn.so.9", "LD_LIBRARY_PATH"]),
            ({"FAKE_CUDNN_VERSION": "92000"}, ["expected version 9.19.0", "found 9.20.0", "engine again"]),
            ({"FAKE_CUDNN_REFUSE": "plan"}, ["making an attention plan", "install NVRTC"]),
        ]
        for env, words in cases:
            with self.subTest(env=env):
                other = succeed(self.generate("m.eng"), env={**WITH_LIBRARY, **env})
                self.assertEqual(other.stdout, whole.stdout)
                self.assertIn("note: the engine's own kernels are used: ", other.stderr)
                self.assertNotIn("left over", other.stderr)
                for word in words:
                    self.assertIn(word, other.stderr)
        # Without library tactics no library is opened.
        lean = run([*self.generate("m.eng"), "--no-libraries"], env={**WITH_LIBRARY, "FAKE_CUBLASLT_FAIL": "1"})
        self.assertEqual((lean.rc, lean.stdout, lean.stderr), (0, whole.stdout, ""))
        calls = int(counts["calls"])
        for call in random.Random(2).sample(range(1, calls + 1), 8 if SANITIZED else 20):
            with self.subTest(call=call):
                result = run(self.generate("m.eng"), env={**WITH_LIBRARY, "FAKE_CUDA_LEAK_FILE": leaks,
                                                          "FAKE_CUDA_FAIL_CALL": str(call)})
                self.assertIn(result.rc, (0, 3))
                self.assertNotIn("left over", result.stderr)
                # Without a message the failing call may be one of the last, which frees memory.
                silent = ("memory", "host_memory", "misuse") if (result.rc, result.stderr) == (0, "") else ()
                for kind, count in self.left_over(leaks).items():
                    if kind not in ("calls", "kernels", *silent):
                        self.assertEqual(count, "0", "%s after call %d failed" % (kind, call))
        tally("library cases", len(cases) + 3)

    @sanitized_elsewhere
    def test_either_library_alone(self):
        for hidden, there, record in ((CUDNN, "cublaslt", "cublas"), (CUBLASLT, "attention_cudnn", "cudnn")):
            with self.subTest(hidden=hidden):
                env = self.without(*hidden)
                warning = self.build(record + ".eng", "--tuning-cache", self.path(record), common=SMALL, env=env).stderr
                self.assertEqual(warning.count("warning: "), 1, warning)
                self.assertEqual(self.libraries_of(record + ".eng"), [there])
                self.assertEqual(len(self.blobs(record)), 1 if there == "attention_cudnn" else 0)
                # The engine needs no other library.
                done = run(self.generate(record + ".eng"), env=env)
                self.assertEqual((done.rc, done.stderr), (0, ""))
        # A library without support for this attention takes no part, and the cache remembers that.
        old = {**WITH_LIBRARY, "FAKE_CUDNN_REFUSE": "graph"}
        message = self.build("old.eng", common=SMALL, env=old).stderr
        self.assertIn("warning: only our own kernels take part in attention of 16 rows: cuDNN: ", message)
        self.assertEqual(message.count("\n"), 1, message)
        self.assertEqual(self.build("old.eng", common=SMALL, env=old).stderr, "")
        self.assertEqual(self.libraries_of("old.eng"), ["cublaslt"])

    @sanitized_elsewhere
    def test_plans_that_cudnn_made(self):
        """They are stored beside the cache: without them its records of them do not count."""
        slow = {**WITH_LIBRARY, "FAKE_CUDA_SLOW": "fake_cudnn"}
        self.build("ours.eng", "--tuning-cache", self.path("ours"), common=SMALL, env=slow)
        self.assertEqual(self.blobs("ours"), [])
        self.build_twice()
        before, = self.blobs()
        good = contents(before)
        for damage in (lambda: os.unlink(before), lambda: write(before, good[:-1]), lambda: write(before, good + b" "),
                       lambda: write(before, good[:100] + bytes([good[100] ^ 1]) + good[101:]),
                       lambda: write(before, b"ENGBLB02" + good[8:]), lambda: write(before, b"")):
            damage()
            measured = self.build_twice()
            self.assertGreater(measured, 0)
            self.assertLess(measured, 4) # the race, and the plan that uses it
            self.assertEqual(len(self.blobs()), 1 + os.path.exists(before))
            write(before, good)
            for path in self.blobs():
                if path != before:
                    os.unlink(path) # the cache's latest record refers to it
        full = json.loads(self.build("full.eng", "--json", "--tune", "full", "--tuning-cache", self.path("full"),
                                     common=SMALL, env=WITH_LIBRARY).stdout)
        self.assertGreater(full["tactics_measured"], 4)
        with open(self.path("full")) as file:
            record, = [json.loads(line.split(" ", 1)[1]) for line in file if "; cuDNN 91900" in line]
        # With our own: two of the library's ranking, then one by its knob's two values.
        self.assertEqual(record["candidates"], 5)

    def test_nothing_is_written_by_what_only_prints(self):
        dry = self.build("d.eng", "--dry-run").stdout
        self.assertIn("nothing was written", dry)
        self.assertIn("bytes per KV page", dry)
        listed = self.build("d.eng", "--list-candidates").stdout
        for name in ("matmul_gemv", "matmul_wgmma", "rope_attention", "attention_prefill", "grid"):
            self.assertIn(name, listed)
        dumped = self.build("d.eng", "--dry-run", "--dump-after", "dead_code").stdout
        self.assertIn("rope_attention", dumped)
        self.assertIn("norm=@model.layers.0.input_layernorm.weight", dumped)
        self.assertFalse(os.path.exists(self.path("d.eng")))

    def test_a_plan_with_other_logits(self):
        """The last kernel of the comparison spoils what it touches: the build and the selftest name the plan."""
        leaks = self.path("leaks")
        self.build("m.eng", "--tune", "off", env={"FAKE_CUDA_LEAK_FILE": leaks})
        spoilt = {"FAKE_CUDA_SPOIL_KERNEL": self.left_over(leaks)["kernels"]}
        self.assertRegex(self.build("bad.eng", "--tune", "off", env=spoilt, rc=4).stderr,
                         r"decode plan of 4 rows: row \d+ .*: logit 0: expected 0, found 1e\+09, tolerance ")
        self.assertFalse(os.path.exists(self.path("bad.eng")))
        command = [ENGRUN, self.path("m.eng"), "--selftest"]
        succeed(command, env={**FAKE, "FAKE_CUDA_LEAK_FILE": leaks})
        spoilt = {"FAKE_CUDA_SPOIL_KERNEL": self.left_over(leaks)["kernels"]}
        result = run(command, env={**FAKE, **spoilt})
        self.assertEqual(result.rc, 4, result.stderr)
        self.assertRegex(result.stderr, r"selftest: decode plan of 4 rows: row 0 drew token \d+, expected -1 to ")

    def test_refusals(self):
        cases = [
            ({"FAKE_CUDA_DEVICES": "0"}, ["--target", "cuda"], 3, ["GPU"]),
            ({"FAKE_CUDA_DRIVER_VERSION": "11080"}, ["--target", "cuda"], 3, ["12.4", "11.8"]),
            ({"FAKE_CUDA_MEMORY": "1000000"}, ["--target", "cuda"], 3, ["bytes"]),
            ({"LD_LIBRARY_PATH": COMPILER}, ["--target", "cuda"], 3, ["driver", "--target cpu"]),
            ({"FAKE_NVRTC_REFUSE": "sample"}, ["--tune", "off"], 4, ["sample", "FAKE_NVRTC_REFUSE"]),
            ({}, ["--device", "1", "--target", "cuda"], 3, ["GPU 1"]),
            ({}, ["--gpus", "2"], 3, ["--gpus", "2 GPUs"]),
            ({}, ["--gpus", "17"], 2, ["--gpus", "1 to 16"]),
            ({}, ["--gpus", "4", "--target", "cpu"], 1, ["--gpus", "4 GPUs cannot share 6 attention heads"]),
            ({}, ["--dtype", "f32", "--target", "cuda"], 2, ["--dtype", "bf16"]),
            ({}, ["--kv-dtype", "f32", "--target", "cuda"], 2, ["--kv-dtype", "bf16"]),
            ({}, ["--dtype", "int4", "--compute", "f32"], 2, ["--compute", "of BF16", "found F32"]),
            ({}, ["--compute", "fp8"], 1, ["--compute fp8", "expected matrices of fp8 codes", "--dtype fp8"]),
            ({}, ["--dtype", "int8", "--compute", "fp8"], 1, ["--compute fp8", "--dtype fp8"]),
            ({}, ["--compute", "int8"], 1, ["--compute int8", "expected matrices of int8 codes with one scale a row or int4", "--dtype int8"]),
            ({}, ["--dtype", "int8", "--group", "128", "--head-dtype", "bf16", "--compute", "int8"], 1, ["--compute int8", "without --group"]),
            ({}, ["--dtype", "fp8", "--compute", "int8"], 1, ["--compute int8", "--dtype int8"]),
            ({"FAKE_CUDA_CAPABILITY": "80"}, ["--dtype", "int8", "--compute", "int8", "--prefill-chunks", "32"], 1,
             ["--compute int8", "no kernels for compute capability 8.0", "of 32 rows", "--compute bf16"]),
            ({"FAKE_CUDA_CAPABILITY": "80"}, ["--dtype", "fp8", "--compute", "fp8", "--prefill-chunks", "32"], 1,
             ["--compute fp8", "no kernels for compute capability 8.0", "of 32 rows", "--compute bf16"]),
            ({}, ["--dtype", "fp16", "--head-dtype", "int8"], 1, ["expected BF16", "found F16", "--head-dtype"]),
            ({}, ["--dtype", "nvfp4", "--keep", "*.down_proj.weight=f32"], 1, ["down_proj", "expected BF16", "found F32", "--keep"]),
            ({}, ["--calibrate", "self"], 2, ["--calibrate", "codes of 4 bits"]),
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

    def generate(self, engine):
        return [ENGRUN, self.path(engine), "--tokens", "1,2,3", "-n", "4", "--ignore-eos", "--print-tokens"]

    def left_over(self, path):
        return dict(line.split() for line in contents(path).decode().splitlines())

    def sweep(self, level, most, least, libraries=False):
        """One driver call fails in each build: the build ends with an error and leaves no file."""
        leaks, output = self.path("leaks"), self.path("f.eng")
        command = [ENGBUILD, "--model", FABLES, "--target", "cuda", "-o", output, "--tune", level, "--tuning-cache",
                   "none", *(SMALL if libraries else LEAN)]
        env = {**(WITH_LIBRARY if libraries else FAKE), "FAKE_CUDA_LEAK_FILE": leaks}
        whole = succeed(command, env=env)
        os.unlink(output)
        counts = self.left_over(leaks)
        self.assertEqual(counts["misuse"], "0")
        calls, failed = int(counts["calls"]), 0
        chosen = random.Random(1).sample(range(1, calls + 1), min(calls, most))
        for call in chosen:
            with self.subTest(level=level, call=call):
                result = run(command, env={**env, "FAKE_CUDA_FAIL_CALL": str(call)})
                self.assertNotIn("left over", result.stderr)
                for kind, count in self.left_over(leaks).items():
                    if kind not in ("calls", "kernels"):
                        self.assertEqual(count, "0", "%s after call %d failed" % (kind, call))
                if result.rc == 0: # a failing release has no consequence
                    os.unlink(output)
                    continue
                failed += 1
                self.assertEqual(result.rc, 3, result.stderr)
                self.assertFalse(os.path.exists(output))
        # A failing call during a race drops that candidate.
        self.assertGreaterEqual(failed, least)
        tally("failing calls, --tune " + level, len(chosen))

    def test_every_failing_call_ends_the_build(self):
        self.sweep("off", 12 if SANITIZED else 30, 5)

    @sanitized_elsewhere
    def test_failing_calls_while_tuning(self):
        self.sweep("quick", 10, 0)
        self.sweep("quick", 10, 0, libraries=True)


if __name__ == "__main__":
    unittest.main()
