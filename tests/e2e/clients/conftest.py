"""The server of the clients' scripts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.clients.place import Place, open_place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with open_place(tmp_path_factory.mktemp("place")) as opened:
        yield opened
