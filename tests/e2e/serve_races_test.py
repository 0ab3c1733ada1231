# SPDX-License-Identifier: Apache-2.0
"""engserve under ThreadSanitizer: clients at the same time, of which many leave early, on several HTTP threads and several engines. The first
race ends the program. libmicrohttpd is not instrumented; what it shares between threads is under locks, which the sanitizer sees."""

import contextlib
import functools
import http.client
import json
import random
import signal
import subprocess
import threading
import time
import unittest

from harness import ENGSERVE_TSAN, tally, tools_engine
from served import GREEDY, HELLO, fables
from server import Server

OPTIONS = {"TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:exitcode=66"}
CLIENTS, REQUESTS = 8, 16  # of each client
MOST_IDLE_SECONDS = 15  # the server closes connections on which nothing was sent for 30
WEATHER = {"type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}}, "required": ["place"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
TEXT = "A fox and a crow met at the river. "

# (path, body) of requests whose answers are the same whatever else runs.
FIXED = [
    ("/v1/completions", {**GREEDY, "model": "fables"}),
    ("/v1/completions", {"model": "fables", "prompt": TEXT * 9 + "The crow", "max_tokens": 20, "seed": 3, "n": 3, "logprobs": 2}),
    ("/v1/completions", {"model": "fables", "prompt": TEXT * 9 + "The fox", "max_tokens": 20, "seed": 4, "stop": ["the", "."], "echo": True}),
    ("/v1/completions", {"model": "fables", "prompt": "The year is ", "max_tokens": 8, "seed": 5, "guided_regex": "[0-9]{4}"}),
    ("/v1/chat/completions", {"model": "tools", "messages": HELLO, "max_tokens": 40, "seed": 6, "tools": [TOOL], "tool_choice": "required",
                              "parallel_tool_calls": False}),
    ("/v1/messages", {"model": "tools", "messages": HELLO, "max_tokens": 12, "temperature": 0}),
    ("/v1/responses", {"model": "tools", "input": "Hello", "max_output_tokens": 12, "temperature": 0, "top_logprobs": 1}),
    ("/tokenize", {"model": "tools", "messages": HELLO}),
]
ENDLESS = {"model": "fables", "prompt": TEXT, "max_tokens": 500, "ignore_eos": True, "n": 8}
CHANGING = {"id", "created", "created_at", "usage", "call_id", "item_id", "obfuscation"}  # members of answers


def constant(value):
    """An answer without what differs between two of the same request."""
    if isinstance(value, dict):
        return {key: constant(member) for key, member in value.items() if key not in CHANGING}
    return [constant(member) for member in value] if isinstance(value, list) else value


@functools.lru_cache(maxsize=None)
def fixed_addresses():
    """Words before a command: gcc 12's sanitizer does not start at all addresses that newer systems choose at random. Some containers forbid
    to do without these."""
    try:
        return ["setarch", "-R"] if subprocess.run(["setarch", "-R", "true"], check=False, capture_output=True).returncode == 0 else []
    except FileNotFoundError:
        return []


class Races(unittest.TestCase):
    def serve(self, *flags):
        try:
            server = Server("fables=" + fables(), "tools=" + tools_engine(), "--threads", "2", "--ping", "0.05", *flags, env=OPTIONS,
                            program=[*fixed_addresses(), ENGSERVE_TSAN])
        except AssertionError as error:
            if "unexpected memory mapping" in str(error):
                self.skipTest("ThreadSanitizer does not start with the addresses that this system gives: see vm.mmap_rnd_bits")
            raise
        self.addCleanup(server.stop, signal.SIGKILL)
        return server

    def end(self, server):
        code = server.stop()
        self.assertNotIn("ThreadSanitizer", server.log)
        self.assertEqual(code, 0, server.log)

    def leave(self, server, rng):
        """A request whose client leaves: before its end, or after some bytes of the answer."""
        path, body = rng.choice([("/v1/completions", ENDLESS), rng.choice(FIXED)])
        is_stream = path.startswith("/v1/") and rng.random() < 0.7
        data = json.dumps({**body, "stream": True} if is_stream else body).encode()
        head = "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (path, len(data))
        with server.socket() as connection, contextlib.suppress(ConnectionError):  # the server may close it first
            whole = head.encode() + data
            sent = len(whole) if rng.random() < 0.8 else rng.randrange(len(whole))
            connection.sendall(whole[:sent])
            if sent == len(whole) and is_stream and rng.random() < 0.7:
                connection.recv(rng.choice((1, 300, 3000)))
            elif rng.random() < 0.5:
                time.sleep(rng.random() / 50)

    def client(self, server, number, expected, failures, counts):
        rng = random.Random(number)
        connection, used = server.connect(), time.monotonic()
        try:
            for _ in range(REQUESTS):
                kind = rng.random()
                if time.monotonic() - used > MOST_IDLE_SECONDS:
                    connection.close()  # the next request opens it
                if kind < 0.4:
                    self.leave(server, rng)
                    counts["left"] += 1
                elif kind < 0.5:
                    for path in ("/metrics", "/slots", "/health", "/v1/models"):
                        self.assertEqual(server.request("GET", path, connection=connection).status, 200)
                elif kind < 0.6:
                    self.assertEqual(server.request("POST", "/v1/completions", {"model": "fables", "prompt": 1}, connection=connection).status, 400)
                else:
                    index = rng.randrange(len(FIXED))
                    path, body = FIXED[index]
                    is_stream = path.startswith("/v1/") and rng.random() < 0.5
                    reply = server.request("POST", path, {**body, "stream": True} if is_stream else body, connection=connection)
                    self.assertEqual(reply.status, 200, reply.body)
                    if is_stream:
                        self.assertRegex(reply.body, rb"(data: \[DONE\]|event: message_stop|event: response\.(in)?complete.*)\n")
                    else:
                        self.assertEqual(constant(json.loads(reply.body)), expected[index], path)
                    counts["answers"] += 1
                used = used if kind < 0.4 else time.monotonic()
        except BaseException as error:  # pylint: disable=broad-except
            failures.append(error)
        finally:
            connection.close()

    def test_clients(self):
        server = self.serve("--http-threads", "4")
        expected = [constant(server.json("POST", path, body)) for path, body in FIXED]
        failures, counts = [], {"left": 0, "answers": 0}
        threads = [threading.Thread(target=self.client, args=(server, number, expected, failures, counts)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [], server.log[-3000:])
        server.wait_until(lambda: not server.busy_slots())
        self.assertEqual(server.metric("kv_cache_usage_perc"), 0)
        self.assertGreater(min(counts.values()), CLIENTS * REQUESTS // 8, counts)
        self.end(server)
        tally("requests under ThreadSanitizer", CLIENTS * REQUESTS)

    def test_limits(self):
        """A queue that is full, and requests that take too long."""
        server = self.serve("--http-threads", "3", "--max-queue", "2", "--timeout", "2")
        codes = []

        def ask(body):
            codes.append(server.request("POST", "/v1/completions", body).status)

        threads = [threading.Thread(target=ask, args=({**ENDLESS, "n": 64},)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((set(codes) | {429}, len(codes)), ({408, 429}, 8))  # if they came one by one, none was too many
        self.end(server)

    def test_the_end(self):
        """The end of the program while requests are answered, which takes no longer than one may take. On a slow machine that may be over before:
        no race is seen then, and nothing fails."""
        server = self.serve("--http-threads", "3", "--timeout", "5")
        replies, others = [], []
        for is_stream in (False, True) * 2:
            connection = server.connect()
            self.addCleanup(connection.close)
            connection.request("POST", "/v1/completions", json.dumps({**ENDLESS, "stream": is_stream}), {"Content-Type": "application/json"})
            if is_stream:
                replies.append(connection.getresponse())  # it begins when the request is accepted
            else:
                others.append(connection)
        self.end(server)
        with contextlib.suppress(http.client.HTTPException, ConnectionError):  # answers that were cut off
            for reply in replies + [connection.getresponse() for connection in others]:
                reply.read()


if __name__ == "__main__":
    unittest.main()
