"""A one-page summary of transitions, to be read before anything is fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.convert import Array, Integers
from levytorch.data.quantiles import ValueBlocks, cut, quantiles

if TYPE_CHECKING:
    from levytorch.data.transitions import Transitions

_LEVELS = (0.0, 0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 1.0)
_HEADS = ("min", "0.1%", "1%", "5%", "25%", "50%", "75%", "95%", "99%", "99.9%", "max")


def describe(t: Transitions) -> str:
    """Counts, dt, quantiles of x, dx and |dx - mu|, mu, and what was dropped and why."""
    lost, mu = sum(t.dropped.values()), ", ".join(f"{v:.8g}" for v in np.atleast_1d(t.mu.numpy()))
    lines = [
        f"{len(t):,} transitions of {t.n_trajectories:,} trajectories in {t.dim} dimension{'s' if t.dim > 1 else ''}",
        "",
        f"dt        {_dt(t)}",
        f"mu        {mu}   median of {'dx' if t.uniform_dt else 'dx / dt'} before any removal",
        "",
        " " * 10 + "".join(f"{head:>11}" for head in _HEADS),
    ]
    names = [""] if t.dim == 1 else [f"[{k}]" for k in range(t.dim)]
    for name, column in zip(names, t.x.reshape(len(t), -1).unbind(1)):
        lines.append(f"{'x' + name:<10}" + _row(cut(column.numpy()), len(t)))
    for name, column in zip(names, t.dx.reshape(len(t), -1).unbind(1)):
        lines.append(f"{'dx' + name:<10}" + _row(cut(column.numpy()), len(t)))
    deviations: ValueBlocks = lambda: (t.deviation_of(rows).numpy() for rows in t.blocks())  # noqa: E731
    lines.append(f"{'|dx - mu|' if t.uniform_dt else '|dx-mu dt|':<10}" + _row(deviations, len(t)))
    if t.reward is not None:
        lines.append(f"{'reward':<10}" + _row(cut(t.reward.numpy()), len(t)))
    if t.actions:
        lines += _labels_by_state(t.action_codes.numpy(), t.x.reshape(len(t), -1)[:, 0].numpy(), t.actions)
    elif t.action is not None:
        lines += _numbers_by_state(np.asarray(t.action), t.x.reshape(len(t), -1)[:, 0].numpy())
    lines += ["", f"dropped   {lost:,} of {lost + len(t):,} pairs" + (":" if lost else "")]
    lines += [f"          {count:>12,}  {reason}" for reason, count in t.dropped.items()]
    lines += [f"note      {remark}" for remark in remarks(t)]
    return "\n".join(lines)


def _dt(t: Transitions) -> str:
    if t.uniform_dt:
        return f"{float(t.dt[0]):.10g} for every pair"
    blocks = cut(t.dt.numpy())
    median = t.median_dt
    near = sum(int((np.abs(dt - median) <= 0.05 * median).sum()) for dt in blocks()) / len(t)
    spread = "  ".join(f"{h} {q:.6g}" for h, q in zip(_HEADS[::5], quantiles(blocks, len(t), _LEVELS[::5])))
    return f"{spread}; {100 * near:.1f} % of pairs within 5 % of the median"


def _row(blocks: ValueBlocks, n: int) -> str:
    return "".join(f"{q:>11.4g}" for q in quantiles(blocks, n, _LEVELS))


def _numbers_by_state(action: Array, x: Array) -> list[str]:
    """Lines on actions on a scale: their range, mean and spread, and the mean by quarters of the states."""
    quarter, heads = _quarters(x)
    lines = ["", f"{'action':<10}{'min':>11}{'mean':>11}{'max':>11}{'spread':>11}   mean where " + ", ".join(heads)]
    columns = action.reshape(len(action), -1).T
    for k, a in enumerate(columns):
        means = ", ".join(f"{a[quarter == q].mean():.3g}" if (quarter == q).any() else "-" for q in range(4))
        name = "a" if len(columns) == 1 else f"a[{k}]"
        lines.append(f"{name:<10}{a.min():>11.4g}{a.mean():>11.4g}{a.max():>11.4g}{a.std():>11.4g}   {means}")
    return lines


def _labels_by_state(codes: Integers, x: Array, actions: Sequence[Any]) -> list[str]:
    """Lines that count actions by state: pairs of each action, and by quarters of the observed states."""
    quarter, heads = _quarters(x)
    counts = np.zeros((len(actions), 4), dtype=np.int64)
    np.add.at(counts, (codes, quarter), 1)
    lines = ["", f"{'action':<10}{'pairs':>12}" + "".join(f"{head:>14}" for head in heads)]
    for name, row in zip(actions, counts):
        lines.append(f"{str(name)[:9]:<10}{row.sum():>12,}" + "".join(f"{n:>14,}" for n in row))
    return lines


def _quarters(x: Array) -> tuple[Integers, list[str]]:
    """The quarter of the states that each lies in, and what to call the quarters."""
    first, second, third = np.quantile(x, [0.25, 0.5, 0.75])
    heads = [f"x < {first:.3g}", f"< {second:.3g}", f"< {third:.3g}", f">= {third:.3g}"]
    return np.searchsorted([first, second, third], x), heads


# -- what data often is ------------------------------------------------------------------------------------------------
_SOME = 50_000  # pairs that are looked at
_COARSE = 0.1  # of a usual step: a grid that small steps feel
_FULL = 0.9  # of a turn: what angles that go round cover
_WRAP = 0.9  # of a turn: a step so long is none
_FILLED = 0.95  # of a period: more than series on a line cover of a cell that was made to hold them


def remarks(t: Transitions) -> list[str]:
    """One sentence per peculiarity of the data, with what to do about it."""
    every = max(1, len(t) // _SOME)
    x, dx = (v[::every].reshape(-1, t.dim).numpy() for v in (t.x, t.dx))
    out = []
    for k in range(t.dim):
        name = "x" if t.dim == 1 else f"x{k + 1}"
        if in_degrees(x[:, k], dx[:, k]):
            out.append(
                f"{name} looks like an angle in degrees that is wrapped at a full turn; pass period=360, or convert it "
                "to radians."
            )
        out += rounding(name, dx[:, k])
    return out


def rounding(name: str, dx: Array) -> list[str]:
    """A sentence on the grid that steps are rounded to, where it is coarse beside a usual step."""
    grid = rounded_to(dx)
    if grid is None:
        return []
    usual = float(np.median(np.abs(dx - np.median(dx))))
    size = f"{grid / usual:.0%} of a usual step" if usual > 0 else "more than a usual step"
    return [
        f"{name} is rounded to multiples of {grid:.4g}, {size}, which adds to D_o and hides small jumps; use longer "
        "steps, or data with more digits."
    ]


def in_degrees(x: Array, dx: Array) -> bool:
    """Whether states fill a range of 360, from 0 or from -180 on, and some steps lead from one end to the other."""
    low, high = float(x.min()), float(x.max())
    within = (low >= 0.0 and high <= 360.0) or (low >= -180.0 and high <= 180.0)
    if not within or high - low < _FULL * 360.0:
        return False
    wraps = np.abs(dx) > _WRAP * 360.0
    return bool(wraps.any()) and float(wraps.mean()) < 0.2


def seams(x: Array, dx: Array, period: float) -> int:
    """How many displacements of an angle that was wrapped into one period are longer than half of it; 0: it was not.

    The states fill one period and never leave it, and most of these displacements lead from one end to the other.
    """
    low, high = float(x.min()), float(x.max())
    if not _FILLED * period < high - low <= period:
        return 0
    far = np.abs(dx) > 0.5 * period
    ends = (x + dx)[far]
    n, across = int(far.sum()), int((np.abs(dx) > 0.75 * period).sum())
    if across < max(3, 0.5 * n) or max(high, ends.max()) - min(low, ends.min()) > period * (1 + 1e-9):
        return 0
    return n


def rounded_to(dx: Array) -> float | None:
    """The grid that all steps are multiples of, where it is coarse beside a usual step; None where there is none."""
    sizes = np.unique(np.abs(dx))
    sizes = sizes[sizes > 0]
    if len(dx) < 100 or len(sizes) < 2 or len(sizes) > len(dx) // 4:
        return None
    grid = float(sizes[0])
    small = sizes[sizes < 1e4 * grid]
    if grid <= 1e-9 * float(sizes[-1]) or (np.abs(small / grid - np.round(small / grid)) > 1e-3).mean() > 1e-3:
        return None
    usual = float(np.median(np.abs(dx - np.median(dx))))
    return grid if grid > _COARSE * usual else None
