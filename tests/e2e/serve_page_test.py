# SPDX-License-Identifier: Apache-2.0
"""The page at "/" of engserve: what it is sent with, and, in a headless Chromium, what a user does and sees."""

import base64
import functools
import hashlib
import http.server
import json
import os
import re
import signal
import sys
import threading
import unittest

from browser import Browser, program
from harness import build_engine, changed_model, scratch, write
from served import PROMPT, continuation, fables
from server import Server

FOLDER = scratch()
BYTE_255 = 189  # no UTF-8 text has this byte: a token that is never drawn


@functools.lru_cache(maxsize=None)
def endless():
    """An engine with a chat template whose answers end after 65,536 tokens, which takes minutes."""
    model = changed_model(FOLDER.name, generation={"eos_token_id": BYTE_255},
                          config={"eos_token_id": BYTE_255, "max_position_embeddings": 65536})
    write(os.path.join(model, "chat_template.jinja"), b"{% for message in messages %}{{ message.content }}\n{% endfor %}")
    return build_engine(model, "--max-context", "65536", "--max-batch", "4")


def keys():
    path = os.path.join(FOLDER.name, "keys")
    write(path, b"key-of-the-test\n")
    return path


def setUpModule():
    if program() is None:
        print("Chromium is not installed (apt-get install chromium): the page is not looked at", file=sys.stderr)


class Reply(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("fables=" + fables(), "--api-key-file", keys())
        cls.reply = cls.server.request("GET", "/")
        cls.text = cls.reply.body.decode()

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, (code, cls.server.log)

    def test_headers(self):
        self.assertEqual(self.reply.status, 200)
        for name, value in (("Content-Type", "text/html; charset=utf-8"), ("X-Content-Type-Options", "nosniff"),
                            ("Referrer-Policy", "no-referrer"), ("Cache-Control", "no-cache")):
            self.assertEqual(self.reply.headers[name], value)
        self.assertIsNone(self.reply.headers["Set-Cookie"])

    def test_policy(self):
        """Nothing but the style and the script of the page itself is allowed."""
        policy = dict(part.split(" ", 1) for part in self.reply.headers["Content-Security-Policy"].split("; "))
        for name in ("script", "style"):
            (content,) = re.findall("<%s>(.*?)</%s>" % (name, name), self.text, re.S)
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            self.assertEqual(policy.pop(name + "-src"), "'sha256-%s'" % digest)
        self.assertEqual(policy, {"default-src": "'none'", "img-src": "data:", "connect-src": "'self'", "base-uri": "'none'",
                                  "form-action": "'none'", "frame-ancestors": "'none'",
                                  "require-trusted-types-for": "'script'", "trusted-types": "'none'"})

    def test_one_file(self):
        """No other file is named, and no text can become HTML or code."""
        self.assertLess(len(self.reply.body), 48 << 10)
        named = re.findall(r"""(?:\bsrc|\bhref)\s*=\s*["']?([^"'>\s]*)|url\(([^)]*)|@import\s+(\S+)""", self.text)
        self.assertEqual([name for names in named for name in names if name and not name.startswith("data:")], [])
        forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|localStorage|cookie"
        self.assertEqual(re.findall(forbidden, self.text), [])

    def test_methods(self):
        head = self.server.request("HEAD", "/")
        self.assertEqual((head.status, head.body), (200, b""))
        for name in ("Content-Type", "Content-Length", "Content-Security-Policy"):
            self.assertEqual(head.headers[name], self.reply.headers[name])
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            with self.subTest(method):
                reply = self.server.request(method, "/", b"" if method == "POST" else None)
                self.assertEqual((reply.status, reply.headers["Allow"]), (405, "GET, HEAD"))
        self.assertEqual(self.server.request("GET", "/?x=1").body, self.reply.body)
        self.assertEqual(self.server.request("GET", "/page.js").status, 401)


class Scripted:
    """A server with engserve's page whose answers are given: lists of texts (or deltas), each sent as an event of its own, and at
    the end an object for an event, or None for a connection that breaks off when the test sets `breaks`."""

    def __init__(self, page, answers):
        parent, self.answers, self.breaks = self, list(answers), threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def reply(self, body, headers):
                self.send_response(200)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                if self.path == "/":
                    self.reply(page.body, {name: page.headers[name] for name in ("Content-Type", "Content-Security-Policy")})
                elif self.path == "/health":
                    self.close_connection = True  # without a reply
                else:
                    model = {"id": "<b>scripted</b>", "object": "model", "max_model_len": 4096, "has_chat": True}
                    self.reply(json.dumps({"data": [model]}).encode(), {"Content-Type": "application/json"})

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                *texts, last = parent.answers.pop(0)
                self.close_connection = True
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for text in texts:
                    delta = text if isinstance(text, dict) else {"content": text}
                    self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
                if last is None:
                    parent.breaks.wait(600)
                else:
                    self.event(last)
                    self.piece(b"data: [DONE]\n\n")
                    self.piece(b"")

            def event(self, value):
                data = b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"
                for at in range(0, len(data), 7):  # also within characters
                    self.piece(data[at:at + 7])

            def piece(self, data):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        self.port = self.server.server_port

    def stop(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
TEXT = "[...document.querySelectorAll('.answer > .text')].at(-1).textContent"
STATE = "document.querySelector('.writing') ? 'writing' : 'idle'"
FOCUS = "document.activeElement.id || document.activeElement.textContent.trim()"

# The smallest contrast of a visible text to the colour that it lies on, as WCAG 2 defines it, and that text.
CONTRAST = """(() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => color.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = parse(getComputedStyle(node).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
  };
  let least = [99, ""], count = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), parent = walker.currentNode.parentElement;
    if (!text || !parent.checkVisibility() || ["SCRIPT", "STYLE"].includes(parent.tagName)) continue;
    const [a, b] = [light(parse(getComputedStyle(parent).color)), light(ground(parent))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    count++;
    if (contrast < least[0]) least = [contrast, text];
  }
  return [...least, count];
})()"""


@unittest.skipIf(program() is None, "needs Chromium: apt-get install chromium")
class InBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def serve(self, *arguments, port=0):
        server = Server(*arguments, "--threads", "1", port=port)  # the browser needs a processor, too
        self.addCleanup(server.stop, signal.SIGKILL)
        return server

    def scripted(self, *answers):
        page = self.serve(fables())
        server = Scripted(page.request("GET", "/"), answers)
        page.stop()
        self.addCleanup(server.stop)
        return server

    def open(self, server):
        tab = self.browser.open("http://127.0.0.1:%d/" % server.port)
        self.addCleanup(tab.close)
        tab.wait("document.getElementById('model').options.length || document.querySelector('dialog[open]')")
        return tab

    def say(self, tab, text):
        tab.type(text)
        tab.key("Enter")

    def wait_for_text(self, tab, length):
        tab.wait("document.querySelector('.writing') && %s.length > %d" % (TEXT, length))

    def test_conversation(self):
        """By keyboard alone: a question, an answer that arrives in parts, its end, and a server that dies and comes back."""
        server = self.serve("endless=" + endless())
        tab = self.open(server)
        self.assertEqual(tab.evaluate(FOCUS), "input")
        self.assertEqual(tab.evaluate("document.getElementById('model-name').textContent"), "endless")
        tab.type("Tell me")
        tab.key("Enter", shift=True)
        self.say(tab, "a <b>story</b>")
        self.assertEqual(tab.evaluate("document.querySelector('.question .text').textContent"), "Tell me\na <b>story</b>")

        lengths = [0]
        for _ in range(3):
            self.wait_for_text(tab, lengths[-1])
            lengths.append(len(tab.evaluate(TEXT)))
        tab.wait("/\\d tokens, [\\d.]+ tokens\\/s/.test(document.getElementById('figures').textContent)")
        tab.wait("document.querySelectorAll('#spoken p').length > 1")
        self.assertEqual(len(server.busy_slots()), 1)
        tab.key("Escape")
        tab.wait("%s === 'idle'" % STATE)
        server.wait_until(lambda: not server.busy_slots())
        self.assertRegex(tab.evaluate("document.querySelector('.facts').textContent"), r"tokens[\d.]+ tokens/sfirst after [\d.]+ s.*stopped")
        stopped = tab.evaluate(TEXT)
        spoken = tab.evaluate("[...document.querySelectorAll('#spoken p')].map((p) => p.textContent).join(' ')")
        self.assertEqual("".join(spoken.split())[:100], "".join(stopped.split())[:100])

        self.say(tab, "And then?")
        self.wait_for_text(tab, 20)
        server.stop(signal.SIGKILL)
        tab.wait("document.querySelector('.notice:not([hidden])')")
        self.assertIn("connection to the server was lost", tab.evaluate("document.querySelector('.notice:not([hidden])').textContent"))
        tab.wait("document.getElementById('connection').textContent.includes('The conversation is kept')")
        kept = tab.evaluate("[...document.querySelectorAll('.turn > div > .text')].map((one) => one.textContent)")
        self.assertEqual([kept[0], kept[1], kept[2]], ["Tell me\na <b>story</b>", stopped, "And then?"])
        self.assertGreater(len(kept[3]), 20)
        self.assertEqual(tab.evaluate(FOCUS), "input")

        server = self.serve("endless=" + endless(), port=server.port)
        tab.wait("!document.getElementById('connection').textContent")
        tab.key("Tab", shift=True)
        self.assertEqual(tab.evaluate(FOCUS), "Try again")
        tab.key("Enter")
        self.wait_for_text(tab, 20)
        self.assertEqual(tab.evaluate("document.querySelectorAll('.turn').length"), 2)
        self.assertEqual(tab.evaluate(FOCUS), "input")
        tab.key("Tab")
        self.assertEqual(tab.evaluate(FOCUS), "stop")
        tab.key("Space")
        tab.wait("%s === 'idle'" % STATE)
        self.assertEqual(tab.evaluate(FOCUS), "input")
        last = tab.evaluate(TEXT)
        self.assertGreater(len(last), 20)

        tab.command("Page.reload")
        tab.wait("document.readyState === 'complete' && document.querySelectorAll('.turn').length === 2 && %s" % TEXT)
        self.assertEqual(tab.evaluate(TEXT), last)
        self.assertEqual(tab.complaints(), [])
        server.wait_until(lambda: not server.busy_slots())
        self.assertEqual(server.stop(), 0)

    def test_models_and_settings(self):
        """An engine without a chat template continues texts; its answer is engrun's."""
        server = self.serve("endless=" + endless(), "fables=" + fables())
        tab = self.open(server)
        tab.evaluate("document.getElementById('model').focus()")
        tab.type("f")
        tab.wait("document.getElementById('empty-text').textContent.includes('no chat template')")
        for _ in range(2):
            tab.key("Tab")
        self.assertEqual(tab.evaluate("document.activeElement.id"), "scroller")
        tab.key("Tab", shift=True)
        tab.key("Enter")
        tab.wait("document.getElementById('settings').open")
        tab.key("Tab")
        tab.type("0")
        tab.key("Enter")
        tab.wait("!document.getElementById('settings').open")
        tab.evaluate("document.getElementById('input').focus()")
        self.say(tab, PROMPT)
        tab.wait("document.querySelector('.facts:not([hidden]) span')")
        self.assertEqual(tab.evaluate(TEXT), PROMPT + continuation(PROMPT, 0))
        self.assertIn("of 1,024 tokens of context", tab.evaluate("document.querySelector('.facts').textContent"))

        tab.evaluate("document.getElementById('open-settings').click(); document.getElementById('limit').focus()")
        tab.type("5")
        tab.key("Enter")
        tab.evaluate("document.getElementById('input').focus()")
        self.say(tab, PROMPT)
        tab.wait("document.querySelectorAll('.facts:not([hidden])').length === 2")
        self.assertEqual(tab.evaluate(TEXT), PROMPT + continuation(PROMPT, 5))
        self.assertIn("cut off at the limit", tab.evaluate("[...document.querySelectorAll('.facts')].at(-1).textContent"))

        tab.command("Input.insertText", text="wolf " * 3000)
        tab.key("Enter")
        tab.wait("document.querySelector('.notice:not([hidden])')")
        self.assertIn("the context of this model is 1024 tokens", tab.evaluate("document.querySelector('.notice:not([hidden])').textContent"))
        tab.evaluate("document.getElementById('new').click()")
        self.assertEqual(tab.evaluate("document.querySelectorAll('.turn').length"), 0)
        tab.evaluate("document.getElementById('undo').click()")
        self.assertEqual(tab.evaluate("document.querySelectorAll('.turn').length"), 3)
        self.assertEqual(tab.complaints(), [])
        self.assertEqual(server.stop(), 0)

    def test_key(self):
        server = self.serve("endless=" + endless(), "--api-key-file", keys())
        tab = self.open(server)
        self.assertEqual(tab.evaluate(FOCUS), "key")
        self.say(tab, "wrong-key-123")
        tab.wait("document.getElementById('key-error').textContent.includes('does not accept')")
        self.assertEqual(tab.evaluate(FOCUS), "key")
        self.say(tab, "key-of-the-test")
        tab.wait("!document.querySelector('dialog[open]')")
        tab.wait("document.getElementById('model-name').textContent === 'endless'")
        self.say(tab, "Hello")
        self.wait_for_text(tab, 5)
        tab.key("Escape")
        tab.wait("%s === 'idle'" % STATE)
        kept = tab.evaluate("[Object.entries(sessionStorage).filter(([, value]) => value.includes('key-of')), localStorage.length, document.cookie]")
        self.assertEqual(kept, [[["eng.key", '"key-of-the-test"']], 0, ""])
        other = self.open(server)
        self.assertTrue(other.evaluate("document.getElementById('key-dialog').open"))
        self.assertEqual(tab.complaints() + other.complaints(), [])
        self.assertNotIn("key-of", server.log)
        self.assertEqual(server.stop(), 0)

    def test_hostile_answers(self):
        """Texts are shown as they are, whatever they hold; answers that break off can be asked for again."""
        html = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
        texts = [{"reasoning_content": html}, "Look: ", html, "\n\n**bold** and `co", "de` \u20ac\U0001f98a \u202e\n\n```html\n", html,
                 "\n", "```\n\n", "x" + "`" * 500, "**" * 500]
        server = self.scripted([*texts, END], ["Half", None], ["Half", {"error": {"message": "<i>no memory</i>", "code": None}}], [*texts, END])
        tab = self.open(server)
        self.say(tab, html)
        tab.wait("document.querySelector('.facts:not([hidden]) button')")
        shown = tab.evaluate("[...document.querySelectorAll('.block')].map((one) => one.firstChild.textContent)")
        self.assertEqual(tab.evaluate("document.querySelector('.block').textContent"), "Look: " + html)
        self.assertEqual(shown[2], html)
        self.assertEqual(tab.evaluate("[...document.querySelectorAll('.block')].at(1).textContent"), "bold and code \u20ac\U0001f98a \u202e")
        self.assertEqual(tab.evaluate("[...document.querySelectorAll('.answer code')].map((one) => one.textContent)"), ["code", html])
        self.assertEqual(tab.evaluate("document.querySelector('.question .text').textContent"), html)
        self.assertEqual(tab.evaluate("document.querySelector('.thinking:not([hidden]) .text').textContent"), html)
        for problem in ("was lost before", "<i>no memory</i>"):
            tab.evaluate("document.querySelector('.again').click()")
            tab.wait("%s === 'Half'" % TEXT)
            server.breaks.set()
            tab.wait("document.querySelector('.notice:not([hidden])')?.textContent.includes('%s')" % problem)
            self.assertEqual(tab.evaluate(TEXT), "Half")
        tab.evaluate("document.querySelector('.again').click()")
        tab.wait("document.querySelectorAll('.block').length === 4 && !document.querySelector('.writing')")
        self.assertEqual(tab.evaluate("document.querySelectorAll('#turns img, #turns script, #turns i, #spoken img').length"), 0)
        self.assertEqual(tab.evaluate("document.title"), "<b>scripted</b> - eng")
        self.assertEqual(tab.complaints(), [])
        # The policy holds: what would make HTML of a text, or run one, fails.
        for expression in ("document.body.innerHTML = 'x'", "new Function('1')()",
                           "document.body.append(Object.assign(document.createElement('script'), {text: '1'}))"):
            with self.subTest(expression):
                self.assertTrue(tab.evaluate("(() => { try { %s; return false } catch (error) { return error instanceof Error } })()" % expression))

    def test_silence(self):
        """A connection that dies without a sign is noticed."""
        server = self.scripted(["Half", None])
        tab = self.open(server)
        self.say(tab, "Hello")
        tab.wait("document.querySelector('.answer')?.textContent.includes('Half')")
        tab.evaluate("performance.now = ((now) => () => now() + 20000)(performance.now.bind(performance))")
        tab.wait("document.querySelector('.notice:not([hidden])')?.textContent.includes('was lost before')")
        self.assertEqual(tab.evaluate(TEXT), "Half")
        server.breaks.set()
        self.assertEqual(tab.complaints(), [])

    def test_for_all(self):
        """Names of controls, contrast in both schemes, narrow windows."""
        server = self.scripted(["# Head\n\n`code` **strong**\n\n```\n" + "long line " * 50 + "\n```", END], ["x" * 3000, None])
        tab = self.open(server)
        self.say(tab, "First")
        tab.wait("document.querySelector('.facts:not([hidden]) button')")
        tab.command("Input.insertText", text="Second " * 40)
        tab.key("Enter")
        tab.wait("%s.length === 3000" % TEXT)
        server.breaks.set()
        tab.wait("document.querySelector('.notice:not([hidden])')")
        controls = [(role, name) for role, name, is_focusable in tab.accessible() if is_focusable]
        self.assertEqual([role for role, name in controls if not name and role not in ("generic", "group")], [])
        for expected in (("textbox", "Message"), ("button", "Send"), ("button", "Settings"), ("button", "New chat"), ("button", "Try again"),
                         ("main", "Conversation")):
            self.assertIn(expected, controls)
        for scheme in ("light", "dark"):
            for dialog in ("", "settings", "key-dialog"):
                with self.subTest(scheme=scheme, dialog=dialog):
                    tab.scheme(scheme)
                    tab.evaluate("%r && document.getElementById(%r).showModal()" % (dialog, dialog))
                    contrast, text, count = tab.evaluate(CONTRAST)
                    self.assertGreater(contrast, 4.5, text)
                    self.assertGreater(count, 15)
                    tab.evaluate("%r && document.getElementById(%r).close()" % (dialog, dialog))
        for width, height in ((320, 480), (320, 256), (1920, 1080)):
            with self.subTest(width=width):
                tab.size(width, height)
                self.assertEqual(tab.evaluate("[document.scrollingElement, scroller].map((one) => one.scrollWidth > one.clientWidth)"),
                                 [False, False])
                boxes = tab.evaluate("[...document.querySelectorAll('header button, #send')].filter((one) => one.checkVisibility())"
                                     ".map((one) => one.getBoundingClientRect()).map((box) => [box.left, box.right, box.bottom])")
                self.assertEqual(len(boxes), 3)
                for left, right, bottom in boxes:
                    self.assertTrue(left >= 0 and right <= width and bottom <= height, (left, right, bottom))
        # The notice that goes away while the server answers again scrolls to the end once more.
        tab.wait("(scroller.scrollTop = 0, document.getElementById('latest').checkVisibility())")
        tab.evaluate("document.getElementById('latest').click()")
        tab.wait("!document.getElementById('latest').checkVisibility() && scroller.scrollTop > 100")
        self.assertEqual(tab.complaints(), [])


if __name__ == "__main__":
    unittest.main()
