"""SGLang's routes for operators: aborting, flushing, pausing. All but aborts of one's own take a key with `admin`."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from actors.ingress.aborts_api import WORKER_ANSWER_S, abort_everywhere
from actors.ingress.auth import caller_of, require_admin
from actors.ingress.core import Ingress
from actors.ingress.errors import ApiError, Invalid
from actors.ingress.plain_routes import JsonAnswer, body_fields
from actors.messages import Abort, FlushCache, PauseMode, Reason, Stage
from actors.ports import WorkerGone


async def abort_request(ingress: Ingress, request: Request) -> Response:
    """POST /abort_request {"rid"} or {"abort_all": true}. Names are met exactly, a batch's name means all its parts
    (rule A2); answered like /v1/aborts."""
    caller = caller_of(request.scope)
    fields = await body_fields(ingress, request)
    everything = fields.flag("abort_all")
    rid = fields.text("rid", max_bytes=256)
    if everything:
        require_admin(caller, "Aborting all requests")
    elif not rid:
        raise Invalid("rid", "Name what to abort: `rid`, or `abort_all`.")
    rids = () if everything or rid is None else (rid,)
    return JsonAnswer(await abort_everywhere(ingress, Abort(tenant=caller.tenant, rids=rids, all=everything)))


async def flush_cache(ingress: Ingress, request: Request) -> Response:
    """POST /flush_cache: drop shared prefixes and the KV of idle sessions on every worker. Histories stay, and so does
    what running requests hold."""
    require_admin(caller_of(request.scope), "Flushing the cache")
    workers = await ingress.router.reachable_workers()
    freed = await asyncio.gather(*(_flush(ingress, worker_id) for worker_id in workers))
    silent = [worker_id for worker_id, pages in zip(workers, freed, strict=True) if pages is None]
    if silent:
        message = f"These workers were told to flush their cache, and have not answered: {', '.join(silent)}."
        raise ApiError(Reason.WORKER_LOST, message, stage=Stage.ROUTING)
    pages = sum(one or 0 for one in freed)
    return PlainTextResponse(
        f"Cache flushed.\n{pages} pages of {len(workers)} workers are free now. Running requests keep theirs.\n"
    )


async def pause_generation(ingress: Ingress, request: Request) -> Response:
    """POST /pause_generation {"mode"?: "abort" | "retract" | "in_place"}: no worker computes anything until
    /continue_generation; what comes meanwhile waits."""
    require_admin(caller_of(request.scope), "Pausing generation")
    fields = await body_fields(ingress, request, optional=True)
    held = await ingress.pool.pause(fields.choice("mode", PauseMode, PauseMode.ABORT))
    return JsonAnswer({"message": "Generation paused successfully.", "status": "ok", **held})


async def continue_generation(ingress: Ingress, request: Request) -> Response:
    """POST /continue_generation."""
    require_admin(caller_of(request.scope), "Continuing generation")
    held = await ingress.pool.resume()
    return JsonAnswer({"message": "Generation continued successfully.", "status": "ok", **held})


async def _flush(ingress: Ingress, worker_id: str) -> int | None:
    """Pages that are free now; None when it does not say. A worker that is gone has none."""
    try:
        answer = await asyncio.wait_for(ingress.pool.worker(worker_id).ask(FlushCache()), WORKER_ANSWER_S)
    except WorkerGone:
        return 0
    except asyncio.TimeoutError:
        return None
    return answer if isinstance(answer, int) else 0
