"""A network of your own: any nn.Module that maps states to raw outputs.

python examples/own_network.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from levytorch import Dynamics, recover, simulate
from levytorch.coefficients import NetworkHead


class Gated(nn.Module):
    """Three raw outputs (b, D_o, D_f) at every state, given cos x and sin x."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.values, self.gates, self.last = nn.Linear(2, width), nn.Linear(2, width), nn.Linear(width, 3)

    def forward(self, waves: Tensor) -> Tensor:
        return self.last(torch.tanh(self.values(waves)) * torch.sigmoid(self.gates(waves)))


def main() -> None:
    truth = Dynamics.named("variable", alpha=0.3)
    data = simulate(truth, 500, 20, 1 / 40, seed=1).transitions()
    torch.manual_seed(0)
    found = recover(data, alpha=0.3, coefficients=NetworkHead(Gated(), alpha=0.3, n_features=1), law="frozen")
    x = torch.linspace(0.0, 6.0, 4, dtype=torch.float64)
    for at, value, std, true in zip(x, found.D_o(x), found.std(x)[1], truth.D_o(x)):
        print(f"D_o({float(at):.1f}) = {float(value):.2f} +- {float(std):.2f} (true: {float(true):.2f})")


if __name__ == "__main__":
    main()
