# SPDX-License-Identifier: Apache-2.0
"""engserve under load and with clients that misbehave: limits, keys, disconnects, the end of the program, many connections,
slow clients, mutated requests."""

import errno
import functools
import json
import os
import random
import shutil
import signal
import socket
import threading
import time
import unittest

from harness import (BUILT, ENGBUILD, ENGSERVE, FABLES, SANITIZED, build_engine, changed_model, chat_engine, chat_model, contents, run,
                     sanitized_elsewhere, scratch, succeed, tally, tools_engine, write)
from server import ENOUGH_SECONDS, PATIENCE, Server, choices, events

PROMPT = "Once upon a time"
SHORT = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
# Takes longer than any test: 128,000 tokens.
ENDLESS = {"prompt": PROMPT, "max_tokens": 1000, "ignore_eos": True, "n": 128}
FOLDER = scratch()
BODIES, HEADS = (500, 200) if SANITIZED else (2000, 500)  # mutated


def fables():
    return build_engine(FABLES, "--max-batch", "4")


@functools.lru_cache(maxsize=None)
def long_fables():
    """An engine whose answers may have 16,384 tokens."""
    model = changed_model(FOLDER.name, config={"max_position_embeddings": 16384})
    return build_engine(model, "--max-batch", "4", "--max-context", "16384")


def header(body, path="/v1/completions", extra=""):
    return ("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n" %
            (path, extra, len(body))).encode()


class ServerTest(unittest.TestCase):
    def serve(self, *arguments):
        server = Server(*arguments)
        self.addCleanup(server.stop, signal.SIGKILL)
        return server

    def begin(self, server, body, path="/v1/completions"):
        """A socket on which a request was sent."""
        connection = server.socket()
        self.addCleanup(connection.close)
        data = json.dumps(body).encode()
        connection.sendall(header(data, path) + data)
        return connection

    def half_close(self, connection):
        try:
            connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # the server has closed it
                raise

    def read_all(self, connection):
        data = b""
        while True:
            more = connection.recv(65536)
            if not more:
                return data
            data += more

    def choices_that_came(self, server):
        found = server.metrics()
        return found("num_requests_waiting") + found("num_requests_running") + found("request_success_total")

    def check_works(self, server):
        text = server.json("POST", "/v1/completions", SHORT)["choices"][0]["text"]
        self.assertTrue(text.startswith(", there was"), text)


class Keys(ServerTest):
    def test_keys(self):
        path = os.path.join(FOLDER.name, "keys")
        write(path, b"# clients\nfirst-key-123\r\n\nsecond-key-456\n")
        server = self.serve(fables(), "--api-key-file", path)
        bearer = lambda key: {"Authorization": "Bearer " + key}
        for headers, status in (({}, 401), (bearer("first-key-123"), 200), (bearer("second-key-456"), 200), (bearer("first-key-12"), 401),
                                (bearer("first-key-1234"), 401), (bearer(""), 401), ({"Authorization": "Basic first-key-123"}, 401),
                                ({"Authorization": "bearer first-key-123"}, 200), (bearer("# clients"), 401)):
            for method, url, body in (("GET", "/v1/models", None), ("POST", "/v1/completions", SHORT), ("GET", "/metrics", None),
                                      ("GET", "/slots", None)):
                with self.subTest(headers=headers, url=url):
                    reply = server.request(method, url, body, headers)
                    self.assertEqual(reply.status, status)
                    if status == 401:
                        self.assertEqual(json.loads(reply.body)["error"]["code"], "invalid_api_key")
                        self.assertEqual(reply.headers["WWW-Authenticate"], "Bearer")
        self.assertEqual(server.request("GET", "/health").status, 200)
        self.assertEqual(server.request("GET", "/none").status, 401)
        self.assertNotIn("key-", server.log)
        self.assertEqual(server.stop(), 0)

    def test_warning(self):
        """Without keys at an address that other machines can reach."""
        path = os.path.join(FOLDER.name, "warning-keys")
        write(path, b"first-key-123\n")
        for arguments, warns in ((["--host", "0.0.0.0"], True), ([], False), (["--host", "0.0.0.0", "--api-key-file", path], False)):
            with self.subTest(arguments):
                server = None
                try:
                    server = Server(fables(), *arguments)
                except AssertionError as error:  # the address that it prints is another one
                    self.assertIn("0.0.0.0", str(error))
                    self.assertEqual("warning: other machines can reach http://0.0.0.0" in str(error), warns)
                else:
                    self.assertEqual("warning" in server.log, warns)
                    self.assertEqual(server.stop(), 0)


@sanitized_elsewhere
class Limits(ServerTest):
    def test_body(self):
        server = self.serve(fables(), "--max-body", "2000")
        fits = json.dumps({**SHORT, "user": "u" * 1500}).encode()
        self.assertEqual(server.request("POST", "/v1/completions", fits, {"Content-Type": "application/json"}).status, 200)
        for size in (2001, 5000, 500000, 3000000):
            with self.subTest(size):
                connection = server.socket()
                try:
                    connection.sendall(header(b"x" * size) + b"x" * size)
                except ConnectionError:  # refused before all of it was sent: the reply may be lost
                    self.assertGreater(size, 10000)
                else:
                    self.assertIn(b" 413 ", connection.recv(100))
                connection.close()
        for pieces, status in ((1, b" 200 "), (100, b" 413 ")):
            with self.subTest("chunked", pieces=pieces):
                connection = server.socket()
                body = json.dumps(SHORT).encode() + b" " * 100 * (pieces - 1)
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                                   b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
                for at in range(0, len(body), 100):
                    piece = body[at:at + 100]
                    connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
                connection.sendall(b"0\r\n\r\n")
                self.assertIn(status, self.read_all(connection)[:20])
                connection.close()
        self.check_works(server)

    def test_prompt(self):
        """Longer prompts are refused in each API's form; counting and converting them is not."""
        server = self.serve("fables=" + build_engine(FABLES, "--max-batch", "4", "--hidden"), "chat=" + chat_engine(), "--max-prompt", "20")
        message = [{"role": "user", "content": "wolf " * 10}]
        for words, status in ((16, 200), (30, 400)):
            for path, body, param, count in (
                    ("/v1/completions", {"model": "fables", "prompt": "wolf " * words}, "prompt", "prompt_tokens"),
                    ("/v1/embeddings", {"model": "fables", "input": ["wolf", "wolf " * words]}, "input", "prompt_tokens"),
                    ("/v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": "wolf " * (words - 10)}],
                                              "max_tokens": 2}, "messages", "prompt_tokens"),
                    ("/v1/messages", {"model": "chat", "messages": [{"role": "user", "content": "wolf " * (words - 10)}], "max_tokens": 2},
                     "messages", "input_tokens"),
                    ("/v1/responses", {"model": "chat", "input": "wolf " * (words - 10), "max_output_tokens": 2}, "input", "input_tokens")):
                with self.subTest(path, words=words):
                    reply = server.json("POST", path, body, expect=status)
                    if status == 200:
                        usage = reply["usage"]
                        self.assertEqual(usage[count] + usage.get("cache_read_input_tokens", 0), 24 if path == "/v1/embeddings" else 20)
                        continue
                    error = reply["error"]
                    self.assertIn("this server takes prompts of at most 20 tokens", error["message"])
                    self.assertEqual(error["type"], "invalid_request_error")
                    if path != "/v1/messages":
                        self.assertEqual((error["param"], error["code"]), (param, "context_length_exceeded"))
        self.assertGreater(server.json("POST", "/v1/messages/count_tokens", {"model": "chat", "messages": message * 3})["input_tokens"], 20)
        self.assertGreater(server.json("POST", "/tokenize", {"model": "fables", "prompt": "wolf " * 30})["count"], 20)

    def test_cache(self):
        """A KV cache of a given size is each model's context, where that is longer; answers are the same."""
        whole = self.serve("fables=" + fables(), "chat=" + chat_engine())
        chat = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
        long = {"model": "fables", **SHORT, "max_tokens": 50, "n": 4}
        expected, answers = whole.json("POST", "/v1/chat/completions", chat)["choices"][0], whole.json("POST", "/v1/completions", long)["choices"]
        for flags, context in ((("--kv-tokens", "100"), 112), (("--kv-bytes", "250000"), 96)):
            with self.subTest(flags):
                server = self.serve("fables=" + fables(), "chat=" + chat_engine(), *flags)
                self.assertEqual([model["max_model_len"] for model in server.json("GET", "/v1/models")["data"]], [context] * 2)
                self.assertIn("fables: the KV cache has room for %d tokens" % context, server.log)
                self.assertEqual(server.json("POST", "/v1/completions", long)["choices"], answers)
                # Without a limit the answer ends where the cache does.
                reply = server.json("POST", "/v1/chat/completions", chat)
                self.assertEqual((reply["choices"][0]["finish_reason"], reply["usage"]["total_tokens"]), ("length", context + 1))
                self.assertTrue(expected["message"]["content"].startswith(reply["choices"][0]["message"]["content"]))
                error = server.json("POST", "/v1/completions", {**SHORT, "model": "fables", "max_tokens": context}, expect=400)["error"]
                self.assertEqual(error["code"], "context_length_exceeded")
                self.assertEqual(server.stop(), 0)

    def test_models_of_one_gpu(self):
        """The first one's cache would take what the second one needs; a size for each leaves room for both. (With the fake driver.)"""
        fake = {"LD_LIBRARY_PATH": ":".join(os.path.join(BUILT, "tests", "fake_cuda", name) for name in ("whole", "compiler")),
                "FAKE_CUDA_MEMORY": str(48 << 20)}
        path = os.path.join(FOLDER.name, "gpu.eng")
        succeed([ENGBUILD, "--model", FABLES, "--target", "cuda", "--lean", "--tune", "off", "--tuning-cache", "none",
                 "--batch-sizes", "1,32", "--prefill-chunks", "16", "-o", path], env=fake)
        refused = run([ENGSERVE, "a=" + path, "b=" + path, "--port", "0"], env=fake)
        self.assertEqual(refused.rc, 3, refused.stderr)
        self.assertIn("ask for a smaller KV pool (kv_tokens, kv_bytes)", refused.stderr)
        server = Server("a=" + path, "b=" + path, "--kv-tokens", "512", env=fake)
        self.addCleanup(server.stop, signal.SIGKILL)
        self.assertEqual([model["max_model_len"] for model in server.json("GET", "/v1/models")["data"]], [512, 512])
        self.assertEqual(server.stop(), 0)

    def test_queue(self):
        server = self.serve(fables(), "--max-queue", "1")
        long = self.begin(server, ENDLESS)
        server.wait_until(lambda: len(server.busy_slots()) == 4)
        reply = server.request("POST", "/v1/completions", SHORT)
        self.assertEqual(reply.status, 429)
        self.assertEqual(reply.headers["Retry-After"], "1")
        error = json.loads(reply.body)["error"]
        self.assertEqual((error["type"], error["code"]), ("rate_limit_error", "queue_full"))
        # Choices that begin together end together; the next four wait for a moment.
        while (found := server.metrics())("num_requests_running") != 4:
            self.assertGreater(found("num_requests_waiting"), 0)
        self.assertEqual(self.choices_that_came(server), 128)
        self.assertGreater(found("kv_cache_usage_perc"), 0)
        long.close()
        server.wait_until(lambda: not server.busy_slots())
        self.check_works(server)

    def test_prompt_step(self):
        """Answers go on between the parts of a prompt: each of them gets a token for each part."""
        server = self.serve(long_fables(), "--prompt-step", "1")
        long, prompt = {**ENDLESS, "max_tokens": 16000, "n": 3}, "The wolf and the fox. " * 20
        count = server.json("POST", "/tokenize", {"prompt": prompt})["count"]
        expected = None
        for attempt in range(20):
            answers = self.begin(server, long)
            server.wait_until(lambda: len([slot for slot in server.busy_slots() if slot["generated_tokens"]]) == 3)
            before = server.metric("generation_tokens_total")
            # Each attempt begins with another word, or the prefix cache would have the rest.
            reply = server.json("POST", "/v1/completions", {"prompt": "%d " % attempt + prompt, "max_tokens": 1})
            drawn, busy = server.metric("generation_tokens_total") - before, len(server.busy_slots())
            answers.close()
            server.wait_until(lambda: not server.busy_slots())
            self.assertEqual(reply["usage"]["completion_tokens"], 1)
            if busy == 3:  # none of them had ended
                expected = 3 * (count - 2)
                break
        self.assertIsNotNone(expected, "the answers always ended first")
        self.assertGreaterEqual(drawn, expected)

    def test_time(self):
        # A client that does not send its request within that time is disconnected, too.
        server = self.serve(long_fables(), "--timeout", str(6 * PATIENCE))
        endless = {**ENDLESS, "max_tokens": 16000}
        reply = server.request("POST", "/v1/completions", endless)
        self.assertEqual(reply.status, 408)
        self.assertEqual(json.loads(reply.body)["error"]["code"], "request_timeout")
        chunks = server.events("/v1/completions", endless)
        self.assertEqual(chunks[-1]["error"]["code"], "request_timeout")
        self.assertGreater(len(choices(chunks[:-1])), 3)
        self.assertEqual(server.busy_slots(), [])
        self.check_works(server)

    def test_bodies_together(self):
        """Large requests that wait count together; what they held is given back."""
        server = self.serve(fables(), "--max-body", "4000")
        body = {**ENDLESS, "user": "u" * 3500}
        waiting = [self.begin(server, body) for _ in range(35)]
        server.wait_until(lambda: self.choices_that_came(server) == 35 * 128)
        reply = server.request("POST", "/v1/completions", {**SHORT, "user": "u" * 3500})
        self.assertEqual(reply.status, 503)
        self.assertEqual(json.loads(reply.body)["error"]["code"], "out_of_memory")
        for connection in waiting:
            connection.close()
        server.wait_until(lambda: not server.busy_slots())
        server.wait_until(lambda: server.request("POST", "/v1/completions", {**SHORT, "user": "u" * 3500}).status == 200)

    def test_descriptors(self):
        result = run(["bash", "-c", 'ulimit -n 200; exec "$@"', "bash", ENGSERVE, fables(), "--port", "0"])
        self.assertEqual(result.rc, 3)
        self.assertIn("--max-connections", result.stderr)


class Failures(ServerTest):
    def test_engine_fails(self):
        """A file that changes fails its engine, and no other one."""
        path = os.path.join(FOLDER.name, "changed.eng")
        shutil.copy(fables(), path)
        os.chmod(path, 0o644)
        server = self.serve("good=" + fables(), "bad=" + path)
        connection = self.begin(server, {**ENDLESS, "model": "bad"})
        stream = self.begin(server, {**ENDLESS, "model": "bad", "stream": True})
        server.wait_until(lambda: server.busy_slots())
        with open(path, "ab") as file:
            file.write(b"x")
        self.assertIn(b" 503 ", connection.recv(100))
        data = b""
        while b"[DONE]" not in data:
            more = stream.recv(65536)
            self.assertTrue(more, data[-300:])
            data += more
        self.assertIn(b'"code":"engine_failed"', data)
        self.assertEqual(server.json("POST", "/v1/completions", {**SHORT, "model": "bad"}, expect=503)["error"]["code"], "engine_failed")
        self.assertEqual(server.request("GET", "/health").status, 503)
        self.assertEqual(server.request("POST", "/v1/completions", {**SHORT, "model": "good"}).status, 200)
        self.assertIn("bad: no more requests are taken", server.log)
        self.assertEqual(server.stop(), 0)


class FirstEvents(ServerTest):
    """A client that waits for the first byte for a short time only may have a long prompt, or have others before it."""

    ASK = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": True}
    ROLE = b'"index":%d,"delta":{"role":"assistant","content":""}'
    CASES = (("/v1/chat/completions", {**ASK, "n": 2}, (ROLE % 0, ROLE % 1)),
             ("/v1/messages", ASK, (b"event: message_start\n", b"event: ping\n")),
             ("/v1/responses", {"input": "x", "max_output_tokens": 2, "stream": True},
              (b"event: response.created\n", b"event: response.in_progress\n")))

    def receive(self, connection, *words):
        """Everything until all of the words have come."""
        data = b""
        while not all(word in data for word in words):
            more = connection.recv(65536)
            self.assertTrue(more, data)
            data += more
        return data

    def test_while_waiting(self):
        model = chat_model(FOLDER.name)
        config = json.loads(contents(os.path.join(model, "config.json")))
        write(os.path.join(model, "config.json"), json.dumps({**config, "max_position_embeddings": 16384}).encode())
        server = self.serve(build_engine(model, "--max-batch", "4", "--max-context", "16384"), "--max-queue", str(1 + len(self.CASES)))
        for path, body, _ in self.CASES:  # failures that are found at once are statuses
            words = "wolf " * 20000
            long = {"input": words} if "input" in body else {"messages": [{"role": "user", "content": words}]}
            self.assertEqual(server.request("POST", path, {**body, **long}).status, 400)
        endless = self.begin(server, {**ENDLESS, "max_tokens": 16000})
        server.wait_until(lambda: len(server.busy_slots()) == 4)
        streams = []
        for path, body, first in self.CASES:
            streams.append(self.begin(server, body, path))
            self.assertIn(b"HTTP/1.1 200 ", self.receive(streams[-1], *first))
        for path, body, _ in self.CASES:
            self.assertEqual(server.request("POST", path, body).status, 429)
        self.assertEqual({slot["choice"] for slot in server.busy_slots()}, {0, 1, 2, 3})  # of the endless one
        endless.close()
        for connection, end in zip(streams, (b"[DONE]", b"event: message_stop\n", b"event: response.incomplete\n")):
            data = self.receive(connection, end)
            self.assertNotIn(b"event: ping", data)
            self.assertNotIn(b"delta\":{\"role", data)


class Disconnects(ServerTest):
    def test_in_the_middle(self):
        server = self.serve(fables())
        for body in (ENDLESS, {**ENDLESS, "stream": True}):
            with self.subTest(stream="stream" in body):
                aborted = server.metric("request_success_total", finished_reason="abort")
                connection = self.begin(server, body)
                server.wait_until(lambda: len(server.busy_slots()) == 4)
                data = b""
                while "stream" in body and b"data: " not in data:
                    more = connection.recv(4096)
                    self.assertTrue(more, data)
                    data += more
                connection.close()
                server.wait_until(lambda: server.metric("request_success_total", finished_reason="abort") > aborted)
                self.assertEqual(server.busy_slots(), [])
                count = server.metric("generation_tokens_total")
                time.sleep(0.2)
                self.assertEqual(server.metric("generation_tokens_total"), count)
                self.assertEqual(server.metric("num_requests_waiting"), 0)
        self.check_works(server)
        server.wait_until(lambda: "connection lost" in server.log)
        self.assertEqual(server.stop(), 0)

    def test_while_waiting(self):
        server = self.serve(fables())
        first = self.begin(server, ENDLESS)
        server.wait_until(lambda: len(server.busy_slots()) == 4)
        second = self.begin(server, ENDLESS)
        server.wait_until(lambda: server.metric("num_requests_waiting") > 128)
        second.close()
        server.wait_until(lambda: server.metric("num_requests_waiting") < 128)
        server.wait_until(lambda: len(server.busy_slots()) == 4)  # not between two rounds
        first.close()
        server.wait_until(lambda: not server.busy_slots())


@sanitized_elsewhere
class End(ServerTest):
    def accepts(self, server):
        try:
            server.socket().close()
        except OSError:
            return False
        return True

    def test_drain(self):
        """What has arrived is answered, and nothing else is accepted."""
        for number in (signal.SIGTERM, signal.SIGINT):
            for stream in (False, True):
                with self.subTest(number=number, stream=stream):
                    server = self.serve(fables())
                    body = {"prompt": PROMPT, "max_tokens": 300, "ignore_eos": True, "n": 16, "stream": stream}
                    idle = server.connect()
                    server.request("GET", "/health", connection=idle)
                    connection = self.begin(server, body)
                    # The server does not end while this request is incomplete.
                    data = json.dumps(SHORT).encode()
                    partial = server.socket()
                    partial.sendall(header(data, extra="Expect: 100-continue\r\n"))
                    self.assertIn(b" 100 ", partial.recv(100))
                    server.wait_until(lambda: server.metric("generation_tokens_total"))
                    server.process.send_signal(number)
                    server.wait_until(lambda: "shutting down" in server.log)
                    server.wait_until(lambda: not self.accepts(server))
                    refused = server.request("POST", "/v1/completions", SHORT, connection=idle)
                    self.assertEqual(refused.status, 503)
                    idle.close()
                    partial.sendall(data)
                    self.assertIn(b" 503 ", partial.recv(100))
                    partial.close()
                    data = b""
                    ending = b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b'"total_tokens":4805,"prompt_tokens_details":{"cached_tokens":0}}}'
                    while not data.endswith(ending):
                        more = connection.recv(65536)
                        self.assertTrue(more, data[-300:])
                        data += more
                    self.assertIn(b" 200 ", data[:20])
                    self.assertEqual(server.process.wait(ENOUGH_SECONDS), 0)

    def test_drain_is_bounded(self):
        server = self.serve(long_fables(), "--timeout", str(6 * PATIENCE))
        connection = self.begin(server, {**ENDLESS, "max_tokens": 16000, "stream": True})
        server.wait_until(lambda: server.metric("generation_tokens_total"))
        server.process.send_signal(signal.SIGTERM)
        data = self.read_all(connection)
        self.assertEqual(server.process.wait(ENOUGH_SECONDS), 0)
        # The answer was cut. The time of the request and that of the program's end pass at nearly the same moment.
        self.assertRegex(data[-400:], b'"code":"(request_timeout|shutting_down)"')
        self.assertIn(b"[DONE]", data[-100:])

    def test_end_with_a_client_that_does_not_read(self):
        server = self.serve(long_fables(), "--timeout", str(6 * PATIENCE))
        connection = server.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        data = json.dumps({**ENDLESS, "max_tokens": 16000, "stream": True}).encode()
        connection.sendall(header(data) + data)
        server.wait_until(lambda: server.metric("generation_tokens_total"))
        self.assertEqual(server.stop(), 0)
        connection.close()

    def test_second_signal(self):
        server = self.serve(fables())
        connection = self.begin(server, ENDLESS)
        server.wait_until(lambda: server.busy_slots())
        server.process.send_signal(signal.SIGTERM)
        server.wait_until(lambda: "shutting down" in server.log)
        self.assertEqual(server.stop(signal.SIGTERM), -signal.SIGTERM)
        connection.close()


@sanitized_elsewhere
class ManyClients(ServerTest):
    def test_many_at_once(self):
        """Each gets its own answer."""
        server = self.serve(fables())
        expected = [server.json("POST", "/v1/completions", {**SHORT, "temperature": 1, "seed": seed})["choices"][0]["text"]
                    for seed in range(10)]
        results, barrier = {}, threading.Barrier(200)

        def client(index):
            barrier.wait()
            body = {**SHORT, "temperature": 1, "seed": index % 10}
            try:
                if index % 2:
                    results[index] = choices(server.events("/v1/completions", body))[0][0]
                else:
                    results[index] = server.json("POST", "/v1/completions", body)["choices"][0]["text"]
            except Exception as error:  # pylint: disable=broad-except
                results[index] = repr(error)

        threads = [threading.Thread(target=client, args=(index,)) for index in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 200)
        self.assertEqual({index: found for index, found in results.items() if found != expected[index % 10]}, {})
        self.assertEqual(server.busy_slots(), [])
        self.assertEqual(server.stop(), 0)

    def test_more_connections_than_allowed(self):
        """Those beyond the limit wait until others end."""
        server = self.serve(fables(), "--max-connections", "8", "--http-threads", "2")
        idle = [server.socket() for _ in range(8)]
        late = self.begin(server, SHORT)
        late.settimeout(0.3)
        self.assertRaises(TimeoutError, late.recv, 100)
        for connection in idle:
            connection.close()
        late.settimeout(ENOUGH_SECONDS)
        self.assertIn(b" 200 ", late.recv(100))

    def test_many_choices_do_not_hold_up_others(self):
        """A short request is answered long before a request of 128 long choices that came earlier."""
        server = self.serve(fables())
        long = self.begin(server, ENDLESS)
        server.wait_until(lambda: len(server.busy_slots()) == 4)
        self.check_works(server)
        self.assertLess(server.metric("generation_tokens_total"), 100000)
        server.wait_until(lambda: [slot["prompt_tokens"] for slot in server.busy_slots()] == [5] * 4)
        long.close()
        server.wait_until(lambda: not server.busy_slots())

    def test_slow_clients(self):
        """Clients that send nothing, or a byte now and then, are disconnected, and do not hold up others."""
        seconds = 5 * PATIENCE
        server = self.serve(fables(), "--timeout", str(seconds))
        body = json.dumps(SHORT).encode()
        slow = []
        for begin in (b"", b"POST /v1/comp", header(body)[:-2], header(body) + body[:10]):
            for _ in range(10):
                connection = server.socket()
                connection.sendall(begin)
                slow.append(connection)
        start = time.monotonic()
        self.check_works(server)
        self.assertLess(time.monotonic() - start, seconds)
        open_ones = list(slow)
        while open_ones and time.monotonic() - start < 4 * seconds:
            for connection in list(open_ones):
                try:
                    connection.send(b"x")
                    connection.settimeout(0.001)
                    if connection.recv(10) == b"":
                        open_ones.remove(connection)
                except (TimeoutError, BlockingIOError):
                    pass
                except OSError:
                    open_ones.remove(connection)
            time.sleep(0.1)
        self.assertEqual(open_ones, [])
        for connection in slow:
            connection.close()
        self.check_works(server)

    def test_slow_reader(self):
        """A client that does not read its stream does not hold up others."""
        server = self.serve(fables())
        connection = server.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        data = json.dumps({**ENDLESS, "n": 4, "stream": True}).encode()
        connection.sendall(header(data) + data)
        server.wait_until(lambda: server.metric("generation_tokens_total") >= 4000)
        self.check_works(server)
        self.assertEqual(server.busy_slots(), [])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        body = b""
        while b"[DONE]" not in body[-100:]:
            more = connection.recv(65536)
            self.assertTrue(more, body[-300:])
            body += more
        self.assertIn(b" 200 ", body[:20])
        connection.close()

    def test_connection_is_kept(self):
        server = self.serve(fables())
        connection = server.connect()
        for _ in range(20):
            self.assertEqual(server.request("POST", "/v1/completions", SHORT, connection=connection).status, 200)
            self.assertEqual(server.request("GET", "/health", connection=connection).status, 200)
        connection.close()


SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["fox", "wolf"]}}, "required": ["kind"], "additionalProperties": False}
BLOCKS = [{"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": ""},
                                            {"type": "tool_use", "id": "i", "name": "f", "input": {"kind": "fox"}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": "x"}, {"type": "text", "text": "y"}]}]


class Mutations(ServerTest):
    BODIES = [("/v1/completions", {"model": "fables", **SHORT, "stop": ["a", "b"], "seed": 3, "n": 2, "top_k": 5, "echo": True}),
              ("/v1/completions", {"model": "fables", "prompt": [1, 2, 3], "max_tokens": 4, "stream": True,
                                   "stream_options": {"include_usage": True}}),
              ("/v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4,
                                        "temperature": 0.5, "top_p": 0.9, "tools": [], "response_format": {"type": "text"}}),
              ("/v1/chat/completions", {"model": "chat", "max_completion_tokens": 3, "chat_template_kwargs": {"a": [1]},
                                        "messages": [{"role": "system", "content": [{"type": "text", "text": "x"}], "name": "n"}]}),
              ("/v1/chat/completions", {"model": "tools", "max_tokens": 4, "parallel_tool_calls": False, "tool_choice": "auto",
                                        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}],
                                        "messages": [{"role": "assistant", "reasoning_content": "r", "tool_calls": [
                                            {"id": "i", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                                                     {"role": "tool", "tool_call_id": "i", "content": "x"}]}),
              ("/v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "response_format": {
                  "type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}}),
              ("/v1/messages", {"model": "tools", "max_tokens": 4, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"],
                                "messages": BLOCKS, "thinking": {"type": "disabled"}, "tools": [{"name": "f", "input_schema": SCHEMA}],
                                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
              ("/v1/messages", {"model": "chat", "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}], "output_config": {
                  "format": {"type": "json_schema", "schema": SCHEMA}, "effort": "high"}}),
              ("/v1/messages/count_tokens", {"model": "tools", "messages": BLOCKS, "tools": [{"name": "f", "input_schema": SCHEMA}]}),
              ("/v1/responses", {"model": "tools", "max_output_tokens": 4, "instructions": "s", "store": False, "reasoning": {"effort": "low"},
                                 "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
                                 "input": [{"role": "developer", "content": [{"type": "input_text", "text": "x"}]},
                                           {"type": "function_call", "call_id": "i", "name": "f", "arguments": "{}"},
                                           {"type": "function_call_output", "call_id": "i", "output": "x"}]}),
              ("/v1/responses", {"model": "chat", "input": "Hello", "max_output_tokens": 4, "text": {
                  "format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}),
              ("/v1/embeddings", {"model": "fables", "input": ["wolf", [5, 6]], "encoding_format": "base64", "dimensions": 4, "pooling": "mean"}),
              ("/tokenize", {"model": "fables", "prompt": "Hello"}), ("/detokenize", {"model": "fables", "tokens": [5, 6]})]
    LIMITS = {"/v1/chat/completions": "max_tokens", "/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens"}
    VALUES = [None, True, False, 0, -1, 1, 2, 1e308, -0.0, 1.5, 2**62, "", "x", "\ud83d\ude00", "<|end|>", "a" * 5000, [], [[]], {}, {"a": {}},
              [0], ["x"], [None]]

    def mutate(self, rng, value):
        """The value with a few places replaced, removed or doubled."""
        if isinstance(value, dict) and value:
            value = dict(value)
            key = rng.choice(list(value))
            kind = rng.random()
            if kind < 0.2:
                del value[key]
            elif kind < 0.3:
                value[rng.choice(["x", "n", "prompt", "messages", "stop", key + "s"])] = rng.choice(self.VALUES)
            else:
                value[key] = self.mutate(rng, value[key])
            return value
        if isinstance(value, list) and value and rng.random() < 0.7:
            value = list(value)
            at = rng.randrange(len(value))
            value[at] = self.mutate(rng, value[at])
            return value * rng.choice([1, 1, 1, 3])
        return rng.choice(self.VALUES)

    @staticmethod
    def damage(rng, data):
        data = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data) + 1)
            data[at:at + rng.randrange(4)] = bytes(rng.choice(b'{}[]",:\\0123456789eE.-u\xff\x00 tn') for _ in range(rng.randrange(4)))
        return bytes(data)

    def test_bodies(self):
        server = self.serve("fables=" + build_engine(FABLES, "--max-batch", "4", "--hidden"), "chat=" + chat_engine(), "tools=" + tools_engine())
        rng, counts, connection, answered = random.Random(1), {}, server.connect(), set()
        for path, body in self.BODIES:
            self.assertEqual(server.request("POST", path, body, connection=connection).status, 200, body)
        for _ in range(BODIES):
            path, body = rng.choice(self.BODIES)
            for _ in range(rng.randrange(1, 3)):
                body = self.mutate(rng, body)
            limit = self.LIMITS.get(path)
            if limit and isinstance(body, dict) and not {limit, "max_completion_tokens"} & set(body):
                body[limit] = 3
            data = json.dumps(body).encode()
            if rng.random() < 0.3:
                data = self.damage(rng, data)
            reply = server.request("POST", path, data, {"Content-Type": "application/json"}, connection)
            counts[reply.status] = counts.get(reply.status, 0) + 1
            answered |= {path} if reply.status == 200 else set()
            self.assertIn(reply.status // 100, (2, 4), (path, data, reply))
            if reply.status != 200 or not reply.headers["Content-Type"].startswith("text/event-stream"):
                json.loads(reply.body)
            elif path in ("/v1/messages", "/v1/responses"):
                self.assertRegex(reply.body, rb"^event: \w")
            else:
                events(reply.body)
        connection.close()
        self.assertGreater(counts[200], BODIES // 20)
        self.assertGreater(counts[400], BODIES // 20)
        if not SANITIZED:  # with fewer bodies
            self.assertEqual(answered, {path for path, _ in self.BODIES})
        tally("mutated bodies %s" % counts, BODIES)
        server.wait_until(lambda: not server.busy_slots())
        self.assertEqual(server.stop(), 0)

    def test_requests(self):
        """Damaged heads: a refusal, an answer, or a closed connection."""
        server = self.serve(fables())
        rng, counts = random.Random(2), {}
        body = json.dumps({**SHORT, "max_tokens": 2}).encode()
        for _ in range(HEADS):
            data = self.damage(rng, header(body, extra="Connection: close\r\n"))
            connection = server.socket()
            try:
                connection.sendall(data + body)
                self.half_close(connection)
                reply = self.read_all(connection)
            except ConnectionError:
                reply = b""
            connection.close()
            status = reply[9:12].decode() if reply else "closed"
            counts[status] = counts.get(status, 0) + 1
            self.assertTrue(status == "closed" or status[0] in "24" or status in ("501", "505"), (data, reply))
        tally("damaged requests %s" % counts, HEADS)
        self.check_works(server)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
