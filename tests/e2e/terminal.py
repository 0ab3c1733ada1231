# SPDX-License-Identifier: Apache-2.0
"""A program on a pseudo-terminal, for tests of what a person sees and types."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios

from harness import environment


class Terminal:
    """A program on a terminal of its own. `env`: variables; one whose value is None is removed."""

    def __init__(self, command, env=None, stdin=None, stdout=None):
        variables = environment({"TERM": "xterm", "LC_ALL": "C.UTF-8", **(env or {})})
        variables = {name: value for name, value in variables.items() if value is not None}
        self.output = b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            for descriptor, other in ((0, stdin), (1, stdout)):
                if other is not None:
                    os.dup2(other, descriptor)
            os.execve(command[0], command, variables)

    def read(self, seconds=300):
        """Reads more output; False at the end."""
        if not select.select([self.terminal], [], [], seconds)[0]:
            raise AssertionError("no output for %g s after %r" % (seconds, self.output))
        try:
            more = os.read(self.terminal, 65536)
        except OSError:  # how Linux reports that the last program closed it
            more = b""
        self.output += more
        return bool(more)

    def read_until(self, pattern):
        """Reads until the pattern is found, and discards everything up to its end. Returns that."""
        while True:
            found = re.search(pattern, self.output)
            if found:
                before, self.output = self.output[:found.end()], self.output[found.end():]
                return before
            if not self.read():
                raise AssertionError("%r ended before %r" % (self.output, pattern))

    def write(self, text):
        os.write(self.terminal, text.encode() if isinstance(text, str) else text)

    def mode(self):
        """How the terminal is set, as termios.tcgetattr has it."""
        return termios.tcgetattr(self.terminal)

    def resize(self, rows, columns):
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def kill(self, number=signal.SIGTERM):
        os.kill(self.pid, number)

    def end(self):
        """The exit code, once everything has been read."""
        while self.read():
            pass
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
