"""Replacing workers of an earlier release, as a table (T5): small letters are workers of before."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.actions import Action, Adopt, Drain, Keep, Kill, Spawn
from cluster.membership import Worker, WorkerState
from cluster.reconcile import reconcile
from cluster.release import Release, digest_of_sources, parsed, weights_of
from cluster.rollout import let_go
from configs import ConfigError, RolloutConfig, load

STATES = {
    "s": WorkerState.STARTING,
    "r": WorkerState.READY,
    "?": WorkerState.SUSPECT,
    "d": WorkerState.DRAINING,
    "x": WorkerState.DEAD,
}


def workers(letters: str, weights: str = "") -> list[Worker]:
    """`w0`, `w1`, …, the cheapest last; `k`: kept. `weights`: one letter for each."""
    made = []
    for number, letter in enumerate(letters):
        kept = letter == "k"
        state = WorkerState.READY if kept else STATES[letter.lower()]
        stats = {"running": 9 - number, "weights": weights[number : number + 1]}
        stale = letter.islower() and letter != "x"
        made.append(Worker(f"w{number}", state, 0.0, 0.0, stats=stats, stale=stale, kept_at=5.0 if kept else None))
    return made


def actions(
    desired: int,
    letters: str,
    *,
    surge: int = 1,
    unavailable: int = 0,
    weights: str = "",
    stopped: bool = False,
    may_spawn: bool = True,
    living: tuple[str, ...] = (),
) -> list[Action]:
    return reconcile(
        desired,
        workers(letters, weights),
        living,
        lambda worker: (worker.load,),
        may_spawn=may_spawn,
        rollout=RolloutConfig(max_surge=surge, max_unavailable=unavailable),
        stopped=stopped,
        pins=bool(weights),
    )


@pytest.mark.parametrize(
    ("desired", "letters", "expected"),
    [
        (3, "rrr", [Spawn()]),
        (3, "rrrS", []),
        (3, "rrrR", [Drain("w2")]),
        (3, "rrdR", []),
        (3, "rrxR", [Spawn()]),
        (3, "rrxRR", [Drain("w1")]),
        (3, "rxxRRR", [Drain("w0")]),
        (3, "dxxRRR", []),
        (3, "rr", [Spawn(), Spawn()]),
        (1, "r", [Spawn()]),
        (1, "rR", [Drain("w0")]),
        (0, "rr", [Drain("w1"), Drain("w0")]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_one_more_is_started_first_and_one_of_before_goes_when_that_is_ready(
    desired: int, letters: str, expected: list[Action]
) -> None:
    """T5, N51: never fewer ready ones than wanted, never more than one beyond them, those that leave included."""
    assert actions(desired, letters) == expected


def test_a_suspect_is_neither_ready_nor_missing() -> None:
    """T5: nobody is drained on its account, and none of before is while it may come back."""
    assert actions(3, "rrR?") == []
    assert actions(2, "rR?") == []


def test_a_worker_that_was_started_a_moment_ago_and_is_of_before_is_not_waited_for() -> None:
    assert actions(2, "rs") == [Kill("w1"), Spawn(), Spawn()]


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ("rrr", [Drain("w2")]),
        ("rrd", []),
        ("rr", [Spawn()]),
        ("rrS", []),
        ("rrR", [Drain("w1")]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_without_room_for_one_more_the_old_one_ends_first(letters: str, expected: list[Action]) -> None:
    """T5: `max_surge` 0, `max_unavailable` 1: where every GPU is taken. No more than three at any time."""
    assert actions(3, letters, surge=0, unavailable=1) == expected


def test_several_at_once() -> None:
    assert actions(4, "rrrr", surge=2) == [Spawn(), Spawn()]
    assert actions(4, "rrrrRR", surge=2) == [Drain("w3"), Drain("w2")]


def test_fewer_wanted_in_the_middle_costs_workers_of_before_only() -> None:
    """P6: and more wanted are started as new ones."""
    assert actions(2, "rrrR") == [Drain("w2"), Drain("w1")]
    assert actions(5, "rrrR") == [Spawn(), Spawn()]


@pytest.mark.parametrize("letters", ["rrr", "rr", "rrrS"])
def test_a_rollout_that_stopped_touches_nobody_of_before(letters: str) -> None:
    """T5: but what is missing is started, as ever."""
    missing = max(0, 3 - len(letters))
    assert actions(3, letters, stopped=True, unavailable=1) == [Spawn()] * missing


def test_a_rollout_that_stopped_still_scales_down() -> None:
    assert actions(1, "rrr", stopped=True) == [Drain("w2"), Drain("w1")]


def test_nothing_is_started_a_moment_after_a_start_failed() -> None:
    assert actions(3, "rr", may_spawn=False) == []


def test_a_pool_in_the_middle_of_a_rollout_waits_until_it_knows_everybody() -> None:
    """T5: of four that it finds, three are wanted; which one goes is not for it to say before all have told what they
    are."""
    assert actions(3, "", living=("w1", "w2", "w3", "w4")) == [Adopt(f"w{n}") for n in (1, 2, 3, 4)]
    found = workers("SRRR")
    found[0].adopted = True
    assert reconcile(3, found, (), lambda worker: (worker.load,), may_spawn=True) == []
    found[0].state = WorkerState.READY
    assert reconcile(3, found, (), lambda worker: (worker.load,), may_spawn=True) == [Drain("w3")]


def test_the_last_worker_with_its_weights_is_kept_for_pinned_sessions() -> None:
    """T6: the others go: their sessions move to it. A kept one is no worker that is wanted."""
    assert actions(2, "rrR", weights="aab") == [Drain("w1")]
    assert actions(2, "rRR", weights="abb") == [Keep("w0")]
    assert actions(2, "kRR", weights="abb") == []
    assert actions(2, "kR", weights="ab") == [Spawn()]


def test_two_that_go_at_once_do_not_take_each_other_for_the_last() -> None:
    assert actions(1, "rrR", weights="aab", surge=2) == [Drain("w1"), Keep("w0")]


def test_a_restart_with_the_same_weights_keeps_nobody() -> None:
    assert actions(1, "rR", weights="aa") == [Drain("w0")]


@pytest.mark.parametrize(
    ("letters", "weights", "sessions", "now", "goes"),
    [
        ("kR", "ab", 1, 10.0, False),
        ("kR", "ab", 0, 10.0, True),
        ("kR", "aa", 1, 10.0, True),
        ("kR", "ab", 1, 15.1, True),
    ],
    ids=["needed", "nobody left", "others have its weights", "the grace is over"],
)
def test_a_kept_worker_goes_when_nobody_needs_it(
    letters: str, weights: str, sessions: int, now: float, goes: bool
) -> None:
    found = let_go(workers(letters, weights), lambda worker_id: sessions, now, 10.0)
    assert found == ([Drain("w0")] if goes else [])


# -- what a worker is made of ------------------------------------------------------------------------------------------

NOW = Release("settings", "code", "weights", 2, "store")


@pytest.mark.parametrize(
    ("label", "stale"),
    [
        ("settings/code/weights/2/store", False),
        ("settings/code/weights/3/store", False),
        ("settings/code/weights/1/store", True),
        ("settings/code/other/2/store", True),
        ("settings/code//2/store", False),
        ("settings/other/weights/2/store", True),
        ("other/code/weights/2/store", True),
        ("", True),
        ("a label of another program", True),
    ],
)
def test_other_settings_code_or_weights_make_a_worker_one_of_yesterday(label: str, stale: bool) -> None:
    """T5: weights that one of the two does not know are not looked at."""
    assert NOW.replaces(label) is stale


@pytest.mark.parametrize(
    ("label", "lost"),
    [
        ("settings/code/weights/2/store", False),
        ("other/other/other/0/store", False),
        ("settings/code/weights/2/elsewhere", True),
        ("", False),
        ("a label of another program", False),
    ],
)
def test_a_worker_that_keeps_its_turns_elsewhere_is_known(label: str, lost: bool) -> None:
    """T6: of what has no label nothing is known."""
    assert NOW.has_lost(label) is lost


def test_a_label_is_read_as_it_was_written() -> None:
    assert parsed(NOW.label) == NOW


def test_a_pool_that_is_new_goes_on_with_the_restart_that_it_finds() -> None:
    """T5: but not with one of other settings."""
    fresh = Release("settings", "code", "weights", store="store")
    assert (
        fresh.after(
            ["settings/code/weights/2/store", "settings/code/weights/0/store", "other/code/weights/7/store", "?"]
        )
        == NOW
    )


def test_any_change_of_the_sources_is_another_code(tmp_path: Path) -> None:
    root = tmp_path
    (root / "actors" / "deep").mkdir(parents=True)
    file = root / "actors" / "deep" / "a.py"
    seen = set()
    for text in ("x = 1", "x = 2"):
        file.write_text(text)
        seen.add(digest_of_sources(root))
    (root / "actors" / "notes.txt").write_text("no code")
    seen.add(digest_of_sources(root))
    file.rename(root / "actors" / "deep" / "b.py")
    seen.add(digest_of_sources(root))
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"rollout.max_surge": 0}, "rollout.max_surge: 0, and max_unavailable 0"),
        ({"rollout.max_unavailable": -1}, "rollout.max_unavailable: -1"),
        ({"rollout.max_failed_starts": 0}, "rollout.max_failed_starts: 0"),
        ({"sessions.weights": "hold"}, "sessions.weights: 'hold'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(None, settings)


def test_weights_that_changed_under_the_same_path_are_other_weights(tmp_path: Path) -> None:
    """T6: and those that are not on this node are not known, nor fetched."""
    config = load(None, {"model.id": str(tmp_path)})
    (tmp_path / "config.json").write_text("{}")
    seen = set()
    for content in (b"one", b"two"):
        (tmp_path / "model.safetensors").write_bytes(content)
        seen.add(weights_of(config))
    assert len(seen) == 2
    for nowhere in (str(tmp_path / "none.gguf"), "no-such-organisation/no-such-model"):
        assert weights_of(load(None, {"model.id": nowhere, "model.cache_dir": str(tmp_path)})) == ""
