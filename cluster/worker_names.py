"""Workers' names: each one's own for ever, so that what is late can never meet another."""

from __future__ import annotations

import uuid

WORKER_PREFIX = "worker-"


def new_worker_id() -> str:
    """A name that no worker has had."""
    return f"{WORKER_PREFIX}{uuid.uuid4().hex[:8]}"
