# SPDX-License-Identifier: Apache-2.0
"""engserve and clients that send damaged requests, leave at any moment, or come a thousand at once."""

import json
import os
import random
import re
import resource
import selectors
import signal
import socket
import struct
import time
import unittest

from harness import FABLES, SANITIZED, build_engine, chat_engine, scratch, tally, tools_engine, write
from server import ENOUGH_SECONDS, PATIENCE, Server

FOLDER = scratch()
KEY = "key-of-the-test"
BODY = {"model": "fables", "prompt": "Once upon a time", "max_tokens": 2, "temperature": 0}
# Takes longer than any test: 128,000 tokens.
ENDLESS = {**BODY, "max_tokens": 1000, "ignore_eos": True, "n": 128}
REQUESTS = 10000
AT_ONCE = 800
QUIET_SECONDS = 0.25 * PATIENCE
ANSWER_SECONDS = 100 * PATIENCE  # a server with so many clients may be that slow
RECEIVE_SECONDS = 30  # engserve's own limit for a request to arrive


def setUpModule():
    """A thousand connections need as many descriptors here, too."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))


def request(method, path, body=None, *headers):
    data = b"" if body is None else json.dumps(body).encode()
    lines = ["%s %s HTTP/1.1" % (method, path), "Host: x", "Authorization: Bearer " + KEY, *headers]
    if body is not None:
        lines += ["Content-Type: application/json", "Content-Length: %d" % len(data)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def chunked(path, body):
    data = json.dumps(body).encode()
    pieces = [data[at:at + 20] for at in range(0, len(data), 20)]
    return (("POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"
             "Transfer-Encoding: chunked\r\n\r\n" % (path, KEY)).encode() +
            b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n")


HELLO = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "chat", "messages": HELLO, "max_tokens": 2}
SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["fox", "wolf"]}}, "required": ["kind"], "additionalProperties": False}
TOOL = {"name": "choose", "description": "A choice.", "parameters": SCHEMA, "strict": True}
CALL = {"id": "call_1", "type": "function", "function": {"name": "choose", "arguments": "{\"kind\": \"fox\"}"}}
TOOLS = {"model": "tools", "messages": HELLO, "max_tokens": 3, "tools": [{"type": "function", "function": TOOL}]}
CALLED = {**TOOLS, "messages": HELLO + [{"role": "assistant", "content": None, "tool_calls": [CALL]},
                                        {"role": "tool", "tool_call_id": "call_1", "content": "Good."}]}
FORMAT = {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}}
BLOCKS = [{"role": "user", "content": [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]},
          {"role": "assistant", "content": [{"type": "thinking", "thinking": "A fox?", "signature": ""},
                                            {"type": "tool_use", "id": "call_1", "name": "choose", "input": {"kind": "fox"}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "Good.", "is_error": False}]}]
MESSAGES = {"model": "tools", "messages": BLOCKS, "max_tokens": 3, "system": "Be brief.", "stop_sequences": ["a", "b"],
            "tools": [{"name": "choose", "input_schema": SCHEMA}], "tool_choice": {"type": "auto"}, "thinking": {"type": "adaptive"}}
OUTPUT = {"model": "chat", "messages": HELLO, "max_tokens": 3, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
COUNTED = {name: MESSAGES[name] for name in ("model", "messages", "system", "tools")}
ITEMS = [{"role": "developer", "content": [{"type": "input_text", "text": "Hello"}]}, {"type": "reasoning", "id": "r", "summary": []},
         {"type": "function_call", "call_id": "call_1", "name": "choose", "arguments": "{\"kind\": \"fox\"}"},
         {"type": "function_call_output", "call_id": "call_1", "output": "Good."}]
RESPONSES = {"model": "tools", "input": ITEMS, "instructions": "Be brief.", "max_output_tokens": 3, "store": False,
             "tools": [{"type": "function", **TOOL}], "reasoning": {"effort": "low"}, "top_logprobs": 1}
EMBEDDINGS = {"model": "fables", "input": ["wolf", "fox"], "encoding_format": "base64", "dimensions": 4}
CORPUS = [request("GET", "/"), request("HEAD", "/"), request("GET", "/health"), request("GET", "/metrics"), request("GET", "/slots"),
          request("GET", "/v1/models"), request("GET", "/v1/models/fables"), request("GET", "http://x/health?a=b&c"),
          request("POST", "/v1/completions", BODY), request("POST", "/v1/completions", {**BODY, "stream": True, "stop": ["a"], "n": 2}),
          request("POST", "/v1/completions", {**BODY, "logprobs": 2, "echo": False, "seed": 4, "guided_choice": ["yes", "no"]}),
          request("POST", "/v1/chat/completions", CHAT), request("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
          request("POST", "/tokenize", {"model": "fables", "prompt": "wolf"}), request("POST", "/detokenize", {"model": "fables", "tokens": [5, 6]}),
          request("POST", "/v1/completions", BODY, "Expect: 100-continue"), request("POST", "/v1/completions", BODY, "Connection: close"),
          request("GET", "/health", None, *("X-%d: %s" % (i, "v" * 50) for i in range(50))),
          request("POST", "/v1/chat/completions", TOOLS), request("POST", "/v1/chat/completions", {**TOOLS, "tool_choice": "required"}),
          request("POST", "/v1/chat/completions", CALLED), request("POST", "/v1/chat/completions", {**CALLED, "stream": True}),
          request("POST", "/v1/chat/completions", FORMAT),
          request("POST", "/v1/completions", {**BODY, "response_format": {"type": "json_object"}}),
          request("POST", "/v1/messages", MESSAGES), request("POST", "/v1/messages", {**MESSAGES, "stream": True}),
          request("POST", "/v1/messages", OUTPUT), request("POST", "/v1/messages/count_tokens", COUNTED),
          request("POST", "/v1/responses", RESPONSES), request("POST", "/v1/responses", {**RESPONSES, "stream": True}),
          request("POST", "/v1/embeddings", EMBEDDINGS), request("POST", "/v1/embeddings", {**EMBEDDINGS, "pooling": "mean"}),
          chunked("/v1/messages", MESSAGES), chunked("/v1/completions", BODY), chunked("/v1/chat/completions", CHAT),
          b"GET /health HTTP/1.0\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"]
WORDS = [b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b" ", b":", b"%00", b"%", b"%2f..%2f", b"../", b"?", b"#", b"\xff\xfe", b"\xe2\x82",
         b"Content-Length: 18446744073709551617\r\n", b"Content-Length: -1\r\n", b"Content-Length: 5\r\n", b"Content-Length: 0x10\r\n",
         b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Expect: 100-continue\r\n", b"Connection: upgrade\r\n",
         b"Upgrade: h2c\r\n", b"Authorization: Bearer \r\n", b"Host: y\r\n", b"Content-Type: text/plain\r\n", b"Cookie: a=b; c=\"d\r\n",
         b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"HTTP/9.9", b"HTTP/1.1", b"GET / HTTP/1.1\r\n", b"POST", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
         b"A" * 9000, b"A" * 40000, b"{", b"}", b"[" * 300, b"\"", b"\\u0000", b"1e999", b"-", b"null", b"\"stream\":true,", b"\"type\":\"text\",", b"\"$ref\":\"#\",", b"/v1/", b"/v1/models/"]


def mutated(rng):
    """A request of the corpus with a few changes."""
    data = bytearray(rng.choice(CORPUS))
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        kind = rng.randrange(7)
        if kind == 0:
            for place in rng.choices(range(max(len(data), 1)), k=3):
                data[place:place + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del data[at:min(end, at + rng.choice((1, 10, 1000)))]
        elif kind == 2:
            data[at:at] = data[at:end]
        elif kind in (3, 4):
            data[at:at + rng.choice((0, 0, 5))] = rng.choice(WORDS)
        elif kind == 5:
            other = rng.choice(CORPUS)
            data[at:] = other[rng.randrange(len(other)):]
        else:
            del data[rng.randrange(len(data) + 1):]
    return bytes(data)


def without_blank_lines(text):
    """The library takes lines of any kind before a request."""
    return re.sub(rb"^(?:\r?\n)+", b"", text)


def is_chunked_body_whole(body):
    """Up to the blank line that ends it, or to a size that is none, which is refused."""
    while True:
        size = re.match(rb"([0-9a-fA-F]*)(?:;[^\n]*)?\r?\n", body)
        if not size:
            return not re.fullmatch(rb"[0-9a-fA-F]*(?:;[^\n]*)?\r?", body)
        if not size.group(1):
            return True
        length = int(size.group(1), 16)
        if length == 0:
            return re.search(rb"\n\r?\n", b"\n" + body[size.end():]) is not None
        body = body[size.end():]
        if len(body) < length + 2:
            return False
        body = body[length:]
        body = body[2:] if body[:2] == b"\r\n" else body[1:] if body[:1] == b"\n" else b"-"


def reason_for_silence(text):
    """Why the library, which has no option and no function for these, closes the connection without a reply; None: it has no reason.

    All but the last are requests that are not complete when the client closes its direction, on which it does not wait for an answer."""
    text = without_blank_lines(text)
    line, head = re.search(rb"\n", text), re.search(rb"\r?\n\r?\n", text)
    if not line:
        return "no whole line" if text else "nothing"
    if b" " not in text[:line.start()].rstrip(b"\r") or text[:1] in (b" ", b"\0"):
        return "no method"
    if not head:
        return "no whole head"
    lengths = re.findall(rb"(?im)^content-length:[ \t]*(\d+)", text[:head.start()])
    if re.search(rb"(?im)^transfer-encoding:[ \t]*chunked[ \t]*\r?$", text[:head.start()] + b"\n"):
        return None if is_chunked_body_whole(text[head.end():]) else "no whole body"
    return "no whole body" if lengths and int(lengths[0]) > len(text) - head.end() else None


class Client:
    """One connection that sends a text. It closes its own direction when a reply has begun, or when none has for `quiet`
    seconds; None: never."""

    def __init__(self, port, data, quiet):
        self.data, self.reply, self.quiet, self.is_half_closed = data, b"", quiet, False
        self.socket = socket.create_connection(("127.0.0.1", port), ENOUGH_SECONDS)
        self.socket.setblocking(False)
        self.last = time.monotonic()

    def half_close(self):
        if self.quiet is not None and not self.is_half_closed:
            self.is_half_closed = True
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError:  # the server has closed it
                pass

    def is_quiet(self):
        return self.quiet is not None and not self.data and time.monotonic() - self.last >= self.quiet

    def go_on(self):
        """True at the end of the connection."""
        try:
            if self.data:
                self.data = self.data[self.socket.send(self.data):]
                self.last = time.monotonic()
        except BlockingIOError:
            pass
        except ConnectionError:
            self.data = b""  # refused before all of it was sent: there may be a reply
        try:
            more = self.socket.recv(65536)
        except BlockingIOError:
            if self.is_quiet():
                self.half_close()
            return False
        except ConnectionError:
            return True
        self.reply += more
        if more and not re.fullmatch(rb"HTTP/1\.1 100 [^\r]*\r\n\r\n", self.reply):
            self.half_close()
        return not more


def run_clients(port, texts, at_once, quiet=QUIET_SECONDS):
    """Sends each text on a connection of its own, so many at once; yields (number, text, reply). Whole requests are given more time."""
    waiting, selector, count = list(enumerate(texts)), selectors.DefaultSelector(), 0
    waiting.reverse()
    end = time.monotonic() + 2 * ENOUGH_SECONDS
    while waiting or count:
        while waiting and count < at_once:
            number, text = waiting.pop()
            client = Client(port, text, quiet if quiet is None or reason_for_silence(text) else max(quiet, ANSWER_SECONDS))
            selector.register(client.socket, selectors.EVENT_READ, (number, text, client))
            count += 1
        # Sockets that can be written are always ready: those that have something to send are tried without asking.
        others = [(key, 0) for key in selector.get_map().values() if key.data[2].data or key.data[2].is_quiet()]
        for key, _ in selector.select(0.02) + others:
            number, text, client = key.data
            if key.fd not in selector.get_map() or not client.go_on():
                continue
            selector.unregister(client.socket)
            client.socket.close()
            count -= 1
            yield number, text, client.reply
        if time.monotonic() > end:
            raise AssertionError("%d clients still wait: %r" % (count, [key.data[1][:300] for key in list(selector.get_map().values())[:3]]))
    selector.close()


class HostileTest(unittest.TestCase):
    def serve(self, *arguments):
        server = Server("fables=" + build_engine(FABLES, "--max-batch", "4", "--hidden"), *arguments)
        self.addCleanup(server.stop, signal.SIGKILL)
        return server

    def descriptors(self, server):
        return len(os.listdir("/proc/%d/fd" % server.process.pid))

    def resident(self, server):
        """Bytes of memory in use."""
        with open("/proc/%d/status" % server.process.pid, encoding="utf-8") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1)) << 10

    def check_idle(self, server, descriptors):
        """Nothing is left of those who came."""
        server.wait_until(lambda: self.descriptors(server) <= descriptors)
        headers = {"Authorization": "Bearer " + KEY}
        self.assertEqual(server.request("POST", "/v1/completions", BODY, headers).status, 200)

        def is_free():
            return {slot["state"] for slot in json.loads(server.request("GET", "/slots", None, headers).body)} == {"free"}

        server.wait_until(is_free)  # a request that was sent before its client left may be read after that
        self.assertEqual(server.stop(), 0)


class Corpus(HostileTest):
    def test_mutated_requests(self):
        """Each ends in an answer or a refusal, if it is complete; nothing is left of them."""
        keys = os.path.join(FOLDER.name, "keys")
        write(keys, KEY.encode() + b"\n")
        server = self.serve("chat=" + chat_engine(), "tools=" + tools_engine(), "--api-key-file", keys)
        for _, text, reply in run_clients(server.port, CORPUS, 4):
            self.assertRegex(reply, rb"^HTTP/1\.1 (100|200|401|404|405) ", text)
            if text.startswith(b"POST"):
                self.assertIn(b"HTTP/1.1 200 ", reply, text)
        descriptors, rng, counts, resident = self.descriptors(server), random.Random(18), {}, []
        for part in range(4):
            texts = [mutated(rng) for _ in range(REQUESTS // 4)]
            for _, text, reply in run_clients(server.port, texts, AT_ONCE):
                reply = re.sub(rb"^HTTP/1\.1 100 [^\r]*\r\n\r\n", b"", reply)
                status = reply[9:12].decode() if reply else reason_for_silence(text)
                self.assertIsNotNone(status, text[:2000])
                counts[status] = counts.get(status, 0) + 1
                self.assertTrue(not reply or status[0] in "24" or status in ("501", "505"), (text[:2000], reply[:2000]))
            resident.append(self.resident(server))
        tally("mutated requests %s" % dict(sorted(counts.items())), sum(counts.values()))
        self.assertEqual(sum(counts.values()), REQUESTS)
        refused = sum(count for status, count in counts.items() if status[0] == "4")
        self.assertGreater(refused, REQUESTS // 4)
        self.assertGreater(counts["200"], REQUESTS // 50)
        if not SANITIZED:  # which keep freed memory for a while
            # A leak grows in each part; a part with more requests at once than those before it may grow alone.
            self.assertLess(min(resident[3] - resident[2], resident[2] - resident[1]), 4 << 20, resident)
        self.check_idle(server, descriptors)


class Heads(HostileTest):
    def test_bodies_without_an_end(self):
        """A refusal comes at once, though the client keeps its direction open."""
        server = self.serve()
        descriptors = self.descriptors(server)
        endless, coded, expected = "Content-Length: 999999999999", "Transfer-Encoding: gzip, chunked", "Expect: 100-continue"
        cases = [(request("GET", "/health", None, endless), b"413"), (request("GET", "/health", None, coded), b"501"),
                 (request("POST", "/v1/completions", None, "Content-Type: application/json", endless), b"413"),
                 (request("POST", "/v1/completions", None, "Content-Type: application/json", coded), b"501"),
                 (request("POST", "/none", None, coded), b"404"), (request("GET", "/health", None, expected) + b"{", b"200"),
                 (request("POST", "/v1/completions", None, "Content-Type: application/json", expected) + b"{}", b"400")]
        begin, found = time.monotonic(), {}
        for _, text, reply in run_clients(server.port, [text for text, _ in cases], len(cases), quiet=RECEIVE_SECONDS):
            found[text] = reply[9:12]
        self.assertEqual(found, dict(cases))
        self.assertLess(time.monotonic() - begin, RECEIVE_SECONDS)
        self.check_idle(server, descriptors)


class Leaving(HostileTest):
    def test_half_closed(self):
        """A client that closes its direction before its request is complete is not waited for."""
        server = self.serve()
        descriptors = self.descriptors(server)
        whole = request("POST", "/v1/completions", BODY)
        head = whole.index(b"\r\n\r\n") + 4
        cuts = [0, 5, head - 4, head - 2, head, head + 1, len(whole) - 1]
        begin = time.monotonic()
        replies = [reply for _, _, reply in run_clients(server.port, [whole[:cut] for cut in cuts], len(cuts), quiet=0)]
        self.assertLess(time.monotonic() - begin, RECEIVE_SECONDS)  # as a client that keeps its direction open has
        self.assertEqual(len(replies), len(cuts))
        for reply in replies:
            self.assertFalse(reply.startswith(b"HTTP/1.1 200"), reply)
        self.check_idle(server, descriptors)

    def test_silent(self):
        """A client that sends nothing more, and closes nothing, is disconnected after a time."""
        server = self.serve("--timeout", str(4 * PATIENCE))
        descriptors = self.descriptors(server)
        whole, replies = request("POST", "/v1/completions", BODY), []
        for _, text, reply in run_clients(server.port, [b"", whole[:5], whole[:-1], whole, whole + whole[:50]], 5, quiet=None):
            replies.append((text, reply))
        self.assertEqual(len(replies), 5)
        for text, reply in replies:
            self.assertEqual(reply.startswith(b"HTTP/1.1 200"), text.startswith(whole), (text, reply))
        self.check_idle(server, descriptors)

    def test_reset(self):
        """Connections that are reset, before, in and after the request and in the middle of a stream."""
        server = self.serve()
        descriptors = self.descriptors(server)
        long, stream = (request("POST", "/v1/completions", {**ENDLESS, "n": 1, **extra}) for extra in ({}, {"stream": True}))
        rng, count = random.Random(3), 0
        for _ in range(200):
            connection = server.socket()
            data = rng.choice((long, stream))
            connection.sendall(data[:rng.choice((0, 10, rng.randrange(len(data)), len(data), len(data)))])
            if data is stream and rng.random() < 0.3:
                connection.settimeout(0.2)
                try:
                    connection.recv(100)
                except TimeoutError:
                    pass
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            count += 1
        tally("connections that were reset", count)
        server.wait_until(lambda: not server.busy_slots())
        self.check_idle(server, descriptors)


class Thousand(HostileTest):
    def test_requests(self):
        """A thousand connections are open at the same time; each gets its own answer, whole or as a stream."""
        server = self.serve()
        descriptors, seeds = self.descriptors(server), 10
        body = {**BODY, "temperature": 1, "max_tokens": 3}
        expected = [server.json("POST", "/v1/completions", {**body, "seed": seed})["choices"][0]["text"] for seed in range(seeds)]
        texts = [request("POST", "/v1/completions", {**body, "seed": i % seeds, "stream": i % 2 == 1}, "Connection: close") for i in range(1000)]
        found = {}
        for number, _, reply in run_clients(server.port, texts, 1000, quiet=None):
            self.assertTrue(reply.startswith(b"HTTP/1.1 200"), reply)
            pieces = re.findall(rb'"text":("(?:[^"\\]|\\.)*")', reply)
            found[number] = "".join(json.loads(piece) for piece in pieces)
        self.assertEqual(found, {i: expected[i % seeds] for i in range(1000)})
        self.check_idle(server, descriptors)

    def test_ready_at_once(self):
        """As many requests arrive at the same time as the HTTP library asks for at once, 128, or a multiple: none waits for another event."""
        server = self.serve("--http-threads", "1")
        text = request("GET", "/health", None, "Connection: close")
        descriptors = self.descriptors(server)
        for count in (128, 256):
            connections = [server.socket() for _ in range(count)]
            server.wait_until(lambda: self.descriptors(server) >= descriptors + len(connections))
            time.sleep(QUIET_SECONDS)  # the events of new connections have been taken
            server.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, server.process.pid, os.WSTOPPED | os.WNOWAIT)
            for connection in connections:
                connection.sendall(text)
            begin = time.monotonic()
            server.process.send_signal(signal.SIGCONT)
            replies = [connection.recv(100)[:12] for connection in connections]
            self.assertEqual(replies, [b"HTTP/1.1 200"] * count)
            self.assertLess(time.monotonic() - begin, RECEIVE_SECONDS / 2)
            for connection in connections:
                connection.close()
        self.check_idle(server, descriptors)

    def test_idle_and_gone(self):
        """A thousand connections, most of them silent, do not hold up the one that asks; then all leave at once."""
        server = self.serve()
        descriptors = self.descriptors(server)
        stream = request("POST", "/v1/completions", {**ENDLESS, "stream": True})
        connections = [server.socket() for _ in range(1000)]
        for i, connection in enumerate(connections):
            connection.sendall((b"", b"POST /v1/comp", stream[:-1], stream if i < 100 else b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")[i % 4])
        server.wait_until(lambda: len(server.busy_slots()) == 4)
        for connection in connections[103::4]:
            self.assertTrue(connection.recv(100).startswith(b"HTTP/1.1 200"))
        self.assertEqual(server.request("GET", "/").status, 200)
        self.assertGreaterEqual(self.descriptors(server), descriptors + 1000)
        for connection in connections:
            connection.close()
        server.wait_until(lambda: not server.busy_slots())
        self.check_idle(server, descriptors)


if __name__ == "__main__":
    unittest.main()
