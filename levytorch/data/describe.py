"""A one-page summary of transitions, to be read before anything is fitted to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from levytorch.data.actions import table_of_actions, table_of_numbers
from levytorch.data.quantiles import Blocks, cut, quantiles

if TYPE_CHECKING:
    from levytorch.data.transitions import Transitions

_LEVELS = (0.0, 0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 1.0)
_HEADS = ("min", "0.1%", "1%", "5%", "25%", "50%", "75%", "95%", "99%", "99.9%", "max")


def describe(t: Transitions) -> str:
    """Counts, dt, quantiles of x, dx and |dx - mu|, mu, and what was dropped and why."""
    lost = sum(t.dropped.values())
    lines = [
        f"{len(t):,} transitions of {t.n_trajectories:,} trajectories in {t.dim} dimension{'s' if t.dim > 1 else ''}",
        "",
        f"dt        {_dt(t)}",
        f"mu        {_numbers(np.atleast_1d(t.mu.numpy()))}   median of {'dx' if t.uniform_dt else 'dx / dt'} before "
        "any removal",
        "",
        " " * 10 + "".join(f"{head:>11}" for head in _HEADS),
    ]
    names = [""] if t.dim == 1 else [f"[{k}]" for k in range(t.dim)]
    for name, column in zip(names, t.x.reshape(len(t), -1).unbind(1)):
        lines.append(f"{'x' + name:<10}" + _row(cut(column.numpy()), len(t)))
    for name, column in zip(names, t.dx.reshape(len(t), -1).unbind(1)):
        lines.append(f"{'dx' + name:<10}" + _row(cut(column.numpy()), len(t)))
    deviations: Blocks = lambda: (t.deviation_of(rows).numpy() for rows in t.blocks())  # noqa: E731
    lines.append(f"{'|dx - mu|' if t.uniform_dt else '|dx-mu dt|':<10}" + _row(deviations, len(t)))
    if t.reward is not None:
        lines.append(f"{'reward':<10}" + _row(cut(t.reward.numpy()), len(t)))
    if t.actions:
        lines += table_of_actions(t.action_codes.numpy(), t.x.reshape(len(t), -1)[:, 0].numpy(), t.actions)
    elif t.action is not None:
        lines += table_of_numbers(np.asarray(t.action), t.x.reshape(len(t), -1)[:, 0].numpy())
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


def _row(blocks: Blocks, n: int) -> str:
    return "".join(f"{q:>11.4g}" for q in quantiles(blocks, n, _LEVELS))


def _numbers(values: np.ndarray) -> str:
    return ", ".join(f"{v:.8g}" for v in values)
