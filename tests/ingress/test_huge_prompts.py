"""Prompts of megabytes, one and many at once, beside streams that run."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ingress.asgi import Call, run
from tests.ingress.local import Cluster, cluster
from tests.ingress.test_with_workers import reply

LARGE, HUGE = 5_000_000, 27_000_000
STREAMS, TOKENS, STEP_S = 8, 40, 0.02
AT_ONCE = 20
MOST_CPU_S = 0.1


class Watch:
    """Asks for /health all the time. `longest_s`: of the processor, how long the event loop was busy with other things
    before one was answered: what the machine does meanwhile is not the server's doing."""

    def __init__(self, at: Cluster) -> None:
        self._at = at
        self.longest_s = 0.0
        self.answers = 0
        self._over = False
        self._task = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        while not self._over:
            began = time.thread_time()
            assert (await self._at.client.get("/health")).status == 200
            await asyncio.sleep(0)
            self.longest_s = max(self.longest_s, time.thread_time() - began)
            self.answers += 1

    async def stop(self) -> None:
        self._over = True
        await self._task


def body(size: int) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x" * size}]}).encode()


def refusal(call: Call) -> tuple[int, Any, Any]:
    error = call.json()["error"]
    return call.status, error["code"], error["reason"]


@pytest.mark.parametrize(
    ("size", "refused"),
    [(LARGE, (400, "context_length_exceeded", "too_large")), (HUGE, (413, "request_too_large", "invalid"))],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize"])
def test_the_others_notice_nothing(tmp_path: Path, size: int, refused: tuple[int, str, str], path: str) -> None:
    """K5, I1, field case N66: each is refused as what it is, nothing stands still for longer than it takes to read one
    of them, and the streams go on to their ends."""
    data = body(size)
    if path == "/v1/responses":
        data = data.replace(b'"messages"', b'"input"')
    if path == "/v1/messages":
        data = data.replace(b"{", b'{"max_tokens": 4, ', 1)

    async def check() -> None:
        async with cluster(tmp_path, step_s=STEP_S) as at:
            streams = [at.client.chat(f"q{n}", stream=True, max_tokens=TOKENS, temperature=0) for n in range(STREAMS)]
            await asyncio.gather(*(stream.until('"content":"') for stream in streams))
            held = sys.getrefcount(data)
            assert refusal(await at.client.start("POST", path, data).whole()) == refused
            watch = Watch(at)
            calls = [at.client.start("POST", path, data) for _ in range(AT_ONCE)]
            await asyncio.gather(*(call.whole() for call in calls))
            assert [refusal(call) for call in calls] == [refused] * AT_ONCE
            await watch.stop()
            assert watch.longest_s < MOST_CPU_S
            assert sys.getrefcount(data) <= held + 2, "what was read is kept; a thread may hold the last"
            for number, stream in enumerate(streams):
                assert (await stream.whole()).text == reply(f"user: q{number}\nassistant: ", TOKENS)

    run(check(), 200.0)
