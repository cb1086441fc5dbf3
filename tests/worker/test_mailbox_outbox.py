"""Mail in, frames out."""

from __future__ import annotations

import threading

from actors.messages import Finished, IngressLost, Outcome, Reply, Tokens
from actors.wire import decode_frame
from actors.worker.mailbox import Mailbox
from actors.worker.outbox import Outbox


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
    box.publish([tokens(0), tokens(0, "j"), tokens(1)])
    assert decode_frame(box.take("i", 0, lambda: None)) == (1, [tokens(0), tokens(1)])
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
