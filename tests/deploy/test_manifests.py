"""The files in deploy/ that nothing here can run: Kubernetes, Docker, Prometheus, Grafana. Wrong names are found
all the same. What is not proved: that the image builds, and that a cluster takes the manifests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from actors.ingress import worker_metrics
from actors.ingress.metrics import Metrics
from cluster.environment import PACKAGES, code_root
from configs import RemoraConfig, from_tree
from configs.load import check

DEPLOY = code_root() / "deploy"
SCHEMA = yaml.safe_load((Path(__file__).parent / "rayservice_schema.yaml").read_text(encoding="utf-8"))
MANIFESTS = ("rayservice.yaml", "rayservice-gpu.yaml")
SERVE_FILES = ("serve.yaml", "serve-models.yaml")
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))


def ray_service(file: str) -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / file).read_text(encoding="utf-8"))
    (found,) = (one for one in documents if one["kind"] == "RayService")
    return dict(found)


def serve_config(file: str) -> dict[str, Any]:
    if file in MANIFESTS:
        return dict(yaml.safe_load(ray_service(file)["spec"]["serveConfigV2"]))
    return dict(yaml.safe_load((DEPLOY / file).read_text(encoding="utf-8")))


@pytest.mark.parametrize("file", MANIFESTS)
def test_a_manifest_keeps_to_the_schema(file: str) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(ray_service(file))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "rayClusterConfig", "workerGroupSpecs", 0, "minReplicas"), "one"),
        (("spec", "rayClusterConfig", "workerGroupSpecs", 0, "groupname"), "cpu"),
        (("spec", "upgradeStrategy", "type"), "Rolling"),
        (("spec", "rayClusterConfig", "headGroupSpec", "rayStartParams", "num-cpus"), 0),
        (("spec", "serveConfigV2"), {"applications": []}),
    ],
)
def test_the_schema_refuses_what_a_cluster_would_refuse_or_lose(path: tuple[Any, ...], value: object) -> None:
    manifest = ray_service("rayservice.yaml")
    *sections, name = path
    tree: Any = manifest
    for section in sections:
        tree = tree[section]
    tree[name] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(manifest)


@pytest.mark.parametrize("file", MANIFESTS)
def test_mounts_have_their_volumes_and_pods_fit_their_workers(file: str) -> None:
    cluster = ray_service(file)["spec"]["rayClusterConfig"]
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    for pod in pods:
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        mounts = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", ())}
        assert mounts == volumes
    (application,) = serve_config(file)["applications"]
    workers = application["args"]["workers"]
    has = pods[1]["containers"][0]["resources"]["requests"]
    assert workers["num_cpus"] <= int(has["cpu"])
    assert workers.get("num_gpus", 0) <= int(has.get("nvidia.com/gpu", 0))


@pytest.mark.parametrize("file", [*SERVE_FILES, *MANIFESTS])
def test_serve_would_take_the_config_and_so_would_we(file: str) -> None:
    """By Serve's own schema; the arguments are settings, and `user_config` is what the pool knows."""
    from ray.serve.schema import ServeDeploySchema

    config = serve_config(file)
    ServeDeploySchema.model_validate(config)
    for application in config["applications"]:
        assert application["import_path"] == "cluster.app:app"
        check(from_tree(RemoraConfig, application["args"]))
        for deployment in application.get("deployments", ()):
            assert (deployment["name"], set(deployment["user_config"])) == ("pool", {"workers"})


def test_the_manifests_ray_is_the_one_we_depend_on() -> None:
    pinned = re.search(r"ray\[serve\]>=(\d+\.\d+)", (code_root() / "pyproject.toml").read_text(encoding="utf-8"))
    assert pinned is not None
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert f"rayproject/ray:{pinned[1]}." in dockerfile
    for file in MANIFESTS:
        assert ray_service(file)["spec"]["rayClusterConfig"]["rayVersion"].startswith(f"{pinned[1]}.")


def test_the_image_gets_every_package() -> None:
    copied = set(re.findall(r"^COPY --chown=ray (.+) \./", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.M))
    sources = {source for line in copied for source in line.split()}
    assert set(PACKAGES) <= sources
    assert all((code_root() / source).exists() for source in sources)


def test_the_dashboard_asks_only_for_metrics_that_there_are() -> None:
    asked = {
        name
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
        for name in re.findall(r"\bremora_\w+", target["expr"])
    }
    assert len(asked) > 10
    assert asked <= exposed()


def test_every_panel_has_a_place_and_a_number_of_its_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    cells = {(at["x"] + x, at["y"] + y) for at in places for x in range(at["w"]) for y in range(at["h"])}
    assert len(cells) == sum(at["w"] * at["h"] for at in places)
    assert all(at["x"] + at["w"] <= 24 for at in places)


def exposed() -> set[str]:
    """Names of all time series, those that appear with their first event included."""
    text = (Metrics().exposition() + worker_metrics.exposition([])).decode()
    types = re.findall(r"^# TYPE (\S+) (\w+)$", text, re.M)
    series = {name for name, _ in types}
    for name, kind in types:
        if kind == "histogram":
            series |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return series


def test_prometheus_scrapes_where_the_metrics_are() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
    (remora,) = (job for job in config["scrape_configs"] if job["job_name"] == "remora")
    assert remora["metrics_path"] == "/metrics"
