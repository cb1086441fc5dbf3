"""One poll loop per worker: order, gaps, repeats, and what happens to its requests when it dies."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.ingress.channel import EARLY, Batch, Channels, Line, Pump
from actors.messages import Event, Finished, Outcome, Tokens
from actors.ports import WorkerGone
from tests.ingress.asgi import eventually, run
from tests.ingress.scripted import ScriptedPool, ScriptedWorker


def tokens(index: int, *ids: int, key: str = "k") -> Tokens:
    return Tokens(ingress="i", key=key, index=index, ids=ids)


def end(count: int, key: str = "k") -> Finished:
    return Finished(ingress="i", key=key, outcome=Outcome.STOP, completion_tokens=count)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=30))
def test_whatever_is_repeated_or_missing_no_id_is_wrong(slices: list[tuple[int, int]]) -> None:
    """Events that overlap add nothing; events that leave a hole end the line; what was taken is a prefix."""

    async def check() -> None:
        line, received = Line("k", "w"), 0
        for start, count in slices:
            whole = line.push(tokens(start, *range(start, start + count)))
            if start > received:
                assert not whole or line.over
                break
            received = max(received, start + count)
        if received:
            assert (await line.take()).ids == tuple(range(received))
        assert line.received == received

    asyncio.run(check())


def test_an_end_that_counts_more_tokens_than_came_is_a_gap() -> None:
    async def check() -> None:
        line = Line("k", "w")
        line.push(tokens(0, 1, 2))
        assert not line.push(end(3))
        assert (await line.take()).ids == (1, 2)
        with pytest.raises(WorkerGone):
            await line.take()

    asyncio.run(check())


def test_nothing_follows_the_end() -> None:
    """E1."""

    async def check() -> None:
        line = Line("k", "w")
        line.push(end(0))
        line.push(tokens(0, 1))
        line.push(end(0))
        batch = await line.take()
        assert batch.ids == ()
        assert batch.end == end(0)

    asyncio.run(check())


def test_a_take_gives_up_after_its_time() -> None:
    async def check() -> None:
        line = Line("k", "w")
        batch = await line.take(timeout_s=0.01)
        assert (batch.ids, batch.end) == ((), None)

    run(check())


def test_a_worker_that_never_answers_a_poll_is_lost() -> None:
    """A frozen worker: its requests do not wait for ever."""

    class Frozen(ScriptedWorker):
        async def poll(self, ingress_id: str) -> list[Event]:
            await asyncio.Event().wait()
            return []

    async def check() -> None:
        pump = Pump("w", Frozen("w"), "i", patience_s=0.02)
        line = pump.open_line("k")
        with pytest.raises(WorkerGone):
            await line.take()
        assert not pump.alive

    run(check())


def test_a_new_pump_takes_the_place_of_a_dead_one() -> None:
    async def check() -> None:
        worker = ScriptedWorker("w")
        channels = Channels(ScriptedPool(worker), "i", patience_s=10.0)
        first = channels.to("w")
        assert channels.to("w") is first
        worker.die()
        await eventually(lambda: not first.alive)
        worker.alive = True
        second = channels.to("w")
        assert second is not first
        line = second.open_line("k")
        worker.push(tokens(0, 7), end(1))
        assert (await line.take()).ids == (7,)
        await channels.stop()

    run(check())


def test_a_pump_outlives_the_request_that_started_it() -> None:
    """Pumps start from an empty context and are no children of a request."""

    async def check() -> None:
        worker = ScriptedWorker("w")
        channels = Channels(ScriptedPool(worker), "i", patience_s=10.0)

        async def request() -> None:
            await channels.to("w").open_line("gone").take()

        task = asyncio.create_task(request())
        await eventually(lambda: channels.open_lines())
        task.cancel()
        await asyncio.wait({task})
        line = channels.to("w").open_line("k")
        worker.push(tokens(0, 7), end(1))
        assert (await line.take()).ids == (7,)
        await channels.stop()

    run(check())


def test_tokens_gather_from_when_some_were_taken_last_and_the_end_is_not_held() -> None:
    """Design: after the first token at once, at most one piece per `flush_s`."""

    async def check() -> None:
        line, hold_s = Line("k", "w"), 0.2
        clock = asyncio.get_running_loop().time
        line.push(tokens(0, 1))
        assert (await line.take()).ids == (1,)
        taken_at = clock()
        line.push(tokens(1, 2))
        taking = asyncio.create_task(line.take(hold_s=hold_s))
        await asyncio.sleep(hold_s / 4)
        line.push(tokens(2, 3))
        assert (await taking).ids == (2, 3)
        assert clock() - taken_at >= hold_s * (1 - EARLY) - 0.01
        line.push(tokens(3, 4))
        taking = asyncio.create_task(line.take(hold_s=30.0))
        await asyncio.sleep(0.01)
        assert not taking.done()
        line.push(end(4))
        assert (await taking).ids == (4,)

    run(check())


def test_what_comes_when_it_is_due_wakes_every_stream_at_once() -> None:
    """A worker's frame has tokens of all its streams: none of them waits for a timer of its own."""

    async def check() -> None:
        lines, hold_s = [Line(str(number), "w") for number in range(3)], 0.05
        for line in lines:
            line.push(tokens(0, 1, key=line.key))
            await line.take()
        taking = [asyncio.create_task(line.take(hold_s=hold_s)) for line in lines]
        await asyncio.sleep(hold_s)
        for line in lines:
            line.push(tokens(1, 2, key=line.key))
        for _ in range(2):
            await asyncio.sleep(0)
        assert [task.result().ids for task in taking] == [(2,)] * 3

    run(check())


def test_time_runs_out_while_nothing_comes_and_not_while_tokens_gather() -> None:
    """E3: who has nothing to tell says so."""

    async def check() -> None:
        line = Line("k", "w")
        line.push(tokens(0, 1))
        await line.take()
        assert await line.take(hold_s=0.02, timeout_s=0.05) == Batch()
        line.push(tokens(1, 2))
        await line.take()
        line.push(tokens(2, 3))
        assert (await line.take(hold_s=0.1, timeout_s=0.01)).ids == (3,)

    run(check())
