"""The phases of a fit, and their order for every law.

An engine goes through the phases of a plan one after the other; each decides at its start whether it is needed. Before
the first, `training.prepare` has settled what was left to the data: the window, the thresholds, n_basis, the start.
"""

from __future__ import annotations

from levytorch.likelihood.laws import Law
from levytorch.training.phases.base import Course, Phase
from levytorch.training.phases.corrected import Corrected
from levytorch.training.phases.exact import Exact
from levytorch.training.phases.maximise import Frozen, Maximise, OwnLaw

Plan = tuple[type[Phase], ...]
PLANS: dict[str, Plan] = {
    "auto": (Frozen, Corrected, Exact),
    "exact": (Frozen, Corrected, Exact),
    "corrected": (Frozen, Corrected),
    "frozen": (Frozen,),
}


def plan_of(law: str | Law) -> Plan:
    """The phases of a fit under a law."""
    return PLANS[law] if isinstance(law, str) else (OwnLaw,)


__all__ = ["PLANS", "Course", "Maximise", "Phase", "Plan", "plan_of"]
