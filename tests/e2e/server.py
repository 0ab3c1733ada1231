# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of engserve: a running server, requests to it, its events."""

import collections
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time

from harness import ENGSERVE, SANITIZED, environment, scratch

# Everything takes longer under sanitizers.
PATIENCE = 10 if SANITIZED else 1
# What must happen at all, and not within a time, may take that long on a machine that is busy.
ENOUGH_SECONDS = 300

Reply = collections.namedtuple("Reply", "status headers body")


class Server:
    """engserve, ready, at a port of this machine (0: a free one). `env`: as in run(). `program`: another one, with words before
    its arguments. `log` is what it has written to stderr."""

    def __init__(self, *arguments, port=0, env=None, program=(ENGSERVE,)):
        self.folder = scratch()
        self.last_log = None  # of a server that has ended
        self.log_path = os.path.join(self.folder.name, "log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([*program, *arguments, "--port", str(port)], stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=log, env=environment(env))
        line = self.process.stdout.readline().decode()
        found = re.search(r"ready at http://127\.0\.0\.1:(\d+)$", line)
        if not found:
            self.stop()
            raise AssertionError("not ready: %r %s" % (line, self.log))
        self.port = int(found.group(1))

    @property
    def log(self):
        if self.last_log is not None:
            return self.last_log
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=ENOUGH_SECONDS)

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.port), ENOUGH_SECONDS)

    def request(self, method, path, body=None, headers=None, connection=None):
        """body: bytes, or an object for JSON."""
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        own = connection or self.connect()
        try:
            own.request(method, path, body, headers)
            response = own.getresponse()
            data = response.read()
        finally:
            if connection is None:
                own.close()
        return Reply(response.status, response.headers, data)

    def json(self, method, path, body=None, expect=200, **kwargs):
        reply = self.request(method, path, body, **kwargs)
        if reply.status != expect:
            raise AssertionError("%s %s: expected %d, found %d: %s" % (method, path, expect, reply.status, reply.body))
        return json.loads(reply.body)

    def events(self, path, body):
        """The objects of a stream, which must end as streams do."""
        reply = self.request("POST", path, {**body, "stream": True})
        assert reply.status == 200, reply
        assert reply.headers["Content-Type"].startswith("text/event-stream"), reply.headers
        return events(reply.body)

    def busy_slots(self):
        return [slot for slot in self.json("GET", "/slots") if slot["state"] != "free"]

    def wait_until(self, condition):
        end = time.monotonic() + ENOUGH_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise AssertionError("not within %d s: %s" % (ENOUGH_SECONDS, self.log[-2000:]))
            time.sleep(0.02)

    def metrics(self):
        """A function of a name and of labels: the sum of that metric over all lines with these labels, of one moment for all metrics."""
        lines = [re.match(r"eng:(\w+)\{(.*)\} (\S+)$", line) for line in self.request("GET", "/metrics").body.decode().splitlines()]

        def total(name, **labels):
            return sum(float(line.group(3)) for line in lines if line and line.group(1) == name and
                       all('%s="%s"' % label in line.group(2) for label in labels.items()))

        return total

    def metric(self, name, **labels):
        return self.metrics()(name, **labels)

    def stop(self, number=signal.SIGTERM):
        """The exit code after a signal; of a server that has ended already, without one."""
        if self.last_log is not None:
            return self.process.returncode
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(ENOUGH_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()
            self.last_log = self.log
            self.folder.cleanup()


def events(body):
    lines = body.decode().split("\n\n")
    assert lines[-1] == "" and lines[-2] == "data: [DONE]", lines[-3:]
    assert all(line.startswith("data: ") for line in lines[:-1]), lines
    return [json.loads(line[len("data: "):]) for line in lines[:-2]]


def choices(chunks):
    """{index: (text, finish_reason, role)} of the chunks of a stream."""
    found = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            text, finish, role = found.get(choice["index"], ("", None, None))
            delta = choice.get("delta", {})
            text += choice.get("text", "") + (delta.get("content") or "")
            found[choice["index"]] = (text, choice["finish_reason"] or finish, delta.get("role") or role)
    return found
