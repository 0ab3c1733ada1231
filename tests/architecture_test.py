# SPDX-License-Identifier: Apache-2.0
"""Checks the rules that hold the source tree together: which folder may include which, what a file may be called
and contain. Each rule also has a self-test below that plants a violation in a small tree and expects it found."""

import os
import re
import sys
import tempfile
import unittest

# folder -> folders whose headers it may include, besides its own. Anything else is a defect.
MAY_INCLUDE = {
    "formats": set(),
    "kernels": {"formats"},
    "tuner": {"kernels", "formats"},
    "builder": {"tuner", "kernels", "formats"},
    "runtime": {"formats", "kernels"},
    "tests": {"builder", "runtime", "kernels", "tuner", "formats"},
}

# Libraries that parse or pack data belong in formats/; reports are written with jansson elsewhere too.
MAY_USE_LIBRARY = {
    "histedit.h": {"runtime"},
    "jansson.h": {"formats", "builder", "runtime", "tests"},
    "microhttpd.h": {"runtime"},
    "pcre2.h": {"formats", "tests"},
    "sodium.h": {"runtime", "tests"},
    "utf8proc.h": {"formats", "tests"},
    "xxhash.h": {"formats", "tests"},
    "zlib.h": {"formats", "tests"},
}

C_SOURCES = (".c", ".h")
DEVICE_SOURCES = (".cu", ".cuh")
HOST_CXX = (".cc", ".cpp", ".cxx", ".c++", ".hh", ".hpp", ".hxx", ".C", ".H")
TEXT = C_SOURCES + DEVICE_SOURCES + (".py", ".sh", ".md", ".map", "BUILD")

ISA_FILE = re.compile(r"_(avx2|avx512|avx512vnni|avx512bf16|amx)\.[ch]$")
ISA_CODE = re.compile(r"\b_mm(256|512)_\w+|\b__m(256|512)[id]?\b|<(imm|avx\w*|x86)intrin\.h>|__attribute__\s*\(\(\s*target\b")
ISA_FLAG = re.compile(r"-m(avx|fma|f16c|arch=|tune=|sse|prefer-vector)")
UNSAFE_MATH = re.compile(r"-ffast-math|-Ofast|#\s*pragma\s+GCC\s+optimize|__attribute__\s*\(\(\s*optimize\b")

# A library neither ends the process nor prints; its programs do.
PROGRAMS = ("runtime/cli/", "runtime/examples/", "runtime/server/")
ENDS_OR_PRINTS = re.compile(
    r"\b(exit|_exit|_Exit|quick_exit|abort|assert|printf|vprintf|fprintf|vfprintf|puts|fputs|putchar|perror)\s*\(")

# NVRTC, which compiles kernels where an engine is built, takes them for host functions; nvcc does not.
GENERIC_LAMBDA = re.compile(r"\[[&=\w, ]*\]\s*\([^()]*\bauto\b")

UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]) + r")\b")

# The licence's line counts, too.
MAX_LINES = 801

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def without_comments_and_strings(text):
    """The same lines with comments and literals blanked, so that prose about exit() is not a call of it."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda match: "\n" * match.group().count("\n") or " ", text, flags=re.S)


def source_files(root):
    """(folder, path from the root) of every file to look at."""
    for folder in sorted(MAY_INCLUDE):
        for where, folders, files in os.walk(os.path.join(root, folder)):
            # Models, corpora and recorded data are not sources.
            folders[:] = sorted(f for f in folders if f not in ("models", "corpus", "testdata", "data", "__pycache__"))
            for file in sorted(files):
                yield folder, os.path.relpath(os.path.join(where, file), root)


def check_includes(folder, path, lines):
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        quoted, system = match.groups()
        if folder not in MAY_USE_LIBRARY.get(system, MAY_INCLUDE):
            yield "%s:%d: %s/ may not use <%s>: only %s may" % (
                path, number, folder, system, ", ".join(sorted(MAY_USE_LIBRARY[system])))
        if not quoted or (path, quoted) == ("runtime/eng_cuda.h", "eng.h"):  # as they are installed, side by side
            continue
        target = quoted.split("/")[0]
        if "/" not in quoted or target not in MAY_INCLUDE:
            yield '%s:%d: "%s" must be written from the root of the tree, as "%s/..."' % (path, number, quoted, folder)
        elif target != folder and target not in MAY_INCLUDE[folder]:
            yield "%s:%d: %s/ may not include %s/ (allowed: %s)" % (
                path, number, folder, target, ", ".join(sorted(MAY_INCLUDE[folder])) or "no folder of ours")
        elif path.startswith("runtime/") and not path.startswith(PROGRAMS) and quoted.startswith(PROGRAMS):
            yield "%s:%d: the library may not include its programs (%s)" % (path, number, quoted)


def check_code(folder, path, text):
    is_test = path.endswith("_test.c") or os.path.basename(path).startswith("test_") or folder == "tests"
    for number, line in enumerate(without_comments_and_strings(text).split("\n"), 1):
        if not ISA_FILE.search(path) and ISA_CODE.search(line):
            yield "%s:%d: instruction-set code belongs in a file named *_avx2, *_avx512, *_avx512vnni, *_avx512bf16 or " \
                "*_amx: %s" % (path, number, ISA_CODE.search(line).group())
        if UNSAFE_MATH.search(line):
            yield "%s:%d: results may not depend on the optimizer: %s" % (path, number, UNSAFE_MATH.search(line).group())
        if folder == "runtime" and not path.startswith(PROGRAMS) and not is_test:
            match = ENDS_OR_PRINTS.search(line)
            if match:
                yield "%s:%d: the library may neither end the process nor print: %s" % (path, number, match.group(1))


def check_file(root, folder, path):
    if path.endswith(HOST_CXX):
        yield "%s: host code is C11, not C++" % path
        return
    if path.endswith(DEVICE_SOURCES) and folder not in ("kernels", "tests"):
        yield "%s: device code belongs in kernels/" % path
    if not path.endswith(TEXT):
        return
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = file.read()
    lines = text.split("\n")
    if len(lines) - 1 > MAX_LINES:
        yield "%s: %d lines; a file has one subject and at most %d" % (path, len(lines) - 1, MAX_LINES)
    for number, line in enumerate(lines, 1):
        if UNFINISHED.search(line):
            yield "%s:%d: unfinished: %s" % (path, number, UNFINISHED.search(line).group())
        if os.path.basename(path) == "BUILD" and (ISA_FLAG.search(line) or UNSAFE_MATH.search(line)):
            yield "%s:%d: compiler flags for instruction sets and arithmetic stand in one place, not here" % (path, number)
    if path.endswith(C_SOURCES + DEVICE_SOURCES):
        yield from check_includes(folder, path, lines)
    if path.endswith(C_SOURCES):
        yield from check_code(folder, path, text)
    if path.endswith(DEVICE_SOURCES) and folder == "kernels":
        for match in GENERIC_LAMBDA.finditer(without_comments_and_strings(text)):
            yield "%s:%d: parameters of lambdas in device code have types" % (path, text.count("\n", 0, match.start()) + 1)


def unit_of(path):
    """A source and its header are one unit: x.c, x.h, x.cu and x.cuh of one folder."""
    return os.path.splitext(path)[0]


def find_circles(arrows):
    """The sets of units that include each other in a circle (Tarjan 1972, without recursion)."""
    number, low, stack, circles = {}, {}, [], []
    for start in sorted(arrows):
        walk = [(start, iter(sorted(arrows[start])))] if start not in number else []
        while walk:
            unit, targets = walk[-1]
            if unit not in number:
                number[unit] = low[unit] = len(number)
                stack.append(unit)
            for target in targets:
                if target not in number:
                    walk.append((target, iter(sorted(arrows[target]))))
                    break
                if target in stack:
                    low[unit] = min(low[unit], number[target])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[unit])
                if low[unit] == number[unit]:
                    members = set(stack[stack.index(unit):])
                    del stack[stack.index(unit):]
                    if len(members) > 1:
                        circles.append(members)
    return circles


def check_circles(root):
    """Inside a folder, too, includes lead one way. Folders among each other: check_includes."""
    arrows = {}
    for folder, path in source_files(root):
        if not path.endswith(C_SOURCES + DEVICE_SOURCES):
            continue
        targets = arrows.setdefault(unit_of(path), set())
        with open(os.path.join(root, path), encoding="utf-8") as file:
            found = [match.group(1) for match in map(INCLUDE.match, file) if match and match.group(1)]
        targets.update(unit_of(name) for name in found if name.startswith(folder + "/"))
    for unit in arrows:
        arrows[unit] = {target for target in arrows[unit] if target in arrows and target != unit}
    for circle in find_circles(arrows):
        yield "%s: include each other in a circle: %s" % (
            sorted(circle)[0], "; ".join("%s -> %s" % (unit, ", ".join(sorted(arrows[unit] & circle)))
                                         for unit in sorted(circle)))


def check_tree(root):
    defects = [defect for folder, path in source_files(root) for defect in check_file(root, folder, path)]
    return defects + list(check_circles(root))


def tree_root():
    runfiles = os.environ.get("TEST_SRCDIR")
    if runfiles:
        return os.path.join(runfiles, os.environ.get("TEST_WORKSPACE", "eng"))
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Tree(unittest.TestCase):
    def test_every_rule_holds(self):
        defects = check_tree(tree_root())
        self.assertEqual(defects, [], "\n" + "\n".join(defects))

    def test_every_folder_is_seen(self):
        seen = {folder for folder, _ in source_files(tree_root())}
        self.assertEqual(seen, set(MAY_INCLUDE))


class PlantedViolation(unittest.TestCase):
    """Each rule fails where it should, and names the file and the line."""

    def planted(self, *paths_and_texts):
        with tempfile.TemporaryDirectory() as root:
            clean = {
                "formats/a.h": "#pragma once\n",
                "kernels/op/op.h": '#include "formats/a.h"\n',
                "runtime/run.c": '#include "kernels/op/op.h"\n// exit() and printf() in prose, "abort()" in text\n',
                "tests/all_test.c": '#include "builder/b.h"\n#include "runtime/run.h"\n',
            }
            planted = zip(paths_and_texts[::2], paths_and_texts[1::2])
            for name, content in list(clean.items()) + list(planted):
                os.makedirs(os.path.join(root, os.path.dirname(name)), exist_ok=True)
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write(content)
            return check_tree(root)

    def assert_found(self, path, text, line, expected):
        defects = self.planted(path, text)
        self.assertEqual(len(defects), 1, defects)
        self.assertIn("%s:%d:" % (path, line) if line else path + ":", defects[0])
        self.assertIn(expected, defects[0])

    def test_clean_tree_passes(self):
        self.assertEqual(self.planted("formats/b.c", '#include "formats/a.h"\n#include <jansson.h>\n'), [])
        self.assertEqual(self.planted("kernels/op/op_avx2.c", "#include <immintrin.h>\n__m256 x;\n"), [])
        self.assertEqual(self.planted("runtime/cli/engrun.c", 'int main(void) { printf("x"); exit(1); }\n'), [])
        self.assertEqual(self.planted("runtime/name.c", 'snprintf(text, sizeof(text), "%d", 1);\n'), [])

    def test_every_forbidden_arrow(self):
        for folder, allowed in MAY_INCLUDE.items():
            for target in set(MAY_INCLUDE) - allowed - {folder}:
                with self.subTest(folder=folder, target=target):
                    text = '#include <stdio.h>\n#include "%s/x.h"\n' % target
                    self.assert_found("%s/planted.c" % folder, text, 2, "may not include %s/" % target)
                    self.assert_found("%s/planted_test.c" % folder, text, 2, "may not include %s/" % target)

    def test_circles(self):
        for files in (("tuner/a.c", '#include "tuner/b.h"\n', "tuner/b.h", '#include "tuner/a.h"\n'),
                      ("tuner/a.h", '#include "tuner/cpu/b.h"\n', "tuner/cpu/b.c", '#include "tuner/a.h"\n')):
            with self.subTest(files=files):
                defects = self.planted(*files)
                self.assertEqual(len(defects), 1, defects)
                self.assertIn("circle", defects[0])
        self.assertIn("tuner/a -> tuner/b; tuner/b -> tuner/c; tuner/c -> tuner/a", self.planted(
            "tuner/a.c", '#include "tuner/b.h"\n', "tuner/b.h", '#include "tuner/c.h"\n', "tuner/c.h",
            '#include "tuner/a.h"\n')[0])
        # One way, whatever the number of ways; a file and its own header.
        self.assertEqual(self.planted(
            "tuner/a.c", '#include "tuner/a.h"\n#include "tuner/b.h"\n#include "tuner/c.h"\n', "tuner/a.h", "",
            "tuner/b.h", '#include "tuner/c.h"\n', "tuner/c.h", ""), [])

    def test_include_not_from_the_root(self):
        self.assert_found("formats/b.c", '#include "a.h"\n', 1, "from the root")
        self.assert_found("formats/b.c", '#include "../formats/a.h"\n', 1, "from the root")

    def test_library_header_outside_formats(self):
        self.assert_found("runtime/b.c", "#include <zlib.h>\n", 1, "may not use")
        self.assert_found("kernels/b.c", "#include <jansson.h>\n", 1, "may not use")

    def test_library_includes_program(self):
        self.assert_found("runtime/b.c", '#include "runtime/cli/cli_text.h"\n', 1, "its programs")

    def test_host_cxx(self):
        self.assert_found("builder/b.cpp", "", 0, "not C++")

    def test_device_code_elsewhere(self):
        self.assert_found("runtime/b.cu", "", 0, "kernels/")

    def test_generic_lambda(self):
        self.assert_found("kernels/op/op.cuh", "\nf([&](auto &x, int i) { x = i; });\n", 2, "lambdas")
        self.assertEqual(self.planted("kernels/op/op.cuh", "f([&](int i) { auto x = i; });\n"), [])

    def test_instruction_set_code_in_portable_file(self):
        self.assert_found("kernels/op/op.c", "\nstatic __m256 x;\n", 2, "__m256")
        self.assert_found("kernels/op/op.c", "#include <immintrin.h>\n", 1, "immintrin")
        self.assert_found("kernels/op/op.c", '__attribute__((target("avx2"))) void f(void);\n', 1, "target")

    def test_instruction_set_flag_in_build_file(self):
        self.assert_found("kernels/BUILD", 'copts = ["-mavx2"],\n', 1, "flags")

    def test_unsafe_math(self):
        self.assert_found("kernels/op/op.c", '#pragma GCC optimize("fast-math")\n', 1, "optimizer")

    def test_library_ends_or_prints(self):
        for call in ("exit(1)", "abort()", "printf(s)", "fprintf(stderr, s)", "puts(s)", "assert(x)"):
            with self.subTest(call=call):
                self.assert_found("runtime/b.c", "void f(void)\n{\n    %s;\n}\n" % call, 3, call.split("(")[0])

    def test_unfinished_mark(self):
        self.assert_found("tuner/b.h", "// TO" + "DO: more\n", 1, "unfinished")

    def test_long_file(self):
        self.assert_found("tuner/b.c", "int x;\n" * (MAX_LINES + 1), 0, "802 lines")
        self.assertEqual(self.planted("tuner/b.c", "\n" * MAX_LINES), [])


if __name__ == "__main__":
    sys.exit(unittest.main())
