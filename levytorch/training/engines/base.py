"""What an engine is, and the engines by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from levytorch.errors import InputError

if TYPE_CHECKING:
    from levytorch.coefficients import Head
    from levytorch.training.module import LevyModule

ENGINES = {
    "adam": "levytorch.training.engines.adam:AdamEngine",
    "lbfgs": "levytorch.training.engines.lbfgs:LBFGSEngine",
    "fisher": "levytorch.training.engines.fisher:FisherEngine",
}


class Engine(ABC):
    """A strategy: which optimiser, what one step does, when it is done. Subclasses are dataclasses of plain options."""

    name: str
    full_batch: bool
    max_steps: int

    @abstractmethod
    def optimizer(self, module: LevyModule) -> Optimizer: ...

    @abstractmethod
    def step(self, module: LevyModule, batch: Any) -> float:
        """Advance by one step; returns the mean negative log-likelihood."""

    def converged(self, module: LevyModule) -> bool:
        """Full-batch engines know; adam's convergence is the moving average's (a callback)."""
        return False

    def accepts(self, head: Head) -> None:
        """Refuse a head the engine cannot work with."""
        return

    def config(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]


def resolve_engine(name: str, head: str) -> str:
    """ "auto" is fisher for Fourier heads and lbfgs for MLP."""
    if name == "auto":
        return "fisher" if head == "fourier" else "lbfgs"
    if name not in ENGINES:
        raise InputError(f"engine must be one of auto, {', '.join(ENGINES)}, found {name!r}; choose one of these.")
    return name


def engine_class(name: str) -> type[Engine]:
    module, cls = ENGINES[name].split(":")
    return getattr(import_module(module), cls)


def engine_options(name: str) -> set[str]:
    return {f.name for f in fields(engine_class(name))}  # type: ignore[arg-type]


def build_engine(config: Mapping[str, Any]) -> Engine:
    """An engine from {"name": ..., options}; unknown options are refused with the choices."""
    settings = dict(config)
    name = settings.pop("name")
    if name not in ENGINES:
        raise InputError(f"engine must be one of {', '.join(ENGINES)}, found {name!r}; choose one of these.")
    unknown = sorted(set(settings) - engine_options(name))
    if unknown:
        raise InputError(
            f"unknown option {unknown[0]!r} of the {name} engine; it takes {', '.join(sorted(engine_options(name)))}."
        )
    return engine_class(name)(**settings)
