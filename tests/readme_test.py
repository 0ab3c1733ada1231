"""The README tells the truth where a program can check it: its C program is the one that is compiled and tested."""

import os
import unittest

ROOT = os.path.join(os.environ["TEST_SRCDIR"], os.environ["TEST_WORKSPACE"]) if "TEST_SRCDIR" in os.environ else \
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(*parts):
    with open(os.path.join(ROOT, *parts), encoding="utf-8") as file:
        return file.read()


class Readme(unittest.TestCase):
    def setUp(self):
        self.readme = read("README.md")

    def test_program_is_the_example(self):
        begin = self.readme.index("```c\n") + len("```c\n")
        program = self.readme[begin:self.readme.index("```", begin)]
        self.assertEqual(program, read("runtime", "examples", "generate.c"))
        self.assertLessEqual(len(program.splitlines()), 40)

    def test_commands_exist(self):
        for script in (".ci/demo", ".ci/run", ".ci/fuzz", ".ci/format", ".ci/compile-commands"):
            self.assertIn(script, self.readme)
            self.assertTrue(os.access(os.path.join(ROOT, script), os.X_OK), script)


if __name__ == "__main__":
    unittest.main()
