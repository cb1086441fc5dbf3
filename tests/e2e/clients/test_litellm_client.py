"""`litellm` as it comes from the registry, by its OpenAI and its Anthropic route, against a real HTTP server."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # Else importing it asks a server for prices.

import litellm

from tests.e2e.clients.place import Place, expected
from tests.ingress.keyed import ACME

pytestmark = pytest.mark.filterwarnings("ignore")  # Its own warnings are its own business.
PROVIDERS = ["openai", "anthropic"]


def ask(place: Place, provider: str, messages: list[dict[str, Any]], **fields: Any) -> Any:
    base = {"openai": f"{place.url}/v1", "anthropic": place.url}[provider]
    options = {"api_base": base, "api_key": ACME, "max_tokens": 24, "temperature": 0, "num_retries": 0, **fields}
    return litellm.completion(model=f"{provider}/toy", messages=messages, **options)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_conversation_with_a_stop_and_a_retry(place: Place, provider: str) -> None:
    """I2, P4, E5: whole and streamed, turn after turn; a stop string; the same again."""
    history = [user("hello")]
    prompt = "user: hello\nassistant: "
    for text in ("and then?", "really?"):
        want = expected(prompt, 24)
        answer = ask(place, provider, history)
        assert answer.choices[0].message.content == want
        assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 24)
        assert answer.usage.prompt_tokens == len(prompt.encode())
        chunks = list(ask(place, provider, history, stream=True, stream_options={"include_usage": True}))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == want
        history += [{"role": "assistant", "content": want}, user(text)]
        prompt += f"{want}\nuser: {text}\nassistant: "
    assert answer.usage.prompt_tokens_details.cached_tokens > 0
    stop = expected(prompt, 24)[5:8]
    first, second = (ask(place, provider, history, stop=[stop]) for _ in range(2))
    assert first.choices[0].message.content == expected(prompt, 24).partition(stop)[0]
    assert first.choices[0].finish_reason == "stop"
    assert first.choices[0].message.content == second.choices[0].message.content


@pytest.mark.parametrize("provider", PROVIDERS)
def test_errors_are_its_own_kinds(place: Place, provider: str) -> None:
    """E3, E4, S13."""
    with pytest.raises(litellm.AuthenticationError):
        ask(place, provider, [user("x")], api_key="rmk-nobody")
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        ask(place, provider, [user("x")], temperature=7)
    with pytest.raises(litellm.BadRequestError, match="context"):
        ask(place, provider, [user("x" * 9000)])


@pytest.mark.parametrize("provider", PROVIDERS)
def test_leaving_a_stream_ends_the_request(place: Place, provider: str) -> None:
    """A6."""
    stream = ask(place, provider, [user("long")], max_tokens=7000, stream=True)
    next(iter(stream))
    stream.completion_stream.response.close() if provider == "openai" else stream.close()
    place.wait_until_quiet()
