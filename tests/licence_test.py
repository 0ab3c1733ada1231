# SPDX-License-Identifier: Apache-2.0
"""Every source names its licence: `SPDX-License-Identifier: Apache-2.0` is its first line, or the second of a script."""

import os
import sys
import tempfile
import unittest

from architecture_test import MAY_INCLUDE, tree_root

IDENTIFIER = "SPDX-License-Identifier: Apache-2.0"
COMMENTS = {"/* %s */" % IDENTIFIER: (".c", ".h", ".cu", ".cuh", ".css"),
            "// %s" % IDENTIFIER: (".js",),
            "# %s" % IDENTIFIER: (".py", ".bzl", ".sh", "BUILD", "WORKSPACE")}

# Data that others' programs wrote, or that hold licences of their own.
NOT_SOURCES = ("fables", "corpus", "testdata", "data", "__pycache__")


def expected_line(name, first):
    """The line with which a file must begin (after a script's first), or None where it is no source."""
    if first.startswith("#!"):
        return "# " + IDENTIFIER
    return next((line for line, endings in COMMENTS.items() if name.endswith(endings)), None)


def sources(root):
    """(path, first two lines) of every file that may be a source."""
    folders = [os.path.join(root, folder) for folder in (*MAY_INCLUDE, ".bazel", ".ci")]
    names = [os.path.join(root, name) for name in ("BUILD", "WORKSPACE")]
    for folder in folders:
        for where, inner, files in os.walk(folder):
            inner[:] = [name for name in inner if name not in NOT_SOURCES]
            names += [os.path.join(where, name) for name in files]
    for name in names:
        with open(name, encoding="utf-8", errors="replace") as file:
            yield os.path.relpath(name, root), [file.readline().rstrip("\n"), file.readline().rstrip("\n")]


def defects(root):
    for path, (first, second) in sources(root):
        expected = expected_line(os.path.basename(path), first)
        found = second if first.startswith("#!") else first
        if expected and found != expected:
            yield "%s: expected the line '%s', found '%s'" % (path, expected, found)


class Licence(unittest.TestCase):
    def test_every_source_names_it(self):
        root = tree_root()
        self.assertGreater(len(list(sources(root))), 600)
        found = sorted(defects(root))
        self.assertFalse(found, "%d files:\n%s" % (len(found), "\n".join(found[:20])))

    def test_sees_what_is_missing(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "runtime"))
            for name, text in (("a.c", "int x;\n"), ("b.sh", "#!/bin/bash\necho\n"), ("c.py", ""), ("d.json", "{}\n"),
                               ("e.h", "/* %s */\n" % IDENTIFIER), ("f.sh", "#!/bin/bash\n# %s\n" % IDENTIFIER)):
                with open(os.path.join(root, "runtime", name), "w", encoding="utf-8") as file:
                    file.write(text)
            for name in ("BUILD", "WORKSPACE"):
                with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                    file.write("# %s\n" % IDENTIFIER)
            found = [line.split(":")[0] for line in sorted(defects(root))]
            self.assertEqual(found, ["runtime/a.c", "runtime/b.sh", "runtime/c.py"])


if __name__ == "__main__":
    sys.exit(unittest.main())
