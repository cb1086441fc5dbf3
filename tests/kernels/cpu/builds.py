"""The operator's builds for tests: compiled where they are not, and why there are none elsewhere."""

from __future__ import annotations

import os
from functools import cache

from kernels.cpu.build import NoCompiler, build
from kernels.cpu.library import Library, load

REQUIRED = "REMORA_REQUIRE_COMPILER"
"""In the environment: a test that cannot have one must fail, not be skipped."""


@cache
def not_built() -> str:
    """Why nothing can be compiled here; empty if all is. Raises BuildError for sources that do not compile, and for no
    compiler where there has to be one."""
    try:
        build(say=lambda line: None)
    except NoCompiler as error:
        if os.environ.get(REQUIRED):
            raise
        return str(error)
    return ""


def unusable(dtype: str, quantization: str = "") -> str:
    """Why this machine cannot run the operator in `dtype`, with such weights; empty if it can."""
    found = not_built() or load(dtype, quantization=quantization)
    return "" if isinstance(found, Library) else found
