"""From a prompt to the waiting queue: sized, resumed where another worker had got, its grammar compiled."""

from __future__ import annotations

from actors.engine import scoring
from actors.engine.context import Context
from actors.engine.core import Core
from actors.engine.effects import CompileGrammar, GrammarReady
from actors.engine.endings import Endings
from actors.engine.following import heard, prompt_digest
from actors.engine.kv.keys import namespace_root
from actors.engine.request import Request, RequestState, Verdict
from actors.engine.sizes import fit
from actors.engine.stop_strings import StopStrings
from actors.engine.stopping import end_tokens, judge
from actors.messages import CANNOT_RESUME, Outcome, Reason


class Entry:
    def __init__(self, core: Core, endings: Endings) -> None:
        self._core = core
        self._endings = endings

    def enter(self, request: Request, context: Context, capacity: int | None, now: float) -> None:
        """`context`: its prompt; the request goes on in it. `capacity`: its session's limit, if any."""
        settings, submit = self._core.settings, request.submit
        prompt = context.tokens
        request.context, request.tokens, request.prompt_len = context, prompt, len(prompt)
        size = fit(len(prompt), submit.sampling.max_tokens, capacity, settings)
        refusal = size if isinstance(size, Verdict) else scoring.unscorable(len(prompt), submit.sampling)
        if refusal is not None:
            self._endings.refuse(request, refusal, now)
            return
        assert not isinstance(size, Verdict), "it was refused"
        request.max_tokens = size
        scoring.begin(self._core, request)
        root = namespace_root(submit.tenant, submit.cache_salt, shared=settings.share_prefix_across_tenants)
        request.keys = context.keys_under(root, settings.page_size)
        request.ends = end_tokens(submit.sampling, settings.eos_ids)
        if submit.sampling.stop:
            request.stops = StopStrings(submit.sampling.stop)
        over = size == 0 and request.scored == len(prompt)
        end = Verdict(Outcome.LENGTH) if over else self._resume(request)
        if end is not None:
            self._endings.decide(request, end, now)
        elif submit.grammar is not None:
            request.move(RequestState.WAITING_GRAMMAR, submit.grammar.kind.value, now)
            self._core.requests.compiling(request)
            request.grammar_asked = True
            self._core.out.append(CompileGrammar(uid=request.uid, grammar=submit.grammar))
        else:
            self._enqueue(request, "accepted", now)

    def compiled(self, result: GrammarReady, now: float) -> None:
        """A grammar is ready, or never will be. The request may be over already."""
        request = self._core.requests.by_uid(result.uid)
        if request is None or request.state is not RequestState.WAITING_GRAMMAR:
            return
        if result.timed_out:
            text = result.error or "the grammar could not be compiled in time"
            self._endings.decide(request, Verdict.abort(Reason.GRAMMAR_TIMEOUT, text, param="grammar"), now)
        elif result.error:
            self._endings.decide(request, Verdict.abort(Reason.GRAMMAR_INVALID, result.error, param="grammar"), now)
        else:
            self._core.requests.compiled(request)
            self._enqueue(request, "grammar compiled", now)

    def _resume(self, request: Request) -> Verdict | None:
        """Go on behind what the client has of another attempt (rule T4), unless that was made from another prompt: a
        session may have got on meanwhile. Its last token may have been the last of all: then only the end was lost."""
        submit = request.submit
        if submit.resumed_prompt and submit.resumed_prompt != prompt_digest(request):
            text = "its worker was lost, and the session has gone on with another turn since"
            return Verdict.abort(Reason.WORKER_LOST, text, param=CANNOT_RESUME)
        verdict = None
        for token in submit.resumed_ids:
            request.tokens.append(token)
            verdict = judge(request, token, self._core.settings)
            if verdict is not None:
                break
        if request.num_output:
            for follower in request.followers:
                self._core.out.append(heard(request, follower.ingress, follower.key, 0))
        return verdict

    def _enqueue(self, request: Request, cause: str, now: float) -> None:
        self._core.fairness.place(request, self._core.forecast.total_tokens(request))
        request.move(RequestState.WAITING, cause, now)
        self._core.requests.enqueue(request)
