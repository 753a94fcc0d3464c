"""LevyStep as a distribution of Pyro: `pyro.sample("dx", LevyStep(b, D_o, D_f, alpha, dt), obs=dx)`.

Pyro is not among the requirements; this module needs it.
"""

from __future__ import annotations

from pyro.distributions.torch_distribution import TorchDistributionMixin

from levytorch.law import LevyStep as _LevyStep


class LevyStep(_LevyStep, TorchDistributionMixin):
    """The law of one step, for models and guides of Pyro: see `levytorch.LevyStep`."""
