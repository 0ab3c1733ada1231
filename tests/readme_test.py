# SPDX-License-Identifier: Apache-2.0
"""README tells the truth where a program can check it: its C program is the one that is compiled and tested, its
commands run as they stand, and what it states of files exists."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

# Inside a Bazel test sources and built files lie in one tree.
RUNFILES = "TEST_SRCDIR" in os.environ
ROOT = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"]) if RUNFILES else \
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILT = ROOT if RUNFILES else os.path.join(ROOT, "bazel-bin")

# Commands that are not run, by their beginning, with the reason.
NOT_RUN = {
    ".ci/run": "runs this test",
    ".ci/fuzz": "takes hours, and needs clang",
    ".ci/format": "changes sources; format_test.py checks its result",
    ".ci/compile-commands": "needs bazel and the whole tree",
    "bazel test ": "runs this test",
    "bazel-bin/builder/engbuild --model qwen3 --gpus 2": "needs two GPUs",
    "torchrun ": "needs torchrun and two GPUs",
    "eng-0.1.0/bin/gpu-tests": "needs a GPU",
}

# Commands that the sandbox does in another way, by their beginning: a network is not at hand, and bazel has already
# built what it is told to build, because that is this test's data.
STAND_INS = {
    "hf download ": 'mkdir "${@: -1}" && cp tests/models/fables/* "${@: -1}"; '
                    'echo "{% for m in messages %}{{ m.content }} {% endfor %}" > "${@: -1}/chat_template.jinja"',
    "bazel build ": 'for target in "${@:3}"; do [ "$target" = //:programs ] || [ "$target" = //:dist ]; done',
}

# .ci/demo runs whole; only bazel and the installation of packages are replaced.
FAKE_BAZEL = '#!/bin/bash\n[ "$1" = build ] && [ "${@: -1}" = //:programs ]\n'
FAKE_INSTALL = "#!/bin/bash\n"


def read(*parts):
    with open(os.path.join(ROOT, *parts), encoding="utf-8") as file:
        return file.read()


def blocks(text):
    """(language, lines) of each fenced block."""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        yield match.group(1), match.group(2).splitlines()


def commands(text):
    """Every command line, without its comment."""
    for language, lines in blocks(text):
        if language == "sh":
            for line in lines:
                command = re.sub(r"\s+# .*$", "", line).strip()
                if command:
                    yield command


def entry(table, command):
    """The value of the one entry with which a command begins, or None."""
    return next((table[start] for start in table if (command + " ").startswith(start)), None)


class Readme(unittest.TestCase):
    def setUp(self):
        self.readme = read("README.md")

    def test_program_is_the_example(self):
        programs = [lines for language, lines in blocks(self.readme) if language == "c"]
        self.assertEqual(programs, [read("runtime", "examples", "generate.c").splitlines()])
        self.assertLessEqual(len(programs[0]), 41)

    def test_blocks_have_a_known_language(self):
        """A command outside of a block of commands would not be run below."""
        languages = [language for language, _ in blocks(self.readme)]
        self.assertEqual(set(languages), {"sh", "c", "text"})
        outside = re.sub(r"^```.*?^```$", "", self.readme, flags=re.M | re.S)
        self.assertNotIn("```", outside)
        self.assertEqual([line for line in outside.splitlines() if line.startswith("    ")], [])

    def test_scripts_exist(self):
        for script in (".ci/demo", ".ci/run", ".ci/fuzz", ".ci/format", ".ci/compile-commands"):
            self.assertIn(script, self.readme)
            self.assertTrue(os.access(os.path.join(ROOT, script), os.X_OK), script)

    def test_named_files_exist(self):
        names = re.findall(r"`((?:\.ci|\.github|builder|formats|kernels|runtime|tests|tuner)/[\w./-]*)`", self.readme)
        self.assertGreater(len(names), 8)
        for name in names:
            self.assertTrue(os.path.exists(os.path.join(ROOT, name)), name)

    def test_table_of_models_is_that_of_the_code(self):
        """engbuild --list-models; in README an asterisk is escaped."""
        rows = subprocess.run([os.path.join(BUILT, "builder", "engbuild"), "--list-models"], check=True, capture_output=True,
                              text=True).stdout.replace("*", "\\*")
        self.assertGreater(rows.count("\n"), 30)
        self.assertIn("|---|---|\n" + rows + "\n", self.readme)

    def test_version_is_the_library_s(self):
        version = re.search(r'#define ENG_VERSION_TEXT "(.*)"', read("runtime", "eng.h")).group(1)
        self.assertEqual(set(re.findall(r"\beng-(\d[\d.]*\d)\b", self.readme)), {version})

    def test_no_entry_is_left_over(self):
        for start in [*NOT_RUN, *STAND_INS]:
            self.assertTrue(any((command + " ").startswith(start) for command in commands(self.readme)), start)


class Commands(unittest.TestCase):
    """All commands of README, in order, in a folder that looks like the tree after `bazel build //:programs //:dist`."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(self.folder.cleanup)
        self.tree = os.path.join(self.folder.name, "tree")
        os.makedirs(os.path.join(self.tree, ".ci"))
        for name, target in (("bazel-bin", BUILT), ("runtime", os.path.join(ROOT, "runtime")),
                             ("tests", os.path.join(ROOT, "tests"))):
            os.symlink(target, os.path.join(self.tree, name))
        shutil.copy(os.path.join(ROOT, ".ci", "demo"), os.path.join(self.tree, ".ci"))
        self.write(os.path.join(self.tree, ".ci", "install"), FAKE_INSTALL)
        self.bin = os.path.join(self.folder.name, "bin")
        os.mkdir(self.bin)
        self.write(os.path.join(self.bin, "bazel"), FAKE_BAZEL)

    @staticmethod
    def write(path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def run_script(self, lines):
        script = "set -eu\n" + "\n".join(lines) + "\n"
        # No GPU and no user's tuning cache, whatever the machine has.
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "XDG_CACHE_HOME": os.path.join(self.folder.name, "cache"),
               "PATH": self.bin + ":" + os.environ.get("PATH", "/usr/bin:/bin")}
        return subprocess.run(["bash", "-c", script], cwd=self.tree, env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, check=False)

    def test_all_commands(self):
        script, counts = [], {"run": 0, "done otherwise": 0, "not run": 0}
        for command in commands(read("README.md")):
            stand_in = entry(STAND_INS, command)
            if entry(NOT_RUN, command):
                counts["not run"] += 1
                continue
            counts["done otherwise" if stand_in else "run"] += 1
            script.append("echo %s" % subprocess.list2cmdline(["+ " + command.replace("$", "\\$")]))
            script.append("set -- %s\n%s" % (command, stand_in) if stand_in else command)
        done = self.run_script(script)
        output = done.stdout.decode(errors="replace")
        self.assertEqual(done.returncode, 0, output)
        # The demo, engrun, its two ranks (fables again) and the example, built in two ways, tell the same story.
        self.assertGreaterEqual(output.count("there was a little fox named Mira"), 5, output)
        self.assertIn("selftest passed", output)
        self.assertGreater(counts["run"], 10)
        print("commands: %s" % counts, file=sys.stderr)

    def test_a_command_that_fails_is_noticed(self):
        self.assertNotEqual(self.run_script(["bazel-bin/builder/engbuild --model no-such-model -o model.eng"]).returncode, 0)
        self.assertNotEqual(self.run_script(["bazel-bin/no-such-program"]).returncode, 0)


if __name__ == "__main__":
    unittest.main()
