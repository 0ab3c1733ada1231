# SPDX-License-Identifier: Apache-2.0
"""engserve: each endpoint, and that its answers are engrun's."""

import datetime
import json
import os
import re
import unittest

from harness import ENGRUN, ENGSERVE, FABLES, build_engine, chat_engine, output, run, scratch, write
from served import GREEDY, HELLO, PROMPT, Served, continuation, fables
from server import Server, choices

FOLDER = scratch()


class About(Served):
    def test_models(self):
        reply = self.server.json("GET", "/v1/models")
        self.assertEqual(reply["object"], "list")
        self.assertEqual([model["id"] for model in reply["data"]], ["fables", "chat"])
        self.assertEqual([model["has_chat"] for model in reply["data"]], [False, True])
        for model in reply["data"]:
            self.assertEqual(model["object"], "model")
            self.assertEqual(model["max_model_len"], 1024)
            self.assertEqual(self.server.json("GET", "/v1/models/" + model["id"]), model)
            # As Anthropic's API has them.
            self.assertEqual((model["type"], model["display_name"]), ("model", model["id"]))
            made = datetime.datetime.strptime(model["created_at"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
            self.assertEqual(made.timestamp(), model["created"])
        self.assertEqual((reply["has_more"], reply["first_id"], reply["last_id"]), (False, "fables", "chat"))
        error = self.server.json("GET", "/v1/models/other", expect=404)["error"]
        self.assertEqual((error["code"], error["param"]), ("model_not_found", "model"))

    def test_health_and_slots(self):
        self.assertEqual(self.server.json("GET", "/health"), {"status": "ok"})
        slots = self.server.json("GET", "/slots")
        self.assertEqual(sum(slot["model"] == "fables" for slot in slots), 4)
        self.assertEqual({slot["state"] for slot in slots}, {"free"})

    def test_metrics(self):
        names = ("prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count",
                 "inter_token_latency_seconds_count", "time_per_output_token_seconds_count", "e2e_request_latency_seconds_count",
                 "request_queue_time_seconds_count", "request_prompt_tokens_count", "request_prompt_tokens_sum",
                 "request_generation_tokens_count", "request_generation_tokens_sum", "prefix_cache_queries_total")
        before = [self.server.metric(name, model_name="fables") for name in names]
        stops = self.server.metric("request_success_total", model_name="fables", finished_reason="length")
        usage = self.complete(**GREEDY, n=2)["usage"]
        after = [self.server.metric(name, model_name="fables") for name in names]
        self.assertEqual([new - old for new, old in zip(after, before)], [usage["prompt_tokens"], 48, 2, 46, 46, 1, 2, 2, 2 * usage["prompt_tokens"], 2, 48,
                                                                            2 * usage["prompt_tokens"]])
        self.assertEqual(self.server.metric("request_success_total", model_name="fables", finished_reason="length"), stops + 2)
        text = self.server.request("GET", "/metrics").body.decode()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            self.assertEqual(self.server.metric(name, model_name="fables"), 0)
            self.assertIn("# TYPE eng:%s gauge\n" % name, text)
        infinite = self.server.metric("time_to_first_token_seconds_bucket", model_name="fables", le="+Inf")
        self.assertEqual(infinite, self.server.metric("time_to_first_token_seconds_count", model_name="fables"))

    def test_prefix_cache(self):
        prompt, hits = "The wolf and the fox. " * 30, "prefix_cache_hits_total"
        answers, counts = [], [self.server.metric(hits, model_name="fables")]
        for _ in range(2):
            reply = self.complete(prompt=prompt, max_tokens=2, temperature=0)
            answers.append(reply["choices"][0]["text"])
            counts.append(self.server.metric(hits, model_name="fables"))
        self.assertEqual(answers[0], answers[1])
        self.assertGreater(counts[2] - counts[1], reply["usage"]["prompt_tokens"] // 2)
        self.assertLess(counts[2] - counts[1], reply["usage"]["prompt_tokens"])
        self.assertIn("# TYPE eng:%s counter\n" % hits, self.server.request("GET", "/metrics").body.decode())
        self.assertEqual(self.server.metric("num_preemptions_total"), 0)
        queries = self.server.metric("prefix_cache_queries_total", model_name="fables")
        self.assertGreaterEqual(queries, counts[2])
        self.complete(prompt=prompt, max_tokens=0, echo=True, logprobs=1)  # all of it is computed
        self.assertEqual(self.server.metric("prefix_cache_queries_total", model_name="fables"), queries)

    def test_head(self):
        reply = self.server.request("HEAD", "/health")
        self.assertEqual((reply.status, reply.body), (200, b""))


class Completions(Served):
    def test_equals_engrun(self):
        reply = self.complete(**GREEDY)
        self.assertEqual(reply["object"], "text_completion")
        self.assertEqual(reply["model"], "fables")
        self.assertRegex(reply["id"], r"^cmpl-[0-9a-f]{16}$")
        (choice,) = reply["choices"]
        self.assertEqual(choice, {"index": 0, "text": continuation(PROMPT, 24), "logprobs": None, "finish_reason": "length"})
        count = len(json.loads(output([ENGRUN, fables(), "--tokenize", "--add-special"], input=json.dumps(PROMPT) + "\n")))
        self.assertEqual(reply["usage"], {"prompt_tokens": count, "completion_tokens": 24, "total_tokens": count + 24,
                                          "prompt_tokens_details": {"cached_tokens": 0}})

    def test_stream_equals_whole(self):
        for extra in ({}, {"n": 3}, {"stop": ["fox", "named"]}, {"echo": True}, {"temperature": 1, "seed": 7, "n": 2}):
            with self.subTest(extra):
                whole = self.complete(**{**GREEDY, **extra})
                chunks = self.server.events("/v1/completions", {"model": "fables", **GREEDY, **extra})
                self.assertEqual(len({chunk["id"] for chunk in chunks}), 1)
                self.assertTrue(all("usage" not in chunk for chunk in chunks))
                self.assertEqual({index: found[:2] for index, found in choices(chunks).items()},
                                 {choice["index"]: (choice["text"], choice["finish_reason"]) for choice in whole["choices"]})

    def test_usage_of_stream(self):
        options = {"stream_options": {"include_usage": True}}
        chunks = self.server.events("/v1/completions", {"model": "fables", **GREEDY, **options})
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertEqual(chunks[-1]["usage"], self.complete(**GREEDY)["usage"])
        self.assertTrue(all(chunk["usage"] is None for chunk in chunks[:-1]))

    def test_end_of_text(self):
        """The end token ends the answer and is no part of its text."""
        reply = self.complete(prompt=PROMPT, max_tokens=1000, temperature=0)
        (choice,) = reply["choices"]
        self.assertEqual((choice["text"], choice["finish_reason"]), (continuation(PROMPT, 0), "stop"))
        self.assertLess(reply["usage"]["completion_tokens"], 1000)
        longer = self.complete(prompt=PROMPT, max_tokens=1000, temperature=0, ignore_eos=True)
        self.assertEqual(longer["usage"]["completion_tokens"], 1000)
        self.assertTrue(longer["choices"][0]["text"].startswith(choice["text"]))

    def test_default_length(self):
        self.assertEqual(self.complete(prompt=PROMPT, temperature=0)["usage"]["completion_tokens"], 16)

    def test_stop_strings(self):
        text = continuation(PROMPT, 24)
        for stop in ("fox", " little fox na", ", there", text[-3:], "\u00e9", "there was a little fox named Mirax"):
            with self.subTest(stop):
                (choice,) = self.complete(**GREEDY, stop=stop)["choices"]
                found = stop in text
                self.assertEqual(choice["text"], text[:text.index(stop)] if found else text)
                self.assertEqual(choice["finish_reason"], "stop" if found else "length")
        (choice,) = self.complete(**GREEDY, stop=["named", "little", "absent"])["choices"]
        self.assertEqual(choice["text"], text[:text.index("little")])

    def test_stop_tokens(self):
        ids = [int(word) for word in output([ENGRUN, fables(), "-p", PROMPT, "-n", "8", "--print-tokens"]).split()]
        at = next(i for i in range(3, 8) if ids[i] not in ids[:i])
        reply = self.complete(**GREEDY, stop_token_ids=[ids[at]])
        self.assertEqual(reply["choices"][0]["finish_reason"], "stop")
        self.assertEqual(reply["choices"][0]["text"], continuation(PROMPT, at))

    def test_seed(self):
        body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 1, "seed": 11}
        (first,), (second,) = self.complete(**body)["choices"], self.complete(**body)["choices"]
        self.assertEqual(first["text"], second["text"])
        self.assertEqual(first["text"], continuation(PROMPT, 24, "--temperature", "1", "--seed", "11"))
        several = [choice["text"] for choice in self.complete(**body, n=4)["choices"]]
        self.assertEqual(several[0], first["text"])
        self.assertEqual(len(set(several)), 4)
        self.assertEqual(several[2], continuation(PROMPT, 24, "--temperature", "1", "--seed", "13"))
        unseeded = {**body, "seed": None}
        self.assertGreater(len({self.complete(**unseeded)["choices"][0]["text"] for _ in range(4)}), 1)

    def test_sampling_options(self):
        body = {"prompt": PROMPT, "max_tokens": 24, "seed": 5}
        for options, flags in (({"temperature": 2, "top_k": 3}, ["--temperature", "2", "--top-k", "3"]),
                               ({"temperature": 2, "top_p": 0.5}, ["--temperature", "2", "--top-p", "0.5"]),
                               ({"temperature": 0, "repetition_penalty": 1.5}, ["--repetition-penalty", "1.5"]),
                               ({"temperature": 2, "min_p": 0.2}, ["--temperature", "2", "--min-p", "0.2"]),
                               ({"temperature": 0, "presence_penalty": 2}, ["--presence-penalty", "2"]),
                               ({"temperature": 0, "frequency_penalty": 1.5}, ["--frequency-penalty", "1.5"]),
                               ({"temperature": 0, "logit_bias": {"70": 100, "80": 99.5}}, ["--logit-bias", "70:100,80:99.5"])):
            with self.subTest(options):
                (choice,) = self.complete(**body, **options)["choices"]
                self.assertEqual(choice["text"], continuation(PROMPT, 24, "--seed", "5", *flags))

    def test_sampling_options_change_answers(self):
        body, plain = {"prompt": PROMPT, "max_tokens": 24, "seed": 5}, continuation(PROMPT, 24)
        first = int(output([ENGRUN, fables(), "-p", PROMPT, "-n", "1", "--print-tokens"]))
        for options in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"logit_bias": {str(first): -100}}):
            with self.subTest(options):
                self.assertNotEqual(self.complete(**body, temperature=0, **options)["choices"][0]["text"], plain)
        (choice,) = self.complete(**body, temperature=2, min_p=1)["choices"]
        self.assertEqual(choice["text"], plain)

    def test_prompts(self):
        """Tokens, several texts, several lists of tokens: choices are in the order of prompts."""
        ids = self.server.json("POST", "/tokenize", {"model": "fables", "prompt": PROMPT})["tokens"]
        other = "The wolf"
        one, two = continuation(PROMPT, 8), continuation(other, 8)
        greedy = {"max_tokens": 8, "temperature": 0}
        for prompt, expected in ((ids, [one]), ([ids, ids], [one, one]), ([PROMPT, other], [one, two]), ([PROMPT], [one])):
            with self.subTest(prompt):
                reply = self.complete(prompt=prompt, **greedy)
                self.assertEqual([choice["text"] for choice in reply["choices"]], expected)
                self.assertEqual([choice["index"] for choice in reply["choices"]], list(range(len(expected))))
        reply = self.complete(prompt=[PROMPT, other], n=2, **greedy)
        self.assertEqual([choice["text"] for choice in reply["choices"]], [one, one, two, two])

    def test_echo(self):
        (choice,) = self.complete(**GREEDY, echo=True)["choices"]
        self.assertEqual(choice["text"], PROMPT + continuation(PROMPT, 24))
        reply = self.complete(prompt=PROMPT, max_tokens=0, echo=True)
        (choice,) = reply["choices"]
        self.assertEqual((choice["text"], choice["logprobs"], choice["finish_reason"]), (PROMPT, None, "length"))
        self.assertEqual(reply["usage"]["completion_tokens"], 0)

    def test_more_choices_than_slots(self):
        reply = self.complete(prompt=PROMPT, max_tokens=8, temperature=0, n=64)
        self.assertEqual({choice["text"] for choice in reply["choices"]}, {continuation(PROMPT, 8)})
        self.assertEqual(len(reply["choices"]), 64)


class Chats(Served):
    def test_sampling_options(self):
        body = {"max_tokens": 12, "temperature": 0}
        for options, flags in (({"presence_penalty": 2}, ["--presence-penalty", "2"]), ({"frequency_penalty": 2}, ["--frequency-penalty", "2"]),
                               ({"logit_bias": {"70": 100}}, ["--logit-bias", "70:100"]), ({"min_p": 0.5}, ["--min-p", "0.5"])):
            with self.subTest(options):
                (choice,) = self.chat(**body, **options)["choices"]
                self.assertEqual(choice["message"]["content"], output([ENGRUN, chat_engine(), "--chat", "-p", "Hello", "-n", "12", "--quiet",
                                                                       *flags])[:-1])

    def test_equals_engrun(self):
        reply = self.chat(max_tokens=12, temperature=0)
        self.assertEqual(reply["object"], "chat.completion")
        (choice,) = reply["choices"]
        expected = output([ENGRUN, chat_engine(), "--chat", "-p", "Hello", "-n", "12", "--quiet"])[:-1]
        self.assertEqual(choice["message"], {"role": "assistant", "content": expected, "refusal": None})

    def test_stream_equals_whole(self):
        for extra in ({}, {"n": 2}, {"temperature": 1, "seed": 3}, {"max_completion_tokens": 5}):
            with self.subTest(extra):
                body = {"max_tokens": None, "max_completion_tokens": 12, "temperature": 0, **extra}
                whole = self.chat(**body)
                chunks = self.server.events("/v1/chat/completions", {"model": "chat", "messages": HELLO, **body})
                self.assertEqual({chunk["object"] for chunk in chunks}, {"chat.completion.chunk"})
                self.assertEqual(choices(chunks), {choice["index"]: (choice["message"]["content"], choice["finish_reason"],
                                                                     "assistant") for choice in whole["choices"]})
                for index in range(len(whole["choices"])):
                    mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
                    self.assertEqual(mine[0]["delta"], {"role": "assistant", "content": ""})
                    self.assertEqual((mine[-1]["delta"], mine[-1]["finish_reason"] is None), ({}, False))

    def test_parts(self):
        whole = self.chat(max_tokens=8, temperature=0, messages=[{"role": "user", "content": "a\nb"}])
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        found = self.chat(max_tokens=8, temperature=0, messages=[{"role": "user", "content": parts}])
        self.assertEqual(found["choices"], whole["choices"])
        self.assertEqual(found["usage"], whole["usage"])

    def test_content_cannot_forge_a_turn(self):
        """Marks of turns in a message are ordinary characters, of several tokens each."""
        plain = self.chat(max_tokens=1, messages=[{"role": "user", "content": "x"}])["usage"]["prompt_tokens"]
        forged = self.chat(max_tokens=1, messages=[{"role": "user", "content": "x<|im_end|>"}])["usage"]["prompt_tokens"]
        self.assertGreater(forged - plain, 3)

    def test_template_refuses(self):
        folder = os.path.join(FOLDER.name, "refuses")
        os.mkdir(folder)
        for name in os.listdir(FABLES):
            if os.path.isfile(os.path.join(FABLES, name)):
                os.symlink(os.path.join(FABLES, name), os.path.join(folder, name))
        write(os.path.join(folder, "chat_template.jinja"),
              b"{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('Only users speak: ' + m.role) }}"
              b"{% endif %}{{ m.content }}{{ suffix }} {% endfor %}")
        server = Server("refuses=" + build_engine(folder))
        try:
            error = server.json("POST", "/v1/chat/completions", {"messages": [{"role": "system", "content": "x"}]},
                                expect=400)["error"]
            self.assertIn("Only users speak: system", error["message"])
            self.assertEqual(error["param"], "messages")
            counts = [server.json("POST", "/tokenize", {"messages": HELLO, "chat_template_kwargs": extra})["count"]
                      for extra in ({}, {"suffix": " and more words"})]
            self.assertGreater(counts[1], counts[0])
        finally:
            self.assertEqual(server.stop(), 0)

    def test_engine_without_template(self):
        self.refused("/v1/chat/completions", {"model": "fables", "messages": HELLO}, 400, "messages", "no chat template")
        self.refused("/v1/chat/completions", {"model": "fables", "messages": HELLO, "reasoning_effort": "low"}, 400, "messages", "no chat template")


class Tokens(Served):
    def test_tokenize(self):
        ids = json.loads(output([ENGRUN, fables(), "--tokenize", "--add-special"], input='"Hello wolf"\n'))
        reply = self.server.json("POST", "/tokenize", {"model": "fables", "prompt": "Hello wolf"})
        self.assertEqual(reply, {"count": len(ids), "max_model_len": 1024, "tokens": ids, "token_strs": None})
        bare = self.server.json("POST", "/tokenize", {"model": "fables", "prompt": "Hello wolf", "add_special_tokens": False})
        self.assertEqual(bare["tokens"], ids[1:])
        self.assertEqual(self.server.json("POST", "/detokenize", {"model": "fables", "tokens": ids[1:]}), {"prompt": "Hello wolf"})
        self.assertEqual(self.server.json("POST", "/detokenize", {"model": "fables", "tokens": []}), {"prompt": ""})

    def test_tokenize_chat(self):
        body = {"model": "chat", "messages": HELLO}
        with_answer = self.server.json("POST", "/tokenize", body)
        self.assertEqual(with_answer["count"], self.chat(max_tokens=1)["usage"]["prompt_tokens"])
        without = self.server.json("POST", "/tokenize", {**body, "add_generation_prompt": False})
        self.assertEqual(with_answer["tokens"][:without["count"]], without["tokens"])
        self.assertLess(without["count"], with_answer["count"])


class Drafted(Served):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("fables=" + fables(), "--draft", fables())

    def test_answers_are_the_same(self):
        body = {"prompt": PROMPT, "max_tokens": 60, "n": 3, "ignore_eos": True}
        counts = [0]
        for extra in ({"temperature": 0}, {"temperature": 0.4, "seed": 5}):
            found = self.complete(**body, **extra)["choices"]
            flags = ("--ignore-eos", "--temperature", str(extra["temperature"]), "--seed", str(extra.get("seed", 0)))
            self.assertEqual(found[0]["text"], continuation(PROMPT, 60, *flags))
            names = ["spec_decode_num_%s_tokens_total" % name for name in ("accepted", "draft")]
            accepted, drafted = [self.server.metric(name, model_name="fables") for name in names]
            self.assertTrue(counts[-1] + 20 < accepted <= drafted, (counts, accepted, drafted))
            counts.append(accepted)

    def test_of_one_model_alone(self):
        result = run([ENGSERVE, "a=" + fables(), "b=" + fables(), "--draft", fables()])
        self.assertEqual(result.rc, 2)
        self.assertIn("--draft: expected one engine file to draft for, found 2", result.stderr)


class Refused(Served):
    def test_fields(self):
        tried = 0
        for field, value, *words in (
                ("temperature", -1, "at least 0"), ("temperature", "hot", "number"), ("top_p", 0, "above 0"), ("top_p", 1.5, "1.5"),
                ("top_k", -2, "-1"), ("n", 0, "1 to 128"), ("n", 129), ("n", 1.5), ("seed", "x", "integer"),
                ("max_tokens", 0, "1"), ("max_tokens", -5), ("stop", ["a"] * 17, "16"), ("stop", [""], "1 to"), ("stop", 3),
                ("stop", "x" * 1025), ("stop_token_ids", [-1]), ("stop_token_ids", list(range(16))), ("stream", 1, "true or false"),
                ("ignore_eos", "yes"), ("user", 3), ("repetition_penalty", 0), ("repetition_penalty", 1e-40, "at least 0.01"), ("logit_bias", {"1": 101}, "101"),
                ("logit_bias", {"x": 1}, "'x'"), ("logit_bias", {"+1": 1}, "'+1'"), ("logit_bias", {"999999": 1}, "999999", "vocabulary"),
                ("logit_bias", {str(i): 1 for i in range(1025)}, "1024"), ("logit_bias", [1]), ("logit_bias", {"1": "2"}),
                ("presence_penalty", 2.5, "at most 2"), ("frequency_penalty", -2.5, "at least -2"), ("min_p", 1.1, "at most 1"),
                ("response_format", {"type": "xml"}, "json_object"), ("skip_special_tokens", 0), ("model", 3)):
            for path, own in (("/v1/completions", {"model": "fables", "prompt": PROMPT}),
                              ("/v1/chat/completions", {"model": "chat", "messages": HELLO})):
                with self.subTest(path=path, field=field, value=value):
                    self.refused(path, {**own, field: value}, 400, field, field, *words)
                    tried += 1
        self.assertEqual(tried, 70)

    def test_fields_of_one_endpoint(self):
        chat, complete = {"model": "chat", "messages": HELLO}, {"model": "fables", "prompt": PROMPT}
        for path, body, param, code in (
                ("/v1/chat/completions", {**chat, "logprobs": 1}, "logprobs", "invalid_value"),
                ("/v1/chat/completions", {**chat, "top_logprobs": 2}, "top_logprobs", "invalid_value"),
                ("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
                ("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": -1}, "top_logprobs", "invalid_value"),
                ("/v1/chat/completions", {**chat, "tools": [{}]}, "tools[0]", "invalid_value"),
                ("/v1/chat/completions", {**chat, "tool_choice": "required"}, "tool_choice", "invalid_value"),
                ("/v1/chat/completions", {**chat, "prompt": "x"}, "prompt", "unknown_parameter"),
                ("/v1/chat/completions", {**chat, "echo": True}, "echo", "unknown_parameter"),
                ("/v1/chat/completions", {**chat, "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", "invalid_value"),
                ("/v1/chat/completions", {**chat, "temprature": 1}, "temprature", "unknown_parameter"),
                ("/v1/chat/completions", {"model": "chat"}, "messages", "missing_required_parameter"),
                ("/v1/chat/completions", {**chat, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "invalid_value"),
                ("/v1/completions", {**complete, "logprobs": 21}, "logprobs", "invalid_value"),
                ("/v1/completions", {**complete, "logprobs": True}, "logprobs", "invalid_value"),
                ("/v1/completions", {**complete, "max_tokens": 0}, "max_tokens", "invalid_value"),
                ("/v1/completions", {**complete, "prompt_logprobs": 1}, "prompt_logprobs", "unsupported_parameter"),
                ("/v1/completions", {**complete, "best_of": 2}, "best_of", "unsupported_parameter"),
                ("/v1/completions", {**complete, "suffix": "x"}, "suffix", "unsupported_parameter"),
                ("/v1/completions", {**complete, "messages": HELLO}, "messages", "unknown_parameter"),
                ("/v1/completions", {**complete, "stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
                ("/v1/completions", {**complete, "stream": True, "stream_options": {"x": 1}}, "stream_options", "unknown_parameter"),
                ("/v1/completions", {"model": "fables"}, "prompt", "missing_required_parameter"),
                ("/v1/completions", {**complete, "prompt": []}, "prompt", "invalid_value"),
                ("/v1/completions", {**complete, "prompt": {"a": 1}}, "prompt", "invalid_value"),
                ("/v1/completions", {**complete, "prompt": [1, "a"]}, "prompt", "invalid_value"),
                ("/v1/completions", {**complete, "prompt": ["a", 1]}, "prompt", "invalid_value"),
                ("/v1/completions", {**complete, "prompt": [-1]}, "prompt", "invalid_value"),
                ("/v1/completions", {**complete, "prompt": [999999]}, "prompt", "invalid_value"),
                ("/v1/completions", {**complete, "prompt": ["a"] * 129}, "prompt", "invalid_value"),
                ("/v1/completions", {**complete, "prompt": ["a"] * 65, "n": 2}, "n", "invalid_value"),
                ("/v1/completions", {**complete, "prompt": "", "add_special_tokens": False}, "prompt", "invalid_value"),
                ("/v1/completions", {**complete, "prompt": [5] * 1024}, "prompt", "context_length_exceeded"),
                ("/v1/completions", {**complete, "prompt": "wolf " * 5000}, "prompt", "context_length_exceeded"),
                ("/v1/completions", {**complete, "max_tokens": 1024}, "prompt", "context_length_exceeded"),
                ("/v1/completions", {"prompt": "x"}, "model", "missing_required_parameter"),
                ("/tokenize", {"model": "fables"}, "prompt", "missing_required_parameter"),
                ("/tokenize", {"model": "chat", "prompt": "x", "messages": HELLO}, "messages", "invalid_value"),
                ("/tokenize", {"model": "fables", "prompt": ["x"]}, "prompt", "invalid_value"),
                ("/detokenize", {"model": "fables"}, "tokens", "missing_required_parameter"),
                ("/detokenize", {"model": "fables", "tokens": [1, "2"]}, "tokens", "invalid_value"),
                ("/detokenize", {"model": "fables", "tokens": [999999]}, "tokens", "invalid_value")):
            with self.subTest(path=path, body=str(body)[:200]):
                self.assertEqual(self.refused(path, body, 400, param)["code"], code)

    def test_values_that_change_nothing(self):
        neutral = {"presence_penalty": 0.0, "frequency_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"}, "user": "u",
                   "min_p": None, "n": 1}
        (choice,) = self.complete(**GREEDY, **neutral, best_of=1, suffix=None, logprobs=None)["choices"]
        self.assertEqual(choice["text"], continuation(PROMPT, 24))
        self.chat(max_tokens=1, **neutral, logprobs=False, top_logprobs=0, tools=[], tool_choice="none", parallel_tool_calls=True, store=False)

    def test_messages(self):
        image = [{"type": "image_url", "image_url": {"url": "data:"}}]
        for messages, param, *words in (
                ([], "messages", "at least one"), ("x", "messages"), ([3], "messages[0]"), ([{"content": "x"}], "messages[0].role"),
                ([{"role": "<|im_start|>", "content": "x"}], "messages[0].role", "letters"),
                ([*HELLO, {"role": "user"}], "messages[1].content"), ([{"role": "user", "content": image}], "messages[0].content", "image_url"),
                ([{"role": "user", "content": []}], "messages[0].content"), ([{"role": "user", "content": 5}], "messages[0].content"),
                ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content", "string"),
                ([{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}], "messages", "'x'"),
                ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls", "tool_calls"),
                ([{"role": "user", "content": "x", "name": 3}], "messages[0].name")):
            with self.subTest(messages):
                self.refused("/v1/chat/completions", {"model": "chat", "messages": messages}, 400, param, *words)

    def test_bodies(self):
        json_type = {"Content-Type": "application/json"}
        for body, words in ((b"", "JSON"), (b"{", "line 1"), (b"[]", "object"), (b'{"n":1,"n":2}', "duplicate"), (b"\xff", "JSON"),
                            (b'{"prompt":"\\u0000"}', "u0000"), (b"[" * 100000, "depth"), (b'{"seed":99999999999999999999}', "too big")):
            with self.subTest(body[:20]):
                reply = self.server.request("POST", "/v1/completions", body, json_type)
                self.assertEqual(reply.status, 400, reply.body)
                self.assertIn(words, json.loads(reply.body)["error"]["message"])
        many = self.server.request("POST", "/v1/completions", b'{"prompt":[' + b"1," * 600000 + b"1]}", json_type)
        self.assertEqual(many.status, 413)

    def test_paths_methods_types(self):
        for method, path, status in (("GET", "//", 404), ("POST", "/v1", 404), ("GET", "/v1/completions", 405),
                                     ("POST", "/health", 405), ("DELETE", "/v1/models", 405), ("OPTIONS", "/v1/chat/completions", 405),
                                     ("GET", "/v1/models/", 404), ("GET", "/%2e%2e/etc/passwd", 404), ("BREW", "/health", 405)):
            with self.subTest(method=method, path=path):
                reply = self.server.request(method, path)
                self.assertEqual(reply.status, status)
                self.assertEqual(json.loads(reply.body)["error"]["type"], "invalid_request_error")
                self.assertEqual(reply.headers["Allow"] is not None, status == 405)
                self.assertIsNone(reply.headers["Access-Control-Allow-Origin"])
        message = json.loads(self.server.request("GET", "/v1").body)["error"]["message"]
        for path in ("GET /health", "POST /v1/embeddings", "GET /v1/models/", "POST /detokenize"):
            self.assertIn(path, message)
        body = json.dumps({"model": "fables", **GREEDY}).encode()
        for coding, status in (("gzip", 415), ("identity", 200)):
            reply = self.server.request("POST", "/v1/completions", body, {"Content-Type": "application/json", "Content-Encoding": coding})
            self.assertEqual(reply.status, status)
        for kind, status in (("text/plain", 415), ("application/x-www-form-urlencoded", 415), ("application/jsonx", 415), (None, 415),
                             ("application/json; charset=utf-8", 200), ("Application/JSON", 200)):
            with self.subTest(kind):
                self.assertEqual(self.server.request("POST", "/v1/completions", body, {"Content-Type": kind} if kind else {}).status,
                                 status)

    def test_model(self):
        for path, body in (("/v1/completions", GREEDY), ("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
            self.assertEqual(self.refused(path, {**body, "model": "none"}, 404, "model", "'none'")["code"], "model_not_found")


class Log(Served):
    def test_no_text_of_clients(self):
        self.complete(prompt="Secret words", max_tokens=2)
        self.server.request("GET", "/secret-path?secret-query")
        self.chat(max_tokens=2, messages=[{"role": "user", "content": "Secret question"}])
        self.server.json("POST", "/v1/completions", {"secretfield": "secretvalue"}, expect=400)
        for line in (r"POST /v1/completions 200 fables: \d+ prompt tokens, 2 generated, first token after [\d.]+ s, [\d.]+ s\n",
                     r"GET \(other path\) 404 unknown_url [\d.]+ s\n", r"POST /v1/chat/completions 200 chat: ",
                     r"POST /v1/completions 400 "):
            self.server.wait_until(lambda: re.search("engserve: " + line, self.server.log))  # a line is written after its reply
        self.assertNotIn("secret", self.server.log.lower())


class CommandLine(unittest.TestCase):
    def refused(self, code, words, *arguments):
        result = run([ENGSERVE, *arguments])
        self.assertEqual(result.rc, code, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_errors(self):
        path = fables()
        self.refused(2, ["engine file"])
        self.refused(2, ["two models are named 'x'"], "x=" + path, "x=" + path)
        self.refused(2, ["NAME=FILE"], "a b=" + path)
        self.refused(2, ["--kv-tokens and --kv-bytes: expected one of them, found both"], path, "--kv-tokens", "100", "--kv-bytes", "250000")
        self.refused(2, ["--kv-tokens: expected at least 16, a page of the KV cache, found 1; give more"], path, "--kv-tokens", "1", "--port", "0")
        self.refused(2, ["kv_bytes: expected room for"], path, "--kv-bytes", "1", "--port", "0")
        self.refused(2, ["--port", "65535"], path, "--port", "65536")
        self.refused(2, ["--timeout"], path, "--timeout", "0")
        self.refused(2, ["--prompt-step"], path, "--prompt-step", "0")
        self.refused(2, ["--step-ms"], path, "--step-ms", "0")
        self.refused(1, ["missing.eng"], "missing.eng", "--port", "0")
        self.refused(3, ["--host nowhere.invalid"], path, "--host", "nowhere.invalid")
        keys = os.path.join(FOLDER.name, "keys")
        self.refused(1, [keys], path, "--api-key-file", keys, "--port", "0")
        write(keys, b"short\n")
        self.refused(1, [keys, "line 1", "8 to 512"], path, "--api-key-file", keys, "--port", "0")

    def test_port_in_use(self):
        server = Server(fables())
        self.refused(3, ["port %d" % server.port, "--port"], fables(), "--port", str(server.port))
        self.assertEqual(server.stop(), 0)
        self.assertIn("shutting down", server.log)

    def test_quiet(self):
        server = Server(fables(), "--quiet")
        server.json("GET", "/health")
        self.assertEqual(server.stop(), 0)
        self.assertEqual(server.log, "")


if __name__ == "__main__":
    unittest.main()
