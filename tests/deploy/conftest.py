"""One Ray head for all that is deployed here: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.head import Head, running_head


@pytest.fixture(scope="session")
def head() -> Iterator[Head]:
    with running_head() as head:
        yield head
