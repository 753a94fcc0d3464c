"""A neural SDE fitted to pairs with torchsde, for `rivals.py`: where the library is installed.

Drift and diffusion are two small networks. One step is simulated by `torchsde.sdeint`, twice from each state, and the
energy score mean |y - dx| - |y - y'| / 2 of the two answers y, y' is minimised: it is smallest when the simulated step
has the law of the data's, as far as a Gaussian step can.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import torch
from kramers_moyal import Array, Estimate
from torch import Tensor, nn

STEPS, BATCH, RATE = 4000, 8192, 2e-3


def installed() -> bool:
    return importlib.util.find_spec("torchsde") is not None


class Networks(nn.Module):
    """In units of a typical step: dx = scale (f + g N)."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        self.drift, self.width = (
            nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)) for _ in "bg"
        )

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        return self.drift(y)

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return nn.functional.softplus(self.width(y))


def neural_sde(x: Array, dx: Array, h: float, seed: int) -> Estimate:
    import torchsde

    torch.manual_seed(seed)
    scale = float(np.median(np.abs(dx)))
    states, steps = (torch.from_numpy(v).to(torch.float32).unsqueeze(1) for v in (x, dx / scale))
    sde, ts = Networks(), torch.tensor([0.0, 1.0])
    optimizer = torch.optim.Adam(sde.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        pick = torch.randint(len(states), (BATCH,))
        one, two = (torchsde.sdeint(sde, states[pick], ts, method="euler", dt=1.0)[1] - states[pick] for _ in "12")
        wanted = steps[pick]
        loss = 0.5 * ((one - wanted).abs() + (two - wanted).abs() - (one - two).abs()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    @torch.no_grad()
    def at(which: str, states: Array) -> Array:
        y = torch.from_numpy(np.asarray(states, dtype=np.float32)).unsqueeze(1)
        return getattr(sde, which)(ts[:1], y).squeeze(1).double().numpy()

    return Estimate(lambda s: at("f", s) * scale / h, lambda s: (at("g", s) * scale) ** 2 / h)
