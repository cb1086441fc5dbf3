"""Which attention backend serves a model here, and why not the others.

Libraries are imported when a backend that needs them is looked at, and none on a device that they do not run on: a
machine without a GPU never loads CUDA for it.
"""

from __future__ import annotations

from collections.abc import Callable

from kernels.attention import AttentionBackend, AttnConfig


class NoBackend(ValueError):
    """No attention backend can serve this model here. The message gives each one's reasons."""


def _flash() -> type[AttentionBackend]:
    from kernels.flash.backend import FlashAttention

    return FlashAttention


def _xformers() -> type[AttentionBackend]:
    from kernels.xformers_paged import XformersAttention

    return XformersAttention


def _triton() -> type[AttentionBackend]:
    from kernels.triton_paged.backend import TritonAttention

    return TritonAttention


def _torch() -> type[AttentionBackend]:
    from kernels.torch_ref import TorchAttention

    return TorchAttention


BACKENDS: dict[str, Callable[[], type[AttentionBackend]]] = {
    "vllm-flash-attn": _flash,
    "xformers": _xformers,
    "triton": _triton,
    "torch": _torch,
}
"""In the order of `auto`: who installs an extra wants it used; without one, our own kernels come before plain torch."""

AUTO = "auto"


def select_backend(config: AttnConfig, requested: str = AUTO) -> tuple[AttentionBackend, dict[str, str]]:
    """A backend for this model, and for every other one why it was not taken.

    An explicit choice that cannot work raises NoBackend with the reasons; it never falls back.
    """
    if requested not in (AUTO, *BACKENDS):
        known = ", ".join((AUTO, *BACKENDS))
        raise NoBackend(f"no attention backend is called {requested!r}; known: {known}")
    if requested != AUTO:
        problems = problems_of(requested, config)
        if problems:
            raise NoBackend(f"cannot use the attention backend {requested}: {'; '.join(problems)}")
        others = {name: f"{requested} was asked for" for name in BACKENDS if name != requested}
        return BACKENDS[requested]()(config), others
    reasons: dict[str, str] = {}
    taken: AttentionBackend | None = None
    for name in BACKENDS:
        if taken is not None:
            reasons[name] = f"{taken.name} comes first"
        elif problems := problems_of(name, config, automatic=True):
            reasons[name] = "; ".join(problems)
        else:
            taken = BACKENDS[name]()(config)
    if taken is None:
        raise NoBackend("no attention backend works: " + "; ".join(f"{name}: {why}" for name, why in reasons.items()))
    return taken, reasons


def problems_of(name: str, config: AttnConfig, *, automatic: bool = False) -> list[str]:
    """Why the backend cannot serve this model here, or, when nobody named it, should not; empty if it can."""
    backend = BACKENDS[name]()
    here = config.device.type
    if here not in backend.devices:
        return [f"it runs on {' and '.join(backend.devices)} only, and the model is on {here}"]
    if automatic and here in backend.on_request:
        return [f"on {here} it is taken only when it is asked for"]
    missing = backend.unavailable()
    if missing:
        return [missing]
    problems = []
    if config.page_size % backend.page_multiple:
        problems.append(f"page_size {config.page_size} is not a multiple of {backend.page_multiple}")
    if config.num_q_heads % config.num_kv_heads:
        problems.append(f"{config.num_q_heads} query heads cannot share {config.num_kv_heads} KV heads evenly")
    return problems + backend.unsupported(config)
