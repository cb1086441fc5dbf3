"""What Ray finds in the environment when we start it."""

from __future__ import annotations

import os

import pytest

from cluster import environment


def test_ray_does_not_keep_every_call_and_the_users_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """field case N14: the head's memory does not grow with the requests that were served."""
    monkeypatch.setattr(os, "environ", {"RAY_worker_niceness": "7", "PYTHONPATH": "/somewhere"})
    environment.prepare()
    found = dict(os.environ)
    assert found["RAY_task_events_report_interval_ms"] == "0"
    assert found["RAY_worker_niceness"] == "7"
    assert found["PYTHONPATH"].endswith("/somewhere")
