# SPDX-License-Identifier: Apache-2.0
"""engbuild with failing allocations: call number n of the allocator, of mmap or of pthread_create fails, once or from
then on, for pseudo-random n. The build ends with exit code 3 and a message and leaves no file, or it writes the same
engine."""

import os
import random
import unittest

from harness import ENGBUILD, FABLES, LIBFAULTS, SANITIZED, run, scratch, tally

POINTS = 6 if SANITIZED else 24
FIRST_CALLS = 4 if SANITIZED else 12  # every one of the first calls, which parse the command line
LAST_CALLS = 4 if SANITIZED else 16  # every one of the last calls, which rename the file
OPTIONS = [[], ["--gpus", "2", "--json"]]


def build(path, options, nth, from_there_on):
    """Returns (Result, calls, failures among them)."""
    report = path + ".report"
    asan = os.environ.get("ASAN_OPTIONS", "")
    variables = {"LD_PRELOAD": LIBFAULTS, "FAULT_NTH": str(nth), "FAULT_REPORT": report,
                 "ASAN_OPTIONS": asan + ":verify_asan_link_order=0"}
    if from_there_on:
        variables["FAULT_FROM_THERE_ON"] = "1"
    result = run([ENGBUILD, "--model", FABLES, "--target", "cpu", "-o", path, "--tune", "off", "--tuning-cache", "none",
                  "--threads", "2", "--max-context", "128", "--max-batch", "2", "--prefill-chunks", "16", *options],
                 env=variables)
    with open(report) as file:
        calls, failures = map(int, file.read().split())
    os.unlink(report)
    return result, calls, failures


class AllocationFaults(unittest.TestCase):
    def check(self, folder, options, nth, from_there_on, expected):
        """Returns whether the build succeeded."""
        path = os.path.join(folder, "model.eng")
        where = "call %d fails%s: " % (nth, " and all after it" if from_there_on else "")
        result, _, failures = build(path, options, nth, from_there_on)
        self.assertGreaterEqual(failures, 1, where + "not reached")
        if result.rc == 0:
            self.assertEqual(os.listdir(folder), ["model.eng"], where)
            with open(path, "rb") as file:
                self.assertEqual(file.read(), expected, where + "another engine")
            os.unlink(path)
            return True
        self.assertEqual(result.rc, 3, where + result.stderr)
        self.assertEqual(os.listdir(folder), [], where + "files were left")
        self.assertRegex(result.stderr, r"(?m)^engbuild: .*\S$", where)
        return False

    def test_points(self):
        generator = random.Random(14)
        cases = survived = 0
        for options in OPTIONS:
            with scratch() as folder:
                path = os.path.join(folder, "model.eng")
                result, total, _ = build(path, options, 0, False)
                self.assertEqual(result.rc, 0, result.stderr)
                with open(path, "rb") as file:
                    expected = file.read()
                os.unlink(path)
                self.assertGreater(total, 1000)
                points = [generator.randrange(total * i // POINTS, total * (i + 1) // POINTS) + 1 for i in range(POINTS)]
                for nth in [*range(1, FIRST_CALLS + 1), *points, *range(total - LAST_CALLS + 1, total + 1)]:
                    for from_there_on in (False, True):
                        cases += 1
                        survived += self.check(folder, options, nth, from_there_on, expected)
        self.assertLess(survived, cases / 4)
        tally("builds with a failure, %d of them survived it" % survived, cases)


if __name__ == "__main__":
    unittest.main()
