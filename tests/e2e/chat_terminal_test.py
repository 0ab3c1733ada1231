# SPDX-License-Identifier: Apache-2.0
"""engrun --chat on a terminal: lines that are edited, messages of several lines, commands, history, saved chats, colours."""

import json
import os
import re
import select
import stat
import termios
import unittest

from harness import ENGRUN, chat_engine, contents, run, scratch, succeed, write
from terminal import Terminal

PROMPT = rb"> "
SGR = rb"\x1b\[[0-9;]*m"  # colours
EDITOR = {"TERM": "xterm", "NO_COLOR": "1"}
PLAIN = {"TERM": "dumb"}


class ChatTest(unittest.TestCase):
    """A folder for each test, in which the program runs and keeps its history."""

    def setUp(self):
        folder = scratch()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.state = os.path.join(self.folder, "state")

    def path(self, name):
        return os.path.join(self.folder, name)

    def begin(self, env=None, *flags, prompt=PROMPT):
        terminal = Terminal([ENGRUN, chat_engine(), "--chat", "-n", "4", *flags],
                            env={"XDG_STATE_HOME": self.state, **(env or EDITOR)})
        self.greeting = terminal.read_until(prompt)
        return terminal

    def saved(self, terminal):
        """The messages of a chat, by its own command: which a terminal's output does not tell exactly."""
        path = self.path("oracle.json")
        terminal.write("/save %s\n" % path)
        terminal.read_until(rb"(saved to|in place of) [^\n]*oracle\.json")
        terminal.read_until(PROMPT)
        return json.loads(contents(path))["messages"]

    def sent(self, keys, env=None):
        """The message that is sent by these keys, which a person types or pastes."""
        terminal = self.begin(env)
        terminal.write(keys)
        messages = self.saved(terminal)
        terminal.write("\x04")
        self.assertEqual(terminal.end(), 0)
        self.assertEqual([message["role"] for message in messages], ["user", "assistant"])
        return messages[0]["content"]


class Editing(ChatTest):
    def test_keys(self):
        for keys, message in (
                ("plain\n", "plain"),
                ("h\u00e4\u65e5\U0001f600\x7f\x7f\x7fi\n", "hi"),  # backspace over characters of 2 to 4 bytes
                ("ab\x1b[Dx\n", "axb"),  # left
                ("b\x01a\x05c\n", "abc"),  # Ctrl-A, Ctrl-E
                ("b\x1b[Ha\x1b[Fc\n", "abc"),  # home, end
                ("one two\x17three\n", "one three"),  # Ctrl-W
                ("abc\x15d\n", "d"),  # Ctrl-U
                ("\u00e4b\x1b[D\x1b[D\x1b[3~\n", "b"),  # delete
                (b"a\xc3(\xffb\n", "a\ufffd(\ufffdb")):  # no UTF-8
            with self.subTest(keys=keys):
                self.assertEqual(self.sent(keys), message)

    def test_other_locales(self):
        """Texts are UTF-8 in any locale."""
        for locale in ("C", "de_DE.ISO-8859-1", None):
            with self.subTest(locale=locale):
                env = {**EDITOR, "LC_ALL": locale, "LC_CTYPE": None, "LANG": None}
                self.assertEqual(self.sent("\u00e4\u00f6\x7f\u00fc\n", env), "\u00e4\u00fc")

    def test_several_lines(self):
        for keys, message in (
                ("one\\\ntwo\\\n\n", "one\ntwo\n"),
                ('"""\none\n/help\n"""\n', "one\n/help"),
                ('"""one\ntwo"""\n', "one\ntwo")):
            for env in (EDITOR, PLAIN):
                with self.subTest(keys=keys, env=env):
                    self.assertEqual(self.sent(keys, env), message)

    def test_pastes(self):
        """A marked paste ends nothing and is no key; its line ends are line feeds."""
        for keys, message in (
                ("\x1b[200~one\rtwo\r\nthree\nfour\x1b[201~\n", "one\ntwo\nthree\nfour"),
                ("a\x1b[200~\u00e4\r\u65e5\x1b[201~\x7f\x7fb\n", "a\u00e4b"),
                ("\x1b[200~a\tb\x01\x03\x04\x1b[31mc\x1b[20\x1b[201~\n", "a\tb[31mc[20"),
                ("\x1b[200~/help\rme\\\x1b[201~\n", "/help\nme\\"),
                ("a\x1b\nb\n", "a\nb")):  # Alt-Enter
            with self.subTest(keys=keys):
                self.assertEqual(self.sent(keys), message)

    def test_large_paste(self):
        text = "\u00e4 word of many\r" * 20000
        terminal = self.begin()
        keys = ("\x1b[200~%s\x1b[201~\x15short\n" % text).encode()
        os.set_blocking(terminal.terminal, False)
        while keys:
            ready, room, _ = select.select([terminal.terminal], [terminal.terminal], [])
            if ready:
                terminal.read()
            if room:
                keys = keys[os.write(terminal.terminal, keys[:1024]):]
        os.set_blocking(terminal.terminal, True)
        self.assertEqual(self.saved(terminal)[0]["content"], "short")
        terminal.write("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_ctrl_c_discards_what_was_entered(self):
        for keys in ("draft", '"""\nblock\nline\n', "first\\\n"):
            for env in (EDITOR, PLAIN):
                with self.subTest(keys=keys, env=env):
                    terminal = self.begin(env)
                    terminal.write(keys)
                    if "\n" in keys:
                        terminal.read_until(rb"\| $")
                    terminal.write("\x03")
                    terminal.read_until(rb"\n(\x1b\[\?2004h)?> ")
                    terminal.write("sent\n")
                    self.assertEqual(self.saved(terminal)[0]["content"], "sent")
                    terminal.write("\x04")
                    self.assertEqual(terminal.end(), 0)

    def test_a_paste_without_end(self):
        terminal = self.begin()
        terminal.write("\x1b[200~draft")
        terminal.write("\x03")
        terminal.read_until(rb"draft(.|\n)*> ")
        terminal.write("typed\x03sent\n")  # what follows Ctrl-C is not part of what it discards
        self.assertEqual(self.saved(terminal)[0]["content"], "sent")
        terminal.write("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_a_new_width(self):
        terminal = self.begin()
        terminal.write("word " * 30)
        terminal.read_until(rb"(word ){3}")
        for columns in (100, 30, 7, 80):
            terminal.resize(24, columns)
            terminal.read_until(rb"\x1b\[J")  # it is drawn again
        terminal.write("end\n")
        self.assertEqual(self.saved(terminal)[0]["content"], "word " * 30 + "end")
        terminal.write("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_the_terminal_is_as_before(self):
        """However the program ends: keys are echoed, and pastes have no marks."""
        for end, code in ((lambda terminal: terminal.write("\x04"), 0),
                          (lambda terminal: terminal.write("/exit\n"), 0),
                          (lambda terminal: terminal.kill(), 128 + 15)):
            terminal = self.begin()
            raw = terminal.mode()
            self.assertFalse(raw[3] & termios.ECHO)
            terminal.write("typed")
            terminal.read_until(b"typed")
            if code == 0:
                terminal.write("\x15")
            end(terminal)
            shown = terminal.read_until(rb"\x1b\[\?2004l")
            self.assertNotIn(b"2004h", shown)
            self.assertTrue(terminal.mode()[3] & termios.ECHO)
            self.assertTrue(terminal.mode()[3] & termios.ICANON)
            self.assertEqual(terminal.end(), code)


class Commands(ChatTest):
    def ask(self, terminal, text):
        terminal.write(text + "\n")
        terminal.read_until(PROMPT)

    def test_help(self):
        for env in (EDITOR, PLAIN):
            terminal = self.begin(env)
            terminal.write("/help\n")
            shown = terminal.read_until(PROMPT).decode()
            for command in ("/system TEXT", "/clear", "/save FILE", "/load FILE", "/exit", '"""', "Ctrl-C"):
                self.assertIn(command, shown)
            self.assertLessEqual(max(map(len, re.sub("\x1b\\[[?]?[0-9]*.", "", shown).splitlines())), 80)
            terminal.write("/quit\n")
            self.assertEqual(terminal.end(), 0)

    def test_system(self):
        terminal = self.begin()
        terminal.write("/system\n")
        terminal.read_until(b"There is no system message\\.")
        terminal.read_until(PROMPT)
        self.ask(terminal, "/system  Be brief. ")
        terminal.write("One.\n")
        self.assertEqual(self.saved(terminal)[0], {"role": "system", "content": "Be brief."})
        self.ask(terminal, "/system Be kind,\\\nand long.")
        self.assertEqual(self.saved(terminal)[0], {"role": "system", "content": "Be kind,\nand long."})
        terminal.write("/system\n")
        terminal.read_until(rb"Be kind,\r\nand long\.\r\n")
        terminal.read_until(PROMPT)
        self.ask(terminal, '/system ""')
        self.assertEqual([message["role"] for message in self.saved(terminal)], ["user", "assistant"])
        terminal.write("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_clear(self):
        terminal = self.begin(EDITOR, "--system", "Be brief.")
        terminal.write("One.\n")
        self.assertEqual(len(self.saved(terminal)), 3)
        self.ask(terminal, "/clear")
        self.assertEqual(len(self.saved(terminal)), 1)
        terminal.write("Two.\n")
        expected = succeed([ENGRUN, chat_engine(), "--chat", "-n", "4", "--system", "Be brief.", "-p", "Two."]).stdout
        self.assertEqual(self.saved(terminal)[2]["content"], expected.rstrip("\n"))
        terminal.write("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_a_loaded_chat_goes_on_as_if_it_had_not_ended(self):
        questions = ["One.", "Two.", "Three."]
        whole = self.begin(EDITOR, "--system", "Be brief.")
        for question in questions:
            whole.write(question + "\n")
        expected = self.saved(whole)
        whole.write("\x04")
        whole.end()
        self.assertEqual(len(expected), 7)
        first = self.begin(EDITOR, "--system", "Be brief.")
        first.write("One.\nTwo.\n/save %s\n" % self.path("part.json"))
        first.read_until(rb"2 turns saved to")
        first.read_until(PROMPT)
        first.write("\x04")
        self.assertEqual(first.end(), 0)
        self.assertEqual(stat.S_IMODE(os.stat(self.path("part.json")).st_mode), 0o600)
        # A home folder is found, and a chat that was begun is replaced.
        second = self.begin({**EDITOR, "HOME": self.folder}, "--system", "Be long.")
        second.write("Else.\n/load ~/part.json\n")
        second.read_until(rb"2 turns loaded from ")
        second.write("Three.\n")
        self.assertEqual(self.saved(second), expected)
        second.write("\x04")
        self.assertEqual(second.end(), 0)

    def test_refusals_change_nothing(self):
        write(self.path("notes"), b"my notes")
        write(self.path("bad.json"), b'{"format": "eng chat", "version": 1, "messages": [{"role": "\x1b[2J"}]}')
        write(self.path("odd.json"), json.dumps({"format": "eng chat", "version": 1, "messages": [
            {"role": "user\u202e\u009b2J", "content": ""}]}).encode())
        terminal = self.begin()
        self.ask(terminal, "/save %s" % self.path("none.json"))  # nothing to save
        terminal.write("One.\n")
        before = self.saved(terminal)
        for command, words in (("/load", "/load: expected the name of a file"), ("/save", "/save: expected"),
                               ("/load %s" % self.path("no"), "No such file"), ("/load %s" % self.path("notes"), "JSON"),
                               ("/load %s" % self.path("bad.json"), "JSON"),
                               ("/load %s" % self.path("odd.json"), "found .user +2J"),
                               ("/save %s" % self.path("notes"), "no saved chat"),
                               ("/save %s" % self.path("no/a.json"), "No such file"), ("/help me", "expected nothing"),
                               ("/unknown", "unknown command /unknown"), ("/clear all", "expected nothing")):
            with self.subTest(command):
                terminal.write(command + "\n")
                shown = terminal.read_until(rb"engrun: [^\n]*\n(.|\n)*> ").decode()
                self.assertRegex(shown, "engrun: .*" + words)
                self.assertNotRegex(shown, "\x1b\\[2J|\u202e|\u009b")
        self.assertEqual(self.saved(terminal), before)
        self.assertEqual(contents(self.path("notes")), b"my notes")
        self.assertFalse(os.path.exists(self.path("none.json")))
        terminal.write("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_messages_that_are_no_commands(self):
        for message in ("/usr/bin is a folder", " /help", "/", "/Help", "a /help"):
            with self.subTest(message):
                self.assertEqual(self.sent(message + "\n"), message)

    def test_a_disk_that_is_full(self):
        """A chat that cannot be saved goes on, and the file that was there stays."""
        if not os.path.exists("/dev/full"):
            self.skipTest("needs /dev/full")
        terminal = self.begin()
        terminal.write("One.\n/save /dev/full\n")
        terminal.read_until(rb"/dev/full[^\n]*special file")
        self.assertEqual(len(self.saved(terminal)), 2)
        terminal.write("\x04")
        self.assertEqual(terminal.end(), 0)


class History(ChatTest):
    def file(self):
        return os.path.join(self.state, "eng", "chat_history")

    def test_messages_return_in_the_next_chat(self):
        self.sent('"""\n\u00e4 one\ntwo"""\n')
        self.assertEqual(stat.S_IMODE(os.stat(self.file()).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.dirname(self.file())).st_mode), 0o700)
        # Up: the command that saved it, then the message, whose end is changed.
        self.assertEqual(self.sent("\x1b[A\x1b[A\x7fx\n"), "\u00e4 one\ntwx")
        self.assertEqual(self.sent("\x12one\x1b\x05y\n"), "\u00e4 one\ntwxy")  # Ctrl-R finds it
        entries = [json.loads(line) for line in contents(self.file()).splitlines()]
        self.assertEqual([entry for entry in entries if not entry.startswith("/")],
                         ["\u00e4 one\ntwo", "\u00e4 one\ntwx", "\u00e4 one\ntwxy"])

    def test_no_history(self):
        for env, flags in ((EDITOR, ["--no-history"]), (PLAIN, [])):
            terminal = self.begin(env, *flags)
            terminal.write("One.\n")
            self.saved(terminal)
            terminal.write("\x04")
            self.assertEqual(terminal.end(), 0)
            self.assertFalse(os.path.exists(self.state))

    def test_no_place_for_it(self):
        """The chat works without, and says so once."""
        write(self.path("file"), b"")
        terminal = self.begin({**EDITOR, "XDG_STATE_HOME": self.path("file")})
        self.assertIn(b"no history is kept: ", self.greeting)
        terminal.write("One.\n")
        self.assertEqual(len(self.saved(terminal)), 2)
        terminal.write("\x04")
        self.assertEqual(terminal.end(), 0)


class Looks(ChatTest):
    def conversation(self, env, *flags, prompt=PROMPT):
        """Everything that a terminal gets."""
        terminal = self.begin(env, *flags, prompt=prompt)
        shown = self.greeting
        terminal.write("One.\n")
        shown += terminal.read_until(b"One(.|\\n)*" + prompt)
        terminal.write("\x04")
        self.assertEqual(terminal.end(), 0)
        return shown + terminal.output

    def test_colours(self):
        shown = self.conversation({"TERM": "xterm", "NO_COLOR": None}, prompt=b">" + SGR + b" ")
        self.assertRegex(shown, SGR)
        self.assertRegex(self.conversation({"TERM": "xterm", "NO_COLOR": ""}, prompt=b">" + SGR + b" "), SGR)

    def test_no_colours(self):
        shown = self.conversation({"TERM": "xterm", "NO_COLOR": "1"})
        self.assertNotRegex(shown, SGR)
        self.assertIn(b"\x1b[?2004h", shown)

    def test_terminals_without_codes(self):
        for kind in ("dumb", "", None):
            with self.subTest(kind=kind):
                self.assertNotIn(b"\x1b", self.conversation({"TERM": kind, "NO_COLOR": None}))

    def test_quiet(self):
        self.assertNotIn(b"Chat, with", self.conversation(EDITOR, "--quiet"))

    def test_stdout_is_a_pipe(self):
        """The answers alone go there; the terminal gets no code, and commands work."""
        reader, writer = os.pipe()
        terminal = Terminal([ENGRUN, chat_engine(), "--chat", "-n", "4"], env={"NO_COLOR": None}, stdout=writer)
        os.close(writer)
        terminal.read_until(PROMPT)
        terminal.write("One.\n/help\n/exit\n")
        self.assertEqual(terminal.end(), 0)
        self.assertNotIn(b"\x1b", terminal.output)
        self.assertIn(b"/save FILE", terminal.output)
        with os.fdopen(reader, "rb") as file:
            answer = file.read()
        expected = succeed([ENGRUN, chat_engine(), "--chat", "-n", "4", "-p", "One."]).stdout
        self.assertEqual(answer.decode(), expected)

    def test_stdin_is_a_pipe(self):
        """Every line is a message, whatever it looks like, and no file is read or written."""
        lines = ["/save %s" % self.path("x"), "/exit", '"""', "a\\", "/help"]
        reader, writer = os.pipe()
        os.write(writer, "".join(line + "\n" for line in lines).encode())
        os.close(writer)
        terminal = Terminal([ENGRUN, chat_engine(), "--chat", "-n", "4", "--print-tokens"], stdin=reader,
                            env={"NO_COLOR": None, "XDG_STATE_HOME": self.state})
        os.close(reader)
        self.assertEqual(terminal.end(), 0)
        self.assertNotIn(b"\x1b", terminal.output)
        self.assertEqual(len(re.findall(rb"^\d+( \d+)*\r$", terminal.output, re.M)), len(lines), terminal.output)
        self.assertEqual(os.listdir(self.folder), [])
        piped = run([ENGRUN, chat_engine(), "--chat", "-n", "4", "--print-tokens"], input="\n".join(lines))
        self.assertEqual(terminal.output.decode().replace("\r\n", "\n"), piped.stdout + piped.stderr)

    def test_usage(self):
        done = run([ENGRUN, chat_engine(), "--no-history", "-p", "One."])
        self.assertEqual(done.rc, 2)
        self.assertIn("--no-history: only with --chat", done.stderr)


if __name__ == "__main__":
    unittest.main()
