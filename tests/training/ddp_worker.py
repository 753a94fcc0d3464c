"""Fits in one and in two processes, run as a script: `python -m tests.training.ddp_worker <directory> <case> ...`.

Lightning starts the second process with this very command line. Every rank leaves <case>.<rank>.pt behind: what the fit
alone and the fit of both ranks gave, and what was logged at each step.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

from levytorch import Dynamics, simulate
from levytorch.data.batches import Batch
from levytorch.data.drawing import Drawer
from levytorch.errors import NumericalError
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.parent import announce, follow
from levytorch.ranks import is_first
from levytorch.training import fit as driver
from levytorch.training.settings import make_settings
from levytorch.training.trainer import train

TWO = {"strategy": "ddp", "devices": 2, "num_nodes": 1}
TAILS = {
    "none": None,
    "tcf": {"CT": 1.5, "TRT": 20.0, "min_tail": 20},
    "conditional": {"CT": 1.5, "TRT": 20.0, "min_tail": 20, "method": "conditional"},
}


class Union:
    """One process that sees at each step what two ranks would see together."""

    def __init__(self, pools, *, rank: int, world: int, **options) -> None:
        self.pools = pools
        self.drawers = [Drawer(pools, **options, rank=one, world=2) for one in range(2)]

    def draw(self, step: int, tcf: float) -> Batch:
        parts = [drawer.draw(step, tcf) for drawer in self.drawers]
        x, dx, dt, weight = (torch.cat(values) for values in zip(*parts))
        return Batch(x, dx, dt, weight / 2)


def data(dim: int):
    name = "variable" if dim == 1 else "plane"
    return simulate(Dynamics.named(name), 50, 40, 1 / 40, seed=3).transitions().censor(seed=50)


def settings(head: str, tail: str):
    """Small heads and few steps, the TCF from an early one."""
    options: dict = {"n_basis": 3} if head == "fourier" else {"width": 6, "depth": 1}
    options |= {"max_steps": 40, "window": 30, "batch_size": 20, "log_every": 1, "law": "frozen"}
    found = make_settings(alpha=0.3, coefficients=head, tail=TAILS[tail], engine="adam", **options)
    return replace(found, tail=replace(found.tail, start=15))


def outcome(found) -> dict:
    recovery = found.recovery
    return {
        "theta": recovery.theta.clone(),
        "std": None if recovery.covariance is None else recovery.covariance.diagonal().clamp(min=0).sqrt(),
        "log_likelihood": recovery.log_likelihood,
        "tcf": recovery.tcf,
        "steps": recovery.metrics["steps"],
        "history": [{k: v for k, v in entry.items() if not k.startswith("time/")} for entry in recovery.history],
    }


def broken(directory: Path) -> None:
    """The numbers fail in the second process only, at its third evaluation."""
    calls, original = 0, FrozenLaw.log_prob

    def failing(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls > 2 and not is_first():
            raise NumericalError("planted")
        return original(*arguments, **options)

    FrozenLaw.log_prob = failing
    try:
        train(data(1), settings("fourier", "none"), trainer=TWO)
    except NumericalError as error:
        (directory / f"broken.{0 if is_first() else 1}.txt").write_text(str(error))
    FrozenLaw.log_prob = original


def case(name: str, directory: Path) -> None:
    if name == "broken":
        broken(directory)
        return
    head, dim, tail = name.split("-")
    transitions, options = data(int(dim)), settings(head, tail)
    driver.Drawer = Union
    alone = train(transitions, options)
    driver.Drawer = Drawer
    both = train(transitions, options, trainer=TWO)
    rank = both.trainer.global_rank
    torch.save({"alone": outcome(alone), "both": outcome(both)}, directory / f"{name}.{rank}.pt")
    both.trainer.strategy.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if is_first():
        announce()
    else:
        follow()
    for given in sys.argv[2:]:
        case(given, Path(sys.argv[1]))
