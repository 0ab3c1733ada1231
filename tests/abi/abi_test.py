# SPDX-License-Identifier: Apache-2.0
"""The binary interface of libeng.so is that of tests/abi/eng.abi.xz, which libabigail (Debian's abigail-tools) reads: functions with their
symbol versions, structs, enumerations. What may be added at the end of structs and as functions is no accident then, and what programs
already rely on stays.

`python3 tests/abi/abi_test.py --renew` in the tree writes the file anew, after an intended change. A change that abidiff calls
incompatible needs another SONAME, too (runtime/BUILD, and ENG_VERSION_MAJOR)."""

import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

RUNFILES = "TEST_SRCDIR" in os.environ
ROOT = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"]) if RUNFILES else \
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASELINE = os.path.join(ROOT, "tests", "abi", "eng.abi.xz")
PUBLIC = '__attribute__((visibility("default")))'
RENEW = "python3 tests/abi/abi_test.py --renew"
SONAME = "libeng.so.0"

# Bits of abidiff's exit status.
FAILED, CHANGED, INCOMPATIBLE = 1 | 2, 4, 8


def output(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    if done.returncode:
        raise AssertionError("%s: exit %d\n%s" % (command, done.returncode, done.stderr))
    return done.stdout


def declarations(header, folder):
    """The functions that the headers declare, of which `header` is eng.h, without their ';', and the names of its enumerations. Both are
    in the folder then."""
    shutil.copy(header, os.path.join(folder, "eng.h"))
    shutil.copy(os.path.join(ROOT, "runtime", "eng_cuda.h"), folder)
    text = output(["cc", "-E", "-P", os.path.join(folder, "eng_cuda.h")])
    functions = [part.split(";")[0].strip() for part in text.split(PUBLIC)[1:]]
    return [function for function in functions if "(" in function], sorted(set(re.findall(r"\benum (eng_\w+)\s*\{", text)))


def describe(header, folder):
    """What abidw says of a library with the functions of a header, which do nothing: so debug information is needed of them alone."""
    functions, enums = declarations(header, folder)
    # Names of bits are in no signature.
    functions.append("void eng_enumerations(%s)" % ", ".join("enum %s *%s" % (name, name) for name in enums))
    with open(os.path.join(folder, "eng.c"), "w", encoding="utf-8") as file:
        file.write('#include "eng_cuda.h"\n' + "".join("%s %s { __builtin_trap(); }\n" % (PUBLIC, function) for function in functions))
    output(["cc", "-std=c11", "-g", "-shared", "-fPIC", "-nostdlib", "-I", folder, os.path.join(folder, "eng.c"),
            "-Wl,--version-script=" + os.path.join(ROOT, "runtime", "eng.map"), "-Wl,-soname," + SONAME,
            "-o", os.path.join(folder, "libeng.so")])
    return output(["abidw", "--no-show-locs", "--no-corpus-path", "--no-comp-dir-path", os.path.join(folder, "libeng.so")])


def compare(old, new, folder):
    """abidiff's exit status and report."""
    paths = [os.path.join(folder, name) for name in ("old.abi", "new.abi")]
    for path, text in zip(paths, (old, new)):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    done = subprocess.run(["abidiff", "--harmless", *paths], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          universal_newlines=True)
    return done.returncode, done.stdout


def header_path():
    return os.path.join(ROOT, "runtime", "eng.h")


@unittest.skipIf(shutil.which("abidw") is None, "needs Debian's abigail-tools")
@unittest.skipIf(platform.machine() != "x86_64", "the description is of x86-64")
class Abi(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with lzma.open(BASELINE, "rt", encoding="utf-8") as file:
            self.baseline = file.read()

    def test_is_that_of_the_baseline(self):
        status, report = compare(self.baseline, describe(header_path(), self.folder), self.folder)
        self.assertFalse(status & FAILED, report)
        if status & INCOMPATIBLE:
            self.fail("programs that were built before would break:\n%s\nTake the change back, or raise ENG_VERSION_MAJOR and the "
                      "SONAME, and then run: %s" % (report, RENEW))
        self.assertEqual(status, 0, "%s\nIf that is intended, run: %s" % (report, RENEW))

    def test_changes_are_found(self):
        """A parameter of another type, a field in the middle, another number: each is a change."""
        with open(header_path(), encoding="utf-8") as file:
            text = file.read()
        for old, new in (("ENG_API const char *eng_status_name(int status);", "ENG_API const char *eng_status_name(long status);"),
                         ("    uint32_t threads;       /* 0: one", "    uint64_t threads;       /* 0: one"),
                         ("ENG_STATE_PREFILL = 2", "ENG_STATE_PREFILL = 7"),
                         ("ENG_TEXT_PLAIN = 4", "ENG_TEXT_PLAIN = 8"),
                         ("ENG_API void eng_close(struct eng_engine **engine);", "")):
            with self.subTest(old):
                self.assertEqual(text.count(old), 1)
                path = os.path.join(self.folder, "changed.h")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text.replace(old, new))
                status, report = compare(self.baseline, describe(path, self.folder), self.folder)
                self.assertEqual(status & (FAILED | CHANGED), CHANGED, report)

    def test_functions_are_those_of_the_library(self):
        """The headers declare what the library exports, but for the inline functions' symbols."""
        declared = {re.search(r"\b(eng_\w+)\s*\(", function).group(1)
                    for function in declarations(header_path(), self.folder)[0]}
        library = os.path.join(ROOT, "runtime" if RUNFILES else "bazel-bin/runtime", "libeng.so")
        exported = {line.split()[2].split("@")[0] for line in output(["nm", "-D", "--defined-only", library]).splitlines()
                    if line.split()[1] == "T"}
        with open(header_path(), encoding="utf-8") as file:
            inline = set(re.findall(r"static inline void (eng_\w+_init)\(", file.read()))
        self.assertEqual(exported, declared | inline)


def renew():
    with tempfile.TemporaryDirectory() as folder:
        text = describe(header_path(), folder)
    with lzma.open(BASELINE, "wt", encoding="utf-8", preset=9) as file:
        file.write(text)
    print("%s: renewed" % os.path.relpath(BASELINE))


if __name__ == "__main__":
    sys.exit(renew() if sys.argv[1:] == ["--renew"] else unittest.main())
