"""Tiny models, saved once per run of the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from actors.model.source import ModelFolder, resolve
from tests.runner import tiny
from tests.runner.ranks_rig import Helpers


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """More threads than one only cost time with models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """kind → (folder, transformers model)."""
    made: dict[str, tuple[Path, Any]] = {}

    def get(kind: str) -> tuple[Path, Any]:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            made[kind] = folder, tiny.save(kind, folder)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def default_folder() -> ModelFolder:
    return resolve("default", progress=False)


@pytest.fixture(scope="session")
def default_model(default_folder: ModelFolder) -> Any:
    """As transformers has it, in float32."""
    return transformers.AutoModelForCausalLM.from_pretrained(default_folder.path, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def ranks() -> Iterator[Helpers]:
    """Processes that hold the other parts of a tensor parallel model."""
    helpers = Helpers()
    yield helpers
    helpers.end()
