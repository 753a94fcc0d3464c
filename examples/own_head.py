"""A head of your own in Python, and a callback of your own for train.py.

python examples/own_head.py
PYTHONPATH=examples python train.py +callbacks.watch._target_=own_head.Watch trainer.progress=false
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from levytorch import Dynamics, recover, simulate
from levytorch.coefficients import Coefficients, Head


class Wave(Head):
    """b is a sum of a few sines, D_o and D_f are constants: three numbers where a Fourier head has 63."""

    def __init__(self, waves: int = 1, alpha: float = 0.3) -> None:
        super().__init__()
        self.register_buffer("alpha", torch.tensor(alpha, dtype=torch.float64))
        self.amplitudes = nn.Parameter(torch.zeros(waves, dtype=torch.float64))
        self.raw = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Coefficients:
        orders = torch.arange(1, len(self.amplitudes) + 1, dtype=torch.float64)
        b = (self.amplitudes * torch.sin(orders * x[..., None])).sum(-1)
        D_o, D_f = softplus(self.raw)
        return Coefficients(b, D_o.expand_as(x), D_f.expand_as(x), self.alpha)


class Watch(L.Callback):
    """Says after every pass how large the likelihood is."""

    def on_train_batch_end(self, trainer: L.Trainer, *arguments: Any) -> None:
        print(f"pass {trainer.global_step}: {-trainer.progress_bar_metrics['train/nll']:.6f} per pair")


def main() -> None:
    truth = Dynamics(b=lambda x: 2.0 * torch.sin(x), D_o=1.5, D_f=1.0, alpha=0.3)
    data = simulate(truth, 400, 40, 1 / 40, seed=1).transitions()
    found = recover(data, alpha=0.3, coefficients=Wave(), engine="lbfgs")
    print(f"amplitude {float(found.b(torch.pi / 2)):.3f} (2), D_o {float(found.D_o(0.0)):.3f} (1.5), ", end="")
    print(f"D_f {float(found.D_f(0.0)):.3f} (1)")


if __name__ == "__main__":
    main()
