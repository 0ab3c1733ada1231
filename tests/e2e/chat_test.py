# SPDX-License-Identifier: Apache-2.0
"""Conversations of engrun: Ctrl-C and Ctrl-D on a terminal, one that grows beyond the context, text that would be a command to
the terminal. Editing and commands: chat_terminal_test.py."""

import json
import os
import re
import signal
import unittest

from harness import ENGRUN, build_engine, chat_engine, chat_model, run, scratch, succeed
from terminal import Terminal

INTERRUPTED = 128 + signal.SIGINT
SYSTEM = "Be brief."
FOLDER = scratch()


class Interruption(unittest.TestCase):
    """With the line editor and, on a terminal that is too simple for it, without."""

    @classmethod
    def setUpClass(cls):
        cls.engine = chat_engine()

    def begin(self, kind):
        terminal = Terminal([ENGRUN, self.engine, "--chat", "--ignore-eos", "--isa", "portable", "--threads", "1"],
                            env={"TERM": kind, "NO_COLOR": "1"})
        terminal.read_until(b"> ")
        return terminal

    def interrupt_an_answer(self, terminal):
        terminal.write("Tell me a tale.\n")
        terminal.read_until(rb"tale\.\r*\n")
        terminal.read_until(rb"\w+ \w+")  # the answer has a thousand tokens
        terminal.write("\x03")
        terminal.read_until(rb"\^C(.|\n)*\n(\x1b\[\?2004h)?> ")

    def test_ctrl_c_ends_the_answer_and_twice_the_chat(self):
        for kind in ("xterm", "dumb"):
            with self.subTest(kind):
                terminal = self.begin(kind)
                self.interrupt_an_answer(terminal)
                terminal.write("\x03")
                terminal.read_until(rb"Ctrl-C again(.|\n)*> ")
                self.interrupt_an_answer(terminal)  # two Ctrl-C that do not follow each other
                terminal.write("\x03")
                terminal.read_until(rb"Ctrl-C again(.|\n)*> ")
                terminal.write("\x03")
                self.assertEqual(terminal.end(), INTERRUPTED)

    def test_ctrl_d_ends_the_chat(self):
        for kind in ("xterm", "dumb"):
            with self.subTest(kind):
                terminal = self.begin(kind)
                self.interrupt_an_answer(terminal)
                terminal.write("\x04")
                self.assertEqual(terminal.end(), 0)

    def test_terminate(self):
        terminal = self.begin("xterm")
        terminal.write("Tell me a tale.\n")
        terminal.read_until(rb"tale\.\r*\n")
        terminal.read_until(rb"\w+ \w+")
        terminal.kill()
        self.assertEqual(terminal.end(), 128 + signal.SIGTERM)

    def test_one_question(self):
        """With -p the program gives one answer: Ctrl-C ends the program."""
        terminal = Terminal([ENGRUN, self.engine, "--chat", "--ignore-eos", "--isa", "portable", "-p", "Tell me a tale."])
        terminal.read_until(rb"\w+ \w+")
        terminal.write("\x03")
        self.assertEqual(terminal.end(), INTERRUPTED)


class Context(unittest.TestCase):
    """A conversation beyond the context goes on without its oldest turns."""

    @classmethod
    def setUpClass(cls):
        cls.engine = build_engine(chat_model(FOLDER.name), "--max-context", "64")

    def ids(self, text):
        return json.loads(run([ENGRUN, self.engine, "--tokenize"], input=json.dumps(text)).stdout)

    def text(self, ids):
        return json.loads(run([ENGRUN, self.engine, "--detokenize", "--skip-special"], input=json.dumps(ids)).stdout)

    def test_slides(self):
        questions = ["One.", "Two.", "Three.", "Four.", "Five.", "Six."]
        chat = succeed([ENGRUN, self.engine, "--chat", "--system", SYSTEM, "-n", "6", "--print-tokens"],
                       input="".join(question + "\n" for question in questions))
        answers = [[int(word) for word in line.split()] for line in chat.stdout.splitlines()]
        self.assertEqual(len(answers), len(questions))
        notes = re.findall(r"engrun: note: the context of 64 tokens is full: .* (\d+) turns?", chat.stderr)
        self.assertEqual(len(notes), chat.stderr.count("\n"), chat.stderr)
        self.assertGreater(len(notes), 0)
        # The last answer is that of a conversation that begins with the remaining turns.
        dropped, found = sum(map(int, notes)), 0
        for first in range(len(questions)):
            prompt = "<|im_start|>system\n%s<|im_end|>\n" % SYSTEM
            for question, answer in list(zip(questions, answers))[first:-1]:
                prompt += "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n%s<|im_end|>\n" % (question,
                                                                                                 self.text(answer))
            prompt += "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n" % questions[-1]
            ids = self.ids(prompt)
            if len(ids) >= 64:
                continue
            alone = run([ENGRUN, self.engine, "--tokens", ",".join(map(str, ids)), "-n", "6", "--print-tokens"]).stdout
            if first == dropped:
                self.assertEqual([int(word) for word in alone.split()], answers[-1])
                found += 1
        self.assertEqual(found, 1, notes)

    def test_answers_that_fill_the_context(self):
        chat = succeed([ENGRUN, self.engine, "--chat", "--ignore-eos", "--print-tokens"], input="One.\nTwo.\nThree.\n")
        self.assertEqual(len(chat.stdout.splitlines()), 3)
        self.assertEqual(chat.stderr.count("the context of 64 tokens is full"), 2, chat.stderr)
        self.assertEqual(chat.stderr.count("the answer ends here"), 3, chat.stderr)
        for line in chat.stdout.splitlines():
            self.assertGreaterEqual(len(line.split()), 64 // 4)

    def test_slides_within_an_answer(self):
        """An answer that reaches the end of the context goes on without the oldest turn, as if that had never been."""
        context, limit = 128, 60
        engine = build_engine(chat_model(FOLDER.name), "--max-context", str(context))
        first = "<|im_start|>user\nOne.<|im_end|>\n<|im_start|>assistant\n"
        second = "<|im_start|>user\nTwo.<|im_end|>\n<|im_start|>assistant\n"
        chat = succeed([ENGRUN, engine, "--chat", "--ignore-eos", "-n", str(limit), "--print-tokens"],
                       input="One.\nTwo.\n")
        answers = [[int(word) for word in line.split()] for line in chat.stdout.splitlines()]
        self.assertEqual([len(answer) for answer in answers], [limit, limit])
        self.assertEqual(chat.stderr, "engrun: note: the context of 128 tokens is full: the oldest 1 turn was left out\n")
        # What was drawn while both turns were there, and what follows after the first has left.
        both = self.ids(first + self.text(answers[0]) + "<|im_end|>\n" + second)
        before = self.continuation(engine, both, limit)
        kept = len(before)
        self.assertIn(kept, (context - len(both), context - len(both) + 1))
        self.assertEqual(answers[1][:kept], before)
        after = self.continuation(engine, self.ids(second) + before, limit - kept)
        self.assertGreater(len(after), 10)
        self.assertEqual(answers[1][kept:], after)

    def continuation(self, engine, ids, count):
        printed = succeed([ENGRUN, engine, "--tokens", ",".join(map(str, ids)), "-n", str(count), "--ignore-eos",
                           "--print-tokens"]).stdout
        return [int(word) for word in printed.split()]

    def test_quiet(self):
        chat = run([ENGRUN, self.engine, "--chat", "--ignore-eos", "--quiet"], input="One.\nTwo.\n")
        self.assertEqual((chat.rc, chat.stderr), (0, ""))

    def test_a_message_that_is_too_long(self):
        """A too long message ends a script; on a terminal the user may try again, with the conversation unchanged."""
        long = "Once upon a time " * 30
        chat = run([ENGRUN, self.engine, "--chat", "-n", "5"], input="One.\n%s\n" % long)
        self.assertEqual(chat.rc, 1)
        self.assertRegex(chat.stderr, r"the prompt has \d+ tokens, the engine's context is 64")
        self.assertNotIn("eng_", chat.stderr)
        terminal = Terminal([ENGRUN, self.engine, "--chat", "-n", "5"], env={"NO_COLOR": "1"})
        terminal.read_until(b"> ")
        terminal.write(long + "\n")
        terminal.read_until(rb"the prompt has \d+ tokens(.|\n)*> ")
        terminal.write("One.\n")
        terminal.read_until(rb"One\.\r*\n(.|\n)*> ")
        terminal.write("\x04")
        self.assertEqual(terminal.end(), 0)


class Escapes(unittest.TestCase):
    """Control characters of generated text do not reach a terminal; a pipe gets the text unchanged."""

    def test_generated_text(self):
        engine = build_engine(chat_model(FOLDER.name, end="\\u001b[2J"))
        command = [ENGRUN, engine, "-p", "Once upon a time", "-n", "400", "--ignore-eos", "--keep-special"]
        self.assertIn("\x1b[2J", run(command).stdout)
        terminal = Terminal(command)
        self.assertEqual(terminal.end(), 0)
        self.assertNotIn(b"\x1b", terminal.output)
        self.assertIn(b"\\u001b[2J", terminal.output)


if __name__ == "__main__":
    unittest.main()
