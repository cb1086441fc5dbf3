"""Keys and limits as the real `openai` client meets them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from configs import TenantLimits
from tests.ingress.asgi import run
from tests.ingress.keyed import ACME, GLOBEX, keys
from tests.ingress.local import Cluster, cluster

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def client(at: Cluster, key: str, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    transport = httpx.AsyncClient(transport=httpx.ASGITransport(at.app))
    options = {"max_retries": 0, **options}
    async with openai.AsyncOpenAI(base_url="http://remora/v1", api_key=key, http_client=transport, **options) as made:
        yield made


async def say(made: openai.AsyncOpenAI, **session: Any) -> Any:
    extra = {"session": session} if session else {}
    return await made.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=4, extra_body=extra)


def test_a_wrong_key_is_an_authentication_error(tmp_path: Path) -> None:
    """S13, E4: the client's own kind, and not one that it tries again."""

    async def check() -> None:
        async with cluster(tmp_path, auth=keys()) as at:
            async with client(at, "rmk-nobody", max_retries=5) as stranger:
                for call in (lambda: say(stranger), stranger.models.list):
                    with pytest.raises(openai.AuthenticationError) as caught:
                        await call()
                    assert caught.value.code == "invalid_api_key"
            async with client(at, ACME) as acme:
                assert (await say(acme)).usage.completion_tokens == 4
                assert [model.id async for model in acme.models.list()] == ["toy"]

    run(check())


def test_another_tenants_session_is_not_found(tmp_path: Path) -> None:
    """S13."""

    async def check() -> None:
        async with (
            cluster(tmp_path, auth=keys()) as at,
            client(at, ACME) as acme,
            client(at, GLOBEX) as globex,
        ):
            await say(acme, id="s", create=True)
            with pytest.raises(openai.NotFoundError):
                await say(globex, id="s")
            assert (await say(acme, id="s")).model_extra["session"]["turn"] == 2

    run(check())


@pytest.mark.slow
def test_over_a_limit_the_client_waits_as_it_is_told_and_is_let_in(tmp_path: Path) -> None:
    """S10, E3: one attempt more is enough, because Retry-After is right."""

    async def check() -> None:
        limits = {"acme": TenantLimits(requests_per_minute=120)}
        async with cluster(tmp_path, auth=keys(), tenants=limits) as at:
            at.ingress.limiter.usage("acme").requests.take(120, at.ingress.clock())
            async with client(at, ACME) as impatient:
                with pytest.raises(openai.RateLimitError) as caught:
                    await say(impatient)
                assert caught.value.code == "rate_limit_exceeded"
                assert caught.value.response.headers["retry-after"] == "1"
            async with client(at, ACME, max_retries=1) as patient:
                assert (await say(patient)).usage.completion_tokens == 4

    run(check())
