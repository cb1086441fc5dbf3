"""Settings: what a file may say, and how it is told what is wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from configs import ConfigError, RemoraConfig, from_tree, load, to_tree

SHIPPED = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


def written(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_no_file_means_the_defaults() -> None:
    assert load() == RemoraConfig()


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert load(written(tmp_path, "# nothing\n")) == RemoraConfig()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_file_loads(path: Path) -> None:
    assert isinstance(load(path), RemoraConfig)


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    config = load(written(tmp_path, "workers: {count: 3}\nengine: {kv_tokens: 1000}\n"))
    assert (config.workers.count, config.engine.kv_tokens) == (3, 1000)
    assert config.ingress == RemoraConfig().ingress


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "workers: {count: 3, threads: 2}\n")
    config = load(path, {"workers.count": 5, "model.id": "org/name"})
    assert (config.workers.count, config.workers.threads, config.model.id) == (5, 2, "org/name")


def test_to_tree_is_the_inverse_of_from_tree() -> None:
    config = load(None, {"ingress.affinity_headers": ["x-a", "x-b"], "sessions.idle_timeout_s": 5})
    assert config.ingress.affinity_headers == ("x-a", "x-b")
    assert from_tree(RemoraConfig, to_tree(config)) == config


def test_whole_numbers_are_taken_for_durations() -> None:
    value = load(None, {"sessions.idle_timeout_s": 5}).sessions.idle_timeout_s
    assert (value, type(value)) == (5.0, float)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("enigne: {}", r"^enigne: unknown setting; known here: .*engine"),
        ("engine: {page_sise: 16}", r"^engine\.page_sise: unknown setting; known here: .*page_size"),
        ("engine: {page_size: big}", r"^engine\.page_size: expected int, got 'big'"),
        ("engine: {page_size: true}", r"^engine\.page_size: expected int, got True"),
        ("engine: {page_size: 1.5}", r"^engine\.page_size: expected int"),
        ("engine: 5", r"^engine: expected settings by name, got int"),
        ("engine: {prefix_cache: 1}", r"^engine\.prefix_cache: expected bool"),
        ("engine: {depth: 2}", r"^engine\.depth: 2; it must be 0 or 1"),
        ("engine: {kv_tokens: 1}", r"^engine\.kv_tokens: 1 is too small; it must be at least 64"),
        ("workers: {count: 0}", r"^workers\.count: 0 is too small"),
        ("workers: {runner: magic}", r"^workers\.runner: 'magic'; it must be one of auto, cpu, torch, toy"),
        ("model: {dtype: int4}", r"^model\.dtype: 'int4'"),
        ("model: {tool_format: xml}", r"^model\.tool_format: 'xml'; it must be one of auto, off, hermes"),
        ("model: {reasoning: 'yes'}", r"^model\.reasoning: 'yes'; it must be one of auto, off, think"),
        ("ingress: {affinity_headers: x-a}", r"^ingress\.affinity_headers: expected a list of strings"),
        ("ingress: {affinity_headers: [1]}", r"^ingress\.affinity_headers: expected a list of strings"),
        ("store: {commit_timeout_s: 0}", r"^store\.commit_timeout_s: 0\.0; it must be above 0"),
        ("store: {max_session_bytes: -1}", r"^store\.max_session_bytes: -1; it must be 0 or more"),
        ("autoscale: {min_workers: 3, max_workers: 2}", r"^autoscale: min_workers 3, max_workers 2; it must be"),
        ("autoscale: {max_workers: 0, min_workers: 0}", r"^autoscale: min_workers 0, max_workers 0"),
        (
            "{workers: {count: 3}, autoscale: {enabled: true, max_workers: 2}}",
            r"^autoscale\.max_workers: 2 is less than workers\.count, the 3 to begin with",
        ),
        ("autoscale: {margin: 1}", r"^autoscale\.margin: 1\.0; it must be at least 0 and below 1"),
        ("autoscale: {kv_share: 0}", r"^autoscale\.kv_share: 0\.0; it must be above 0"),
        ("autoscale: {idle_s: -1}", r"^autoscale\.idle_s: -1\.0; it must be 0 or more"),
        ("rebalance: {hot: 1}", r"^rebalance\.hot: 1\.0; it must be above 1"),
        ("rebalance: {max_moves: 0}", r"^rebalance\.max_moves: 0; it must be at least 1"),
        ("rebalance: {pause_s: -1}", r"^rebalance\.pause_s: -1\.0; it must be 0 or more"),
        ("- a list", r"settings\.yaml: expected settings by name, got list"),
        ("a: [", r"settings\.yaml: not valid YAML"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_path(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(written(tmp_path, text))


def test_a_file_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.yaml")


def test_settings_cannot_be_changed_after_loading() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().workers.count = 2  # type: ignore[misc]
