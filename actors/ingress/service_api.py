"""Routes for operators and clients' start-up: models, health, metrics, stats."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from actors.ingress import metrics, placement, worker_metrics
from actors.ingress.auth import caller_of, require_admin, sees_all
from actors.ingress.core import Ingress
from actors.ingress.errors import model_not_found
from actors.ingress.openapi import document
from actors.ingress.plain_routes import JsonAnswer
from actors.ports import NoWorker
from actors.records import StoreError

HEALTH_ANSWER_S = 1.0
WORKERS_ANSWER_S = 1.0


async def root(ingress: Ingress, request: Request) -> Response:
    return JsonAnswer({"name": "remora", "model": ingress.text.name})


async def openapi(ingress: Ingress, request: Request) -> Response:
    """GET /openapi.json: every route, and every field of its body."""
    return JsonAnswer(document())


async def list_models(ingress: Ingress, request: Request) -> Response:
    name = ingress.text.name
    pages = {"has_more": False, "first_id": name, "last_id": name}
    return JsonAnswer({"object": "list", "data": [_model(ingress)], **pages})


async def get_model(ingress: Ingress, request: Request) -> Response:
    name = request.path_params["model"]
    if name != ingress.text.name:
        raise model_not_found(name, ingress.text.name)
    return JsonAnswer(_model(ingress))


async def health(ingress: Ingress, request: Request) -> Response:
    """200 when a worker is ready, or when there is none because nobody has asked for anything (`asleep`, where
    `autoscale.min_workers` is 0): the next request starts one. Answers within a second even when the pool does not:
    workers serve without it, so for a while its last word counts."""
    pool = "ok"
    try:
        members = await asyncio.wait_for(ingress.router.members(fresh=True), HEALTH_ANSWER_S)
    except (asyncio.TimeoutError, NoWorker):
        members, pool = ingress.router.known_members(), "silent"
    ready = len(placement.ready(members))
    workers = {"ready": ready, "total": len(members)}
    autoscale = ingress.config.autoscale
    asleep = autoscale.enabled and not autoscale.min_workers and not members and pool == "ok"
    status = "ok" if ready else "asleep" if asleep else "unavailable"
    return JsonAnswer({"status": status, "workers": workers, "pool": pool}, 200 if ready or asleep else 503)


async def exposition(ingress: Ingress, request: Request) -> Response:
    if not sees_all(ingress, request):
        require_admin(caller_of(request.scope), "Reading metrics")
    text = ingress.metrics.exposition() + worker_metrics.exposition(await worker_rows(ingress))
    return Response(text, headers={"content-type": metrics.CONTENT_TYPE})


async def worker_rows(ingress: Ingress) -> list[Mapping[str, Any]] | None:
    """None where the pool does not say within a second: the ingress's own figures are shown without them."""
    try:
        status = await asyncio.wait_for(ingress.pool.status(), WORKERS_ANSWER_S)
    except (asyncio.TimeoutError, NoWorker, StoreError):
        return None
    return cast("list[Mapping[str, Any]]", status["workers"])


async def stats(ingress: Ingress, request: Request) -> Response:
    """{"workers": [...], "pool": {...}, "ingress": {...}}: workers as they are now, not as they were. A caller who may
    not see all tenants' sees its own use of this ingress: {"tenant": {...}}."""
    if not sees_all(ingress, request):
        return JsonAnswer({"tenant": _own_use(ingress, caller_of(request.scope).tenant)})
    return JsonAnswer({**await ingress.pool.status(), "ingress": ingress.stats()})


async def rollout(ingress: Ingress, request: Request) -> Response:
    """POST: replace every worker by a new one, one after another. 202 with how it stands; /v1/stats tells how it goes
    on (`pool.rollout`)."""
    require_admin(caller_of(request.scope), "A rollout")
    return JsonAnswer({"object": "rollout", **await ingress.pool.rollout()}, 202)


def _own_use(ingress: Ingress, tenant: str) -> dict[str, object]:
    usage = ingress.limiter.usage(tenant)
    return {"name": tenant, "open_requests": usage.open, "limits": asdict(usage.limits)}


def _model(ingress: Ingress) -> dict[str, object]:
    """For clients of the OpenAI API, of vLLM (`max_model_len`) and of Anthropic's (`type` and so on)."""
    created = datetime.fromtimestamp(ingress.deployed_at, timezone.utc)
    return {
        "id": ingress.text.name,
        "object": "model",
        "created": ingress.deployed_at,
        "owned_by": "remora",
        "max_context": ingress.text.max_context,
        "max_model_len": ingress.text.max_context,
        "type": "model",
        "display_name": ingress.text.name,
        "created_at": created.isoformat().replace("+00:00", "Z"),
    }
