"""Before anything imports Triton: without a GPU its kernels run in its interpreter, which it decides on when it is
imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
