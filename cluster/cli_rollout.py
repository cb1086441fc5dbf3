"""`remora rollout`: replace every worker of a server that runs by a new one, and say how it goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx

from cluster.client_key import KEY_VARIABLE
from cluster.usage import UsageError

TIMEOUT_S = 10.0
LOOK_S = 0.5
PATIENCE_S = 60.0
"""For how long the server may be away before we give up watching; the rollout goes on without us."""


def roll_out(url: str, *, wait: bool, headers: Mapping[str, str] | None = None) -> int:
    """Exit code 0 when it is done, or, without `wait`, begun; 1 when it stopped. Raises UsageError when the server
    cannot be asked."""
    url = url.rstrip("/")
    try:
        begun = _checked(httpx.post(f"{url}/v1/rollouts", headers=headers, timeout=TIMEOUT_S), url).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise UsageError(f"no answer from {url}: {str(error).splitlines()[0]}") from error
    print(f"rollout begun: {begun['stale_workers']} workers to replace", flush=True)
    return _watch(url, int(begun["restart"]), headers) if wait else 0


def _watch(url: str, restart: int, headers: Mapping[str, str] | None) -> int:
    shown, heard_at = "", time.monotonic()
    while True:
        pool = _pool(url, headers)
        if pool is not None:
            heard_at = time.monotonic()
            line = line_of(pool["rollout"])
            if line != shown:
                print(line, flush=True)
                shown = line
            # A pool that was replaced meanwhile may not have heard from its workers yet.
            known = int(pool["rollout"]["restart"]) >= restart
            if known and pool["rollout"]["state"] in ("done", "stopped"):
                return int(pool["rollout"]["state"] == "stopped")
        elif time.monotonic() - heard_at > PATIENCE_S:
            raise UsageError(f"no answer from {url} for {PATIENCE_S:.0f} s; the rollout goes on without being watched")
        time.sleep(LOOK_S)


def line_of(rollout: Mapping[str, Any]) -> str:
    if rollout["state"] == "stopped":
        return f"stopped: {rollout['why']}; {rollout['stale_workers']} workers of before serve on"
    kept = f"; {rollout['kept_workers']} kept for pinned sessions" if rollout["kept_workers"] else ""
    if rollout["state"] == "done":
        return f"done: every worker is new{kept}"
    return f"{rollout['stale_workers']} workers to replace{kept}"


def _pool(url: str, headers: Mapping[str, str] | None) -> Mapping[str, Any] | None:
    """None while the server does not answer, or its pool does not."""
    try:
        answer = httpx.get(f"{url}/v1/stats", headers=headers, timeout=TIMEOUT_S)
        pool: Mapping[str, Any] = _checked(answer, url).json()["pool"]
    except httpx.HTTPError:
        return None
    return pool


def _checked(answer: httpx.Response, url: str) -> httpx.Response:
    """Raises UsageError for a key that is missing or may not do this, HTTPError for other errors."""
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise UsageError(f"{url} asks for a key: put one into {KEY_VARIABLE}")
    if answer.status_code == httpx.codes.FORBIDDEN:
        raise UsageError(f"a rollout takes a key with `admin`; the one in {KEY_VARIABLE} has none")
    return answer.raise_for_status()
