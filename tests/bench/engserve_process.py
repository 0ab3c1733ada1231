# SPDX-License-Identifier: Apache-2.0
"""engserve as a process, for the benches beside this file. Uses the standard library alone."""

import os
import subprocess

READY = "ready at http://"


def start(engserve, engine, flags, environment=None):
    """Starts it at a free port of its own; `environment`: further variables. Returns the process, host and port once it is ready."""
    process = subprocess.Popen([engserve, engine, "--port", "0", "--quiet", *flags], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               text=True, env={**os.environ, **(environment or {})})
    line = process.stdout.readline()
    if READY not in line:
        raise SystemExit("engserve is not ready: %r" % line)
    host, port = line.rsplit(READY, 1)[1].strip().rsplit(":", 1)
    return process, host, int(port)
