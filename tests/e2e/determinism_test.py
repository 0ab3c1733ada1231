# SPDX-License-Identifier: Apache-2.0
"""The same input gives the same bytes. A build that is killed at any moment leaves no engine or a whole one, no stray
files, and all tuning records written before."""

import json
import os
import random
import shutil
import signal
import time
import unittest

from harness import ENGBUILD, ENGINFO, FABLES, contents, needs_shared, sanitized_elsewhere, scratch, shared, start, succeed, tally

SMALL = ["--max-batch", "1", "--batch-sizes", "1", "--prefill-chunks", "16"]
KILLS_WHILE_TUNING = 12
KILLS_WHEN_TUNED = 24


def build_command(output, cache, *options, model=FABLES):
    return [ENGBUILD, "--model", model, "--target", "cpu", "-o", output, "--tuning-cache", cache, *options]


def records(path):
    """Complete lines of a tuning cache."""
    return contents(path).count(b"\n") if os.path.exists(path) else 0


class BuildTest(unittest.TestCase):
    def setUp(self):
        folder = scratch()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.output_folder = self.path("out")
        os.mkdir(self.output_folder)
        self.output = os.path.join(self.output_folder, "m.eng")
        self.cache = self.path("cache", "tuning.records")
        os.mkdir(self.path("cache"))

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def build(self, output, cache, *options, model=FABLES):
        """The report of a build that must succeed."""
        result = succeed(build_command(output, cache, "--json", *options, model=model))
        return json.loads(result.stdout)

    def check_whole(self, path):
        result = succeed([ENGINFO, path, "--verify"])


class SameBytes(BuildTest):
    def check_twice(self, cache, *options, model=FABLES):
        first, second = self.path("first.eng"), self.path("elsewhere", "second-name.eng")
        os.makedirs(os.path.dirname(second), exist_ok=True)
        self.build(first, cache, *options, model=model)
        self.build(second, cache, *options, model=model)
        self.assertEqual(contents(first), contents(second))
        self.check_whole(first)

    @classmethod
    def setUpClass(cls):
        """An engine with default options, to compare others with."""
        folder = scratch()
        cls.addClassCleanup(folder.cleanup)
        cls.untuned = os.path.join(folder.name, "first.eng")
        succeed(build_command(cls.untuned, "none", "--tune", "off"))

    def test_untuned(self):
        second = self.path("second-name.eng")
        self.build(second, "none", "--tune", "off")
        self.assertEqual(contents(second), contents(self.untuned))
        self.check_whole(second)

    def test_other_options(self):
        for options in (["--dtype", "f32"], ["--kv-dtype", "fp16", "--max-context", "100"],
                        ["--batch-sizes", "3,5", "--prefill-chunks", "9"]):
            with self.subTest(options=options):
                self.check_twice("none", "--tune", "off", *options)

    @needs_shared("models", "stories260K")
    def test_other_model(self):
        self.check_twice("none", "--tune", "off", model=shared("models", "stories260K"))

    def test_output_is_replaced_by_the_same(self):
        shutil.copy(self.untuned, self.output)
        before = os.stat(self.output).st_ino
        self.build(self.output, "none", "--tune", "off")
        self.assertNotEqual(os.stat(self.output).st_ino, before)
        self.assertEqual(contents(self.output), contents(self.untuned))
        self.assertEqual(os.listdir(self.output_folder), ["m.eng"])

    def test_checkpoint_by_folder_or_file(self):
        by_file = self.path("file.eng")
        self.build(by_file, "none", "--tune", "off", model=os.path.join(FABLES, "model.safetensors"))
        self.assertEqual(contents(by_file), contents(self.untuned))

    def test_tuned(self):
        cold = self.path("cold.eng")
        report = self.build(cold, self.cache, "--tune", "quick", *SMALL)
        self.assertGreater(report["tactics_measured"], 0)
        self.assertEqual(report["tactics_cached"], 0)
        total = report["tactics_measured"]
        self.assertEqual(records(self.cache), total)
        recorded = contents(self.cache)
        self.check_twice(self.cache, "--tune", "quick", *SMALL)
        warm = self.build(self.output, self.cache, "--tune", "quick", *SMALL)
        self.assertEqual((warm["tactics_measured"], warm["tactics_cached"]), (0, total))
        self.assertEqual(contents(self.output), contents(cold), "what was measured is what the cache gives back")
        self.assertEqual(contents(self.cache), recorded, "nothing new was measured: nothing was added")

    def test_damaged_record_costs_that_record(self):
        report = self.build(self.output, self.cache, "--tune", "quick", *SMALL)
        total = report["tactics_measured"]
        self.assertGreater(total, 2)
        lines = contents(self.cache).splitlines(keepends=True)
        damaged = bytearray(lines[1])
        damaged[len(damaged) // 2] ^= 1
        with open(self.cache, "wb") as file:
            file.writelines([lines[0], bytes(damaged), *lines[2:]])
        report = self.build(self.output, self.cache, "--tune", "quick", *SMALL)
        self.assertEqual((report["tactics_measured"], report["tactics_cached"]), (1, total - 1))
        # An incomplete last line, as a full disk leaves it.
        with open(self.cache, "wb") as file:
            file.write(b"".join(lines)[:-20])
        report = self.build(self.output, self.cache, "--tune", "quick", *SMALL)
        self.assertEqual((report["tactics_measured"], report["tactics_cached"]), (1, total - 1))
        report = self.build(self.output, self.cache, "--tune", "quick", *SMALL)
        self.assertEqual((report["tactics_measured"], report["tactics_cached"]), (0, total))
        # Caches merge by concatenation, in any order.
        with open(self.cache, "wb") as file:
            file.writelines(lines[3:] + lines[:3] + lines[:2])
        report = self.build(self.output, self.cache, "--tune", "quick", *SMALL)
        self.assertEqual((report["tactics_measured"], report["tactics_cached"]), (0, total))


@sanitized_elsewhere
class Killed(BuildTest):
    """Builds killed by SIGKILL at moments from a seed, so that a failure can be repeated."""

    def kill_after(self, seconds, command):
        """True if the build was still running."""
        process = start(command)
        try:
            time.sleep(seconds)
            running = process.poll() is None
            process.kill()
        finally:
            process.communicate()
        return running

    def check_output(self, old, new, when):
        """The output folder is empty, or holds only the old engine, or only the new one."""
        self.assertLessEqual(set(os.listdir(self.output_folder)), {"m.eng"}, "stray files, killed %s" % when)
        if not os.path.exists(self.output):
            self.assertIsNone(old, "the engine that was there is gone, killed %s" % when)
            return False
        found = contents(self.output)
        if old is not None and found == old:
            return False
        if new is not None:
            self.assertEqual(found, new, "neither the old engine nor the new one, killed %s" % when)
        self.check_whole(self.output)
        return True

    def test_while_tuning(self):
        """Starts with an empty cache each time: tuning is most of such a build."""
        begin = time.monotonic()
        total = self.build(self.output, self.cache, "--tune", "quick", *SMALL)["tactics_measured"]
        duration = time.monotonic() - begin
        os.remove(self.output)
        moments = random.Random(1)
        interrupted = reused = 0
        for trial in range(KILLS_WHILE_TUNING):
            shutil.rmtree(self.path("cache"))
            os.mkdir(self.path("cache"))
            moment = moments.uniform(0, 1.1) * duration
            when = "trial %d, %.4f s after the start" % (trial, moment)
            interrupted += self.kill_after(moment, build_command(self.output, self.cache, "--tune", "quick", *SMALL))
            self.check_output(None, None, when)
            self.assertLessEqual(set(os.listdir(self.path("cache"))), {"tuning.records"}, when)
            if os.path.exists(self.output):
                os.remove(self.output)
            if trial % 3:
                continue  # the rest takes as long as a build
            known = records(self.cache)
            report = self.build(self.output, self.cache, "--tune", "quick", *SMALL)
            self.assertEqual((report["tactics_cached"], report["tactics_measured"]), (known, total - known), when)
            reused += known
            os.remove(self.output)
        tally("killed while tuning (%d of them were running)" % interrupted, KILLS_WHILE_TUNING)
        self.assertGreater(interrupted, 0)

    def test_records_survive(self):
        """Killed as soon as the cache has records: the next build has them all."""
        process = start(build_command(self.output, self.cache, "--tune", "quick", *SMALL))
        try:
            deadline = time.monotonic() + 600
            while records(self.cache) < 3 and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.002)
            process.kill()
        finally:
            process.communicate()
        known = records(self.cache)
        self.assertGreaterEqual(known, 3)
        self.check_output(None, None, "after %d records" % known)
        report = self.build(self.output, self.cache, "--tune", "quick", *SMALL)
        self.assertEqual(report["tactics_cached"], known)

    def test_when_tuned(self):
        """Killed in every other phase of a build, with and without an older engine."""
        options = ["--tune", "quick", *SMALL]
        self.build(self.output, self.cache, *options)
        begin = time.monotonic()
        self.build(self.output, self.cache, *options)
        duration = time.monotonic() - begin
        new = contents(self.output)
        self.build(self.output, self.cache, *options, "--max-context", "64")
        old = contents(self.output)
        self.assertNotEqual(old, new)
        moments = random.Random(2)
        interrupted = finished = 0
        for trial in range(KILLS_WHEN_TUNED):
            before = old if trial % 2 else None
            if before is not None:
                with open(self.output, "wb") as file:
                    file.write(before)
            elif os.path.exists(self.output):
                os.remove(self.output)
            moment = moments.uniform(0, 1.2) * duration
            when = "trial %d, %.4f s after the start" % (trial, moment)
            interrupted += self.kill_after(moment, build_command(self.output, self.cache, *options))
            finished += self.check_output(before, new, when)
        tally("killed when tuned (%d were running, %d had finished their file)" % (interrupted, finished),
              KILLS_WHEN_TUNED)
        self.assertGreater(interrupted, 0)
        report = self.build(self.output, self.cache, *options)
        self.assertEqual(report["tactics_measured"], 0)
        self.assertEqual(contents(self.output), new)

    def test_interrupted_by_ctrl_c(self):
        """SIGINT and SIGTERM clean up as well as SIGKILL."""
        for number in (signal.SIGINT, signal.SIGTERM):
            process = start(build_command(self.output, "none", "--tune", "full"))  # takes seconds
            time.sleep(0.3)
            process.send_signal(number)
            process.communicate(timeout=300)
            self.assertNotEqual(process.returncode, 0, str(number))
            self.assertEqual(os.listdir(self.output_folder), [], str(number))


if __name__ == "__main__":
    unittest.main()
