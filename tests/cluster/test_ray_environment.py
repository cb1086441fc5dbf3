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


def test_ray_starts_no_process_that_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only while our own cluster starts; whoever counts usage keeps the process that does."""
    from ray._private import node, parameter, utils

    from cluster.ray_start import few_processes

    before = (parameter.RayParams, utils.get_dashboard_dependency_error, node.Node.start_api_server)
    for counted in ("0", "1"):
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", counted)
        with few_processes():
            params = parameter.RayParams(include_dashboard=False)
            assert (params.include_log_monitor, params.no_monitor) == (False, True)
            assert utils.get_dashboard_dependency_error() is not None
            assert (node.Node.start_api_server is before[2]) == (counted == "1")
        assert (parameter.RayParams, utils.get_dashboard_dependency_error, node.Node.start_api_server) == before
    assert isinstance(parameter.RayParams(), before[0])
