"""The server that the clients' scripts talk to: one in this process, or whatever `REMORA_CLIENTS_URL` names.

That one has to be started with what `SETTINGS` says; `tests/e2e/test_clients_over_serve.py` does it:

    REMORA_CLIENTS_URL=http://127.0.0.1:8000 python -m pytest tests/e2e/clients

It may be asked again and again: sessions and requests are named anew each time.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from actors.runner.toy import toy_continuation
from configs import EngineConfig
from tests.e2e.server import wait_until
from tests.ingress.keyed import OPS, keys
from tests.ingress.web import serving

NAMED = "REMORA_CLIENTS_URL"
WORKERS, STEP_S, GRAMMAR_S = 2, 0.001, 60.0
"""Beside other tests, a process that compiles may get little of the machine."""
SETTINGS: dict[str, Any] = {
    "workers": {"runner": "toy", "count": WORKERS, "toy_step_s": STEP_S},
    "engine": {"grammar_timeout_s": GRAMMAR_S},
    "auth": {"keys": list(keys().keys)},
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is that the keys of `tests.ingress.keyed` open."""

    url: str

    def name(self, stem: str) -> str:
        """For a session or a request: one that this server has not heard."""
        return f"{stem}-{uuid.uuid4().hex}"

    def wait_until_quiet(self) -> None:
        """Until no worker holds a page for a request: whatever ran has ended."""
        with httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {OPS}"}, timeout=60) as http:
            wait_until(lambda: self._pages_of_requests(http) == 0, within_s=60)

    def _pages_of_requests(self, http: httpx.Client) -> int:
        rows = http.get("/v1/stats").raise_for_status().json()["workers"]
        assert len(rows) == WORKERS
        return sum(row["pages"]["request_owned"] if "pages" in row else 1 for row in rows)


@contextmanager
def open_place(folder: Path) -> Iterator[Place]:
    named = os.environ.get(NAMED, "")
    if named:
        yield Place(named.rstrip("/"))
        return
    engine = EngineConfig(check_invariants=True, grammar_timeout_s=GRAMMAR_S)
    with serving(folder, workers=WORKERS, step_s=STEP_S, auth=keys(), engine=engine) as made:
        yield Place(made.url)


def expected(prompt: str | list[int], count: int) -> str:
    """What the toy model says to this prompt."""
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    return bytes(toy_continuation(ids, count)).decode()
