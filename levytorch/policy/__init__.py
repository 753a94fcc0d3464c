"""Policy evaluation: from a recovered generator to V(x), its uncertainty and its references."""

from levytorch.policy.solver import solve_value
from levytorch.policy.value import LineValue, PlaneValue, ValueFunction

__all__ = ["LineValue", "PlaneValue", "ValueFunction", "solve_value"]
