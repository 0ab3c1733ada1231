# SPDX-License-Identifier: Apache-2.0
"""engbuild with failing allocations: call number n of the allocator, of mmap or of pthread_create fails, once or from
then on, for pseudo-random n. The build ends with exit code 3 and a message and leaves no file, or it writes the same
engine. And engserve, each of whose threads cannot start in turn."""

import os
import random
import re
import signal
import subprocess
import threading
import unittest

from harness import ENGBUILD, ENGSERVE, FABLES, LIBFAULTS, SANITIZED, build_engine, environment, run, scratch, tally

POINTS = 6 if SANITIZED else 24
FIRST_CALLS = 4 if SANITIZED else 12  # every one of the first calls, which parse the command line
LAST_CALLS = 4 if SANITIZED else 16  # every one of the last calls, which rename the file
MOST_SECONDS = 120  # of a start of engserve
OPTIONS = [[], ["--gpus", "2", "--json"]]


def preloaded(nth, **variables):
    asan = os.environ.get("ASAN_OPTIONS", "")
    return {"LD_PRELOAD": LIBFAULTS, "FAULT_NTH": str(nth), "ASAN_OPTIONS": asan + ":verify_asan_link_order=0", **variables}


def build(path, options, nth, from_there_on):
    """Returns (Result, calls, failures among them)."""
    report = path + ".report"
    variables = preloaded(nth, FAULT_REPORT=report)
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


class ThreadFaults(unittest.TestCase):
    def start(self, nth):
        """engserve whose start of thread `nth` fails: (exit code, stderr); after SIGTERM, if it became ready."""
        with subprocess.Popen([ENGSERVE, "fables=" + build_engine(FABLES, "--max-batch", "4"), "--port", "0", "--threads", "2", "--quiet"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=environment(preloaded(nth, FAULT_THREADS="1"))) as server:
            limit = threading.Timer(MOST_SECONDS, server.kill)
            limit.start()
            try:
                if b"ready at" in server.stdout.readline():
                    server.send_signal(signal.SIGTERM)
                log = server.stderr.read().decode()
                return server.wait(), log
            finally:
                limit.cancel()

    def test_engserve(self):
        logs = []
        while True:
            code, log = self.start(len(logs) + 1)
            if code == 0:
                break
            self.assertEqual(code, 3, log)
            self.assertRegex(log, r"^engserve: .*thread.*\n$")
            logs.append(log)
        found = [int(match.group(1)) for log in logs for match in [re.search(r"HTTP thread (\d+) of 4 cannot start: the system refuses a thread: .*; raise the limits", log)] if match]
        self.assertEqual(found, [1, 2, 3, 4], logs)
        self.assertGreaterEqual(len(logs), 6, logs)  # a thread of the session and one of the model, too
        tally("starts of engserve without a thread", len(logs))


if __name__ == "__main__":
    unittest.main()
