"""Which changes of the settings make a worker one of yesterday."""

from __future__ import annotations

import pytest

from configs import load
from configs.digest import worker_digest


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("model.id", "other"),
        ("engine.kv_tokens", 128),
        ("workers.threads", 3),
        ("store.url", "sqlite:/elsewhere"),
        ("sessions.idle_timeout_s", 1.0),
    ],
)
def test_what_a_worker_lives_by_changes_the_digest(setting: str, value: object) -> None:
    assert worker_digest(load(None, {setting: value})) != worker_digest(load(None))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("workers.count", 3),
        ("ingress.port", 9000),
        ("autoscale.enabled", True),
        ("sessions.weights", "pin"),
        ("sessions.pin_grace_s", 1.0),
        ("rollout.max_surge", 2),
    ],
)
def test_what_is_others_business_does_not(setting: str, value: object) -> None:
    assert worker_digest(load(None, {setting: value})) == worker_digest(load(None))
