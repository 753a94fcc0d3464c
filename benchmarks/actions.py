"""Policies that did not make the data: `python benchmarks/actions.py value | coverage | improve`.

A circle on which one of three pushes is held over each step of 1/40, logged under a uniform policy. V of four other
policies from the recovered coefficients of every action, beside what a user would do without a model: per-decision
importance sampling of discounted returns, and LSTD with importance weights, both on the same logs.

python benchmarks/actions.py value --trajectories 100000 --seeds 12
python benchmarks/actions.py coverage --trajectories 5000 --seeds 100
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
import warnings

import numpy as np
import torch

from levytorch import ControlledDynamics, ControlledRecovery, Trajectories, improve, recover, simulate, solve_value
from levytorch.coefficients import FourierBasis
from levytorch.errors import LevytorchWarning
from levytorch.policies import Policy
from levytorch.policy.ranking import rank

ALPHA, DT, STEPS, BETA = 0.6, 1 / 40, 40, 1.0
SYSTEM = ControlledDynamics.named("pushes", alpha=ALPHA)
X = torch.linspace(0, 2 * math.pi, 513, dtype=torch.float64)[:-1]
CENSORED = {"CT": 4.0, "TRT": 10.0, "method": "tcf"}


def reward(x: torch.Tensor, action: float) -> torch.Tensor:
    return torch.cos(x) - 0.1 * abs(action)


def leaning(strength: float):
    """Probabilities of (-1, 0, 1) that push towards 0 with the given strength, smoothly in x."""

    def policy(x: torch.Tensor) -> torch.Tensor:
        s = strength * torch.sin(x)
        return torch.softmax(torch.stack([s, torch.zeros_like(s), -s], dim=-1), dim=-1)

    return policy


POLICIES = {"rest": 0, "gentle": leaning(1.0), "firm": leaning(4.0), "wrong way": leaning(-1.0)}


def logs(trajectories: int, seed: int, substeps: int) -> Trajectories:
    return simulate(SYSTEM, "uniform", trajectories, STEPS, DT, substeps=substeps, seed=seed)


def model(paths: Trajectories, options: argparse.Namespace) -> ControlledRecovery:
    data, tail = paths.transitions(), None
    if options.censored:
        data, tail = data.censor(TRT=CENSORED["TRT"], CT=CENSORED["CT"], drop_tail=0.5), CENSORED
    extra = {} if options.law is None else {"law": options.law}
    return recover(data, alpha=ALPHA, n_basis=options.n_basis, engine="evidence", tail=tail, **extra)


# -- rivals -----------------------------------------------------------------------------------------------------------
def features(x: torch.Tensor, n: int) -> torch.Tensor:
    return FourierBasis(n).matrix(x)


def importance_sampling(paths: Trajectories, policy: Policy, n: int = 9) -> torch.Tensor:
    """Per-decision weights on the discounted rewards of every trajectory, regressed on the state it began in."""
    x = torch.from_numpy(paths.to_array())
    codes = torch.from_numpy(paths.action.reshape(x.shape)).long()[:, :-1]
    total, ratio = torch.zeros(len(x), dtype=torch.float64), torch.ones(len(x), dtype=torch.float64)
    for k in range(codes.shape[1]):
        here = torch.remainder(x[:, k], 2 * math.pi)
        ratio = ratio * policy(here).gather(1, codes[:, [k]])[:, 0] * len(SYSTEM.actions)
        r = torch.stack([reward(here, a) for a in SYSTEM.actions], 1).gather(1, codes[:, [k]])[:, 0]
        total += ratio * r * math.exp(-BETA * k * DT) * (1 - math.exp(-BETA * DT)) / BETA
    phi = features(torch.remainder(x[:, 0], 2 * math.pi), n)
    return features(X, n) @ torch.linalg.lstsq(phi, total[:, None]).solution[:, 0]


def weighted_lstd(paths: Trajectories, policy: Policy, n: int = 21, ridge: float = 1e-3) -> torch.Tensor:
    """LSTD with weights pi / behaviour on every pair and the reward integrated over the step by the trapezoid."""
    pairs, discount = paths.transitions(), math.exp(-BETA * DT)
    A, y = torch.zeros((n, n), dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    for rows in range(0, len(pairs), 1 << 17):
        part = slice(rows, rows + (1 << 17))
        x, codes = torch.remainder(pairs.x[part], 2 * math.pi), pairs.action_codes[part]
        after = torch.remainder(pairs.x[part] + pairs.dx[part], 2 * math.pi)
        weight = policy(x).gather(1, codes[:, None])[:, 0] * len(SYSTEM.actions)
        here, there = (
            torch.stack([reward(at, a) for a in SYSTEM.actions], 1).gather(1, codes[:, None])[:, 0] for at in (x, after)
        )
        phi, phi_next = features(x, n), features(after, n)
        A += phi.T @ (weight[:, None] * (phi - discount * phi_next))
        y += phi.T @ (weight * 0.5 * DT * (here + discount * there))
    rough = FourierBasis(n).harmonic_numbers() ** 2
    return features(X, n) @ torch.linalg.solve(A + ridge * len(pairs) * DT * torch.diag(rough), y)


# -- tables -----------------------------------------------------------------------------------------------------------
def relative(found: torch.Tensor, true: torch.Tensor) -> float:
    return float((found - true).norm() / true.norm())


def sizes(options: argparse.Namespace) -> str:
    return f"{options.seeds} seeds, {options.trajectories} trajectories"


def truths() -> dict[str, torch.Tensor]:
    return {name: solve_value(SYSTEM.under(policy), reward, BETA)(X) for name, policy in POLICIES.items()}


def value(options: argparse.Namespace) -> None:
    true, rows, right = truths(), {}, 0
    judged = 0
    for seed in range(options.seeds):
        start = time.perf_counter()
        paths = logs(options.trajectories, seed, options.substeps)
        found = model(paths, options)
        seconds = time.perf_counter() - start
        table = rank(found, POLICIES, reward, BETA)
        best = sorted(POLICIES, key=lambda name: float(true[name].mean()), reverse=True)
        for better, worse in itertools.pairwise(best):
            gap, error = table.gap(better, worse)
            if abs(gap) > 3 * error:
                judged, right = judged + 1, right + (gap > 0)
        for name, policy in POLICIES.items():
            pi = Policy(policy, SYSTEM.actions)
            errors = [relative(table.values[name](X), true[name])]
            if not options.censored:
                errors += [relative(f(paths, pi), true[name]) for f in (weighted_lstd, importance_sampling)]
            rows.setdefault(name, []).append(errors)
        print(
            f"seed {seed}: {seconds:.1f} s, " + ", ".join(f"{n} {100 * rows[n][-1][0]:.2f}" for n in POLICIES),
            flush=True,
        )
    print(f"\nmedian relative L2 error of V in %, beta = {BETA:g}, {sizes(options)}")
    print(f"{'policy':12} {'model':>8} {'worst':>8} {'LSTD':>8} {'IS':>8}")
    for name, errors in rows.items():
        middle = 100 * np.median(np.array(errors), axis=0)
        print(
            f"{name:12} {middle[0]:8.2f} {100 * max(e[0] for e in errors):8.2f} "
            + " ".join(f"{m:8.2f}" for m in middle[1:])
        )
    print(f"neighbours in the ranking that differ by 3 standard errors: {judged}, in the right order: {right}")


def coverage(options: argparse.Namespace) -> None:
    true = truths()
    names = list(POLICIES)
    held: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        table = rank(model(logs(options.trajectories, seed, options.substeps), options), POLICIES, reward, BETA)
        for name in names:
            V = table.values[name]
            held.setdefault(f"V {name}", []).append(
                float(((V(X) - true[name]).abs() < 1.96 * V.std(X)).double().mean())
            )
        for name in names[1:]:
            V = table.difference(name, names[0])
            inside = (V(X) - (true[name] - true[names[0]])).abs() < 1.96 * V.std(X)
            held.setdefault(f"{name} - {names[0]}", []).append(float(inside.double().mean()))
    print(f"share of the cell on which 95 % bands hold the truth, {sizes(options)}")
    for name, shares in held.items():
        print(f"{name:22} {100 * np.mean(shares):6.1f} % +- {100 * np.std(shares) / math.sqrt(len(shares)):.1f}")


def improvement(options: argparse.Namespace) -> None:
    optimal = improve(SYSTEM, reward, BETA, n_modes=513).V(X)
    losses, z = [], []
    for seed in range(options.seeds):
        found = model(logs(options.trajectories, seed, options.substeps), options)
        best = improve(found, reward, BETA)
        W = solve_value(SYSTEM.under(best.policy), reward, BETA, n_modes=513)
        V = solve_value(SYSTEM.under("uniform"), reward, BETA)
        weights = found.counts.sum(0) / found.counts.sum()
        real = float(weights @ (W(found.centers()) - V(found.centers())))
        losses.append(float((optimal - W(X)).abs().max() / optimal.abs().max()))
        z.append((best.gain - real) / best.gain_std)
        rising = all(b >= a - 1e-12 for a, b in zip(best.history, best.history[1:]))
        print(
            f"seed {seed}: {best}, true gain {real:.4f}, loss {100 * losses[-1]:.2f} %, monotone {rising}", flush=True
        )
    print(f"loss against the optimal V: median {100 * np.median(losses):.2f} %, worst {100 * max(losses):.2f} %")
    print(f"gain within 1.96 standard errors in {sum(abs(v) < 1.96 for v in z)} of {len(z)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("value", "coverage", "improve"))
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--substeps", type=int, default=40)
    parser.add_argument("--n-basis", type=int, default=11)
    parser.add_argument("--law", default=None)
    parser.add_argument("--censored", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore", LevytorchWarning)
    print(f"load {os.getloadavg()[0]:.1f}")
    {"value": value, "coverage": coverage, "improve": improvement}[options.what](options)


if __name__ == "__main__":
    main()
