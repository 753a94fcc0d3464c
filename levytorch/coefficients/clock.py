"""A clock: covariates of a pair that multiply D_o and D_f by the same positive number f.

log f is a sum over the covariates. Each contributes a linear combination of functions of its own: a Fourier series for
a covariate with a period (the hour of the day), the covariate itself for one without (the logarithm of a volatility).
The parameters of the clock stand between those of alpha and those of the tempering, so that everything that works for
a linear head works for one with a clock: evidence, standard errors, lost tails, the simulated law.

A state is then a row of numbers, x and the covariates. For x alone the coefficients are those at the mean of f over the
data (see `Clock.reference`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from levytorch.coefficients.fourier import LinearHead
from levytorch.coefficients.head import Chain
from levytorch.coefficients.inputs import HeadOfInputs
from levytorch.coefficients.layout import Coefficients, Layout
from levytorch.convert import positive_number, real_tensor, whole_number
from levytorch.errors import InputError
from levytorch.spaces.basis import Basis, FourierBasis

MOST_FUNCTIONS = 99
_LARGEST = 30.0  # of log f, far beyond what data can tell: overflow would end a fit that tries a step too long


@dataclass(frozen=True)
class Covariate:
    """Which functions of a covariate log f is made of.

    period: of the covariate; None: a number on a line, in which log f is linear. n_functions: of log f; a constant is
    not among them, since D_o and D_f have one already.
    """

    name: str
    period: float | None = None
    n_functions: int = 1

    @classmethod
    def periodic(cls, name: str, period: Any, n_basis: Any) -> Covariate:
        """From the arguments `modulation` and `n_modulation` of a user."""
        remedy = "give the period of the covariate, 24 for hours of the day"
        found = positive_number("modulation", period, remedy)
        return cls(name, found, whole_number("n_modulation", n_basis, 2, MOST_FUNCTIONS, "9 is the default") - 1)

    def functions(self, c: Tensor) -> Tensor:
        """The functions at values of the covariate: (n,) -> (n_functions, n)."""
        if self.period is None:
            return c.unsqueeze(0)
        return FourierBasis(self.n_functions + 1, self.period).rows(c)[1:]


@dataclass(frozen=True)
class Clock:
    """log f(c) as a linear function of the parameters gamma.

    centers: (K,) subtracted from the functions: their means over the data that were fitted. log_mean, slopes: the
    logarithm of the mean of f over these data at the fitted gamma, and its derivative in gamma (K,); both are zero for
    covariates that have f = 1 where their functions have their mean.
    """

    covariates: tuple[Covariate, ...]
    centers: tuple[float, ...]
    log_mean: float = 0.0
    slopes: tuple[float, ...] = ()
    fitted: tuple[float, ...] = ()

    @classmethod
    def of(cls, covariates: Sequence[Covariate], inputs: Tensor) -> Clock:
        """The clock of covariates whose values in the data are the columns of `inputs`, (n, number of covariates)."""
        plain = cls(tuple(covariates), (0.0,) * sum(one.n_functions for one in covariates))
        return replace(plain, centers=tuple(plain.functions(inputs).mean(1).tolist()))

    @property
    def size(self) -> int:
        """Number of parameters."""
        return len(self.centers)

    def functions(self, inputs: Tensor) -> Tensor:
        """The functions of log f at inputs (n, number of covariates): (K, n)."""
        rows = torch.cat([one.functions(c) for one, c in zip(self.covariates, inputs.T)])
        return rows - torch.tensor(self.centers, dtype=torch.float64).unsqueeze(1)

    def reference(self, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """log f of a state that is given without covariates, and its derivative in gamma."""
        if not self.slopes:
            return gamma.new_zeros(()), torch.zeros_like(gamma)
        slopes, fitted = (torch.tensor(v, dtype=torch.float64) for v in (self.slopes, self.fitted))
        return self.log_mean + (gamma - fitted) @ slopes, slopes

    def referring_to(self, gamma: Tensor, inputs: Tensor) -> Clock:
        """The same clock with the mean of f over these inputs as that of a state without covariates.

        Covariates without a period keep f = 1 at the mean of their values.
        """
        if all(one.period is None for one in self.covariates):
            return self
        rows = self.functions(inputs)
        periodic = torch.cat([torch.full((one.n_functions,), one.period is not None) for one in self.covariates])
        rows = rows * periodic.to(torch.float64).unsqueeze(1)
        log_f = gamma @ rows
        log_mean = float(torch.logsumexp(log_f, 0)) - math.log(len(log_f))
        slopes = rows @ (log_f - log_mean).exp() / len(log_f)
        return replace(self, log_mean=log_mean, slopes=tuple(slopes.tolist()), fitted=tuple(gamma.tolist()))

    def plain(self) -> dict[str, Any]:
        """As numbers and lists, for a file."""
        covariates = [[one.name, one.period, one.n_functions] for one in self.covariates]
        numbers = {name: list(getattr(self, name)) for name in ("centers", "slopes", "fitted")}
        return {"covariates": covariates, "log_mean": self.log_mean, **numbers}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Clock:
        """The inverse of `plain`; refuses what does not go together."""
        covariates = tuple(
            Covariate(str(name), None if period is None else positive_number("period", period, "fit again"), n)
            for name, period, n in plain["covariates"]
        )
        sizes = [whole_number("functions of a covariate", one.n_functions, 1, MOST_FUNCTIONS) for one in covariates]
        if any(one.period is None and one.n_functions > 1 for one in covariates):
            raise InputError("a covariate without a period must have one function, found more; fit again.")
        tensors = [real_tensor(name, plain[name]) for name in ("centers", "slopes", "fitted")]
        log_mean = float(plain["log_mean"])
        sound = all(
            t.ndim == 1 and len(t) in allowed for t, allowed in zip(tensors, ((sum(sizes),), *[(0, sum(sizes))] * 2))
        )
        if not sound or not all(bool(torch.isfinite(t).all()) for t in tensors) or not math.isfinite(log_mean):
            raise InputError("the parts of a clock must belong together, found parts of different fits; fit again.")
        centers, slopes, fitted = (tuple(t.tolist()) for t in tensors)
        return cls(covariates, centers, log_mean, slopes, fitted)


class ClockBasis:
    """The functions of log f as the basis of a predictor; they are not smoothed."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    @property
    def size(self) -> int:
        """Number of functions."""
        return self.clock.size

    def rows(self, x: Tensor) -> Tensor:
        """Functions at inputs: (n, number of covariates) -> (size, n)."""
        return self.clock.functions(x)

    def harmonic_numbers(self) -> Tensor:
        """Zeros: a roughness penalty leaves them free."""
        return torch.zeros(self.size, dtype=torch.float64)

    def in_units(self, length: float) -> ClockBasis:
        """The same: covariates keep their own units."""
        return self


class ClockedHead(HeadOfInputs):
    """A linear head whose D_o and D_f are multiplied by f(covariates): states are rows (x, covariates).

    At x alone, without covariates, `forward` and `jacobian` give the coefficients at the reference of the clock.
    """

    def __init__(self, of_states: LinearHead, clock: Clock) -> None:
        self.clock = clock
        super().__init__(of_states, len(clock.covariates))
        self.set_flat(self.with_clock(of_states.flat(), torch.zeros(clock.size, dtype=torch.float64)))

    # -- structure ----------------------------------------------------------------------------------------------------
    @property
    def layout(self) -> Layout:
        return replace(super().layout, clock=True)

    @property
    def clock_row(self) -> int:  # type: ignore[override]
        """The number of the predictor log f."""
        return self.layout.row("clock")

    @property
    def bases(self) -> list[Basis]:
        return self.in_rows(super().bases, ClockBasis(self.clock))

    def in_rows(self, plain: list[Any], of_clock: Any) -> list[Any]:
        """What there is of every predictor, from a list without that of the clock."""
        row = self.clock_row
        return [*plain[:row], of_clock, *plain[row:]]

    @property
    def is_constant(self) -> bool:
        return max(size for row, size in enumerate(self.sizes) if row != self.clock_row) == 1

    @property
    def gamma(self) -> Tensor:
        """The parameters of the clock, (K,)."""
        return self.theta[self.part(self.clock_row)]

    def with_clock(self, theta: Tensor, gamma: Tensor) -> Tensor:
        """All parameters, from those of the head of x alone and those of the clock."""
        at = self.starts[self.clock_row]
        return torch.cat([theta[:at], gamma, theta[at:]])

    def without_clock(self) -> tuple[LinearHead, Tensor]:
        """The head of x alone at f = 1, with its own copy of the parameters; which of the parameters these are."""
        kept = torch.ones(self.theta.numel(), dtype=torch.bool)
        kept[self.part(self.clock_row)] = False
        out = self.state_head()
        out.theta = nn.Parameter(self.theta.detach()[kept].clone())
        return out, kept

    def config(self) -> dict[str, Any]:
        return {**self.without_clock()[0].config(), "clock": self.clock.plain()}

    # -- evaluation ---------------------------------------------------------------------------------------------------
    def _log_f(self, gamma: Tensor, inputs: Tensor | None) -> tuple[Tensor, Tensor]:
        """log f, (n,) or 0-d, and its derivatives in gamma (K, n) or (K, 1)."""
        if inputs is None:
            log_f, slopes = self.clock.reference(gamma)
            return log_f, slopes.unsqueeze(1)
        rows = self.clock.functions(inputs)
        return (gamma @ rows).clamp(-_LARGEST, _LARGEST), rows

    def forward(self, x: Tensor) -> Coefficients:
        states, inputs = self.parts(x)
        c = super().forward(states)
        f = self._log_f(self.gamma, inputs)[0].exp()
        return times(c, f)

    def design(self, x: Tensor) -> list[Tensor]:
        states, inputs = self.parts(x)
        none = torch.zeros((self.clock.size, states.shape[0]), dtype=torch.float64)
        return self.in_rows(super().design(states), none if inputs is None else self.clock.functions(inputs))

    def chain(self, theta: Tensor, design: Sequence[Tensor], row: int | None = None, change: Any = 0.0) -> Chain:
        at, layout = self.clock_row, self.layout
        log_f = theta[self.part(at)] @ design[at]
        plain = super().chain(theta, design, None if row == at else row, change)
        f = ((log_f + change) if row == at else log_f).clamp(-_LARGEST, _LARGEST).exp()
        of_D_o, power = layout.rows("D_o"), f**layout.noise.power
        for table in (plain.slope, plain.curvature):
            table[of_D_o] *= power
            table[layout.row("D_f")] *= f
        plain.slope[at] = 1.0  # the score of log f is put together from those of D_o and D_f
        c = plain.coefficients
        by_alpha = plain.D_f_alpha * f if plain.D_f_alpha.dim() else plain.D_f_alpha
        return plain._replace(coefficients=times(c, f, layout.noise_rows(c) * power), D_f_alpha=by_alpha)

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        states, inputs = self.parts(self.states(x))
        b, D_o, D_f, alpha = super().jacobian(states)
        with torch.no_grad():
            log_f, rows = self._log_f(self.gamma, inputs)
            c = super().forward(states)
        f, part = log_f.exp(), self.part(self.clock_row)
        out = []
        for J, value in ((D_o, c.D_o), (D_f, c.D_f)):
            by_state = [-1, *[1] * (value.dim() - 1)]
            J = J * f.reshape(*by_state, 1)
            by_gamma = rows.T.reshape(-1, *by_state[1:], rows.shape[0])
            J[..., part] = (value * f.reshape(by_state)).unsqueeze(-1) * by_gamma
            out.append(J)
        return b, out[0], out[1], alpha


def times(c: Coefficients, f: Tensor, noise_rows: Tensor | None = None) -> Coefficients:
    """Coefficients with D_o and D_f multiplied by f, (n,) or 0-d."""
    of_D_o = f.reshape(-1, *[1] * (c.D_o.dim() - 1)) if f.dim() else f
    return Coefficients(c.b, c.D_o * of_D_o, c.D_f * f, c.alpha, c.tempering, noise_rows)


@dataclass
class Modulation:
    """f(c) of one covariate, with its standard error, divided by its mean over the data that were fitted.

    gamma: (K,) parameters; covariance: (K, K) of them, or None.
    """

    clock: Clock
    gamma: Tensor
    covariance: Tensor | None
    number: int = 0

    @property
    def covariate(self) -> Covariate:
        """The covariate of which this is a function."""
        return self.clock.covariates[self.number]

    @property
    def period(self) -> float | None:
        """Of the covariate."""
        return self.covariate.period

    @property
    def part(self) -> slice:
        """Its parameters among those of the clock."""
        sizes = [one.n_functions for one in self.clock.covariates]
        return slice(sum(sizes[: self.number]), sum(sizes[: self.number + 1]))

    def __call__(self, c: Any) -> Tensor:
        """f at c."""
        at = real_tensor("covariate", c)
        log_f, _ = self._log_f(at)
        return log_f.exp().reshape(at.shape)

    def std(self, c: Any) -> Tensor:
        """Standard error of f at c."""
        at = real_tensor("covariate", c)
        if self.covariance is None:
            raise InputError(
                "the recovery must have a covariance for standard errors, found none; fit with a full-batch engine."
            )
        rows = self._log_f(at)[1].T
        error = ((rows @ self.covariance[self.part, self.part]) * rows).sum(-1).clamp(min=0.0).sqrt()
        return self(at) * error.reshape(at.shape)

    def plain(self) -> dict[str, Any]:
        """As numbers and lists, for metrics."""
        part = self.part
        shifted = [center + slope for center, slope in zip(self.clock.centers[part], self.clock.slopes[part])]
        shift = float(self.gamma[part] @ torch.tensor(self.clock.centers[part], dtype=torch.float64))
        covariance = None if self.covariance is None else self.covariance[part, part].tolist()
        numbers = {"theta": self.gamma[part].tolist(), "covariance": covariance, "centers": shifted}
        return {"period": self.period, "log_mean": self.clock.log_mean + shift, **numbers}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Modulation:
        """The inverse of `plain`."""
        theta, slopes = (tuple(float(v) for v in plain[name]) for name in ("theta", "centers"))
        covariate = Covariate("covariate", float(plain["period"]), len(theta))
        clock = Clock((covariate,), (0.0,) * len(theta), float(plain["log_mean"]), slopes, theta)
        covariance = plain["covariance"]
        own = None if covariance is None else torch.tensor(covariance, dtype=torch.float64)
        return cls(clock, torch.tensor(theta, dtype=torch.float64), own)

    def _log_f(self, c: Tensor) -> tuple[Tensor, Tensor]:
        part = self.part
        centers = torch.tensor(self.clock.centers[part], dtype=torch.float64).unsqueeze(1)
        rows, gamma = self.covariate.functions(c.reshape(-1)) - centers, self.gamma[part]
        if self.period is None or not self.clock.slopes:
            return gamma @ rows, rows
        slopes, fitted = (torch.tensor(v[part], dtype=torch.float64) for v in (self.clock.slopes, self.clock.fitted))
        return gamma @ rows - self.clock.log_mean - (gamma - fitted) @ slopes, rows - slopes.unsqueeze(1)
