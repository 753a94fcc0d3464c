"""What V is compared with when the truth is not known: discounted empirical values, their Fourier fit, CRL and r / beta
(section 4.3); and how the difference is judged, by its relative L2 error and by coverage.

And how much V would differ had another stretch of the same series been seen, by a block bootstrap: blocks of
consecutive transitions are drawn with replacement until there are as many transitions as in the data, the coefficients
are fitted again and V is solved again. Unlike V.std, which trusts the model, this sees what the model leaves out as
long as it lives within a block: clusters of volatility, dependent jumps.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import whole_number
from levytorch.data import Transitions
from levytorch.data.pairing import first_points
from levytorch.errors import InputError, LevytorchWarning, NumericalError
from levytorch.policy.empirical import (
    EmpiricalValues,
    crl_baseline,
    empirical_values,
    reference_curve,
    trivial_baseline,
)
from levytorch.spaces.basis import FourierBasis

Function = Callable[[Tensor], Tensor]


def relative_error(values: Any, reference: Any) -> float:
    """||values - reference|| / ||reference|| of arrays or tensors of one shape, on evenly spaced points.

    Infinite beside a reference that vanishes.
    """
    a, b = (torch.as_tensor(v, dtype=torch.float64) for v in (values, reference))
    size = float(b.norm())
    return math.inf if size == 0 else float((a - b).norm()) / size


def relative_l2(V: Function, reference: Function, low: float, high: float, n: int = 2000) -> float:
    """||V - reference|| / ||reference|| in L2(low, high), midpoint rule."""
    if not low < high:
        raise InputError(f"low must be below high, found {low!r} and {high!r}; give the ends of the interval in order.")
    x = low + (torch.arange(n, dtype=torch.float64) + 0.5) * ((high - low) / n)
    error = relative_error(V(x), reference(x))
    if math.isinf(error):
        raise InputError(
            "the reference must not be zero for a relative error, found one that vanishes; compare absolute values."
        )
    return error


def coverage(values: Tensor, center: Tensor, half_width: Tensor) -> float:
    """Fraction of values within center +- half_width (section 4.3: empirical values within mean +- one standard
    deviation).
    """
    return float(((values - center).abs() <= half_width).to(torch.float64).mean())


def drawn_blocks(n: int, block: int, generator: torch.Generator) -> Tensor:
    """(n,) rows of a series of n transitions: whole blocks from random places, the last one cut to fit.

    Blocks wrap around the end, so that every transition is drawn equally often.
    """
    block = whole_number("block", block, 1, n, "give the length of a block")
    starts = torch.randint(n, (-(-n // block),), generator=generator)
    return ((starts[:, None] + torch.arange(block)) % n).reshape(-1)[:n]


@dataclass(frozen=True)
class Bootstrap:
    """Refits of one fit: `values` and `recoveries` of the replicas that worked, and what became of the others."""

    values: list[Any]
    recoveries: list[Any]
    block: int
    failed: int
    unconverged: int

    def std(self, x: Tensor) -> Tensor:
        """Standard deviation over the replicas at x."""
        return torch.stack([V(x) for V in self.values]).std(0)

    def numbers(self) -> dict[str, Any]:
        """What metrics.json says about the refits."""
        tcf = torch.tensor([float(recovery.tcf) for recovery in self.recoveries], dtype=torch.float64)
        alphas = [recovery.alpha for recovery in self.recoveries]
        out = {
            "kind": "block bootstrap: blocks of consecutive transitions, refitted",
            "replicas": len(self.values),
            "block": self.block,
            "failed": self.failed,
            "unconverged": self.unconverged,
            "tcf_sd": float(tcf.std()),
        }
        if not any(callable(alpha) for alpha in alphas):
            out["alpha_sd"] = float(torch.tensor(alphas, dtype=torch.float64).std())
        return out


def block_bootstrap(
    transitions: Transitions,
    refit: Callable[[Transitions], Any],
    solve: Callable[[Any], Any],
    *,
    replicas: int = 40,
    block: int = 240,
    seed: int = 0,
    progress: bool = False,
) -> Bootstrap:
    """Refit and solve on `replicas` resampled series.

    refit: transitions -> Recovery; solve: Recovery -> V. A replica whose fit or solve breaks down is left out and
    counted; with fewer than two left there is no band, which is refused.
    """
    from tqdm import tqdm

    replicas = whole_number("replicas", replicas, 2, remedy="40 give a band to about 11 %")
    n = len(transitions)
    generator = torch.Generator().manual_seed(seed)
    rows = [drawn_blocks(n, block, generator) for _ in range(replicas)]
    values, recoveries, failed, unconverged = [], [], 0, 0
    for chosen in tqdm(rows, desc="bootstrap", unit=" refits", disable=not progress, leave=False):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LevytorchWarning)  # counted below; one fit has said it already
                recovery = refit(transitions[chosen])
                V = solve(recovery)
        except (NumericalError, ArithmeticError):
            failed += 1
            continue
        unconverged += not recovery.converged
        values.append(V)
        recoveries.append(recovery)
    if len(values) < 2:
        raise NumericalError(
            f"at least two refits must work for a band, found {len(values)} of {replicas}; use longer blocks or a "
            "penalty."
        )
    if failed or unconverged:
        warnings.warn(
            f"of {replicas} refits {failed} failed and {unconverged} had not converged, so that the band may be "
            "off; use longer blocks or a penalty.",
            LevytorchWarning,
            stacklevel=2,
        )
    return Bootstrap(values, recoveries, block, failed, unconverged)


@dataclass(frozen=True)
class Reference:
    """A curve, its name, and the empirical values behind it when there are any."""

    curve: Function
    label: str
    values: EmpiricalValues | None = None


def empirical_reference(
    trajectories: Any, reward: Callable[[Tensor], Any], beta: float, basis: FourierBasis, **options: Any
) -> Reference:
    """The reference of section 4.3: a Fourier fit to the discounted values; options: those of `empirical_values`."""
    values = empirical_values(trajectories, reward, beta, **options)
    # states of other periods belong to the same V: shown and counted in the cell
    values = values._replace(x=basis.origin + torch.remainder(values.x - basis.origin, basis.period))
    return Reference(reference_curve(values, basis), "empirical reference", values)


@dataclass(frozen=True)
class EmpiricalComparison:
    """The values of all observations of a file and the curves that V stands beside.

    The paper's sum dt sum_j exp(-beta j dt) r_j exceeds the integral that V is by beta dt / 2 whatever the states do;
    `exact` integrates the discount exactly and is free of that. `crl`, the model-free baseline, uses what V was
    fitted to; it is None when that is everything, as it would be the reference itself.
    """

    values: EmpiricalValues
    exact: EmpiricalValues
    reference: Function
    reference_exact: Function
    crl: Function | None
    trivial: Function
    interval: tuple[float, float]
    seen: tuple[float, float]

    def curves(self) -> dict[str, Function]:
        """Every curve by its name."""
        names = ("reference", "reference_exact", "crl", "trivial")
        return {name: curve for name in names if (curve := getattr(self, name)) is not None}

    def errors(self, V: Function) -> dict[str, float]:
        """Relative L2 errors on the interval, against either reference, and on the states seen."""
        return {
            "relative_l2": relative_l2(V, self.reference, *self.interval),
            "relative_l2_exact": relative_l2(V, self.reference_exact, *self.interval),
            "relative_l2_seen": relative_l2(V, self.reference, *self.seen),
        }

    def covered(self, V: Function, std: Function) -> tuple[float, float]:
        """Shares within V +- one standard deviation: of the empirical values, and of the exact reference's interval."""
        x = torch.linspace(*self.interval, 2001, dtype=torch.float64)
        inside = (self.values.x >= self.interval[0]) & (self.values.x <= self.interval[1])
        return (
            _band_coverage(V, std, self.values.x[inside], self.values.V[inside]),
            _band_coverage(V, std, x, self.reference_exact(x)),
        )

    def numbers(self, V: Any, bootstrap: Bootstrap | None = None) -> dict[str, Any]:
        """Errors, coverage of the bands and baselines, as metrics.json has them."""
        inside = (self.values.x >= self.interval[0]) & (self.values.x <= self.interval[1])
        baselines = {"trivial": self.trivial} | ({} if self.crl is None else {"crl": self.crl})
        out: dict[str, Any] = {
            **self.errors(V),
            "interval": list(self.interval),
            "seen": list(self.seen),
            "n_values": int(inside.sum()),
            "n_modes": V.n_modes,
            "residual": V.residual,
            "condition": V.condition,
            "baselines": {name: self.errors(curve) for name, curve in baselines.items()},
        }
        if V.covariance_factor is not None:
            out["coverage_std"], out["coverage_of_reference_std"] = self.covered(V, V.std)
        if bootstrap is not None:
            errors = [self.errors(replica)["relative_l2"] for replica in bootstrap.values]
            out["coverage_bootstrap"], out["coverage_of_reference_bootstrap"] = self.covered(V, bootstrap.std)
            out["bootstrap"] = bootstrap.numbers() | {
                "relative_l2_mean": float(np.mean(errors)),
                "relative_l2_sd": float(np.std(errors, ddof=1)),
            }
        return out


def compare_with_data(
    trajectories: Any,
    reward: Callable[[Tensor], Any],
    beta: float,
    basis: FourierBasis,
    *,
    chosen: Any = None,
    window: tuple[float, float] | None = None,
    **options: Any,
) -> EmpiricalComparison:
    """Empirical values of all trajectories and the curves made of them.

    chosen: rows of the transitions of `trajectories` that the fit used (None: all). window: the interval of the
    errors; None: from the smallest to the largest state that has a value. options: those of `empirical_values`.
    """
    held = empirical_reference(trajectories, reward, beta, basis, **options)
    exact = empirical_reference(trajectories, reward, beta, basis, **{**options, "exact": True})
    assert held.values is not None
    assert exact.values is not None
    transitions = trajectories.transitions()
    x, crl = transitions.x, None
    if chosen is not None:
        points = torch.from_numpy(first_points(trajectories, transitions))[chosen]
        x, crl = transitions.x[chosen], crl_baseline(held.values, basis, points)
    x = basis.origin + torch.remainder(x - basis.origin, basis.period)
    low, high = window or (float(held.values.x.min()), float(held.values.x.max()))
    return EmpiricalComparison(
        held.values,
        exact.values,
        held.curve,
        exact.curve,
        crl,
        trivial_baseline(reward, beta),
        (low, high),
        (float(x.min()), float(x.max())),
    )


def _band_coverage(V: Function, std: Function, x: Tensor, target: Tensor) -> float:
    """Share of the targets within V +- std, both interpolated on a fine grid."""
    grid = torch.linspace(float(x.min()), float(x.max()), 2001, dtype=torch.float64)
    center, width = (torch.from_numpy(np.interp(x.numpy(), grid.numpy(), f(grid).numpy())) for f in (V, std))
    return coverage(target, center, width)
