# SPDX-License-Identifier: Apache-2.0
"""Times the start of engserve, from the start of its process:

    serve_start.py ENGSERVE ENGINE [--repetitions 20] [--prompt TEXT] [-- FLAG...]

Prints mean, standard deviation and median of the time to the line that says it is ready, and to the first token of a
streamed answer that a client asks for then. The repetition before the first does not count: it brings the file into the
page cache. Flags after -- are engserve's. Uses the standard library alone.
"""

import argparse
import http.client
import json
import signal
import statistics
import sys
import time

import engserve_process


def first_event(connection, prompt):
    """Returns when the first event of a stream has arrived."""
    body = json.dumps({"prompt": prompt, "max_tokens": 8, "temperature": 0, "stream": True})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    line = response.readline()
    if response.status != 200 or not line.startswith(b"data: {") or b'"error"' in line:
        raise SystemExit("no answer: status %d, %r" % (response.status, line))
    return response


def start(arguments):
    """Seconds from the start of the process to the ready line and to the first token."""
    begin = time.perf_counter()
    process, host, port = engserve_process.start(arguments.engserve, arguments.engine, arguments.flags)
    with process:
        ready = time.perf_counter()
        connection = http.client.HTTPConnection(host, port, timeout=600)
        response = first_event(connection, arguments.prompt)
        answered = time.perf_counter()
        response.read()
        connection.close()
        process.send_signal(signal.SIGTERM)
    return ready - begin, answered - begin


def main():
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser()
    parser.add_argument("engserve")
    parser.add_argument("engine")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--prompt", default="Once upon a time")
    arguments = parser.parse_args(words[:split])
    arguments.flags = words[split + 1:]
    if arguments.repetitions < 2:
        parser.error("--repetitions: expected at least 2")
    times = [start(arguments) for _ in range(arguments.repetitions + 1)][1:]
    for name, values in zip(("ready", "first token"), zip(*times)):
        mean, spread, median = (1e3 * one(values) for one in (statistics.mean, statistics.stdev, statistics.median))
        print("%-12s %8.1f +- %.1f ms, median %.1f ms" % (name, mean, spread, median))


if __name__ == "__main__":
    main()
