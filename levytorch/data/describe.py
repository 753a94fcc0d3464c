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
