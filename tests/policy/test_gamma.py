"""A discount factor where the rate beta is meant."""

import pytest

from levytorch import Dynamics, improve, solve_value, value_from_data
from levytorch.errors import InputError
from levytorch.policy.empirical import empirical_values
from levytorch.policy.ranking import rank


@pytest.mark.parametrize("function", [solve_value, improve, rank, value_from_data, empirical_values])
def test_a_discount_factor_is_recognised(function):
    with pytest.raises(InputError, match=r"beta must be given.*gamma = 0.99; .*beta=-math.log\(gamma\) / dt"):
        function(Dynamics.named("constant"), lambda x: x, gamma=0.99)
