"""The law of one step as a torch distribution; its samples are those of `jumps`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from levytorch.convert import common_shape, real_tensor, shown, whole_number
from levytorch.errors import InputError
from levytorch.law.arguments import (
    CONDITIONS,
    Numeric,
    Step,
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

_WIDENINGS, _HALVINGS = 12, 64  # of an interval of log u
_NODES = (1025, 2049, 4097, 8193, 16385, 32769)  # of the quadrature of the entropy


class LevyStep(Distribution):
    """The law of the displacement over a time dt as a `torch.distributions.Distribution`.

    The displacement is b dt, plus a Gaussian of variance 2 D_o dt, plus a stable variable of scale D_f dt. With
    tempering lam > 0, jumps larger than 1 / lam are exponentially rare and all moments exist.

    Args:
        b, D_o, D_f, alpha, dt: as in `log_density`; they broadcast.
        dim: number of coordinates.
        tempering: as in `log_density`.
        method: how the density is computed, as in `log_density`.
        validate_args: False checks nothing, so that parameters which make no sense give NaN.

    Batch shape: the broadcast of the arguments (for dim > 1 without the last axis of b and the last two of a matrix
    D_o). Event shape: () or (dim,). Everything is computed in float64 and returned in the dtype of the tensors given.
    For Pyro use `levytorch.pyro.LevyStep`.

    Samples can be differentiated (`rsample`) in all parameters of the stable law, and in b and D_o of the tempered one,
    whose jumps are drawn by rejection; `has_rsample` says whether that covers the parameters that need a gradient.

    Example:
        >>> step = LevyStep(b=5.0, D_o=4.0, D_f=3.0, alpha=0.3, dt=1 / 40)
        >>> step.log_prob(torch.tensor(0.5, dtype=torch.float64))
        tensor(-0.5410, dtype=torch.float64)
        >>> step.icdf(step.cdf(0.5))
        tensor(0.5000, dtype=torch.float64)
    """

    arg_constraints = {  # noqa: RUF012
        "D_o": constraints.nonnegative,
        "D_f": constraints.positive,
        "alpha": constraints.unit_interval,
        "dt": constraints.positive,
        "tempering": constraints.nonnegative,
    }
    has_rsample = True

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
        given, self._dtype, self._device = to_tensors(**names)
        self._plain = not any(isinstance(v, Tensor) and v.is_floating_point() for v in names.values())
        checked = self._validate_args if validate_args is None else validate_args
        drift, ordinary = given["b"], given["D_o"]
        self._matrix = False  # whether D_o is one
        if dim > 1:
            from levytorch.law.several import check_matrix, is_matrix

            drift = drift.expand(dim) if drift.dim() == 0 else drift
            check_vector("b", drift, dim)
            given["b"] = drift[..., 0]
            others = common_shape(*(t.shape for name, t in given.items() if name != "D_o"))
            self._matrix = is_matrix(ordinary, dim, others)
            if self._matrix:
                given["D_o"] = ordinary[..., 0, 0]
        if checked:
            if self._matrix:
                check_matrix(ordinary)
            check_values(**given | {"b": drift})
        broadcast(**given)
        rest = torch.broadcast_tensors(*given.values())
        self.b = rest[0] if dim == 1 else drift.expand(*rest[0].shape, dim)
        self.D_o, self.D_f, self.alpha, self.dt, self.tempering = rest[1:]
        if self._matrix:
            self.D_o = ordinary.expand(*rest[0].shape, dim, dim)
        # kept unexpanded, so that one shared alpha stays recognisable as one
        self._alpha = given["alpha"] if given["alpha"].numel() == 1 else self.alpha
        self._tempered = given["tempering"].requires_grad or bool((given["tempering"] > 0).any())
        if self._tempered:
            check_tempered_method(method)
            self.has_rsample = not any(given[name].requires_grad for name in ("D_f", "alpha", "dt", "tempering"))
        self.dim, self.method = dim, method
        event = torch.Size((dim,)) if dim > 1 else torch.Size()
        super().__init__(self.D_f.shape, event, validate_args=False)  # whose constraints say less than check_values
        if validate_args is not None:
            self._validate_args = validate_args
        else:
            del self._validate_args  # that of the class, which Distribution.set_default_validate_args changes

    @constraints.dependent_property
    def support(self) -> Any:
        return constraints.real_vector if self.dim > 1 else constraints.real

    def __repr__(self) -> str:
        def text(values: Tensor) -> str:
            flat = values.detach().reshape(-1)
            alike = flat.numel() > 0 and bool((flat == flat[0]).all()) and self.dim == 1
            return f"{float(flat[0]):g}" if alike else f"tensor{tuple(values.shape)}"

        names = ("b", "D_o", "D_f", "alpha", "dt", *(("tempering",) if self._tempered else ()))
        said = [f"{name}={text(getattr(self, name))}" for name in names]
        said += [f"dim={self.dim}"] if self.dim > 1 else []
        said += [f"method={self.method!r}"] if self.method != "auto" else []
        said += [f"batch_shape={tuple(self.batch_shape)}"] if self.batch_shape else []
        return f"{type(self).__name__}({', '.join(said)})"

    def expand(self, batch_shape: Any, _instance: Distribution | None = None) -> LevyStep:
        new: LevyStep = self._get_checked_instance(LevyStep, _instance)
        shape = _shape("batch_shape", batch_shape)
        try:
            torch.broadcast_to(self.D_f, shape)
        except RuntimeError:
            raise InputError(
                f"batch_shape must be one that {tuple(self.batch_shape)} expands to, found {tuple(shape)}; lead with "
                "new axes."
            ) from None
        new.b = self.b.expand((*shape, *self.event_shape))
        for name in ("D_f", "alpha", "dt", "tempering"):
            setattr(new, name, getattr(self, name).expand(shape))
        new._matrix, new.D_o = self._matrix, self.D_o.expand((*shape, *(self.event_shape * 2 if self._matrix else ())))
        new._alpha = self._alpha if self._alpha.numel() == 1 else new.alpha
        for name in ("dim", "method", "_dtype", "_device", "_plain", "_tempered", "has_rsample"):
            setattr(new, name, getattr(self, name))
        super(LevyStep, new).__init__(shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _of_vectors(self, t: Tensor) -> Tensor:
        """What broadcasts with vectors, from one number for each of them."""
        return t if self.dim == 1 else t.unsqueeze(-1)

    def _answer(self, out: Tensor, value: Any = None) -> Tensor:
        """In the dtype and on the device of what was given: of a value, where the parameters are plain numbers."""
        dtype, device = self._dtype, self._device
        if isinstance(value, Tensor) and value.is_floating_point():
            dtype = value.dtype if self._plain else torch.promote_types(dtype, value.dtype)
            device = value.device if value.device.type != "cpu" else device
        return out.to(device, dtype)

    @property
    def mean(self) -> Tensor:
        """b dt where it exists (2 alpha > 1, or tempered), else NaN."""
        exists = (self.alpha > 0.5) | (self.tempering > 0)
        return self._answer(torch.where(self._of_vectors(exists), self.b * self._of_vectors(self.dt), math.nan))

    @property
    def variance(self) -> Tensor:
        """Of each component: infinite unless tempered."""
        lam = torch.where(self.tempering > 0, self.tempering, 1.0)
        jumps = 2.0 * self.alpha * self.D_f * lam ** (2.0 * self.alpha - 2.0)
        ordinary = self.D_o.diagonal(dim1=-2, dim2=-1) if self._matrix else self._of_vectors(self.D_o)
        out = (2.0 * ordinary + self._of_vectors(jumps)) * self._of_vectors(self.dt)
        return self._answer(torch.where(self._of_vectors(self.tempering > 0), out, math.inf).expand_as(self.b))

    def log_prob(self, value: Numeric) -> Tensor:
        """log p of displacements; differentiable in them and in the parameters."""
        at = self._value(value)
        b, D_o, D_f, alpha, dt, lam, wrong = self._sound(at)
        if self.dim > 1:
            from levytorch.law import several

            step = Step(at.to(torch.float64), b, D_o, D_f, alpha, dt, lam if self._tempered else None)
            out = several.log_density(step, self.dim, self._matrix)
        else:
            tempering = lam if self._tempered else 0.0
            out = log_density(at.to(torch.float64), b, D_o, D_f, alpha, dt, method=self.method, tempering=tempering)
        return self._answer(out if wrong is None else torch.where(wrong, math.nan, out), value)

    def cdf(self, value: Numeric) -> Tensor:
        """P(dx <= value), one dimension only; tiny values keep their digits."""
        self._in_one_dimension("cdf", "use tail_probability")
        at = self._value(value)
        return self._answer(self._below(at.to(torch.float64)), value)

    def _below(self, value: Tensor) -> Tensor:
        b, D_o, D_f, _, dt, lam, wrong = self._sound(value)
        alpha = self.alpha if wrong is None else torch.where(wrong, 0.5, self.alpha)
        out = survival(b * dt - value, D_o * dt, D_f * dt, alpha, lam if self._tempered else None)
        return out if wrong is None else torch.where(wrong, math.nan, out)

    def icdf(self, value: Numeric) -> Tensor:
        """The dx with P(dx <= it) = value, one dimension only; differentiable like cdf, to about 1e-12 of its distance
        from the center.
        """
        self._in_one_dimension("icdf", "sample instead")
        p = self._value(value).to(torch.float64)
        if self._validate_args and not bool(((p >= 0) & (p <= 1)).all()):
            raise InputError(f"value must lie in [0, 1] for icdf, found {shown(value)}; pass probabilities.")
        shape = torch.broadcast_shapes(p.shape, self.batch_shape)
        with torch.no_grad():
            center = (self.b * self.dt).expand(shape)
            tail = torch.minimum(p, 1.0 - p).expand(shape)
            u = torch.exp(self._log_distance(center, tail))
            found = torch.where(p < 0.5, center - u, center + u)
            found = torch.where(p == 0.5, center, found)
            ends = torch.where(p == 0, -math.inf, torch.where(p == 1, math.inf, found))
            ends = torch.where((p >= 0) & (p <= 1) & ~self._below(center).isnan(), ends, math.nan)
        parameters = (self.b, self.D_o, self.D_f, self.alpha, self.dt, self.tempering, p)
        if torch.is_grad_enabled() and any(t.requires_grad for t in parameters):
            inner = torch.isfinite(ends)
            at = torch.where(inner, ends, center)
            density = torch.exp(self.log_prob(at)).detach().to(torch.float64)
            moved = (p - self._below(at)) / density  # zero but for rounding, and with the derivative of the inverse
            ends = torch.where(inner, ends + moved - moved.detach(), ends)
        return self._answer(ends, value)

    def _log_distance(self, center: Tensor, tail: Tensor) -> Tensor:
        """log u with P(dx < center - u) = tail, for tails between 0 and 1/2, by Newton's method within a bracket."""

        def above(v: Tensor) -> Tensor:
            return self._below(center - torch.exp(v))

        start = self._log_width().expand(tail.shape)
        low, high, width = start, start, 2.0
        for _ in range(_WIDENINGS):
            far, near = above(high) > tail, above(low) < tail
            if not bool((far | near).any()):
                break
            high = torch.where(far, high + width, high).clamp(max=LOG_LARGEST)
            low = torch.where(near, low - width, low).clamp(min=-LOG_LARGEST)
            width *= 2.0
        v = 0.5 * (low + high)
        for _ in range(_HALVINGS):
            mass = above(v)
            low, high = torch.where(mass > tail, v, low), torch.where(mass > tail, high, v)
            slope = torch.exp(self.log_prob(center - torch.exp(v)).to(torch.float64) + v) / mass
            moved = v + (torch.log(mass) - torch.log(tail)) / slope
            moved = torch.where((moved > low) & (moved < high), moved, 0.5 * (low + high))
            still = ((moved - v).abs() <= 1e-13) | ~torch.isfinite(moved) | (tail == 0) | (tail == 0.5)
            v = torch.where(torch.isfinite(moved), moved, v)
            if bool(still.all()):
                break
        return v

    def _log_width(self) -> Tensor:
        """log of the wider of the two parts of the law."""
        gauss = 0.5 * torch.log((2.0 * self.D_o * self.dt).clamp_min(1e-300))
        jumps = torch.log(self.D_f * self.dt) / (2.0 * self.alpha)
        return torch.where(self.D_o > 0, torch.maximum(gauss, jumps), jumps).nan_to_num(0.0).clamp(-600.0, 600.0)

    def entropy(self) -> Tensor:
        """-E log p, by quadrature over the distance r from the center; differentiable like log_prob.

        In v = log r the integrand falls off exponentially on both sides, so that the trapezoidal rule converges fast:
        steps are halved until the sum changes by less than 1e-10.
        """
        last: Tensor | None = None
        for n in _NODES:
            found = self._entropy(n)
            if last is not None and bool(((found - last).abs() <= 1e-10 * (1.0 + found.abs())).all()):
                break
            last = found.detach()
        return self._answer(found)

    def _entropy(self, n: int) -> Tensor:
        with torch.no_grad():
            widest = self._log_width()
            low, high = widest - 40.0 / self.dim, (widest + 20.0 / self.alpha).clamp(max=LOG_LARGEST / 2)
            v = low + (high - low) * torch.linspace(0.0, 1.0, n, dtype=torch.float64).reshape(-1, *[1] * low.dim())
            step = (high - low) / (n - 1)
        r = torch.exp(v)
        away = r if self.dim == 1 else r.unsqueeze(-1) * torch.eye(self.dim, dtype=torch.float64)[0]
        center = self.b * self._of_vectors(self.dt)
        law = (self.b, self.D_o, self.D_f, self._alpha, self.dt)
        tempering = self.tempering if self._tempered else 0.0
        log_p = log_density(center + away, *law, dim=self.dim, method="contour", tempering=tempering)
        surface = math.log(2.0 * math.pi ** (self.dim / 2) / math.gamma(self.dim / 2))
        weight = torch.exp(log_p + surface + self.dim * v)
        mean: Tensor = torch.where(weight > 0, weight * log_p, 0.0).sum(0) * step
        return -mean

    def _in_one_dimension(self, name: str, remedy: str) -> None:
        if self.dim != 1:
            raise InputError(f"dim must be 1 for {name}, found {self.dim}; {remedy}.")

    def _sound(self, value: Tensor) -> tuple[Any, ...]:
        """b, D_o, D_f, alpha, dt and tempering; where nothing was checked, others in place of those that make no sense,
        and where that is.
        """
        parts = (self.b, self.D_o, self.D_f, self._alpha, self.dt, self.tempering)
        if self._validate_args:
            return *parts, None
        names = ("D_o", "D_f", "alpha", "dt", "tempering")
        good = [CONDITIONS[name][1](getattr(self, name).detach()) for name in names[1:]]
        if self._matrix:
            from levytorch.law.several import positive

            good.insert(0, positive(self.D_o))
        else:
            good.insert(0, CONDITIONS["D_o"][1](self.D_o.detach()))
        drift, at = torch.isfinite(self.b), torch.isfinite(value.detach())
        if self.dim > 1:
            drift, at = drift.all(-1), at.all(-1)
        wrong = ~torch.stack([*good, drift]).all(0)
        if not bool(wrong.any()) and bool(at.all()):
            return *parts, None
        if not bool(at.all()):
            raise InputError("value must be finite, found NaN or infinity; remove such values.")
        safe = {name: torch.where(wrong, 0.5, getattr(self, name)) for name in names[1:]}
        if self._matrix:
            safe["D_o"] = torch.where(wrong[..., None, None], torch.eye(self.dim, dtype=torch.float64), self.D_o)
        else:
            safe["D_o"] = torch.where(wrong, 0.5, self.D_o)
        b = torch.where(self._of_vectors(wrong), 0.0, self.b)
        return b, *(safe[name] for name in names), wrong

    def _value(self, value: Numeric) -> Tensor:
        """A displacement as a tensor that fits the batch."""
        at = value if isinstance(value, Tensor) and value.is_floating_point() else real_tensor("value", value)
        real_tensor("value", at)
        if self.dim > 1:
            check_vector("value", at, self.dim)
        broadcast(value=at if self.dim == 1 else at[..., 0], parameters=self.D_f)
        if self._validate_args:
            check_values(value=at)
        return at.cpu()

    @torch.no_grad()
    def sample(self, sample_shape: Any = torch.Size(), *, generator: torch.Generator | None = None) -> Tensor:  # noqa: B008
        """Random displacements without gradients; `generator` makes them reproducible."""
        return self._draw(sample_shape, generator)

    def rsample(self, sample_shape: Any = torch.Size(), *, generator: torch.Generator | None = None) -> Tensor:  # noqa: B008
        """Samples that can be differentiated in the parameters: see the class. The numbers are those of `sample`."""
        if not self.has_rsample:
            raise InputError(
                "the parameters of tempered jumps must not need a gradient for rsample, found some that do; detach "
                "D_f, alpha, dt and tempering, or use sample and log_prob."
            )
        return self._draw(sample_shape, generator)

    def _draw(self, sample_shape: Any, generator: torch.Generator | None) -> Tensor:
        shape = _shape("sample_shape", sample_shape) + self.batch_shape
        alpha, dt = self.alpha.expand(shape), self.dt
        jump, width = None, 2.0 * (torch.zeros_like(dt) if self._matrix else self.D_o * dt)
        if self._tempered:
            time = tempered_time(alpha, (self.D_f * dt).expand(shape), self.tempering.expand(shape), generator)
            width = width + 2.0 * time
        else:
            jump = symmetric_stable(alpha, generator) if self.dim == 1 else isotropic_stable(alpha, self.dim, generator)
        event = (*shape, *self.event_shape)
        gauss = torch.randn(event, generator=generator, dtype=torch.float64, device=alpha.device)
        wide = width > 0  # a root has no derivative at zero, nor does one without a width need it
        spread = torch.where(wide, torch.sqrt(torch.where(wide, width, 1.0)), width)
        out = self.b * self._of_vectors(dt) + self._of_vectors(spread) * gauss
        if jump is not None:
            scale = torch.exp((torch.log(self.D_f * dt) / (2.0 * self.alpha)).clamp(-LOG_LARGEST, LOG_LARGEST))
            out = out + self._of_vectors(scale) * jump
        if self._matrix:
            from levytorch.law.several import root_of

            gauss = torch.randn(event, generator=generator, dtype=torch.float64, device=alpha.device)
            out = out + (root_of(2.0 * self.D_o * dt[..., None, None]) @ gauss.unsqueeze(-1)).squeeze(-1)
        return self._answer(out)


def _shape(name: str, given: Any) -> torch.Size:
    """A shape from a tuple, a list or a torch.Size of integers >= 0."""
    if not isinstance(given, (tuple, list)):
        raise InputError(f"{name} must be a tuple of integers, found {shown(given)}; pass (n,) for n of them.")
    return torch.Size([whole_number(f"an entry of {name}", n, 0) for n in given])
