"""A process that writes one file again and again until it is killed: python writers.py <kind> <target>."""

import sys
from pathlib import Path

import torch

from levytorch import Dynamics, Recovery, ValueFunction, simulate
from levytorch.coefficients import build_head
from levytorch.spaces import Circle

KINDS = ("simulation.npz", "simulation.csv", "simulation.parquet", "recovery.pt", "value.pt")


def content(kind: str, number: int):
    """One of two contents, told apart by `number_of`."""
    if kind.startswith("simulation"):
        return simulate(Dynamics.named("constant"), 2000, 40, 1 / 40, substeps=1, x0=float(number))
    if kind == "recovery.pt":
        head = build_head({"name": "fourier", "n_basis": 201})
        theta = torch.full_like(head.flat(), float(number))
        head.set_flat(theta)
        return Recovery(head, covariance=torch.eye(len(theta), dtype=torch.float64) * number)
    factor = torch.full((2001, 200), float(number), dtype=torch.float64)
    return ValueFunction(factor[:, 0], Circle(1.0), 0.1, covariance_factor=factor)


def write(kind: str, number: int, target: Path) -> None:
    thing = content(kind, number)
    thing.to_file(target) if kind.startswith("simulation") else thing.save(target)


if __name__ == "__main__":
    kind, target = sys.argv[1], Path(sys.argv[2])
    things = [content(kind, number) for number in (1, 2)]
    (target.parent / "ready").touch()
    while True:
        for thing in things:
            thing.to_file(target) if kind.startswith("simulation") else thing.save(target)
