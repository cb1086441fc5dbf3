"""The pool replaces its workers one after another, and nobody who asks for something notices (rules T5, T6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from actors.messages import Finished, Tokens
from actors.ports import Placement, WeightsGone
from actors.runner.toy import toy_continuation, toy_weights
from cluster.pool import Pool
from cluster.release import Release
from configs import AutoscaleConfig, RemoraConfig, RolloutConfig, SessionConfig
from tests.cluster.test_pool import World, submit_of, world
from tests.cluster.test_pool_scaling import chat

PATIENT = {"heartbeat_s": 0.02, "suspect_s": 2.0, "dead_s": 10.0, "start_timeout_s": 20.0, "drain_grace_s": 20.0}
"""So that a busy machine makes nobody suspect."""


@dataclass
class Life:
    """A pool with weights in a file; `change` swaps them under the same path."""

    w: World
    file: Path
    ready: list[int] = field(default_factory=list)
    there: list[int] = field(default_factory=list)

    store: str = "here"

    def release(self) -> Release:
        return Release("settings", "code", toy_weights(str(self.file))[0], store=self.store)

    async def new_pool(self, **changed: Any) -> None:
        """The pool's process dies and comes back, with this release and perhaps other settings."""
        await self.w.pool.abandon()
        config = replace(self.w.config, **changed)
        release = self.release()
        self.w.pool = Pool(self.w.runtime, self.w.store, config, release=release, wall_clock=self.w.wall, wait_s=5.0)
        self.w.pools.append(self.w.pool)
        self.w.pool.start()

    async def change(self, content: str) -> None:
        self.file.write_text(content)
        await self.new_pool()

    async def rollout(self) -> dict[str, Any]:
        found = (await self.w.pool.status())["pool"]["rollout"]  # type: ignore[index]
        assert isinstance(found, dict)
        return found

    async def replaced(self, before: list[str], count: int) -> list[str]:
        """Wait until nobody of before is left; how many were ready, and how many there were, is noted all the time."""

        async def done() -> bool:
            states = await self.w.states()
            self.ready.append(sum(state == "ready" for state in states.values()))
            self.there.append(len(states))
            return not set(before) & states.keys() and list(states.values()) == ["ready"] * count

        await self.until(done)
        return list(await self.w.states())

    async def until(self, reached: Callable[[], Awaitable[bool]]) -> None:
        """As `World.until`, with the patience that several starts and drains on a busy machine take."""

        async def look() -> None:
            while not await reached():  # noqa: ASYNC110 - what a test waits for has no event
                await asyncio.sleep(0.005)

        await asyncio.wait_for(look(), 40.0)

    async def says(self, placed: Placement, rid: str, max_tokens: int = 6) -> tuple[Finished, list[int]]:
        """Run a turn where its session lives: its end, and its tokens."""
        shell = self.w.runtime.workers[placed.worker_id].shell
        shell.submit(replace(submit_of(placed, rid, max_tokens), ingress=rid))
        ids: list[int] = []
        while True:
            for event in await shell.poll(rid):
                if isinstance(event, Tokens) and event.key == rid:
                    ids.extend(event.ids)
                if isinstance(event, Finished) and event.key == rid:
                    return event, ids


PROMPT = list(range(40, 60))


def run(test: Callable[[Life], Awaitable[None]], folder: Path, workers: int = 3, **changed: Any) -> None:
    file = folder / "weights"
    file.write_text("first")

    def change(config: RemoraConfig) -> RemoraConfig:
        cluster = replace(config.cluster, **PATIENT)
        config = replace(config, cluster=cluster, workers=replace(config.workers, toy_weights=str(file)))
        return replace(config, **changed)

    async def main() -> None:
        async with world(folder, workers=workers, change=change) as made:
            life = Life(made, file)
            await made.until_ready(workers)
            before = list(await made.states())
            await life.new_pool()
            await life.replaced(before, workers)
            life.ready.clear()
            life.there.clear()
            made.runtime.spawned.clear()
            await test(life)

    asyncio.run(main())


def answer_of(history: list[int], file: Path, max_tokens: int = 6) -> list[int]:
    return toy_continuation(history, max_tokens, salt=toy_weights(str(file))[1])


# -- one after another -------------------------------------------------------------------------------------------------


def test_all_are_replaced_while_sessions_go_on(tmp_path: Path) -> None:
    """T5, N51: never fewer ready than wanted, never more than one beyond; every turn ends well, on its history."""

    async def test(life: Life) -> None:
        before = list(await life.w.states())
        chats = [asyncio.ensure_future(chat(life.w, f"s{number}", turns=6)) for number in range(9)]
        assert (await life.w.pool.rollout())["state"] == "running"
        after = await life.replaced(before, 3)
        ends = [end for one in await asyncio.gather(*chats) for end in one]
        assert len(after) == 3
        assert min(life.ready) >= 3
        assert max(life.there) <= 4
        assert len(life.w.runtime.spawned) == 3
        assert {(end.outcome.value, end.reason) for end in ends} == {("length", None)}
        assert [life.w.store.get("t", f"s{number}").turns for number in range(9)] == [6] * 9
        assert (await life.rollout())["state"] == "done"

    run(test, tmp_path)


@pytest.mark.parametrize("what", ["settings", "code", "weights"])
def test_a_new_pool_replaces_what_is_made_of_something_else(tmp_path: Path, what: str) -> None:
    """T5: and moves nobody where nothing is different."""

    async def test(life: Life) -> None:
        before = list(await life.w.states())
        await life.new_pool()
        assert sorted(await life.w.until_ready(2)) == sorted(before)
        assert (await life.rollout())["state"] == "done"
        if what == "weights":
            await life.change("second")
        else:
            release = replace(life.release(), **{what: "other"})
            life.release = lambda: release  # type: ignore[method-assign]
            await life.new_pool()
        assert not set(await life.replaced(before, 2)) & set(before)

    run(test, tmp_path, workers=2)


def test_a_pool_that_dies_in_the_middle_is_gone_on_from(tmp_path: Path) -> None:
    """T5: what was replaced stays; a rollout that was asked for by hand is not forgotten either."""

    async def test(life: Life) -> None:
        before = list(await life.w.states())
        await life.w.pool.rollout()

        async def one_is_new() -> bool:
            states = await life.w.states()
            return any(one not in before and state == "ready" for one, state in states.items())

        await life.until(one_is_new)
        (first,) = set(await life.w.states()) - set(before)
        await life.new_pool()
        assert first in await life.replaced(before, 3)
        assert len(life.w.runtime.spawned) == 3

    run(test, tmp_path)


def test_with_autoscaling_as_well(tmp_path: Path) -> None:
    """T5: the rollout adds to what the load asks for, and takes nothing from it."""
    scaling = AutoscaleConfig(
        enabled=True, min_workers=2, max_workers=3, requests_per_worker=4, up_delay_s=0.05, down_delay_s=0.5
    )

    async def test(life: Life) -> None:
        before = list(await life.w.states())
        await life.w.pool.rollout()
        chats = [asyncio.ensure_future(chat(life.w, f"s{number}", turns=6)) for number in range(16)]
        ends = [end for one in await asyncio.gather(*chats) for end in one]
        await life.replaced(before, 2)
        assert {(end.outcome.value, end.reason) for end in ends} == {("length", None)}
        assert min(life.ready) >= 2
        assert max(life.there) <= 3 + 1

    run(test, tmp_path, workers=2, autoscale=scaling)


# -- when it does not work ---------------------------------------------------------------------------------------------


def test_starts_that_fail_stop_it_and_the_old_ones_serve_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """T5: /v1/stats and the log say so; asked for again, it goes on."""

    async def test(life: Life) -> None:
        before = list(await life.w.states())
        placed = await life.w.open("s")
        life.w.runtime.failing_starts.extend(["out of memory"])
        await life.w.pool.rollout()

        async def stopped() -> bool:
            return (await life.rollout())["state"] == "stopped"

        await life.until(stopped)
        told = await life.rollout()
        assert (told["why"], told["stale_workers"]) == ("out of memory", 2)
        assert list(await life.w.states()) == before
        assert (await life.says(placed, "r1"))[0].turn == 1
        await asyncio.sleep(0.2)
        assert len(life.w.runtime.spawned) == 1, "it tried again by itself"
        await life.w.pool.rollout()
        await life.replaced(before, 2)
        assert (
            "the rollout stops: 1 starts failed, the last: out of memory; 2 workers of before serve on" in caplog.text
        )

    run(test, tmp_path, workers=2, rollout=RolloutConfig(max_failed_starts=1))


def test_a_replacement_that_never_gets_ready_ends_nobody(tmp_path: Path) -> None:
    """T5: it is given up at the start timeout."""

    async def test(life: Life) -> None:
        before = list(await life.w.states())
        cluster = replace(life.w.config.cluster, start_timeout_s=0.4)
        rollout = replace(life.w.config.rollout, max_failed_starts=1)
        await life.new_pool(cluster=cluster, rollout=rollout)
        await life.w.until_ready(2)
        life.w.runtime.stuck_starts = True
        await life.w.pool.rollout()

        async def stopped() -> bool:
            return (await life.rollout())["state"] == "stopped"

        await life.until(stopped)
        assert (await life.rollout())["why"] == "not ready after 0 s"
        assert dict.fromkeys(before, "ready") == await life.w.states()

    run(test, tmp_path, workers=2)


# -- weights -----------------------------------------------------------------------------------------------------------


def test_history_goes_on_under_new_weights_and_no_kv_of_the_old_ones_is_used(tmp_path: Path) -> None:
    """T6, K1: the toy's weights are in every slot, so that one page of the old would change the text."""

    async def test(life: Life) -> None:
        (before,) = await life.w.states()
        placed = await life.w.open("s")
        _, first = await life.says(placed, "r1", 60)
        assert first == answer_of(PROMPT, life.file, 60)
        assert life.w.store.get("t", "s").weights == toy_weights(str(life.file))[0]
        old = life.w.store.get("t", "s").weights
        await life.change("second")
        await life.replaced([before], 1)
        moved = await life.w.pool.place("t", "s")
        end, second = await life.says(moved, "r2")
        history = PROMPT + first + PROMPT
        assert (end.turn, end.prompt_tokens, end.cached_tokens) == (2, len(history), 0)
        assert second == answer_of(history, life.file)
        new = life.w.store.get("t", "s").weights
        assert new == toy_weights(str(life.file))[0] != old

    run(test, tmp_path, workers=1)


def test_a_restart_with_the_same_weights_brings_the_kv_along(tmp_path: Path) -> None:
    """T5, K1: so that the test above shows something."""

    async def test(life: Life) -> None:
        (before,) = await life.w.states()
        _, first = await life.says(await life.w.open("s"), "r1", 60)
        await life.w.pool.rollout()
        await life.replaced([before], 1)
        end, second = await life.says(await life.w.pool.place("t", "s"), "r2")
        assert end.cached_tokens == (20 + 60 - 1) // 16 * 16
        assert second == answer_of(PROMPT + first + PROMPT, life.file)

    run(test, tmp_path, workers=1)


PIN = SessionConfig(weights="pin", pin_grace_s=30.0)


async def kept(life: Life) -> str:
    """The worker that is kept, once the others are new."""

    async def found() -> bool:
        states = list((await life.w.states()).values())
        return sorted(states) == ["kept", "ready", "ready"]

    await life.until(found)
    return next(one for one, state in (await life.w.states()).items() if state == "kept")


def test_pinned_sessions_stay_with_their_weights_and_new_ones_get_the_new(tmp_path: Path) -> None:
    """T6: from all workers of before they come to the one that is kept; it goes when the last of them is closed."""

    async def test(life: Life) -> None:
        before = list(await life.w.states())
        first = {}
        for number in range(4):
            _, first[number] = await life.says(await life.w.open(f"s{number}"), f"r{number}")
        old_weights = toy_weights(str(life.file))
        unused = await life.w.open("unused")
        await life.change("second")
        keeper = await kept(life)
        assert keeper in before
        for number in range(4):
            placed = await life.w.pool.place("t", f"s{number}")
            assert placed.worker_id == keeper
            end, said = await life.says(placed, f"again{number}")
            assert end.turn == 2
            assert said == toy_continuation(PROMPT + first[number] + PROMPT, 6, salt=old_weights[1])
        for name in ("new", "unused"):
            placed = await life.w.open(name) if name == "new" else await life.w.pool.place("t", "unused")
            assert placed.worker_id not in before
            assert (await life.says(placed, name))[1] == answer_of(PROMPT, life.file)
        assert unused.worker_id in before
        assert (await life.rollout())["kept_workers"] == 1
        for number in range(4):
            await life.w.pool.close_session("t", f"s{number}", abort_running=False)
        await life.replaced(before, 2)

    run(test, tmp_path, workers=2, sessions=PIN)


def test_when_the_grace_is_over_a_pinned_session_is_refused(tmp_path: Path) -> None:
    """T6: it never goes on with other weights unseen; its history is there still."""

    async def test(life: Life) -> None:
        before = list(await life.w.states())
        await life.says(await life.w.open("s"), "r1")
        old = life.w.store.get("t", "s").weights
        await life.change("second")
        await life.replaced(before, 2)
        with pytest.raises(WeightsGone, match=old):
            await life.w.pool.place("t", "s")
        assert life.w.store.get("t", "s").turns == 1
        await life.new_pool(sessions=SessionConfig())
        placed = await life.w.pool.place("t", "s")
        assert (await life.says(placed, "r2"))[0].turn == 2

    run(test, tmp_path, workers=2, sessions=replace(PIN, pin_grace_s=0.2))


def test_a_pinned_session_waits_for_its_weights_where_they_come_back(tmp_path: Path) -> None:
    """T4: its only worker dies, and the next one has the same."""

    async def test(life: Life) -> None:
        (before,) = await life.w.states()
        _, first = await life.says(await life.w.open("s"), "r1")
        await life.w.runtime.die(before)
        placed = await life.w.pool.place("t", "s")
        assert placed.worker_id != before
        assert (await life.says(placed, "r2"))[1] == answer_of(PROMPT + first + PROMPT, life.file)

    run(test, tmp_path, workers=1, sessions=PIN)


def test_a_kept_worker_outlives_the_pool(tmp_path: Path) -> None:
    """T6: the next one keeps it too."""

    async def test(life: Life) -> None:
        await life.says(await life.w.open("s"), "r1")
        await life.change("second")
        keeper = await kept(life)
        await life.new_pool()
        assert await kept(life) == keeper
        assert (await life.w.pool.place("t", "s")).worker_id == keeper
        fork = await life.w.pool.fork_session("t", "fork", source_id="s", turn=None)
        assert fork.worker_id == keeper

    run(test, tmp_path, workers=2, sessions=PIN)


def test_workers_that_keep_their_turns_elsewhere_go_before_their_successors_come(tmp_path: Path) -> None:
    """T6: the application was deployed with another store: nothing is placed where a turn would be lost."""

    async def test(life: Life) -> None:
        w = life.w
        before = list(await w.states())
        life.store = "elsewhere"
        w.runtime.stuck_starts = True  # No successor gets ready.
        await life.new_pool()

        async def all_go() -> bool:
            return all(bool(w.runtime.workers[one].shell.stats()["draining"]) for one in before)

        await life.until(all_go)
        w.runtime.stuck_starts = False

    run(test, tmp_path, workers=2)
