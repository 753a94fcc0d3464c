"""One class of V for every space: files of earlier versions, files of this one, and derivatives."""

from pathlib import Path

import pytest
import torch

from levytorch import Dynamics, InputError, solve_value
from levytorch.policy.estimation import DataValue
from levytorch.policy.value import ValueFunction
from levytorch.spaces import Circle, Interval, Product

D = torch.float64
X = torch.tensor([0.1, 1.7, 5.0], dtype=D)
OLD = Path(__file__).parent / "old_values"
# V and V.std at X (in the plane at (X, X backwards)), by the version that wrote the files
KNOWN = {
    "circle": ([3.982973869372, 1.704821778655, 2.402856291286], [2.244886286353, 3.584057403434, 2.07172372627]),
    "line": ([1.144994472318, -0.011506298679, 0.0], [0.360564154995, 0.492487932538, 0.0]),
    "plane": ([1.194870451002, 2.516969027751, 0.447337041981], [3.442289132652, 10.456566424661, 3.267935307731]),
}
SPACES = {
    "circle": Circle(3.0, 0.5),
    "line": Interval(-1.0, 2.0),
    "plane": Product((Circle(3.0, 0.0), Circle(2.0, 1.0))),
}


@pytest.mark.parametrize("where", SPACES)
@pytest.mark.parametrize("cls", [ValueFunction, DataValue])
def test_files_of_earlier_versions(where, cls, tmp_path):
    V = cls.load(OLD / f"{where}{'' if cls is ValueFunction else '_data'}.pt")
    at = torch.stack([X, X.flip(0)], -1) if where == "plane" else X
    for loaded in (V, cls.load(V.save(tmp_path / "V.pt"))):
        assert loaded.space == SPACES[where]
        torch.testing.assert_close(loaded(at), torch.tensor(KNOWN[where][0], dtype=D), rtol=0, atol=2e-12)
        torch.testing.assert_close(loaded.std(at), torch.tensor(KNOWN[where][1], dtype=D), rtol=0, atol=2e-12)
        assert loaded.n_modes == {"circle": 5, "line": 16, "plane": 4}[where]
    if cls is DataValue:
        assert (V.share, V.n_pairs) == ((0.5, 0.25), 10)
        assert "50% of its level" in V.describe()
        with pytest.raises(InputError, match="must be a value function saved by levytorch"):
            ValueFunction.load(OLD / f"{where}_data.pt")


@pytest.mark.parametrize("field", [{"space": None}, {"space": {"kind": "circle"}}, {"beta": "1"}, {"extra": 1}])
def test_other_files_are_refused(field, tmp_path):
    content = torch.load(ValueFunction.load(OLD / "circle.pt").save(tmp_path / "V.pt"), weights_only=True)
    torch.save(content | field, tmp_path / "other.pt")
    with pytest.raises(InputError, match="must be a value function saved by levytorch"):
        ValueFunction.load(tmp_path / "other.pt")


@pytest.mark.parametrize("where", SPACES)
def test_the_gradient_is_that_of_differences(where):
    """Of a V that was solved, on every space."""
    line = {"period": None, "window": (-2.0, 2.0)}
    own = {"circle": {}, "line": line, "plane": {"dim": 2}}[where]
    system = Dynamics(lambda x: -torch.sin(x), 0.7, 0.5, 0.6, **own)
    V = solve_value(system, lambda x: torch.cos(x if where != "plane" else x.sum(-1)), 0.5)
    x = torch.tensor([[0.3, 0.4], [1.1, -0.7]], dtype=D) if where == "plane" else torch.tensor([0.3, 1.1], dtype=D)
    slope, h = V.gradient(x), 1e-5
    assert slope.shape == x.shape
    steps = h * torch.eye(2, dtype=D) if where == "plane" else [torch.tensor(h, dtype=D)]
    for axis, step in enumerate(steps):
        found = slope[..., axis] if where == "plane" else slope
        torch.testing.assert_close(found, (V(x + step) - V(x - step)) / (2 * h), rtol=1e-5, atol=1e-7)
