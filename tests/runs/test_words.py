"""Messages of the library in the syntax of the command line."""

import pytest

from levytorch.convert import nearest_names
from levytorch.runs.command_line import nearest
from levytorch.runs.words import for_command_line


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("fill the cell, or pass missing='drop'.", "fill the cell, or add data.missing=drop."),
        ("name the id column, or pass sort=True.", "name the id column, or add data.sort=true."),
        ('tempering="learn" gives jumps an end', "tempering=learn gives jumps an end"),
        (
            'use tail=None, or tail={"method": "conditional"} with a TRT',
            "use tail=none, or tail=conditional with a TRT",
        ),
        ("raise max_steps, or read them with care", "raise engine.max_steps, or read them with care"),
        ("pass value=[...] or time='...'", "add data.value=[...] or data.time=..."),
        ("pass on_disk=<directory>.", "add data.on_disk=<directory>."),
        ("found p = 0.3 and x=4 with dt=0.5", "found p = 0.3 and x=4 with data.dt=0.5"),
        ("pass a number", "pass a number"),
    ],
)
def test_options_as_a_shell_has_them(said, written):
    assert for_command_line(said) == written


def test_the_nearest_name_of_a_typo():
    assert nearest_names("nbasis", ["n_basis", "n_bins"]) == ["n_basis"]
    assert nearest_names("ct", ["CT", "TRT"]) == ["CT"]
    assert nearest_names("elephant", ["CT", "TRT"]) == []
    assert nearest("tail.ct", ["tail.CT", "tail.TRT", "tail"]) == "tail.CT"
    assert nearest("nbasis", ["coefficients.n_basis", "seed"]) == "coefficients.n_basis"
