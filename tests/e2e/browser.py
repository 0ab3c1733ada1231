# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, driven through the DevTools protocol over a pipe: its tabs, and what a user does in them.

https://chromedevtools.github.io/devtools-protocol describes the commands."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

from harness import scratch

FLAGS = ["--headless", "--remote-debugging-pipe", "--disable-gpu", "--disable-software-rasterizer", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-features=Translate,OptimizationHints,MediaRouter", "--window-size=640,480", "--hide-scrollbars", "--no-proxy-server",
         # It opens pages of these tests alone, and its own sandbox does not work inside others or as root.
         "--no-sandbox"]
# name: (key code, text that the key enters)
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "ArrowDown": (40, ""), "Space": (32, " ")}


def program():
    """Path of Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-headless-shell")


class Browser:
    def __init__(self):
        self.folder = scratch()
        self.events, self.rest, self.count = [], b"", 0
        child_in, self.to = os.pipe()
        self.out, child_out = os.pipe()
        # Chromium reads commands from descriptor 3 and writes to 4.
        script = 'exec "$@" 3<&%d 4>&%d' % (child_in, child_out)
        self.log_path = os.path.join(self.folder.name, "log")
        environment = {**os.environ, "HOME": self.folder.name, "XDG_CONFIG_HOME": self.folder.name, "XDG_CACHE_HOME": self.folder.name}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(["bash", "-c", script, "bash", program(), *FLAGS, "--user-data-dir=" + self.folder.name],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(child_in, child_out),
                                            env=environment)
        os.close(child_in)
        os.close(child_out)

    def command(self, method, session=None, seconds=200, **params):
        """The result of a command of the protocol."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        end = time.monotonic() + seconds
        while True:
            reply = self._next(end, method)
            if reply.get("id") == self.count:
                break
            self.events.append(reply)
        if "error" in reply:
            raise AssertionError("%s: %s" % (method, reply["error"]))
        return reply["result"]

    def _next(self, end, method):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.out], [], [], max(0, end - time.monotonic()))
            more = os.read(self.out, 1 << 20) if ready else b""
            if not more:
                with open(self.log_path, encoding="utf-8", errors="replace") as log:
                    raise AssertionError("Chromium %s %s: %s" % ("ended during" if ready else "does not answer", method, log.read()[-2000:]))
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def open(self, url):
        """A new tab with a page."""
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        tab = Tab(self, target, self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        tab.go(url)
        return tab

    def close(self):
        os.close(self.to)  # which ends it
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        self.folder.cleanup()


class Tab:
    def __init__(self, browser, target, session):
        self.browser, self.target, self.session = browser, target, session
        for domain in ("Page", "Runtime", "Log", "Accessibility", "DOM"):
            self.command(domain + ".enable")
        # Pages in the background get no frames otherwise.
        self.command("Emulation.setFocusEmulationEnabled", enabled=True)

    def command(self, method, **params):
        return self.browser.command(method, self.session, **params)

    def go(self, url):
        self.command("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href.startsWith('http')")

    def close(self):
        self.browser.command("Target.closeTarget", targetId=self.target)

    def evaluate(self, expression):
        reply = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True,
                             allowUnsafeEvalBlockedByCSP=False)
        if "exceptionDetails" in reply:
            raise AssertionError("%s: %s" % (expression, reply["exceptionDetails"].get("exception", {}).get("description")))
        return reply["result"].get("value")

    def wait(self, expression, seconds=200):
        """Evaluates an expression again and again until it is true."""
        end = time.monotonic() + seconds
        while True:
            if self.evaluate("Boolean(%s)" % expression):
                return
            if time.monotonic() > end:
                raise AssertionError("not within %g s: %s\n%s" % (seconds, expression, self.evaluate("document.body.innerText")))
            time.sleep(0.02)

    def key(self, name, shift=False):
        code, text = KEYS[name]
        key = " " if name == "Space" else name
        params = {"key": key, "code": name, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        self.command("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **params)
        self.command("Input.dispatchKeyEvent", type="keyUp", **params)

    def type(self, text):
        for character in text:
            self.command("Input.dispatchKeyEvent", type="keyDown", key=character, text=character)
            self.command("Input.dispatchKeyEvent", type="keyUp", key=character)

    def size(self, width, height, is_mobile=False):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_mobile)

    def scheme(self, name):
        """light or dark"""
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"]))

    def accessible(self):
        """[(role, name, whether it takes the focus)] of what assistive technology sees."""
        nodes = self.command("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", ""),
                 any(one["name"] == "focusable" and one["value"]["value"] for one in node.get("properties", [])))
                for node in nodes if not node["ignored"]]

    def complaints(self):
        """Errors of the page itself; a server that is away, or refuses, is none."""
        self.evaluate("0")  # what was said before has arrived then
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            entry = event["params"].get("entry", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"])
            elif event["method"] == "Log.entryAdded" and entry["level"] == "error" and entry["source"] != "network":
                found.append(entry)
        return found
