"""`remora doctor`: what this machine has, what would serve a model on it, and whether that computes right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cluster.doctor import gpus, machine, model
from configs import RemoraConfig

GIB = 2**30
SICK = 1
"""Exit code when a model cannot be served as configured, or something computes wrong."""


def doctor(config: RemoraConfig, models: Sequence[str], *, as_json: bool = False) -> int:
    """Returns the exit code. `models`: which to look at; none = the configured one."""
    found = gpus.look()
    here = machine.look()
    verdicts = [model.examine(model.with_model(config, name), found) for name in models or [config.model.id]]
    if as_json:
        print(json.dumps(_report(here, found, verdicts), indent=2))
    else:
        for line in [*machine_lines(here, found), *(line for each in verdicts for line in model_lines(each))]:
            print(line)
    return 0 if all(verdict.healthy for verdict in verdicts) else SICK


def _report(here: machine.Machine, found: gpus.Gpus, verdicts: list[model.Verdict]) -> dict[str, Any]:
    models = [{**asdict(each), "healthy": each.healthy} for each in verdicts]
    for each in models:
        for test in each["tests"]:
            test["error"] = None if test["error"] != test["error"] else test["error"]  # JSON has no NaN.
    return {
        "healthy": all(verdict.healthy for verdict in verdicts),
        "machine": asdict(here),
        "gpus": asdict(found),
        "models": models,
    }


def machine_lines(here: machine.Machine, found: gpus.Gpus) -> list[str]:
    memory = "unknown" if here.free_bytes is None else f"{here.free_bytes / GIB:.1f} GiB free"
    there = [f"{name} {version}" for name, version in here.packages.items() if version]
    missing = [name for name, version in here.packages.items() if not version]
    lines = [
        f"python      {here.python}, {here.system}",
        f"cpu         {here.cpu}, {here.cores} cores{': ' + ' '.join(here.flags) if here.flags else ''}",
        f"memory      {memory}",
        f"packages    {', '.join(there)}",
    ]
    if missing:
        lines.append(f"            not installed: {', '.join(missing)}")
    for gpu in found.found:
        of = f"{gpu.free_bytes / GIB:.1f} of {gpu.total_bytes / GIB:.1f} GiB free"
        lines.append(f"gpu         {gpu.name}, compute capability {gpu.capability[0]}.{gpu.capability[1]}, {of}")
    if not found.found:
        lines.append(f"gpu         none: {found.why_none}")
    return lines


def model_lines(verdict: model.Verdict) -> list[str]:
    named = {
        "shape": ", ".join(part for part in (verdict.shape, verdict.dtype) if part),
        "runner": f"{verdict.runner}, on {verdict.device}" if verdict.runner else "",
        "attention": verdict.attention,
        "kv cache": verdict.kv_cache,
    }
    lines = ["", f"model       {verdict.model}"]
    lines += [f"  {name:<10}{text}" for name, text in named.items() if text]
    lines += [f"            not {name}: {why}" for name, why in verdict.reasons.items()]
    lines += [f"  {'ok' if test.passed else 'FAILED':<10}{test.text} ({test.seconds:.2f} s)" for test in verdict.tests]
    lines += [f"  note      {remark}" for remark in verdict.remarks]
    lines += [f"  PROBLEM   {problem}" for problem in verdict.problems]
    return lines
