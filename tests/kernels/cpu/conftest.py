"""The operator's builds that this machine can run, compiled if they are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels.cpu.library import Library, load
from kernels.cpu.variants import VARIANTS, Variant, cpu_flags
from tests.kernels.cpu.builds import not_built


@pytest.fixture(scope="session")
def library_of() -> Callable[[Variant], Library]:
    """A build; skips where this machine cannot have it."""
    if why := not_built():
        pytest.skip(why)

    def get(variant: Variant) -> Library:
        if not variant.needs <= cpu_flags():
            pytest.skip(f"this CPU cannot run {variant.name}")
        library = load(variant.dtype, variant.name)
        assert isinstance(library, Library), library
        return library

    return get


@pytest.fixture(params=["", "int8"], ids=["plain", "int8"])
def quantization(request: pytest.FixtureRequest, library: Library) -> str:
    """Each kind of weights in turn, where the CPU has what it needs."""
    name: str = request.param
    if name and not library.variant.int8_needs <= cpu_flags():
        pytest.skip(f"this CPU cannot multiply {name} weights in {library.variant.name}")
    return name


@pytest.fixture(params=VARIANTS, ids=lambda variant: variant.name)
def library(request: pytest.FixtureRequest, library_of: Callable[[Variant], Library]) -> Library:
    """Each variant in turn."""
    return library_of(request.param)
