"""What training takes in memory, known before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from hinet.errors import HiNetError
from hinet.memory import GB, require_memory

REMEDY = "lower width, hash the wide expert (wide_buckets), leave it out (wide=False), or keep fewer features"


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that training will take on top of the rows themselves.

    Attributes
    ----------
    weights : int
        Parameters of all experts.
    slots : int
        Sums of squared gradients.
    scratch : int
        What the wide expert needs besides, while it trains.
    joining : int
        Copies made while the members of the deep expert are put side by side and turned into 8 bits.
    """

    weights: int
    slots: int
    scratch: int
    joining: int

    @property
    def total(self) -> int:
        """All of it, at the peak."""
        return self.weights + self.slots + max(self.scratch, self.joining)

    def __str__(self) -> str:
        return (
            f"training takes {self.total / GB:.2f} GB: weights {self.weights / GB:.2f}, slots {self.slots / GB:.2f}, "
            f"scratch {self.scratch / GB:.2f}"
        )

    def check(self, limit: float | None) -> None:
        """Raise HiNetError if it is more than ``limit`` GB, or without a limit more than there is."""
        if limit is None:
            require_memory(self.total, str(self), REMEDY)
        elif self.total > limit * GB:
            raise HiNetError(f"{self}, more than memory_limit={limit} GB; {REMEDY}")


def plan_memory(
    *,
    features: int,
    outputs: int,
    width: int,
    wide_weights: int = 0,
    wide_scratch: int = 0,
    labels: int = 0,
    flat_width: int = 0,
) -> MemoryPlan:
    """Return the plan for experts of these sizes; ``labels`` is 0 without a flat expert."""
    flat = (features + labels) * flat_width if labels else 0
    deep = (features + outputs) * width
    weights = 4 * (deep + flat) + 8 * wide_weights
    slots = 4 * (features + outputs) * 2
    return MemoryPlan(weights, slots, wide_scratch, 5 * deep + flat + 12 * wide_weights)
