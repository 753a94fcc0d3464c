"""What every head is: an nn.Module whose forward(x) gives the coefficients at x in physical units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from levytorch.coefficients.alpha import AlphaSpec
from levytorch.errors import InputError


class Coefficients(NamedTuple):
    """b, D_o, D_f at n states, shape (n,); alpha is 0-d when it does not depend on the state.

    In d > 1 dimensions b is a vector at each state: (n, d).
    """

    b: Tensor
    D_o: Tensor
    D_f: Tensor
    alpha: Tensor


class Head(nn.Module, ABC):
    """A trainable (b, D_o, D_f, alpha)(x)."""

    period: Any  # a number, or one per coordinate when dim > 1
    origin: Any
    alpha_spec: AlphaSpec
    dim: int = 1

    @abstractmethod
    def forward(self, x: Tensor) -> Coefficients: ...

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Plain constructor arguments: `build_head(head.config())` is the same head, untrained."""

    @property
    @abstractmethod
    def is_constant(self) -> bool:
        """True when no coefficient depends on x, so that one state stands for all."""

    @property
    def learns_alpha(self) -> bool:
        return self.alpha_spec.learned

    def states(self, x: Tensor) -> Tensor:
        """x as a list of states: (n,), or (n, d) when dim > 1."""
        if self.dim > 1 and x.shape[-1:] != (self.dim,):
            raise InputError(
                f"x must have shape [..., {self.dim}] for a head of dimension {self.dim}, found {tuple(x.shape)}; put "
                "the coordinates on the last axis."
            )
        return x.to(torch.float64).reshape((-1,) if self.dim == 1 else (-1, self.dim))

    def grid(self, n: int) -> Tensor:
        """About n states spread evenly over the cell."""
        if self.dim == 1:
            return self.origin + self.period * (torch.arange(n, dtype=torch.float64) + 0.5) / n
        side = max(2, round(n ** (1 / self.dim)))
        unit = (torch.arange(side, dtype=torch.float64) + 0.5) / side
        axes = [o + p * unit for o, p in zip(self.origin, self.period)]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, self.dim)

    def flat(self) -> Tensor:
        """All parameters as one detached vector (P,)."""
        return torch.cat([p.detach().reshape(-1) for p in self.parameters()])

    @torch.no_grad()
    def set_flat(self, theta: Tensor) -> None:
        """The inverse of `flat`."""
        offset = 0
        for p in self.parameters():
            p.copy_(theta[offset : offset + p.numel()].reshape(p.shape))
            offset += p.numel()

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """d(b, D_o, D_f, alpha)(x) / d theta, each (n, P) (b: (n, d, P) when dim > 1), by autograd."""
        from torch.func import functional_call, jacrev

        names, shapes = zip(*[(name, p.shape) for name, p in self.named_parameters()])
        sizes = [s.numel() for s in shapes]

        def function(theta: Tensor) -> tuple[Tensor, ...]:
            parts = torch.split(theta, sizes)
            values = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes)}
            c = functional_call(self, values, (x,))
            return c.b, c.D_o, c.D_f, c.alpha.expand_as(c.D_o)

        return jacrev(function)(self.flat())
