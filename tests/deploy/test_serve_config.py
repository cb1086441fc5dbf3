"""A config file deployed with Serve's own command line: several models, scaled and taken out while others serve on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.head import ROOT, Head
from tests.e2e.server import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]

TOY = {
    "workers": {"runner": "toy"},
    "engine": {"kv_tokens": 4096},
    "cluster": {"heartbeat_s": 0.1},
}


def toy_config(file: str, head: Head, folder: Path) -> dict[str, Any]:
    """A config file of deploy/ with toys in place of its models, this checkout for the wheel, and a port of ours. Only
    the first application gets a store; another's is found by its own name."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / file).read_text(encoding="utf-8"))
    config["http_options"]["port"] = head.port
    for application in config["applications"]:
        given = application["args"]["model"]
        application["args"] = {**TOY, "model": given}
        application["runtime_env"] = {"env_vars": {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}}
    return config


@pytest.fixture(scope="module")
def config(head: Head, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """deploy/serve-models.yaml, deployed and ready. Afterwards nothing of it may be left."""
    folder = tmp_path_factory.mktemp("models")
    config = toy_config("serve-models.yaml", head, folder)
    head.serve_deploy(folder / "serve.yaml", config)
    head.await_workers("/small", 1)
    head.await_workers("/large", 1)
    yield config
    done = head.run("serve", "shutdown", "--yes", "--address", head.dashboard)
    assert done.returncode == 0, done.stdout
    wait_until(lambda: not head.actors(), within_s=60)
    assert list(folder.rglob("*-wal")) == [], "a store was not closed"


def test_each_model_answers_under_its_own_name_and_path(head: Head, config: dict[str, Any]) -> None:
    for name in ("small", "large"):
        models = head.http.get(f"/{name}/v1/models").json()["data"]
        assert [model["id"] for model in models] == [name]
        answer = head.turn(f"/{name}", name, "same id", "hello", create=True)
        assert answer.status_code == 200, answer.text
        assert answer.json()["session"]["turn"] == 1
    assert head.turn("/small", "large", "x", "hello", create=True).status_code == 404


def test_sessions_workers_and_stores_are_each_models_own(head: Head, config: dict[str, Any]) -> None:
    """S13, T3: with the same settings, and without a store's name in them, no actor and no file is shared."""
    head.turn("/small", "small", "only small", "hello", create=True)
    unknown = head.turn("/large", "large", "only small", "and then?")
    assert (unknown.status_code, unknown.json()["error"]["reason"]) == (404, "session_unknown")
    again = head.turn("/small", "small", "only small", "and then?").json()
    assert again["session"]["turn"] == 2
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    stores = [head.http.get(f"/{name}/v1/stats").json()["store"]["process"]["pid"] for name in ("small", "large")]
    assert len(set(stores)) == 2
    ids = [row["id"] for name in ("small", "large") for row in head.workers(f"/{name}")]
    assert len(set(ids)) == 2
    namespaces = {namespace for namespace, _ in head.actors()}
    assert namespaces == {"remora:small", "remora:large"}


def test_user_config_changes_the_number_of_workers_live(head: Head, config: dict[str, Any], tmp_path: Path) -> None:
    """P1, T5: workers come and go, sessions stay; the other model's workers are the same as before."""
    (first,) = head.await_workers("/small", 1)
    others = head.await_workers("/large", 1)
    head.turn("/small", "small", "stays", "hello", create=True)
    pool = config["applications"][0]["deployments"][0]
    pool["user_config"]["workers"] = 2
    head.serve_deploy(tmp_path / "two.yaml", config)
    assert first in head.await_workers("/small", 2)
    again = head.turn("/small", "small", "stays", "again").json()
    assert again["session"]["worker"] == first
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    pool["user_config"]["workers"] = 1
    head.serve_deploy(tmp_path / "one.yaml", config)
    head.await_workers("/small", 1)
    assert head.turn("/small", "small", "stays", "and again").json()["session"]["turn"] == 3
    assert head.await_workers("/large", 1) == others


def test_workers_with_other_settings_are_replaced_and_sessions_go_on(
    head: Head, config: dict[str, Any], tmp_path: Path
) -> None:
    """T5, T6: after a change of `args` no worker of before serves on; what was said is still known."""
    (before,) = head.workers("/small")
    head.turn("/small", "small", "carried over", "hello", create=True)
    config["applications"][0]["args"]["engine"] = {"kv_tokens": 2048}
    head.serve_deploy(tmp_path / "changed.yaml", config)
    wait_until(lambda: [row.get("kv_tokens") for row in head.workers("/small")] == [2048], within_s=90)
    (after,) = head.await_workers("/small", 1)
    assert after != before["id"]
    again = head.turn("/small", "small", "carried over", "and then?")
    assert again.status_code == 200, again.text
    assert (again.json()["session"]["turn"], again.json()["session"]["worker"]) == (2, after)


def test_a_store_with_other_settings_is_opened_in_place_of_the_one_before(
    head: Head, config: dict[str, Any], tmp_path: Path
) -> None:
    """T6: a session of another file is unknown, never an empty one."""
    config["applications"][0]["args"]["store"] = {"url": f"sqlite:{tmp_path / 'other.sqlite'}"}
    head.serve_deploy(tmp_path / "store.yaml", config)
    wait_until(lambda: (tmp_path / "other.sqlite").exists() and bool(head.workers("/small")), within_s=90)
    head.await_workers("/small", 1)
    assert head.turn("/small", "small", "carried over", "and then?").status_code == 404
    del config["applications"][0]["args"]["store"]
    head.serve_deploy(tmp_path / "back.yaml", config)
    wait_until(lambda: not Path(f"{tmp_path / 'other.sqlite'}-wal").exists(), within_s=90)
    head.await_workers("/small", 1)
    assert head.turn("/small", "small", "carried over", "and now?").json()["session"]["turn"] == 3


def test_a_model_taken_out_of_the_file_ends_wholly_and_the_other_serves_on(
    head: Head, config: dict[str, Any], tmp_path: Path
) -> None:
    """N69: its actors end and its store is closed, at once and not when a lease runs out."""
    before = head.await_workers("/small", 1)
    only_small = {**config, "applications": [one for one in config["applications"] if one["name"] == "small"]}
    head.serve_deploy(tmp_path / "small.yaml", only_small)
    wait_until(lambda: {namespace for namespace, _ in head.actors()} == {"remora:small"}, within_s=100)
    assert head.http.get("/large/v1/models").status_code == 404
    assert head.turn("/small", "small", "same id", "still there?").json()["session"]["turn"] == 2
    assert head.await_workers("/small", 1) == before


def test_a_model_that_cannot_be_had_fails_with_its_cause(head: Head, config: dict[str, Any], tmp_path: Path) -> None:
    """N69: the application's status says it, and no actor of it is left."""
    (small,) = (one for one in config["applications"] if one["name"] == "small")
    broken = {**small, "name": "broken", "route_prefix": "/broken", "args": {"model": {"id": str(tmp_path / "none")}}}
    del broken["deployments"]
    head.serve_deploy(tmp_path / "broken.yaml", {**config, "applications": [small, broken]})
    wait_until(lambda: head.applications()["broken"]["status"] == "DEPLOY_FAILED", within_s=90)
    assert str(tmp_path / "none") in head.applications()["broken"]["message"]
    assert {namespace for namespace, _ in head.actors()} == {"remora:small"}
