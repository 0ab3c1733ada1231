# SPDX-License-Identifier: Apache-2.0
"""engrun --render: what chat templates make of conversations, as transformers does."""

import glob
import json
import os
import unittest

from harness import ENGRUN, needs_shared, read_json, run, scratch, shared, succeed, tally, write

NOW = "2026-01-02T03:04:05"
FOLDER = scratch()

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def template(name, text):
    path = os.path.join(FOLDER.name, name)
    write(path, text.encode())
    return path


def render(path, lines, *flags):
    """What each line becomes: a text, or an object with the error."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return [json.loads(line) for line in succeed([ENGRUN, path, "--render", *flags], input=text).stdout.splitlines()]


class Templates(unittest.TestCase):
    def test_conversation(self):
        path = template("chatml.jinja", CHATML)
        one = {"messages": [{"role": "user", "content": " Hi \u00e9\u202e\n"}]}
        self.assertEqual(render(path, [one, {**one, "add_generation_prompt": True}, {"messages": []}]), [
            "<|im_start|>user\nHi \u00e9\u202e<|im_end|>\n",
            "<|im_start|>user\nHi \u00e9\u202e<|im_end|>\n<|im_start|>assistant\n", ""])
        self.assertEqual(render(path, []), [])

    def test_lines_that_fail(self):
        """Each line has its result; the others are not affected."""
        path = template("fails.jinja", "{% if not messages %}{{ raise_exception('No messages.') }}{% endif %}"
                                       "{{ messages[0].content + 'x' }}")
        good = {"messages": [{"content": "a"}]}
        results = render(path, [good, {"messages": []}, {"messages": [{"content": 1}]}, "{", "", "[]", good,
                                '{"messages":"a","messages":"b"}', '{"chat_template":"other"}'])
        self.assertEqual([results[0], results[6]], ["ax", "ax"])
        for index, word in ((1, "No messages."), (2, "TypeError"), (3, "variables"), (4, "variables"), (5, "object"),
                            (7, "duplicate"), (8, "found 'other'")):
            self.assertEqual(list(results[index]), ["error"])
            self.assertIn(word, results[index]["error"])

    def test_clock(self):
        path = template("clock.jinja", "{{ strftime_now('%d %B %Y %H:%M:%S %a %j') }}")
        self.assertEqual(render(path, [{}], "--now", NOW), ["02 January 2026 03:04:05 Fri 002"])
        self.assertRegex(render(path, [{}])[0], r"^\d\d \w+ 2\d\d\d ")
        result = run([ENGRUN, path, "--render", "--now", "tomorrow"], input="{}")
        self.assertEqual(result.rc, 2)
        self.assertIn("--now: expected a time such as 2026-01-02T03:04:05, found 'tomorrow'", result.stderr)

    def test_bounds(self):
        path = template("bound.jinja", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
        self.assertIn("than it may", render(path, [{}])[0]["error"])
        deep = "[" * 100000 + "]" * 100000
        self.assertEqual([list(result) for result in render(path, ['{"messages":%s}' % deep])], [["error"]])

    def test_long_conversation(self):
        path = template("long.jinja", CHATML)
        turn = [{"role": "user", "content": "x" * 200}, {"role": "assistant", "content": "y" * 200}]
        result = run([ENGRUN, path, "--render"], input=json.dumps({"messages": turn * 500}) + "\n", timeout=60)
        self.assertEqual(len(json.loads(result.stdout)), 500 * (400 + len("<|im_start|>user\n<|im_end|>\n") +
                                                                 len("<|im_start|>assistant\n<|im_end|>\n")))

    def test_what_is_refused(self):
        broken = template("broken.jinja", "one\n{% include 'other' %}")
        result = run([ENGRUN, broken, "--render"], input="{}")
        self.assertEqual(result.rc, 1)
        self.assertIn("line 2", result.stderr)
        self.assertIn("include", result.stderr)
        self.assertEqual(run([ENGRUN, os.path.join(FOLDER.name, "none.jinja"), "--render"]).rc, 1)
        for flags in (["--tokenize"], ["--selftest"], ["-p", "x"], ["--chat"], ["--special-tokens", "text"]):
            result = run([ENGRUN, broken, "--render", *flags], input="")
            self.assertEqual(result.rc, 2, flags)
            self.assertIn("--render", result.stderr)
        self.assertEqual(run([ENGRUN, broken, "--now", NOW, "--tokenize"], input="").rc, 2)


@needs_shared("chat_templates")
class Published(unittest.TestCase):
    """Published templates and conversations with the results of transformers."""

    def check(self, path, cases, name):
        results = render(path, [case["arguments"] for case in cases], "--now", NOW)
        self.assertEqual(len(results), len(cases))
        for number, (case, result) in enumerate(zip(cases, results)):
            with self.subTest(template=name, case=number):
                if "rendered" in case:
                    self.assertEqual(result, case["rendered"])
                else:
                    self.assertEqual(list(result), ["error"])

    def test_published(self):
        count = 0
        for path in sorted(glob.glob(shared("chat_templates", "*.jinja"))):
            cases = read_json(path[:-len(".jinja")] + ".cases.json")
            self.check(path, cases, os.path.basename(path))
            count += len(cases)
        self.assertGreater(count, 500)
        tally("rendered conversations", count)


if __name__ == "__main__":
    unittest.main()
