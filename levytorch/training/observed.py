"""The states that a fit has seen, few enough to be kept with it: what its averages are taken over."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.data.lattice import Lattice

KEPT = 512
INSEPARABLE = 0.98  # correlation of the estimates of D_o and D_f, and
_KNOWN = 0.5  # relative standard error up to which a coefficient is known all the same


def hardly_separable(recovery: Any, correlation: float) -> str | None:
    """The warning where D_o and D_f are known together, but one of them is not known by itself.

    A high correlation alone is no reason to warn: with enough data both are known well.
    """
    if not correlation > INSEPARABLE or recovery.covariance is None:
        return None
    x = recovery.states
    stds = recovery.std(x)[1:]
    errors = [float(std.mean() / v(x).mean().clamp(min=1e-300)) for std, v in zip(stds, (recovery.D_o, recovery.D_f))]
    if max(errors) <= _KNOWN:
        return None
    return (
        f"D_o and D_f are hardly separable from this data (correlation {correlation:.3f} of their estimates, relative "
        f"standard errors {errors[0]:.0%} and {errors[1]:.0%}); trust their combined effect, not each alone, or fix "
        "one (D_o=<number> or D_f=<number>)."
    )


def observed_states(recovery: Any, data: Transitions | Lattice) -> Tensor:
    """(n,) or (n, d): evenly spaced quantiles of the states in one dimension, every so many-th state in more.

    States on a circle are folded into one period. Those outside the window of a line were not fitted, and are left out.
    """
    if isinstance(data, Lattice):
        bins = data.counts_of_states()
        x, weight = bins.x, bins.pairs
        if recovery.dim > 1:
            generator = torch.Generator().manual_seed(0)
            x, weight = x[torch.multinomial(weight, KEPT, replacement=True, generator=generator)], torch.ones(KEPT)
    else:
        x = data.x[:: max(1, len(data) // (KEPT if recovery.dim > 1 else 200_000))]
        weight = torch.ones(len(x))
    if recovery.period is None:
        low, high = torch.as_tensor(recovery.head.bounds, dtype=torch.float64).T
        within = (x >= low) & (x <= high)
        within = within if recovery.dim == 1 else within.all(1)
        x, weight = x[within], weight[within]
    elif recovery.dim == 1:
        x = recovery.origin + torch.remainder(x - recovery.origin, recovery.period)
    if recovery.dim > 1 or (len(x) <= KEPT and bool((weight == weight[0]).all())):
        return x[:KEPT]
    order = torch.argsort(x)
    share = torch.cumsum(weight[order].double(), 0)
    levels = (np.arange(KEPT) + 0.5) / KEPT * float(share[-1])
    return x[order][torch.from_numpy(np.searchsorted(share.numpy(), levels))]
