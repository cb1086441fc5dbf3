"""What a worker says of its loop."""

from __future__ import annotations

import threading

from actors.worker.progress import Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def told(progress: Progress) -> dict[str, float]:
    return {name: value for name, value in progress.row().items() if name != "thread"}


def test_a_turn_is_told_while_it_goes_on_and_measured_when_it_has_ended() -> None:
    """T4, field case N50: between turns there is none, however long the loop waits for mail."""
    clock = Clock()
    progress = Progress(clock)
    assert progress.row()["thread"] == 0
    clock.now = 100.0
    assert told(progress) == {"turn": 0, "turn_s": 0.0, "slowest_turn_s": 0.0, "steps_returned": 0}
    progress.begin()
    clock.now = 107.0
    assert told(progress) == {"turn": 1, "turn_s": 7.0, "slowest_turn_s": 0.0, "steps_returned": 0}
    progress.step_returned()
    progress.end()
    clock.now = 300.0
    assert told(progress) == {"turn": 0, "turn_s": 0.0, "slowest_turn_s": 7.0, "steps_returned": 1}
    progress.begin()
    progress.end()
    progress.begin()
    assert told(progress) == {"turn": 3, "turn_s": 0.0, "slowest_turn_s": 7.0, "steps_returned": 1}
    assert progress.row()["thread"] == threading.get_native_id()
