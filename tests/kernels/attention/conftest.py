from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernels.xformers_paged import _library
from tests.kernels.attention.subjects import SUBJECTS, Subject


@pytest.fixture(params=SUBJECTS, ids=str)
def subject(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    """Every backend that this machine can run, with every dtype that it knows."""
    chosen: Subject = request.param
    chosen.install(monkeypatch)
    yield chosen
    _library.cache_clear()
