# SPDX-License-Identifier: Apache-2.0
"""engbench's tables report the measurements, in all three forms."""

import csv
import io
import json
import os
import unittest

from harness import ENGBENCH, ENGINFO, fables_engine, run, scratch, succeed

QUICK = ["-p", "16,40", "-n", "4", "-b", "1,3", "-c", "32", "-r", "2"]
TESTS = [("pp16", 1, 32), ("pp40", 1, 32), ("tg4", 1, 32), ("tg4", 3, 32), ("first token", 1, 0)]


class Bench(unittest.TestCase):
    def bench(self, *flags):
        result = run([ENGBENCH, fables_engine(), *QUICK, *flags])
        self.assertEqual((result.rc, result.stderr), (0, ""))
        return result.stdout

    def test_json(self):
        report = json.loads(self.bench("--json", "--threads", "1"))
        self.assertEqual(report["threads"], 1)
        self.assertGreater(report["read_bandwidth"]["best_gb_per_second"], 0)
        self.assertGreaterEqual(report["read_bandwidth"]["best_gb_per_second"],
                                report["read_bandwidth"]["median_gb_per_second"])
        rows = report["results"]
        self.assertEqual([(row["test"], row["batch"], row["context"]) for row in rows], TESTS)
        for row in rows:
            self.assertEqual(row["repetitions"], 2)
            self.assertGreater(row["mean"], 0)
            self.assertGreaterEqual(row["spread"], 0)
            decode = row["test"].startswith("tg")
            self.assertEqual(row["weight_gb_per_second"] > 0, decode)
            if decode:
                # Steps per second times the weights that a step reads; a mean of rates is not the rate of the means.
                expected = row["mean"] / row["batch"] * report["weights_bytes"] * 1e-9
                self.assertLess(row["weight_gb_per_second"], expected * 2)
                self.assertAlmostEqual(row["read_percent"], 100 * row["weight_gb_per_second"] /
                                       report["read_bandwidth"]["best_gb_per_second"], places=3)
        self.assertEqual([row["unit"] for row in rows], ["tokens/s"] * 4 + ["seconds"])

    def test_csv(self):
        rows = list(csv.DictReader(io.StringIO(self.bench("--csv"))))
        self.assertEqual([(row["test"], int(row["batch"]), int(row["context"])) for row in rows], TESTS)
        for row in rows:
            self.assertGreater(float(row["mean"]), 0)
            self.assertNotIn(None, row)

    def test_md(self):
        lines = self.bench("--md").splitlines()
        table = [line for line in lines if line.startswith("|")]
        self.assertEqual(len(table), 2 + len(TESTS))
        self.assertEqual(len({len(line) for line in table}), 1, "columns are aligned")
        self.assertEqual({line.count("|") for line in table}, {8})

    def test_selection(self):
        report = json.loads(run([ENGBENCH, fables_engine(), "-p", "0", "-n", "3", "-r", "1", "--json"]).stdout)
        self.assertEqual([row["test"] for row in report["results"]], ["tg3", "first token"])

    def trace(self, *flags):
        """(plans of the engine, one list of events for each step, stdout)"""
        with scratch() as folder:
            path = os.path.join(folder, "trace.json")
            result = run([ENGBENCH, fables_engine(), "--trace", path, *flags])
            self.assertEqual((result.rc, result.stderr), (0, ""))
            with open(path, encoding="utf-8") as file:
                events = json.load(file)
        plans = json.loads(run([ENGINFO, fables_engine(), "--json"]).stdout)["plans"]
        steps = {}
        for event in events:
            steps.setdefault(event["pid"], []).append(event)
        return plans, list(steps.values()), result.stdout

    def test_trace(self):
        plans, steps, text = self.trace("-p", "16,40", "-b", "1,3", "-c", "32")
        kinds = [("decode", 1), ("decode", 4), ("prefill", None)]
        self.assertEqual(len(steps), len(kinds))
        self.assertEqual(len(text.splitlines()), len(kinds))
        for (kind, rows), events in zip(kinds, steps):
            names = {event["name"]: event["args"] for event in events if event["ph"] == "M"}
            self.assertTrue(names["process_name"]["name"].startswith(kind), names)
            self.assertIn("one after the other", names["process_labels"]["labels"])
            self.assertGreater(names["process_labels"]["replay_us"], 0)
            launches = [event for event in events if event["ph"] == "X" and "launch" in event["args"]]
            plan = [plan for plan in plans if plan["kind"] == kind and rows in (None, plan["rows"])][0]
            self.assertEqual(len(launches), plan["launches"])
            end = 0
            for event in launches:
                self.assertAlmostEqual(event["ts"], end, places=3)
                end = event["ts"] + event["dur"]
                for key in ("op", "layer", "kernel", "bytes", "flops", "GB/s", "TFLOP/s"):
                    self.assertIn(key, event["args"])
            self.assertAlmostEqual(names["process_labels"]["launches_us"], end, places=2)
            self.assertEqual(max(event["args"]["layer"] for event in launches if event["args"]["layer"] is not None), 4)

    def test_trace_selection(self):
        _, steps, _ = self.trace("-p", "0", "-n", "1")
        self.assertEqual(len(steps), 1)
        _, steps, _ = self.trace("-p", "1", "-n", "0")
        self.assertEqual(len(steps), 1)
        self.assertEqual(self.trace("-p", "0", "-n", "0")[1:], ([], ""))

    def test_trace_that_cannot_be_written(self):
        result = run([ENGBENCH, fables_engine(), "--trace", "/nothing/here/trace.json", "-p", "0"])
        self.assertNotEqual(result.rc, 0)
        self.assertEqual(result.stdout, "")
        self.assertIn("/nothing/here", result.stderr)

    def test_first_token(self):
        result = succeed([ENGBENCH, fables_engine(), "--first-token"])
        self.assertGreaterEqual(float(result.stdout), 0)


if __name__ == "__main__":
    unittest.main()
