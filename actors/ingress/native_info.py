"""What SGLang's clients ask a server about itself before they begin."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from actors.ingress.auth import sees_all
from actors.ingress.core import Ingress
from actors.ingress.native_answers import UNKNOWN_WEIGHTS
from actors.ingress.placement import ready
from actors.ingress.plain_routes import JsonAnswer
from actors.ingress.service_api import WORKERS_ANSWER_S, worker_rows
from actors.ports import Member, NoWorker


async def model_info(ingress: Ingress, request: Request) -> Response:
    """GET /model_info. Names, never paths of this machine."""
    return JsonAnswer(
        {
            "model_path": ingress.text.name,
            "tokenizer_path": ingress.text.name,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": _weights(await _members(ingress)),
            "has_image_understanding": False,
            "has_audio_understanding": False,
        }
    )


async def server_info(ingress: Ingress, request: Request) -> Response:
    """GET /server_info. `internal_states`: one of each worker, for callers who may see what concerns all tenants."""
    config, members = ingress.config, await _members(ingress)
    info: dict[str, Any] = {
        "model_path": ingress.text.name,
        "tokenizer_path": ingress.text.name,
        "served_model_name": ingress.text.name,
        "context_length": ingress.text.max_context,
        "tp_size": config.workers.tensor_parallel,
        "dp_size": len(ready(members)),
        "max_running_requests": config.engine.max_running,
        "incremental_streaming_output": config.ingress.incremental_streaming_output,
        "enable_streaming_session": True,
        "weight_version": _weights(members),
        "version": "remora",
        "internal_states": [{}],
    }
    rows = await worker_rows(ingress) if sees_all(ingress, request) else None
    if rows:
        info["internal_states"] = [_state(row) for row in rows]
        info["max_total_num_tokens"] = sum(int(row.get("kv_tokens", 0)) for row in rows)
    return JsonAnswer(info)


def _state(row: Any) -> dict[str, Any]:
    rates = row.get("rates") or {}
    return {
        "worker": row.get("id"),
        "num_running_reqs": row.get("running", 0),
        "num_waiting_reqs": row.get("waiting", 0),
        "max_total_num_tokens": row.get("kv_tokens", 0),
        "last_gen_throughput": rates.get("output_tokens_per_s", 0.0),
        "paused": row.get("paused", False),
    }


async def _members(ingress: Ingress) -> Sequence[Member]:
    """Those that the pool named last, where it does not answer within a second."""
    try:
        return await asyncio.wait_for(ingress.router.members(), WORKERS_ANSWER_S)
    except (asyncio.TimeoutError, NoWorker):
        return ingress.router.known_members()


def _weights(members: Sequence[Member]) -> str:
    """The version that ready workers have; where they differ, as while they are replaced, all of them."""
    found = {member.weights for member in ready(members) if member.weights}
    return ",".join(sorted(found)) or UNKNOWN_WEIGHTS
