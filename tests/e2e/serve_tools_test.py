# SPDX-License-Identifier: Apache-2.0
"""engserve: calls of tools, and reasoning apart from content. The model's answers mean nothing: calls are required, so that their
grammar makes them."""

import json
import os
import re
import unittest

from harness import build_engine, chat_engine, chat_model, contents, scratch, tools_engine, write
from served import HELLO, Served
from server import Server, choices

FOLDER = scratch()
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": {
    "type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["place", "days"], "additionalProperties": False}}}
TIME = {"type": "function", "function": {"name": "get_time"}}
HISTORY = HELLO + [
    {"role": "assistant", "content": None, "reasoning_content": "I look.",
     "tool_calls": [{"id": "a12345678", "type": "function",
                     "function": {"name": "get_weather", "arguments": json.dumps({"place": "Rome", "days": 2})}}]},
    {"role": "tool", "tool_call_id": "a12345678", "content": "Sun."}]


class Tools(Served):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("tools=" + tools_engine(), "chat=" + chat_engine())

    def ask(self, **body):
        options = {"model": "tools", "messages": HELLO, "max_tokens": 100, **body}
        (choice,) = self.server.json("POST", "/v1/chat/completions", options)["choices"]
        chunks = self.server.events("/v1/chat/completions", options)
        return choice, chunks

    def calls_of(self, chunks):
        calls = {}
        for chunk in chunks:
            for call in chunk["choices"][0]["delta"].get("tool_calls", []):
                name, arguments = calls.get(call["index"], (None, ""))
                calls[call["index"]] = (call["function"].get("name", name), arguments + call["function"]["arguments"])
        return [calls[index] for index in sorted(calls)]

    def check_calls(self, choice, chunks):
        calls = choice["message"]["tool_calls"]
        self.assertEqual(choice["finish_reason"], "tool_calls", choice)
        self.assertIsNone(choice["message"]["content"])
        for call in calls:
            self.assertTrue(re.fullmatch("[0-9a-zA-Z]{9}", call["id"]), call)
            self.assertEqual(call["type"], "function")
            self.check_arguments(call["function"])
        self.assertEqual(self.calls_of(chunks), [(call["function"]["name"], call["function"]["arguments"]) for call in calls])
        self.assertEqual(choices(chunks)[0], ("", "tool_calls", "assistant"))
        return calls

    def check_arguments(self, function):
        arguments = json.loads(function["arguments"])
        if function["name"] == "get_time":
            self.assertEqual(arguments, {})
        else:
            self.assertEqual(function["name"], "get_weather")
            self.assertIn(arguments["place"], ("Rome", "Oslo"))
            self.assertIn(arguments["days"], range(1, 8))

    def test_named(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        for seed in range(4):
            calls = self.check_calls(*self.ask(tools=[TIME, WEATHER], tool_choice=named, temperature=1.5, seed=seed))
            self.assertEqual([call["function"]["name"] for call in calls], ["get_weather"])

    def test_required(self):
        names = set()
        for seed in range(6):
            calls = self.check_calls(*self.ask(tools=[TIME, WEATHER], tool_choice="required", parallel_tool_calls=False,
                                               temperature=1.5, seed=seed))
            self.assertEqual(len(calls), 1)
            names.add(calls[0]["function"]["name"])
        self.assertEqual(names, {"get_time", "get_weather"})

    def test_call_or_document(self):
        """With a format beside tools an answer is either calls of the tools or a text of the format."""
        schema = {"type": "object", "properties": {"answer": {"enum": ["yes", "no"]}}, "required": ["answer"]}
        kinds = set()
        # The fables know no calls: a bias for the first token of one makes them likely.
        tokens = self.server.json("POST", "/tokenize", {"model": "tools", "prompt": "<tool_call>", "add_special_tokens": False})["tokens"]
        bias = {"logit_bias": {str(tokens[0]): 20}}
        for seed in range(24):
            choice, chunks = self.ask(tools=[TIME, WEATHER], temperature=1.5, seed=seed, max_tokens=200,
                                      parallel_tool_calls=False, **(bias if seed % 2 else {}),
                                      response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
            kinds.add(choice["finish_reason"])
            if choice["finish_reason"] == "tool_calls":
                self.check_calls(choice, chunks)
            elif choice["finish_reason"] == "stop":
                self.assertIn(json.loads(choice["message"]["content"]), ({"answer": "yes"}, {"answer": "no"}))
                self.assertNotIn("tool_calls", choice["message"])
                self.assertEqual(choices(chunks)[0], (choice["message"]["content"], "stop", "assistant"))
        self.assertLessEqual({"tool_calls", "stop"}, kinds)

    def test_format_beside_a_choice(self):
        """Where a call is required there is no text that could have a format, and where none may come the format alone counts."""
        extra = {"tools": [TIME, WEATHER], "response_format": {"type": "json_object"}, "temperature": 1, "seed": 3}
        self.check_calls(*self.ask(tool_choice="required", parallel_tool_calls=False, **extra))
        choice, _ = self.ask(tool_choice="none", **dict(extra, response_format={"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"const": 7}}}))
        self.assertEqual(choice["message"]["content"], "7")

    def test_call_or_document_of_other_apis(self):
        """The formats of the other two APIs reach the same place."""
        schema = {"type": "object", "properties": {"answer": {"const": "yes"}}, "required": ["answer"], "additionalProperties": False}
        function = {"name": "get_time", "description": "", "parameters": {"type": "object", "properties": {}}}
        for _ in range(24):
            reply = self.server.json("POST", "/v1/responses", {
                "model": "tools", "input": "Hello", "max_output_tokens": 200, "temperature": 1, "parallel_tool_calls": False,
                "tools": [{"type": "function", **function}], "text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}})
            if reply["status"] == "completed":
                break
            self.assertEqual(reply["incomplete_details"]["reason"], "max_output_tokens")
        self.assertEqual((reply["status"], len(reply["output"])), ("completed", 1))
        for item in reply["output"]:
            if item["type"] == "message":
                self.assertEqual(json.loads(item["content"][0]["text"]), {"answer": "yes"})
            else:
                self.assertEqual((item["type"], item["name"]), ("function_call", "get_time"))
        for _ in range(24):
            reply = self.server.json("POST", "/v1/messages", {
                "model": "tools", "messages": HELLO, "max_tokens": 200, "temperature": 1,
                "tools": [{"name": "get_time", "input_schema": function["parameters"]}],
                "output_config": {"format": {"type": "json_schema", "schema": schema}}})
            if reply["stop_reason"] != "max_tokens":
                break
        self.assertIn(reply["stop_reason"], ("end_turn", "tool_use"))
        self.assertTrue(reply["content"])
        for block in reply["content"]:
            if block["type"] == "text":
                self.assertEqual(json.loads(block["text"]), {"answer": "yes"})
            else:
                self.assertEqual((block["type"], block["name"]), ("tool_use", "get_time"))

    def test_required_that_is_cut(self):
        """The complete calls come, as a whole and in a stream of each API; one that is cut does not."""
        body = {"tools": [TIME], "tool_choice": "required", "temperature": 1, "seed": 1}
        choice, chunks = self.ask(**body, max_tokens=3)
        self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("length", ""))
        self.assertNotIn("tool_calls", choice["message"])
        self.assertEqual(choices(chunks)[0], ("", "length", "assistant"))
        # A seed whose answer has two calls at least: the limit is in the second one.
        for seed in range(50):
            whole, _ = self.ask(**dict(body, seed=seed), max_tokens=300)
            if whole["finish_reason"] == "tool_calls" and len(whole["message"]["tool_calls"]) > 1:
                break
        count = len(self.server.json("POST", "/tokenize", {
            "model": "tools", "add_special_tokens": False, "prompt": '[{"name":"get_time","arguments":{}},'})["tokens"])
        found = []
        for more in range(12):  # a model may write it in other tokens, and with white space
            choice, chunks = self.ask(**dict(body, seed=seed), max_tokens=count + 4 * more)
            calls = choice["message"].get("tool_calls", [])
            found.append(len(calls))
            if choice["finish_reason"] == "length":
                self.assertEqual(choice["message"]["content"], None if calls else "")
                self.assertEqual(choices(chunks)[0], ("", "length", "assistant"))
            self.assertEqual(self.calls_of(chunks), [("get_time", "{}")] * len(calls))
        self.assertIn(1, found)
        self.assertEqual(found, sorted(found))
        # Arguments of a named function are given as far as they have come.
        choice, chunks = self.ask(tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "get_weather"}}, max_tokens=3)
        (call,) = choice["message"]["tool_calls"]
        self.assertTrue(call["function"]["arguments"].startswith("{"))
        self.assertEqual(choice["finish_reason"], "length")

    def test_stop_strings_within_calls(self):
        """Arguments that a stop string has ended are no call to make."""
        for choice, arguments in (("required", None), ({"type": "function", "function": {"name": "get_weather"}}, '{"')):
            whole, chunks = self.ask(tools=[WEATHER], tool_choice=choice, stop=["place", "days"], seed=1)
            self.assertEqual((whole["finish_reason"], choices(chunks)[0]), ("stop", ("", "stop", "assistant")))
            calls = whole["message"].get("tool_calls", [])
            self.assertEqual([call["function"]["arguments"].strip() for call in calls], [arguments] if arguments else [])
        tool = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
        reply = self.server.json("POST", "/v1/messages", {"model": "tools", "messages": HELLO, "max_tokens": 100, "tools": [tool],
                                                          "tool_choice": {"type": "any"}, "stop_sequences": ["place", "days"]})
        self.assertEqual((reply["content"], reply["stop_reason"]), ([], "stop_sequence"))
        # One after complete calls.
        reply = self.server.json("POST", "/v1/messages", {"model": "tools", "messages": HELLO, "max_tokens": 300, "tools": [tool],
                                                          "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "stop_sequences": ["]"]})
        self.assertEqual([block["type"] for block in reply["content"]], ["tool_use"])
        self.assertEqual((reply["stop_reason"], reply["stop_sequence"]), ("tool_use", None))

    def test_stop_tokens_within_calls(self):
        """So are arguments that a token of stop_token_ids has ended; the token that ends all answers ends none in the middle."""
        ask = {"tools": [WEATHER], "seed": 1, "parallel_tool_calls": False}
        tokens = self.server.json("POST", "/tokenize", {"model": "tools", "add_special_tokens": False, "prompt": '":'})["tokens"]
        tokens += self.server.json("POST", "/tokenize", {"model": "tools", "add_special_tokens": False, "prompt": ":"})["tokens"]
        end = self.server.json("POST", "/tokenize", {"model": "tools", "add_special_tokens": False, "prompt": "<|im_end|>"})["tokens"]
        for choice, has_call in (("required", False), ({"type": "function", "function": {"name": "get_weather"}}, True)):
            whole, chunks = self.ask(tool_choice=choice, stop_token_ids=tokens, **ask)
            self.assertEqual((whole["finish_reason"], choices(chunks)[0]), ("stop", ("", "stop", "assistant")))
            calls = whole["message"].get("tool_calls", [])
            self.assertEqual(bool(calls), has_call)
            for call in calls:
                self.assertRaises(ValueError, json.loads, call["function"]["arguments"])
            self.check_calls(*self.ask(tool_choice=choice, stop_token_ids=end, **ask))
        # A call that the model makes by itself; without the stop token a piece that is no call is content.
        bias = {"logit_bias": {str(token): 100 for token in self.server.json("POST", "/tokenize", {
            "model": "tools", "prompt": "<", "add_special_tokens": False})["tokens"]}}
        for stops, content in ((list(bias["logit_bias"]), ""), ([], "<")):
            whole, _ = self.ask(tools=[WEATHER], max_tokens=1, stop_token_ids=[int(token) for token in stops], **bias)
            self.assertEqual((whole["message"]["content"], whole["finish_reason"]), (content, "stop" if stops else "length"))

    def test_required_that_is_cut_in_other_apis(self):
        tool = {"name": "get_time", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}
        messages = {"model": "tools", "messages": HELLO, "tools": [tool], "tool_choice": {"type": "any"}, "temperature": 1}
        function = {"type": "function", "name": "get_time"}
        responses = {"model": "tools", "input": "Hello", "tools": [function], "tool_choice": "required", "temperature": 1}
        kinds = set()
        for most in range(4, 48):  # without a seed: some answers are cut in a second call
            reply = self.server.json("POST", "/v1/messages", {**messages, "max_tokens": most})
            self.assertEqual({block["type"] for block in reply["content"]} - {"tool_use"}, set())
            kinds.add((reply["stop_reason"], min(len(reply["content"]), 1)))
            reply = self.server.json("POST", "/v1/responses", {**responses, "max_output_tokens": most})
            self.assertEqual([(item["type"], item["status"], item["arguments"]) for item in reply["output"]],
                             [("function_call", "completed", "{}")] * len(reply["output"]))
            kinds.add((reply["status"], min(len(reply["output"]), 1)))
        self.assertLessEqual({("max_tokens", 0), ("max_tokens", 1), ("incomplete", 0), ("incomplete", 1)}, kinds)

    def test_no_calls(self):
        """The answer of a model that makes none is the same as without tools in the reply's form."""
        for extra in ({"tools": [TIME], "tool_choice": "auto"}, {"tools": [TIME], "tool_choice": "none"}, {"tools": []}):
            choice, chunks = self.ask(**extra, temperature=0, max_tokens=10)
            self.assertEqual(set(choice["message"]), {"role", "content", "refusal"})
            self.assertEqual(choices(chunks)[0][0], choice["message"]["content"])

    def rendered(self, **body):
        tokens = self.server.json("POST", "/tokenize", {"model": "tools", **body})["tokens"]
        return self.server.json("POST", "/detokenize", {"model": "tools", "tokens": tokens})["prompt"]

    def test_history(self):
        text = self.rendered(messages=HISTORY, tools=[TIME])
        self.assertIn('{"type": "function", "function": {"name": "get_time"}}', text)
        self.assertIn("<think>\nI look.\n</think>\n", text)
        self.assertIn('<tool_call>{"name": "get_weather", "arguments": {"place": "Rome", "days": 2}}</tool_call>', text)
        self.assertIn("tool\nSun.", text)

    def test_reasoning(self):
        plain, _ = self.ask(temperature=0, max_tokens=10)
        self.assertNotIn("reasoning_content", plain["message"])
        choice, chunks = self.ask(temperature=0, max_tokens=10, chat_template_kwargs={"enable_thinking": True})
        self.assertEqual(choice["message"]["content"], "")
        self.assertTrue(choice["message"]["reasoning_content"])
        self.assertEqual("".join(chunk["choices"][0]["delta"].get("reasoning_content", "") for chunk in chunks),
                         choice["message"]["reasoning_content"])
        for thinks, count in ((False, 0), (True, 20)):
            body = {"model": "tools", "messages": HELLO, "max_tokens": 10, "n": 2, "chat_template_kwargs": {"enable_thinking": thinks}}
            usage = self.server.json("POST", "/v1/chat/completions", body)["usage"]
            self.assertEqual((usage["completion_tokens"], usage["completion_tokens_details"]), (20, {"reasoning_tokens": count}))
        # An answer in a format is content alone.
        choice, _ = self.ask(guided_choice=["yes", "no"], chat_template_kwargs={"enable_thinking": True})
        self.assertIn(choice["message"]["content"], ("yes", "no"))

    def test_efforts(self):
        """The switch of the chat template for "reasoning_effort"; a model without reasoning takes "none" alone."""
        for effort, ends in ((None, False), ("none", False), ("low", True), ("high", True)):
            self.assertEqual(self.rendered(messages=HELLO, reasoning_effort=effort).endswith("<think>\n"), ends, effort)
        choice, _ = self.ask(temperature=0, max_tokens=10, reasoning_effort="medium")
        self.assertTrue(choice["message"]["reasoning_content"])
        choice, _ = self.ask(temperature=0, max_tokens=10, reasoning_effort="none")
        self.assertTrue(choice["message"]["content"])
        body = {"model": "chat", "messages": HELLO, "max_tokens": 2}
        self.server.json("POST", "/v1/chat/completions", {**body, "reasoning_effort": "none"})
        for path, fields in (("/v1/chat/completions", {"max_tokens": 2}), ("/tokenize", {})):
            self.refused(path, {"model": "chat", "messages": HELLO, "reasoning_effort": "low", **fields}, 400, "reasoning_effort",
                         "no such choice", '"none"', "found 'low'")
        self.refused("/v1/responses", {"model": "chat", "input": "x", "reasoning": {"effort": "low"}}, 400, "reasoning", "no such choice")
        for path, fields in (("/v1/messages", {"max_tokens": 2}), ("/v1/messages/count_tokens", {})):
            reply = self.server.json("POST", path, {"model": "chat", "messages": HELLO, "output_config": {"effort": "low"}, **fields}, expect=400)
            self.assertIn("output_config: the chat template of this model has no such choice", reply["error"]["message"])
        for effort in ("low", "medium", "max"):
            self.server.json("POST", "/v1/messages/count_tokens", {"model": "tools", "messages": HELLO, "output_config": {"effort": effort}})

    def test_refused(self):
        self.refused("/v1/chat/completions", {"model": "chat", "messages": HELLO, "tools": [TIME]}, 400, "tools", "shows no tools")
        broken = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "unevaluatedProperties": False}}}
        self.refused("/v1/chat/completions", {"model": "tools", "messages": HELLO, "tools": [broken], "tool_choice": "required"},
                     400, "tools", "unevaluatedProperties")


class TemplateWithEfforts(Served):
    @classmethod
    def setUpClass(cls):
        model = chat_model(FOLDER.name)
        path = os.path.join(model, "chat_template.jinja")
        write(path, b"{% if messages[1] %}{{ raise_exception('One message.') }}{% endif %}{% if reasoning_effort == 'medium' %}"
              b"{{ raise_exception('reasoning_effort error : medium, should be low/high') }}{% endif %}{{ reasoning_effort }}" + contents(path))
        cls.server = Server("chat=" + build_engine(model))

    def test_refused(self):
        """An effort that the template itself refuses is refused by the name of its field; another failure is not."""
        words = ("the chat template of this model refuses it: ", "medium, should be low/high")
        for path, fields in (("/v1/chat/completions", {"max_tokens": 2}), ("/tokenize", {})):
            self.refused(path, {"messages": HELLO, "reasoning_effort": "medium", **fields}, 400, "reasoning_effort", *words)
            self.refused(path, {"messages": HELLO * 2, "reasoning_effort": "low", **fields}, 400, "messages", "One message.")
        self.refused("/v1/responses", {"input": "x", "reasoning": {"effort": "medium"}}, 400, "reasoning", "reasoning: " + words[0], words[1])
        body = {"messages": HELLO, "output_config": {"effort": "medium"}}
        reply = self.server.json("POST", "/v1/messages/count_tokens", body, expect=400)
        self.assertIn("output_config: " + words[0], reply["error"]["message"])


if __name__ == "__main__":
    unittest.main()
