"""Nothing of this API crosses from one tenant to another (rule S13)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.ingress.asgi import Call, Client, run
from tests.ingress.keyed import ACME, ACME_TOO, GLOBEX, keys
from tests.ingress.local import cluster
from tests.ingress.responses.calls import Asker, text_of
from tests.ingress.responses.test_conversations import items, made

RESPONSE, CONVERSATION = "resp_r" + "0" * 48, "conv_" + "0" * 24
NEW = {"items": [{"role": "user", "content": "mine"}]}
WAYS: list[tuple[str, str, Any]] = [
    ("GET", "/v1/responses/{response}", None),
    ("GET", "/v1/responses/{response}?stream=true", None),
    ("GET", "/v1/responses/{response}/input_items", None),
    ("GET", "/v1/responses/{running}", None),
    ("GET", "/v1/responses/{running}?stream=true&starting_after=3", None),
    ("POST", "/v1/responses/{running}/cancel", None),
    ("DELETE", "/v1/responses/{running}", None),
    ("DELETE", "/v1/responses/{response}", None),
    ("POST", "/v1/responses", {"input": "x", "previous_response_id": "{response}"}),
    ("POST", "/v1/responses", {"input": "x", "previous_response_id": "{of_conversation}"}),
    ("POST", "/v1/responses", {"input": "x", "previous_response_id": "{running}", "background": True}),
    ("POST", "/v1/responses", {"input": "x", "conversation": "{conversation}"}),
    ("POST", "/v1/responses", {"input": "x", "conversation": {"id": "{conversation}"}, "stream": True}),
    ("GET", "/v1/conversations/{conversation}", None),
    ("POST", "/v1/conversations/{conversation}", {"metadata": {"a": "mine"}}),
    ("DELETE", "/v1/conversations/{conversation}", None),
    ("GET", "/v1/conversations/{conversation}/items", None),
    ("POST", "/v1/conversations/{conversation}/items", NEW),
    ("GET", "/v1/conversations/{conversation}/items/{item}", None),
    ("DELETE", "/v1/conversations/{conversation}/items/{item}", None),
]


class OfOneReplica(Client):
    """Callers with different keys of one and the same application."""

    def __init__(self, app: Any, key: str) -> None:
        super().__init__(app)
        self._key = key

    def start(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Call:
        return super().start(method, path, body, {"authorization": f"Bearer {self._key}", **(headers or {})})


def filled(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: filled(part, names) for key, part in value.items()}
    return value.format(**names) if isinstance(value, str) else value


def comparable(call: Call, names: dict[str, str]) -> tuple[int, str]:
    body = call.body.decode().replace(call.headers["x-request-id"], "…")
    for name in names.values():
        body = body.replace(name, "…")
    return call.status, body


def test_what_is_anothers_is_as_unknown_as_what_was_never_made(tmp_path: Path) -> None:
    """S13, A1: the same answer to the letter, whatever the route, and nothing of the other's is touched."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.002, auth=keys()) as at:
            acme, globex = Asker(OfOneReplica(at.app, ACME)), OfOneReplica(at.app, GLOBEX)
            first = await acme.ask("the secret plan")
            conversation = (await made(acme, items=[{"role": "user", "content": "the secret plan"}]))["id"]
            inside = await acme.ask("go on", conversation=conversation)
            running = await acme.ask("go on", background=True, max_output_tokens=4000)
            theirs = {
                "response": first["id"],
                "running": running["id"],
                "of_conversation": inside["id"],
                "conversation": conversation,
                "item": inside["output"][0]["id"],
            }
            none = {
                "response": RESPONSE,
                "running": RESPONSE,
                "of_conversation": RESPONSE.replace("resp_r", "resp_c"),
                "conversation": CONVERSATION,
                "item": "msg_0",
            }
            for method, path, body in WAYS:
                answers = []
                for names in (theirs, none):
                    call = await globex.start(method, path.format(**names), filled(body, names)).whole()
                    answers.append(comparable(call, names))
                assert answers[0] == answers[1]
                assert answers[0][0] == 404, f"{method} {path}"
                assert "secret" not in answers[0][1]
                assert (await acme.get(running["id"])).json()["status"] in ("queued", "in_progress"), f"{method} {path}"
            assert (await acme.get(first["id"])).json() == first
            assert len(await items(acme, conversation)) == 3
            assert (await acme.cancel(running["id"])).json()["status"] == "cancelled"

    run(check())


def test_all_keys_of_a_tenant_see_the_same(tmp_path: Path) -> None:
    """S13: what is made belongs to the tenant, not to the key; another's key of the same name is another request."""

    async def check() -> None:
        async with cluster(tmp_path, auth=keys()) as at:
            one, two, other = (Asker(OfOneReplica(at.app, key)) for key in (ACME, ACME_TOO, GLOBEX))
            key = {"idempotency-key": "k"}
            first = await one.ask("hi", key)
            assert (await two.get(first["id"])).json() == first
            again = await two.ask("hi", key)
            assert again["replayed"]
            theirs = await other.ask("another", key)
            assert (theirs["id"], text_of(theirs) != text_of(first)) == (first["id"], True)
            assert (await other.get(first["id"])).json() == theirs
            assert (await one.get(first["id"])).json() == first

    run(check())
