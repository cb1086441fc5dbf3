"""Compiles kernels/cpu when the package is built or installed for editing, where a C++ compiler is there.

Without one the package installs all the same: torch computes alone then, and the worker says so.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CpuKernel(BuildHookInterface):  # type: ignore[type-arg]
    """REMORA_CPU_KERNEL=0 leaves it out; =1 makes a build without it an error."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wanted = os.environ.get("REMORA_CPU_KERNEL", "")
        if self.target_name != "wheel" or wanted == "0":
            return
        sys.path.insert(0, self.root)
        try:
            from kernels.cpu.build import BuildError, build

            libraries = build(self.app.display_info)
        except BuildError as error:
            if wanted == "1":
                raise
            self.app.display_warning(f"kernels/cpu is not built, so that torch will compute alone: {error}")
            return
        finally:
            sys.path.remove(self.root)
        if version == "editable" or not libraries:
            return
        files = [file for library in libraries for file in (library, library.with_suffix(".sources"))]
        build_data["force_include"] = {str(file): str(file.relative_to(Path(self.root))) for file in files}
        build_data["pure_python"] = False
        # Its libraries know nothing of Python: one wheel does for every version of it.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
