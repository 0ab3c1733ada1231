# SPDX-License-Identifier: Apache-2.0
"""engserve with Anthropic's own client for Python. ENG_ANTHROPIC_PYTHON names an interpreter that has the package `anthropic`;
without it the test installs the package with pip into a folder of its own. Where that fails, since there is no network, the test is
skipped; with CI=true it fails."""

import os
import subprocess
import unittest

from client_package import interpreter, missing
from harness import chat_engine, scratch, tools_engine, write
from server import Server

PACKAGE = "anthropic==2.14.0"
CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "anthropic_client.py")
FOLDER = scratch()


class Client(unittest.TestCase):
    def test_client(self):
        python, reason = interpreter(PACKAGE, "ENG_ANTHROPIC_PYTHON", FOLDER.name)
        if not python:
            missing(self, reason)
        keys = os.path.join(FOLDER.name, "keys")
        write(keys, b"key-of-the-test\n")
        server = Server("chat=" + chat_engine(), "tools=" + tools_engine(), "--api-key-file", keys, "--ping", "0.05")
        done = subprocess.run([python, CLIENT, "http://127.0.0.1:%d" % server.port, "key-of-the-test"], capture_output=True,
                              timeout=600, check=False)
        log = server.log
        self.assertEqual(server.stop(), 0)
        self.assertEqual(done.returncode, 0, done.stderr.decode() + log)
        self.assertGreater(int(done.stdout), 15)


if __name__ == "__main__":
    unittest.main()
