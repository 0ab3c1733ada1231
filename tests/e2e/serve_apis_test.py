# SPDX-License-Identifier: Apache-2.0
"""engserve in the shapes of Anthropic's Messages API and OpenAI's Responses API, without their clients."""

import json
import unittest

from harness import chat_engine, tools_engine
from served import HELLO, Served
from server import Server

PAGE = 16  # tokens
TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}},
                                                 "required": ["place"], "additionalProperties": False}}


def events_of(reply):
    """[(name, data)] of a stream."""
    found = []
    for event in reply.body.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append((name[len("event: "):], json.loads(data[len("data: "):])))
    return found


class Apis(Served):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("tools=" + tools_engine(), "chat=" + chat_engine())

    def stream(self, path, body):
        reply = self.server.request("POST", path, {**body, "stream": True})
        self.assertEqual(reply.status, 200, reply)
        found = events_of(reply)
        for name, data in found:
            self.assertEqual(data["type"], name)
        return found

    def reference(self, **body):
        options = {"model": "tools", "messages": HELLO, "max_tokens": 10, "temperature": 0, **body}
        return self.server.json("POST", "/v1/chat/completions", options)["choices"][0]["message"]

    def test_messages(self):
        body = {"model": "tools", "messages": HELLO, "max_tokens": 10, "temperature": 0}
        text = self.reference()["content"]
        whole = self.server.json("POST", "/v1/messages", body)
        self.assertEqual(whole["content"], [{"type": "text", "text": text}])
        self.assertEqual((whole["type"], whole["role"], whole["model"], whole["stop_reason"]), ("message", "assistant", "tools", "max_tokens"))
        self.assertEqual(whole["usage"]["output_tokens"], 10)
        events = self.stream("/v1/messages", body)
        self.assertEqual([name for name, _ in events if name != "content_block_delta"],
                         ["message_start", "ping", "content_block_start", "content_block_stop", "message_delta", "message_stop"])
        self.assertEqual("".join(data["delta"]["text"] for name, data in events if name == "content_block_delta"), text)
        counted = self.server.json("POST", "/v1/messages/count_tokens", {"model": "tools", "messages": HELLO})
        usage = whole["usage"]
        self.assertEqual(counted, {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]})

    def test_messages_with_tools(self):
        body = {"model": "tools", "messages": HELLO, "max_tokens": 60, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}}
        whole = self.server.json("POST", "/v1/messages", body)
        (block,) = whole["content"]
        self.assertEqual((block["type"], block["name"], whole["stop_reason"]), ("tool_use", "get_weather", "tool_use"))
        self.assertIn(block["input"]["place"], ("Rome", "Oslo"))
        events = self.stream("/v1/messages", body)
        partial = "".join(data["delta"]["partial_json"] for name, data in events if name == "content_block_delta")
        self.assertIn(json.loads(partial)["place"], ("Rome", "Oslo"))
        # Arguments that are cut: their complete values.
        inputs = []
        for most in range(1, 30):
            cut = self.server.json("POST", "/v1/messages", {**body, "max_tokens": most})
            (block,) = cut["content"]
            self.assertEqual((block["type"], block["name"]), ("tool_use", "get_weather"))
            inputs.append(block["input"])
            if cut["stop_reason"] == "tool_use":
                break
            self.assertEqual(cut["stop_reason"], "max_tokens")
            events = self.stream("/v1/messages", {**body, "max_tokens": most})
            self.assertEqual([data["content_block"]["type"] for name, data in events if name == "content_block_start"], ["tool_use"])
            self.assertEqual([data["delta"]["stop_reason"] for name, data in events if name == "message_delta"], ["max_tokens"])
        self.assertEqual(inputs[0], {})
        self.assertIn(inputs[-1].get("place"), ("Rome", "Oslo"))

    def test_responses(self):
        body = {"model": "tools", "input": "Hello", "max_output_tokens": 10, "temperature": 0}
        text = self.reference()["content"]
        whole = self.server.json("POST", "/v1/responses", body)
        self.assertEqual((whole["object"], whole["status"], whole["output"][0]["status"]), ("response", "incomplete", "incomplete"))
        self.assertEqual(whole["output"][0]["content"], [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}])
        events = self.stream("/v1/responses", body)
        self.assertEqual([name for name, _ in events if not name.endswith(".delta")],
                         ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
                          "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"])
        self.assertEqual([data["sequence_number"] for _, data in events], list(range(len(events))))
        self.assertEqual("".join(data["delta"] for name, data in events if name == "response.output_text.delta"), text)
        self.assertEqual(events[-1][1]["response"]["output"][0]["content"], whole["output"][0]["content"])

    def test_responses_with_logprobs(self):
        """As of chats; those of a stream's pieces are those of the whole."""
        body = {"model": "tools", "input": "Hello", "max_output_tokens": 10, "temperature": 0, "top_logprobs": 2}
        options = {"model": "tools", "messages": HELLO, "max_tokens": 10, "temperature": 0, "logprobs": True, "top_logprobs": 2}
        expected = self.server.json("POST", "/v1/chat/completions", options)["choices"][0]["logprobs"]["content"]
        whole = self.server.json("POST", "/v1/responses", body)
        self.assertEqual((whole["output"][0]["content"][0]["logprobs"], whole["top_logprobs"]), (expected, 2))
        events = self.stream("/v1/responses", body)
        self.assertEqual([one for name, data in events if name == "response.output_text.delta" for one in data["logprobs"]], expected)
        self.assertEqual([data["logprobs"] for name, data in events if name == "response.output_text.done"], [expected])
        self.assertEqual(events[-1][1]["response"]["output"], [{**whole["output"][0], "id": events[-1][1]["response"]["output"][0]["id"]}])
        bare = self.server.json("POST", "/v1/responses", {**body, "top_logprobs": 0, "include": ["message.output_text.logprobs"]})
        self.assertEqual(bare["output"][0]["content"][0]["logprobs"], [{**one, "top_logprobs": []} for one in expected])

    def test_responses_with_tools(self):
        tool = {"type": "function", "name": TOOL["name"], "parameters": TOOL["input_schema"]}
        body = {"model": "tools", "input": "Hello", "max_output_tokens": 60, "tools": [tool], "tool_choice": "required",
                "parallel_tool_calls": False}
        (item,) = self.server.json("POST", "/v1/responses", body)["output"]
        self.assertEqual((item["type"], item["name"]), ("function_call", "get_weather"))
        self.assertIn(json.loads(item["arguments"])["place"], ("Rome", "Oslo"))
        names = [name for name, _ in self.stream("/v1/responses", body)]
        self.assertEqual(names[2:-1], ["response.output_item.added", "response.function_call_arguments.delta",
                                       "response.function_call_arguments.done", "response.output_item.done"])

    def test_count_of_responses(self):
        body = {"model": "tools", "input": "Hello", "instructions": "Be brief."}
        whole = self.server.json("POST", "/v1/responses", {**body, "max_output_tokens": 1})
        self.assertEqual(self.server.json("POST", "/v1/responses/input_tokens", body),
                         {"object": "response.input_tokens", "input_tokens": whole["usage"]["input_tokens"]})
        self.refused("/v1/responses/input_tokens", {**body, "input": 7}, 400, "input", "found 7")

    def usages(self, path, body):
        """The usage of a whole answer and those that a stream of it tells, in order."""
        yield self.server.json("POST", path, body)["usage"]
        if path in ("/v1/messages", "/v1/responses"):
            for _, data in self.stream(path, body):
                usage = data.get("usage") or data.get("message", data.get("response", {})).get("usage")
                if usage:
                    yield usage
        else:
            chunks = self.server.events(path, {**body, "stream_options": {"include_usage": True}})
            yield from (chunk["usage"] for chunk in chunks if chunk["usage"])

    def test_cached_tokens(self):
        """The pages of a prompt that an earlier one has left, but for the page with its last token."""
        chat = {"model": "tools", "max_tokens": 3}
        for path, body in (("/v1/completions", chat), ("/v1/chat/completions", chat), ("/v1/messages", chat),
                           ("/v1/responses", {"model": "tools", "max_output_tokens": 3})):
            text = path + " and a fox and a wolf and a crow" * 6
            prompt = "prompt" if path == "/v1/completions" else "input" if path == "/v1/responses" else "messages"
            with self.subTest(path):
                first, *later = self.usages(path, {**body, prompt: [{"role": "user", "content": text}] if prompt == "messages" else text})
                self.assertEqual(len(later), 2 if path == "/v1/messages" else 1)
                if path == "/v1/messages":
                    count = first["input_tokens"]
                    self.assertEqual((first["cache_creation_input_tokens"], first["cache_read_input_tokens"]), (0, 0))
                    # The first event does not know the cache yet.
                    for usage, cached, answer in zip(later, (0, (count - 1) // PAGE * PAGE), (0, 3)):
                        self.assertEqual((usage["cache_read_input_tokens"], usage["input_tokens"]), (cached, count - cached))
                        self.assertEqual(usage["output_tokens"], answer)
                else:
                    count, details = ("input_tokens", "input_tokens_details") if prompt == "input" else ("prompt_tokens", "prompt_tokens_details")
                    self.assertEqual(first[details]["cached_tokens"], 0)
                    self.assertEqual(later[0][details]["cached_tokens"], (first[count] - 1) // PAGE * PAGE)
                    self.assertEqual({**later[0], details: first[details]}, first)
                    self.assertGreater(first[count], 2 * PAGE)
        # Choices after the first one find the prompt that it has left: that is no page of an earlier request.
        body = {"model": "tools", "prompt": "Two choices of a fox" * 9, "max_tokens": 2, "n": 2}
        self.assertEqual(self.server.json("POST", "/v1/completions", body)["usage"]["prompt_tokens_details"], {"cached_tokens": 0})

    def test_errors(self):
        reply = self.server.json("POST", "/v1/messages", {"model": "tools", "messages": HELLO}, expect=400)
        self.assertEqual((reply["type"], reply["error"]["type"]), ("error", "invalid_request_error"))
        self.assertIn("max_tokens", reply["error"]["message"])
        reply = self.server.json("POST", "/v1/messages", {"model": "x", "messages": HELLO, "max_tokens": 5}, expect=404)
        self.assertEqual(reply["error"]["type"], "not_found_error")
        # Longer than the context, which is looked at after the chat template.
        thinking = {"messages": HELLO, "max_tokens": 1025, "thinking": {"type": "enabled", "budget_tokens": 1024}}
        for model, words in (("tools", "the context of this model is 1024 tokens"), ("chat", "thinking: the chat template of this model has no switch")):
            reply = self.server.json("POST", "/v1/messages", {"model": model, **thinking}, expect=400)
            self.assertIn(words, reply["error"]["message"])
        reply = self.server.json("GET", "/v1/messages", expect=405)
        self.assertEqual(reply["type"], "error")
        self.refused("/v1/responses", {"input": "x", "store": True}, 400, "store", "not supported")
        # Failures that are found in what a chat would be have the API's own names of fields.
        for name in ("messages", "max_completion_tokens", "response_format", "reasoning_effort"):  # names of chats
            self.refused("/v1/responses", {"input": "x", name: "x"}, 400, name, "field '%s' is not known" % name)
        self.refused("/v1/responses", {"input": "x", "max_output_tokens": 0.5}, 400, "max_output_tokens", "max_output_tokens: expected an integer from 1")
        self.refused("/v1/responses", {"model": "tools", "input": "wolf " * 2000}, 400, "input", "the context of this model")
        form = {"type": "json_schema", "name": "x", "schema": {"unevaluatedProperties": {}}}
        self.refused("/v1/responses", {"model": "tools", "input": "x", "text": {"format": form}}, 400, "text", "unevaluatedProperties")
        self.refused("/v1/embeddings", {"model": "chat", "input": "x"}, 400, "model", "hidden states", "--hidden")


class Pings(unittest.TestCase):
    """Streams that wait have something to send, so that proxies keep the connection."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("tools=" + tools_engine(), "--ping", "0.05")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.log

    def wait_for_a_slot(self, path, body):
        """A stream of a request that waits until one of another client ends."""
        busy = self.server.connect()
        busy.request("POST", "/v1/completions", json.dumps({"prompt": "A fox", "max_tokens": 1000, "n": 128, "ignore_eos": True, "stream": True}),
                     {"Content-Type": "application/json"})
        self.server.wait_until(lambda: len(self.server.busy_slots()) == 4)
        reply = self.server.request("POST", path, {**body, "stream": True})
        busy.close()
        self.server.wait_until(lambda: not self.server.busy_slots())
        self.assertEqual(reply.status, 200)
        return reply.body.decode()

    def check(self, path, body, ping, first):
        for _ in range(50):  # a slot may be free early
            *events, end = self.wait_for_a_slot(path, body).split("\n\n")
            self.assertEqual(end, "")
            others = [event for event in events if event != ping]
            self.assertIn(first, others[0])
            self.assertGreater(len(others), 2)
            pings = len(events) - len(others)
            if pings > 1:
                break
        self.assertGreater(pings, 1)
        self.assertIn(first, events[0])  # before the prompt is computed
        return others

    def test_chats(self):
        for model in (self.check("/v1/chat/completions", {"messages": HELLO, "max_tokens": 5}, ": ping", '"role":"assistant"'),
                      self.check("/v1/responses", {"input": "Hello", "max_output_tokens": 5}, ": ping", "response.created")):
            self.assertTrue(all(event.startswith(("data: ", "event: ")) for event in model), model)

    def test_messages(self):
        body = {"messages": HELLO, "max_tokens": 5}
        self.check("/v1/messages", body, 'event: ping\ndata: {"type":"ping"}', "message_start")


if __name__ == "__main__":
    unittest.main()
