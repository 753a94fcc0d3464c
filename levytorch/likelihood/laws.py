"""What a law is: the density of one step, given the coefficient *functions* of a head.

Engines, phases and tail treatments see a law through these methods only. Levytorch's own are `FrozenLaw` and
`ExactLaw`; one of the user's own derives from `Law`, or has its attributes and methods, and is passed to
`recover(law=...)`, `LevyModule(law=...)` or named as `law._target_=my.module.MyLaw`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from levytorch.coefficients import Head, SplineHead
from levytorch.coefficients.network import NetworkHead
from levytorch.convert import shown
from levytorch.data import Transitions
from levytorch.data.lattice import Lattice
from levytorch.errors import InputError
from levytorch.law.arguments import MOST_COORDINATES


class Missing(NamedTuple):
    """What a law must have, and what was found instead."""

    needed: str
    found: str


@dataclass(frozen=True)
class Capability:
    """What a law can be used with. A law declares it, and `missing` is the only place where it is checked.

    Attributes:
        dimensions: of the state, at most.
        on_a_cell: whether the head must have a period, or consist of splines on a line.
        lattice_on_a_line: whether the nodes of a lattice may stand for pairs on a line.
        alpha_of_x: whether alpha may be a function of x.
        distinct_dt: the number of distinct lengths of a step, at most; None: any number.
        scores: whether the law has `score` and `exceedance` of `FrozenLaw`: derivatives in the coefficients at the
            start of the step, in closed form. Fisher scoring needs them; without them the engines are lbfgs and adam,
            which differentiate `log_prob`.
        tails: whether the law has `mass_beyond`, which lost tails need.
    """

    dimensions: int = MOST_COORDINATES
    on_a_cell: bool = False
    lattice_on_a_line: bool = True
    alpha_of_x: bool = True
    distinct_dt: int | None = None
    scores: bool = False
    tails: bool = True

    def missing(self, head: Head, data: Transitions | Lattice | None = None) -> Missing | None:
        """What this head and data lack for the law; None: nothing."""
        if head.dim > self.dimensions:
            one = "one-dimensional data" if self.dimensions == 1 else f"data of at most {self.dimensions} dimensions"
            return Missing(one, f"{head.dim} coordinates")
        if self.on_a_cell and not head.repeats and not isinstance(head, SplineHead | NetworkHead):
            return Missing("a head with a period, or splines or a network on a line", f"a {type(head).__name__}")
        if not self.lattice_on_a_line and not head.repeats and isinstance(data, Lattice):
            return Missing("the pairs themselves on a line", "a lattice")
        if self.on_a_cell and head.repeats and not getattr(head, "periodic", True):
            return Missing("a head with a period", "one without")
        if not self.alpha_of_x and head.alpha_spec.mode == "function":
            return Missing("one alpha", "alpha as a function of x (the far tail would be a mixture of powers of |dx|)")
        most = self.distinct_dt
        if most is not None and data is not None and len(distinct_steps(data, most)) > most:
            return Missing(f"at most {most} distinct dt", "more")
        return None


@runtime_checkable
class Law(Protocol):
    """The law of one step.

    Attributes:
        name: for metrics, logs and error messages.
        supports: what it can be used with.

    Example:
        >>> class Frozen(Law):
        ...     name = "mine"
        ...
        ...     def log_prob(self, head, x, dx, dt):
        ...         return levytorch.log_density(dx, *head(x)[:4], dt)
    """

    name: str
    supports: Capability = Capability(tails=False)

    def log_prob(self, head: Any, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        """log p(x -> x + dx over dt), (n,); differentiable in the parameters of the head.

        x, dx: (n,), or (n, d) in d > 1 dimensions; dt: 0-d or (n,); head: a Head, or any function x -> Coefficients.
        """
        ...

    def mass_beyond(self, head: Any, threshold: Tensor, center: Tensor, x: Tensor, dt: Tensor) -> Tensor:
        """P(|dx - center| > threshold | x), (n,); differentiable as `log_prob` is."""
        raise NotImplementedError


def check_law(law: Any) -> Law:
    """Refuse an object that is no law, or whose scores belong to another density than its `log_prob`."""
    if isinstance(law, type) or not isinstance(law, Law) or not isinstance(law.supports, Capability):
        raise InputError(
            "law must be a name or an object with name, supports, log_prob and mass_beyond, found "
            f"{shown(law)}; derive its class from levytorch.likelihood.laws.Law and pass an instance."
        )
    if not isinstance(law.name, str):
        raise InputError(f"name of a law must be a str, found {shown(law.name)} in {type(law).__name__}; set it.")
    needed = ["mass_beyond"] * law.supports.tails + ["score", "exceedance"] * law.supports.scores
    for method in needed:
        if _depth(law, method) > _depth(law, "log_prob"):
            raise InputError(
                f"a law must define {method} beside log_prob, or declare that it has none, found log_prob alone in "
                f"{type(law).__name__}; define {method}, or set supports = Capability(scores=False, tails=False)."
            )
    return law


def _depth(law: Law, method: str) -> int:
    """How many classes above that of the law a method is defined; one that rests on another counts like that one."""
    names = {method, "exceedance"} if method == "mass_beyond" else {method}
    kinds = type(law).__mro__
    return next((depth for depth, kind in enumerate(kinds) if names & set(vars(kind))), len(kinds))


def distinct_steps(data: Transitions | Lattice, most: int) -> list[float]:
    """The distinct dt, up to rounding; of more than `most` the first ones."""
    if isinstance(data, Lattice):
        return [float(dt) for dt in data.dt]
    if data.uniform_dt:
        return [float(data.dt[0])]
    distinct = np.empty(0)
    for rows in data.blocks():
        distinct = np.unique(np.concatenate([distinct, data.dt[rows].numpy()]))
        distinct = distinct[np.diff(distinct, prepend=-1.0) > 1e-6 * distinct]
        if len(distinct) > most:
            break
    return distinct.tolist()
