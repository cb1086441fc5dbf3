"""`remora status`: one line per worker of a server that runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from cluster.cli_rollout import line_of
from cluster.client_key import KEY_VARIABLE
from cluster.usage import UsageError

TIMEOUT_S = 10.0


def show_status(url: str, headers: Mapping[str, str] | None = None) -> int:
    """Raises UsageError when the server cannot be asked."""
    try:
        answer = httpx.get(f"{url.rstrip('/')}/v1/stats", headers=headers, timeout=TIMEOUT_S)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            raise UsageError(f"{url} asks for a key: put one into {KEY_VARIABLE}")
        answer.raise_for_status()
        stats = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise UsageError(f"no answer from {url}: {error}") from error
    if "workers" not in stats:
        raise UsageError(f"the key in {KEY_VARIABLE} has no `admin`, and does not see the workers")
    for line in lines(stats):
        print(line)
    return 0


def lines(stats: dict[str, Any]) -> list[str]:
    """The report."""
    pool = stats["pool"]
    shown = [f"{'WORKER':<18}{'STATE':<10}{'NODE':<16}{'RUNNING':>8}{'WAITING':>8}{'SESSIONS':>9}{'PAGES FREE':>16}"]
    for row in stats["workers"]:
        pages = row.get("pages", {})
        free = f"{pages['free']:,}/{pages['total']:,}" if pages else "-"
        shown.append(
            f"{row['id']:<18}{row['state']:<10}{row.get('node', '-'):<16.15}{row.get('running', '-'):>8}"
            f"{row.get('waiting', '-'):>8}{row.get('owned_sessions', '-'):>9}{free:>16}"
        )
    shown.append(f"{pool['desired_workers']} wanted, {pool['sessions']} sessions")
    rollout = pool.get("rollout", {"state": "done", "kept_workers": 0})
    if rollout["state"] != "done" or rollout["kept_workers"]:
        shown.append(f"rollout: {line_of(rollout)}")
    shown += [f"died: {death['worker']}: {death['cause']}" for death in pool["deaths"]]
    return shown
