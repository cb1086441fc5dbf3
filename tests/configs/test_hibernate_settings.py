"""Where hibernated sessions may go: what a file may say of it, and what comes of that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.runner.toy import ToyRunner
from actors.worker.shell import engine_settings
from configs import ConfigError, HibernateConfig, RemoraConfig, load


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("host_bytes", -1, r"^hibernate\.host_bytes: -1 is too small; it must be at least 0"),
        ("disk_bytes", -1, r"^hibernate\.disk_bytes: -1 is too small; it must be at least 0"),
        ("host_bytes", 0.5, r"^hibernate\.host_bytes: expected int"),
        ("below", -0.01, r"^hibernate\.below: -0\.01; it must be at least 0 and below 1"),
        ("below", 1, r"^hibernate\.below: 1\.0; it must be at least 0 and below 1"),
        ("below", float("nan"), r"^hibernate\.below: nan"),
        ("directory", 5, r"^hibernate\.directory: expected str"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_path(name: str, value: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(None, {f"hibernate.{name}": value})


def test_what_can_be_used_is_taken() -> None:
    config = load(None, {"hibernate.host_bytes": 0, "hibernate.disk_bytes": 0, "hibernate.below": 0})
    assert config.hibernate == HibernateConfig(host_bytes=0, disk_bytes=0, below=0.0)


@pytest.mark.parametrize(
    ("host_bytes", "disk_bytes", "below"),
    [(2**20, 0, 0.25), (0, 2**20, 0.25), (128, 0, 0.25), (0, 0, 0.0), (127, 127, 0.0)],
)
def test_sessions_hibernate_where_there_is_room_for_a_page(host_bytes: int, disk_bytes: int, below: float) -> None:
    """K7. A page of the toy's has 128 bytes."""
    config = RemoraConfig(hibernate=HibernateConfig(host_bytes=host_bytes, disk_bytes=disk_bytes))
    assert engine_settings(config, ToyRunner().info).hibernate_below == below


def test_sessions_do_not_hibernate_where_pages_cannot_leave() -> None:
    info = replace(ToyRunner().info, page_bytes=0)
    assert engine_settings(RemoraConfig(), info).hibernate_below == 0
