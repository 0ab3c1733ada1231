# SPDX-License-Identifier: Apache-2.0
"""Interpreters with packages of clients: one that the environment names, or one that pip installs into a folder of the test."""

import os
import subprocess
import sys

INSTALL_SECONDS = 500


def missing(test, reason):
    """Ends a test that has no package: where CI is "true" such tests are to run."""
    if os.environ.get("CI") == "true":
        test.fail(reason)
    test.skipTest(reason)


def interpreter(package, variable, folder):
    """An interpreter that has the package; a text that says why there is none."""
    given = os.environ.get(variable)
    if given:
        return given, None
    folder = os.path.join(folder, "packages")
    python = os.path.join(folder, "bin", "python")
    try:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True, timeout=INSTALL_SECONDS)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--retries", "5", "--timeout", "15", package],
                       check=True, capture_output=True, timeout=INSTALL_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        output = getattr(error, "stderr", None) or str(error).encode()
        return None, "%s cannot be installed: %s" % (package, output.decode(errors="replace").strip().split("\n")[-1])
    return python, None
