"""A runner for a configuration: the one place where a worker meets the model's files."""

from __future__ import annotations

import os
import time

from actors.runner.base import ModelRunner
from configs import RemoraConfig


def build_runner(config: RemoraConfig) -> tuple[ModelRunner, int | None]:
    """(runner, bos id). Loads the model; raises what the model's source or the runner raise when it cannot be used."""
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
    return _torch_runner(config)


def compute_threads(config: RemoraConfig) -> int:
    """Threads of one worker: what is configured, else an equal share of the cores this process may use."""
    if config.workers.threads:
        return config.workers.threads
    return max(1, len(os.sched_getaffinity(0)) // config.workers.count)


def _torch_runner(config: RemoraConfig) -> tuple[ModelRunner, int | None]:
    # Compute threads share their cores with the ingress, the proxy and whatever else runs: libgomp's own patience at
    # barriers then starves everybody, and none at all costs a third of the speed. Read when torch is loaded, below.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    from actors.model.source import resolve
    from actors.model.tokenizer import Tokenizer
    from actors.runner.torch.runner import TorchRunner

    folder = resolve(config.model.id, config.model.cache_dir, progress=False)
    tokenizer = Tokenizer.load(folder)
    runner = TorchRunner(
        folder.path,
        dtype=config.model.dtype,
        device="cuda" if config.workers.num_gpus else "cpu",
        page_size=config.engine.page_size,
        kv_tokens=config.engine.kv_tokens,
        max_context=config.model.max_context,
        attention=config.workers.attention,
        threads=compute_threads(config),
        vocab_bytes=tokenizer.vocab_bytes(),
        eos_ids=tokenizer.eos_ids,
    )
    return runner, tokenizer.bos_id
