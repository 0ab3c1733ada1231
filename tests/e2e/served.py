# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of engserve's answers: one server for all tests of a class, and what engrun says instead."""

import unittest

from harness import ENGRUN, FABLES, build_engine, chat_engine, output
from server import Server

PROMPT = "Once upon a time"
GREEDY = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0}
HELLO = [{"role": "user", "content": "Hello"}]


def fables():
    return build_engine(FABLES, "--max-batch", "4")


def continuation(prompt, count, *flags):
    """What engrun prints, less the line feed at its end."""
    return output([ENGRUN, fables(), "-p", prompt, "-n", str(count), "--quiet", *flags])[:-1]


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("fables=" + fables(), "chat=" + chat_engine())

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.log)

    def complete(self, **body):
        return self.server.json("POST", "/v1/completions", {"model": "fables", **body})

    def chat(self, **body):
        return self.server.json("POST", "/v1/chat/completions", {"model": "chat", "messages": HELLO, **body})

    def refused(self, path, body, status, param, *words):
        reply = self.server.json("POST", path, body, expect=status)
        self.assertEqual(set(reply), {"error"})
        error = reply["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["param"], param, error)
        for word in words:
            self.assertIn(word, error["message"])
        return error
