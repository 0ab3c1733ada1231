# SPDX-License-Identifier: Apache-2.0
"""Helpers of the end-to-end tests: paths of the programs, functions to run them, readers for .npy and .npz.

A test is a Python file next to this one that uses only the standard library, named *_test.py:

    import unittest
    from harness import ENGRUN, fables_engine, run

    class Generate(unittest.TestCase):
        def test_speaks(self):
            result = run([ENGRUN, fables_engine(), "-p", "Once upon a time", "-n", "8"])
            self.assertEqual(result.rc, 0, result.stderr)

    if __name__ == "__main__":
        unittest.main()

It runs under `bazel test //tests:e2e/NAME_test`, or by hand (`python3 tests/e2e/NAME_test.py`) after
`bazel build //...`.
"""

import array
import ast
import collections
import functools
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile


def _find_roots():
    """(folder of sources, folder of built files): one and the same inside a Bazel test."""
    runfiles = os.environ.get("TEST_SRCDIR")
    if runfiles:
        root = os.path.join(runfiles, os.environ.get("TEST_WORKSPACE", "eng"))
        return root, root
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return root, os.path.join(root, "bazel-bin")


_SOURCES, BUILT = _find_roots()

ENGBUILD = os.path.join(BUILT, "builder", "engbuild")
ENGRUN = os.path.join(BUILT, "runtime", "engrun")
ENGBENCH = os.path.join(BUILT, "runtime", "engbench")
ENGINFO = os.path.join(BUILT, "runtime", "enginfo")
ENGSERVE = os.path.join(BUILT, "runtime", "engserve")
ENGSERVE_TSAN = os.path.join(BUILT, "tests", "engserve_tsan")  # under ThreadSanitizer
LIBENG = os.path.join(BUILT, "runtime", "libeng.so")
MAKE_CHECKPOINT = os.path.join(BUILT, "tests", "make_checkpoint")
LIBFAULTS = os.path.join(BUILT, "tests", "libfaults.so")
ENG_H = os.path.join(_SOURCES, "runtime", "eng.h")

# The shipped model.
FABLES = os.path.join(_SOURCES, "tests", "models", "fables")

# Folder of larger models and tokenizers, or None: a test that needs it is decorated with @needs_shared.
SHARED = os.environ.get("ENG_SHARED") or None

# Built with sanitizers: time limits must be generous, libeng.so cannot be loaded into a plain process.
SANITIZED = os.environ.get("ENG_SANITIZED") == "1"

# Decorator: the code of the test runs under sanitizers in other tests, where it takes less time.
sanitized_elsewhere = unittest.skipIf(SANITIZED, "other tests run this code under sanitizers")

# Folders of hf-tiny that have all kinds of blocks between them.
ALL_BLOCKS = ["mistral-window", "phi3-longrope", "gemma3", "gpt2", "gpt_oss", "deepseek_v3", "lfm2", "qwen3_next"]

Result = collections.namedtuple("Result", "rc stdout stderr seconds")


def shared(*parts):
    """A path in the shared folder."""
    return os.path.join(SHARED or "", *parts)


def needs_shared(*parts):
    """Decorator: skips a test if the shared folder, or that path in it, is missing."""
    missing = SHARED is None or not os.path.exists(shared(*parts))
    return unittest.skipIf(missing, "needs ENG_SHARED/" + "/".join(parts))


def environment(variables=None):
    """The environment of the programs: the user's own tuning cache, history and key bindings are neither read nor
    written."""
    folder = _process_scratch().name
    return {**os.environ, "XDG_CACHE_HOME": os.path.join(folder, "cache"),
            "XDG_STATE_HOME": os.path.join(folder, "state"), "EDITRC": os.path.join(folder, "editrc"), **(variables or {})}


def run(command, input=None, timeout=800, env=None, cwd=None, text=True, max_file_bytes=None, max_memory_bytes=None):
    """Runs a program to its end. Result.rc is negative for a signal, as in subprocess.

    input: text or bytes for stdin; without it stdin is empty. text=False leaves the outputs as bytes.
    env: variables added to the environment. max_file_bytes: writes past it fail, as on a full disk (EFBIG).
    max_memory_bytes: limit of the address space (not under sanitizers)."""

    def limits():
        if max_file_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
        if max_memory_bytes is not None and not SANITIZED:
            resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))

    words = [os.fspath(word) for word in command]
    start = time.monotonic()
    try:
        done = subprocess.run(
            words,
            input=input.encode() if isinstance(input, str) else input,
            stdin=subprocess.DEVNULL if input is None else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout,
            env=environment(env),
            cwd=cwd,
            # With a function of its own subprocess forks this process, which takes longer than to start a program.
            preexec_fn=limits if max_file_bytes is not None or max_memory_bytes is not None else None,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError("no end after %g s: %s" % (timeout, " ".join(words))) from error
    seconds = time.monotonic() - start
    if not text:
        return Result(done.returncode, done.stdout, done.stderr, seconds)
    return Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), seconds)


def succeed(command, **kwargs):
    """run() of a program that must end with exit code 0."""
    result = run(command, **kwargs)
    if result.rc != 0:
        raise AssertionError("exit %d: %s\n%s" % (result.rc, " ".join(map(os.fspath, command)), result.stderr))
    return result


def output(command, **kwargs):
    return succeed(command, **kwargs).stdout


def output_json(command, **kwargs):
    return json.loads(output(command, **kwargs))


def start(command, **kwargs):
    """A running program (subprocess.Popen) with piped output, for tests that kill it."""
    return subprocess.Popen([os.fspath(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=environment(), **kwargs)


def start_in_step(command):
    """(running program, socket that is its stdout). Each of its writes is received by itself, and a few of them fill the socket: it
    cannot run far ahead of a reader that is slow."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # as little as the system has
    with theirs:
        process = subprocess.Popen([os.fspath(word) for word in command], stdin=subprocess.DEVNULL, stdout=theirs,
                                   stderr=subprocess.PIPE, env=environment())
    return process, ours


def receive_all(connection):
    """What comes until the other end is closed."""
    return b"".join(iter(lambda: connection.recv(1 << 20), b""))


def scratch():
    """A new empty folder, removed at the end of the process: `with scratch() as folder` removes it earlier."""
    return tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))


@functools.lru_cache(maxsize=None)
def _process_scratch():
    return scratch()


@functools.lru_cache(maxsize=None)
def build_engine(model, *options):
    """Path of an engine for the CPU; the same model and options are built once for each test process. Untuned unless
    the options say otherwise: what an engine computes does not depend on tuning."""
    name = "engine-%d.eng" % build_engine.cache_info().misses
    path = os.path.join(_process_scratch().name, name)
    defaults = [] if "--tune" in options else ["--tune", "off"]
    succeed([ENGBUILD, "--model", model, "--target", "cpu", "-o", path, *defaults, *options], timeout=900)
    return path


@functools.lru_cache(maxsize=None)
def recorded_cases(folder):
    """Cases of (prompt, logits at its last 4 positions, greedy ids, gaps) as transformers recorded them for a checkpoint."""
    logits = read_npz(os.path.join(folder, "reference_logits.npz"))
    cases = read_json(folder, "reference.json")["cases"]
    return [(case["prompt"], rows(logits["logits_%d" % i]), case["greedy"], case["top1_top2_gap"])
            for i, case in enumerate(cases)]


def fables_engine():
    """An engine of the shipped model with default limits."""
    return build_engine(FABLES)


def changed_model(folder, tokenizer=None, generation=None, config=None):
    """A copy of the shipped checkpoint: `tokenizer` changes the text of tokenizer.json, `generation` holds fields of
    generation_config.json, `config` of config.json."""
    model = os.path.join(tempfile.mkdtemp(dir=folder), "fables")
    shutil.copytree(FABLES, model)
    for name in os.listdir(model):
        os.chmod(os.path.join(model, name), 0o644)
    if tokenizer:
        path = os.path.join(model, "tokenizer.json")
        write(path, tokenizer(contents(path).decode()).encode())
    for name, changed in (("generation_config.json", generation), ("config.json", config)):
        if changed:
            write(os.path.join(model, name), json.dumps({**read_json(model, name), **changed}).encode())
    return model


CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + END + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def chat_model(folder, end="<|im_end|>"):
    """The shipped model with its two special tokens renamed and a chat template. Its answers mean nothing."""
    model = changed_model(folder, lambda text: text.replace("<|begin|>", "<|im_start|>").replace("<|end|>", end))
    write(os.path.join(model, "chat_template.jinja"), CHATML.replace("END", '"%s"' % end).encode())
    return model


@functools.lru_cache(maxsize=None)
def chat_engine():
    return build_engine(chat_model(_process_scratch().name))


TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' + (tools | tojson) + '\\nCall with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content %}
        {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n' }}
    {%- endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""


@functools.lru_cache(maxsize=None)
def tools_engine():
    """The same model with a chat template that shows tools and reasoning."""
    model = chat_model(_process_scratch().name)
    write(os.path.join(model, "chat_template.jinja"), TOOLS.encode())
    return build_engine(model, "--max-batch", "4")


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def tally(what, count):
    """Prints how many cases a test tried: a loop over no case would pass, too."""
    if not count:
        raise AssertionError("%s: no cases" % what)
    print("%s: %d cases" % (what, count), file=sys.stderr)


# ---- numpy files -------------------------------------------------------------------------------------------------

_TYPECODES = {"f4": "f", "f8": "d", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q",
              "u8": "Q"}

# values: a flat array.array in row-major order.
Array = collections.namedtuple("Array", "shape values")


def parse_npy(data):
    """An Array from the bytes of a .npy file (versions 1 to 3, numbers, C order)."""
    if data[:6] != b"\x93NUMPY":
        raise ValueError("not a .npy file: begins with %r" % data[:6])
    if data[6] == 1:
        (length,), at = struct.unpack_from("<H", data, 8), 10
    else:
        (length,), at = struct.unpack_from("<I", data, 8), 12
    header = ast.literal_eval(data[at:at + length].decode("utf-8"))
    order, kind = header["descr"][0], header["descr"][1:]
    if header["fortran_order"] and len(header["shape"]) > 1:
        raise ValueError("Fortran order is not supported")
    if kind == "b1":
        kind = "u1"
    if kind not in _TYPECODES:
        raise ValueError("dtype %s is not supported" % header["descr"])
    values = array.array(_TYPECODES[kind])
    count = 1
    for extent in header["shape"]:
        count *= extent
    body = data[at + length:]
    if len(body) != count * values.itemsize:
        raise ValueError("expected %d bytes of data, found %d" % (count * values.itemsize, len(body)))
    values.frombytes(body)
    if (order == ">") == (sys.byteorder == "little") and order in "<>" and values.itemsize > 1:
        values.byteswap()
    return Array(tuple(header["shape"]), values)


def read_npy(path):
    return parse_npy(contents(path))


def read_npz(path):
    """{name: Array} of a .npz file."""
    with zipfile.ZipFile(path) as archive:
        return {name[:-len(".npy")]: parse_npy(archive.read(name)) for name in archive.namelist()
                if name.endswith(".npy")}


def rows(matrix):
    """The rows of an Array of two dimensions, as lists."""
    width = matrix.shape[1]
    return [matrix.values[i * width:(i + 1) * width].tolist() for i in range(matrix.shape[0])]


# ---- comparisons with recorded outputs ---------------------------------------------------------------------------

LOGIT_TOLERANCE = 1e-3
# Two logits with an error of at most the tolerance each may change order if they are closer than twice that.
TIE_GAP = 2 * LOGIT_TOLERANCE

INSTRUCTION_SETS = ["portable", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"]


def read_json(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return json.load(file)


def runs_here(engine, instruction_set):
    """Whether this processor has an instruction set."""
    return run([ENGRUN, engine, "--tokens", "1", "-n", "1", "--isa", instruction_set]).rc != 3


class ReferenceTest(unittest.TestCase):
    """Comparisons with recorded greedy tokens and logits."""

    def generate(self, engine, tokens, count, *flags):
        """Greedy ids after the given ones."""
        printed = output([ENGRUN, engine, "--tokens", ",".join(map(str, tokens)), "-n", str(count), "--print-tokens",
                          *flags])
        self.assertEqual(printed.count("\n"), 1, "all ids on one line: %r" % printed)
        return [int(word) for word in printed.split()]

    def logits(self, engine, tokens, count=1, *flags):
        """(ids, rows of logits from which they were drawn)."""
        with scratch() as folder:
            path = os.path.join(folder, "logits.npy")
            ids = self.generate(engine, tokens, count, "--ignore-eos", "--logits", path, *flags)
            found = read_npy(path)
        self.assertEqual(found.values.typecode, "f")
        self.assertEqual(found.shape[0], len(ids), "a row of logits for each token")
        return ids, rows(found)

    def check_logits(self, found, expected, tolerance, what):
        self.assertEqual(len(found), len(expected), what)
        error, at = max((abs(a - b), i) for i, (a, b) in enumerate(zip(found, expected)))
        self.assertLessEqual(error, tolerance, "%s: logit %d: expected %r, found %r" %
                             (what, at, expected[at], found[at]))

    def check_greedy(self, engine, prompt, greedy, gaps, *flags, tie_gap=TIE_GAP):
        """The continuation equals `greedy`. After a tie the comparison goes on with the reference's token, so that
        every position counts. Returns the number of ties."""
        done = ties = 0
        while done < len(greedy):
            expected = greedy[done:]
            found = self.generate(engine, prompt + greedy[:done], len(expected), "--ignore-eos", *flags)
            self.assertEqual(len(found), len(expected))
            if found == expected:
                break
            at = next(i for i in range(len(expected)) if found[i] != expected[i])
            step = done + at
            self.assertLess(gaps[step], tie_gap, "prompt %s: step %d: expected token %d, found %d; distance of the two "
                            "best logits %g" % (prompt[:8], step, greedy[step], found[at], gaps[step]))
            _, (row,) = self.logits(engine, prompt + greedy[:step], 1, *flags)
            self.assertLess(abs(row[greedy[step]] - row[found[at]]), tie_gap, "step %d is no tie" % step)
            ties += 1
            done = step + 1
        return ties


class FablesReference:
    """Tests of an engine of the shipped model against the recorded outputs, for classes that also inherit ReferenceTest
    and have setUpClass() set `cases`, from reference.json, and `engine`; `label` begins what tally() prints."""

    label = "fables"
    threads = ("1", "2", "5")  # also more than there are processors

    def test_tokens(self):
        ties = sum(self.check_greedy(self.engine, case["ids"], case["greedy"], case["gaps"]) for case in self.cases)
        tally("%s: tokens (%d ties)" % (self.label, ties), sum(len(case["greedy"]) for case in self.cases))

    def test_whole_story(self):
        """From the prompt to the end token; -n 0 sets no other limit."""
        case = self.cases[0]
        self.assertGreater(len(case["story"]), 100)
        self.assertGreater(min(case["story_gaps"]), TIE_GAP)
        self.assertEqual(self.generate(self.engine, case["ids"], 0), case["story"])

    def test_logits(self):
        with_logits = [case for case in self.cases if "logits" in case]
        for case in with_logits:
            with self.subTest(case["prompt"]):
                _, (row,) = self.logits(self.engine, case["ids"])
                self.check_logits(row, case["logits"], LOGIT_TOLERANCE, case["prompt"])
        tally("%s: rows of logits" % self.label, len(with_logits))

    def test_threads(self):
        """The same tokens from any number of threads."""
        case = self.cases[-1]
        for threads in self.threads:
            with self.subTest(threads=threads):
                self.check_greedy(self.engine, case["ids"], case["greedy"], case["gaps"], "--threads", threads)

    def test_instruction_sets(self):
        case = self.cases[-1]
        tried = 0
        for name in INSTRUCTION_SETS:
            with self.subTest(name):
                if not runs_here(self.engine, name):
                    continue
                tried += 1
                self.check_greedy(self.engine, case["ids"], case["greedy"], case["gaps"], "--isa", name)
        tally("%s: instruction sets" % self.label, tried)
