# SPDX-License-Identifier: Apache-2.0
"""Behaviour common to the four programs: help, one style of message, lists of numbers, readers that close the pipe."""

import os
import re
import signal
import subprocess
import unittest

from harness import ENGBENCH, ENGBUILD, ENGINFO, ENGRUN, FABLES, fables_engine, run, scratch, succeed, tally

TOOLS = [ENGBUILD, ENGRUN, ENGBENCH, ENGINFO]
USAGE = 2


def name(tool):
    return os.path.basename(tool)


class Help(unittest.TestCase):
    def test_short_flag(self):
        for tool in TOOLS:
            long, short = run([tool, "--help"]), run([tool, "-h"])
            self.assertEqual((short.rc, short.stdout, short.stderr), (0, long.stdout, ""))
            self.assertIn("-h, --help", long.stdout)
            self.assertIn("--version", long.stdout)

    def test_help_begins_with_usage_and_fits_a_terminal(self):
        for tool in TOOLS:
            lines = run([tool, "--help"]).stdout.splitlines()
            self.assertTrue(lines[0].startswith("usage: %s " % name(tool)))
            for line in lines:
                self.assertLessEqual(len(line), 110, line)
            self.assertIn("exit codes: 0 done, 1 bad input, 2 usage, 3 the machine cannot, 4 internal error",
                          "\n".join(lines))

    def test_version(self):
        for tool in TOOLS:
            result = run([tool, "--version"])
            self.assertEqual((result.rc, result.stderr), (0, ""))
            self.assertRegex(result.stdout, r"^%s \d+\.\d+\.\d+" % name(tool))


class Messages(unittest.TestCase):
    """The same error gets the same message from every program."""

    def message(self, tool, *flags):
        result = run([tool, *flags])
        self.assertEqual((result.rc, result.stdout), (USAGE, ""), flags)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        beginning, end = name(tool) + ": ", " (try '%s --help')\n" % name(tool)
        self.assertTrue(result.stderr.startswith(beginning), result.stderr)
        self.assertTrue(result.stderr.endswith(end), result.stderr)
        return result.stderr[len(beginning):-len(end)]

    def alike(self, expected, *flags, tools=TOOLS):
        for tool in tools:
            with self.subTest(tool=name(tool), flags=flags):
                self.assertEqual(self.message(tool, *flags), expected)

    def test_unknown_flags(self):
        self.alike("unknown flag --frobnicate", "--frobnicate")
        self.alike("unknown flag --frobnicate=3", "--frobnicate=3")
        self.alike("unknown flag -x", "-x")

    def test_values(self):
        self.alike("flag --json=1: expected no value", "--json=1", tools=[ENGBUILD, ENGBENCH, ENGINFO])
        self.alike("flag --threads: expected a value, found none", "--threads", tools=[ENGBUILD, ENGRUN, ENGBENCH])
        self.alike("flag -p: expected a value, found none", "-p", tools=[ENGRUN, ENGBENCH])
        self.alike("flag -o: expected a value, found none", "-o", tools=[ENGBUILD])
        self.assertRegex(self.message(ENGBUILD, "--threads", "x"),
                         r"^--threads: expected a whole number from 1 to \d+, found 'x'$")
        self.assertRegex(self.message(ENGRUN, "--threads", "x"),
                         r"^--threads: expected a whole number from 0 to \d+, found 'x'$")

    def test_wrong_usage_found_behind_the_flags(self):
        """Combinations of flags, and values that only the library or the builder can check."""
        for command in ([ENGBUILD], [ENGBUILD, "--model", ""], [ENGBUILD, "surprise"], [ENGRUN], [ENGBENCH], [ENGINFO],
                        [ENGBUILD, "--model", FABLES, "--dump-after", "x"], [ENGINFO, "a", "b"],
                        [ENGRUN, fables_engine(), "-p", "x", "--isa", "sse"]):
            with self.subTest(command=command):
                self.message(*command)

    def test_other_failures(self):
        for tool, flags in ((ENGBUILD, ["--model", "/no/such"]), (ENGRUN, ["/no/such", "-p", "x"]),
                            (ENGINFO, ["/no/such"]), (ENGBENCH, ["/no/such"])):
            result = run([tool, *flags])
            self.assertEqual(result.rc, 1)
            self.assertTrue(result.stderr.startswith(name(tool) + ": "), result.stderr)
            self.assertIn("'/no/such': No such file or directory", result.stderr)
            for word in ("machine cannot", "bad input", "not found"):
                self.assertNotIn(word, result.stderr)
            self.assertNotIn("--help", result.stderr)


class FunctionNames(unittest.TestCase):
    def test_messages_are_for_users_of_programs(self):
        """The programs' messages do not name the library's functions."""
        result = run([ENGRUN, fables_engine(), "--chat", "-p", "x"])
        self.assertEqual(result.rc, 1)
        self.assertTrue(result.stderr.startswith("engrun: the engine has no chat template"), result.stderr)


class Lists(unittest.TestCase):
    FLAGS = [([ENGRUN, "none.eng"], "--tokens"), ([ENGBENCH, "none.eng"], "-b"), ([ENGBENCH, "none.eng"], "--device"),
             ([ENGBUILD, "--model", "none", "--target", "cpu"], "--batch-sizes")]

    def test_accepted(self):
        """The list is parsed before the file is opened, which is missing."""
        for command, flag in self.FLAGS:
            for text in ("1", "1,2", "1, 2", "1 2", "[1, 2]", " 1,2 "):
                result = run([*command, flag, text])
                self.assertEqual(result.rc, 1, (flag, text, result.stderr))

    def test_refused(self):
        count = 0
        for command, flag in self.FLAGS:
            for text, words in (("1,,2", ["item 2", "found none", "'1,,2'"]), ("1,", ["item 2", "found none", "'1,'"]),
                                (",1", ["item 1", "found none", "',1'"]), (",", ["item 1", "found none", "','"]),
                                ("", ["item 1", "found none", "''"]), ("1, ,2", ["item 2", "found none", "'1, ,2'"]),
                                ("[]", ["item 1", "found none", "'[]'"]), ("[1,2", ["found '[1'"]),
                                ("1,2]", ["found '2]'"]), ("[1],2", ["found '[1]'"]), ("1;2", ["found '1;2'"]),
                                ("1,x", ["found 'x'"]), ("1,2x", ["found '2x'"])):
                result = run([*command, flag, text])
                with self.subTest(flag=flag, text=text):
                    self.assertEqual(result.rc, USAGE, result.stderr)
                    self.assertIn("%s: expected " % flag, result.stderr)
                    for word in words:
                        self.assertIn(word, result.stderr)
                count += 1
        tally("lists", count)


class ClosedPipe(unittest.TestCase):
    """A reader that closes the pipe, as head does, ends a program by SIGPIPE, without a message."""

    def commands(self):
        engine = fables_engine()
        return [[ENGRUN, engine, "-p", "Once", "-n", "0", "--ignore-eos"], [ENGRUN, engine, "--selftest"],
                [ENGRUN, "--help"], [ENGINFO, engine], [ENGINFO, engine, "--json"], [ENGINFO, "--version"],
                [ENGBENCH, engine, "-p", "4", "-n", "1", "-r", "1"], [ENGBUILD, "--help"],
                [ENGBUILD, "--model", FABLES, "--target", "cpu", "--dry-run"],
                [ENGBUILD, "--model", FABLES, "--target", "cpu", "--dry-run", "--json", "--quiet"]]

    def end(self, command, ignored):
        """The wait status of a program whose stdout has no reader; `ignored`: it is started with SIGPIPE ignored."""
        reader, writer = os.pipe()
        os.close(reader)
        with scratch() as folder:
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE,
                restore_signals=False,
                preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN if ignored else signal.SIG_DFL))
            os.close(writer)
            errors = process.stderr.read().decode()
            process.stderr.close()
            progress = re.compile(r"^[a-z ]+: (done in |\d+%, about |\d+ s so far)")  # all but the first on a slow machine alone
            return process.wait(), [line for line in errors.splitlines() if not progress.match(line)]

    def test_ends_by_the_signal(self):
        for command in self.commands():
            for ignored in (False, True):
                with self.subTest(command=command, ignored=ignored):
                    status, errors = self.end(command, ignored)
                    self.assertIn(status, (-signal.SIGPIPE, 128 + signal.SIGPIPE) if ignored else (-signal.SIGPIPE,))
                    self.assertEqual(errors, [])

    def test_a_build_is_finished(self):
        """The report is lost, the engine is written."""
        with scratch() as folder:
            output = os.path.join(folder, "m.eng")
            status, errors = self.end([ENGBUILD, "--model", FABLES, "--target", "cpu", "--tune", "off", "-o", output],
                                      False)
            self.assertEqual((status, errors), (-signal.SIGPIPE, []))
            self.assertEqual(run([ENGINFO, output, "--verify"]).rc, 0)

    def test_shell(self):
        script = '"$@" | head -c 1 >/dev/null; echo "${PIPESTATUS[0]}"'
        result = run(["bash", "-c", script, "bash", ENGRUN, fables_engine(), "-p", "Once", "-n", "0", "--ignore-eos"])
        self.assertEqual((result.stdout, result.stderr), ("141\n", ""))


class Seed(unittest.TestCase):
    """Sampled text differs from run to run, and each run prints how to repeat it."""

    DRAW = ["-p", "Once upon a time", "-n", "40", "--ignore-eos", "--temperature", "1.5"]

    def draw(self, *flags):
        result = succeed([ENGRUN, fables_engine(), *self.DRAW, *flags])
        return result

    def test_without_a_seed(self):
        drawn = [self.draw() for _ in range(3)]
        self.assertEqual(len({result.stdout for result in drawn}), 3)
        for result in drawn:
            self.assertRegex(result.stderr, r"^engrun: seed (\d+) \(repeat with --seed \1\)\n$")
            again = self.draw("--seed", result.stderr.split()[2])
            self.assertEqual((again.stdout, again.stderr), (result.stdout, ""))

    def test_quiet(self):
        self.assertEqual(self.draw("--quiet").stderr, "")

    def test_what_draws_nothing_has_no_seed(self):
        for flags in (["--temperature", "0"], ["--top-k", "1"]):
            self.assertEqual(self.draw(*flags).stderr, "")
        self.assertEqual(run([ENGRUN, fables_engine(), "-p", "Once", "-n", "1", "--recommended"]).stderr, "")


if __name__ == "__main__":
    unittest.main()
