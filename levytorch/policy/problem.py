"""(beta - L) V = r on one space: what the solver asks of it, whatever the space is."""

from __future__ import annotations

from typing import Any, Protocol

from levytorch.policy.value import ValueFunction


class Problem(Protocol):
    """A discretisation of the equation at any resolution n; `Found` is what it knows of V at one of them."""

    first: int  # the resolution to begin with
    most: int
    keeps_best: bool  # whether V may be determined less well with more modes
    remedy: str

    def __init__(
        self, dynamics: Any, space: Any, reward: Any, beta: float, *, window: Any, exterior: Any, beyond_data: bool
    ) -> None: ...

    def checked(self, n_modes: Any) -> int:
        """A resolution that the caller has chosen."""
        ...

    def finer(self, n: int) -> int:
        """The resolution after n."""
        ...

    def solved(self, n: int) -> Any:
        """V at a resolution."""
        ...

    def n_modes(self, found: Any) -> int:
        """The resolution of what was found."""
        ...

    def is_usable(self, found: Any) -> bool:
        """Whether the system was conditioned well enough."""
        ...

    def moved(self, before: Any, found: Any) -> float:
        """max |V - V before| relative to max |V|."""
        ...

    def residual(self, found: Any) -> float:
        """max |(beta - L) V - r| between the points, relative to max |r|."""
        ...

    def value(self, found: Any, change: float | None, converged: bool) -> ValueFunction:
        """V with its errors."""
        ...
