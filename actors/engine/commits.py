"""What came of a step: tokens are appended and told, ends are decided, pages become shareable or come back."""

from __future__ import annotations

from dataclasses import replace

from actors.engine import scoring
from actors.engine.core import Core
from actors.engine.endings import Endings
from actors.engine.following import prompt_digest
from actors.engine.plan import Decodes, PlanItem, StepPlan, StepResult
from actors.engine.request import Request, RequestState, Verdict
from actors.engine.stopping import judge
from actors.messages import Outcome, Reason, StepTokens, TokenLogprobs, Tokens

PREFILL, STOPPING, COMMITTING = RequestState.PREFILL, RequestState.STOPPING, RequestState.COMMITTING
"""By names that are looked up faster: each request of each step asks for them."""


class Commits:
    def __init__(self, core: Core, endings: Endings) -> None:
        self._core = core
        self._endings = endings

    def commit(self, plan: StepPlan, result: StepResult, now: float) -> None:
        self._core.totals.steps += 1
        decoding = self._core.decoding.popleft()
        if result.failed or result.dead_ends:
            for item in plan.decodes.items():
                self._commit_item(item, result, now)
        else:
            self._commit_decodes(plan.decodes, decoding, result, now)
        for item in plan.items:
            self._commit_item(item, result, now)

    def _commit_decodes(self, decodes: Decodes, requests: list[Request], result: StepResult, now: float) -> None:
        """As `_commit_item` does it for each, none of which failed.

        This is what a step costs for each request of the batch, so those that are plain are asked no more than they
        must, and told together."""
        core, page_size = self._core, self._core.settings.page_size
        told: dict[str, StepTokens] = {}
        ingress: str | None = None
        tokens = [result.sampled[request.uid] for request in requests]
        for row, request, start, token in zip(decodes.rows, requests, decodes.starts, tokens, strict=True):
            if not request.plain:
                self._commit_item(row.item(start), result, now)
                continue
            end, submit = start + 1, request.submit
            request.inflight -= 1
            request.computed = end
            if not end % page_size:
                core.kv.publish(request.uid, end, in_flight=request.inflight > 0)
            request.tokens.append(token)
            if submit.ingress != ingress:
                ingress = submit.ingress
                event = told.get(ingress) or self._tell(told, ingress)
                keys, indexes, ids = event.keys, event.indexes, event.ids
            keys.append(submit.key)
            indexes.append(end - request.prompt_len)
            ids.append(token)
            if end >= request.decodes_until or token in request.ends:
                self._judge(request, token, now)
        core.totals.output_tokens += sum(len(event.ids) for event in told.values())

    def _tell(self, told: dict[str, StepTokens], ingress: str) -> StepTokens:
        """The event that says what this step has for an ingress: it leaves before the ends that the step decides."""
        event = told[ingress] = StepTokens(ingress)
        self._core.out.append(event)
        return event

    def _commit_item(self, item: PlanItem, result: StepResult, now: float) -> None:
        request = self._core.requests.by_uid(item.uid)
        if request is None:
            raise AssertionError(f"plan names request {item.uid}, which is gone")
        request.inflight -= 1
        if request.state is STOPPING:
            if not request.inflight:
                self._endings.returned(request, now)
            return
        if request.state is COMMITTING:
            return
        if result.failed and item.uid in result.failed:
            verdict = Verdict.abort(Reason.INTERNAL, "this request could not be computed")
            request.story.append(f"{now:.3f} runner: {result.failed[item.uid]}")
            self._endings.decide(request, verdict, now)
            return
        if result.dead_ends and item.uid in result.dead_ends:
            verdict = Verdict.abort(Reason.GRAMMAR_INVALID, result.dead_ends[item.uid])
            self._endings.decide(request, verdict, now)
            return
        request.computed = item.start + item.count
        self._core.kv.publish(request.uid, request.computed, in_flight=request.inflight > 0)
        if item.scored:
            scoring.committed(self._core, request, item, result.scores[item.uid])
        if item.samples:
            told = (result.logprobs[item.uid],) if item.uid in result.logprobs else ()
            self._append(request, result.sampled[item.uid], told, now)
        elif request.max_tokens == 0 and request.computed == request.prompt_len:
            self._endings.decide(request, Verdict(Outcome.LENGTH), now)

    def _append(self, request: Request, token: int, told: tuple[TokenLogprobs, ...], now: float) -> None:
        """A token was chosen: it is told, and may be the last. `told`: its log probability, where that is asked for."""
        submit, index = request.submit, len(request.tokens) - request.prompt_len
        request.tokens.append(token)
        self._core.totals.output_tokens += 1
        if told:
            request.logprobs.extend(told)
        prompt = b"" if index > len(submit.resumed_ids) else prompt_digest(request)
        event = Tokens(submit.ingress, submit.key, index, (token,), prompt, told)
        self._core.out.append(event)
        for follower in request.followers:
            self._core.out.append(replace(event, ingress=follower.ingress, key=follower.key))
        if request.state is PREFILL:
            request.move(RequestState.DECODE, "prompt computed", now)
        self._judge(request, token, now)

    def _judge(self, request: Request, token: int, now: float) -> None:
        verdict = judge(request, token, self._core.settings)
        if verdict is not None:
            self._endings.decide(request, verdict, now)
