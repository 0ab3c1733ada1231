# SPDX-License-Identifier: Apache-2.0
"""engrun --render: what chat templates make of conversations, as transformers does."""

import glob
import json
import os
import unittest

from gguf_writer import convert
from harness import (ENGBUILD, ENGINFO, ENGRUN, FABLES, build_engine, changed_model, chat_engine, fables_engine, needs_shared,
                     output, read_json, run, sanitized_elsewhere, scratch, shared, succeed, tally, write)

NOW = "2026-01-02T03:04:05"
FOLDER = scratch()

# Another spelling than that of the engines for chats.
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
        result = run([ENGRUN, path, "--render"], input=json.dumps({"messages": turn * 500}) + "\n")
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


def model_with(files, config=None):
    """A copy of the shipped model with these templates, and chat_template or tokens in tokenizer_config.json."""
    model = changed_model(FOLDER.name)
    for name, text in files.items():
        path = os.path.join(model, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write(path, text.encode())
    if config is not None:
        write(os.path.join(model, "tokenizer_config.json"), json.dumps(config).encode())
    return model


HI = {"messages": [{"role": "user", "content": "Hi"}]}


class Engines(unittest.TestCase):
    """The templates of a checkpoint go into its engine."""

    def test_the_engine_renders_as_the_template(self):
        one = {**HI, "add_generation_prompt": True}
        self.assertEqual(render(chat_engine(), [one]), ["<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"])
        self.assertIn("chat:       templates default\n", output([ENGINFO, chat_engine()]))

    def test_special_tokens_are_variables(self):
        engine = build_engine(model_with({}, {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "chat_template":
                                              "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ tools is none }}"}))
        self.assertEqual(render(engine, [HI, {**HI, "bos_token": "!"}]), ["<|begin|>Hi<|end|>True", "!Hi<|end|>True"])

    def test_named_templates(self):
        engine = build_engine(model_with({"chat_template.jinja": "file", "additional_chat_templates/rag.jinja": "rag",
                                          "additional_chat_templates/tool_use.jinja": "{{ tools | length }} tools"},
                                         {"chat_template": "config"}))
        self.assertEqual(render(engine, [{}, {"chat_template": "rag"}, {"tools": [1, 2]}]), ["file", "rag", "2 tools"])
        unknown, = render(engine, [{"chat_template": "other"}])
        self.assertIn("expected one of 'default', 'rag', 'tool_use', found 'other'", unknown["error"])

    def test_a_template_that_cannot_be_used(self):
        """The build warns, the engine works, and a chat says why there is none."""
        model = model_with({"chat_template.jinja": "one\n{% include 'other' %}", "additional_chat_templates/rag.jinja": "rag"})
        path = os.path.join(FOLDER.name, "broken.eng")
        built = succeed([ENGBUILD, "--model", model, "--target", "cpu", "-o", path, "--tune", "off"])
        for word in ("the engine does without the chat template 'default'", "line 2", "include"):
            self.assertIn(word, built.stderr)
        self.assertEqual(len(succeed([ENGRUN, path, "-p", "Once", "-n", "2", "--print-tokens"]).stdout.split()), 2)
        chat = run([ENGRUN, path, "--chat", "-p", "x"])
        self.assertEqual(chat.rc, 1)
        for word in ("the chat template 'default' cannot be used", "line 2", "include"):
            self.assertIn(word, chat.stderr)
        self.assertEqual(render(path, [{"chat_template": "rag"}]), ["rag"])
        self.assertIn("line 2", render(path, [HI])[0]["error"])

    def test_a_template_that_refuses_a_conversation(self):
        engine = build_engine(model_with({"chat_template.jinja": "{% if messages[0].role == 'system' %}"
                                          "{{ raise_exception('No system messages.') }}{% endif %}<|begin|>{{ messages }}"}))
        self.assertEqual(succeed([ENGRUN, engine, "--chat", "-p", "x", "-n", "1", "--print-tokens"]).rc, 0)
        chat = run([ENGRUN, engine, "--chat", "--system", "a", "-p", "x"])
        self.assertEqual(chat.rc, 1)
        self.assertIn("No system messages.", chat.stderr)

    def test_without_a_template(self):
        result = run([ENGRUN, fables_engine(), "--render"], input="{}")
        self.assertEqual(result.rc, 1)
        self.assertIn("the engine has no chat template", result.stderr)
        self.assertIn("chat:       no template\n", output([ENGINFO, fables_engine()]))

    def test_gguf(self):
        path = os.path.join(FOLDER.name, "chat.gguf")
        convert(FABLES, "F32", path, os.path.join(FOLDER.name, "plain"), more_keys={"tokenizer.chat_template": "{{ messages[0].content }}!"})
        self.assertEqual(render(build_engine(path), [HI]), ["Hi!"])

    def test_same_bytes(self):
        model = model_with({"chat_template.jinja": "{{ messages }}"}, {"bos_token": "<|begin|>", "eos_token": "<|end|>"})
        paths = [os.path.join(FOLDER.name, name) for name in ("first.eng", "second.eng")]
        for path in paths:
            succeed([ENGBUILD, "--model", model, "--target", "cpu", "-o", path, "--tune", "off"])
        with open(paths[0], "rb") as first, open(paths[1], "rb") as second:
            self.assertEqual(first.read(), second.read())


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

    @sanitized_elsewhere
    def test_published_in_an_engine(self):
        """All as named templates of one checkpoint."""
        files, cases = {"chat_template.jinja": "unused"}, {}
        for path in sorted(glob.glob(shared("chat_templates", "*.jinja"))):
            name = os.path.basename(path)[:-len(".jinja")]
            with open(path, encoding="utf-8", newline="") as file:
                files["additional_chat_templates/%s.jinja" % name] = file.read()
            cases[name] = read_json(path[:-len(".jinja")] + ".cases.json")
        engine = build_engine(model_with(files))
        for name, recorded in cases.items():
            named = [{**case, "arguments": {**case["arguments"], "chat_template": name}} for case in recorded]
            self.check(engine, named, name)
        tally("rendered conversations of an engine", sum(map(len, cases.values())))


if __name__ == "__main__":
    unittest.main()
