"""A runner that emits a given list of tokens: for tests of text, stop strings and the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from actors.engine.plan import NUM_RESERVED_PAGES, StepPlan, StepResult
from actors.messages import TokenLogprobs
from actors.runner.base import RunnerInfo
from actors.runner.copied import Copied, check_length


class ScriptHandle:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def wait(self) -> StepResult:
        return self._result


class ScriptRunner:
    """Implements `ModelRunner`. Every request's n-th output token is `script[n]`, and the EOS id after the last.

    What is scripted is certain: every token of a prompt has the log probability 0.
    `fails(uid, output_index)` may name a request whose row breaks (a fault for tests): its message, or None.
    """

    def __init__(
        self,
        script: Sequence[int],
        *,
        vocab_bytes: Sequence[bytes],
        eos_id: int,
        page_size: int = 16,
        kv_tokens: int = 4096,
        max_context: int = 2048,
        fails: Callable[[int, int], str | None] = lambda uid, index: None,
    ) -> None:
        self._script = list(script)
        self._eos = eos_id
        self._fails = fails
        self._info = RunnerInfo(
            name="script",
            vocab_size=len(vocab_bytes),
            page_size=page_size,
            num_pages=kv_tokens // page_size + NUM_RESERVED_PAGES,
            max_context=max_context,
            eos_ids=frozenset({eos_id}),
            vocab_bytes=tuple(vocab_bytes),
            description="script: emits a given list of tokens",
            weights="script",
        )

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def matchers(self) -> None:
        return None

    def launch(self, plan: StepPlan) -> ScriptHandle:
        sampled: dict[int, int] = {}
        failed: dict[int, str] = {}
        for item in plan.each():
            message = self._fails(item.uid, item.output_index)
            if message is not None:
                failed[item.uid] = message
            elif item.samples:
                over = item.output_index >= len(self._script)
                sampled[item.uid] = self._eos if over else self._script[item.output_index]
        certain: TokenLogprobs = (0.0, ())
        scores = {item.uid: (certain,) * len(item.scored) for item in plan.items if item.scored}
        return ScriptHandle(StepResult(sampled=sampled, failed=failed, scores=scores))

    def read_pages(self, pages: Sequence[int]) -> Copied[bytes]:
        """There is nothing in them: `page_bytes` is 0."""
        return Copied(b"")

    def write_pages(self, pages: Sequence[int], data: bytes) -> Copied[None]:
        check_length(pages, data, self._info)
        return Copied(None)

    def close(self) -> None:
        """Nothing is held."""
