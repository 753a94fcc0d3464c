"""What does a fit with jumps and memory add to GARCH-t, Ornstein-Uhlenbeck and a hidden Markov model on real series?

    python benchmarks/real_data.py series --bitcoin btc_3min.parquet --euro eurusd_m5.csv
    python benchmarks/real_data.py animals --buffalo buffalo.csv
    python benchmarks/real_data.py known --seeds 100
    python benchmarks/real_data.py time --bitcoin btc_3min.parquet
    python benchmarks/real_data.py tables

series: prices every 3 minutes (timestamp, open; the last 60,000) and every 5 minutes (Time, Close, tab separated).
Every model is fitted to the first 60 % and evaluated on the rest: the log-likelihood per pair, each pair given those
before it. Paths of 100 steps begin with the volatility before pairs of the first 60 %, drawn at random; their
interquartile range is compared with that of all windows of the same length there. GARCH-t needs the package arch, and
its rows are left out without it. animals: GPS tracks (id, t in s, x and y in m), one fit per animal in the plane.
known: simulated paths with a memory that is known, and with none. tables prints the tables of docs/real_data.md from
the rows.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numba import njit
from scipy import stats

from levytorch import LevyStep, Recovery, Trajectories, diagnose, log_density, recover
from levytorch.coefficients.clock import ClockedHead
from levytorch.data.memory import CAP
from levytorch.errors import InputError
from levytorch.training.inputs import with_inputs_of

RESULTS = Path(__file__).parent / "results" / "real_data.csv"
COLUMNS = ["part", "series", "model", "quantity", "value", "std", "seed", "seconds", "commit", "command"]
HORIZONS = (1, 10, 30, 100)
STOPS = (*HORIZONS[:-1], 99, 100)  # of simulated paths: also the begin of the last step
FITTED, PATHS, BLOCK, FILLED = 0.6, 100_000, 480, 40
HOUR = 3600.0


def write(
    part: str, series: str, model: str, quantity: str, value: float, std: Any = "", seed: Any = "", seconds: Any = ""
) -> None:
    """Append a row."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS.parent)
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    command = " ".join(["python benchmarks/real_data.py", *words])
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(COLUMNS)
        numbers = [f"{v:.6g}" if isinstance(v, float) else v for v in (value, std, seed, seconds)]
        writer.writerow([part, series, model, quantity, *numbers, commit.stdout.strip(), command])
    print(part, series, model, quantity, *numbers, flush=True)


# -- series ------------------------------------------------------------------------------------------------------------
@dataclass
class Series:
    """Points of a series in pieces without gaps; hours: of the day, where the model with the time of day is fitted."""

    name: str
    x: np.ndarray
    t: np.ndarray
    dt: float
    hours: np.ndarray | None = None
    split: float = field(init=False)

    def __post_init__(self) -> None:
        self.split = self.t[0] + FITTED * (self.t[-1] - self.t[0])

    def pieces(self, rows: np.ndarray) -> list[np.ndarray]:
        """The numbers of the points in each piece."""
        at = np.flatnonzero(rows)
        ends = np.flatnonzero(np.diff(self.t[at]) > 1.2 * self.dt) + 1
        return [piece for piece in np.split(at, ends) if len(piece) > 2]

    @property
    def parts(self) -> list[list[np.ndarray]]:
        """Pieces of the first part and of the rest."""
        return [self.pieces(self.t <= self.split), self.pieces(self.t > self.split)]

    def trajectories(self, pieces: list[np.ndarray], covariate: bool) -> Trajectories:
        options: dict[str, Any] = {"times": [self.t[p] for p in pieces]}
        if covariate and self.hours is not None:
            options["action"] = [self.hours[p] for p in pieces]
        return Trajectories.from_arrays([self.x[p] for p in pieces], **options)

    def steps(self, part: int) -> np.ndarray:
        return np.concatenate([np.diff(self.x[p]) for p in self.parts[part]])

    def judged(self) -> np.ndarray:
        """Which steps of the rest are evaluated: not the first ones of a piece, before a memory has filled."""
        return np.concatenate([np.arange(len(p) - 1) >= FILLED for p in self.parts[1]])


def bitcoin(path: Path) -> Series:
    """100 times the logarithm of the price, every 3 minutes."""
    table = pl.read_parquet(path)[-60_000:]
    t = table["timestamp"].to_numpy() / HOUR
    return Series("Bitcoin, 3 min", 100 * np.log(table["open"].to_numpy()), t - t[0], 0.05)


def euro(path: Path) -> Series:
    """10,000 times the logarithm of the rate, every 5 minutes, with the hour of the day."""
    table = pl.read_csv(path, separator="\t", try_parse_dates=True)
    t = table["Time"].dt.epoch("s").to_numpy() / HOUR
    return Series("EUR/USD, 5 min", 1e4 * np.log(table["Close"].to_numpy()), t - t[0], 1 / 12, t % 24)


@dataclass
class Fitted:
    """A model of a series: log p of every step of the rest, and displacements of paths at the horizons."""

    log_p: np.ndarray
    moved: Callable[[], np.ndarray]  # (PATHS, number of stops)
    facts: dict[str, tuple[float, Any]] = field(default_factory=dict)


def levy(series: Series, **options: Any) -> Fitted:
    covariate = options.get("modulation") is not None
    train, rest = (series.trajectories(part, covariate) for part in series.parts)
    settings = {"alpha": "learn", "period": None, "n_basis": 1, "actions": None, "law": "frozen"}
    found = recover(train, **settings | options)
    pairs = rest.transitions()
    facts = {"alpha": (float(found.alpha), found.alpha_std), "pairs fitted": (float(found.nobs), "")}
    if (memory := found.memory) is not None:
        facts["level"] = (found.metrics["memory"]["level"], "")
        for j, (h, dh, a, da) in enumerate(
            zip(memory.half_lives, memory.half_lives_std, memory.exponents, memory.exponents_std)
        ):
            facts |= {f"half-life {j + 1}": (h / series.dt, dh / series.dt), f"exponent {j + 1}": (a, da)}

    def moved() -> np.ndarray:
        paths = found.simulate(PATHS, max(HORIZONS), series.dt, x0=float(series.x[0]), seed=0).to_array()
        return paths[:, STOPS] - paths[:, :1]

    return Fitted(log_p_of(found, pairs), moved, facts)


@torch.no_grad()
def log_p_of(found: Recovery, pairs: Any) -> np.ndarray:
    """log p of every pair, NaN where a memory had not filled."""
    out = np.full(len(pairs), np.nan)
    filled = np.ones(len(pairs), bool)
    if isinstance(found.head, ClockedHead):
        pairs, known = with_inputs_of(found, pairs)
        filled = filled if known is None else known.numpy()
    c = found.head(pairs.states)
    out[filled] = log_density(pairs.dx, *c[:4], pairs.dt, dim=found.dim, tempering=c.tempering).numpy()
    return out


def garch(series: Series) -> Fitted:
    from arch import arch_model

    train, rest = series.steps(0), series.steps(1)
    scale = train.std()
    every = np.concatenate([train, rest]) / scale

    def model(y: np.ndarray) -> Any:
        return arch_model(y, mean="Constant", vol="GARCH", p=1, q=1, dist="t", rescale=False)

    fit = model(every[: len(train)]).fit(disp="off")
    omega, a, b, nu, mu = (float(fit.params[k]) for k in ("omega", "alpha[1]", "beta[1]", "nu", "mu"))
    sigma = np.asarray(model(every).fix(fit.params).conditional_volatility)
    unit = math.sqrt((nu - 2) / nu)
    log_p = stats.t.logpdf(rest / scale, nu, mu, sigma[len(train) :] * unit) - math.log(scale)

    def moved() -> np.ndarray:
        rng = np.random.default_rng(0)
        variance = sigma[rng.integers(len(train), size=PATHS)] ** 2
        at, out = np.zeros(PATHS), []
        for k in range(1, max(HORIZONS) + 1):
            e = np.sqrt(variance) * unit * rng.standard_t(nu, PATHS)
            at = at + mu + e
            variance = omega + a * e**2 + b * variance
            out += [at * scale] if k in STOPS else []
        return np.stack(out, 1)

    return Fitted(log_p, moved, {"alpha + beta": (a + b, ""), "nu": (nu, "")})


def ornstein_uhlenbeck(series: Series) -> Fitted:
    """x_next = c + phi x + Gaussian noise, by least squares."""
    before, after = (np.concatenate([series.x[p][cut] for p in series.parts[0]]) for cut in (np.s_[:-1], np.s_[1:]))
    phi, c = np.polyfit(before, after, 1)
    sigma = float(np.std(after - c - phi * before))
    x, y = (np.concatenate([series.x[p][cut] for p in series.parts[1]]) for cut in (np.s_[:-1], np.s_[1:]))

    def moved() -> np.ndarray:
        rng = np.random.default_rng(0)
        begin = at = before[rng.integers(len(before), size=PATHS)]
        out = []
        for k in range(1, max(HORIZONS) + 1):
            at = c + phi * at + sigma * rng.standard_normal(PATHS)
            out += [at - begin] if k in STOPS else []
        return np.stack(out, 1)

    return Fitted(stats.norm.logpdf(y, c + phi * x, sigma), moved, {"phi": (float(phi), "")})


@njit
def _forward(density: np.ndarray, A: np.ndarray, begin: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n, k = density.shape
    predicted, filtered, log_p = np.empty((n, k)), np.empty((n, k)), np.empty(n)
    now = begin.copy()
    for i in range(n):
        predicted[i] = now
        joint = now * density[i]
        total = joint.sum()
        log_p[i] = np.log(total)
        filtered[i] = joint / total
        now = filtered[i] @ A
    return predicted, filtered, log_p


@njit
def _counts(density: np.ndarray, A: np.ndarray, filtered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n, k = density.shape
    smoothed, counts = filtered.copy(), np.zeros((k, k))
    for i in range(n - 2, -1, -1):
        ratio = smoothed[i + 1] / (filtered[i] @ A)
        for a in range(k):
            for b in range(k):
                counts[a, b] += filtered[i, a] * A[a, b] * ratio[b]
        smoothed[i] = filtered[i] * (A @ ratio)
    return smoothed, counts


def hidden_markov(series: Series, k: int) -> Fitted:
    """k states, Gaussian steps with a variance of each; expectation maximisation."""
    train, rest = series.steps(0), series.steps(1)
    center = train.mean()
    size = np.abs(train - center)
    sigma = np.quantile(size, (np.arange(k) + 0.5) / k) * 1.5 + 1e-9
    A = np.full((k, k), 0.05 / (k - 1)) + (0.95 - 0.05 / (k - 1)) * np.eye(k)
    mu, begin = np.full(k, center), np.full(k, 1 / k)
    for _ in range(300):
        density = stats.norm.pdf(train[:, None], mu, sigma) + 1e-300
        _, filtered, log_p = _forward(density, A, begin)
        smoothed, counts = _counts(density, A, filtered)
        A = counts / counts.sum(1, keepdims=True)
        mu = (smoothed * train[:, None]).sum(0) / smoothed.sum(0)
        sigma = np.sqrt((smoothed * (train[:, None] - mu) ** 2).sum(0) / smoothed.sum(0))
    every = np.concatenate([train, rest])
    predicted, _, log_p = _forward(stats.norm.pdf(every[:, None], mu, sigma) + 1e-300, A, begin)

    def moved() -> np.ndarray:
        rng = np.random.default_rng(0)
        chances = predicted[rng.integers(len(train), size=PATHS)]
        at, out, steps = np.zeros(PATHS), [], A.cumsum(1)
        state = (rng.random(PATHS)[:, None] > chances.cumsum(1)).sum(1).clip(max=k - 1)
        for j in range(1, max(HORIZONS) + 1):
            at = at + mu[state] + sigma[state] * rng.standard_normal(PATHS)
            out += [at] if j in STOPS else []
            state = (rng.random(PATHS)[:, None] > steps[state]).sum(1).clip(max=k - 1)
        return np.stack(out, 1)

    return Fitted(log_p[len(train) :], moved)


def models(series: Series) -> Iterator[tuple[str, Callable[[], Fitted]]]:
    """The rivals, and fits with more and more of what the data ask for."""
    yield "GARCH(1,1)-t", lambda: garch(series)
    yield "Ornstein-Uhlenbeck", lambda: ornstein_uhlenbeck(series)
    for k in (2, 4):
        yield f"hidden Markov, {k} states", lambda k=k: hidden_markov(series, k)
    tempered = {"tempering": "learn"}
    yield "stable", lambda: levy(series)
    yield "tempered", lambda: levy(series, **tempered)
    yield "memory", lambda: levy(series, **tempered, memory="learn")
    if series.hours is not None:
        yield "memory, time of day", lambda: levy(series, **tempered, memory="learn", modulation=24.0)


def ranges(moved: np.ndarray) -> np.ndarray:
    """Interquartile range of every column."""
    low, high = np.quantile(moved, [0.25, 0.75], axis=0)
    return np.asarray(high - low)


def windows(pieces: list[np.ndarray], k: int) -> np.ndarray:
    return np.concatenate([x[k:] - x[:-k] for x in pieces if len(x) > k])


def study(series: Series, chosen: list[str]) -> None:
    """All rows of one series; chosen: models, or none for all; the first one is always fitted, to compare with."""
    pieces = [series.x[p] for p in series.parts[0]]
    of_data = np.array([np.subtract(*np.quantile(windows(pieces, k), [0.75, 0.25])) for k in HORIZONS])
    ends = (0.001, 0.999)
    one = np.quantile(windows(pieces, 1), ends)
    steps = series.steps(0)
    if not chosen or "data" in chosen:
        study_data(series, pieces, steps, of_data)
    judged, reference = series.judged(), None
    for name, fit in models(series):
        if reference is not None and chosen and name not in chosen:
            continue
        began = time.perf_counter()
        try:
            found = fit()
        except ModuleNotFoundError as error:
            print(f"{name}: {error}; left out")
            continue
        seconds = time.perf_counter() - began
        log_p = found.log_p[judged]
        reference = log_p if reference is None else reference
        if chosen and name not in chosen:
            continue
        apart = log_p - reference
        blocks = apart[: len(apart) // BLOCK * BLOCK].reshape(-1, BLOCK).mean(1)
        write("series", series.name, name, "held-out", float(log_p.mean()), "", 0, seconds)
        error = float(blocks.std(ddof=1) / math.sqrt(len(blocks)))
        write("series", series.name, name, "held-out over the first", float(apart.mean()), error, 0)
        moved = found.moved()
        spread = dict(zip(STOPS, ranges(moved)))
        for k, value in zip(HORIZONS, of_data):
            write("series", series.name, name, f"spread {k}", float(spread[k] / value), "", 0)
        last = float(ranges(moved[:, -1:] - moved[:, -2:-1])[0])
        write("series", series.name, name, "step 100 over step 1", last / float(spread[1]), "", 0)
        for end, value in zip(ends, np.quantile(moved[:, 0], ends) / one):
            write("series", series.name, name, f"quantile {end:g}", float(value), "", 0)
        for what, (value, std) in found.facts.items():
            write("series", series.name, name, what, value, std, 0)


def study_data(series: Series, pieces: list[np.ndarray], steps: np.ndarray, of_data: np.ndarray) -> None:
    """How far the spread of the data depends on chance, and on the directions of successive steps."""
    rng = np.random.default_rng(0)
    # spread of the data about itself, by blocks, and of data whose steps have random signs: all of the memory of size
    for model, seeds in (("data, blocks drawn", 40), ("data, random signs", 40)):
        drawn = []
        for _ in range(seeds):
            if model == "data, random signs":
                own = [np.concatenate([[0], np.cumsum(np.diff(x) * rng.choice([-1, 1], len(x) - 1))]) for x in pieces]
            else:
                begins = rng.integers(0, len(steps) - 2000, len(steps) // 2000 + 1)
                own = [np.cumsum(np.concatenate([steps[b : b + 2000] for b in begins]))]
            drawn.append([np.subtract(*np.quantile(windows(own, k), [0.75, 0.25])) for k in HORIZONS] / of_data)
        for k, value, std in zip(HORIZONS, np.mean(drawn, 0), np.std(drawn, 0)):
            write("series", series.name, model, f"spread {k}", float(value), float(std), "0-39")
    center = steps - steps.mean()
    for lag in (1, 2):
        value = float((np.sign(center[lag:]) * np.sign(center[:-lag])).mean())
        write("series", series.name, "data", f"correlation of signs, lag {lag}", value, len(center) ** -0.5)


def whole(path: Path, chosen: list[str]) -> None:
    """The time of a fit with memory to all prices of a file, in seconds of the clock and of all cores together."""
    x = 100 * np.log(pl.read_parquet(path)["open"].to_numpy())
    for model, options in (("memory", {}), ("memory, D_o = 0", {"D_o": 0.0})):
        if chosen and model not in chosen:
            continue
        began, used = time.perf_counter(), time.process_time()
        settings = {"alpha": "learn", "tempering": "learn", "period": None, "n_basis": 1, "memory": "learn"}
        found = recover(x, dt=0.05, **settings, law="frozen", **options)
        seconds, processor = time.perf_counter() - began, time.process_time() - used
        write("time", "Bitcoin, 3 min", model, "pairs", float(found.nobs), "", 0, seconds)
        write("time", "Bitcoin, 3 min", model, "processor seconds", processor, "", 0, seconds)
        write("time", "Bitcoin, 3 min", model, "steps", float(found.metrics["steps"]), "", 0, seconds)


# -- animals -----------------------------------------------------------------------------------------------------------
def animals(path: Path, chosen: list[str]) -> None:
    """Fits in the plane, in km and hours: how far long paths of the fit spread, and whether the checks object."""
    table = pl.read_csv(path)
    fits: dict[str, dict[str, Any]] = {"tempered": {}, "mean": {"drift": "mean"}, "memory": {"memory": 6.0}}
    for (name,), own in table.group_by("id", maintain_order=True):
        if chosen and name not in chosen:
            continue
        t, first = np.unique(own["t"].to_numpy() / HOUR, return_index=True)
        x = np.stack([own[c].to_numpy()[first] / 1000 for c in ("x", "y")], 1)
        x = x - np.median(x, 0)
        track = Trajectories.from_arrays([x], times=[t - t[0]], max_dt=4.0)
        of_data = ranges(x)
        settings = {"alpha": "learn", "tempering": "learn", "D_o": 0.0, "period": None, "n_basis": 5, "law": "frozen"}
        pairs, log_p = track.transitions(), {}
        for model, options in fits.items():
            began = time.perf_counter()
            try:
                found = recover(track, **settings, engine="evidence", **options)
            except InputError as error:
                print(name, model, error)
                continue
            seconds = time.perf_counter() - began
            begins = x[np.random.default_rng(0).integers(len(x), size=400)]
            dt = found.memory.rule.dt if found.memory is not None else 1.0
            paths = found.simulate(400, 1000, dt, x0=begins, seed=0).to_array()
            ratio = float(np.sqrt((ranges(paths[:, -1]) / of_data).prod()))
            low, high = torch.tensor(found.head.bounds, dtype=torch.float64).T
            log_p[model] = log_p_of(found, pairs)
            log_p[model][~((pairs.x >= low) & (pairs.x <= high)).all(1).numpy()] = np.nan
            told = diagnose(found, track, checks=("predictive",), max_pairs=5000)
            write("animals", str(name), model, "pairs", float(found.nobs), "", 0, seconds)
            write("animals", str(name), model, "spread after 1,000 steps", ratio, "", 0)
            write("animals", str(name), model, "converged", float(found.converged), "", 0)
            write("animals", str(name), model, "alarms", float(len(told.alarms)), "", 0)
            for alarm in told.alarms:
                write("animals", str(name), model, f"alarm {alarm}", 1.0, "", 0)
        common = ~np.isnan(np.stack(list(log_p.values()))).any(0)
        for model, values in log_p.items():  # of the pairs that all fits have
            write("animals", str(name), model, "log-likelihood per pair", float(values[common].mean()), "", 0)


# -- known memory ------------------------------------------------------------------------------------------------------
ALPHA, HALF_LIFE, EXPONENT, STEPS = 0.7, 20.0, 0.8, 12_000


def path_of(seed: int, exponent: float) -> tuple[np.ndarray, float]:
    """A path whose D_o and D_f are 1/2 times m^exponent, held between 1/2 and 2; the size of a step where m is one."""
    generator = torch.Generator().manual_seed(seed)
    gauss = torch.randn(STEPS, generator=generator, dtype=torch.float64).numpy()
    jumps = LevyStep(0.0, 0.0, 0.5, ALPHA, 1.0).expand((STEPS,)).sample(generator=generator).numpy()
    size = np.abs(gauss + jumps)
    usual = float(np.minimum(size, np.quantile(size, 0.99)).mean())
    w, m, dx = 2 ** (-1 / HALF_LIFE), 1.0, np.empty(STEPS)
    for i in range(STEPS):
        f = min(max(m**exponent, 0.5), 2.0)
        dx[i] = math.sqrt(f) * gauss[i] + f ** (1 / (2 * ALPHA)) * jumps[i]
        m = w * m + (1 - w) * min(abs(dx[i]) / usual, CAP)
    return np.concatenate([[0.0], np.cumsum(dx)]), usual


def known(seeds: range) -> None:
    """Learned half-lives of paths with a known memory, and whether AIC prefers a memory where there is none."""
    for seed, exponent in itertools.product(seeds, (EXPONENT, 0.0)):
        x, usual = path_of(seed, exponent)
        began = time.perf_counter()
        found = recover(x, dt=1.0, alpha=ALPHA, period=None, n_basis=1, memory="learn", law="frozen")
        memory, seconds = found.memory, time.perf_counter() - began
        best = max(gain - 2 * len(h) for h, gain in found.metrics["memory"]["profile"]["gains"])
        series = "known memory" if exponent else "no memory"
        write("known", series, "memory", "AIC gain", 2 * best, "", seed, seconds)
        if not exponent:
            continue
        write("known", series, "memory", "time scales", float(len(memory.half_lives)), "", seed)
        if len(memory.half_lives) == 1:
            write("known", series, "memory", "half-life", memory.half_lives[0], memory.half_lives_std[0], seed)
        level = np.mean(memory.centers) + math.log(memory.rule.size / usual)
        for name, std in zip(("D_o", "D_f"), found.std(0.0)[1:]):
            ratio = float(getattr(found, name)(0.0)) / (0.5 * math.exp(EXPONENT * level))
            error = float(std) / (0.5 * math.exp(EXPONENT * level))
            write("known", series, "memory", f"{name} over its true value", ratio, error, seed)


# -- tables ------------------------------------------------------------------------------------------------------------
def tables() -> None:
    """The tables of docs/real_data.md."""
    with RESULTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    at = {(r["series"], r["model"], r["quantity"]): r for r in rows if r["part"] in ("series", "animals")}
    for name in dict.fromkeys(r["series"] for r in rows if r["part"] == "series"):
        print(f"\n### {name}\n")
        print("| model | held-out, over GARCH-t | quantiles | 1 step | 10 | 30 | 100 |")
        print("|---|---|---|---|---|---|---|")
        own = [r["model"] for r in rows if (r["part"], r["series"]) == ("series", name) and r["model"] != "data"]
        for model in dict.fromkeys(own):
            row = {q: at[name, model, q] for (s, m, q) in at if (s, m) == (name, model)}
            gain = row.get("held-out over the first")
            over = "" if gain is None else f"{float(gain['value']):+.4f} ± {float(gain['std']):.4f}"
            ends = ", ".join(f"{float(row[q]['value']):.2f}" for q in ("quantile 0.001", "quantile 0.999") if q in row)
            spreads = [f"{float(row[f'spread {k}']['value']):.2f}" for k in HORIZONS]
            if model.startswith("data"):
                spreads = [f"{s} ± {float(row[f'spread {k}']['std']):.2f}" for s, k in zip(spreads, HORIZONS)]
            print(f"| {model} | {over} | {ends} | {' | '.join(spreads)} |")
    names = dict.fromkeys(r["series"] for r in rows if r["part"] == "animals")
    if names:
        heads = ("animal", "log-likelihood per pair", "mean", "memory", "spread", "mean", "memory")
        print("\n| " + " | ".join((*heads, "predictive alarm of each")) + " |")
        print("|---|---|---|---|---|---|---|---|")
    for name in names:
        cells = []
        fits = ("tempered", "mean", "memory")
        for what in ("log-likelihood per pair", "spread after 1,000 steps"):
            cells += [f"{float(at.get((name, model, what), {}).get('value', 'nan')):.2f}" for model in fits]
        cells.append(", ".join("yes" if (name, model, "alarm predictive") in at else "no" for model in fits))
        print(f"| {name} | {' | '.join(cells)} |")
    timed = {(r["model"], r["quantity"]): r for r in rows if r["part"] == "time"}
    for model in dict.fromkeys(model for model, _ in timed):
        pairs, used, steps = (float(timed[model, q]["value"]) for q in ("pairs", "processor seconds", "steps"))
        print(f"\n{model}: {pairs:,.0f} pairs, {steps:.0f} steps, {used:.0f} s of one processor")
    simulated = [r for r in rows if r["part"] == "known"]
    if not simulated:
        return
    half = [(float(r["value"]), float(r["std"])) for r in simulated if r["quantity"] == "half-life"]
    z = np.array([(h - HALF_LIFE) / dh for h, dh in half])
    number = len({r["seed"] for r in simulated})
    print(
        f"\n{number} seeds; one time scale in {len(z)}; half-life {np.median([h for h, _ in half]):.1f} in the median,"
    )
    print(f"within two standard errors in {np.mean(np.abs(z) < 2):.0%}")
    for name in ("D_o", "D_f"):
        own = [r for r in simulated if r["quantity"] == f"{name} over its true value"]
        inside = np.mean([abs(float(r["value"]) - 1) < 1.96 * float(r["std"]) for r in own])
        print(f"{name}: intervals hold the truth in {inside:.0%}")
    for series in ("known memory", "no memory"):
        gains = [float(r["value"]) for r in simulated if r["series"] == series and r["quantity"] == "AIC gain"]
        print(f"{series}: AIC prefers none in {np.mean(np.array(gains) <= 0):.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["series", "animals", "known", "time", "tables"])
    for name in ("bitcoin", "euro", "buffalo"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument(
        "--models", nargs="*", default=[], help="some of the rows of a table, such as memory or an animal"
    )
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=100)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.part == "series":
        for path, make in ((options.bitcoin, bitcoin), (options.euro, euro)):
            if path is not None:
                study(make(path), options.models)
    elif options.part == "animals":
        animals(options.buffalo, options.models)
    elif options.part == "time":
        whole(options.bitcoin, options.models)
    elif options.part == "known":
        known(range(options.first, options.first + options.seeds))
    else:
        tables()


if __name__ == "__main__":
    main()
