"""Mail in, frames out."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from actors.messages import (
    Event,
    Finished,
    IngressLost,
    Outcome,
    Reply,
    SamplingParams,
    StepTokens,
    Submit,
    Tokens,
    singly,
)
from actors.runner.toy import ToyRunner
from actors.wire import decode_frame
from actors.worker.mailbox import Mailbox
from actors.worker.outbox import Outbox, gathered
from actors.worker.shell import WorkerShell
from cluster.store.sqlite import SqliteStore
from configs import RemoraConfig, from_tree

PATIENCE_S = 60.0


def tokens(index: int, ingress: str = "i") -> Tokens:
    return Tokens(ingress=ingress, key="k", index=index, ids=(index,))


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_mailbox_keeps_order_and_drains_all() -> None:
    box = Mailbox()
    letters = [IngressLost(ingress=str(n)) for n in range(5)]
    for letter in letters:
        box.put(letter)
    assert box.drain(0) == letters
    assert box.drain(0) == []


def test_waiting_drain_returns_for_mail_and_for_a_wake() -> None:
    box = Mailbox()
    threading.Timer(0.01, box.put, [IngressLost(ingress="x")]).start()
    assert box.drain(None) == [IngressLost(ingress="x")]
    threading.Timer(0.01, box.wake).start()
    assert box.drain(None) == []


def test_one_frame_carries_all_events_of_an_ingress() -> None:
    """design.md: one frame per step and ingress."""
    box = Outbox(5.0, FakeClock())
    box.publish([tokens(0), tokens(0, "j"), tokens(3)])
    assert decode_frame(box.take("i", 0, lambda: None)) == (1, [tokens(0), tokens(3)])
    assert decode_frame(box.take("j", 0, lambda: None)) == (2, [tokens(0, "j")])
    assert box.take("i", 1, lambda: None) is None


def test_frame_whose_answer_was_lost_is_sent_again() -> None:
    """E1: a lost poll answer loses no event and repeats none."""
    box = Outbox(5.0, FakeClock())
    box.publish([tokens(0)])
    first = box.take("i", 0, lambda: None)
    box.publish([tokens(1)])
    assert box.take("i", 0, lambda: None) == first
    assert decode_frame(box.take("i", 1, lambda: None)) == (2, [tokens(1)])


def test_waiting_poll_is_woken_once() -> None:
    box = Outbox(5.0, FakeClock())
    woken: list[int] = []
    assert box.take("i", 0, lambda: woken.append(1)) is None
    box.publish([tokens(0)])
    box.publish([tokens(1)])
    assert woken == [1]


def test_silent_ingress_is_dead_after_its_lease_and_forgotten() -> None:
    """A1: leases both ways."""
    clock = FakeClock()
    box = Outbox(5.0, clock)
    box.expect("silent")
    box.take("alive", 0, lambda: None)
    clock.now = 4.0
    box.take("alive", 0, lambda: None)
    assert box.take_dead() == []
    clock.now = 5.5
    assert box.take_dead() == ["silent"]
    assert box.take_dead() == []


def test_reply_fills_the_future_of_its_ask() -> None:
    box = Outbox(5.0, FakeClock())
    ask, future = box.new_ask()
    other, unanswered = box.new_ask()
    box.publish([Reply(ask=ask, value=7), Finished(ingress="i", key="k", outcome=Outcome.STOP)])
    assert future.result(0) == 7
    assert ask != other
    box.fail_asks(RuntimeError("stopped"))
    assert isinstance(unanswered.exception(0), RuntimeError)


def test_tokens_of_one_attempt_are_one_event_of_a_frame() -> None:
    """design.md: what a frame costs follows from the streams in it, not from the tokens."""
    other = Tokens(ingress="i", key="other", index=7, ids=(70, 71))
    end = Finished(ingress="i", key="k", outcome=Outcome.STOP)
    box = Outbox(5.0, FakeClock())
    box.publish([tokens(4), other, tokens(5)])
    box.publish([tokens(6), end])
    assert decode_frame(box.take("i", 0, lambda: None)) == (
        1,
        [Tokens(ingress="i", key="k", index=4, ids=(4, 5, 6)), other, end],
    )


def test_tokens_of_a_whole_step_join_those_of_their_attempts() -> None:
    """design.md: columns within the worker, an event for each attempt in a frame; a gap stays a gap (rule E1)."""
    first = tokens(4)
    steps = [
        StepTokens("i", ["k", "other"], [5, 7], [5, 70]),
        StepTokens("i", ["other", "k", "late"], [8, 7, 3], [71, 7, 3]),
    ]
    assert gathered([first, *steps]) == [
        Tokens(ingress="i", key="k", index=4, ids=(4, 5)),
        Tokens(ingress="i", key="other", index=7, ids=(70, 71)),
        Tokens(ingress="i", key="k", index=7, ids=(7,)),
        Tokens(ingress="i", key="late", index=3, ids=(3,)),
    ]
    assert [*singly([first, *steps[:1]])] == [first, tokens(5), Tokens(ingress="i", key="other", index=7, ids=(70,))]


def scored(index: int, *, told: bool, prompt: bytes = b"") -> Tokens:
    logprobs = ((-0.5 * index, ()),) if told else ()
    return Tokens(ingress="i", key="k", index=index, ids=(index,), logprobs=logprobs, prompt=prompt)


def test_log_probabilities_stay_with_their_tokens() -> None:
    """E5, I2: they are those of the last ids of an event, so one without any cannot follow one that has some."""
    assert gathered([scored(1, told=True), scored(2, told=True)]) == [
        Tokens(ingress="i", key="k", index=1, ids=(1, 2), logprobs=((-0.5, ()), (-1.0, ())))
    ]
    apart = [scored(1, told=True), scored(2, told=False)]
    assert gathered(apart) == apart
    assert gathered([scored(1, told=False), scored(2, told=True)]) == [
        Tokens(ingress="i", key="k", index=1, ids=(1, 2), logprobs=((-1.0, ()),))
    ]


def test_what_does_not_follow_is_told_apart() -> None:
    """E1: a gap stays a gap, and what a turn was made from stays with the token that said it."""
    apart = [tokens(1), tokens(3), scored(4, told=False, prompt=b"made from")]
    assert gathered(apart) == apart


def test_tokens_linger_and_first_tokens_and_ends_do_not() -> None:
    """A patient poll takes no frame for what may wait, and is woken for what may not, with all there is."""
    clock = FakeClock()
    box = Outbox(5.0, clock, linger_s=0.02)
    woken: list[str] = []

    def poll(acknowledged: int, name: str) -> bytes | None:
        return box.take("i", acknowledged, lambda: woken.append(name), patient=box.lingers_s("i") > 0)

    assert box.lingers_s("i") <= 0
    box.publish([tokens(0)])
    assert poll(0, "first") is not None
    clock.now = 0.01
    assert box.lingers_s("i") == pytest.approx(0.01)
    box.publish([tokens(1)])
    assert poll(1, "second") is None
    box.publish([tokens(2)])
    assert woken == []
    box.publish([Finished(ingress="i", key="k", outcome=Outcome.LENGTH)])
    assert woken == ["second"]
    frame = poll(1, "third")
    assert frame is not None
    assert len(decode_frame(frame)[1]) == 2
    clock.now = 0.04
    assert poll(2, "impatient") is None
    box.publish([tokens(9)])
    assert woken == ["second", "impatient"]


def test_a_poll_that_comes_while_tokens_linger_gets_them_in_time() -> None:
    """C3: nothing lingers for longer than it may, whether or not more comes."""

    async def polls(shell: WorkerShell) -> list[tuple[float, list[Event]]]:
        heard: list[tuple[float, list[Event]]] = []
        acknowledged, ended = 0, False
        begun = time.monotonic()
        while not ended:
            frame = await shell.poll_frame("i", acknowledged, timeout_s=PATIENCE_S)
            acknowledged, events = decode_frame(frame)
            heard.append((time.monotonic() - begun, events))
            ended = any(isinstance(event, Finished) for event in events)
        return heard

    config = from_tree(RemoraConfig, {"workers": {"runner": "toy"}, "ingress": {"flush_s": 0.05}})
    shell = WorkerShell("w", config, ToyRunner(step_s=0.005), SqliteStore(":memory:"))
    shell.start()
    try:
        sampling = SamplingParams(max_tokens=60, ignore_eos=True)
        shell.submit(Submit(key="k", rid="k", ingress="i", tenant="t", input_ids=(1, 2, 3), sampling=sampling))
        heard = asyncio.run(polls(shell))
    finally:
        shell.stop()
    told = [event for _, events in heard for event in events if isinstance(event, Tokens)]
    assert [index for event in told for index in range(event.index, event.index + len(event.ids))] == list(range(60))
    assert len(heard) <= 3 + heard[-1][0] / 0.05, "the first frame, the last, and one for each time that tokens linger"
