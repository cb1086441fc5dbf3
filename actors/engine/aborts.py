"""Ending requests from outside: by attempt, by name, by session, by prefix, all (rules A1–A5, A7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from actors.engine.core import Core
from actors.engine.endings import Endings
from actors.engine.following import Following
from actors.engine.request import Request, Verdict
from actors.messages import Abort, AbortHit, AbortReport, Reason


class Aborts:
    def __init__(self, core: Core, endings: Endings, following: Following) -> None:
        self._core = core
        self._endings = endings
        self._following = following

    def abort(self, abort: Abort, now: float) -> AbortReport:
        """End what the selectors name, remember what is not known yet, and say what was hit where."""
        verdict = Verdict.abort(abort.reason, "aborted")
        hits = self._leave(abort.keys, verdict, now)
        left = {hit.key for hit in hits}
        rest = replace(abort, keys=tuple(key for key in abort.keys if key not in left))
        chosen = [request for request in self._selected(rest) if request.can_be_aborted]
        hit_names = {hit.rid for hit in hits} | {rid for request in chosen for _, rid in request.names}
        hits += [self._end(request, verdict, now) for request in chosen]
        already, unknown = self._missed(abort, hit_names, now)
        return AbortReport(hit=tuple(hits), already_ended=tuple(already), unknown=tuple(unknown))

    def abort_ingress(self, ingress: str, now: float) -> None:
        """Everything a dead ingress asked for."""
        live = self._core.requests.live()
        followers = [f.key for request in live for f in request.followers if f.ingress == ingress]
        first = [request.submit.key for request in live if request.submit.ingress == ingress]
        gone = Verdict.abort(Reason.CLIENT_DISCONNECT)
        self._leave([*followers, *first], gone, now)
        self._end_all(
            [r for r in self._core.requests.live() if r.submit.ingress == ingress], Reason.CLIENT_DISCONNECT, now
        )

    def _leave(self, keys: Iterable[str], verdict: Verdict, now: float) -> list[AbortHit]:
        """Attempts that are named while others listen to the same request: only they end."""
        hits = [self._following.leave(key, verdict, now) for key in keys]
        return [hit for hit in hits if hit is not None]

    def abort_everything(self, reason: Reason, now: float) -> None:
        self._end_all(self._core.requests.live(), reason, now)

    def _end_all(self, requests: list[Request], reason: Reason, now: float) -> None:
        for request in requests:
            if request.can_be_aborted:
                self._end(request, Verdict.abort(reason), now)

    def _end(self, request: Request, verdict: Verdict, now: float) -> AbortHit:
        hit = AbortHit(rid=request.submit.rid, key=request.submit.key, stage=request.stage)
        self._endings.decide(request, verdict, now)
        return hit

    def _selected(self, abort: Abort) -> list[Request]:
        requests = self._core.requests
        named = [request for key in abort.keys if (request := requests.by_key(key)) is not None]
        named += [request for rid in abort.rids if rid for request in requests.by_rid(abort.tenant, rid)]
        chosen = {request.uid: request for request in named}
        if abort.all or abort.session_id is not None or abort.rid_prefix:
            for request in requests.live():
                if self._swept(abort, request):
                    chosen[request.uid] = request
        return sorted(chosen.values(), key=lambda request: request.uid)

    @staticmethod
    def _swept(abort: Abort, request: Request) -> bool:
        submit = request.submit
        if submit.tenant != abort.tenant:
            return False
        if abort.all or (abort.rid_prefix and request.called.startswith(abort.rid_prefix)):
            return True
        return submit.turn is not None and submit.turn.session_id == abort.session_id

    def _missed(self, abort: Abort, hit: set[str], now: float) -> tuple[list[str], list[str]]:
        """Names that no live request had: those that ended a moment ago, and those never seen, which are remembered
        in case the abort overtook its request (rule A5)."""
        core = self._core
        already, unknown = [], []
        for rid in abort.rids:
            name = (abort.tenant, rid)
            if not rid or rid in hit:
                continue
            if core.requests.by_rid(*name) or core.ended.has(name, now):
                already.append(rid)
                continue
            unknown.append(rid)
            if abort.remember:
                core.tombstones.add(name, now)
        for key in abort.keys:
            if core.requests.by_key(key) is None and not core.ended.has(key, now):
                core.tombstones.add(key, now)
        return already, unknown
