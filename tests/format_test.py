# SPDX-License-Identifier: Apache-2.0
"""Every C source is formatted as .clang-format says. `.ci/format` applies it.

Versions of clang-format differ in details, so only version 14 (Debian 12's) is asked."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from architecture_test import source_files, tree_root

VERSION = "14"


def formatter():
    """Path of clang-format of the right version, or None."""
    for name in ("clang-format-" + VERSION, "clang-format"):
        path = shutil.which(name)
        if path:
            text = subprocess.run([path, "--version"], stdout=subprocess.PIPE, check=True).stdout.decode()
            if " %s." % VERSION in text:
                return path
    return None


def differing(root, paths):
    """{path: first complaint} of the files that clang-format would change."""
    command = [formatter(), "--style=file", "--dry-run", "--Werror", *paths]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    complaints = {}
    for line in done.stderr.decode(errors="replace").splitlines():
        match = re.match(r"(?:\./)?(\S+?):(\d+):\d+: (?:error|warning): (.*)", line)
        if match:
            complaints.setdefault(match.group(1), "line %s: %s" % match.group(2, 3))
    if done.returncode != 0 and not complaints:
        raise AssertionError(done.stderr.decode(errors="replace"))
    return complaints


@unittest.skipIf(formatter() is None, "needs clang-format " + VERSION)
class Format(unittest.TestCase):
    def test_sources(self):
        root = tree_root()
        paths = [path for _, path in source_files(root) if path.endswith((".c", ".h", ".cu", ".cuh"))]
        self.assertTrue(paths)
        self.assertTrue(os.path.exists(os.path.join(root, ".clang-format")))
        complaints = ["%s: %s" % item for item in sorted(differing(root, paths).items())]
        self.assertFalse(complaints, "to do: run .ci/format\n" + "\n".join(complaints))

    def test_sees_a_difference(self):
        with tempfile.TemporaryDirectory() as root:
            shutil.copy(os.path.join(tree_root(), ".clang-format"), root)
            for name, text in (("good.c", "int x;\n"), ("bad.c", "int  x ;\n")):
                with open(os.path.join(root, name), "w") as file:
                    file.write(text)
            self.assertEqual(list(differing(root, ["good.c", "bad.c"])), ["bad.c"])


if __name__ == "__main__":
    sys.exit(unittest.main())
