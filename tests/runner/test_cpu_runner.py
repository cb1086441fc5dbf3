"""The cpu runner's own promises: what it computes, that it is the torch runner's equal, and what it refuses."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.engine.plan import PlanItem, StepPlan
from actors.messages import Outcome, Reason, SamplingParams
from actors.model.errors import ModelUnusable
from actors.runner.cpu import load as load_module
from actors.runner.cpu.load import packed_bytes
from actors.runner.cpu.runner import CpuRunner, why_not
from actors.runner.torch.group import RankGroup
from kernels.cpu import library as library_module
from kernels.cpu.library import load
from tests.engine.driver import Driver
from tests.kernels.cpu.builds import unusable
from tests.runner import tiny

Saved = Callable[[str], tuple[Path, Any]]
NUM_TOKENS = 120


@pytest.fixture(autouse=True, scope="module")
def _built() -> None:
    """Compiled if it is not; skips where this machine cannot."""
    if why := unusable("float32"):
        pytest.skip(why)


def bfloat16_or_skip() -> str:
    if why := unusable("bfloat16"):
        pytest.skip(why)
    return "bfloat16"


@pytest.mark.parametrize("kind", tiny.FUSED_KINDS)
def test_greedy_tokens_equal_transformers_under_chunking_sharing_preemption_and_overlap(
    saved: Saved, kind: str
) -> None:
    """I3, K3, K4: the hardest schedule there is, for every family that it computes."""
    folder, model = saved(kind)
    tiny.assert_greedy_on_the_hardest_schedule(tiny.cpu_runner(folder, kv_tokens=320), model, NUM_TOKENS)


@pytest.mark.parametrize("quantization", ["", "int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_reply_is_the_same_whatever_its_schedule(saved: Saved, dtype: str, quantization: str) -> None:
    """I3: not nearly the same: every token, drawn at a temperature too, in bf16 and int8 too, alone and in a crowd that
    is chunked, preempted and overlapped. A reply can be replayed on another worker, whatever else that does."""
    folder, _ = saved("wide-untied")
    if why := unusable(dtype, quantization):
        pytest.skip(why)
    drawn = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=1.0, seed=5, logprobs=3)
    prompts = [tiny.prompt(n) for n in (3, 40, 80, 16)]
    replies = []
    for kv_tokens, max_step_tokens, depth, threads in ((4096, 256, 0, 1), (400, 5, 1, 3)):
        runner = tiny.cpu_runner(folder, dtype=dtype, quantization=quantization, kv_tokens=kv_tokens, threads=threads)
        driver = Driver(runner, max_step_tokens=max_step_tokens, depth=depth)
        alone = kv_tokens == 4096
        told = []
        for index, ids in enumerate(prompts):
            told.append(driver.submit(f"r{index}", ids, sampling=drawn))
            if alone:
                driver.run(steps=20_000)
        driver.run(steps=20_000)
        assert (driver.engine.snapshot().preemptions > 0) != alone
        replies.append([(answer.ids, answer.logprobs) for answer in told])
        runner.close()
    assert replies[0] == replies[1]


def test_half_precision_follows_float32(saved: Saved) -> None:
    """bf16's tokens are as likely as float32's as far as its precision goes."""
    folder, model = saved("wide-llama")
    runner = tiny.cpu_runner(folder, dtype=bfloat16_or_skip())
    ids = tiny.prompt(60)
    (told,) = tiny.generate(Driver(runner), [ids], NUM_TOKENS)
    with torch.inference_mode():
        logits = model(torch.tensor([[*ids, *told.ids]])).logits[0, len(ids) - 1 : -1]
    short = logits.max(dim=1).values - logits.gather(1, torch.tensor(told.ids)[:, None])[:, 0]
    assert short.max() < 0.05 * logits.abs().max()
    runner.close()


def test_int8_has_pages_of_its_own(saved: Saved) -> None:
    """K7: K and V of other products: a session goes on where its KV was computed alike, or is prefilled. Pages are as
    large as before, and the weights' name is the same, as it is for another dtype."""
    folder, _ = saved("wide-llama")
    if why := unusable("float32", "int8"):
        pytest.skip(why)
    plain, other = tiny.cpu_runner(folder), tiny.cpu_runner(folder, quantization="int8")
    assert other.info.kv_format == plain.info.kv_format + ", int8 weights"
    assert (other.info.page_bytes, other.info.weights) == (plain.info.page_bytes, plain.info.weights)
    assert "fused float32 step with int8 weights and activations on cpu" in other.info.description
    assert packed_bytes(other._setup) < packed_bytes(plain._setup) / 2
    for runner in (plain, other):
        runner.close()


def test_int8_is_refused_by_the_torch_runner(saved: Saved) -> None:
    with pytest.raises(ModelUnusable, match="int8 weights are computed by the cpu runner alone"):
        tiny.runner(saved("wide-llama")[0], quantization="int8")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("first", ["cpu", "torch"])
def test_pages_go_on_in_the_other_runner(saved: Saved, first: str, page_size: int, dtype: str) -> None:
    """K7: a session may be resumed where the other one serves: same format, same length, same tokens."""
    folder, model = saved("wide-llama")
    if dtype == "bfloat16":
        bfloat16_or_skip()
    settings: dict[str, Any] = {"dtype": dtype, "page_size": page_size, "kv_tokens": 1024}
    cpu, plain = tiny.cpu_runner(folder, **settings), tiny.runner(folder, **settings)
    one, other = (cpu, plain) if first == "cpu" else (plain, cpu)
    assert (one.info.kv_format, one.info.page_bytes) == (other.info.kv_format, other.info.page_bytes)
    ids = tiny.prompt(page_size + 5)
    pages = [3, 2]

    def step(runner: Any, start: int, tokens: list[int], table: list[int]) -> int:
        item = PlanItem(1, start, len(tokens), tokens, table, True, False, SamplingParams(), 0, len(ids))
        token: int = runner.launch(StepPlan(1, (item,))).wait().sampled[1]
        return token

    reply = [step(one, 0, ids, pages)]
    data = one.read_pages(pages).wait()
    other.write_pages([7, 9], data).wait()
    assert other.read_pages([7, 9]).wait() == data
    while len(reply) < 10:
        reply.append(step(other, len(ids) + len(reply) - 1, reply[-1:], [7, 9]))
    if dtype == "float32":
        tiny.assert_greedy(model, ids, reply)
    for runner in (one, other):
        runner.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_whose_logits_are_not_finite_ends_alone(saved: Saved, value: float) -> None:
    """N52: that request ends `internal`; the others' tokens are what they would have been without it."""
    folder, _ = saved("wide-untied")
    settings = SamplingParams(max_tokens=30, ignore_eos=True, logit_bias=((150, -90),))
    prompts = [[token for token in tiny.prompt(20 + i) if token != 150] for i in range(3)]
    replies = []
    for broken in (False, True):
        runner = tiny.cpu_runner(folder)
        assert runner._model is not None
        runner._model.decoder.embedding[150] = value
        driver = Driver(runner, max_step_tokens=32)
        told = [driver.submit(f"r{i}", ids, sampling=settings) for i, ids in enumerate(prompts)]
        if broken:
            poisoned = driver.submit("bad", [4, 150, 5], sampling=settings)
        driver.run()
        replies.append([answer.ids for answer in told])
        runner.close()
    assert replies[0] == replies[1]
    assert all(len(ids) == 30 for ids in replies[0])
    assert poisoned.end is not None
    assert (poisoned.end.outcome, poisoned.end.reason) == (Outcome.ABORT, Reason.INTERNAL)


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("llama", {}, "hidden_size 48 is not a multiple of 32"),
        ("wide-llama", {"page_size": 4}, "page_size 4 is not a multiple of 16"),
        ("wide-llama", {"dtype": "float16"}, "it does not compute in float16"),
        ("wide-llama", {"group": RankGroup(0, 2)}, "not a rank's part"),
        ("wide-llama", {"kv_tokens": 2**50}, r"no memory for a KV cache of \d+ tokens"),
        ("wide-llama", {"max_context": 513}, "the model has 512"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_reason(
    saved: Saved, kind: str, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelUnusable, match=reason):
        tiny.cpu_runner(saved(kind)[0], **settings)


def test_its_weights_take_memory_beside_the_cache(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed they are the process's own: a model that does not fit is refused, and gets nobody killed."""
    folder, _ = saved("wide-untied")
    runner = tiny.cpu_runner(folder)
    cache = runner.info.num_pages * runner.info.page_bytes
    runner.close()
    monkeypatch.setattr(load_module, "available_bytes", lambda: cache + 1)
    with pytest.raises(ModelUnusable, match=r"beside weights of .*lower engine.kv_tokens"):
        tiny.cpu_runner(folder)


def asked(folder: Path, **settings: Any) -> str:
    plain = {"dtype": "float32", "device": "cpu", "page_size": 0, "kv_tokens": 4096, "attention": "auto"}
    return why_not(folder, **{**plain, **settings})


def test_whether_it_can_serve_is_known_before_anything_is_loaded(
    saved: Saved, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = saved("wide-llama")[0]
    assert asked(folder) == ""
    assert "not on meta" in asked(folder, device="meta")
    assert "torch is asked for" in asked(folder, attention="torch")
    assert "hidden_size 48" in asked(saved("llama")[0])
    load.cache_clear()
    monkeypatch.setattr(library_module, "LIBRARIES", tmp_path)
    assert "is not built" in asked(folder)
    load.cache_clear()
    monkeypatch.setattr(library_module, "cpu_flags", lambda: frozenset({"sse2"}))
    assert "no build computes float32 on this CPU: it lacks some of" in asked(folder)
    load.cache_clear()


def test_a_closed_runner_lets_go_of_its_kv(saved: Saved) -> None:
    """`close` gives the memory back, whoever still holds the runner; twice is once."""
    runner = tiny.cpu_runner(saved("wide-llama")[0])
    assert runner._model is not None
    kv = weakref.ref(runner._model.kv)
    runner.close()
    runner.close()
    gc.collect()
    assert kv() is None


def test_it_says_what_it_is(saved: Saved) -> None:
    runner = tiny.cpu_runner(saved("wide-llama")[0], remark="because")
    assert isinstance(runner, CpuRunner)
    assert runner.info.name == "cpu"
    assert "fused float32 step on cpu" in runner.info.description
    assert runner.info.description.endswith("2 threads (because)")
    runner.close()
