"""What every head is: an nn.Module whose forward(x) gives the coefficients at x in physical units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from levytorch.coefficients.alpha import AlphaSpec


class Coefficients(NamedTuple):
    """b, D_o, D_f at n states, shape (n,); alpha is 0-d when it does not depend on the state."""

    b: Tensor
    D_o: Tensor
    D_f: Tensor
    alpha: Tensor


class Head(nn.Module, ABC):
    """A trainable (b, D_o, D_f, alpha)(x)."""

    period: float
    origin: float
    alpha_spec: AlphaSpec

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
        """d(b, D_o, D_f, alpha)(x) / d theta, each (n, P), by forward-mode over the flat parameter vector."""
        from torch.func import functional_call, jacrev

        names, shapes = zip(*[(name, p.shape) for name, p in self.named_parameters()])
        sizes = [s.numel() for s in shapes]

        def function(theta: Tensor) -> tuple[Tensor, ...]:
            parts = torch.split(theta, sizes)
            values = {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes)}
            c = functional_call(self, values, (x,))
            return c.b, c.D_o, c.D_f, c.alpha.expand_as(c.b)

        return jacrev(function)(self.flat())
