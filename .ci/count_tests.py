# SPDX-License-Identifier: Apache-2.0
"""count_tests.py EVENTS.json...: sums the test cases of `bazel test --build_event_json_file` runs.

Prints one line for each target and run, what failed, and at the end "N passed, N failed". Cases are read from a
target's log: cmocka's and unittest's own reports, or a line "[cases] N passed, N failed". A target without any counts
as one case, and so does one that failed to build, crashed or ran out of time. Exit code 1 if anything failed."""

import json
import os
import re
import sys
import urllib.parse

CASES = re.compile(r"^\[cases\] (\d+) passed, (\d+) failed", re.M)
CMOCKA_PASSED = re.compile(r"^\[       OK \] ", re.M)
CMOCKA_FAILED = re.compile(r"^\[  FAILED  \] (\d+) test", re.M)
CMOCKA_SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) test", re.M)
CMOCKA_FAILED_NOW = re.compile(r"^\[  FAILED  \] (?!\d+ test)", re.M)
UNITTEST_RAN = re.compile(r"^Ran (\d+) tests? in", re.M)
UNITTEST_OTHER = re.compile(r"^(?:OK|FAILED) \((.*)\)$", re.M)


def count_cases(log):
    """(passed, failed, skipped) of a test's output; all 0 where it reports no cases."""
    passed = failed = 0
    for match in CASES.finditer(log):
        passed += int(match.group(1))
        failed += int(match.group(2))
    ran = sum(int(n) for n in UNITTEST_RAN.findall(log))
    bad = 0
    skipped = sum(int(n) for n in CMOCKA_SKIPPED.findall(log))
    unittest_skipped = 0
    for words in UNITTEST_OTHER.findall(log):
        for name, number in re.findall(r"(\w[\w ]*)=(\d+)", words):
            if name in ("failures", "errors", "unexpected successes"):
                bad += int(number)
            elif name == "skipped":
                unittest_skipped += int(number)
    # A failed subTest counts once each: there may be more failures than tests.
    passed += max(ran - bad - unittest_skipped, 0)
    failed += bad
    passed += len(CMOCKA_PASSED.findall(log))
    summary = sum(int(n) for n in CMOCKA_FAILED.findall(log))
    failed += summary or len(CMOCKA_FAILED_NOW.findall(log))
    return passed, failed, skipped + unittest_skipped


def read_results(path):
    """{label: (succeeded, log text)} of the targets that were to be tested or built."""
    results = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            event = json.loads(line)
            identity = event.get("id", {})
            if "targetCompleted" in identity and not event.get("completed", {}).get("success"):
                if "aborted" not in event or event["aborted"].get("reason") != "SKIPPED":
                    results.setdefault(identity["targetCompleted"]["label"], (False, ""))
            elif "testResult" in identity:
                result = event["testResult"]
                log = ""
                for output in result.get("testActionOutput", []):
                    if output["name"] == "test.log":
                        log_path = urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
                        if os.path.exists(log_path):
                            with open(log_path, encoding="utf-8", errors="replace") as log_file:
                                log = log_file.read()
                label = identity["testResult"]["label"]
                # A result for each shard.
                others_passed, others_log = results.get(label, (True, ""))
                results[label] = (result.get("status") == "PASSED" and others_passed, others_log + log)
    return results


def main(paths):
    total_passed = total_failed = 0
    for path in paths:
        run = os.path.splitext(os.path.basename(path))[0]
        results = read_results(path) if os.path.exists(path) else {}
        if not results:
            print("%-8s no test results: the build failed early" % run)
            total_failed += 1
        for label, (succeeded, log) in sorted(results.items()):
            passed, failed, skipped = count_cases(log)
            if not succeeded and failed == 0:
                failed = 1
            elif succeeded and passed == 0 and failed == 0 and skipped == 0:
                passed = 1
            total_passed += passed
            total_failed += failed
            print("%-8s %5d ok %4d bad %4d skipped  %s%s" % (
                run, passed, failed, skipped, label, "" if succeeded else "  FAILED"))
    print("%d passed, %d failed" % (total_passed, total_failed))
    return 1 if total_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
