# SPDX-License-Identifier: Apache-2.0
"""engserve: answers that have a form, and log-probabilities."""

import json
import math
import os
import re
import threading
import unittest

from decoder import Decoder
from harness import ENGRUN, FABLES, output, scratch, write
from served import GREEDY, HELLO, PROMPT, Served, continuation, fables
from server import choices

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99},
                                          "kind": {"enum": ["fox", "wolf"]}},
          "required": ["name", "age", "kind"], "additionalProperties": False}
FOLDER = scratch()


def log_softmax(logits):
    most = max(logits)
    total = most + math.log(sum(math.exp(value - most) for value in logits))
    return [value - total for value in logits]


class Formats(Served):
    """Answers that have a form."""

    def text(self, expect="stop", **body):
        (choice,) = self.complete(**{"prompt": PROMPT, "max_tokens": 200, "temperature": 0, **body})["choices"]
        self.assertEqual(choice["finish_reason"], expect, choice)
        return choice["text"]

    def check_schema(self, text):
        found = json.loads(text)
        self.assertEqual(sorted(found), ["age", "kind", "name"])
        self.assertTrue(isinstance(found["age"], int) and 0 <= found["age"] <= 99 and len(found["name"]) <= 8, found)
        self.assertIn(found["kind"], ("fox", "wolf"))

    def test_schema(self):
        path = os.path.join(FOLDER.name, "schema.json")
        write(path, json.dumps(SCHEMA).encode())
        named = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}
        expected = continuation(PROMPT, 200, "--json-schema", path)
        for body in ({"response_format": named}, {"guided_json": SCHEMA}, {"guided_json": json.dumps(SCHEMA)}):
            with self.subTest(body):
                text = self.text(**body)
                self.check_schema(text)
                self.assertEqual(text, expected)
        reply = self.complete(prompt=PROMPT, max_tokens=200, temperature=1.5, seed=3, n=8, response_format=named)
        for choice in reply["choices"]:
            self.assertEqual(choice["finish_reason"], "stop")
            self.check_schema(choice["text"])
        self.assertGreater(len({choice["text"] for choice in reply["choices"]}), 1)

    def test_chat(self):
        named = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}
        for extra in ({"temperature": 0}, {"temperature": 1.5, "seed": 4}):
            (choice,) = self.chat(max_tokens=200, response_format=named, **extra)["choices"]
            self.assertEqual(choice["finish_reason"], "stop")
            self.check_schema(choice["message"]["content"])
            chunks = self.server.events("/v1/chat/completions", {"model": "chat", "messages": HELLO, "max_tokens": 200,
                                                                 "response_format": named, **extra})
            self.assertEqual(choices(chunks)[0][:2], (choice["message"]["content"], "stop"))

    def test_object(self):
        for seed in range(6):
            reply = self.complete(prompt=PROMPT, max_tokens=60, temperature=1, seed=seed, response_format={"type": "json_object"})
            (choice,) = reply["choices"]
            self.assertTrue(choice["text"].startswith("{"), choice)
            if choice["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(choice["text"]), dict)

    def test_regex_and_choice(self):
        self.assertRegex(self.text(guided_regex="[0-9]{4}-[a-z]{3}"), r"^[0-9]{4}-[a-z]{3}$")
        self.assertEqual(self.text(guided_regex="[0-9]{4}"), continuation(PROMPT, 200, "--regex", "[0-9]{4}"))
        for seed in range(4):
            self.assertIn(self.text(guided_choice=["yes", "no", "perhaps"], temperature=2, seed=seed), ("yes", "no", "perhaps"))
        (choice,) = self.chat(max_tokens=50, guided_choice=["caf\u00e9"])["choices"]
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), ("caf\u00e9", "stop"))
        self.assertEqual(self.text(expect="length", guided_regex="[0-9]{400}", max_tokens=5)[:1].isdigit(), True)

    def test_text(self):
        self.assertEqual(self.text(expect="length", max_tokens=24, response_format={"type": "text"}), continuation(PROMPT, 24))

    def test_many(self):
        """More formats than are kept, several at the same time, each of them again."""
        for _ in range(2):
            for first in range(0, 48, 8):
                threads, found = [], {}
                for number in range(first, first + 8):
                    body = {"model": "fables", "prompt": PROMPT, "max_tokens": 50, "guided_regex": "a%db" % number}
                    threads.append(threading.Thread(target=lambda n=number, b=body: found.update(
                        {n: self.server.json("POST", "/v1/completions", b)["choices"][0]["text"]})))
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertEqual(found, {number: "a%db" % number for number in range(first, first + 8)})

    def test_refused(self):
        schema = lambda **keywords: {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": keywords}}}
        for body, param, *words in (
                (schema(type="object", unevaluatedProperties=False), "response_format", "unevaluatedProperties"),
                (schema(type="integer", multipleOf="x"), "response_format", "multipleOf"),
                ({"guided_json": {"type": "strange"}}, "guided_json", "strange"), ({"guided_json": "{"}, "guided_json"),
                ({"guided_json": {"$ref": "http://x/y"}}, "guided_json", "$ref"), ({"guided_regex": "(?=a)b"}, "guided_regex"),
                ({"guided_regex": "("}, "guided_regex"), ({"guided_choice": []}, "guided_choice", "at least one"),
                ({"guided_choice": [1]}, "guided_choice"), ({"guided_choice": "yes"}, "guided_choice", "array"),
                ({"guided_regex": 3}, "guided_regex", "string"), ({"guided_json": True}, "guided_json"),
                ({"response_format": {"type": "grammar"}}, "response_format", "json_schema"),
                ({"response_format": "json"}, "response_format", "object"),
                ({"response_format": {"type": "json_object", "x": 1}}, "response_format", "'x'"),
                ({"response_format": {"type": "json_schema"}}, "response_format", "nothing"),
                ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format", "schema"),
                ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "both"),
                ({"guided_choice": ["a"], "guided_json": {}}, "guided_json", "both"),
                ({"guided_choice": ["a"], "ignore_eos": True}, "ignore_eos", "guided_choice")):
            for path, own in (("/v1/completions", {"model": "fables", "prompt": PROMPT}),
                              ("/v1/chat/completions", {"model": "chat", "messages": HELLO})):
                with self.subTest(path=path, body=body):
                    self.refused(path, {**own, **body}, 400, param, *words)


class Logprobs(Served):
    def drawn(self, prompt, count, *flags):
        """What engrun prints: of each token its log-probability and those of the likeliest ones."""
        return [json.loads(line) for line in output([ENGRUN, fables(), "-p", prompt, "-n", str(count), *flags]).splitlines()]

    def test_completion(self):
        for top, options, flags in ((0, {}, []), (5, {}, []), (20, {"temperature": 2, "seed": 3}, ["--temperature", "2", "--seed", "3"])):
            with self.subTest(top):
                expected = self.drawn(PROMPT, 24, "--logprobs", str(top), *flags)
                reply = self.complete(**{**GREEDY, **options}, logprobs=top)
                (choice,) = reply["choices"]
                plain = self.complete(**{**GREEDY, **options})["choices"][0]
                self.assertEqual(choice["text"], plain["text"])
                found = choice["logprobs"]
                self.assertEqual(list(found), ["tokens", "token_logprobs", "top_logprobs", "text_offset"])
                self.assertEqual("".join(found["tokens"]), choice["text"])
                self.assertEqual(found["text_offset"], [len("".join(found["tokens"][:i])) for i in range(24)])
                for number, one in zip(found["token_logprobs"], expected):
                    self.assertAlmostEqual(number, one["logprob"], places=4)
                for token, number, likeliest, one in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], expected):
                    self.assertEqual(likeliest[token], number)
                    values = sorted(likeliest.values(), reverse=True)[:len(one["top"])]
                    self.assertEqual(list(likeliest.values())[:top], values[:top])
                    self.assertIn(len(likeliest), (max(top, 1), top + 1))
                    for value, other in zip(values, one["top"]):
                        self.assertAlmostEqual(value, other["logprob"], places=4)

    def test_chat(self):
        for top in (0, 1, 20):
            with self.subTest(top):
                (choice,) = self.chat(max_tokens=12, temperature=1, seed=5, logprobs=True, top_logprobs=top)["choices"]
                content = choice["logprobs"]["content"]
                self.assertEqual((list(choice["logprobs"]), len(content)), (["content", "refusal"], 12))
                self.assertEqual(b"".join(bytes(one["bytes"]) for one in content).decode(), choice["message"]["content"])
                for one in content:
                    self.assertEqual(list(one), ["token", "logprob", "bytes", "top_logprobs"])
                    self.assertEqual(len(one["top_logprobs"]), top)
                    self.assertEqual(bytes(one["bytes"]).decode(), one["token"])
                    numbers = [other["logprob"] for other in one["top_logprobs"]]
                    self.assertEqual(numbers, sorted(numbers, reverse=True))
                    self.assertTrue(all(number <= 0 for number in [one["logprob"], *numbers]))
                    same = [other["logprob"] for other in one["top_logprobs"] if other["bytes"] == one["bytes"]]
                    self.assertTrue(one["logprob"] in same or (not same and all(one["logprob"] <= number for number in numbers)))
        self.assertIsNone(self.chat(max_tokens=2, logprobs=False)["choices"][0]["logprobs"])

    def test_model_itself(self):
        """They are those of the model, before biases and temperature."""
        plain = self.complete(**GREEDY, logprobs=2)["choices"][0]["logprobs"]
        first = int(output([ENGRUN, fables(), "-p", PROMPT, "-n", "1", "--print-tokens"]))
        other = self.complete(**GREEDY, logprobs=2, logit_bias={str(first): -100})["choices"][0]["logprobs"]
        self.assertNotEqual(other["tokens"][0], plain["tokens"][0])
        self.assertEqual(other["top_logprobs"][0][plain["tokens"][0]], plain["token_logprobs"][0])

    def test_end_token(self):
        """The end token is no part of the text, and has no entry."""
        reply = self.complete(prompt=PROMPT, max_tokens=900, temperature=0, logprobs=1)
        (choice,) = reply["choices"]
        self.assertEqual(choice["finish_reason"], "stop")
        self.assertEqual(len(choice["logprobs"]["tokens"]), reply["usage"]["completion_tokens"] - 1)
        self.assertEqual("".join(choice["logprobs"]["tokens"]), choice["text"])

    def test_stop_strings(self):
        """No token is shown that begins after the answer's end."""
        for stop in ("fox", " little fox na", "ittle fox named Mir", ", there"):
            with self.subTest(stop):
                (choice,) = self.complete(**GREEDY, stop=stop, logprobs=0)["choices"]
                tokens = choice["logprobs"]["tokens"]
                self.assertTrue("".join(tokens).startswith(choice["text"]))
                self.assertEqual(len("".join(tokens[:-1])) < len(choice["text"]), bool(tokens))

    def test_parts_of_characters(self):
        text = "caf\u00e9 \U0001f98a"
        (choice,) = self.complete(prompt=PROMPT, max_tokens=50, guided_choice=[text], logprobs=1)["choices"]
        self.assertEqual(choice["text"], text)
        found = choice["logprobs"]
        parts = [token for token in found["tokens"] if token.startswith("bytes:")]
        self.assertGreater(len(parts), 1)
        self.assertTrue(all(re.fullmatch(r"bytes:(\\x[0-9a-f]{2})+", part) for part in parts), parts)
        self.assertEqual(max(found["text_offset"]), len(text) - 1)
        (choice,) = self.chat(max_tokens=50, guided_choice=[text], logprobs=True, top_logprobs=2)["choices"]
        self.assertEqual(b"".join(bytes(one["bytes"]) for one in choice["logprobs"]["content"]).decode(), text)

    def test_stream_equals_whole(self):
        for extra in ({}, {"n": 3, "temperature": 1, "seed": 4}, {"stop": ["fox named Mir"]}, {"guided_choice": ["caf\u00e9 \U0001f98a"]}):
            with self.subTest(extra):
                body = {**GREEDY, **extra, "logprobs": 3}
                whole = {choice["index"]: choice for choice in self.complete(**body)["choices"]}
                found = {index: {key: [] for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")} for index in whole}
                chunks = self.server.events("/v1/completions", {"model": "fables", **body})
                for chunk in chunks:
                    (choice,) = chunk["choices"]
                    for key, values in (choice["logprobs"] or {}).items():
                        found[choice["index"]][key] += values
                self.assertEqual(found, {index: choice["logprobs"] for index, choice in whole.items()})
                self.assertEqual({index: text for index, (text, *_) in choices(chunks).items()},
                                 {index: choice["text"] for index, choice in whole.items()})
                body = {"max_tokens": 12, "temperature": 0, **extra, "logprobs": True, "top_logprobs": 2}
                whole = {choice["index"]: choice["logprobs"]["content"] for choice in self.chat(**body)["choices"]}
                found = {index: [] for index in whole}
                for chunk in self.server.events("/v1/chat/completions", {"model": "chat", "messages": HELLO, **body}):
                    (choice,) = chunk["choices"]
                    found[choice["index"]] += (choice["logprobs"] or {"content": []})["content"]
                self.assertEqual(found, whole)

    def tokens_of(self, text):
        return self.server.json("POST", "/tokenize", {"model": "fables", "prompt": text})["tokens"]

    def test_prompts(self):
        """With echo they begin with those of the prompt, as an independent forward pass gives them."""
        text = PROMPT + ", there was a small wolf"
        ids = self.tokens_of(text)
        decoder = Decoder(FABLES)
        rows = [log_softmax(decoder.logits(ids[:i])) for i in range(1, len(ids))]
        for top in (0, 3):
            for prompt in (text, ids):
                with self.subTest(top=top, prompt=prompt):
                    (choice,) = self.complete(prompt=prompt, max_tokens=0, echo=True, logprobs=top)["choices"]
                    found = choice["logprobs"]
                    self.assertEqual(choice["text"], text)
                    self.assertEqual(len(found["tokens"]), len(ids))
                    self.assertEqual([found["token_logprobs"][0], found["top_logprobs"][0]], [None, None])
                    for token, number, likeliest, row, place in zip(ids[1:], found["token_logprobs"][1:], found["top_logprobs"][1:], rows, found["tokens"][1:]):
                        self.assertAlmostEqual(number, row[token], delta=1e-3)
                        self.assertEqual(likeliest[place], number)
                        for value, expected in zip(sorted(likeliest.values(), reverse=True)[:top], sorted(row, reverse=True)):
                            self.assertAlmostEqual(value, expected, delta=1e-3)
                    ends = found["text_offset"][1:] + [len(text)]
                    for token, begin, end in zip(found["tokens"], found["text_offset"], ends):
                        self.assertIn(text[begin:end], ("", token, token.lstrip()))
                    self.assertEqual(text[found["text_offset"][-1]:], found["tokens"][-1])

    def test_special_tokens_of_a_prompt(self):
        """They are a part of a text that has them, and none of one that has not, whatever `skip_special_tokens` says."""
        special = "<|end|>"  # of the shipped model
        text = PROMPT + special + " and " + special + "the fox"
        for skip in (True, False):
            with self.subTest(skip=skip):
                found = self.complete(prompt=text, max_tokens=0, echo=True, logprobs=0, skip_special_tokens=skip)["choices"][0]
                self.assertEqual(found["text"], text)
                begins = found["logprobs"]["text_offset"]
                self.assertEqual([text[begin:end] for begin, end in zip(begins, begins[1:] + [len(text)])].count(special), 2)
                self.assertEqual(text[begins[-1]:], found["logprobs"]["tokens"][-1])

    def test_prompt_and_answer(self):
        ids = self.tokens_of(PROMPT)
        plain = self.complete(**GREEDY, logprobs=2)["choices"][0]
        reply = self.complete(**GREEDY, logprobs=2, echo=True, n=2)
        alone = self.complete(prompt=PROMPT, max_tokens=0, logprobs=2, echo=True)
        self.assertEqual([each["usage"]["completion_tokens"] for each in (reply, alone)], [48, 0])
        for choice in reply["choices"]:
            self.assertEqual(choice["text"], PROMPT + plain["text"])
            for key, values in choice["logprobs"].items():
                self.assertEqual(len(values), len(ids) + 24)
                shown = [value + len(PROMPT) for value in plain["logprobs"][key]] if key == "text_offset" else plain["logprobs"][key]
                if key in ("tokens", "text_offset"):
                    self.assertEqual(values[len(ids):], shown)
                self.assertEqual(values[:len(ids)], alone["choices"][0]["logprobs"][key])
            for one, other in zip(choice["logprobs"]["token_logprobs"][len(ids):], plain["logprobs"]["token_logprobs"]):
                self.assertAlmostEqual(one, other, places=4)
        for body in ({**GREEDY, "n": 2}, {"prompt": [PROMPT, "The fox"], "max_tokens": 0}):
            body = {**body, "logprobs": 2, "echo": True}
            whole = {choice["index"]: (choice["text"], choice["logprobs"], choice["finish_reason"]) for choice in self.complete(**body)["choices"]}
            found = {index: ["", {}, None] for index in whole}
            for chunk in self.server.events("/v1/completions", {"model": "fables", **body}):
                (choice,) = chunk["choices"]
                one = found[choice["index"]]
                one[0] += choice["text"]
                one[2] = choice["finish_reason"] or one[2]
                for key, values in (choice["logprobs"] or {}).items():
                    one[1][key] = one[1].get(key, []) + values
            self.assertEqual({index: tuple(one) for index, one in found.items()}, whole)

    def test_prompts_of_any_size(self):
        """One token, and as many as the context has."""
        facts = self.server.json("GET", "/v1/models/fables")
        for count in (1, facts["max_model_len"]):
            reply = self.complete(prompt=[300] * count, max_tokens=0, logprobs=1, echo=True)
            numbers = reply["choices"][0]["logprobs"]["token_logprobs"]
            self.assertEqual((numbers[0], len(numbers), reply["usage"]["prompt_tokens"]), (None, count, count))
            self.assertTrue(all(number <= 0 for number in numbers[1:]))
        self.refused("/v1/completions", {"model": "fables", "prompt": [300] * (count + 1), "max_tokens": 0, "echo": True}, 400, "prompt", "the prompt has")

    def test_too_many(self):
        """The memory of an answer is bounded."""
        self.refused("/v1/completions", {"model": "fables", "prompt": [300] * 1600, "n": 128, "max_tokens": 1, "echo": True, "logprobs": 20},
                     400, "logprobs", "204800 tokens of prompts")
        self.refused("/v1/completions", {"model": "fables", "prompt": PROMPT, "n": 2, "max_tokens": 0, "echo": True}, 400, "n", "expected 1")
        body = {"model": "fables", "prompt": PROMPT, "n": 128, "logprobs": 0}
        self.refused("/v1/completions", {**body, "max_tokens": 10923}, 400, "logprobs", "max_tokens")
        self.refused("/v1/completions", {**body, "max_tokens": 10922}, 400, "prompt", "context")


if __name__ == "__main__":
    unittest.main()
