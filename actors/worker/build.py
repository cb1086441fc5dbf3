"""A runner for a configuration: the one place where a worker meets the model's files."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.model.cache import cache_root
from actors.runner.base import ModelRunner
from configs import RemoraConfig

if TYPE_CHECKING:
    from actors.runner.torch.ranks import Rank
    from actors.runner.torch.runner import TorchRunner

logger = logging.getLogger("remora.worker")


def build_runner(
    config: RemoraConfig, ranks_lost: Callable[[str], None] | None = None
) -> tuple[ModelRunner, int | None]:
    """(runner, bos id). Loads the model; raises what the model's source or the runner raise when it cannot be used.

    Of a tensor parallel worker it is the first rank's part, which has yet to meet the others (`TorchRunner.lead`);
    `ranks_lost(why)` is called when they can do nothing together any more.
    """
    if config.workers.runner == "toy":
        from actors.runner.toy import ToyRunner

        time.sleep(config.workers.toy_start_s)
        runner = ToyRunner(
            page_size=config.engine.page_size or 16,
            kv_tokens=config.engine.kv_tokens,
            max_context=config.model.max_context or 8192,
            step_s=config.workers.toy_step_s,
            weights=config.workers.toy_weights,
        )
        return runner, None
    return _model_runner(config, ranks_lost)


def compute_threads(config: RemoraConfig) -> int:
    """Threads of one rank: what is configured, else an equal share of the cores this process may use."""
    if config.workers.threads:
        return config.workers.threads
    return max(1, len(os.sched_getaffinity(0)) // (config.workers.count * config.workers.tensor_parallel))


def build_rank(config: RemoraConfig, number: int) -> Rank:
    """Any rank of a tensor parallel worker but the first, on the thread that will compute. Raises as `build_runner`."""
    _be_patient()
    import torch

    from actors.model.source import resolve
    from actors.runner.torch.ranks import Rank
    from actors.runner.torch.setup import ModelSetup

    torch.set_num_threads(compute_threads(config))
    folder = resolve(config.model.id, config.model.cache_dir, progress=False)
    return Rank(ModelSetup.of(folder.path, **told_to_ranks(config)), number, config.workers.tensor_parallel)


def _be_patient() -> None:
    # Compute threads share their cores with the ingress, the proxy and whatever else runs: libgomp's own patience at
    # barriers then starves everybody, and none at all costs a third of the speed. Read when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def told_to_ranks(config: RemoraConfig) -> dict[str, Any]:
    """What all ranks are told."""
    return {
        "dtype": config.model.dtype,
        "quantization": config.model.quantization,
        "device": "cuda" if config.workers.num_gpus else "cpu",
        "page_size": config.engine.page_size,
        "kv_tokens": config.engine.kv_tokens,
        "attention": config.workers.attention,
        "gpu_memory_share": config.engine.gpu_memory_share,
        "ranks": config.workers.tensor_parallel,
    }


def _model_runner(config: RemoraConfig, ranks_lost: Callable[[str], None] | None) -> tuple[ModelRunner, int | None]:
    _be_patient()
    from actors.model.source import resolve
    from actors.model.tokenizer import Tokenizer
    from actors.runner.cpu.runner import CpuRunner
    from actors.runner.torch.group import RankGroup

    folder = resolve(config.model.id, config.model.cache_dir, progress=False)
    tokenizer = Tokenizer.load(folder)
    size = config.workers.tensor_parallel
    kind, remark = runner_class(config, folder.path)
    build: Callable[..., TorchRunner] = kind
    if issubclass(kind, CpuRunner):
        build = partial(kind, packed_folder=packed_folder(config))
    runner = build(
        folder.path,
        **told_to_ranks(config),
        max_context=config.model.max_context,
        threads=compute_threads(config),
        vocab_bytes=tokenizer.vocab_bytes(),
        eos_ids=tokenizer.eos_ids,
        group=RankGroup(0, size, ranks_lost) if size > 1 else None,
        remark=remark,
        cuda_graphs=config.workers.cuda_graphs,
        max_running=config.engine.max_running,
    )
    return runner, tokenizer.bos_id


def packed_folder(config: RemoraConfig) -> Path | None:
    """Where the fused step's packed weights are kept; None if they are not to be. See `ModelConfig`."""
    kept = config.model.packed_cache
    if kept == "off":
        return None
    return cache_root(config.model.cache_dir) / "packed" if kept == "auto" else Path(kept).expanduser()


def runner_class(config: RemoraConfig, folder: Path) -> tuple[type[TorchRunner], str]:
    """By `workers.runner`, and what is to be said about it: why `auto` is not the faster one, where a CPU computes.
    Raises ModelUnusable for quantised weights that nothing computes here."""
    from actors.model.errors import ModelUnusable
    from actors.runner.cpu.runner import CpuRunner, why_not
    from actors.runner.torch.overlapped import OverlappedRunner
    from actors.runner.torch.runner import TorchRunner

    if config.workers.num_gpus and config.workers.tensor_parallel == 1 and config.workers.runner != "cpu":
        return OverlappedRunner, ""
    if config.workers.runner != "auto":
        return (CpuRunner if config.workers.runner == "cpu" else TorchRunner), ""
    if config.workers.tensor_parallel > 1:
        why = "a model that is split over ranks is computed by torch"
    else:
        why = why_not(folder, **told_to_ranks(config))
    if not why:
        return CpuRunner, ""
    if config.model.quantization:
        raise ModelUnusable(f"model.quantization {config.model.quantization} cannot be computed here: {why}")
    if config.workers.num_gpus:
        return TorchRunner, ""
    logger.warning("the torch runner serves, not the faster cpu runner: %s", why)
    return TorchRunner, f"no fused step: {why}"
