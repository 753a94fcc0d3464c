"""Does the fitted process describe steps of twice the length: a score test of every second observation.

Under the exact law of a step the length of dt costs nothing, so that coefficients that change with it are a misfit of
the model: steps that depend on each other, noise of the observations, another law of the jumps. Two consecutive pairs
make one of 2 dt; at the fitted coefficients its scores s2 have mean zero if the process is right, whatever was fitted
to. To be independent of how well that was done the scores of the short steps are taken out,

    r = mean(s2) - I2 I1^-1 mean(s1),

which to first order does not move with theta; its covariance is the scatter of s2 - I2 I1^-1 (s1 + s1') over the blocks
of two pairs. Nothing is fitted again: I2^-1 r is what a fit to the long steps would change, to first order.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead
from levytorch.data import Transitions
from levytorch.diagnostics.exact_tangent import ExactTangent, rounded
from levytorch.diagnostics.refit import block_starts, doubled, two_steps
from levytorch.diagnostics.sample import subsample
from levytorch.diagnostics.step_size import NAMES, NOTHING_LEFT, Skipped, StepCheck, quadratic, seen_states, step_check
from levytorch.diagnostics.tangent import equilibrated_inverse
from levytorch.errors import InputError
from levytorch.likelihood.penalty import RoughnessPenalty

_BLOCKS = 8_000  # whose scores are looked at one by one
_SHARED = 5e-3  # scores are known to a percent: directions that both lengths see alike to that are left out


class ExactStepSize:
    """The test: `short` and `long` take most of the time and do not need each other; `test` joins them.

    strengths, n_fitted: of the roughness penalty, and the pairs beside which it stood. With several dt pairs of the
    most frequent one are looked at.
    """

    def __init__(
        self,
        tangent: ExactTangent,
        transitions: Transitions,
        *,
        strengths: list[float] | None = None,
        n_fitted: int = 0,
        most: int = 100_000,
        seed: int = 0,
    ) -> None:
        self.tangent, self.strengths, self.n_fitted = tangent, strengths, n_fitted
        data = subsample(transitions, most, seed)
        first = block_starts(data)
        P = tangent.head.flat().numel()
        time = rounded(data.dt)
        self.dt = float(time.mode().values)
        first = first[(time[first] == self.dt) & (time[first + 1] == self.dt)]
        self.skipped: Skipped | None = None
        if 2 * len(first) < max(400, 20 * P):
            self.skipped = Skipped(
                f"only {len(first)} pairs of one dt are followed by their successor and {max(200, 10 * P)} are needed "
                f"for {P} parameters; bring longer trajectories, or use fewer basis functions (n_basis)"
            )
            return
        first = first[torch.randperm(len(first), generator=torch.Generator().manual_seed(seed))]
        self.mu = data.mu if data.uniform_dt else data.mu * self.dt
        self.own, self.both = data[torch.stack([first, first + 1], dim=1).reshape(-1)], two_steps(data, first)

    def short(self) -> StepScores:
        return StepScores(self.tangent, self.own, self.dt, self.mu, 2 * _BLOCKS)

    def long(self) -> StepScores | Skipped:
        region = doubled(self.tangent.region.core())
        twice = ExactTangent(self.tangent.head, region, 2 * self.mu, uniform_dt=True)
        try:
            return StepScores(twice, self.both, 2 * self.dt, 2 * self.mu, _BLOCKS)
        except InputError as error:
            return Skipped(f"steps of 2 dt are out of reach of the exact law: {error}")

    def test(self, short: StepScores, long_: StepScores) -> StepCheck | Skipped:
        head = self.tangent.head
        precision = torch.zeros(head.flat().numel(), dtype=torch.float64)
        if self.strengths and isinstance(head, LinearHead):
            precision = RoughnessPenalty(head, self.strengths).precision() / max(self.n_fitted, short.n)
        return _test(head, short, long_, precision)


class StepScores:
    """Pairs of one length in the order of the blocks: mean score and information of those inside the region, and the
    single scores of the first few."""

    def __init__(self, tangent: ExactTangent, data: Transitions, dt: float, mu: Tensor, single: int) -> None:
        self.x, dx = data.x, data.dx
        inside = tangent.region.labels((dx - mu).abs(), torch.full_like(dx, dt)) == 0
        x, label = self.x[inside], torch.zeros(int(inside.sum()), dtype=torch.int64)
        self.n = len(x)
        self.score = tangent.mean_score(x, dx[inside], dt, label)
        self.scores = tangent.single_scores(self.x[:single], dx[:single], dt) * inside[:single, None]
        nodes = tangent.nodes(x, label, dt)
        self.information = nodes.scores.T @ (nodes.weight[:, None] * nodes.scores)


def _test(head: Head, short: StepScores, long_: StepScores, precision: Tensor) -> StepCheck | Skipped:
    pull = long_.information @ equilibrated_inverse(short.information, 1e-8)[0]
    residual = long_.score - pull @ short.score
    looked = len(long_.scores)
    per_block = long_.scores / long_.n - (short.scores[0::2] + short.scores[1::2]) @ pull.T / short.n
    covariance = per_block.T @ per_block * (len(long_.x) / looked)
    units = long_.information / long_.n, long_.information
    statistic, df = quadratic(residual, covariance, *units, _SHARED, few=per_block, of=len(long_.x))
    if df == 0 or not math.isfinite(statistic):
        return NOTHING_LEFT
    inverse = equilibrated_inverse(long_.information + torch.diag(precision), 1e-8)[0]
    curves = _curves(head, inverse @ residual, inverse @ covariance @ inverse, short.x)
    return step_check(statistic, df, curves, 1, (short.n, long_.n), True, "exact")


def _curves(head: Head, change: Tensor, spread: Tensor, x: Tensor) -> dict[str, Tensor]:
    """The fit, what the long steps would make of it, and the standard error of the difference, at observed states."""
    states = seen_states(head, x)
    with torch.no_grad():
        c = head(states)
    out = {"x": states}
    for name, J in zip(NAMES, head.jacobian(states)):
        out[f"{name}_dt"] = getattr(c, name).expand(len(states)).clone()
        out[f"{name}_2dt"] = out[f"{name}_dt"] + J.detach() @ change
        out[f"{name}_std"] = ((J.detach() @ spread) * J.detach()).sum(-1).clamp(min=0).sqrt()
    return out
