# SPDX-License-Identifier: Apache-2.0
"""What a server tells about its work, for the programs that try its clients."""

import asyncio
import json
import re
import time
import urllib.request

SECONDS = 300  # for what must happen, on a machine that is busy


class Watch:
    def __init__(self, url, key):
        self.url, self.headers = url, {"Authorization": "Bearer " + key}

    def _get(self, path):
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=self.headers), timeout=SECONDS) as reply:
            return reply.read().decode()

    def busy(self):
        """Slots that compute a request."""
        return [slot for slot in json.loads(self._get("/slots")) if slot["state"] != "free"]

    def aborted(self):
        """Choices that have ended since their client left."""
        counts = re.findall(r'^eng:request_success_total\{finished_reason="abort",.*\} (\d+)$', self._get("/metrics"), re.MULTILINE)
        return sum(map(int, counts))

    def wait_until(self, condition):
        end = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > end:
                raise AssertionError("not within %d s" % SECONDS)
            time.sleep(0.02)

    def is_given_up(self, leave):
        """Whether, after `leave` has begun a request and left, the server gives it up and has free slots; an answer that ended before is
        no proof, so there are several attempts."""
        for _ in range(20):
            before = self.aborted()
            leave()
            self.wait_until(lambda: not self.busy())
            if self.aborted() > before:
                return True
        return False

    async def cancel(self, request):
        """Cancels an awaitable request while the server computes it. Whether it was cancelled; False: it had ended."""
        task = asyncio.ensure_future(request)
        while not await asyncio.to_thread(self.busy) and not task.done():
            await asyncio.sleep(0.02)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False
