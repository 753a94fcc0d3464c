"""The phases of a fit, and their order for every law.

An engine goes through the phases of a plan one after the other; each decides at its start whether it is needed. Before
the first, `training.problem` has settled what was left to the data: the window, the thresholds, n_basis, the start.
"""

from __future__ import annotations

from levytorch.likelihood.laws import Law
from levytorch.training.engines.base import Engine
from levytorch.training.phases.base import Course, Phase
from levytorch.training.phases.corrected import Corrected
from levytorch.training.phases.exact import Exact
from levytorch.training.phases.filtered import FilteredPhase
from levytorch.training.phases.last_layer import LastLayer
from levytorch.training.phases.maximise import Frozen, Maximise, OwnLaw
from levytorch.training.phases.simulated import Simulated, SimulatedDraws

Plan = tuple[type[Phase], ...]
PLANS: dict[str, Plan] = {
    "auto": (Frozen, Corrected, Exact, Simulated),
    "exact": (Frozen, Corrected, Exact),
    "corrected": (Frozen, Corrected, Simulated),
    "simulated": (Frozen, Simulated),
    "frozen": (Frozen,),
}


def plan_of(law: str | Law, engine: Engine, *, noisy: bool = False) -> Plan:
    """The phases of a fit under a law. After mini-batches the last layer of a network takes the place of its head.

    noisy: with observation noise; the phases behind that one have their turn where the noise was dropped.
    """
    if not isinstance(law, str):
        return (OwnLaw,)
    first, *later = PLANS[law]
    if noisy:
        later = [FilteredPhase, *later]
    if engine.full_batch:
        return (first, *later)
    return (SimulatedDraws if law == "simulated" else first, LastLayer, *later)


__all__ = ["PLANS", "Course", "Maximise", "Phase", "Plan", "plan_of"]
