"""Real series on a line: what the law gets right, what it does not, and whether V is worth more than r / beta.

python benchmarks/real_data.py --data DIRECTORY [series ...]

series: bitcoin and volatility (btc_3min.parquet: timestamp, open), euro and activity (eurusd_m5.csv: Time, Close,
Volume, tab separated), buffalo (buffalo.csv: id, t, x, y). Every series is cut in time: the first 60 % are fitted, the
rest judges.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch

from levytorch import Recovery, Trajectories, compare, diagnose, recover, solve_value
from levytorch.errors import InputError
from levytorch.policy.empirical import empirical_values
from levytorch.training.individual import recover_each

HOUR = 3600.0
_SEEN = 0.6  # of the time, for the fit
_DRAWS = 400
_BINS = 20


@dataclass
class Series:
    """Trajectories to fit and to judge by, in hours; beta: of the discounted sums; covariate: hours stand beside."""

    name: str
    train: Trajectories
    test: Trajectories
    beta: float
    n_basis: int
    covariate: bool = False


def pieces(t: np.ndarray, gap: float) -> list[slice]:
    """Stretches without a gap and with more than one point."""
    ends = np.concatenate([[0], np.flatnonzero(np.diff(t) > gap) + 1, [len(t)]])
    return [slice(a, b) for a, b in itertools.pairwise(ends) if b - a > 2]


def cut(x: np.ndarray, t: np.ndarray, gap: float, hours: np.ndarray | None = None) -> list[Trajectories]:
    """The first part and the rest."""
    split = t[0] + _SEEN * (t[-1] - t[0])
    out = []
    for part in (t <= split, t > split):
        xs, ts, hs = ((None if v is None else v[part]) for v in (x, t, hours))
        rows = pieces(ts, gap)
        own = {"times": [ts[r] for r in rows]}
        if hs is not None:
            own["action"] = [hs[r] for r in rows]
        out.append(Trajectories.from_arrays([xs[r] for r in rows], **own))
    return out


def bitcoin(folder: Path) -> Series:
    """Logarithm of the price, every hour."""
    table = pl.read_parquet(folder / "btc_3min.parquet")[::20]
    x, t = np.log(table["open"].to_numpy()), table["timestamp"].to_numpy() / HOUR
    return Series("bitcoin, log price", *cut(x, t - t[0], 1.01), beta=1 / 24, n_basis=9)


def _euro(folder: Path) -> tuple[pl.DataFrame, np.ndarray, np.ndarray]:
    table = pl.read_csv(folder / "eurusd_m5.csv", separator="\t", try_parse_dates=True)
    seconds = table["Time"].dt.epoch("s").to_numpy()
    return table, (seconds - seconds[0]) / HOUR, seconds / HOUR % 24


def euro(folder: Path) -> Series:
    """Logarithm of EUR/USD in units of 1e-4, every 5 minutes, with the hour of the day."""
    table, t, hours = _euro(folder)
    x = 1e4 * np.log(table["Close"].to_numpy())
    return Series("EUR/USD, log rate", *cut(x, t, 0.1, hours), beta=1 / 4, n_basis=9, covariate=True)


def activity(folder: Path) -> Series:
    """Logarithm of the ticks per hour of EUR/USD: in 5 minutes their number is more noise than state."""
    table, t, _ = _euro(folder)
    hour = np.floor(t + 1e-9).astype(int)
    first, bars = np.unique(hour, return_counts=True)
    ticks = np.bincount(hour, table["Volume"].to_numpy())[first]
    whole = bars == 12
    return Series(
        "EUR/USD, log ticks per hour", *cut(np.log(ticks[whole]), 1.0 * first[whole], 1.1), beta=1 / 8, n_basis=9
    )


def volatility(folder: Path) -> Series:
    """Logarithm of Bitcoin's realised volatility of 6 hours, from returns of 3 minutes."""
    x = np.log(pl.read_parquet(folder / "btc_3min.parquet")["open"].to_numpy())
    squares = np.diff(x)[: (len(x) - 1) // 120 * 120].reshape(-1, 120) ** 2
    x = 0.5 * np.log(squares.sum(1))
    return Series("bitcoin, log volatility", *cut(x, 6.0 * np.arange(len(x)), 6.1), beta=1 / 120, n_basis=9)


def buffalo(folder: Path) -> Series:
    """Kilometres east of its own median of six animals, about every hour."""
    table = pl.read_csv(folder / "buffalo.csv")
    parts: list[list[Trajectories]] = [[], []]
    for _, own in table.group_by("id", maintain_order=True):
        t, x = own["t"].to_numpy() / HOUR, own["x"].to_numpy() / 1000
        t, first = np.unique(t, return_index=True)
        x = x[first]
        seen = t <= t[0] + _SEEN * (t[-1] - t[0])
        for place, part in zip(parts, cut(x - np.median(x[seen]), t - t[0], 4.0)):
            place.append(part)
    joined = []
    for part in parts:
        rows = [slice(a, b) for p in part for a, b in zip(p.offsets[:-1], p.offsets[1:])]
        whole = [p for p in part for _ in range(len(p))]
        joined.append(
            Trajectories.from_arrays(
                [p.x[r] for p, r in zip(whole, rows)], times=[p.times[r] for p, r in zip(whole, rows)]
            )
        )
    return Series("buffalo, km east of home", *joined, beta=1 / 24, n_basis=9)


ALL = {
    "bitcoin": bitcoin,
    "euro": euro,
    "buffalo": buffalo,
    "activity": activity,
    "volatility": volatility,
}


def fits(series: Series) -> dict[str, Recovery]:
    """The stable law, the tempered one, and the stable one with the time of day where there is one."""
    data = series.train.transitions()
    shared = {"alpha": "learn", "period": None, "n_basis": series.n_basis, "actions": None}
    out = {"stable": recover(data, **shared)}
    try:
        out["tempered"] = recover(data, **shared, tempering="learn")
    except InputError as error:
        print(f"  tempered: {error}")
    if series.covariate:
        out["stable, by hour"] = recover(data, **shared, modulation=24.0)
    return out


def value_out_of_sample(series: Series, fits: dict[str, Recovery], seed: int = 0) -> None:
    """Mean squared error of V and of r / beta against discounted sums of the rest, with blocks of 10 / beta drawn."""
    x = series.train.x
    m, s = float(np.median(x)), float(np.std(x))

    def r(y: torch.Tensor) -> torch.Tensor:
        return torch.tanh((y - m) / s)

    beta = series.beta
    Vs = {name: solve_value(one, r, beta) for name, one in fits.items()}
    V = next(iter(Vs.values()))
    sums = empirical_values(series.test, r, beta, horizon=4 / beta, linear=True)
    scale = -np.expm1(-4.0)  # of the discount that the horizon holds
    low, high = V.window
    inside = (sums.x >= low) & (sums.x <= high)
    sums, outside = sums._replace(x=sums.x[inside], V=sums.V[inside]), int((~inside).sum())
    at = sums.x
    seen = float(r(torch.from_numpy(x)).mean()) / beta
    curves = {f"V, {name}": V(at) for name, V in Vs.items()}
    curves |= {"r / beta": r(sums.x) / beta, "mean of the first part": torch.full_like(at, seen)}
    squares = {name: ((curve * scale - sums.V) ** 2).numpy() for name, curve in curves.items()}
    # about the least that any function of x could reach: r / beta and a step function, fitted to these sums themselves
    place = np.argsort(np.argsort(sums.x.numpy())) * _BINS // len(at)
    rest = (sums.V - curves["r / beta"] * scale).numpy()
    means = np.bincount(place, rest) / np.bincount(place)
    squares["best function of x"] = (means[place] - rest) ** 2
    block = max(1, round(10 / beta / np.median(np.diff(series.test.times[:1000]))))
    n = max(1, len(at) // block)
    per_block = {k: np.array([v[i * block : (i + 1) * block].mean() for i in range(n)]) for k, v in squares.items()}
    draws = np.random.default_rng(seed).integers(0, n, (_DRAWS, n))
    told = f"beta {beta:.3g} / h, {len(at):,} in {n} blocks ({outside:,} start where nothing was fitted), "
    told += f"spread {float(sums.V.std()):.4g}"
    print(f"  discounted sums of the rest, {told}:")
    still = per_block["r / beta"]
    for name, v in squares.items():
        ratio = np.sqrt(per_block[name][draws].mean(1) / still[draws].mean(1))
        apart = f", {np.sqrt(v.mean() / squares['r / beta'].mean()):.3f} +- {ratio.std():.3f} of that of r / beta"
        print(f"    {name}: rms error {np.sqrt(v.mean()):.4g}" + ("" if name == "r / beta" else apart))
    print(f"    V.std is {float(V.std(at).mean()):.3g} in the mean, r scaled by tanh((x - {m:.4g}) / {s:.3g})")


def study(series: Series) -> None:
    """All that is told of one series."""
    train, test = series.train.transitions(), series.test.transitions()
    print(f"\n== {series.name}: {len(train):,} pairs fitted, {len(test):,} judged", flush=True)
    found = fits(series)
    for name, one in found.items():
        extra = f", tempering {one.tempering:.3g}" if one.tempering else ""
        spread = (
            f", m from {one.metrics['modulation/range'][0]:.2f} to {one.metrics['modulation/range'][1]:.2f}"
            if one.modulation
            else ""
        )
        print(f"  {name}: alpha {one.alpha:.3f} +- {one.alpha_std:.3f}{extra}{spread}, law {one.law}", flush=True)
    plain = {name: one for name, one in found.items() if one.modulation is None}
    print("  " + repr(compare(plain, test)).replace("\n", "\n  "))
    for name, one in found.items():
        told = diagnose(one, test, checks=("fit", "predictive"), max_pairs=20_000)
        for line in told.text().splitlines():
            print(f"  {name}, on the rest: {line}", flush=True)
    value_out_of_sample(series, plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("series", nargs="*", choices=[[], *ALL], default=[])
    parser.add_argument("--data", type=Path, required=True, help="where the files are")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.series or ALL:
        try:
            study(ALL[name](options.data))
        except FileNotFoundError as error:
            print(f"{name}: no file {error.filename}; left out")
    if not options.series or "buffalo" in options.series:
        print("\n== buffalo, one fit per animal")
        print(individuals(options.data))


def individuals(folder: Path):
    """Constants of every animal by itself."""
    table = pl.read_csv(folder / "buffalo.csv")
    x, times, names = [], [], []
    for (name,), own in table.group_by("id", maintain_order=True):
        t, first = np.unique(own["t"].to_numpy() / HOUR, return_index=True)
        x.append(own["x"].to_numpy()[first] / 1000)
        times.append(t - t[0])
        names.append(name)
    paths = Trajectories.from_arrays(x, times=times, ids=names, max_dt=4.0)
    return recover_each(paths, alpha="learn", n_basis=1, period=None)


if __name__ == "__main__":
    main()
