"""Fields of a matrix D_o in the plane: a row per entry, whatever form the truth has."""

import pytest
import torch

from levytorch import Dynamics, Recovery
from levytorch.coefficients import FourierHead
from levytorch.figures import planes


@pytest.mark.parametrize("noise", ["isotropic", "matrix"])
@pytest.mark.parametrize("truth", [None, "plane", "rotor"])
def test_fields_and_columns(noise, truth):
    head = FourierHead(3, dim=2, noise=noise)
    found = Recovery(head, covariance=torch.eye(head.flat().numel(), dtype=torch.float64))
    fields = planes.coefficient_fields(found, None if truth is None else Dynamics.named(truth), n=6)
    split = noise == "matrix" or truth == "rotor"
    names = ["D_o_11", "D_o_12", "D_o_22"] if split else ["D_o"]
    estimates = [name for name in fields if name.startswith("D_o") and not name.endswith(("_truth", "_std"))]
    assert estimates == names
    assert all(fields[name].shape == (6, 6) for name in names)
    assert (f"{names[0]}_std" in fields) == (noise == "matrix" or not split)
    columns = planes.field_columns(fields)
    assert all(len(column) == 36 for column in columns.values())
    _, axes = planes.fields(fields)
    assert axes.shape[0] == 2 + len(names)
