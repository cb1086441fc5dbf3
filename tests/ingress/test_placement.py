"""Stateless placement: sticky, balanced, minimal movement, and a cap on load (rules P4, P5)."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from actors.ingress.placement import LOAD_SLACK, affinity_key, choose, loads, opening, ready, rendezvous
from actors.ingress.prompts import PREFIX_CHARACTERS, IdsPrompt, TextPrompt
from actors.ports import Member

KEYS = [f"key-{number}" for number in range(2000)]
HEADERS = ("x-session-id", "x-other")
WORKERS = st.lists(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=1, max_size=8, unique=True)


@given(st.text(max_size=20), WORKERS, st.randoms())
def test_everybody_who_sees_the_same_workers_chooses_alike(key: str, workers: list[str], random: object) -> None:
    shuffled = list(workers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rendezvous(key, workers) == rendezvous(key, shuffled)
    assert sorted(rendezvous(key, workers)) == sorted(workers)


@given(st.text(max_size=20), WORKERS)
def test_removing_a_worker_moves_only_its_own_keys(key: str, workers: list[str]) -> None:
    order = rendezvous(key, workers)
    for lost in workers:
        left = [worker for worker in workers if worker != lost]
        assert rendezvous(key, left) == [worker for worker in order if worker != lost]


def test_keys_spread_evenly_and_a_new_worker_takes_its_share() -> None:
    four, five = [f"w{i}" for i in range(4)], [f"w{i}" for i in range(5)]
    before = {key: rendezvous(key, four)[0] for key in KEYS}
    counts = [list(before.values()).count(worker) for worker in four]
    assert max(counts) < 2 * min(counts)
    moved = [key for key in KEYS if rendezvous(key, five)[0] != before[key]]
    assert 0.1 < len(moved) / len(KEYS) < 0.3
    assert all(rendezvous(key, five)[0] == "w4" for key in moved)


@given(st.text(max_size=20), st.dictionaries(st.text("abc", min_size=1), st.integers(0, 100), min_size=1))
def test_no_worker_is_chosen_far_above_the_fair_share(key: str, held: dict[str, int]) -> None:
    chosen = choose(key, held)
    assert chosen is not None
    fair = (sum(held.values()) + 1) / len(held)
    assert held[chosen] < max(LOAD_SLACK, 1.25 * fair)


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 100), min_size=1))
def test_without_a_key_the_least_loaded_is_chosen(held: dict[str, int]) -> None:
    chosen = choose(None, held)
    assert chosen is not None
    assert held[chosen] == min(held.values())


def test_a_hot_key_spreads_and_comes_home() -> None:
    held = dict.fromkeys(["a", "b", "c"], 0)
    home = choose("hot", held)
    assert home is not None
    for _ in range(30):
        chosen = choose("hot", held)
        assert chosen is not None
        held[chosen] += 1
    assert max(held.values()) - min(held.values()) < 10
    assert choose("hot", dict.fromkeys(held, 0)) == home


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=5), st.integers(1, 40))
def test_requests_spread_though_heartbeats_still_show_those_that_have_ended(
    shown: list[tuple[int, int]], requests: int
) -> None:
    """P4: an ingress knows what it has on each worker now, whatever their last heartbeats tell of it. Of others it
    knows that alone."""
    members = [
        Member(f"w{at}", "READY", mine + others, load_of={"me": mine, "other": others})
        for at, (mine, others) in enumerate(shown)
    ]
    open_now: Counter[str] = Counter()
    for _ in range(requests):
        chosen = choose(None, loads(members, "me", open_now))
        assert chosen is not None
        open_now[chosen] += 1
    totals = [open_now[f"w{at}"] + others for at, (_, others) in enumerate(shown)]
    filled = [total for total, (_, others) in zip(totals, shown, strict=True) if total > others]
    assert max(filled) - min(totals) <= 1


def test_what_a_worker_does_not_tell_apart_is_anybodys() -> None:
    members = [Member("a", "READY", 5), Member("b", "READY", 2)]
    assert loads(members, "me", {"a": 1, "b": 3}) == {"a": 5, "b": 3}


def test_nobody_to_choose_from() -> None:
    assert choose("key", {}) is None
    assert choose(None, {}) is None


def test_only_ready_workers_take_requests() -> None:
    members = [Member("a", "READY", 0), Member("b", "SUSPECT", 0), Member("c", "DRAINING", 0), Member("d", "ready", 0)]
    assert [member.worker_id for member in ready(members)] == ["a", "d"]


def test_affinity_comes_from_headers_then_the_cache_key_then_the_opening() -> None:
    """P5."""
    both = {"x-session-id": "1", "x-other": "2"}
    assert affinity_key(both, HEADERS, "k", "opening:x") == "header:1"
    assert affinity_key({"x-other": "2"}, HEADERS, "k", "opening:x") == "header:2"
    assert affinity_key({}, HEADERS, "k", "opening:x") == "cache:k"
    assert affinity_key({}, HEADERS, None, "opening:x") == "opening:x"
    assert affinity_key({}, HEADERS, None, None) is None


def test_conversations_that_begin_alike_have_one_opening() -> None:
    """P5: the system prompt and the first user message."""
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert opening(messages) == opening([*messages, {"role": "assistant", "content": "a"}])
    assert opening(messages) != opening([messages[0], {"role": "user", "content": "v"}])
    assert opening(messages) != opening(messages[1:])
    assert opening([{"role": "assistant", "content": "a"}]) is None


def test_plain_prompts_that_begin_alike_have_one_opening() -> None:
    """P5: text, and ids."""
    long = "x" * PREFIX_CHARACTERS
    assert TextPrompt(long + "a").opening == TextPrompt(long + "b").opening
    assert TextPrompt("a").opening != TextPrompt("b").opening
    assert IdsPrompt((1,) * PREFIX_CHARACTERS + (2,)).opening == IdsPrompt((1,) * PREFIX_CHARACTERS + (3,)).opening
    assert TextPrompt("").opening is None
