"""A short chaos run with a fixed seed, and what the long one relies on."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from tests.e2e import chaos_report
from tests.e2e.chaos import CONFIG, chaos
from tests.e2e.chaos_clients import Chatter, Hopeless
from tests.e2e.chaos_fate import KINDS, blows
from tests.e2e.chaos_ledger import (
    BROKEN_STREAM,
    DUPLICATED,
    LOST,
    NO_HISTORY,
    NOT_REPLAYED,
    WRONG_TEXT,
    Ledger,
)
from tests.e2e.chaos_rig import rigged
from tests.e2e.raw_http import Answer, RawClient

SEED, SECONDS, PAUSE_S = 11, 20.0, 2.0


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_was_acknowledged_survives_whatever_is_killed(tmp_path: Path) -> None:
    """T1, T2, T3, T4, T5, T6, E6, K6: workers are killed, frozen and stuck, ingress and pool killed and frozen, store,
    proxy and controller killed, workers added and drained: no acknowledged turn is lost, none runs twice or without its
    history, no stream has a gap, and nothing is left at the end."""
    with rigged(tmp_path, CONFIG, nodes=1) as rig:
        ledger = asyncio.run(chaos(rig, seed=SEED, seconds=SECONDS, sessions=4, passersby=1, pause_s=PAUSE_S))
    print(chaos_report.table(ledger))
    assert sum(ledger.events.values()) >= 5
    assert ledger.done["turns"] >= 20
    assert not ledger.faults


def test_a_plan_comes_from_its_seed_and_begins_with_one_of_each_kind() -> None:
    first, again = (blows(random.Random(SEED), 60.0, 2.0, nodes=True, parted=True) for _ in range(2))
    assert first == again
    assert {blow.kind for blow in first[: len(KINDS)]} == set(KINDS)
    fewer = {blow.kind for blow in blows(random.Random(SEED), 60.0, 2.0, nodes=False)}
    assert fewer == {kind for kind in KINDS if kind != "node killed" and not kind.startswith("cut off")}


class Judged:
    """A client after one turn, with the answer that its second turn ought to get."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.client = Chatter(self.ledger, RawClient("127.0.0.1", 1), "c", 1)
        first = self.client.asked("s/1", [], {})
        self.heads = [[], [*first.prompt, *first.text.encode()]]
        self.asked = self.client.asked("s/2", self.heads[1], {})

    def answer(self, text: str, prompt_tokens: int) -> Answer:
        tree = {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": prompt_tokens}}
        return _json(tree)

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.ledger.faults]


def test_a_client_knows_an_answer_without_history_from_a_wrong_one() -> None:
    """The oracle can fail, in each way by its name."""
    at = Judged()
    whole = len(at.asked.prompt)
    at.client.check_text(at.asked, at.answer(at.asked.text, whole), at.heads[:1])
    assert at.kinds() == []
    words = at.asked.body["messages"][0]["content"]
    bare = at.client.oracle.prompt([], words, named=False)
    forgetful = bytes(at.client.oracle.output(bare, at.asked.body["max_tokens"])).decode()
    at.client.check_text(at.asked, at.answer(forgetful, len(bare)), at.heads[:1])
    at.client.check_text(at.asked, at.answer(at.asked.text, whole + 9), at.heads[:1])
    at.client.check_text(at.asked, at.answer("~" * len(at.asked.text), whole), at.heads[:1])
    at.client.check_repeated(at.asked, at.answer(at.asked.text, whole))
    assert at.kinds() == [NO_HISTORY, DUPLICATED, WRONG_TEXT, NOT_REPLAYED]


@pytest.mark.parametrize("first", [0, 1], ids=["repetition", "gap"])
def test_a_client_sees_a_gap_and_a_repetition_in_a_stream(first: int) -> None:
    at = Judged()
    at.asked = replace(at.asked, text="abcdef")
    at.client.check_stream(at.asked, _stream("abc"))
    assert at.kinds() == []
    at.client.check_stream(at.asked, _stream("abc" + ("abc", "ef")[first]))
    assert at.kinds() == [BROKEN_STREAM]


def test_a_session_that_is_gone_is_a_loss() -> None:
    at = Judged()
    error = {"reason": "session_unknown", "retryable": False}
    with pytest.raises(Hopeless):
        at.client.check_error("s/2", _json({"error": error}, 404))
    assert at.kinds() == [LOST]


def _json(tree: object, status: int = 200) -> Answer:
    return Answer(status, {"content-type": "application/json"}, orjson.dumps(tree))


def _stream(text: str) -> Answer:
    event = {"choices": [{"delta": {"content": text}, "finish_reason": None}]}
    return Answer(200, {"content-type": "text/event-stream"}, b"data: %s\n\n" % orjson.dumps(event))
