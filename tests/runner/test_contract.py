"""What every runner owes the engine: the same tests for toy, script, torch and cpu."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.engine.plan import NUM_RESERVED_PAGES, PlanItem, StepPlan
from actors.messages import SamplingParams
from actors.runner.base import ModelRunner
from actors.runner.script import ScriptRunner
from actors.runner.toy import ToyRunner
from tests.kernels.cpu.builds import unusable
from tests.runner import tiny

Make = Callable[[], ModelRunner]
PAGE, CPU_PAGE, NUM_PAGES = 4, 16, 32
SCRIPT = [11, 12, 13, 14, 15, 16, 17, 18]


@pytest.fixture(params=["toy", "script", "torch", "cpu"])
def make(request: pytest.FixtureRequest, saved: Callable[[str], tuple[Path, Any]]) -> Iterator[Make]:
    made: list[ModelRunner] = []
    if request.param == "cpu" and (why := unusable("float32")):
        pytest.skip(why)

    def new() -> ModelRunner:
        runner: ModelRunner
        if request.param == "toy":
            runner = ToyRunner(page_size=PAGE, kv_tokens=NUM_PAGES * PAGE, max_context=64)
        elif request.param == "script":
            words = [bytes([i]) for i in range(200)]
            runner = ScriptRunner(
                SCRIPT, vocab_bytes=words, eos_id=0, page_size=PAGE, kv_tokens=NUM_PAGES * PAGE, max_context=64
            )
        elif request.param == "cpu":
            sizes = {"page_size": CPU_PAGE, "kv_tokens": NUM_PAGES * CPU_PAGE}
            runner = tiny.cpu_runner(saved("wide-untied")[0], **sizes, max_context=64)
        else:
            runner = tiny.runner(saved("llama-untied")[0], page_size=PAGE, kv_tokens=NUM_PAGES * PAGE, max_context=64)
        made.append(runner)
        return runner

    yield new
    for runner in made:
        runner.close()


def item(uid: int, start: int, tokens: list[int], pages: list[int], **fields: Any) -> PlanItem:
    """An item that samples, its prompt being all there is up to here."""
    pending = fields.pop("pending", False)
    count = len(tokens) + pending
    base = PlanItem(uid, start, count, tokens, pages, True, pending, SamplingParams(), 0, start + count)
    return replace(base, **fields)


def run(runner: ModelRunner, *items: PlanItem, number: int = 1) -> dict[int, int]:
    return runner.launch(StepPlan(number, items)).wait().sampled


def continuation(runner: ModelRunner, uid: int, prompt: list[int], pages: list[int], length: int) -> list[int]:
    """One step per token, each waited for."""
    tokens = [run(runner, item(uid, 0, prompt, pages))[uid]]
    while len(tokens) < length:
        at = len(prompt) + len(tokens) - 1
        tokens.append(run(runner, item(uid, at, tokens[-1:], pages, output_index=len(tokens)))[uid])
    return tokens


def test_info_is_sane(make: Make) -> None:
    info = make().info
    assert info.name
    assert info.description
    assert info.page_size == (CPU_PAGE if info.name == "cpu" else PAGE)
    assert info.num_pages == NUM_PAGES + NUM_RESERVED_PAGES
    assert info.max_context == 64
    assert info.eos_ids
    assert all(0 <= token < info.vocab_size for token in info.eos_ids)
    assert len(info.vocab_bytes) in (0, info.vocab_size)


def test_the_same_plans_give_the_same_tokens(make: Make) -> None:
    """I3."""
    prompt, pages = [5, 6, 7, 8, 9], [2, 3, 4]
    assert continuation(make(), 1, prompt, pages, 6) == continuation(make(), 1, prompt, pages, 6)


def test_only_items_that_sample_are_answered(make: Make) -> None:
    runner = make()
    assert run(runner, item(1, 0, [5, 6, 7], [2], samples=False)) == {}
    assert set(run(runner, item(1, 3, [8], [2]), item(2, 0, [5, 6], [3], samples=False), item(3, 0, [9], [4]))) == {
        1,
        3,
    }


def test_a_prompt_may_come_in_chunks_of_any_size(make: Make) -> None:
    whole, pages = [5, 6, 7, 8, 9, 10, 11], [7, 3]
    expected = run(make(), item(1, 0, whole, pages))[1]
    for cut in range(1, len(whole)):
        runner = make()
        run(runner, item(1, 0, whole[:cut], pages, samples=False))
        assert run(runner, item(1, cut, whole[cut:], pages))[1] == expected


def test_page_tables_are_honoured(make: Make) -> None:
    """Where the pages lie changes nothing, and other requests on other pages do not either."""
    prompt = [5, 6, 7, 8, 9]
    expected = continuation(make(), 1, prompt, [2, 3, 4], 6)
    runner = make()
    continuation(runner, 2, [30, 31, 32, 33, 34, 35], [9, 8, 7], 6)
    assert continuation(runner, 1, prompt, [20, 2, 11], 6) == expected


def test_shared_prefix_pages_are_read(make: Make) -> None:
    """K3: a second request that begins with full pages of the first computes only the rest."""
    runner = make()
    page = runner.info.page_size
    prompt = list(range(5, 5 + page + 2))
    expected = run(runner, item(1, 0, prompt, [5, 6]))[1]
    assert run(runner, item(2, page, prompt[page:], [5, 7]))[2] == expected


def test_steps_run_in_the_order_of_launch_and_pending_tokens_are_filled_in(make: Make) -> None:
    """Depth 1: a step is launched before the token it continues from is known."""
    prompts = {1: [5, 6, 7, 8, 9], 2: [40, 41]}
    pages = {1: [2, 3, 4], 2: [6, 7, 8]}
    expected = {uid: continuation(make(), uid, prompts[uid], pages[uid], 6) for uid in prompts}
    runner = make()
    handles = [runner.launch(StepPlan(1, tuple(item(uid, 0, prompts[uid], pages[uid]) for uid in prompts)))]
    for index in range(1, 6):
        items = [
            item(uid, len(prompts[uid]) + index - 1, [], pages[uid], pending=True, output_index=index)
            for uid in prompts
        ]
        handles.append(runner.launch(StepPlan(index + 1, tuple(items))))
    results = [handle.wait().sampled for handle in handles]
    assert {uid: [result[uid] for result in results] for uid in prompts} == expected


def test_decodes_and_prefills_share_a_step(make: Make) -> None:
    """P7. Decodes come first in a plan; a runner need not rely on it."""
    alone = {1: continuation(make(), 1, [5, 6, 7], [2, 3], 2), 2: continuation(make(), 2, [50, 51, 52], [4], 1)}
    for backwards in (False, True):
        runner = make()
        first = run(runner, item(1, 0, [5, 6, 7], [2, 3]))[1]
        items = [item(1, 3, [first], [2, 3], output_index=1), item(2, 0, [50, 51, 52], [4])]
        together = run(runner, *(reversed(items) if backwards else items))
        assert together == {1: alone[1][1], 2: alone[2][0]}


def test_the_plan_may_change_once_launch_has_returned(make: Make) -> None:
    """The engine's lists live on: everything must have been read."""
    expected = run(make(), item(1, 0, [5, 6, 7, 8, 9], [2, 3]))[1]
    tokens, pages = [5, 6, 7, 8, 9], [2, 3]
    handle = make().launch(StepPlan(1, (item(1, 0, tokens, pages),)))
    tokens.clear()
    pages[:] = [0, 0, 0]
    assert handle.wait().sampled[1] == expected


def moved(runner: ModelRunner, pages: list[int], to: list[int], into: ModelRunner | None = None) -> None:
    """Copy pages out and, of this runner or another, in again."""
    (into or runner).write_pages(to, runner.read_pages(pages).wait()).wait()


def test_pages_that_left_the_cache_go_on_elsewhere(make: Make) -> None:
    """K7: no step can tell them from those they are copies of, whatever became of the old ones, whichever runner of
    this kind they come back to."""
    runner, another = make(), make()
    page, pages = runner.info.page_size, [2, 3, 4, 5]
    prompt = list(range(5, 5 + page + 2))
    expected = continuation(make(), 1, prompt, pages, 8)
    known = continuation(runner, 1, prompt, pages, 3)
    data = runner.read_pages(pages[:2]).wait()
    assert len(data) == 2 * runner.info.page_bytes
    continuation(runner, 2, list(range(30, 30 + page + 3)), pages, 6)  # Nothing is left of what they held.
    for one in (runner, another):
        one.write_pages([20, 11], data).wait()
        got, table = list(known), [20, 11, 7, 8]
        while len(got) < 8:
            at = len(prompt) + len(got) - 1
            got.append(run(one, item(3, at, got[-1:], table, output_index=len(got)))[3])
        assert got == expected


def test_pages_are_read_in_the_order_they_are_asked_for(make: Make) -> None:
    runner = make()
    continuation(runner, 1, list(range(5, 5 + 2 * runner.info.page_size + 1)), [2, 3, 4], 1)
    each = {page: runner.read_pages([page]).wait() for page in (2, 3, 4)}
    assert runner.read_pages([4, 2, 3]).wait() == each[4] + each[2] + each[3]
    assert len(set(each.values())) == (3 if runner.info.page_bytes else 1)
    moved(runner, [4, 2, 3], [9, 8, 7])
    assert runner.read_pages([8, 7, 9]).wait() == each[2] + each[3] + each[4]
    assert runner.read_pages([]).wait() == b""


def test_a_step_that_runs_meanwhile_is_not_touched(make: Make) -> None:
    """K7: copies fall between steps; other pages than those asked for stay as they are."""
    prompt, pages = [5, 6, 7, 8, 9], [2, 3, 4]
    expected = continuation(make(), 1, prompt, pages, 6)
    runner = make()
    continuation(runner, 2, [40, 41, 42, 43, 44], [10, 11], 1)
    tokens = []
    for index in range(6):
        fresh = tokens[-1:] if index else prompt
        one = item(1, 0 if not index else len(prompt) + index - 1, fresh, pages, output_index=index)
        handle = runner.launch(StepPlan(index + 1, (one,)))
        out = runner.read_pages([10, 11])
        tokens.append(handle.wait().sampled[1])
        runner.write_pages([12 + 2 * index, 13 + 2 * index], out.wait()).wait()
    assert tokens == expected


@pytest.mark.parametrize("difference", [-1, 1])
def test_pages_of_another_length_are_refused(make: Make, difference: int) -> None:
    """K7: and nothing of them is taken."""
    runner = make()
    size = runner.info.page_bytes
    before = runner.read_pages([2, 3]).wait()
    for length in {max(0, 2 * size + difference), 2 * size + difference * size} - {2 * size}:
        with pytest.raises(ValueError, match="bytes for 2 pages"):
            runner.write_pages([2, 3], b"\1" * length)
    assert runner.read_pages([2, 3]).wait() == before


def test_a_runner_says_what_its_pages_are(make: Make) -> None:
    """K7: the same every time, and something only where pages can leave."""
    info = make().info
    assert make().info.kv_format == info.kv_format
    assert bool(info.kv_format) == bool(info.page_bytes)


def test_a_closed_runner_lets_go_of_its_kv(saved: Callable[[str], tuple[Path, Any]]) -> None:
    """`close` gives the memory back, whoever still holds the runner; twice is once."""
    runner = tiny.runner(saved("llama")[0])
    assert runner._model is not None
    kv = weakref.ref(runner._model.kv)
    weight = weakref.ref(runner._model.decoder._embedding)
    run(runner, item(1, 0, [5, 6, 7], [2]))
    runner.close()
    runner.close()
    gc.collect()
    assert kv() is None
    assert weight() is None


def test_a_prompt_is_scored_alike_however_it_is_cut(make: Make) -> None:
    """I3: each token by all that stands before it, in whichever chunk; beside a row that samples."""
    whole, pages = [5, 6, 7, 8, 9, 10, 11], [7, 3]
    asked = SamplingParams(logprobs=2, logprob_ids=(3,), prompt_logprobs_from=0)

    def scores(*cuts: int) -> list[Any]:
        runner, told = make(), []
        for begin, end in zip((0, *cuts), (*cuts, len(whole)), strict=True):
            scored = whole[begin + 1 : end + 1]
            chunk = item(1, begin, whole[begin:end], pages, sampling=asked, scored=scored, scored_at=begin)
            plan = StepPlan(1, (replace(chunk, samples=end == len(whole)), item(2, 0, [5, 6], [4])))
            result = runner.launch(plan).wait()
            told += [own for own, _ in result.scores.get(1, ())]
            assert 2 in result.sampled
        return told

    expected = scores()
    assert len(expected) == len(whole) - 1
    for cut in range(1, len(whole)):
        assert scores(cut) == pytest.approx(expected, abs=1e-4)
