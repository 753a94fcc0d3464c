"""Figures of policy evaluation: accuracy, speed of batched solving against NumPy, the error-bound study, coverage.

python benchmarks/policy.py              a minute or two
python benchmarks/policy.py --coverage   also 100 recoveries: V.std against the truth
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.monte_carlo import monte_carlo_value
from benchmarks.paper.rates import rate_study
from levytorch import Dynamics, solve_value
from levytorch.policy.generator import operators, resolvent_coefficients, resolvent_matrix
from levytorch.policy.rewards import CosinePower, Manufactured
from levytorch.spaces.basis import FourierBasis

ALPHA = torch.tensor(0.3, dtype=torch.float64)
X = torch.linspace(0.0, 2 * math.pi, 1001, dtype=torch.float64)


def alternate(jobs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Best seconds of each job; the jobs take turns, so that a busy machine is busy for all of them."""
    best = dict.fromkeys(jobs, math.inf)
    for job in jobs.values():
        job()
    for _ in range(repeats):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def accuracy() -> None:
    for system in ("constant", "variable"):
        truth = Dynamics.named(system)
        V = solve_value(truth, Manufactured(CosinePower(), truth, 0.1), 0.1)
        error = float((V(X) - CosinePower()(X)).abs().max())
        print(f"manufactured cos^3(2x), {system}: error {error:.1e} with {V.n_modes} modes (figure: 1e-10)")


def speed(batch: int, repeats: int) -> None:
    n = 64
    basis = FourierBasis(n)
    u = torch.rand((4, batch, n), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    b, D_o, D_f, r = u[0], 1 + u[1], 1 + u[2], u[3]
    A = resolvent_matrix(operators(basis, basis.points(), ALPHA), b, D_o, D_f, 0.1).contiguous()
    A_numpy, r_numpy = A.numpy(), r.numpy()[..., None]
    found = alternate(
        {
            "numpy.linalg.solve": lambda: np.linalg.solve(A_numpy, r_numpy),
            "levytorch, assembly and solve": lambda: resolvent_coefficients(basis, b, D_o, D_f, ALPHA, r, 0.1),
        },
        repeats,
    )
    reference = found["numpy.linalg.solve"]
    for name, seconds in found.items():
        print(f"{batch} systems of {n} modes, {name}: {seconds:.3f} s, {seconds / reference:.2f} of NumPy")


def bound(n_trials: int) -> None:
    for perturbation in ("noise", "gaussian", "wedge"):
        start = time.perf_counter()
        eps = [0.01, 0.003, 0.001]
        study = rate_study(Dynamics.named("asymptotic"), eps, n_trials=n_trials, perturbation=perturbation)
        seconds = (time.perf_counter() - start) / len(eps)
        print(
            f"{perturbation}: {n_trials} perturbed solves at 64 modes in {seconds:.1f} s (figure: 20 s), "
            f"slope {study.slope_c0:.4f} in C^0, {study.slope_c2:.4f} in C^2 (figure: 1.00 +- 0.02)"
        )


def monte_carlo() -> None:
    d = Dynamics(torch.sin, lambda x: 0.3 + 0.2 * torch.cos(x), lambda x: 0.5 + 0.3 * torch.sin(x), 0.3)
    starts = torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64)

    def reward(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.cos(x))

    exact = solve_value(d, reward, 1.0, n_modes=257)
    for n in (9, 17, 33, 65):
        error = float((solve_value(d, reward, 1.0, n_modes=n)(X) - exact(X)).abs().max())
        print(f"smooth case, {n} modes: error {error:.1e}")
    found = monte_carlo_value(d, reward, 1.0, starts, n_paths=20_000, dt=0.1)
    z = (found.V - exact(starts)) / found.standard_error
    shown = ", ".join(f"{value:+.2f}" for value in z.tolist())
    print(f"Monte Carlo minus spectral V, in standard errors ({float(found.standard_error.max()):.1e}): {shown}")


def coverage(n: int) -> None:
    from levytorch import recover, simulate

    truth = Dynamics.named("constant")
    reward = Manufactured(CosinePower(), truth, 0.1)
    covered = []
    for seed in range(n):
        data = simulate(truth, 1000, 40, 1 / 40, substeps=1, seed=seed).transitions()
        V = solve_value(recover(data, alpha=0.3, n_basis=1), reward, 0.1, n_modes=33)
        covered.append(((V(X) - CosinePower()(X)).abs() <= 1.96 * V.std(X)).to(torch.float64))
    mean = torch.stack(covered).mean(0)
    print(
        f"95 % band covers the truth in {float(mean.mean()):.1%} of {n} recoveries "
        f"({float(mean.min()):.0%} to {float(mean.max()):.0%} over x; figure: 90 to 99 %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, numpy {np.__version__}")
    accuracy()
    speed(arguments.batch, arguments.repeats)
    bound(10_000)
    monte_carlo()
    if arguments.coverage:
        coverage(100)


if __name__ == "__main__":
    main()
