"""What a user would bring: a callback, a Trainer, a head, an engine, and a plain thing that is none of these."""

from dataclasses import dataclass
from pathlib import Path

import lightning as L

from levytorch.coefficients import FourierHead
from levytorch.coefficients.links import AlphaSpec
from levytorch.training.engines.lbfgs import LBFGSEngine


class Steps(L.Callback):
    """Counts the steps of a fit into a file."""

    def __init__(self, file: str, sign: str = ".") -> None:
        self.file, self.sign = Path(file), sign

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        with self.file.open("a") as stream:
            stream.write(self.sign)


class Announced(L.Trainer):
    """A Trainer with a flag of its own."""

    def __init__(self, *arguments, said: str = "", **options):
        super().__init__(*arguments, **options)
        self.said = said


class Plain:
    """Nothing that Lightning knows."""

    def __init__(self, **options):
        self.options = options


class Narrow(FourierHead):
    """Takes the cell from the settings of all heads, and a number of its own."""

    def __init__(self, period: float, alpha: float = 0.3, pairs: int = 1) -> None:
        super().__init__(n_basis=2 * pairs + 1, period=period, alpha=AlphaSpec("fixed", alpha))


@dataclass
class Noted(LBFGSEngine):
    """Says in the results whose it is, and counts its steps."""

    name = "noted"
    steps = 0
    least: int = 1

    def step(self, *arguments, **options):
        type(self).steps += 1
        return super().step(*arguments, **options)
