"""Counter-based randomness: the n-th token of a request depends on (seed, n) alone (rule I3)."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def splitmix64(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a good hash of one 64-bit integer."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, index: int) -> float:
    """The `index`-th number in [0, 1) of the stream named by `seed`, with 53 random bits."""
    return (splitmix64(splitmix64(seed & _MASK) ^ index) >> 11) / (1 << 53)
