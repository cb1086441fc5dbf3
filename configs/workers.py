"""What a worker computes with and keeps: model, scheduler, KV that hibernates, resources."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What is served.

    `id`: `default` (SmolLM2-135M-Instruct), a Hugging Face hub id, a folder with safetensors, or a `.gguf` file.
    `served_name`: the name in /v1/models; empty = derived from `id`. `dtype`: auto, float32, bfloat16, float16.
    `quantization`: int8 = weights and what is multiplied by them become int8 as the model is loaded (W8A8: one scale of
    each output channel, one of each token; attention and KV stay in `dtype`). The cpu runner computes it; elsewhere it
    is refused. Empty = as the weights are.
    `max_context`: longest context in tokens; 0 = what the model allows.
    `cache_dir`: where downloads and conversions are kept; empty = the user's cache folder.
    `packed_cache`: where the fused CPU step keeps weights as it reads them, so that a worker need not pack them when it
    starts, and all of a machine have them in memory once: a folder; auto = beside the conversions; off = each worker
    packs its own, in memory.
    `tool_format`: how the model writes calls of tools: hermes (Qwen 2.5, Qwen 3), llama3, mistral, mistral_args
    (newer), qwen_xml (Qwen 3 Coder). `reasoning`: how it marks what it thinks: think (`<think>`), think_brackets
    (`[THINK]`). auto = as the chat template has it; off = none, such text is text.
    """

    id: str = "default"
    served_name: str = ""
    dtype: str = "auto"
    quantization: str = ""
    max_context: int = 0
    cache_dir: str = ""
    packed_cache: str = "auto"
    tool_format: str = "auto"
    reasoning: str = "auto"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One worker's scheduler and KV cache.

    `page_size`: tokens per KV page; 0 = 16 on CPU, 64 on CUDA. `kv_tokens`: size of the KV cache in tokens; 0 = on a
    GPU, what fits beside the weights in `gpu_memory_share` of its memory.
    `max_step_tokens`: tokens computed in one step, decodes and prefill chunks together. `mixed_prefill_tokens`: those
    of prompts, in a step that has decodes; 0 = 7/16 of `max_step_tokens`.
    `max_running`, `max_waiting`: requests in the batch and in the queue; `max_queued_turns`: turns waiting per session.
    `depth`: steps in flight beyond the one being decided. 1 hides planning behind a GPU's work; on a CPU it hides
    nothing and makes an abort wait for one step more.
    `grammar_timeout_s`: how long a grammar may take to be compiled, its turn in the pool included.
    `forecast`: a request starts when the KV that it will probably need is there, by what others needed of their
    `max_tokens`; off, when its prompt has room, at the price of more preemptions.
    `check_invariants`: verify the conservation law after every step (tests), not only on demand.
    """

    page_size: int = 0
    kv_tokens: int = 65536
    max_step_tokens: int = 256
    mixed_prefill_tokens: int = 0
    max_running: int = 64
    max_waiting: int = 1024
    max_queued_turns: int = 8
    depth: int = 0
    prefix_cache: bool = True
    forecast: bool = True
    share_prefix_across_tenants: bool = False
    check_invariants: bool = False
    tombstone_s: float = 30.0
    grammar_timeout_s: float = 10.0
    gpu_memory_share: float = 0.9


@dataclass(frozen=True, slots=True)
class HibernateConfig:
    """Where the KV of idle sessions goes when the cache is short of pages (rule K7), for each worker.

    `host_bytes`, `disk_bytes`: budgets of host memory and of files; the least recently used moves on from memory to
    files, and from files to nothing. 0 and 0 = sessions do not hibernate: a session that was evicted is prefilled from
    its history. `directory`: where the files are; empty = a folder of the worker's own in the system's temporary one.
    `below`: copies are made ahead of need while less than this share of the pages is free or could be freed without
    losing any.
    """

    host_bytes: int = 2**30
    disk_bytes: int = 0
    directory: str = ""
    below: float = 0.25


RUNNERS = ("auto", "cpu", "torch", "toy")
"""What `workers.runner` may say."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The worker actors.

    `runner`: `cpu`, the fused step of `kernels/cpu`; `torch`; `auto`, the first where it can serve the model and the
    second elsewhere; or `toy` (no model: the next token is a hash of the KV; for tests).
    `attention`: attention backend of the torch runner (any but `auto` means that one).
    `threads`: compute threads per rank; 0 = cores / ranks.
    `tensor_parallel`: over how many processes (ranks) a worker's model is split; it must divide the attention heads.
    `num_cpus`, `num_gpus`: Ray resources of each rank. `rank_placement`: `strict_pack`, all ranks of a worker on one
    node, or `pack`, on several if need be. `toy_step_s`: how long a step of the toy runner takes;
    `toy_weights`: a file whose content stands for its weights, empty = none; `toy_start_s`: how long it takes to start.
    `request_log`: a file, on each worker's node, for one JSON line per request that ended there: no prompts, no texts,
    ids escaped, with the trace that its client sent along. Empty = none.
    `cuda_graphs`: whether decodes are captured as CUDA graphs, where the attention backend allows it.
    """

    count: int = 1
    runner: str = "auto"
    attention: str = "auto"
    threads: int = 0
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    tensor_parallel: int = 1
    rank_placement: str = "strict_pack"
    toy_step_s: float = 0.0
    toy_weights: str = ""
    toy_start_s: float = 0.0
    cuda_graphs: bool = True
    request_log: str = ""
