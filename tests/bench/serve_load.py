# SPDX-License-Identifier: Apache-2.0
"""Answers a second of engserve under load, beside what the engine computes without a server:

    serve_load.py ENGSERVE ENGINE [--engbench PROGRAM] [--at-once 1,16,64,256] [--prompt 512] [--answer 128] [--rounds 8]
                  [--shared N] [--vocab 128000] [--long N] [--processes 8] [--json FILE] [-- FLAG...]

For each number of clients: each sends --rounds requests, the next one when its answer has ended; prompts are tokens at random, greedy, all
answers streamed and of --answer tokens. Printed: tokens of answers a second over the whole time, beginning and end included; the time to
the first event of an answer and between two events of one, median and 99 of 100; the processor time of engserve for each token.

With --engbench: the rates of prompts (one of --prompt tokens) and of decode steps (as many sequences, context --prompt + --answer / 2)
by that program, first; then "of the limit" is the time that prompts and steps would take one after the other, over the time that was taken.
Mixed steps, which read weights once for both, may exceed it.

With --shared: the first N tokens of all prompts of a line are the same. The line ends with the time to the first event of its first request,
for which nothing is cached, where there is one client.

With --long: each number of clients once more, while another client sends prompts of N tokens, one after the other, each answered by one
token.

Exit code: 0; 1: an answer failed or has another length. Flags after -- are engserve's. Uses the standard library alone.
"""

import argparse
import json
import multiprocessing
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import time

import engserve_process

OK, WAITS_S = b"HTTP/1.1 200 ", 900
EVENT, USAGE, END = b"data: {", b'"completion_tokens":', b"data: [DONE]"
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
TICKS = os.sysconf("SC_CLK_TCK")


def draw_tokens(draw, count, vocab):
    return [draw.randrange(vocab) for _ in range(count)]


class Client:
    """One request at a time on one connection."""

    def __init__(self, address, seed, begin, prompt, answer, rounds, vocab):
        self.draw = random.Random(seed)
        self.begin, self.prompt, self.answer, self.left, self.vocab = begin, prompt, answer, rounds, vocab
        self.socket = socket.create_connection(address)
        self.first, self.between = [], []
        self.send()

    def send(self):
        tokens = self.begin + draw_tokens(self.draw, self.prompt - len(self.begin), self.vocab)
        body = json.dumps({"prompt": tokens, "max_tokens": self.answer, "temperature": 0, "ignore_eos": True, "stream": True,
                           "stream_options": {"include_usage": True}})
        self.data, self.seen, self.last = b"", 0, None
        self.left -= 1
        self.begun = time.perf_counter()
        self.socket.sendall((HEAD % len(body) + body).encode())

    def receive(self):
        """False: all answers have been received."""
        piece = self.socket.recv(1 << 16)
        now = time.perf_counter()
        self.data += piece
        events = self.data.count(EVENT)
        if not piece or not self.data.startswith(OK[:len(self.data)]) or b'"error"' in self.data[-len(piece) - 8:]:
            raise SystemExit("no answer: %r" % self.data[-500:])
        if events > self.seen and not self.last:
            self.first.append(now - self.begun)
        elif events > self.seen:
            self.between.append(now - self.last)
        if events > self.seen:
            self.seen, self.last = events, now
        if END not in self.data or not self.data.endswith(b"0\r\n\r\n"):
            return True
        drawn = int(self.data.rsplit(USAGE, 1)[1].split(b",")[0].split(b"}")[0])
        if drawn != self.answer:
            raise SystemExit("expected %d tokens, found %d" % (self.answer, drawn))
        if self.left:
            self.send()
            return True
        self.socket.close()
        return False


def run_clients(clients, stop=None):
    waiting = selectors.DefaultSelector()
    for client in clients:
        waiting.register(client.socket, selectors.EVENT_READ, client)
    left = len(clients)
    while left:
        for key, _ in waiting.select():
            if stop is not None and stop.is_set():
                key.data.left = 0
            if not key.data.receive():
                waiting.unregister(key.fileobj)
                left -= 1
    return [one for client in clients for one in client.first], [one for client in clients for one in client.between]


def work(results, clients, stop=None):
    """In a process of its own: always puts an answer, a text if it failed."""
    try:
        results.put(run_clients(clients(), stop))
    except (SystemExit, Exception) as error:  # pylint: disable=broad-except
        results.put(repr(error))


def worker(arguments, address, begin, seeds, results):
    work(results, lambda: [Client(address, seed, begin, arguments.prompt, arguments.answer, arguments.rounds, arguments.vocab)
                           for seed in seeds])


def long_worker(arguments, address, seed, stop, results):
    work(results, lambda: [Client(address, seed, [], arguments.long, 1, sys.maxsize, arguments.vocab)], stop)


def processor_seconds(process):
    with open("/proc/%d/stat" % process.pid, encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] * 1e3


def get(results):
    answer = results.get(timeout=WAITS_S)
    if isinstance(answer, str):
        raise SystemExit(answer)
    return answer


def load(arguments, process, address, at_once, seed, with_long):
    """One line of the table."""
    results, long_results, stop = multiprocessing.Queue(), multiprocessing.Queue(), multiprocessing.Event()
    count = min(arguments.processes, at_once)
    seeds = ["line %d, client %d" % (seed, i) for i in range(at_once)]
    begin = draw_tokens(random.Random("line %d" % seed), arguments.shared, arguments.vocab)
    workers = [multiprocessing.Process(target=worker, args=(arguments, address, begin, seeds[i::count], results)) for i in range(count)]
    if with_long:
        workers.append(multiprocessing.Process(target=long_worker, args=(arguments, address, "long prompts %d" % seed, stop, long_results)))
    used, begun = processor_seconds(process), time.perf_counter()
    for one in workers:
        one.start()
    first, between = [], []
    for _ in range(count):
        answer = get(results)
        first += answer[0]
        between += answer[1]
    seconds = time.perf_counter() - begun
    used = processor_seconds(process) - used
    stop.set()
    long_first = get(long_results)[0] if with_long else []
    for one in workers:
        one.join()
    requests = at_once * arguments.rounds
    return {"at_once": at_once, "long_prompts": len(long_first), "requests": requests, "seconds": seconds,
            "tokens_per_second": requests * arguments.answer / seconds,
            "first_ms": [percentile(first, 0.5), percentile(first, 0.99)],
            "between_ms": [percentile(between, 0.5), percentile(between, 0.99), max(between) * 1e3],
            "uncached_ms": first[0] * 1e3 if arguments.shared and at_once == 1 else None,
            "long_first_ms": percentile(long_first, 0.5) if long_first else None,
            "processor_us_per_token": used * 1e6 / (requests * arguments.answer)}


def rates(arguments):
    """Tokens a second of a prompt, and of decode steps by the number of sequences."""
    words = [arguments.engbench, arguments.engine, "-p", str(arguments.prompt), "-n", "32", "-b", arguments.at_once, "-c",
             str(arguments.prompt + arguments.answer // 2), "-r", "3", "--json"]
    results = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)["results"]
    prompts = [one["mean"] for one in results if one["test"].startswith("pp")]
    return prompts[0], {one["batch"]: one["mean"] for one in results if one["test"].startswith("tg")}


def show(arguments, line, prompt_rate, decode_rates):
    limit = ""
    if prompt_rate:
        best = line["requests"] * (arguments.prompt / prompt_rate + arguments.answer / decode_rates[line["at_once"]])
        line["of_limit"] = best / line["seconds"]
        limit = "%6.1f %% of the limit, %5.1f %% of decode steps," % (100 * line["of_limit"],
                                                                  100 * line["tokens_per_second"] / decode_rates[line["at_once"]])
    print("%4d at once%s: %8.1f tokens/s,%s first %7.1f, %7.1f ms, between %6.2f, %6.2f ms, longest %7.2f, processor %5.1f us a token%s"
          % (line["at_once"], " and long prompts" if line["long_prompts"] else "", line["tokens_per_second"], limit, *line["first_ms"],
             *line["between_ms"], line["processor_us_per_token"],
             ("; %d long prompts, first token %.1f ms" % (line["long_prompts"], line["long_first_ms"]) if line["long_prompts"] else "")
             + ("; first request %.1f ms" % line["uncached_ms"] if line["uncached_ms"] else "")),
          flush=True)


def main():
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser()
    parser.add_argument("engserve")
    parser.add_argument("engine")
    parser.add_argument("--engbench")
    parser.add_argument("--at-once", default="1,16,64,256")
    for name, default in (("prompt", 512), ("answer", 128), ("rounds", 8), ("shared", 0), ("vocab", 128000), ("long", 0),
                          ("processes", 8)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--json")
    arguments = parser.parse_args(words[:split])
    if arguments.answer < 2:
        parser.error("--answer: expected at least 2")
    if arguments.shared >= arguments.prompt:
        parser.error("--shared: expected fewer tokens than a prompt has, %d" % arguments.prompt)
    prompt_rate, decode_rates = rates(arguments) if arguments.engbench else (None, {})
    if prompt_rate:
        print("engbench: prompts %.1f tokens/s; decode %s" % (prompt_rate, ", ".join("%d: %.1f" % one for one in decode_rates.items())),
              flush=True)
    lines = []
    process, *address = engserve_process.start(arguments.engserve, arguments.engine, words[split + 1:])
    with process:
        try:
            for seed, at_once in enumerate(map(int, arguments.at_once.split(","))):
                for with_long in range(2 if arguments.long else 1):
                    lines.append(load(arguments, process, tuple(address), at_once, 2 * seed + with_long, with_long))
                    show(arguments, lines[-1], prompt_rate, decode_rates)
        finally:
            process.send_signal(signal.SIGTERM)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"prompt_rate": prompt_rate, "decode_rates": decode_rates, "lines": lines}, file)


if __name__ == "__main__":
    main()
