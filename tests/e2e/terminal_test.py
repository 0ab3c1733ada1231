# SPDX-License-Identifier: Apache-2.0
"""engrun on a terminal: the prompt of -p is printed before its continuation, and nowhere else."""

import os
import pty
import subprocess
import unittest

from harness import ENGRUN, environment, fables_engine, run, succeed

PROMPT = "Once upon a time"


def on_terminal(*arguments):
    """(exit code, what a terminal shows) of engrun."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([ENGRUN, fables_engine(), *arguments], stdin=subprocess.DEVNULL, stdout=theirs,
                               stderr=subprocess.PIPE, env=environment())
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # EIO: the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    process.stderr.close()
    return process.wait(), shown.decode().replace("\r\n", "\n")


class Terminal(unittest.TestCase):
    def test_prompt_stands_before_its_continuation(self):
        arguments = ("-p", PROMPT, "-n", "20")
        piped = succeed([ENGRUN, fables_engine(), *arguments])
        self.assertNotIn(PROMPT, piped.stdout)
        self.assertEqual(on_terminal(*arguments), (0, PROMPT + piped.stdout))

    def test_only_as_text(self):
        """With ids, and with the continuation of ids, no prompt is printed."""
        for arguments in (("-p", PROMPT, "--print-tokens"), ("--tokens", "1,2,3")):
            with self.subTest(arguments=arguments):
                piped = run([ENGRUN, fables_engine(), *arguments, "-n", "8"])
                self.assertEqual(on_terminal(*arguments, "-n", "8"), (0, piped.stdout))

    def test_a_prompt_that_is_refused_is_not_shown(self):
        self.assertEqual(on_terminal("-p", "word " * 3000), (1, ""))


if __name__ == "__main__":
    unittest.main()
