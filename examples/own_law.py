"""A law of your own: here the drift is followed along a step, while the noise is that of the state it began in.

python examples/own_law.py
PYTHONPATH=examples python train.py law._target_=own_law.FlowLaw trainer.progress=false
"""

from __future__ import annotations

import torch
from torch import Tensor

from levytorch import Dynamics, log_density, recover, simulate, tail_probability
from levytorch.coefficients import Coefficients, Head
from levytorch.likelihood.laws import Capability, Law


class FlowLaw(Law):
    """The step is centered where dx/dt = b(x) would lead (Runge-Kutta), not at b(x) dt. For one dimension."""

    name = "flow"
    supports = Capability(dimensions=1)

    def log_prob(self, head: Head, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        c = self.followed(head, x, dt)
        return log_density(dx, *c[:4], dt, tempering=c.tempering)

    def mass_beyond(self, head: Head, threshold: Tensor, center: Tensor, x: Tensor, dt: Tensor) -> Tensor:
        c = self.followed(head, x, dt)
        return tail_probability(threshold, center, *c[:4], dt, tempering=c.tempering)

    @staticmethod
    def followed(head: Head, x: Tensor, dt: Tensor) -> Coefficients:
        """The coefficients at x, with the mean velocity along the flow in place of b(x)."""
        c = head(x)
        k2 = head(x + 0.5 * dt * c.b).b
        k3 = head(x + 0.5 * dt * k2).b
        k4 = head(x + dt * k3).b
        return c._replace(b=(c.b + 2 * k2 + 2 * k3 + k4) / 6)


def main() -> None:
    truth = Dynamics(b=lambda x: 2.0 * torch.sin(x), D_o=0.2, D_f=0.1, alpha=0.6)
    data = simulate(truth, 500, 10, 0.3, substeps=30, seed=1).transitions()
    x = 0.75 * torch.pi
    print(f"b(3 pi / 4): {float(truth.b(x)):.3f} is true")
    for law in ("frozen", FlowLaw()):
        found = recover(data, alpha=0.6, n_basis=5, law=law)
        print(f"law {found.law:6} {float(found.b(x)):.3f} +- {float(found.std(x)[0]):.3f}")


if __name__ == "__main__":
    main()
