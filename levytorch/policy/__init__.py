"""Policy evaluation: from a recovered generator to V(x), its uncertainty and its references."""

from levytorch.policy.plane_value import PlaneValue
from levytorch.policy.solver import solve_value
from levytorch.policy.value import ValueFunction

__all__ = ["PlaneValue", "ValueFunction", "solve_value"]
