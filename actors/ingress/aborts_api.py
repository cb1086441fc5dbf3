"""POST /v1/aborts: end requests wherever they are (rules A1 to A5)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from actors.ingress.auth import caller_of, require_admin
from actors.ingress.core import DEFAULT_TENANT, Ingress
from actors.ingress.errors import Invalid
from actors.ingress.plain_routes import JsonAnswer, body_fields
from actors.ingress.running import Running
from actors.ingress.validate import Fields, check_identifier
from actors.messages import Abort, AbortReport, Reason, Stage, Submit
from actors.ports import WorkerGone

MAX_RIDS = 10_000
WORKER_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Found:
    """What a worker said, or None when it is gone (and its requests with it) or did not answer in time. `asked`: the
    names that it was asked about."""

    worker_id: str
    report: AbortReport | None
    silent: bool = False
    asked: tuple[str, ...] = ()


async def abort_requests(ingress: Ingress, request: Request) -> Response:
    """Body: any of "rid", "rids", "session", "prefix", "all". Unknown names are no error (rule A4).

    Only requests of the caller's tenant are meant; "all" takes a key with `admin`: it ends what other keys began."""
    caller = caller_of(request.scope)
    message = read_abort(await body_fields(ingress, request), caller.tenant)
    if message.all:
        require_admin(caller, "Aborting all requests")
    return JsonAnswer(await abort_everywhere(ingress, message))


async def abort_everywhere(ingress: Ingress, message: Abort) -> dict[str, Any]:
    """End what it names, parked here or at any worker, and report (rule A4)."""
    names = frozenset(message.rids)
    parked = [
        running
        for running in tuple(ingress.router.running)
        if not running.submitted and _matches(running, message, names)
    ]
    for running in parked:
        running.end_here(Reason.CLIENT_ABORT, "Aborted by the client.")
    workers = await ingress.router.reachable_workers()
    found = await _ask_all(ingress, workers, replace(message, remember=False))
    submits = [running.call.submit for running in parked]
    report = merged(message, submits, found)
    if report["unknown"]:
        # Only now is it known that no worker has them: whoever gets one of these later is to remember (rule A5).
        late = Abort(tenant=message.tenant, rids=tuple(report["unknown"]), reason=message.reason)
        found += await _ask_all(ingress, workers, late)
        report = merged(message, submits, found)
    return report


def read_abort(fields: Fields, tenant: str = DEFAULT_TENANT) -> Abort:
    """Raises Invalid naming the field, also when nothing is selected."""
    rid = fields.identifier("rid")
    listed = fields.items("rids", most=MAX_RIDS) or []
    rids = tuple(check_identifier(item, f"rids[{index}]") for index, item in enumerate(listed))
    message = Abort(
        tenant=tenant,
        rids=(rid, *rids) if rid is not None else rids,
        session_id=fields.identifier("session"),
        rid_prefix=fields.identifier("prefix"),
        all=fields.flag("all"),
    )
    if not (message.rids or message.session_id or message.rid_prefix or message.all):
        raise Invalid("rid", "Name what to abort: `rid`, `rids`, `session`, `prefix` or `all`.")
    return message


def merged(message: Abort, parked: Sequence[Submit], found: Iterable[Found]) -> dict[str, Any]:
    """One report out of all: a name is unknown when nobody knows it, be it a batch's whose parts were hit (rule A2).
    `parked`: requests that were hit before a worker had them. `unreachable`: workers that were told but have
    not answered, so that what runs there may be missing from the report."""
    hit = [{"rid": one.rid, "stage": Stage.ROUTING.value, "worker": None} for one in parked]
    ended: dict[str, None] = {}
    batches: set[str] = set()
    unreachable: list[str] = []
    for one in found:
        if one.silent and one.worker_id not in unreachable:
            unreachable.append(one.worker_id)
        if one.report is not None:
            hit += [{"rid": h.rid, "stage": h.stage.value, "worker": one.worker_id} for h in one.report.hit]
            ended.update(dict.fromkeys(one.report.already_ended))
            batches.update(set(one.asked) - {*one.report.already_ended, *one.report.unknown})
    known = {str(entry["rid"]) for entry in hit} | {one.batch for one in parked} | batches
    return {
        "object": "abort.report",
        "hit": hit,
        "already_ended": [rid for rid in ended if rid not in known],
        "unknown": [rid for rid in dict.fromkeys(message.rids) if rid not in known and rid not in ended],
        "unreachable": unreachable,
    }


def _matches(running: Running, message: Abort, names: frozenset[str]) -> bool:
    submit, use = running.call.submit, running.call.session
    if submit.tenant != message.tenant:
        return False
    in_session = use is not None and message.session_id is not None and use.session_id == message.session_id
    called = submit.batch if use is not None and use.whole else submit.rid
    by_prefix = message.rid_prefix is not None and called.startswith(message.rid_prefix)
    by_name = submit.rid in names or submit.batch in names
    return message.all or by_name or in_session or by_prefix


async def _ask_all(ingress: Ingress, workers: list[str], message: Abort) -> list[Found]:
    return list(await asyncio.gather(*(_ask(ingress, worker_id, message) for worker_id in workers)))


async def _ask(ingress: Ingress, worker_id: str, message: Abort) -> Found:
    try:
        answer = await asyncio.wait_for(ingress.pool.worker(worker_id).ask(message), WORKER_ANSWER_S)
    except WorkerGone:
        return Found(worker_id, None)
    except asyncio.TimeoutError:
        return Found(worker_id, None, silent=True)
    return Found(worker_id, answer if isinstance(answer, AbortReport) else None, asked=message.rids)
