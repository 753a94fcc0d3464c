"""Policies that did not make the data: `python benchmarks/actions.py seeds | coverage | default | summary`.

A circle on which one of three pushes is held over each step of 1/40, logged under a uniform policy. V of four other
policies from the recovered coefficients of every action, beside what a user would do without a model: per-decision
importance sampling of discounted returns, and LSTD with importance weights, both on the same logs. Then the best
policy, beside dynamic programming on the true coefficients; and all of it once more on censored logs, with the TCF.

python benchmarks/actions.py seeds --trajectories 100000 --seeds 12
python benchmarks/actions.py coverage --trajectories 10000 --seeds 100
python benchmarks/actions.py default --trajectories 10000 --seeds 100
python benchmarks/actions.py summary

Numbers go to benchmarks/results/actions.csv as they are found; seeds that are there already are not done again.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from levytorch import ControlledDynamics, ControlledRecovery, Trajectories, improve, recover, simulate, solve_value
from levytorch.coefficients import FourierBasis
from levytorch.errors import LevytorchWarning
from levytorch.policies import Policy
from levytorch.policy.ranking import Ranking, rank
from levytorch.policy.reference import relative_error

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "actions.csv"
FIGURE = HERE.parent / "docs" / "figures" / "actions.png"
FIELDS = ("study", "trajectories", "seed", "logs", "method", "what", "quantity", "value")
ALPHA, DT, STEPS, BETA, SUBSTEPS, N_BASIS = 0.6, 1 / 40, 40, 1.0, 20, 11
SYSTEM = ControlledDynamics.named("pushes", alpha=ALPHA)
X = torch.linspace(0, 2 * math.pi, 513, dtype=torch.float64)[:-1]
CENSORED = {"CT": 4.0, "TRT": 10.0, "method": "tcf"}
Row = tuple[str, str, str, str, float]  # logs, method, what, quantity, value


def reward(x: torch.Tensor, action: float) -> torch.Tensor:
    return torch.cos(x) - 0.1 * abs(action)


def leaning(strength: float):
    """Probabilities of (-1, 0, 1) that push towards 0 with the given strength, smoothly in x."""

    def policy(x: torch.Tensor) -> torch.Tensor:
        s = strength * torch.sin(x)
        return torch.softmax(torch.stack([s, torch.zeros_like(s), -s], dim=-1), dim=-1)

    return policy


POLICIES = {"rest": 0, "gentle": leaning(1.0), "firm": leaning(4.0), "wrong way": leaning(-1.0)}


def logs_of(trajectories: int, seed: int, substeps: int = SUBSTEPS) -> Trajectories:
    order = 1 if substeps == 1 else 2  # steps of first order, 1/800 long, move V by a third of its standard error
    return simulate(SYSTEM, "uniform", trajectories, STEPS, DT, substeps=substeps, order=order, seed=seed)


def model(paths: Trajectories, censored: bool, law: str = "auto") -> ControlledRecovery:
    data, tail = paths.transitions(), None
    if censored:
        data, tail = data.censor(TRT=CENSORED["TRT"], CT=CENSORED["CT"], drop_tail=0.5), CENSORED
    return recover(data, alpha=ALPHA, n_basis=N_BASIS, engine="evidence", tail=tail, law=law)


# -- rivals -----------------------------------------------------------------------------------------------------------
def features(x: torch.Tensor, n: int) -> torch.Tensor:
    return FourierBasis(n).matrix(x)


def importance_sampling(paths: Trajectories, policy: Policy, after: torch.Tensor | None, n: int = 9) -> torch.Tensor:
    """Per-decision weights on the discounted rewards of every trajectory, regressed on the state it began in.

    after: V at X that is added where a trajectory ends, at 1 time unit; None ends with the log.
    """
    x = torch.from_numpy(paths.to_array())
    codes = torch.from_numpy(paths.action.reshape(x.shape)).long()[:, :-1]
    total, ratio = torch.zeros(len(x), dtype=torch.float64), torch.ones(len(x), dtype=torch.float64)
    for k in range(codes.shape[1]):
        here = torch.remainder(x[:, k], 2 * math.pi)
        ratio = ratio * policy(here).gather(1, codes[:, [k]])[:, 0] * len(SYSTEM.actions)
        r = torch.stack([reward(here, a) for a in SYSTEM.actions], 1).gather(1, codes[:, [k]])[:, 0]
        total += ratio * r * math.exp(-BETA * k * DT) * (1 - math.exp(-BETA * DT)) / BETA
    if after is not None:
        end = np.interp(np.mod(x[:, -1].numpy(), 2 * math.pi), X.numpy(), after.numpy(), period=2 * math.pi)
        total += ratio * math.exp(-BETA * DT * codes.shape[1]) * torch.from_numpy(end)
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


# -- numbers ----------------------------------------------------------------------------------------------------------
class Truth:
    """V of every policy, of the uniform one and of the best one, from the true coefficients."""

    def __init__(self) -> None:
        self.values = {name: solve_value(SYSTEM.under(policy), reward, BETA) for name, policy in POLICIES.items()}
        self.uniform = solve_value(SYSTEM.under("uniform"), reward, BETA)
        self.best = improve(SYSTEM, reward, BETA, n_modes=513).V  # dynamic programming
        self.order = sorted(POLICIES, key=lambda name: float(self.values[name](X).mean()), reverse=True)


def errors(table: Ranking, truth: Truth, logs: str) -> Iterator[Row]:
    """Relative L2 errors of V, and the order of neighbours that differ by 3 standard errors: 1 right, 0 wrong."""
    for name in POLICIES:
        yield logs, "model", name, "error", relative_error(table.values[name](X), truth.values[name](X))
    for better, worse in itertools.pairwise(truth.order):
        gap, error = table.gap(better, worse)
        if abs(gap) > 3 * error:
            yield logs, "model", f"{better} > {worse}", "order", float(gap > 0)


def coverages(table: Ranking, truth: Truth, logs: str) -> Iterator[Row]:
    """Share of the cell on which the 95 % bands of V and of differences hold the truth."""
    first = next(iter(POLICIES))
    for name in POLICIES:
        V, true = table.values[name], truth.values[name](X)
        yield logs, "model", name, "coverage", float(((V(X) - true).abs() < 1.96 * V.std(X)).double().mean())
        if name != first:
            D, true = table.difference(name, first), true - truth.values[first](X)
            inside = (D(X) - true).abs() < 1.96 * D.std(X)
            yield logs, "model", f"{name} - {first}", "coverage", float(inside.double().mean())


def improvement(found: ControlledRecovery, truth: Truth, logs: str) -> Iterator[Row]:
    """What the policy found is truly worth beside the best one, and whether the gain it was given holds."""
    best = improve(found, reward, BETA)
    V = solve_value(SYSTEM.under(best.policy), reward, BETA, n_modes=513)
    weights, at = found.counts.sum(0) / found.counts.sum(), found.centers()
    real = float(weights @ (V(at) - truth.uniform(at)))
    loss = (truth.best(X) - V(X)).abs()
    rising = all(b >= a - 1e-12 for a, b in itertools.pairwise(best.history))
    quantities = {
        "loss": float(loss.max() / truth.best(X).abs().max()),
        "loss L2": relative_error(V(X), truth.best(X)),
        "error of V": relative_error(best.V(X), truth.best(X)),
        "gain": best.gain,
        "gain std": float(best.gain_std or math.nan),
        "true gain": real,
        "z": (best.gain - real) / float(best.gain_std or math.nan),
        "monotone": float(rising),
        "iterations": float(len(best.history)),
    }
    for name, value in quantities.items():
        yield logs, "model", "improve", name, value


def one_seed(trajectories: int, seed: int, truth: Truth) -> Iterator[Row]:
    paths = logs_of(trajectories, seed)
    for logs in ("whole", "censored"):
        start = time.perf_counter()
        found = model(paths, logs == "censored")
        yield logs, "model", "recover", "seconds", time.perf_counter() - start
        table = rank(found, POLICIES, reward, BETA)
        yield from errors(table, truth, logs)
        yield from coverages(table, truth, logs)
        yield from improvement(found, truth, logs)
    for name, given in POLICIES.items():
        policy, true = Policy(given, SYSTEM.actions), truth.values[name](X)
        lstd = weighted_lstd(paths, policy)
        yield "whole", "LSTD", name, "error", relative_error(lstd, true)
        yield "whole", "IS", name, "error", relative_error(importance_sampling(paths, policy, None), true)
        yield "whole", "IS, then LSTD", name, "error", relative_error(importance_sampling(paths, policy, lstd), true)


def one_repetition(trajectories: int, seed: int, truth: Truth) -> Iterator[Row]:
    """One Euler step per observation, of which the frozen law is the exact one: a fit takes a tenth of the time."""
    found = model(logs_of(trajectories, 1000 + seed, substeps=1), False, "frozen")
    yield from coverages(rank(found, POLICIES, reward, BETA), truth, "whole")
    yield from improvement(found, truth, "whole")


def one_default(trajectories: int, seed: int, truth: Truth) -> Iterator[Row]:
    """Under the law that is chosen by default, the exact one."""
    found = model(logs_of(trajectories, 1000 + seed), False)
    yield from coverages(rank(found, POLICIES, reward, BETA), truth, "whole")
    yield from improvement(found, truth, "whole")


# -- tables -----------------------------------------------------------------------------------------------------------
def read() -> list[dict[str, str]]:
    if not RESULTS.is_file():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def measure(study: str, trajectories: int, seeds: int) -> None:
    """Seeds that are not in the file yet, appended one by one."""
    done = {(r["study"], r["trajectories"], r["seed"]) for r in read()}
    truth = Truth()
    for seed in range(seeds):
        if (study, str(trajectories), str(seed)) in done:
            continue
        start = time.perf_counter()
        rows = list(STUDIES[study](trajectories, seed, truth))
        RESULTS.parent.mkdir(exist_ok=True)
        new = not RESULTS.is_file()
        with RESULTS.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(FIELDS)
            writer.writerows([study, trajectories, seed, *row[:-1], f"{row[-1]:.6g}"] for row in rows)
        print(f"{study} seed {seed}: {time.perf_counter() - start:.1f} s", flush=True)


STUDIES = {"seeds": one_seed, "coverage": one_repetition, "default": one_default}


def collected(study: str, trajectories: int | None = None) -> tuple[str, dict[tuple[str, str, str, str], list[float]]]:
    """How much there is, and all values by logs, method, what and quantity."""
    rows = [r for r in read() if r["study"] == study and trajectories in (None, int(r["trajectories"]))]
    found: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for r in rows:
        found[r["logs"], r["method"], r["what"], r["quantity"]].append(float(r["value"]))
    sizes = sorted({r["trajectories"] for r in rows})
    return f"{len({r['seed'] for r in rows})} seeds of {', '.join(sizes) or 'no'} trajectories", found


METHODS = (("whole", "model"), ("censored", "model"), ("whole", "LSTD"), ("whole", "IS"), ("whole", "IS, then LSTD"))


def summary() -> None:
    size, found = collected("seeds")
    print(f"relative L2 error of V in %, median (worst), beta = {BETA:g}, {size}\n")
    print("| policy | model | model, censored, TCF | LSTD | IS | IS, then LSTD |\n|---|---|---|---|---|---|")
    for name in POLICIES:
        cells = [100 * np.array(found[(*method, name, "error")]) for method in METHODS]
        print(f"| {name} | " + " | ".join(f"{np.median(c):.2f} ({c.max():.2f})" for c in cells if len(c)) + " |")
    for logs in ("whole", "censored"):
        orders = [v for key, values in found.items() if key[0] == logs and key[3] == "order" for v in values]
        print(f"\n{logs}: neighbours that differ by 3 standard errors {len(orders)}, in order {int(sum(orders))}")
        told = {q: np.array(found[logs, "model", "improve", q]) for q in ("loss", "loss L2", "z", "monotone")}
        for q in ("loss", "loss L2"):
            print(f"improve, {q} against dynamic programming: median {100 * np.median(told[q]):.2f} %, worst "
                  f"{100 * told[q].max():.2f} %")  # fmt: skip
        inside, n = int((np.abs(told["z"]) < 1.96).sum()), len(told["z"])
        print(f"gain within 1.96 standard errors: {inside} of {n}; monotone: {int(told['monotone'].sum())} of {n}")
    for study, law, n in (("coverage", "frozen", 10_000), ("default", "exact", 10_000), ("default", "exact", 100_000)):
        size, found = collected(study, n)
        print(f"\nshare of the cell on which 95 % bands hold the truth, law {law}, {size}\n")
        print("| | coverage in % |\n|---|---|")
        for (logs, _, what, quantity), values in found.items():
            if quantity == "coverage" and logs == "whole":
                share, error = 100 * np.mean(values), 100 * np.std(values) / math.sqrt(len(values))
                print(f"| {what} | {share:.1f} +- {error:.1f} |")
        z = np.array(found["whole", "model", "improve", "z"])
        print(f"\ngain of improve within 1.96 standard errors in {int((np.abs(z) < 1.96).sum())} of {len(z)}")
    draw()
    pictures()


def pictures() -> None:
    """V of policies with their bands and the policy that was found, of one small set of logs."""
    from levytorch.figures.base import save
    from levytorch.runs.policies import evaluate_policies

    found = model(logs_of(2000, 0), False, "corrected")
    kinds = {"behaviour": {"kind": "behaviour"}, "rest": {"kind": "action", "action": 0}}
    kinds |= {"improved": {"kind": "improved"}}
    result = evaluate_policies(found, kinds, reward, BETA, SYSTEM)
    for name, make in result.drawings().items():
        if name in ("value", "policy_improved"):
            stem = FIGURE.parent / {"value": "policy_values"}.get(name, name)
            save(make(), stem, formats=("png",))


def draw() -> None:
    """Errors of every method, a dot per seed."""
    from levytorch.figures.base import ARMS, OTHERS, RECOVERED, new_axes, save, tidy

    _, found = collected("seeds")
    fig, axes = new_axes(1, 1, width=7.0, height=3.6, margins={"top": 0.55})
    ax, colors = axes[0, 0], (RECOVERED, ARMS["with TCF"], *OTHERS)
    for m, (method, color) in enumerate(zip(METHODS, colors)):
        label = method[1] + (", censored, TCF" if method[0] == "censored" else "")
        for p, name in enumerate(POLICIES):
            values = 100 * np.array(found[(*method, name, "error")])
            x = p + 0.15 * (m - 2) + np.linspace(-0.04, 0.04, len(values))
            ax.plot(x, values, "o", color=color, markersize=3.5, alpha=0.8, label=label if p == 0 else None)
    ax.axhline(5.0, color="black", linewidth=0.8, linestyle="--")
    tidy(ax)
    ax.set_yscale("log")
    ax.set_xticks(range(len(POLICIES)), list(POLICIES))
    ax.set_ylabel("relative $L^2$ error of V (%)")
    ax.legend(frameon=False, fontsize=8, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0), columnspacing=0.9)
    save(fig, FIGURE.with_suffix(""), formats=("png",))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=(*STUDIES, "summary"))
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore", LevytorchWarning)
    if options.study == "summary":
        summary()
    else:
        measure(options.study, options.trajectories, options.seeds)


if __name__ == "__main__":
    main()
