"""Messages ↔ bytes: nothing is lost, older and newer readers get along."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import messages as m
from actors import wire

ids = st.lists(st.integers(0, 2**31 - 1), max_size=20).map(tuple)
text = st.text(max_size=20)
sampling = st.builds(m.SamplingParams, seed=st.integers(0, 2**63), stop=st.lists(text).map(tuple), stop_token_ids=ids)
turns = st.builds(
    m.TurnOf, session_id=text, generation=st.integers(0, 9), epoch=st.integers(0, 9), parent=st.none() | text
)
submits = st.builds(
    m.Submit,
    key=text,
    rid=text,
    ingress=text,
    tenant=text,
    input_ids=ids,
    sampling=sampling,
    root_ids=st.none() | ids,
    turn=st.none() | turns,
    deadline_s=st.none() | st.floats(0, 1e6),
)
finished = st.builds(
    m.Finished,
    ingress=text,
    key=text,
    outcome=st.sampled_from(m.Outcome),
    reason=st.none() | st.sampled_from(m.Reason),
    stage=st.none() | st.sampled_from(m.Stage),
    matched=st.none() | text,
)
hits = st.builds(m.AbortHit, rid=text, key=text, stage=st.sampled_from(m.Stage))
reports = st.builds(m.AbortReport, hit=st.lists(hits).map(tuple), unknown=st.lists(text).map(tuple))
count = st.integers(0, 2**40)
infos = st.builds(
    m.SessionInfo,
    mode=st.sampled_from(m.SessionMode),
    generation=count,
    epoch=count,
    turns=count,
    tokens=count,
    resident_tokens=count,
    queued=count,
    idle_s=st.floats(0, 1e9),
)
replies = st.builds(m.Reply, ask=st.integers(0, 99), value=st.none() | st.integers(0, 9) | reports | infos)
tokens = st.builds(m.Tokens, ingress=text, key=text, index=st.integers(0, 99), ids=ids)


pauses = st.builds(m.Pause, mode=st.sampled_from(m.PauseMode), ask=count) | st.builds(m.Resume, ask=count)


@given(submits | finished | replies | tokens | pauses | st.builds(m.Abort, keys=st.lists(text).map(tuple)))
def test_round_trip(message: object) -> None:
    assert wire.decode(wire.encode(message)) == message


@given(st.integers(1, 99), st.lists(tokens | finished | replies, max_size=5))
def test_frame_round_trip(number: int, events: list[m.Event]) -> None:
    assert wire.decode_frame(wire.encode_frame(number, events)) == (number, events)


def test_reader_ignores_fields_it_does_not_know_and_defaults_those_it_misses() -> None:
    """design.md, messages: unknown trailing fields are ignored."""
    message = m.IngressLost(ingress="i")
    values = msgpack.unpackb(wire.encode(message))
    assert wire.decode(msgpack.packb([*values, "from the future"])) == message
    event = m.Finished(ingress="i", key="k", outcome=m.Outcome.STOP)
    values = msgpack.unpackb(wire.encode(event))
    assert wire.decode(msgpack.packb(values[:5])) == event


@pytest.mark.parametrize("data", [b"", b"\xc1", msgpack.packb([99, 1]), msgpack.packb([1, 999]), msgpack.packb(5)])
def test_what_is_no_message_is_an_error(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(data)


def test_token_ids_cost_four_bytes_each() -> None:
    event = m.Tokens(ingress="i", key="k", index=0, ids=tuple(range(1000)))
    assert len(wire.encode(event)) < 4100
