"""The likelihood of observations with noise: y_n = x_n + s e_n, the e_n independent standard normal numbers.

Given y_n the state is y_n + s z, so that a path of states is a path over a few even local nodes z_j, weighted by a
normal density. A forward pass gives the log-likelihood, the backward pass the probabilities of pairs of nodes. By
Fisher's identity the score is the mean of the scores of log p over these pairs: they are a weighted batch, of nodes of
a table of log p (`filter_kernels`), under whichever law of a step. The first state of a trajectory has a flat prior.

The information is the sum of the outer products of the scores of single observations given those before. They are
differences of the mean score of the path so far, which a second forward pass carries along.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, LinearHead
from levytorch.coefficients.layout import scalar_size
from levytorch.coefficients.tangent import TangentHead
from levytorch.data import Transitions
from levytorch.data.batches import Batch
from levytorch.data.memory import follows
from levytorch.errors import NumericalError
from levytorch.law.threads import in_blocks
from levytorch.likelihood.exact import MANY_STEPS, ExactLaw
from levytorch.likelihood.exact_scores import TAIL_NODES
from levytorch.likelihood.filter_kernels import draw, mark, most_rows, scores, smooth
from levytorch.likelihood.frozen import FrozenLaw, to_predictors

_FARTHEST = 5.0  # z of the last node
_WIDEST, _RESOLVED = 0.6, 1.05  # distance of nodes in z; in standard deviations of what is integrated over
_MOST_NODES = 101
_FINE = 0.2  # distance of nodes from which states are drawn
_STEP = 0.05  # of the table in asinh(dx / scale)
_DT_STEP = 0.1  # and in log dt, where there are many
_PER_FUNCTION, _LEAST_STATES, _STATES_OF_NETWORK = 8, 96, 256
_COARSER = 2  # times, of all of these, for an information matrix, of which few digits are wanted
_CLOSE = 0.5  # of the width of a step: the scale along dx
_SHRUNK = 2.0  # a width that has changed by so much asks for another table
_SHARES = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.1, 0.05)  # of the median size of a step: noise to begin with
_SCANNED = 10_000  # pairs, for that
_LEAST_D_O = 0.05  # of D_o, that is left of it
_ROUNDING = -30.0  # log p
_ABOVE = 1.0  # of log p, by which the exact law may exceed the highest density of diffusion
_PARTS = 2  # of the chains, for each thread


@dataclass(frozen=True)
class Chains:
    """Pairs that follow each other: (n,) states, displacements, times; chain c has the pairs begins[c] ... ends[c]."""

    x: Tensor
    dx: Tensor
    dt: Tensor
    begins: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, pairs: Transitions, period: float | None) -> Chains:
        """Pairs in their order; on a circle a pair may begin whole periods from where the last one ended."""
        periods = None if period is None else torch.tensor([period], dtype=torch.float64)
        x, dx = (v.to(torch.float64).contiguous() for v in (pairs.x, pairs.dx))
        first = ~follows(x, dx, pairs.trajectory, periods)
        begins = torch.nonzero(first).reshape(-1).numpy()
        dt = pairs.dt.to(torch.float64).expand(len(x)).contiguous()
        return cls(x, dx, dt, begins, np.append(begins[1:], len(x)))

    def __len__(self) -> int:
        return len(self.x)

    @property
    def neighbours(self) -> int:
        """Pairs that follow another one."""
        return len(self.x) - len(self.begins)

    def noise_of_steps(self) -> float:
        """The median size of a step, of which observation noise is a part."""
        return float((self.dx - self.dx.median()).abs().median())

    def undone(self) -> float:
        """s by the method of moments: minus the mean product of neighbouring steps is s^2; large steps are cut."""
        limit = 4.0 * self.noise_of_steps()
        dx = (self.dx - self.dx.median()).clamp(-limit, limit)
        second = np.ones(len(self), dtype=bool)
        second[self.begins] = False
        rows = torch.from_numpy(np.flatnonzero(second))
        return math.sqrt(max(0.0, -float((dx[rows] * dx[rows - 1]).mean()))) if len(rows) else 0.0


@dataclass
class Filtered:
    """One pass: the log-likelihood of all observations, and its slopes in theta (P,) and in log s."""

    log_p: float
    gradient: Tensor
    by_log_s: float

    @property
    def slopes(self) -> Tensor:
        """(P + 1,)"""
        return torch.cat([self.gradient, torch.tensor([self.by_log_s], dtype=torch.float64)])


@dataclass(frozen=True)
class _Rows:
    """The nodes of the table that are read: sheets of dt, rows of x, columns of dx, (N,) each."""

    sheet: Tensor
    row: Tensor
    column: Tensor
    reach: float  # the noise up to which they suffice


class NoisyLikelihood:
    """The filter of one head, which may move, on one table.

    Args:
        head: a linear head, or the tangent of another one; its parameters are read whenever it is asked.
        law: frozen, or exact for the few dt of the data.
        chains: the observations.
        reach: the largest noise that will be asked for.
        coarser: how much coarser the table and the nodes are than for a likelihood.
    """

    def __init__(
        self, head: LinearHead, law: FrozenLaw | ExactLaw, chains: Chains, reach: float, coarser: int = 1
    ) -> None:
        self.head, self.law, self.chains, self.coarser = head, law, chains, coarser
        self._grid_of_times()
        self.narrow, self.usual = self.widths()
        self._grid_of_states()
        self._grid_of_steps(reach)
        self._needed: _Rows | None = None

    # -- the table ----------------------------------------------------------------------------------------------------
    def _grid_of_times(self) -> None:
        dt, n = self.chains.dt, len(self.chains)
        values = torch.unique(dt)
        if len(values) <= MANY_STEPS:
            self.times = values
            self.sheets = torch.searchsorted(values, dt).numpy()
            self.shares = np.ones((n, 1))
            return
        logs = dt.log()
        low = float(logs.min()) - 1.5 * _DT_STEP
        at = (logs - low) / _DT_STEP
        first = at.floor() - 1
        t = (at - first - 1).numpy()
        self.times = torch.exp(low + _DT_STEP * torch.arange(int(first.max()) + 4, dtype=torch.float64))
        self.sheets = first.to(torch.int64).numpy()
        columns = (-t * (t - 1) * (t - 2) / 6, (t + 1) * (t - 1) * (t - 2) / 2)
        self.shares = np.stack([*columns, -(t + 1) * t * (t - 2) / 2, (t + 1) * t * (t - 1) / 6], axis=1)

    @torch.no_grad()
    def widths(self) -> tuple[float, float]:
        """Of a step: small ones among the observed states and lengths of a step, and a usual one."""
        chains = self.chains
        some = slice(None, None, max(1, len(chains) // 4096))
        x, dt = chains.x[some], chains.dt[some]
        c = self.head(self.head.clamped(x))
        jumps = (c.D_f * dt) ** (0.5 / c.alpha)
        width = (2 * scalar_size(c.D_o) * dt).sqrt() + jumps
        found = torch.quantile(width.expand(len(x)), torch.tensor([0.02, 0.25], dtype=torch.float64))
        return float(found[0]), float(found[1])

    @property
    def outgrown(self) -> bool:
        """Whether steps have become so much narrower or wider that the table should be another one."""
        now = self.widths()[1]
        return not self.usual / _SHRUNK < now < self.usual * _SHRUNK

    def _grid_of_states(self) -> None:
        head = self.head
        if isinstance(head, TangentHead):
            n = _STATES_OF_NETWORK
        else:
            n = max(_LEAST_STATES, _PER_FUNCTION * max(head.sizes))
        n //= self.coarser
        low, high = head.bounds[0]
        if head.is_constant:
            self.x, step, periodic = torch.tensor([low], dtype=torch.float64), math.inf, 1.0
        elif head.period is not None:
            step, periodic = (high - low) / n, 1.0
            self.x = low + step * torch.arange(n, dtype=torch.float64)
        else:
            step, periodic = (high - low) / (n - 1), 0.0
            self.x = torch.linspace(low, high, n, dtype=torch.float64)
        self.design = head.design(self.x)
        self._states = [low, step, float(len(self.x)), periodic, low, high]

    def _grid_of_steps(self, reach: float) -> None:
        scale, step = _CLOSE * self.usual, _STEP * self.coarser
        far = float(self.chains.dx.abs().max()) + 2 * (_FARTHEST + 1) * reach
        top = math.asinh(far / scale) + 3 * step
        n = 2 * math.ceil(top / step) + 1
        u = step * (torch.arange(n, dtype=torch.float64) - (n - 1) / 2)
        self.dx, self.reach = scale * torch.sinh(u), reach
        self.place = np.array([*self._states, scale, float(u[0]), step])

    def nodes(self, s: float, widest: float = _WIDEST) -> tuple[np.ndarray, np.ndarray]:
        """z (K,), and their prior weights: so close that the trapezoidal rule is exact to seven digits.

        One node where there is no noise. widest: their distance at most.
        """
        if s == 0.0:
            return np.zeros(1), np.ones(1)
        width = (1.0 + 2.0 * (s / self.narrow) ** 2) ** -0.5  # of the narrowest thing that is integrated over, in z
        closest = min(widest, width / _RESOLVED) * self.coarser**0.5
        half = min(math.ceil(_FARTHEST / closest), _MOST_NODES // 2)
        z = _FARTHEST * np.arange(-half, half + 1) / half
        weights = np.exp(-0.5 * z * z)
        return z, weights / weights.sum()

    @property
    def unresolved(self) -> float:
        """The noise beyond which nodes cannot be as close as steps are narrow."""
        closest = 2 * _FARTHEST / (_MOST_NODES - 1) * _RESOLVED
        return self.narrow * math.sqrt(0.5 * (closest**-2 - 1.0))

    def _read(self, s: float) -> _Rows:
        """The nodes of the table that are read for a noise up to s, or somewhat more."""
        if self._needed is None or not s <= self._needed.reach:
            reach = min(1.3 * s, self.reach)
            z, _ = self.nodes(reach)
            needed = np.zeros((len(self.times), len(self.x), len(self.dx)), dtype=bool)
            c = self.chains
            mark(
                c.x.numpy(), c.dx.numpy(), self.sheets, self.shares.shape[1], reach, z, len(self.dx), self.place, needed
            )
            sheet, row, column = (torch.from_numpy(v) for v in np.nonzero(needed))
            self._needed = _Rows(sheet, row, column, reach)
        return self._needed

    # -- the law on it ------------------------------------------------------------------------------------------------
    def _frozen(self, rows: _Rows) -> tuple[Tensor, Tensor, Any]:
        """log p (N,), its derivatives in the coefficients (C, N), and the chain at the rows of states."""
        head, law = self.head, self.law
        assert isinstance(law, FrozenLaw)
        chain = head.chain(head.theta.detach(), self.design)
        c = chain.coefficients
        own = c.each(lambda v: v.expand(len(self.x))[rows.row] if v.dim() else v)
        at = Coefficients(own.b, own.D_o, own.D_f, own.alpha, c.tempering)
        step = law.score(at, self.dx[rows.column], self.times[rows.sheet], wrt_alpha=head.learns_alpha)
        return step.log_p, head.layout.scores(step, at), chain

    def _table(self, rows: _Rows, log_p: Tensor) -> np.ndarray:
        table = np.zeros((len(self.times), len(self.x), len(self.dx)))
        if not bool(torch.isfinite(log_p).all()):
            raise NumericalError("log p must be finite for the filter, found values that are not; check D_o and D_f.")
        table[rows.sheet.numpy(), rows.row.numpy(), rows.column.numpy()] = log_p.detach().numpy()
        return table

    def _exact(self, rows: _Rows) -> Tensor:
        law = self.law
        assert isinstance(law, ExactLaw)
        times = self.times[rows.sheet] if len(self.times) > 1 else self.times[0]
        log_p = law.log_prob(self.head, self.x[rows.row], self.dx[rows.column], times)
        with torch.no_grad():  # diffusion alone keeps a density below that of its narrowest step
            least = float(scalar_size(self.head(self.x).D_o).min() * self.times.min())
            highest, most = float(log_p.max()), -0.5 * math.log(4.0 * math.pi * max(least, 1e-300)) + _ABOVE
        if not highest < most:
            raise NumericalError(
                f"log p of the exact law must be below {most:.3g} for these coefficients, found {highest:.3g}: its "
                "grid does not resolve them; use law=frozen, or a narrower window."
            )
        return log_p

    def _coarser_law(self) -> ExactLaw:
        """The exact law with fewer nodes for far jumps. The grid stays: small densities need it at every point."""
        assert isinstance(self.law, ExactLaw)
        law = self.law
        rules = {dt: replace(law.rule(self.head, dt), tail=TAIL_NODES) for dt in self.times.tolist()}
        return ExactLaw(law.tolerance, rules)

    def _pass(self, table: np.ndarray, s: float, weights: bool) -> tuple[float, float, np.ndarray]:
        c, (z, prior) = self.chains, self.nodes(s)
        arrays = (c.begins, c.ends, c.x.numpy(), c.dx.numpy(), self.sheets, self.shares)
        rows = self._most_rows(s, z)
        grain = max(1, len(c.begins) // (_PARTS * torch.get_num_threads()))
        self._steps = np.empty(len(c))
        more = (table, s, z, prior, self.place, rows, weights, self._steps)
        parts = in_blocks(smooth, len(c.begins), *arrays, *more, grain=grain)
        log_p, squares = sum(part[0] for part in parts), sum(part[1] for part in parts)
        return log_p, squares, sum((part[2] for part in parts[1:]), start=parts[0][2])

    def _most_rows(self, s: float, z: np.ndarray) -> int:
        c = self.chains
        return int(most_rows(c.x.numpy(), c.dx.numpy(), s, z, len(self.dx), self.place))

    # -- what is asked ------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def value(self, s: float) -> float:
        """The log-likelihood at the head as it is."""
        rows = self._read(s)
        log_p = self._exact(rows) if isinstance(self.law, ExactLaw) else self._frozen(rows)[0]
        return self._pass(self._table(rows, log_p), s, False)[0]

    def steps(self, s: float) -> Tensor:
        """log p of every observation given those before it, (n,)."""
        self.value(s)
        return torch.from_numpy(self._steps)

    @torch.no_grad()
    def drawn(self, s: float, seed: int) -> tuple[Tensor, Tensor]:
        """A path of the states, drawn given the observations: x and dx of every pair, (n,) each."""
        rows = self._read(s)
        log_p = self._exact(rows) if isinstance(self.law, ExactLaw) else self._frozen(rows)[0]
        c, (z, prior), n = self.chains, self.nodes(s, _FINE), len(self.chains)
        uniforms = np.random.default_rng(seed).random(n + len(c.begins))
        found = np.empty_like(uniforms)
        arrays = (c.begins, c.ends, c.x.numpy(), c.dx.numpy(), self.sheets, self.shares, self._table(rows, log_p))
        more = (s, z, prior, self.place, self._most_rows(s, z), uniforms, found)
        in_blocks(draw, len(c.begins), *arrays, *more, grain=1)
        chain = np.repeat(np.arange(len(c.begins)), c.ends - c.begins)
        here = np.arange(n) + chain
        begin, end = torch.from_numpy(found[here]), torch.from_numpy(found[here + 1])
        return c.x + s * begin, c.dx + s * (end - begin)

    def evaluate(self, s: float) -> Filtered:
        """With the slopes."""
        rows = self._read(s)
        index = (rows.sheet.numpy(), rows.row.numpy(), rows.column.numpy())
        if isinstance(self.law, ExactLaw):
            with torch.enable_grad():
                log_p = self._exact(rows)
            total, squares, found = self._pass(self._table(rows, log_p), s, True)
            weights = torch.from_numpy(found[index])
            (gradient,) = torch.autograd.grad(log_p, self.head.theta, weights)
            return Filtered(total, gradient.detach(), squares)
        with torch.no_grad():
            log_p, slopes, chain = self._frozen(rows)
            total, squares, found = self._pass(self._table(rows, log_p), s, True)
            weights = torch.from_numpy(found[index])
            sums = torch.zeros((len(slopes), len(self.x)), dtype=torch.float64).index_add_(
                1, rows.row, slopes * weights
            )
            return Filtered(total, self.head.gathered(to_predictors(sums, chain), self.design), squares)

    @torch.no_grad()
    def batch(self, s: float) -> Batch:
        """The pairs of nodes and their smoothed weights, which sum to the number of observed pairs."""
        rows = self._read(s)
        log_p = self._exact(rows) if isinstance(self.law, ExactLaw) else self._frozen(rows)[0]
        found = self._pass(self._table(rows, log_p), s, True)[2]
        weights = torch.from_numpy(found[rows.sheet.numpy(), rows.row.numpy(), rows.column.numpy()])
        used = weights != 0
        x, dx, dt = self.x[rows.row[used]], self.dx[rows.column[used]], self.times[rows.sheet[used]]
        return Batch(x, dx, dt[:1].expand(len(x)) if len(self.times) == 1 else dt, weights[used])

    @torch.no_grad()
    def information(self, s: float) -> tuple[Tensor, Tensor]:
        """Sum of the outer products of the scores (P + 1, P + 1), and of the scores (P + 1,), in theta and log s."""
        if self.coarser == 1:
            law = self._coarser_law() if isinstance(self.law, ExactLaw) else self.law
            return NoisyLikelihood(self.head, law, self.chains, self.reach, _COARSER).information(s)
        rows, head = self._read(s), self.head
        P = head.theta.numel()
        if isinstance(self.law, ExactLaw):
            log_p = self._exact(rows)
            fields = torch.empty((len(rows.row), P), dtype=torch.float64)
            for sheet, time in enumerate(self.times.tolist()):
                here = torch.nonzero(rows.sheet == sheet).reshape(-1)
                at = self.x[rows.row[here]], self.dx[rows.column[here]]
                slopes = self.law.scores(head, *at, time)
                # so small a density is rounding where it is a sum over the grid, and its slopes say nothing
                slopes[(log_p[here] < _ROUNDING) & (at[1].abs() < self.law.step(head, time).seam)] = 0.0
                fields[here] = slopes
            loads = np.ones((len(self.x), P, 1))
            parts = np.stack([np.arange(P), np.arange(P) + 1], axis=1)
        else:
            log_p, slopes, chain = self._frozen(rows)
            varies = chain.D_f_alpha.dim() > 0
            own = chain._replace(
                slope=chain.slope[:, rows.row] if chain.slope.shape[1] > 1 else chain.slope,
                D_f_alpha=chain.D_f_alpha.expand(len(self.x))[rows.row] if varies else chain.D_f_alpha,
            )
            fields = to_predictors(slopes, own).T.contiguous()
            parts = np.array([[head.part(c).start, head.part(c).stop] for c in range(fields.shape[1])])
            loads = np.zeros((len(self.x), fields.shape[1], max(1, int((parts[:, 1] - parts[:, 0]).max()))))
            for row, phi in enumerate(self.design):
                loads[:, row, : phi.shape[0]] = phi.T.numpy()
        table = self._table(rows, log_p)
        number = np.zeros(table.shape, dtype=np.int64)
        number[rows.sheet.numpy(), rows.row.numpy(), rows.column.numpy()] = np.arange(len(rows.row))
        c, (z, prior) = self.chains, self.nodes(s)
        arrays = (c.begins, c.ends, c.x.numpy(), c.dx.numpy(), self.sheets, self.shares)
        most, grain = self._most_rows(s, z), max(1, len(c.begins) // (4 * torch.get_num_threads()))
        more = (table, number, fields.numpy(), loads, parts, P, s, z, prior, self.place, most)
        found = in_blocks(scores, len(c.begins), *arrays, *more, grain=grain)
        outer, gradient = (sum((part[i] for part in found[1:]), start=found[0][i]) for i in (0, 1))
        return torch.from_numpy(outer), torch.from_numpy(gradient)


# -- where a fit with noise begins -------------------------------------------------------------------------------------
def with_less_D_o(head: LinearHead, s: float, dt: float) -> Tensor:
    """The parameters of a head where D_o is as much smaller as this noise has made it larger."""
    start, row = head.flat(), head.layout.row("D_o")
    part = head.part(row)
    if isinstance(head, TangentHead) or part.start == part.stop:
        return start
    x = head.grid(max(64, 4 * head.sizes[row]))
    D_o = head(x).D_o.expand(len(x))
    less = torch.maximum(D_o - s * s / dt, _LEAST_D_O * D_o)
    eta, phi = head.links[row].inverse(less / head.units.D_o), head.design(x)[row]
    ridge = 1e-6 * (phi * phi).sum(1).max() * torch.eye(phi.shape[0], dtype=torch.float64)
    start[part] = torch.linalg.solve(phi @ phi.T + ridge, phi @ eta)
    return start


@torch.no_grad()
def scan(head: LinearHead, law: FrozenLaw, chains: Chains) -> float:
    """The most likely of some s, D_o made smaller by each; moves the head to the parameters that go with it."""
    last = max(1, int((chains.ends <= max(_SCANNED, int(chains.ends[0]))).sum()))
    n, dt = int(chains.ends[last - 1]), float(chains.dt.median())
    some = Chains(chains.x[:n], chains.dx[:n], chains.dt[:n], chains.begins[:last], chains.ends[:last])
    size, begin = chains.noise_of_steps(), head.flat()
    best = (-math.inf, 0.0, begin)
    for s in sorted({*(share * size for share in _SHARES), max(chains.undone(), _SHARES[-1] * size)}, reverse=True):
        head.set_flat(begin)
        head.set_flat(with_less_D_o(head, s, dt))
        value = NoisyLikelihood(head, law, some, s).value(s)
        best = max(best, (value, s, head.flat()), key=lambda one: one[0])
    head.set_flat(best[2])
    return best[1]
