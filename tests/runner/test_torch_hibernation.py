"""Rule K7 with a real model: what wakes says what it would have said, had it never slept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.runner.torch.runner import TorchRunner
from configs import HibernateConfig
from tests.runner import tiny
from tests.worker.conversations import Conversations

Saved = Callable[[str], tuple[Path, Any]]
NAMES = ("a", "b", "c", "d", "e")


def talk(folder: Path, runner: TorchRunner, hibernate: HibernateConfig, *, sleeps: bool) -> tuple[Any, dict[str, int]]:
    """Three turns of each session: the histories, and the figures before the end."""
    folder.mkdir()
    worker = Conversations(folder, runner, hibernate, depth=0)
    worker.open(*NAMES)
    for _ in range(3):
        for name in NAMES:
            kept = worker.kept(name)
            end = worker.turn(name)
            assert end.cached_tokens >= kept
            if sleeps:
                worker.sleep(name)
    figures = worker.figures()
    worker.shell.stop()
    assert worker.shell.loop_error is None
    worker.store.shut()
    return worker.history, figures


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_woken_session_goes_on_as_if_it_had_never_slept(saved: Saved, tmp_path: Path, dtype: str) -> None:
    """K7, through memory and files: the same tokens as with room for all; no history is prefilled."""
    folder, _ = saved("llama")
    settings: dict[str, Any] = {"dtype": dtype, "page_size": 8, "max_context": 128}
    awake = tiny.runner(folder, kv_tokens=1024, **settings)
    expected, figures = talk(tmp_path / "awake", awake, HibernateConfig(host_bytes=0), sleeps=False)
    assert not any(figures.values())
    asleep = tiny.runner(folder, kv_tokens=160, **settings)
    budgets = HibernateConfig(
        host_bytes=25 * asleep.info.page_bytes, disk_bytes=2**24, directory=str(tmp_path / "kv"), below=0.95
    )
    got, figures = talk(tmp_path / "asleep", asleep, budgets, sleeps=True)
    assert got == expected
    assert figures["woken_turns"] > len(NAMES)
    assert figures["host_pages"]
    assert figures["disk_pages"]
