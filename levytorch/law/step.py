"""The law of one step as a torch distribution; its samples are those of `jumps`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from levytorch.convert import real_tensor, shown, whole_number
from levytorch.errors import InputError
from levytorch.law.arguments import (
    Numeric,
    broadcast,
    check_dim,
    check_method,
    check_tempered_method,
    check_values,
    check_vector,
    to_tensors,
)
from levytorch.law.autograd import log_density
from levytorch.law.jumps import LOG_LARGEST, isotropic_stable, symmetric_stable, tempered_time
from levytorch.law.tails import survival


class LevyStep(Distribution):
    """Law of the displacement dx over a time dt: b dt + Gaussian of variance 2 D_o dt + stable of scale D_f dt.

    With tempering lam > 0 the stable part's jumps beyond 1 / lam are exponentially rare, and all moments exist.

    Batch shape: the broadcast of the arguments (for dim > 1 without the last axis of b). Event shape: () or (dim,).

    Example:
        >>> step = LevyStep(b=5.0, D_o=4.0, D_f=3.0, alpha=0.3, dt=1 / 40)
        >>> step.log_prob(torch.tensor(0.5, dtype=torch.float64))
        tensor(-0.5410, dtype=torch.float64)
    """

    arg_constraints = {  # noqa: RUF012
        "D_o": constraints.nonnegative,
        "D_f": constraints.positive,
        "alpha": constraints.unit_interval,
        "dt": constraints.positive,
        "tempering": constraints.nonnegative,
    }
    has_rsample = False

    def __init__(
        self,
        b: Numeric,
        D_o: Numeric,
        D_f: Numeric,
        alpha: Numeric,
        dt: Numeric,
        dim: int = 1,
        tempering: Numeric = 0.0,
        *,
        method: str = "auto",
        validate_args: bool | None = None,
    ) -> None:
        check_dim(dim)
        check_method(method)
        names = dict(b=b, D_o=D_o, D_f=D_f, alpha=alpha, dt=dt, tempering=tempering)
        given, self._dtype, _ = to_tensors(**names)
        check_values(**given)
        drift = given["b"]
        if dim > 1:
            drift = drift.expand(dim) if drift.dim() == 0 else drift
            check_vector("b", drift, dim)
            given["b"] = drift[..., 0]
        broadcast(**given)
        rest = torch.broadcast_tensors(*given.values())
        self.b = rest[0] if dim == 1 else drift.expand(*rest[0].shape, dim)
        self.D_o, self.D_f, self.alpha, self.dt, self.tempering = rest[1:]
        # kept unexpanded, so that one shared alpha stays recognisable as one
        self._alpha = given["alpha"] if given["alpha"].numel() == 1 else self.alpha
        self._tempered = given["tempering"].requires_grad or bool((given["tempering"] > 0).any())
        if self._tempered:
            check_tempered_method(method)
        self.dim, self.method = dim, method
        event = torch.Size((dim,)) if dim > 1 else torch.Size()
        super().__init__(self.D_o.shape, event, validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> Any:
        return constraints.real_vector if self.dim > 1 else constraints.real

    def expand(self, batch_shape: Any, _instance: Distribution | None = None) -> LevyStep:
        new = self._get_checked_instance(LevyStep, _instance)
        shape = _shape("batch_shape", batch_shape)
        try:
            torch.broadcast_to(self.D_o, shape)
        except RuntimeError:
            raise InputError(
                f"batch_shape must be one that {tuple(self.batch_shape)} expands to, found {tuple(shape)}; lead with "
                "new axes."
            ) from None
        new.b = self.b.expand((*shape, *self.event_shape))
        for name in ("D_o", "D_f", "alpha", "dt", "tempering"):
            setattr(new, name, getattr(self, name).expand(shape))
        new._alpha = self._alpha if self._alpha.numel() == 1 else new.alpha
        new.dim, new.method, new._dtype, new._tempered = self.dim, self.method, self._dtype, self._tempered
        super(LevyStep, new).__init__(shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _of_vectors(self, t: Tensor) -> Tensor:
        """What broadcasts with vectors, from one number for each of them."""
        return t if self.dim == 1 else t.unsqueeze(-1)

    @property
    def mean(self) -> Tensor:
        """b dt where it exists (2 alpha > 1, or tempered), else NaN."""
        exists = (self.alpha > 0.5) | (self.tempering > 0)
        return torch.where(self._of_vectors(exists), self.b * self._of_vectors(self.dt), math.nan)

    @property
    def variance(self) -> Tensor:
        """Of each component: infinite unless tempered."""
        lam = torch.where(self.tempering > 0, self.tempering, 1.0)
        jumps = 2.0 * self.alpha * self.D_f * lam ** (2.0 * self.alpha - 2.0)
        out = torch.where(self.tempering > 0, (2.0 * self.D_o + jumps) * self.dt, math.inf)
        return out if self.dim == 1 else out.unsqueeze(-1).expand_as(self.b)

    def log_prob(self, value: Numeric) -> Tensor:
        value = self._value(value)
        law = self.b, self.D_o, self.D_f, self._alpha, self.dt
        return log_density(
            value, *law, dim=self.dim, method=self.method, tempering=self.tempering if self._tempered else 0.0
        )

    def cdf(self, value: Numeric) -> Tensor:
        """P(dx <= value), one dimension only; tiny values keep their digits."""
        if self.dim != 1:
            raise InputError(f"dim must be 1 for cdf, found {self.dim}; use tail_probability.")
        value = self._value(value)
        u = self.b * self.dt - value.to(torch.float64)
        lam = self.tempering if self._tempered else None
        return survival(u, self.D_o * self.dt, self.D_f * self.dt, self.alpha, lam).to(value.dtype)

    def _value(self, value: Numeric) -> Tensor:
        """A displacement as a tensor that fits the batch; its dtype is that of the answer."""
        at = value if isinstance(value, Tensor) and value.is_floating_point() else real_tensor("value", value)
        real_tensor("value", at)
        if self.dim > 1:
            check_vector("value", at, self.dim)
        broadcast(value=at if self.dim == 1 else at[..., 0], parameters=self.D_o)
        if self._validate_args:
            check_values(value=at)
        return at

    @torch.no_grad()
    def sample(self, sample_shape: Any = torch.Size(), *, generator: torch.Generator | None = None) -> Tensor:  # noqa: B008
        shape = _shape("sample_shape", sample_shape) + self.batch_shape
        alpha, dt = self.alpha.expand(shape), self.dt
        jump, width = None, 2.0 * self.D_o * dt
        if self._tempered:
            time = tempered_time(alpha, (self.D_f * dt).expand(shape), self.tempering.expand(shape), generator)
            width = 2.0 * (self.D_o * dt + time)
        else:
            jump = symmetric_stable(alpha, generator) if self.dim == 1 else isotropic_stable(alpha, self.dim, generator)
        event = (*shape, *self.event_shape)
        gauss = torch.randn(event, generator=generator, dtype=torch.float64, device=alpha.device)
        out = self.b * self._of_vectors(dt) + self._of_vectors(torch.sqrt(width)) * gauss
        if jump is not None:
            scale = torch.exp((torch.log(self.D_f * dt) / (2.0 * self.alpha)).clamp(-LOG_LARGEST, LOG_LARGEST))
            out = out + self._of_vectors(scale) * jump
        return out.to(self._dtype)


def _shape(name: str, given: Any) -> torch.Size:
    """A shape from a tuple, a list or a torch.Size of integers >= 0."""
    if not isinstance(given, (tuple, list)):
        raise InputError(f"{name} must be a tuple of integers, found {shown(given)}; pass (n,) for n of them.")
    return torch.Size([whole_number(f"an entry of {name}", n, 0) for n in given])
