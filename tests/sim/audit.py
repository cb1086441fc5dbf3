"""What must hold of a whole cluster, whatever happened: the store's account against what clients were told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

from actors.messages import Grammar, Outcome, SessionMode
from actors.runner.toy import toy_continuation
from tests.engine.driver import expected_under
from tests.sim.ingress import Call
from tests.sim.store import Accepted, SimStore


def audit(calls: Iterable[Call], store: SimStore, modes: dict[int, SessionMode]) -> None:
    """Raise AssertionError with a sentence. `modes`: session mode by generation."""
    calls = list(calls)
    _stored_turns_are_right(store, modes, {call.submit.digest: call.submit.grammar for call in calls})
    by_turn: dict[tuple[str, str], list[Accepted]] = {}
    for one in store.accepted:
        by_turn.setdefault((one.commit.session_id, one.commit.turn.rid), []).append(one)
    for call in calls:
        assert call.left or len(call.ends) == 1, f"E1: {call.name} has {len(call.ends)} ends"
        if call.turn is None:
            prompt = call.submit.input_ids
            wanted = reference(prompt, len(call.ids), call.submit.grammar)
            assert call.ids == wanted, f"{call.name} is not what its prompt gives"
        elif call.ends and call.ends[0].outcome is not Outcome.ABORT:
            _told_turn_is_stored(call, by_turn.get((call.turn["session_id"], call.submit.rid), []))


def reference(prompt: Iterable[int], num_tokens: int, grammar: Grammar | None = None) -> list[int]:
    """What a prompt gives on a fresh worker."""
    if grammar is not None:
        return list(_under(grammar, tuple(prompt))[:num_tokens])
    return toy_continuation(list(prompt), num_tokens)


@cache
def _under(grammar: Grammar, prompt: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(expected_under(grammar, list(prompt), 40))


def _stored_turns_are_right(
    store: SimStore, modes: dict[int, SessionMode], grammars: dict[bytes, Grammar | None]
) -> None:
    """T3, T6, S1: each number once per session, and each rid unless `replace` dropped the turn in between; each text
    that of its whole history; streaming sessions in one line."""
    numbers = Counter((one.commit.generation, one.commit.turn.number) for one in store.accepted)
    for rollback in store.rollbacks:
        numbers.subtract((rollback.generation, turn.number) for turn in rollback.dropped)
    for (generation, number), count in numbers.items():
        assert count <= 1, f"T3: turn {number} of session generation {generation} is stored {count} times"
    present: set[tuple[int, str]] = set()
    rollbacks = list(store.rollbacks)
    for index, one in enumerate(store.accepted):
        while rollbacks and rollbacks[0].after <= index:
            back = rollbacks.pop(0)
            present -= {(back.generation, turn.rid) for turn in back.dropped}
        turn = one.commit.turn
        present -= {(one.commit.generation, rid) for rid in turn.dropped}
        assert (one.commit.generation, turn.rid) not in present, f"T2: {turn.rid} is stored twice"
        present.add((one.commit.generation, turn.rid))
        name = f"{one.commit.session_id} turn {turn.number} ({turn.rid})"
        wanted = tuple(reference(one.prompt, len(turn.output_ids), grammars[turn.digest]))
        assert turn.output_ids == wanted, f"T6: {name} is not what its history gives"
        if modes[one.commit.generation] is SessionMode.STREAMING:
            parent = one.before.rid if one.before else None
            assert turn.parent == parent, f"S3: {name} continues from {turn.parent}, not from {parent}"
            assert turn.number == (one.before.number if one.before else 0) + 1, f"{name}: its number is out of line"


def _told_turn_is_stored(call: Call, named: list[Accepted]) -> None:
    """T1: an acknowledged turn is in the store as it was told; E5: its usage is that of the stored prompt.

    `named`: stored turns of its name: one for each time that the session's id was opened, and one more for each
    rollback that dropped it. Another request may have had the same name, with another body."""
    named = [one for one in named if one.commit.turn.digest == call.submit.digest]
    assert named, f"T1: {call.name} was acknowledged and never stored"
    as_told = [one for one in named if tuple(call.ids) == one.commit.turn.output_ids]
    assert as_told, f"T1: {call.name} was told other tokens than are stored"
    end = call.ends[0]
    accepted = next((one for one in as_told if one.commit.turn.number == end.turn), as_told[-1])
    turn = accepted.commit.turn
    assert end.turn == turn.number, f"{call.name} was told turn {end.turn}, stored is {turn.number}"
    assert end.prompt_tokens == len(accepted.prompt), f"E5: {call.name} was told {end.prompt_tokens} prompt tokens"
    assert end.cached_tokens < max(1, len(accepted.prompt)), f"E5: {call.name}: all of its prompt cached"
    given = call.submit.input_ids
    assert accepted.prompt[len(accepted.prompt) - len(given) :] == given, f"{call.name}: its input is not at the end"
