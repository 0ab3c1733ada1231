"""Every C source is formatted as .clang-format says. `.ci/format` applies it.

Versions of clang-format differ in details, so only version 14 (Debian 12's) is asked."""

import os
import shutil
import subprocess
import sys
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


@unittest.skipIf(formatter() is None, "needs clang-format " + VERSION)
class Format(unittest.TestCase):
    def differing(self, root, paths):
        """The paths that clang-format would change."""
        style = "--style=file"
        result = []
        for path in paths:
            with open(os.path.join(root, path), "rb") as file:
                text = file.read()
            # From stdin and under the tree's root, so that the committed style is found and not a user's own.
            done = subprocess.run([formatter(), style, "--assume-filename=" + path], input=text, cwd=root,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            if done.stdout != text:
                result.append(path)
        return result

    def test_sources(self):
        root = tree_root()
        paths = [path for _, path in source_files(root) if path.endswith((".c", ".h", ".cu", ".cuh"))]
        self.assertTrue(paths)
        self.assertTrue(os.path.exists(os.path.join(root, ".clang-format")))
        self.assertEqual(self.differing(root, paths), [], "to do: run .ci/format")


if __name__ == "__main__":
    sys.exit(unittest.main())
