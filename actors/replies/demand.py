"""What is asked of a reply's tool calls. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """`required`: at least one call. `named`: exactly one, of this tool. `parallel`: more than one is welcome.
    `strict`: tools whose arguments must conform to their schema. `field`: where the client says so."""

    required: bool = False
    named: str = ""
    parallel: bool = True
    strict: frozenset[str] = frozenset()
    field: str = "tools"

    @property
    def forces(self) -> bool:
        return self.required or bool(self.named)

    @property
    def enforced(self) -> bool:
        """Whether it takes a grammar."""
        return self.forces or not self.parallel or bool(self.strict)


ANY = Demand()
