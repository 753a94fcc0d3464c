"""Accuracy and time of the exact law of a step: `python benchmarks/exact.py`.

Accuracy: constant coefficients against `log_density`, varying ones against a finer rule. Time: one evaluation of log p
with its gradient as a function of the number of grid points, for a batch of the size of a lattice.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from dataclasses import replace

import torch
from torch import Tensor

from levytorch import log_density
from levytorch.coefficients import AlphaSpec, Coefficients, FourierHead
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_scores import expected_scores

D = torch.float64
DT = 1 / 40


class Constant:
    """Constant coefficients on a cell."""

    period, origin = 2 * math.pi, 0.0

    def __init__(self, alpha: float) -> None:
        self.alpha = torch.tensor(alpha, dtype=D)

    def __call__(self, x: Tensor) -> Coefficients:
        return Coefficients(torch.full_like(x, 5.0), torch.full_like(x, 4.0), torch.full_like(x, 3.0), self.alpha)


class Varying(Constant):
    """Coefficients that vary within a step."""

    def __call__(self, x: Tensor) -> Coefficients:
        b, D_o = 4 * torch.cos(x) + 2 * torch.sin(2 * x), torch.exp(torch.sin(x + 1) + 0.5)
        return Coefficients(b, D_o, 2 + torch.exp(torch.sin(2 * x) * torch.cos(3 * x)), self.alpha)


def accuracy(alphas: list[float]) -> None:
    law = ExactLaw()
    generator = torch.Generator().manual_seed(0)
    n = 4000
    x = 2 * math.pi * torch.rand(n, generator=generator, dtype=D)
    sign = torch.where(torch.rand(n, generator=generator) < 0.5, -1.0, 1.0)
    core = 3 * sign * torch.rand(n, generator=generator, dtype=D)
    tail = sign * 10 ** (math.log10(3) + (12 - math.log10(3)) * torch.rand(n, generator=generator, dtype=D))
    print("largest error of log p    constant, |dx| < 3   constant, 3 < |dx| < 1e12   varying, finer rule   n")
    for alpha in alphas:
        errors = []
        for dx in (core, tail):
            expected = log_density(dx, 5.0, 4.0, 3.0, alpha, DT, method="contour")
            errors.append(
                float((law.log_prob(Constant(alpha), x, dx, torch.tensor(DT, dtype=D)) - expected).abs().max())
            )
        finer, grid = law.accuracy(Varying(alpha), DT), law.rule(Varying(alpha), DT).n
        print(f"  alpha {alpha:<12} {errors[0]:20.1e} {errors[1]:27.1e} {finer:21.1e} {grid:4d}")


def fitted(n_basis: int) -> FourierHead:
    """A head of about the sizes of the variable example, with some noise on its modes."""
    head = FourierHead(n_basis=n_basis, alpha=AlphaSpec("fixed", 0.3))
    theta = head.flat().reshape(3, -1)
    theta += 0.02 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(0), dtype=D)
    theta[:, 0] += torch.tensor([0.0, 3.0, 3.0], dtype=D)
    head.set_flat(theta.reshape(-1))
    return head


def times(sizes: list[int], n_points: int, repeats: int, with_scores: bool) -> None:
    head = fitted(21)
    generator = torch.Generator().manual_seed(0)
    x = 2 * math.pi * torch.rand(n_points, generator=generator, dtype=D)
    sign = torch.where(torch.rand(n_points, generator=generator) < 0.5, -1.0, 1.0)
    dx = sign * 10 ** (-2 + 9 * torch.rand(n_points, generator=generator, dtype=D))
    dt = torch.tensor(DT, dtype=D)
    chosen = ExactLaw().rule(head, DT)
    print(f"\nseconds, {n_points} points, {torch.get_num_threads()} threads (the rule for this head: n = {chosen.n})")
    print("     n   matrices   log p   with gradient" + ("   all scores" if with_scores else ""))
    for n in sizes:
        law = ExactLaw(rules={DT: replace(chosen, n=n)})
        value, both = math.inf, math.inf
        for _ in range(repeats):
            start = time.perf_counter()
            log_p = law.log_prob(head, x, dx, dt)
            middle = time.perf_counter()
            log_p.sum().backward()
            value, both = min(value, middle - start), min(both, time.perf_counter() - start)
        line = f"  {n:4d} {chosen.core + 2 * chosen.tail:10d} {value:7.3f} {both:15.3f}"
        if with_scores:
            start = time.perf_counter()
            expected_scores(law, head, DT)
            line += f" {time.perf_counter() - start:12.1f}"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.1, 0.3, 0.5, 0.7, 0.9])
    parser.add_argument("--sizes", type=int, nargs="+", default=[33, 45, 65, 81, 99, 135, 195])
    parser.add_argument("--points", type=int, default=35_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scores", action="store_true", help="also the scores of 63 parameters at all transitions")
    arguments = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    accuracy(arguments.alphas)
    times(arguments.sizes, arguments.points, arguments.repeats, arguments.scores)


if __name__ == "__main__":
    main()
