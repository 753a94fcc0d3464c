"""What training needs from a law: log p of a transition, given the coefficient *functions*.

The frozen law evaluates the functions at x and holds them over the step. Laws that follow the coefficients along the
step need the functions themselves, which is why they are what the interface takes.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from levytorch.coefficients import Coefficients, Head
from levytorch.law import StepScore as StepScore  # re-exported: engines see laws through this module only
from levytorch.law import log_density, score, tail_probability

CoefficientFunctions = Callable[[Tensor], Coefficients]


class FrozenLaw:
    """Coefficients frozen at the start of the step (equation 3.1)."""

    def __init__(self, method: str = "auto", dim: int = 1) -> None:
        self.method, self.dim = method, dim

    def log_prob(self, coefficients: CoefficientFunctions, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        """log p(x -> x + dx over dt); differentiable in whatever the coefficient functions depend on."""
        c = coefficients(x)
        return log_density(dx, *c[:4], dt, dim=self.dim, method=self.method, tempering=rate(c))

    def score(self, c: Coefficients, dx: Tensor, dt: Tensor, wrt_alpha: bool = False) -> StepScore:
        """log p and its derivatives in the coefficients, one pass, no autograd: what Fisher scoring asks for."""
        lam = rate(c)
        return score(dx, *c[:4], dt, dim=self.dim, method=self.method, wrt_alpha=wrt_alpha, tempering=lam)

    def exceedance(self, c: Coefficients, threshold: Tensor, center: Tensor, dt: Tensor) -> Tensor:
        """P(|dx - center| > threshold) at given coefficients; differentiable in them."""
        return tail_probability(threshold, center, *c[:4], dt, dim=self.dim, tempering=rate(c))

    def mass_beyond(
        self, coefficients: CoefficientFunctions, threshold: Tensor, center: Tensor, x: Tensor, dt: Tensor
    ) -> Tensor:
        """P(|dx - center| > threshold | x); differentiable as log_prob is."""
        return self.exceedance(coefficients(x), threshold, center, dt)


def rate(c: Coefficients) -> Tensor | float:
    """The tempering as the law takes it: the number zero where there is none, for which the law has its tables."""
    if c.tempering.requires_grad or bool((c.tempering > 0).any()):
        return c.tempering
    return 0.0


def steady_method(density: str, head: Head) -> str:
    """How log p is computed throughout a fit: one method from the first step to the last, whatever the batch."""
    if density != "auto":
        return density
    return "contour" if head.learns_alpha or head.tempered else "table"
