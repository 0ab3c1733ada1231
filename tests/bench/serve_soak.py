# SPDX-License-Identifier: Apache-2.0
"""Many requests at random to one engserve, many at a time: each must be answered as it is alone.

    serve_soak.py ENGSERVE ENGINE COUNT [--seed 1] [--specs 200] [--at-once 24] [--most-drift 1] [-- FLAG...]

First specifications of requests are drawn: prompt, length, greedy or with a seed, penalties, choices (n), stop strings, log-probabilities,
formats (guided_choice, guided_regex), completion or, where the model has a template, chat. Half of the prompts begin with one of a few
texts. Each is sent while nothing else runs; that is its answer. Then COUNT requests, each of a random specification, half of them as a
stream, --at-once at a time. A sixth of the clients leave: at a random moment or after some events of the stream. What a client has received
must be, or begin, the answer. When all are done, no slot is busy and no page in use.

Memory is the resident set of engserve after a tenth of the requests and at the end; --most-drift 0: it is printed alone. The C library's
allocator has one arena and gives memory back early (ALLOCATOR): otherwise it keeps up to 1 MB more or less from one tenth to the next.
Exit code: 0; 1: an answer differs, something is left, or the resident set has grown by more than --most-drift per cent. Flags after -- are
engserve's. Uses the standard library alone.
"""

import argparse
import collections
import http.client
import json
import queue
import random
import re
import signal
import socket
import sys
import threading
import time

import engserve_process

TENTHS = 10
ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_THRESHOLD_": "65536"}
WORDS = "the a fox wolf lamb crow lion mouse saw said took gave once upon time there was and but so then home river stone grape".split()
FORMATS = [{"guided_choice": ["the wolf", "the fox and the crow", "nobody"]}, {"guided_regex": "[A-Z][a-z ]{5,30}[.!]"}]


class Server:
    """engserve, ready at a port of its own."""

    def __init__(self, arguments):
        self.process, self.host, self.port = engserve_process.start(arguments.engserve, "model=" + arguments.engine, arguments.flags, ALLOCATOR)

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=600)

    def get(self, path):
        connection = self.connect()
        connection.request("GET", path)
        body = connection.getresponse().read()
        connection.close()
        return body

    def is_idle(self):
        busy = [slot for slot in json.loads(self.get("/slots")) if slot["state"] != "free"]
        used = re.search(rb"^eng:kv_cache_usage_perc\{[^}]*\} (\S+)$", self.get("/metrics"), re.M)
        return not busy and float(used.group(1)) == 0

    def metric(self, name):
        return sum(float(value) for value in re.findall(rb"^eng:%s\{[^}]*\} (\S+)$" % name.encode(), self.get("/metrics"), re.M))

    def resident(self):
        """Bytes of memory in use."""
        with open("/proc/%d/status" % self.process.pid, encoding="utf-8") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1)) << 10


class Spec:
    """A request, without "stream", and the answer that it gets alone: [(text, finish reason, log-probabilities)] of its choices."""

    def __init__(self, path, body):
        self.path, self.body, self.answer = path, body, None


def draw_body(rng, openings):
    words = [rng.choice(WORDS) for _ in range(rng.choice((2, 6, 60)))]
    prompt = " ".join(words)
    if rng.random() < 0.5:
        opening = rng.choice(openings)
        prompt = opening[:rng.randrange(len(opening))] + " " + prompt
    body = {"model": "model", "max_tokens": rng.randrange(1, 49), "prompt": prompt}
    if rng.random() < 0.5:
        body["temperature"] = 0
    else:
        body.update(temperature=0.5 + rng.random(), seed=rng.randrange(1 << 40), top_p=rng.choice((1, 0.9)))
    for name, value in (("n", rng.choice((2, 3, 5))), ("presence_penalty", 0.4), ("frequency_penalty", -0.2), ("logprobs", 2), ("min_p", 0.05),
                        ("ignore_eos", True), ("logit_bias", {"7": 3})):
        if rng.random() < 0.15:
            body[name] = value
    if "ignore_eos" not in body and rng.random() < 0.1:
        body.update(rng.choice(FORMATS))
    return body


def as_chat(body):
    body = dict(body)
    body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    if "logprobs" in body:
        body.update(logprobs=True, top_logprobs=body["logprobs"])
    return body


def logprobs_of(found):
    """What an answer says of log-probabilities, without the bytes of tokens."""
    return json.dumps(found, sort_keys=True) if found else ""


def whole_answer(reply):
    return [(choice["text"] if "text" in choice else choice["message"]["content"] or "", choice["finish_reason"],
             logprobs_of(choice["logprobs"])) for choice in sorted(reply["choices"], key=lambda choice: choice["index"])]


def send(server, spec, is_stream=False):
    connection = server.connect()
    connection.request("POST", spec.path, json.dumps({**spec.body, "stream": is_stream}), {"Content-Type": "application/json"})
    return connection


def ask(server, spec):
    """The reply, as an object; of a refusal, too."""
    connection = send(server, spec)
    reply = json.loads(connection.getresponse().read())
    connection.close()
    return reply


def make_spec(rng, server, openings, has_chat):
    body = draw_body(rng, openings)
    if has_chat and rng.random() < 0.4:
        spec = Spec("/v1/chat/completions", as_chat(body))
    else:
        spec = Spec("/v1/completions", body)
    reply = ask(server, spec)
    if "choices" not in reply:
        raise SystemExit("refused: %s %s" % (spec.body, reply))
    texts = [text for text, _, _ in whole_answer(reply) if text]
    if texts and rng.random() < 0.3:  # a part of what it says stops it
        stops = []
        for _ in range(rng.randrange(1, 4)):
            text = rng.choice(texts)
            at = rng.randrange(len(text))
            stops.append(text[at:at + rng.randrange(1, 6)])
        spec.body["stop"] = stops
        reply = ask(server, spec)
    spec.answer = whole_answer(reply)
    return spec


class Stream:
    """What has come of a stream so far."""

    def __init__(self, spec):
        self.texts, self.finishes, self.events = [""] * len(spec.answer), [None] * len(spec.answer), 0

    def add(self, line):
        """False: the stream has ended."""
        if not line.startswith(b"data: "):
            return True
        data = line[len(b"data: "):].strip()
        if data == b"[DONE]":
            return False
        self.events += 1
        for choice in json.loads(data)["choices"]:
            at = choice["index"]
            self.texts[at] += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            self.finishes[at] = choice["finish_reason"] or self.finishes[at]
        return True

    def difference(self, spec, is_whole):
        for found, finish, (text, expected, _) in zip(self.texts, self.finishes, spec.answer):
            if not text.startswith(found) or finish not in (None, expected) or (is_whole and (found != text or finish != expected)):
                return "%r (%s), alone %r (%s)" % (found, finish, text, expected)
        return None


class Soak:
    def __init__(self, server, specs, rng):
        self.server, self.specs, self.rng = server, specs, rng
        self.counts, self.differences, self.lock = collections.Counter(), [], threading.Lock()

    def note(self, what, difference=None, spec=None):
        with self.lock:
            self.counts[what] += 1
            if difference:
                self.differences.append("%s: %s: %s" % (what, json.dumps(spec.body), difference))

    def read_stream(self, spec, connection, most_events):
        stream, response, is_whole = Stream(spec), connection.getresponse(), False
        while stream.events < most_events:
            line = response.readline()
            is_whole = not stream.add(line)
            if is_whole or not line:
                break
        if not is_whole and stream.events < most_events:
            self.note("streams that broke off", "after %d events" % stream.events, spec)
        self.note("streams left" if not is_whole else "streams", stream.difference(spec, is_whole), spec)

    def leave(self, connection, seconds):
        """The client waits so long for its answer, then goes."""
        connection.sock.settimeout(max(seconds, 0.0001))
        try:
            connection.sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            pass
        self.note("left")

    def run_one(self, spec, is_stream, leaves, chance):
        connection = send(self.server, spec, is_stream)
        if is_stream:
            self.read_stream(spec, connection, 1 + int(40 * chance) if leaves else sys.maxsize)
        elif leaves:
            self.leave(connection, 0.3 * chance * chance)
        else:
            reply = json.loads(connection.getresponse().read())
            found = whole_answer(reply) if "choices" in reply else reply
            self.note("answers", None if found == spec.answer else "%s, alone %s" % (found, spec.answer), spec)
        connection.close()

    def run(self, count, at_once):
        work = queue.Queue()
        for _ in range(count):
            work.put((self.rng.choice(self.specs), self.rng.random() < 0.5, self.rng.random() < 1 / 6, self.rng.random()))

        def client():
            while True:
                try:
                    job = work.get_nowait()
                except queue.Empty:
                    return
                try:
                    self.run_one(*job)
                except (OSError, http.client.HTTPException, ValueError) as error:
                    self.note("failures", repr(error), job[0])

        threads = [threading.Thread(target=client) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def wait_until_idle(self):
        end = time.monotonic() + 60
        while not self.server.is_idle():
            if time.monotonic() > end:
                self.differences.append("slots or pages are in use a minute after the last client has gone")
                return
            time.sleep(0.02)


def has_chat(server):
    return "choices" in ask(server, Spec("/v1/chat/completions", {"model": "model", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}))


def main():
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser()
    parser.add_argument("engserve")
    parser.add_argument("engine")
    parser.add_argument("count", type=int)
    for name, default in (("--seed", 1), ("--specs", 200), ("--at-once", 24)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--most-drift", type=float, default=1)
    arguments = parser.parse_args(words[:split])
    arguments.flags = words[split + 1:]
    rng, server = random.Random(arguments.seed), Server(arguments)
    begin = time.monotonic()
    openings = [" ".join(rng.choice(WORDS) for _ in range(50)) for _ in range(6)]
    chat = has_chat(server)
    soak = Soak(server, [make_spec(rng, server, openings, chat) for _ in range(arguments.specs)], rng)
    print("%d specifications alone: %.1f s" % (arguments.specs, time.monotonic() - begin))
    begin, resident = time.monotonic(), []
    for tenth in range(TENTHS):
        soak.run(arguments.count * (tenth + 1) // TENTHS - arguments.count * tenth // TENTHS, arguments.at_once)
        soak.wait_until_idle()
        resident.append(server.resident())
        print("%d requests: %.1f s, resident %.2f MB" % (arguments.count * (tenth + 1) // TENTHS, time.monotonic() - begin, resident[-1] * 1e-6),
              flush=True)
    drift = 100 * (resident[-1] / resident[0] - 1)
    print("%d requests, %d at once: %.0f tokens drawn in %.1f s, %s; %d differ from alone, resident %.2f -> %.2f MB (%+.2f %%)" % (
        arguments.count, arguments.at_once, server.metric("generation_tokens_total"), time.monotonic() - begin,
        ", ".join("%d %s" % (count, what) for what, count in sorted(soak.counts.items())), len(soak.differences), resident[0] * 1e-6,
        resident[-1] * 1e-6, drift))
    for difference in soak.differences[:10]:
        print(difference[:1000], file=sys.stderr)
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait(60)
    if code:
        print("engserve ended with %d" % code, file=sys.stderr)
    return int(bool(soak.differences or code or 0 < arguments.most_drift < drift))


if __name__ == "__main__":
    sys.exit(main())
