"""What must be in the environment before Ray is imported, so that the processes it starts inherit it."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGES = ("actors", "cluster", "configs", "kernels")


def code_root() -> Path:
    """The folder our packages lie in."""
    return Path(__file__).resolve().parents[1]


def is_checkout() -> bool:
    """Whether we run from a folder that other processes would not find by themselves."""
    return not {"site-packages", "dist-packages"} & set(code_root().parts)


def prepare() -> None:
    """Settings of a cluster on this machine. What the user has set stays."""
    defaults = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",  # Without it Ray writes a token into the user's home, and its own tools miss it.
        "RAY_SERVE_LOG_TO_STDERR": "0",
        # A dead proxy is replaced after three looks; by default ten seconds apart, and nobody answers meanwhile.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        "RAY_worker_niceness": "0",  # Ray's 15 lets anything else on the machine starve the workers.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # What Ray will do by default; unset, it warns.
        "RAY_task_events_report_interval_ms": "0",  # Else Ray keeps its last 100,000 calls in memory: 200 MiB.
        "PYTHONUNBUFFERED": "1",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if is_checkout():
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        root = str(code_root())
        if root not in paths:
            os.environ["PYTHONPATH"] = os.pathsep.join([root, *paths])
