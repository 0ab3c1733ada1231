# SPDX-License-Identifier: Apache-2.0
"""bin/gpu-tests of the tarball, as far as it goes without a GPU: what it lists, how it counts, how it fails.

The driver is tests/fake_cuda, whose kernels compute nothing, and the compiler a stub that refuses everything: checks
that launch a kernel fail, the others pass. The example has the compiler of tests/fake_cuda and a stub of the CUDA runtime."""

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
FAKE_COMPILER = os.path.abspath(os.path.join(BUILT, "tests/fake_cuda/compiler"))

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

# What the example takes of the CUDA runtime, on the fake driver.
RUNTIME_HEADER = """
#include <stddef.h>
typedef void *cudaStream_t, *cudaEvent_t;
typedef int cudaError_t;
enum { cudaSuccess = 0, cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaMemcpyDeviceToHost = 2 };
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaMallocHost(void **memory, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream);
const char *cudaGetErrorString(cudaError_t error);
"""
RUNTIME = r"""
#include <cuda_runtime_api.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxPushCurrent_v2(void *);
int cuStreamCreate(void **, unsigned), cuStreamDestroy_v2(void *), cuStreamWaitEvent(void *, void *, unsigned);
int cuEventCreate(void **, unsigned), cuEventDestroy_v2(void *), cuEventRecord(void *, void *), cuEventSynchronize(void *);
int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemcpyDtoHAsync_v2(void *, unsigned long long, size_t, void *);
static int begin(void)
{
    static void *context;
    if (context) return 0;
    int error = cuInit(0);
    if (!error) error = cuDevicePrimaryCtxRetain(&context, 0);
    return error ? error : cuCtxPushCurrent_v2(context);
}
int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    int error = begin();
    return error ? error : cuStreamCreate(stream, flags);
}
int cudaStreamDestroy(void *stream) { return cuStreamDestroy_v2(stream); }
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) { return cuStreamWaitEvent(stream, event, flags); }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return cuEventCreate(event, flags); }
int cudaEventDestroy(void *event) { return cuEventDestroy_v2(event); }
int cudaEventRecord(void *event, void *stream) { return cuEventRecord(event, stream); }
int cudaEventSynchronize(void *event) { return cuEventSynchronize(event); }
int cudaMallocHost(void **memory, size_t bytes) { return cuMemHostAlloc(memory, bytes, 0); }
int cudaFreeHost(void *memory) { return cuMemFreeHost(memory); }
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    return kind == 2 ? cuMemcpyDtoHAsync_v2(to, (unsigned long long)from, bytes, stream) : 1;
}
const char *cudaGetErrorString(int error) { return error ? "an error" : "none"; }
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

    def toolkit(self):
        """The folder of a toolkit of which the example takes the runtime."""
        folder = self.subfolder("toolkit")
        os.makedirs(os.path.join(folder, "include"), exist_ok=True)
        os.makedirs(os.path.join(folder, "lib64"), exist_ok=True)
        with open(os.path.join(folder, "include/cuda_runtime_api.h"), "w") as file:
            file.write(RUNTIME_HEADER)
        source = os.path.join(folder, "runtime.c")
        with open(source, "w") as file:
            file.write(RUNTIME)
        subprocess.run(["cc", "-shared", "-fPIC", "-I", os.path.join(folder, "include"), source,
                        os.path.join(FAKE_DRIVER, "libcuda.so.1"), "-o", os.path.join(folder, "lib64/libcudart.so")],
                       check=True)
        return folder

    def show_special_tokens(self, path):
        with open(path) as file:
            tokenizer = json.load(file)
        for token in tokenizer["added_tokens"]:
            token["special"] = False
        os.chmod(path, 0o644)
        with open(path, "w") as file:
            json.dump(tokenizer, file)

    def run_example(self, toolkit, **variables):
        return self.run_it("--only", "example/cudart", CUDA_HOME=toolkit,
                           **{"LD_LIBRARY_PATH": FAKE_DRIVER + ":" + FAKE_COMPILER, **variables})

    def test_example(self):
        """It passes, and fails where the example prints other text or ends with an error, or no text is there to compare.
        The fake GPU draws token 0, of which text shows nothing while it is a special one."""
        toolkit, top = self.toolkit(), os.path.join(self.folder.name, "changed")
        code, text, _ = self.run_example(toolkit)
        self.assertEqual((code, text.splitlines()[-1]), (1, "0 passed, 1 failed"), text)
        self.assertIn("engrun gave no text", text)
        shutil.copytree(self.top, top)
        self.show_special_tokens(os.path.join(top, "share/eng/models/fables/tokenizer.json"))
        code, text, message = self.run_example(toolkit, top=top)
        self.assertEqual((code, message, text.splitlines()[-1]), (0, "", "1 passed, 0 failed"), text)
        self.assertNotIn("skipped", text)
        path = os.path.join(top, "share/doc/eng/examples/cudart.c")
        with open(path) as file:
            source = file.read()
        for old, new, expected in (("fputs(piece, stdout);", 'fputs("other", stdout);', "the example's text is not engrun's"),
                                   ("fputs(argv[2], stdout);", "", "the example's text is not engrun's"),
                                   ("choose(logits, facts.vocab_size)", "1 + choose(logits, facts.vocab_size)", "cudart: exit code 1"),
                                   ("failed = 0;", "failed = 7;", "cudart: exit code 7"),
                                   ("failed = 0;", "failed = none;", "cc: exit code 1")):
            with self.subTest(new):
                self.assertEqual(source.count(old), 1)
                os.chmod(path, 0o644)
                with open(path, "w") as file:
                    file.write(source.replace(old, new))
                code, text, _ = self.run_example(toolkit, top=top)
                self.assertEqual((code, text.splitlines()[-1]), (1, "0 passed, 1 failed"), text)
                self.assertIn(expected, text)

    def test_example_is_skipped(self):
        """Without a toolkit, its runtime, or a compiler, with a line that names it."""
        empty = self.subfolder("empty")
        bare = self.subfolder("bare")
        shutil.copytree(os.path.join(self.toolkit(), "include"), os.path.join(bare, "include"))
        for toolkit, path, missing in ((empty, "/usr/bin:/bin", "cuda_runtime_api.h"),
                                       (bare, "/usr/bin:/bin", "libcudart.so"), (self.toolkit(), empty, "a C compiler")):
            with self.subTest(missing):
                code, text, message = self.run_example(toolkit, PATH=path)
                self.assertEqual((code, message), (0, ""))
                self.assertRegex(text, r"(?m)^skipped +[\d.]+ s  example/cudart\nskipped: expected %s.* found none" %
                                 re.escape(missing))
                self.assertTrue(text.endswith("\n1 skipped, which do not apply to this machine\n0 passed, 0 failed\n"), text)

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
        self.assertEqual([name for name in names if "example/" in name], ["example/cudart"])
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
