# SPDX-License-Identifier: Apache-2.0
"""An engine file that is damaged, or overwritten while a program has it open: the report of enginfo's checks, and
--private-weights."""

import json
import os
import subprocess
import unittest

from harness import ENGBENCH, ENGINFO, ENGRUN, fables_engine, run, scratch, succeed


FOLDER = scratch()


def copy_of_engine(name):
    path = os.path.join(FOLDER.name, name)
    with open(fables_engine(), "rb") as source, open(path, "wb") as target:
        target.write(source.read())
    return path


def weights_section(path):
    """Returns (offset, bytes). Section table entries have 48 bytes and begin at byte 128; type 3 is the weights."""
    with open(path, "rb") as file:
        head = file.read(4096)
    for i in range(int.from_bytes(head[64:68], "little")):
        entry = head[128 + 48 * i : 176 + 48 * i]
        if int.from_bytes(entry[:4], "little") == 3:
            return int.from_bytes(entry[8:16], "little"), int.from_bytes(entry[16:24], "little")
    raise AssertionError("no weights in " + path)


def overwrite(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


class Damaged(unittest.TestCase):
    def test_says_what_was_not_checked(self):
        path = copy_of_engine("damaged_weights.eng")
        offset, size = weights_section(path)
        overwrite(path, offset + size // 2, b"damage" * 8)
        result = run([ENGINFO, path])
        self.assertEqual((result.rc, result.stderr), (0, ""))
        self.assertIn("structure and checksums of all but the weights verified; --verify checks these, too",
                      result.stdout)
        result = run([ENGINFO, path, "--verify"])
        self.assertEqual((result.rc, result.stdout), (1, ""))
        self.assertIn("section 'weights': chunk 0 of ", result.stderr)

    def test_says_what_was_checked(self):
        result = run([ENGINFO, fables_engine(), "--verify"])
        self.assertEqual((result.rc, result.stderr), (0, ""))
        self.assertIn("structure and all checksums verified, of the weights, too", result.stdout)
        self.assertNotIn("--verify", result.stdout)


class PrivateWeights(unittest.TestCase):
    def test_the_file_may_be_overwritten_meanwhile(self):
        flags = ["-p", "Once upon a time", "-n", "400", "--ignore-eos", "--print-tokens", "--threads", "1"]
        expected = succeed([ENGRUN, fables_engine(), *flags])
        path = copy_of_engine("overwritten.eng")
        process = subprocess.Popen([ENGRUN, path, "--private-weights", *flags], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        first = process.stdout.read(1)
        with open(path, "r+b") as file:
            file.truncate(0)
            file.write(b"another" * 1000)
        rest, errors = process.communicate(timeout=600)
        self.assertEqual((process.returncode, errors), (0, b""))
        self.assertEqual((first + rest).decode(), expected.stdout)

    def test_engbench_takes_it(self):
        result = succeed([ENGBENCH, fables_engine(), "--private-weights", "-p", "8", "-n", "2", "-r", "1", "--json"])
        json.loads(result.stdout)


if __name__ == "__main__":
    unittest.main()
