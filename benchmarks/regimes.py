"""Error bars and alarms over many regimes, at default settings: one row per regime and data set.

python -m benchmarks.regimes run --minutes 15             the smallest regimes first; rows that are there are kept
python -m benchmarks.regimes run volatility --seeds 12    some regimes
python -m benchmarks.regimes table                        writes docs/calibration.md from the rows

A regime is a system, data of it and options of `recover`. "right": the model class holds the system. "wrong": it does
not, and an alarm is wanted; of some of these the coefficients are known all the same. Errors are relative, L2 over the
observed states; bands are 95 %, and coverage is the share of the observed states at which they hold the truth. V has
the reward cos x (exp(-x^2 / 2) on a line) and beta = 1. Rows hold the seed, the commit and the command that made them.
Seeds begin at 100: lower ones were used in development.
"""

from __future__ import annotations

import argparse
import csv
import math
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch import ControlledDynamics, Dynamics, Trajectories, Transitions, diagnose, recover, simulate, solve_value
from levytorch.errors import LevytorchError, LevytorchWarning

RESULTS = Path(__file__).parent / "results" / "regimes.csv"
PAGE = Path(__file__).parents[1] / "docs" / "calibration.md"
COLUMNS = [
    "regime",
    "kind",
    "seed",
    "pairs",
    "law",
    "converged",
    "b",
    "D_o",
    "D_f",
    "cover_b",
    "cover_D_o",
    "cover_D_f",
]
COLUMNS += ["alpha", "alpha_std", "V", "cover_V", "alarms", "warnings", "error", "seconds", "commit", "command"]
DT, ALPHA, FIRST, NORMAL = 1 / 20, 0.6, 100, 1.96
LABELS = ("b", "D_o", "D_f")


def D_o(x: Tensor) -> Tensor:
    return 1.0 + 0.3 * torch.cos(x)


def D_f(x: Tensor) -> Tensor:
    return 0.8 + 0.3 * torch.sin(x)


def circle(**changes: Any) -> Dynamics:
    return Dynamics(**{"b": torch.sin, "D_o": D_o, "D_f": D_f, "alpha": ALPHA} | changes)


CIRCLE = circle()
LINE = Dynamics(b=lambda x: -x, D_o=0.3, D_f=0.2, alpha=0.8, period=None)
WELLS = Dynamics(b=lambda x: 2 * (x - x**3).clamp(-20, 20), D_o=0.4, D_f=0.2, alpha=0.7, period=None)


@dataclass
class Regime:
    """pairs: about how many; make: the data of a seed; truth: what is estimated, if that is known; options: of
    `recover`; right: whether the model class holds the system."""

    pairs: int
    make: Callable[[int], Transitions]
    truth: Dynamics | None = CIRCLE
    options: dict[str, Any] = field(default_factory=dict)
    right: bool = True

    def estimate(self, found: Any) -> Any:
        """The recovery that is compared with the truth."""
        return found

    def alarms(self, found: Any, data: Transitions, seed: int) -> set[str]:
        return set(diagnose(found, data, seed=seed).alarms)


class PolicyRegime(Regime):
    """Logs with actions, of which the value of another policy is estimated."""

    def estimate(self, found: Any) -> Any:
        return found.under(other_policy)

    def alarms(self, found: Any, data: Transitions, seed: int) -> set[str]:
        every = (diagnose(found.of(a), data[data.action_codes == k], seed=seed) for k, a in enumerate(found.actions))
        return {alarm for diagnosis in every for alarm in diagnosis.alarms}


# -- data of the model class -------------------------------------------------------------------------------------------
def paths(
    system: Dynamics, n: int, steps: int, dt: float = DT, x0: float | None = None
) -> Callable[[int], Transitions]:
    def make(seed: int) -> Transitions:
        start: Any = x0
        if not system.repeats and x0 is None:
            start = 0.6 * torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        substeps = max(10, round(200 * dt))
        return simulate(system, n, steps, dt, substeps=substeps, seed=seed, x0=start).transitions()

    return make


def of_dt(dts: Callable[[np.random.Generator, int], np.ndarray]) -> Callable[[int], Transitions]:
    """Pairs of a finely simulated path, over as many fine steps as are drawn."""

    def make(seed: int) -> Transitions:
        fine = 1 / 400
        x = simulate(CIRCLE, 20, 4000, fine, substeps=1, seed=seed).to_array()
        rng = np.random.default_rng(seed)
        parts = []
        for k in range(len(x)):
            at = np.concatenate([[0], np.cumsum(np.maximum(1, np.round(dts(rng, 400) / fine)).astype(int))])
            at = at[at < x.shape[1]]
            parts.append((np.asarray(x[k])[at], at * fine))
        values, times = [p[0] for p in parts], [p[1] for p in parts]
        return Trajectories.from_arrays(values, times=times).transitions()

    return make


def wrapped(seed: int) -> Transitions:
    data = paths(CIRCLE, 40, 100)(seed)
    return Transitions(torch.remainder(data.x, 2 * math.pi), data.dx, DT, trajectory=data.trajectory)


def uneven(seed: int) -> Transitions:
    return paths(PULLED, 40, 100, x0=3.0)(seed)


def censored(seed: int) -> Transitions:
    return paths(CIRCLE, 400, 100)(seed).censor(TRT=20.0, CT=2.0, drop_tail=0.5, seed=seed)


def lost_by_state(seed: int) -> Transitions:
    """Steps beyond CT = 2 are lost with probability 0.5 + 0.45 sin x."""
    data = paths(CIRCLE, 400, 100)(seed)
    draw = torch.rand(len(data), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    size = data.dx.abs()
    return data[(size < 20) & ((size < 2) | (draw > 0.5 + 0.45 * torch.sin(data.x)))]


# -- data of other systems ---------------------------------------------------------------------------------------------
def together(parts: list[Transitions], per_part: int) -> Transitions:
    ids = torch.cat([part.trajectory + k * per_part for k, part in enumerate(parts)])
    order = ids.argsort(stable=True)
    x, dx = (torch.cat([getattr(part, name) for part in parts])[order] for name in ("x", "dx"))
    return Transitions(x, dx, DT, trajectory=ids[order])


def differing(seed: int) -> Transitions:
    """b = 0 in one half of the trajectories, 1.6 sin x in the other."""
    systems = [circle(b=lambda x, k=k: k * torch.sin(x)) for k in (0.0, 1.6)]
    return together([paths(one, 20, 1000)(2 * seed + k) for k, one in enumerate(systems)], 20)


def growing(seed: int) -> Transitions:
    """b grows from 0 to 1.6 sin x within every trajectory."""
    parts, x0 = [], None
    for k in range(8):
        system = circle(b=lambda x, k=k: 1.6 * k / 7 * torch.sin(x))
        piece = simulate(system, 40, 125, DT, x0=x0, seed=1000 * seed + k)
        x0 = piece.to_array()[:, -1]
        parts.append(piece.transitions())
    return together(parts, 0)


def walk(seed: int, step: Callable[[np.random.Generator, np.ndarray, float], np.ndarray], n: int = 40) -> Transitions:
    """Euler steps of DT / 10; step: the change of n states in a time."""
    rng, at = np.random.default_rng(seed), np.zeros(n)
    x = np.zeros((n, 1001))
    for j in range(1000):
        for _ in range(10):
            at = at + step(rng, at, DT / 10)
        x[:, j + 1] = at
    return Trajectories.from_arrays(x, dt=DT).transitions()


def gauss(rng: np.random.Generator, at: np.ndarray, h: float) -> np.ndarray:
    return np.sin(at) * h + np.sqrt(2.0 * h) * rng.standard_normal(len(at))


def skewed(seed: int) -> Transitions:
    """Jumps upwards only, of exponential size, one per unit of time."""

    def step(rng: np.random.Generator, at: np.ndarray, h: float) -> np.ndarray:
        return gauss(rng, at, h) + (rng.random(len(at)) < h) * rng.exponential(2.0, len(at))

    return walk(seed, step)


def poisson(seed: int) -> Transitions:
    """Jumps of one size, up or down, one per unit of time."""

    def step(rng: np.random.Generator, at: np.ndarray, h: float) -> np.ndarray:
        return gauss(rng, at, h) + (rng.random(len(at)) < h) * 3.0 * rng.choice([-1.0, 1.0], len(at))

    return walk(seed, step)


def volatility(seed: int) -> Transitions:
    """The logarithm of D_o is an Ornstein-Uhlenbeck process of standard deviation 1 and relaxation time 1.5."""
    level: list[np.ndarray] = []

    def step(rng: np.random.Generator, at: np.ndarray, h: float) -> np.ndarray:
        now = level.pop() if level else rng.standard_normal(len(at))
        level.append(now - now * h / 1.5 + np.sqrt(2 * h / 1.5) * rng.standard_normal(len(at)))
        return np.sin(at) * h + np.sqrt(np.exp(now) * h) * rng.standard_normal(len(at))

    return walk(seed, step)


def hidden(seed: int) -> Transitions:
    """A drift of its own, an Ornstein-Uhlenbeck process of standard deviation 1.5."""
    drift: list[np.ndarray] = []

    def step(rng: np.random.Generator, at: np.ndarray, h: float) -> np.ndarray:
        now = drift.pop() if drift else 1.5 * rng.standard_normal(len(at))
        drift.append(now - now * h + 1.5 * np.sqrt(2 * h) * rng.standard_normal(len(at)))
        return now * h + gauss(rng, at, h)

    return walk(seed, step)


def noisy(seed: int) -> Transitions:
    """Noise of the observations, half as wide as a step."""
    x = simulate(CIRCLE, 40, 1000, DT, seed=seed).to_array()
    noise = 0.5 * math.sqrt(2 * DT) * np.random.default_rng(seed).standard_normal(x.shape)
    return Trajectories.from_arrays(np.asarray(x) + noise, dt=DT).transitions()


def anisotropic(seed: int) -> Transitions:
    """Diffusion three times as strong in one direction."""
    data = simulate(Dynamics.named("plane"), 200, 200, DT, seed=seed)
    x = np.asarray(data.to_array())
    rng = np.random.default_rng(seed)
    more = np.cumsum(rng.standard_normal(x.shape[:2]) * math.sqrt(4.0 * DT), axis=1)
    x[..., 0] += more - more[:, :1]
    return Trajectories.from_arrays(x, dt=DT).transitions()


PUSHED = ControlledDynamics(
    b=lambda x, a: torch.sin(x) + a, D_o=lambda x, a: D_o(x), D_f=lambda x, a: D_f(x), alpha=ALPHA, actions=[-1.0, 1.0]
)


def other_policy(x: Tensor) -> Tensor:
    """Mostly pushes where the logs mostly do not."""
    upwards = torch.sigmoid(-2 * torch.sin(x))
    return torch.stack([1 - upwards, upwards], -1)


def logs(seed: int) -> Transitions:
    """Logs of a policy that pushes upwards with probabilities between 2 and 98 %, depending on the state."""

    def policy(x: Tensor) -> Tensor:
        upwards = torch.sigmoid(4 * torch.sin(x))
        return torch.stack([1 - upwards, upwards], -1)

    return simulate(PUSHED, policy, 40, 200, DT, seed=seed).transitions()


PULLED = circle(b=lambda x: 3.0 * torch.sin(x))
KINKED = circle(b=lambda x: 2.0 * torch.sin(x).abs() - 1.0)
STEPPED = circle(D_o=lambda x: torch.where(torch.remainder(x, 2 * math.pi) < math.pi, 0.5, 1.5).to(x))
VARYING = circle(D_o=lambda x: torch.exp(torch.cos(x)), D_f=lambda x: 0.5 * torch.exp(-torch.sin(x)))
GIVEN, LEARNED = {"alpha": ALPHA}, {"alpha": "learn"}
CONSTANT, PLANE = Dynamics.named("constant"), Dynamics.named("plane")
TAIL = {"alpha": ALPHA, "tail": {"CT": 2.0, "TRT": 20.0}}

REGIMES: dict[str, Regime] = {
    "pairs_200": Regime(200, paths(CIRCLE, 10, 20), options=GIVEN),
    "pairs_1000": Regime(1000, paths(CIRCLE, 10, 100), options=GIVEN),
    "pairs_4000": Regime(4000, paths(CIRCLE, 40, 100), options=GIVEN),
    "pairs_40000": Regime(40_000, paths(CIRCLE, 40, 1000), options=GIVEN),
    "pairs_400000": Regime(400_000, paths(CIRCLE, 400, 1000), options=GIVEN),
    "learned_1000": Regime(1000, paths(CIRCLE, 10, 100), options=LEARNED),
    "wrapped": Regime(4000, wrapped, options=GIVEN),
    "D_o_zero": Regime(4000, paths(circle(D_o=0.0), 40, 100), circle(D_o=0.0), LEARNED),
    "D_f_zero": Regime(4000, paths(circle(D_f=0.0), 40, 100), circle(D_f=0.0), LEARNED),
    "D_f_small": Regime(4000, paths(circle(D_f=0.01), 40, 100), circle(D_f=0.01), LEARNED),
    "dt_irregular": Regime(8000, of_dt(lambda rng, n: rng.exponential(DT, n)), options=GIVEN),
    "dt_five": Regime(8000, of_dt(lambda rng, n: rng.choice([0.02, 0.03, 0.04, 0.06, 0.08], n)), options=GIVEN),
    "dt_twenty": Regime(8000, of_dt(lambda rng, n: rng.choice(np.arange(10, 30) / 400, n)), options=GIVEN),
    "dt_quarter": Regime(4000, paths(CIRCLE, 40, 100, 0.25), options=GIVEN),
    "dt_half": Regime(4000, paths(CIRCLE, 40, 100, 0.5), options=GIVEN),
    "states_uneven": Regime(4000, uneven, PULLED, GIVEN),
    "varying": Regime(4000, paths(VARYING, 40, 100), VARYING, GIVEN),
    "kinked": Regime(4000, paths(KINKED, 40, 100), KINKED, GIVEN),
    "discontinuous": Regime(4000, paths(STEPPED, 40, 100), STEPPED, GIVEN),
    "quickstart": Regime(20_000, paths(CONSTANT, 500, 40, 1 / 40), CONSTANT, {"alpha": 0.3, "n_basis": 1}),
    "line": Regime(4000, paths(LINE, 40, 100), LINE, {"alpha": 0.8, "period": None}),
    "line_learned": Regime(4000, paths(LINE, 40, 100), LINE, {"alpha": "learn", "period": None}),
    "line_one_track": Regime(4000, paths(LINE, 1, 4000), LINE, {"alpha": "learn", "period": None}),
    "double_well": Regime(4000, paths(WELLS, 40, 100), WELLS, {"alpha": "learn", "period": None}),
    "plane": Regime(4000, paths(PLANE, 40, 100), PLANE, {"alpha": float(PLANE.alpha), "n_basis": 5}),
    "network": Regime(4000, paths(CIRCLE, 40, 100), options=GIVEN | {"coefficients": "mlp"}),
    "little_overlap": PolicyRegime(8000, logs, PUSHED.under(other_policy), GIVEN),
    "tails_lost": Regime(40_000, censored, options=TAIL),
    "tails_by_state": Regime(40_000, lost_by_state, options=TAIL, right=False),
    "differing": Regime(40_000, differing, None, GIVEN, right=False),
    "growing": Regime(40_000, growing, None, GIVEN, right=False),
    "skewed_jumps": Regime(40_000, skewed, None, LEARNED, right=False),
    "poisson_jumps": Regime(40_000, poisson, None, LEARNED, right=False),
    "volatility": Regime(40_000, volatility, None, LEARNED, right=False),
    "hidden_drift": Regime(40_000, hidden, None, LEARNED, right=False),
    "noise": Regime(40_000, noisy, None, GIVEN, right=False),
    "anisotropic": Regime(40_000, anisotropic, None, {"alpha": float(PLANE.alpha), "n_basis": 3}, right=False),
}
for _alpha in (0.1, 0.3, 0.8, 0.95):
    _system = circle(alpha=_alpha)
    _name, _make = f"{100 * _alpha:.0f}", paths(_system, 40, 100)
    REGIMES[f"alpha_{_name}"] = Regime(4000, _make, _system, {"alpha": _alpha})
    REGIMES[f"learned_{_name}"] = Regime(4000, _make, _system, LEARNED)
REGIMES["learned_60"] = Regime(4000, paths(CIRCLE, 40, 100), CIRCLE, LEARNED)


# -- rows --------------------------------------------------------------------------------------------------------------
def fit_one(regime: Regime, seed: int) -> dict[str, Any]:
    """One data set: what was found, how far from the truth, and what was said about it."""
    data, began = regime.make(seed), time.process_time()
    row: dict[str, Any] = {"pairs": len(data)}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", LevytorchWarning)
        try:
            found = recover(data, **regime.options)
            row |= {"law": found.report.law, "converged": found.converged}
            if not callable(found.alpha):
                row |= {"alpha": found.alpha, "alpha_std": found.alpha_std}
            if regime.truth is not None:
                row |= beside_truth(regime.estimate(found), regime.truth)
            row["alarms"] = " ".join(sorted(regime.alarms(found, data, seed)))
        except LevytorchError as error:
            row["error"] = str(error)
        except Exception as error:
            row["error"] = f"raw {type(error).__name__}: {error}"
    heard = [str(w.message) for w in said if issubclass(w.category, LevytorchWarning)]
    return row | {"warnings": len(set(heard)), "seconds": time.process_time() - began}


def beside_truth(found: Any, truth: Dynamics) -> dict[str, Any]:
    row: dict[str, Any] = {}
    x = found.states
    stds = found.std(x) if found.covariance is not None else [None] * 3
    for label, std in zip(LABELS, stds):
        value, true = getattr(found, label)(x), getattr(truth, label)
        true = true(x) if callable(true) else true
        true = torch.as_tensor(true, dtype=torch.float64).expand_as(value)
        row[label] = float((value - true).norm() / true.norm()) if float(true.norm()) > 0 else math.nan
        if std is not None:
            row[f"cover_{label}"] = float(((value - true).abs() <= NORMAL * std + 1e-12).double().mean())

    def reward(x: Tensor) -> Tensor:
        if truth.dim > 1:
            return torch.cos(x).sum(-1)
        return torch.cos(x) if truth.repeats else torch.exp(-0.5 * x * x)

    at = x[:: max(1, len(x) // 40)]
    V = solve_value(found, reward, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        # on a line wide enough for paths of the true system to return
        true = solve_value(truth, reward, 1.0, **({} if truth.repeats else {"window": (-30.0, 30.0)}))(at)
    row["V"] = float((V(at) - true).norm() / true.norm())
    if found.covariance is not None:
        row["cover_V"] = float(((V(at) - true).abs() <= NORMAL * V.std(at)).double().mean())
    return row


def run(options: argparse.Namespace) -> None:
    target, done = Path(options.results), set[tuple[str, int]]()
    if target.exists():
        with target.open() as file:
            done = {(r["regime"], int(r["seed"])) for r in csv.DictReader(file)}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    command = shlex.join(["python", "-m", "benchmarks.regimes", *sys.argv[1:]])
    names, until = options.regimes or list(REGIMES), time.monotonic() + 60 * options.minutes
    jobs = [(REGIMES[n].pairs, seed, n) for seed in range(FIRST, FIRST + options.seeds) for n in names]
    if not options.regimes:
        jobs.sort(key=lambda job: (job[0], job[1]))
    for _, seed, name in jobs:
        if (name, seed) in done:
            continue
        if time.monotonic() > until:
            return
        kind = "right" if REGIMES[name].right else "wrong"
        row = {"regime": name, "kind": kind, "seed": seed, "commit": commit, "command": command}
        row |= fit_one(REGIMES[name], seed)
        fresh = not target.exists()
        with target.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if fresh:
                writer.writeheader()
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


# -- the page ----------------------------------------------------------------------------------------------------------
INTRODUCTION = """# Calibration

Do error bars and alarms keep their promise? Fits at default settings, over regimes that differ in one thing each from a
plain one (b = sin x, D_o = 1 + 0.3 cos x, D_f = 0.8 + 0.3 sin x, alpha = 0.6, dt = 1/20, 4,000 pairs). The systems and
data of every regime are in `benchmarks/regimes.py`. This page is written by `python -m benchmarks.regimes table` from
`benchmarks/results/regimes.csv`, whose rows hold seed, commit and command.

Errors of b, D_o, D_f and V are relative (L2 over the observed states); coverage is the share of the observed states at
which 95 % bands hold the truth. All are means over the seeds. "alarms" counts the seeds in which a check of `diagnose`
rejected the model; "notes" those in which it said only that the data determine something poorly (few jumps, a law
without jumps describes them as well, D_o and D_f hardly separable).
"""
NOTES = {"few_jumps", "jumps_not_needed", "hardly_separable", "few_tail_points"}  # of what the data do not determine


def table(options: argparse.Namespace) -> None:
    with Path(options.results).open() as file:
        rows = list(csv.DictReader(file))
    lines = [INTRODUCTION]
    titles = {"right": "## The model is right", "wrong": "## The model is wrong: an alarm is wanted"}
    for kind, title in titles.items():
        lines += [
            title,
            "",
            "| regime | seeds | b, D_o, D_f, % | V, % | coverage b, D_o, D_f, % | of V, % | alarms | notes |",
        ]
        lines[-1] += " not converged | errors | seconds |"
        lines.append("|---" * 11 + "|")
        own = [row for row in rows if row["kind"] == kind]
        for name in [name for name in REGIMES if any(row["regime"] == name for row in own)]:
            lines.append(line_of(name, [row for row in own if row["regime"] == name]))
        alarmed = sum(bool(rejections(row)) for row in own)
        lines += ["", f"Runs with an alarm: {alarmed} of {len(own)}.", ""]
    missing = [name for name in REGIMES if not any(row["regime"] == name for row in rows)]
    if missing:
        lines += [f"Regimes without rows so far: {', '.join(missing)}.", ""]
    few = [name for name in REGIMES if 0 < sum(row["regime"] == name for row in rows) < 12]
    if few:
        lines += [f"Regimes with fewer than 12 seeds so far: {', '.join(few)}. Their means say little.", ""]
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    lines.append(f"Commits: {commits}.")
    PAGE.write_text("\n".join(lines) + "\n")


def rejections(row: dict[str, str]) -> set[str]:
    """The checks that rejected the model."""
    return set(row["alarms"].split()) - NOTES


def line_of(name: str, rows: list[dict[str, str]]) -> str:
    def mean(key: str) -> str:
        values = [float(row[key]) for row in rows if row[key] not in ("", "nan")]
        return f"{100 * fmean(values):.3g}" if values else "-"

    errors, covers = (", ".join(mean(f"{prefix}{label}") for label in LABELS) for prefix in ("", "cover_"))
    counts = [sum(bool(rejections(row)) for row in rows), sum(bool(NOTES & set(row["alarms"].split())) for row in rows)]
    counts.append(sum(row["converged"] == "False" for row in rows))
    counts.append(sum(bool(row["error"]) for row in rows))
    seconds = fmean(float(row["seconds"]) for row in rows)
    told = " | ".join(str(count) for count in counts)
    return f"| {name} | {len(rows)} | {errors} | {mean('V')} | {covers} | {mean('cover_V')} | {told} | {seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("regimes", nargs="*", choices=[*REGIMES, []])
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no further row after so many")
    parser.add_argument("--results", default=str(RESULTS))
    options = parser.parse_args()
    {"run": run, "table": table}[options.what](options)


if __name__ == "__main__":
    main()
