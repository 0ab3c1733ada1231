# SPDX-License-Identifier: Apache-2.0
"""Checks the language of comments, messages and documents in every folder: phrases that a reader must decode, and names
that were replaced by the field's terms, are refused. Each rule also has a self-test below that plants a violation."""

import io
import os
import re
import sys
import tempfile
import tokenize
import unittest

# Held to the rules: every C, CUDA, Python and Markdown file, except this one, which lists and plants the phrases.
EXEMPT = "tests/language_test.py"

# (pattern, what to write instead); matched without regard to case in comments, string literals and prose.
PHRASES = [
    (r"\bin vain\b", "say what did not happen within which time"),
    (r"\bwhoever\b", "name the function, thread, process or caller"),
    (r"\bwhat is\b", "name the thing"),
    (r"\b(nobody|somebody|anybody|everybody)\b", "name the thread, process, rank or caller"),
    (r"\bbehind\b", "after, next, beyond"),
    (r"\b(stands?|standing|stood) alone\b", "single, or by itself"),
    (r"\b(have|has|had) parted\b", "say what differs"),
    (r"\bever after\b", "from then on always"),
    (r"\bperhaps fewer or none\b", "give the range"),
    (r"\bbetter late than never\b", "say when it happens"),
    (r"\bsees to it\b", "name the action"),
    (r"(?:^|[.:;] )of (?=\w)", "a sentence begins with its subject"),
]
# Sentences that begin with a preposition are recognised by their capital letter.
CASE_SENSITIVE = {r"(?:^|[.:;] )of (?=\w)": r"(?:^|[.:;] )Of (?=\w)"}

# Names that were replaced, in the code of every folder.
RETIRED = [
    (r"\bLAUNCH_TOGETHER\b", "LAUNCH_CORESIDENT"),
    (r"\bworld_(?:join|gather|note|leave|fail|ok)\b", "process_group_..."),
    (r"\bmirror_(?:open|close|send|drew|changed)\b", "state_shadow_..."),
    (r"\bBACKEND_WAITED\b", "BACKEND_NO_ANSWER"),
    (r"\bstruct world\b", "struct process_group, or what it is in a test: group, fixture"),
    (r"\bTEST_NARROW\b", "TEST_SMALL_BATCH"),
    (r"(?:->|\.)narrow\b", "small_batch"),
    (r"\bchoose_plans\w*", "end_to_end"),
    (r"\blibrary_blobs?\w*", "vendor_cache"),
    (r"(?:->|\.)late\b", "timed_out"),
]

C_SOURCES = (".c", ".h", ".cu", ".cuh")
FOLDERS = ("builder", "formats", "kernels", "runtime", "tests", "tuner")

C_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
COMPILED = [(re.compile(CASE_SENSITIVE.get(pattern, pattern), 0 if pattern in CASE_SENSITIVE else re.I), advice)
            for pattern, advice in PHRASES]
COMPILED_RETIRED = [(re.compile(pattern), name) for pattern, name in RETIRED]


def texts_of_c(text):
    """(line, text) of every comment, and of every run of adjacent string literals, on one line each."""
    literal, literal_line, literal_end = "", 0, 0
    for match in C_TEXT.finditer(text):
        line, found = text.count("\n", 0, match.start()) + 1, match.group()
        if found.startswith('"'):
            if literal and text[literal_end:match.start()].strip():
                yield literal_line, literal
                literal = ""
            literal_line = line if not literal else literal_line
            literal += found[1:-1]
            literal_end = match.end()
        elif found.startswith("/"):
            body = re.sub(r"^/[*/]+|\*/$", "", found)
            body = re.sub(r"\n[ \t]*\*?", "\n", body)
            for number, paragraph in paragraphs(body):
                yield line + number, paragraph
    if literal:
        yield literal_line, literal


def paragraphs(text):
    """(offset of the first line, text on one line) of every paragraph."""
    lines, first = [], 0
    for number, line in enumerate(text.split("\n") + [""]):
        if line.strip():
            first = number if not lines else first
            lines.append(line.strip())
        elif lines:
            yield first, " ".join(lines)
            lines = []


def texts_of_python(text):
    """(line, text) of every comment, of adjacent comments as one, and of every paragraph of a docstring."""
    comment, first, last = "", 0, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] != last + 1:
                yield first, comment
                comment = ""
            first, last = first if comment else token.start[0], token.start[0]
            comment = (comment + " " + token.string.strip("# ")).strip()
        elif token.type == tokenize.STRING and token.string.startswith('"""'):
            for number, paragraph in paragraphs(token.string[3:-3]):
                yield token.start[0] + number, paragraph
    if comment:
        yield first, comment


def without_code_blocks(text):
    """Markdown with fenced blocks and inline code blanked; lines stay where they are."""
    text = re.sub(r"^```.*?^```", lambda match: "\n" * match.group().count("\n"), text, flags=re.S | re.M)
    return re.sub(r"`[^`\n]*`", "`", text)


def check_text(path, text):
    if path.endswith(".md"):
        texts = ((number + 1, paragraph) for number, paragraph in paragraphs(without_code_blocks(text)))
    elif path.endswith(C_SOURCES):
        texts = texts_of_c(text)
    elif path.endswith(".py"):
        texts = texts_of_python(text)
    else:
        return
    for line, found in texts:
        for pattern, advice in COMPILED:
            match = pattern.search(found)
            if match:
                yield "%s:%d: '%s' in \"...%s...\"; instead: %s" % (
                    path, line, match.group().strip(), found[max(0, match.start() - 30):match.end() + 30], advice)


def check_names(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        for pattern, name in COMPILED_RETIRED:
            match = pattern.search(line)
            if match:
                yield "%s:%d: '%s' is now %s" % (path, number, match.group(), name)


def files(root):
    for path in ("README.md", ".github/SECURITY.md"):
        if os.path.exists(os.path.join(root, path)):
            yield path
    for folder in FOLDERS:
        for where, folders, names in os.walk(os.path.join(root, folder)):
            folders[:] = sorted(f for f in folders if f not in ("models", "corpus", "testdata", "data", "__pycache__"))
            for name in sorted(names):
                if name.endswith(C_SOURCES + (".md", ".py")):
                    yield os.path.relpath(os.path.join(where, name), root)


def check_tree(root):
    defects = []
    for path in files(root):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        if path.endswith(C_SOURCES):
            defects += check_names(path, text)
        if path != EXEMPT:
            defects += check_text(path, text)
    return defects


def tree_root():
    runfiles = os.environ.get("TEST_SRCDIR")
    if runfiles:
        return os.path.join(runfiles, os.environ.get("TEST_WORKSPACE", "eng"))
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Tree(unittest.TestCase):
    def test_language(self):
        defects = check_tree(tree_root())
        self.assertEqual(defects, [], "\n" + "\n".join(defects))

    def test_every_kind_of_file_is_seen(self):
        paths = list(files(tree_root()))
        for kind in C_SOURCES + (".md", ".py"):
            with self.subTest(kind=kind):
                self.assertGreater(sum(path.endswith(kind) for path in paths), 1)
        self.assertIn(EXEMPT, paths)


class PlantedViolation(unittest.TestCase):
    """Each rule fails where it should, and names the file and the line."""

    def planted(self, path, text):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
            return check_tree(root)

    def assert_found(self, path, text, line, words):
        defects = self.planted(path, text)
        self.assertEqual(len(defects), 1, defects)
        self.assertIn("%s:%d:" % (path, line), defects[0])
        self.assertIn(words, defects[0])

    def test_clean_text_passes(self):
        clean = ('/* Waits for all ranks. Off is the default. The list of\n * files follows. */\nint behind; /* after it */\n'
                 'const char *whoever = "rank 1 did not answer within 3 s";\n')
        self.assertEqual(self.planted("runtime/clean.c", clean), [])
        self.assertEqual(self.planted("README.md", "Text.\n\n```c\nint behind;\n```\n\nSee `whoever`.\n"), [])

    def test_every_phrase(self):
        for phrase in ("waited in vain", "whoever calls it", "what is left", "nobody waits", "comes behind it", "it stands alone",
                       "the ranks have parted", "fails ever after", "perhaps fewer or none", "better late than never",
                       "the caller sees to it"):
            with self.subTest(phrase=phrase):
                word = next(pattern.search(phrase) for pattern, _ in COMPILED if pattern.search(phrase)).group()
                self.assert_found("runtime/a.c", "int a; /* %s */\n" % phrase, 1, word)
                self.assert_found("formats/base/a.h", "// %s\n" % phrase.upper(), 1, word.upper())
                self.assert_found("runtime/cli/a.c", '\n\nfail("%s");\n' % phrase, 3, word)
                self.assert_found("README.md", "# A\n\n%s\n" % phrase, 3, word)

    def test_phrases_across_lines(self):
        self.assert_found("runtime/a.c", "/* It waited in\n * vain. */\n", 1, "in vain")
        self.assert_found("runtime/a.c", 'fail("waited in "\n     "vain");\n', 1, "in vain")

    def test_python(self):
        self.assert_found("tests/e2e/a_test.py", "a = 1\n\n# It waited in\n# vain.\nb = 2\n", 3, "in vain")
        self.assert_found("tests/e2e/a_test.py", 'def f():\n    """Starts.\n\n    Nobody waits."""\n', 4, "Nobody")
        self.assertEqual(self.planted("tests/e2e/a_test.py", '# Waits.\nbehind = "whoever"  # set\n'), [])

    def test_sentence_without_subject(self):
        self.assert_found("runtime/a.c", "int a; /* Of the ranks: the first. */\n", 1, "Of")
        self.assert_found("runtime/a.c", "/* Waits.\n *\n * Of all, the first. */\n", 3, "Of")
        self.assert_found("runtime/a.c", "/* Waits. Of all, the first. */\n", 1, "Of")

    def test_retired_names(self):
        for name in ("LAUNCH_TOGETHER", "world_join", "mirror_send", "BACKEND_WAITED", "struct world", "TEST_NARROW",
                     "choose_plans_cuda", "library_blobs"):
            with self.subTest(name=name):
                self.assert_found("builder/a.c", "int a;\nint b = %s;\n" % name, 2, name)
        for name in ("->narrow", ".late"):
            with self.subTest(name=name):
                self.assert_found("kernels/a.cuh", "int a = b%s;\n" % name, 1, name)

    def test_other_files_are_free(self):
        self.assertEqual(self.planted(EXEMPT, "# behind\n"), [])
        self.assertEqual(self.planted("runtime/a.txt", "behind\n"), [])


if __name__ == "__main__":
    sys.exit(unittest.main())
