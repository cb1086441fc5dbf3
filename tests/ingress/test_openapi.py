"""The OpenAPI document says what the code does: its routes, the fields it reads, its errors, its examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route

from actors.ingress import validate
from actors.ingress.app import build_app
from actors.ingress.openapi import document
from actors.ingress.validate import Fields, RenamedFields
from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.local import cluster
from tests.ingress.scripted import says

Json = dict[str, Any]
METHODS = ("get", "post", "delete")
READERS = (
    "raw",
    "has",
    "integer",
    "number",
    "optional_number",
    "flag",
    "text",
    "identifier",
    "choice",
    "child",
    "items",
)


def operations() -> Iterator[tuple[str, str, Json]]:
    """(method, path, operation) of the document."""
    for path, item in document()["paths"].items():
        for method in METHODS:
            if method in item:
                yield method.upper(), path, item[method]


BODIES = {
    f"{method} {path}": operation["requestBody"]["content"]["application/json"]
    for method, path, operation in operations()
    if "requestBody" in operation
}
EXAMPLES = [
    (name, example, body["value"])
    for name, content in BODIES.items()
    for example, body in content.get("examples", {}).items()
]


def resolved(schema: Json) -> Json:
    while "$ref" in schema:
        found: Any = document()
        for step in schema["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        schema = found
    return schema


def known_below(schema: Json, steps: list[str]) -> bool:
    """Whether a field is in a schema: `steps` lead to it, "[]" into an array."""
    schema = resolved(schema)
    if not steps:
        return True
    if any(known_below(part, steps) for kind in ("allOf", "anyOf") for part in schema.get(kind, ())):
        return True
    first, rest = steps[0], steps[1:]
    if first == "[]":
        return "items" in schema and known_below(schema["items"], rest)
    return first in schema.get("properties", {}) and known_below(schema["properties"][first], rest)


def steps_of(field: str) -> list[str]:
    """`a.b[0].c` → a, b, [], c."""
    steps = []
    for name in field.split("."):
        bare, *indices = name.replace("]", "").split("[")
        steps += [bare, *("[]" for _ in indices)]
    return steps


def dicts_in(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from dicts_in(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from dicts_in(value)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Fields of clients' bodies, as they are read. What a route reads of an object that it has made is not seen."""
    read: set[str] = set()
    sent: list[Any] = []

    def loads(data: bytes) -> Any:
        tree = orjson.loads(data)
        sent.extend(dicts_in(tree))  # Kept, so that no other object gets its identity.
        return tree

    def watching(reader: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Fields, name: str, *args: Any, **options: Any) -> Any:
            own = name in self.names if isinstance(self, RenamedFields) else any(self.tree is one for one in sent)
            if own:
                read.add(self.at(name))
            return reader(self, name, *args, **options)

        return method

    with monkeypatch.context() as patch:
        shim = SimpleNamespace(loads=loads, JSONDecodeError=orjson.JSONDecodeError)
        patch.setattr(validate, "orjson", shim)
        for name in READERS:
            patch.setattr(Fields, name, watching(getattr(Fields, name)))
        yield read


def test_it_is_served_and_well_formed() -> None:
    """All that it refers to is there, and every schema is one."""
    tree = document()
    assert tree["openapi"].startswith("3.1")
    for node in dicts_in(tree):
        if "$ref" in node:
            assert resolved(node)
    for schema in tree["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(ids) == len(set(ids))
    assert all("default" in operation["responses"] for _, path, operation in operations() if path != "/health")

    async def check() -> None:
        async with edge() as at:
            served = (await at.client.get("/openapi.json")).json()
        assert served == json.loads(json.dumps(tree))

    run(check())


def test_every_route_is_in_it_and_nothing_else() -> None:
    async def check() -> None:
        async with edge() as at:
            table = [route for route in build_app(at.ingress).routes if isinstance(route, Route)]
        routes = {(method, route.path.replace(":path}", "}")) for route in table for method in route.methods or ()}
        said = {(method, path) for method, path, _ in operations()}
        assert said == {(method, path) for method, path in routes if method != "HEAD"}

    run(check())


@pytest.mark.parametrize("name", sorted(BODIES))
def test_every_field_that_is_read_is_in_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: what is a known field is written down: an empty body, and each of the examples, is read and watched."""
    method, path = name.split(" ")
    content = BODIES[name]
    bodies = [{}, *(body["value"] for body in content.get("examples", {}).values())]
    for field in ("session_id", "conversation_id", "response_id", "item_id"):
        path = path.replace(f"{{{field}}}", "x")

    async def check() -> None:
        async with edge(says("x")) as at:
            with watched(monkeypatch) as read:
                for body in bodies:
                    await at.client.start(method, path, body).whole()
        unknown = sorted(field for field in read if not known_below(content["schema"], steps_of(field)))
        assert unknown == [], f"{name} reads fields that the document does not have"
        assert read

    run(check())


@pytest.mark.parametrize(
    ("name", "example", "body"), EXAMPLES, ids=[f"{name} {example}" for name, example, _ in EXAMPLES]
)
def test_its_examples_are_answered(tmp_path: Path, name: str, example: str, body: Any) -> None:
    """And their bodies are what the schema says."""
    method, path = name.split(" ")
    schema = {**BODIES[name]["schema"], "components": document()["components"]}
    Draft202012Validator(schema).validate(body)

    async def check() -> None:
        async with cluster(tmp_path) as at:
            call = await at.client.start(method, path, body).whole()
            assert call.status == 200, call.body
            assert b"event: error" not in call.body

    run(check())


def test_errors_are_what_it_says() -> None:
    """E4: the one error body, whoever finds the fault."""
    schema = {**document()["components"]["schemas"]["Error"], "components": document()["components"]}
    check_error = Draft202012Validator(schema)

    async def check() -> None:
        async with edge() as at:
            for method, path, body in [
                ("POST", "/generate", {}),
                ("POST", "/generate", b"{"),
                ("POST", "/v1/chat/completions", {"messages": 5}),
                ("GET", "/nowhere", None),
                ("DELETE", "/generate", None),
                ("GET", "/v1/sessions/none", None),
            ]:
                call = await at.client.start(method, path, body).whole()
                assert call.status >= 400
                check_error.validate(call.json())

    run(check())
