# SPDX-License-Identifier: Apache-2.0
"""bin/gpu-tests of the tarball, as far as it goes without a GPU: what it lists, how it counts, how it fails.

The driver is tests/fake_cuda, whose kernels compute nothing, and the compiler a stub that refuses everything: checks
that launch a kernel fail, the others pass."""

import glob
import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest

ROOT = os.path.join(os.environ.get("TEST_SRCDIR", "."), os.environ.get("TEST_WORKSPACE", ""))
BUILT = ROOT if os.environ.get("TEST_SRCDIR") else "bazel-bin"
FAKE_DRIVER = os.path.abspath(os.path.join(BUILT, "tests/fake_cuda/whole"))

NVRTC = r"""
int nvrtcVersion(int *major, int *minor) { *major = 13, *minor = 0; return 0; }
int nvrtcGetNumSupportedArchs(int *count) { *count = 1; return 0; }
int nvrtcGetSupportedArchs(int *list) { *list = 90; return 0; }
int nvrtcCreateProgram(void **program) { static int it; *program = &it; return 0; }
int nvrtcDestroyProgram(void **program) { *program = 0; return 0; }
int nvrtcCompileProgram(void *program) { return program ? 6 : 4; }
int nvrtcGetCUBINSize(void *program, unsigned long *size) { *size = 0; return program ? 0 : 4; }
int nvrtcGetCUBIN(void *program) { return program ? 0 : 4; }
int nvrtcGetProgramLogSize(void *program, unsigned long *size) { *size = 13; return program ? 0 : 4; }
int nvrtcGetProgramLog(void *program, char *log)
{
    for (int i = 0; i < 13; i++) log[i] = "stub refuses"[i];
    return program ? 0 : 4;
}
const char *nvrtcGetErrorString(int result) { return result ? "an error" : "none"; }
"""

SANITIZER = """#!/bin/sh
echo "$@" "ENG_TEST_SANITIZED=$ENG_TEST_SANITIZED" >>%s
while [ "${1#-}" != "$1" ]; do shift 2; done
[ -z "$REFUSE" ] || exit 99
exec "$@"
"""

# Builds engines for the CPU whatever was asked for, those for the GPU from the checkpoint OTHER if that is set.
ENGBUILD = """#!/bin/sh
other=
case " $* " in *" cuda "*) other=$OTHER ;; esac
for word; do
    shift
    case $word in
        cuda) word=cpu ;;
        */models/fables) word=${other:-$word} ;;
    esac
    set -- "$@" "$word"
done
exec "${0%/*}/engbuild.real" "$@"
"""


TUNED = ["engine/fables" + kind for kind in ("", "-int4", "-kv-fp8", "-compute-fp8", "-compute-int8", "-int4-compute-int8")]
UNTUNED = ["engine/fables-" + kind for kind in ("fp16", "int8", "fp8", "mxfp4", "nvfp4", "kv-int8")]


def flip_signs(path, tensor, count):
    """Flips the signs of the first elements of a BF16 tensor in a .safetensors file."""
    with open(path, "r+b") as file:
        size, = struct.unpack("<Q", file.read(8))
        begin = 8 + size + json.loads(file.read(size))[tensor]["data_offsets"][0]
        file.seek(begin)
        data = bytearray(file.read(2 * count))
        for i in range(count):
            data[2 * i + 1] ^= 0x80
        file.seek(begin)
        file.write(data)


class GpuTests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        with tarfile.open(os.path.join(BUILT, "eng.tar.gz")) as archive:
            archive.extractall(cls.folder.name)
        cls.top, = glob.glob(os.path.join(cls.folder.name, "eng-*"))
        cls.stub = cls.subfolder("stub")
        source = os.path.join(cls.stub, "nvrtc.c")
        with open(source, "w") as file:
            file.write(NVRTC)
        subprocess.run(["cc", "-shared", "-fPIC", source, "-o", os.path.join(cls.stub, "libnvrtc.so.13")], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def subfolder(cls, name):
        path = os.path.join(cls.folder.name, name)
        os.makedirs(path, exist_ok=True)
        return path

    def run_it(self, *words, top=None, **env):
        """(exit code, stdout, stderr); afterwards no temporary file may be left."""
        temporary = self.subfolder("temporary")
        variables = {"PATH": "/usr/bin:/bin", "TMPDIR": temporary,
                     "LD_LIBRARY_PATH": self.stub + ":" + FAKE_DRIVER, **env}
        done = subprocess.run([os.path.join(top or self.top, "bin/gpu-tests"), *words], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=variables, cwd="/", timeout=300)
        self.assertEqual(os.listdir(temporary), [])
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def test_lists_every_test_of_a_device_kernel(self):
        code, text, _ = self.run_it("--list")
        self.assertEqual(code, 0)
        names = set(text.split())
        self.assertIn("engine/fables", names)
        tests = 0
        for path in glob.glob(os.path.join(ROOT, "kernels/**/*_test.c"), recursive=True):
            with open(path) as file:
                source = file.read()
            if "TEST_NEEDS_DEVICE" not in source:
                continue
            file = os.path.basename(path)[:-len(".c")]
            for test in re.findall(r"^TEST\((\w+)\)$", source, re.M):
                self.assertIn("%s/%s" % (file, test), names)
                tests += 1
        self.assertGreater(tests, 30)

    def test_without_gpu(self):
        code, text, message = self.run_it(FAKE_CUDA_DEVICES="0")
        self.assertEqual((code, text), (3, ""))
        self.assertRegex(message, r"^gpu-tests: no GPU: \S.*\n$")

    def test_passes(self):
        _, text, _ = self.run_it("--list", "--only", "hostile")
        names = sorted(text.split())
        code, text, message = self.run_it("--only", "hostile", "--jobs", "3")
        self.assertEqual((code, message), (0, ""))
        self.assertEqual(text.splitlines()[-1], "%d passed, 0 failed" % len(names))
        self.assertEqual(sorted(re.findall(r"^passed +[\d.]+ s  (\S+)$", text, re.M)), names)

    def test_one_that_fails(self):
        code, text, _ = self.run_it("--only", "swiglu")
        self.assertEqual(code, 1)
        self.assertEqual(text.splitlines()[-1], "1 passed, 1 failed")
        self.assertRegex(text, r"(?m)^FAILED +[\d.]+ s  swiglu_device_test/equals_reference \(exit code 1\)$")
        self.assertIn("stub refuses", text)
        self.assertNotIn("skipped", text)

    def test_times_are_not_taken_after_a_failure(self):
        code, text, _ = self.run_it("--only", "swiglu_device_test/equals", "--time")
        self.assertEqual((code, text.splitlines()[-1]), (1, "0 passed, 1 failed"))
        self.assertNotIn("GB/s", text)

    def test_times_that_fail(self):
        code, text, _ = self.run_it("--only", "swiglu", "--time", "--list")
        self.assertEqual(code, 0)
        code, text, _ = self.run_it("--only", "norm", "--time", "--jobs", "1")
        self.assertEqual(code, 1)
        code, text, _ = self.run_it("--only", "rope table", "--time")
        self.assertEqual((code, text.splitlines()[-1]), (1, "0 passed, 1 failed"))
        self.assertIn("compiling 2 candidates", text)

    def test_engine_that_cannot_be_built(self):
        """A program of the tarball that crashes is one failure."""
        top = os.path.join(self.folder.name, "broken")
        shutil.copytree(self.top, top)
        with open(os.path.join(top, "bin/engbuild"), "w") as file:
            file.write("#!/bin/sh\nkill -SEGV $$\n")
        code, text, _ = self.run_it("--only", "engine/fables-fp16", top=top)
        self.assertEqual((code, text.splitlines()[-1]), (1, "0 passed, 1 failed"))
        self.assertIn("engbuild: signal 11", text)

    def test_engine_check(self):
        """With two engines for the CPU it passes; where one has a wrong weight it fails. Both at length, and as under a
        tool of compute-sanitizer."""
        top, other = os.path.join(self.folder.name, "twice"), os.path.join(self.folder.name, "other")
        shutil.copytree(self.top, top)
        shutil.copytree(os.path.join(top, "share/eng/models/fables"), other)
        flip_signs(os.path.join(other, "model.safetensors"), "model.norm.weight", 2)
        os.rename(os.path.join(top, "bin/engbuild"), os.path.join(top, "bin/engbuild.real"))
        with open(os.path.join(top, "bin/engbuild"), "w") as file:
            file.write(ENGBUILD)
        os.chmod(os.path.join(top, "bin/engbuild"), stat.S_IRWXU)
        path = self.sanitizer() + ":/usr/bin:/bin"
        for name, words in (("engine/fables-fp16", []), ("racecheck/engine/fables-fp16", ["--sanitize"])):
            code, text, _ = self.run_it("--only", name, *words, top=top, PATH=path)
            self.assertEqual((code, text.splitlines()[-1]), (0, "1 passed, 0 failed"), text)
            # A variable that was there before says nothing.
            code, text, _ = self.run_it("--only", name, *words, top=top, PATH=path, OTHER=other,
                                        ENG_TEST_SANITIZED="memcheck")
            self.assertEqual((code, text.splitlines()[-1]), (1, "0 passed, 1 failed"), text)
            self.assertIn("the engines' logits differ", text)
            self.assertEqual(text.count("engbuild --model"), 2)
            self.assertEqual("--batch-sizes 1,16 --prefill-chunks 32" in text, bool(words))
            self.assertEqual("engrun" in text, not words)
        self.assertEqual(self.tools(), ["racecheck racecheck"] * 2)

    def test_models(self):
        models = self.subfolder("models")
        for name, kind in (("a", "llama"), ("b/c", "qwen3"), ("d", "mamba")):
            os.makedirs(os.path.join(models, name), exist_ok=True)
            with open(os.path.join(models, name, "config.json"), "w") as file:
                file.write('{"model_type": "%s"}' % kind)
        code, text, _ = self.run_it("--list", "--only", "engine/", "--models", models)
        self.assertEqual((code, text.split()),
                         (0, [*TUNED, *UNTUNED, "engine/a", "engine/b/c"]))
        self.assertEqual(self.run_it("--list", "--models", os.path.join(models, "a"), "--only", "engine/a")[1],
                         "engine/a\n")
        code, text, _ = self.run_it("--only", "engine/b", "--models", models)
        self.assertEqual((code, text.splitlines()[-1]), (1, "0 passed, 1 failed"))
        for wrong in ("d", "missing"):
            self.assertEqual(self.run_it("--list", "--models", os.path.join(models, wrong))[0], 2)

    def sanitizer(self):
        """The folder of one that only runs its program and writes down how it was called, into a new log."""
        folder, self.log = self.subfolder("sanitizer"), os.path.join(self.folder.name, "log")
        with open(self.log, "w"):
            pass
        with open(os.path.join(folder, "compute-sanitizer"), "w") as file:
            file.write(SANITIZER % self.log)
        os.chmod(os.path.join(folder, "compute-sanitizer"), stat.S_IRWXU)
        return folder

    def tools(self):
        """For each call the tool, and its program's arguments."""
        with open(self.log) as file:
            return sorted("%s %s" % (line.split()[1], line.split("ENG_TEST_SANITIZED=")[1].strip()) for line in file)

    def test_sanitizer(self):
        path = self.sanitizer() + ":/usr/bin:/bin"
        code, text, _ = self.run_it("--list", "--sanitize", PATH=path)
        names = text.split()
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual([name for name in names if "hostile" in name and "check/" in name], [])
        for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
            self.assertIn(tool + "/embed_device_test/gathers", names)
        for test in ("matmul_cublaslt_test/computes_the_contract", "attention_cudnn_test/equals_reference"):
            self.assertEqual([name for name in names if name.endswith(test)], [test, "memcheck/" + test])
        self.assertEqual([name for name in names if "engine" in name],
                         [*TUNED, *UNTUNED] +
                         [tool + "/engine/fables-" + dtype for tool in ("racecheck", "memcheck", "synccheck", "initcheck")
                          for dtype in ("fp16", "nvfp4", "kv-int8")])
        only = "check/sample_device_test/expectation"  # needs no GPU
        code, text, _ = self.run_it("--sanitize", "--only", only, PATH=path)
        self.assertEqual((code, text.splitlines()[-1]), (0, "4 passed, 0 failed"))
        self.assertEqual(self.tools(), [tool + " " + tool
                                        for tool in ("initcheck", "memcheck", "racecheck", "synccheck")])
        with open(self.log) as file:
            lines = sorted(file.read().splitlines())
        self.assertEqual(["--report-api-errors no" in line for line in lines], [False, True, False, False])
        code, text, _ = self.run_it("--sanitize", "--only", only, PATH=path, REFUSE="1")
        self.assertEqual((code, text.splitlines()[-1]), (1, "0 passed, 4 failed"))

    def test_usage(self):
        for words in (["--no-such-option"], ["word"], ["--jobs", "0"], ["--run", "nothing"], ["--only", "nothing"]):
            self.assertEqual(self.run_it(*words)[0], 2, words)
        for word in ("--help", "--version"):
            code, text, _ = self.run_it(word)
            self.assertEqual(code, 0)
            self.assertIn("gpu-tests", text)


if __name__ == "__main__":
    sys.exit(unittest.main())
