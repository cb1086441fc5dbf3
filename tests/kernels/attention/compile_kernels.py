"""Compile the Triton kernels for GPUs that are not here; prints one line per GPU and shape (`--all`: all pairs).

A process of its own: under TRITON_INTERPRET, which tests of the suite run under, nothing can be compiled.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.attention import AttnConfig
from kernels.triton_paged.backend import tiles_for
from kernels.triton_paged.decode import combine_kernel, decode_kernel
from kernels.triton_paged.varlen import varlen_kernel
from kernels.triton_paged.write import write_kernel

Shape = tuple[int, torch.dtype, bool, bool]
"""head_dim, dtype, whether there is a window, whether there is a soft cap."""
SHAPES: tuple[Shape, ...] = (
    (128, torch.bfloat16, False, False),
    (64, torch.float16, True, False),
    (80, torch.bfloat16, True, True),
    (256, torch.bfloat16, False, False),
    (128, torch.float32, False, True),
)
GPUS = (80, 90, 100, 120)
SOME = [(80, SHAPES[2]), (90, SHAPES[0]), (90, SHAPES[3]), (100, SHAPES[1]), (120, SHAPES[4])]
LEAST_SHARED_MEMORY = 99 * 1024
"""What a block may have on sm_86, sm_89 and sm_120, in bytes; others have more."""
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
POINTERS = {
    "page_table_ptr": "*i32",
    "kv_lens_ptr": "*i32",
    "q_start_ptr": "*i32",
    "blocks_ptr": "*i32",
    "slots_ptr": "*i64",
    "parts_ptr": "*fp32",
    "weight_ptr": "*fp32",
}


def compile_for(kernel: Any, dtype: torch.dtype, architecture: int, warps: int, stages: int, **constants: Any) -> int:
    """Returns the shared memory it takes, in bytes."""
    signature: dict[str, str] = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name in ("scale", "softcap"):
            signature[name] = "fp32"
        elif name.endswith("_ptr"):
            of_kernel = "*fp32" if kernel is decode_kernel and name == "out_ptr" else f"*{NAMES[dtype]}"
            signature[name] = POINTERS.get(name, of_kernel)
        else:
            signature[name] = "i32"
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    target = GPUTarget("cuda", architecture, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    assert compiled.asm["cubin"]
    return int(compiled.metadata.shared)


def compile_all(architecture: int, shape: Shape) -> int:
    """Every kernel for one GPU and shape; the most shared memory that one takes, in bytes."""
    dim, dtype, window, cap = shape
    config = AttnConfig(32, 8, dim, dtype, torch.device("cuda"), 64, dim**-0.5)
    tiles = tiles_for(config)
    common = {"windowed": window, "head_dim": dim, "dim_padded": triton.next_power_of_2(dim)}
    capped = {"capped": cap, "group": 4, "page_size": 64}
    decode = {"group_padded": 16, "tile": tiles.decode, "split": 256}
    prompt = {"rows": tiles.rows, "tile": tiles.prompt}
    written = {"num_kv_heads": 8, "head_dim": dim, "numbers_padded": triton.next_power_of_2(8 * dim)}
    at = (dtype, architecture)
    return max(
        compile_for(decode_kernel, *at, tiles.decode_warps, tiles.stages, **common, **capped, **decode),
        compile_for(combine_kernel, *at, 1, 3, **common, split=256),
        compile_for(varlen_kernel, *at, tiles.prompt_warps, tiles.stages, **common, **capped, **prompt),
        compile_for(write_kernel, *at, 4, 3, **written),
    )


def check_numbers_that_grow() -> None:
    """Kernels are not compiled anew for numbers that depend on what rows there are."""
    for kernel in (decode_kernel, combine_kernel, varlen_kernel):
        growing = {"num_splits", "stride_table"} & set(kernel.arg_names)
        assert {each.name for each in kernel.params if each.do_not_specialize} == growing, kernel


def main() -> int:
    check_numbers_that_grow()
    pairs = [(gpu, shape) for gpu in GPUS for shape in SHAPES] if "--all" in sys.argv else SOME
    for architecture, shape in pairs:
        most = compile_all(architecture, shape)
        assert most <= LEAST_SHARED_MEMORY, f"{most} bytes of shared memory"
        print(f"sm_{architecture} head_dim {shape[0]} {NAMES[shape[1]]}: {most} bytes of shared memory", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
