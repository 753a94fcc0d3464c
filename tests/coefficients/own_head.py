"""A head that a user might write: b = -k sin(x - m), constant D_o and D_f."""

import torch
from torch import nn

from levytorch.coefficients import Coefficients, Head

D = torch.float64


class Pull(Head):
    def __init__(self, alpha=0.6, learn=None):
        super().__init__()
        self.k, self.m = (nn.Parameter(torch.tensor(v, dtype=D)) for v in (1.0, 0.0))
        self.raw = nn.Parameter(torch.zeros(2, dtype=D))
        value = torch.tensor(alpha, dtype=D).logit()
        self.learn = learn
        if learn is None:
            self.register_buffer("raw_alpha", value)
        else:
            self.raw_alpha = nn.Parameter(value)

    def forward(self, x):
        D_o, D_f = nn.functional.softplus(self.raw)
        raw = self.raw_alpha + 0.1 * torch.sin(x) if self.learn == "function" else self.raw_alpha
        return Coefficients(-self.k * torch.sin(x - self.m), D_o.expand(x.shape), D_f.expand(x.shape), raw.sigmoid())
