"""Random clusters, seed after seed, with counters."""

from __future__ import annotations

import logging
import time
from collections import Counter

from tests.sim.chaos import Chaos
from tests.soak.outcome import Soaked, say_progress


def soak_cluster(seed: int, seconds: float) -> Soaked:
    """Play seeds from `seed` on for so long."""
    logging.getLogger("remora").setLevel(logging.CRITICAL)  # Workers that are cut off say so, thousands of times.
    tally: Counter[str] = Counter()
    failed = []
    began = said = time.monotonic()
    number = seed
    while time.monotonic() - began < seconds:
        chaos = Chaos(number)
        try:
            chaos.play()
        except KeyboardInterrupt:
            break
        except Exception as error:  # Whatever it is: it is shown, and counts as a failure.
            failed.append((f"python -m tests.soak --steps 0 --minutes 0.01 --seed {number}", error))
        tally += chaos.tally()
        number += 1
        said = say_progress(said, f"{tally['runs']:,} clusters, {tally['steps']:,} steps, {len(failed)} failures")
    return tally, failed
