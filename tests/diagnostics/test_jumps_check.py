"""check(): the card that says whether jumps are real; remarks on degrees and rounded data."""

import mpmath
import numpy as np
import pytest

from levytorch import Dynamics, Trajectories, check, recover, simulate
from levytorch.command import start
from levytorch.data.describe import in_degrees, remarks, rounded_to
from levytorch.diagnostics.jumps_check import decided
from levytorch.diagnostics.laws import _nig
from levytorch.errors import InputError, LevytorchWarning

N = 1500


@pytest.fixture(scope="module")
def jumping():
    return check(simulate(Dynamics(0.0, 0.5, 1.0, 0.6), 10, N // 10, 0.1, seed=1))


def test_jumps_are_found(jumping):
    assert jumping.answer == "yes"
    assert {row.model for row in jumping.laws.rows} == {"Gaussian", "stable", "tempered", "Student t", "NIG"}
    assert jumping.laws.held_out
    text = str(jumping)
    assert max(map(len, text.splitlines())) <= 80
    assert "Are my jumps real?" in text
    assert "seed 0" in text


@pytest.mark.long
def test_no_jumps_are_found_where_there_are_none():
    rng = np.random.default_rng(0)
    card = check(np.cumsum(rng.normal(size=N)), dt=1.0)
    assert card.answer == "no"


def test_the_answer_follows_aic():
    aic = {"Gaussian": 120.0, "stable": 101.0, "tempered": 102.0, "Student t": 110.0, "NIG": 109.0}
    assert decided(aic) == ("yes", "stable", None)
    assert decided(aic | {"NIG": 102.0}) == ("unclear", "stable", "NIG")
    assert decided(aic | {"Gaussian": 110.0}) == ("no", "stable", None)
    assert decided({name: aic[name] for name in ("Gaussian", "stable", "tempered")}) == ("yes", "stable", None)


@pytest.mark.parametrize("p", [(0.1, 7.0, 6.5), (0.1, 18.0, 17.9), (0.0, 0.3, -0.2)])
def test_the_nig_law_of_any_size(p):
    """Against mpmath; nearly Gaussian steps have an argument of the Bessel function that SciPy has few digits for."""
    z = np.array([-3.0, 0.2, 4.0])
    with mpmath.workdps(40):
        delta, a = mpmath.e ** p[1], mpmath.e ** p[2]
        s = [mpmath.sqrt((mpmath.mpf(x) - p[0]) ** 2 + delta**2) for x in z]
        true = [mpmath.log(a * delta / mpmath.pi * mpmath.exp(delta * a) * mpmath.besselk(1, a * v) / v) for v in s]
    np.testing.assert_allclose(_nig(z, np.array(p)), np.array(true, dtype=float), atol=1e-10)


def test_a_noise_that_comes_and_goes_is_not_called_jumps():
    """Gaussian steps whose size changes slowly: heavy tails without a single jump."""
    rng = np.random.default_rng(1)
    size = np.exp(1.2 * np.sin(np.arange(N) / 60))
    card = check({"x": np.cumsum(size * rng.normal(size=N)), "dt": np.ones(N)})
    assert card.answer == "unclear" or "come in clusters" in card.sentence
    assert "come in clusters" in card.sentence


def test_the_card_as_a_picture(jumping, tmp_path):
    _, axes = jumping.plot()
    assert len(axes) == 2
    assert [label.get_text() for label in axes[1].get_yticklabels()] == [row.model for row in jumping.laws.rows[::-1]]
    jumping.save(tmp_path / "card.png")
    assert (tmp_path / "card.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"path must end with .png for a card, found 'card.gif'"):
        jumping.save(tmp_path / "card.gif")


@pytest.mark.long
def test_the_command(tmp_path, capsys):
    simulate(Dynamics(0.0, 0.5, 1.0, 0.6), 4, 150, 0.1, seed=1).to_file(tmp_path / "x.csv")
    start(["check", str(tmp_path / "x.csv"), "--png", str(tmp_path / "c.png")])
    assert "Are my jumps real?" in capsys.readouterr().out
    assert (tmp_path / "c.png").is_file()
    with pytest.raises(SystemExit, match="value must be a column of the file, found no 'z'"):
        start(["check", str(tmp_path / "x.csv"), "--value", "z"])
    with pytest.raises(SystemExit, match="the command must be check, train, evaluate or info, found 'chekc'"):
        start(["chekc"])


def test_refusals_of_the_command_name_its_flags(tmp_path):
    """In the syntax of the command line, with the nearest name of a typo."""
    file = tmp_path / "x.csv"
    file.write_text("t,x\n0,1\n1,2\n2,\n3,4\n")
    for arguments, said in (
        (["--time", "t", "--value", "x"], r"fill the cell, or pass --drop-missing\.$"),
        (["--value", "x"], r"pass --dt \.\.\. or --time"),
        (
            ["--drop-mising", "--time", "t"],
            r"--drop-mising names no option of levytorch check; did you mean --drop-missing\?",
        ),
        (["--elephant=3"], "--elephant=3 names no option of levytorch check; levytorch check --help lists"),
    ):
        with pytest.raises(SystemExit, match=said):
            start(["check", str(file), *arguments])
    dates = tmp_path / "dates.csv"
    dates.write_text("t,x\n2024-01-01,1\n2024-01-02,2\n2024-01-03,2.5\n2024-01-04,4\n")
    with pytest.raises(SystemExit, match="--time-unit must be given for dates"):
        start(["check", str(dates), "--time", "t", "--value", "x"])


def test_refusals():
    with pytest.raises(InputError, match="data must have one coordinate, found 2"):
        check(np.random.default_rng(0).normal(size=(3, 50, 2)), dt=0.1)
    with pytest.raises(InputError, match="options must be those of from_frame or from_arrays, found n_basis"):
        check(np.arange(9.0) ** 2, dt=0.1, n_basis=3)


@pytest.mark.long
def test_degrees_and_rounding_are_recognised():
    rng = np.random.default_rng(0)
    turning = np.cumsum(rng.normal(3.0, 5.0, size=2000))
    degrees, radians = np.mod(turning, 360.0), np.mod(turning, 2 * np.pi)
    assert in_degrees(degrees, np.diff(degrees, prepend=degrees[0]))
    assert not in_degrees(radians, np.diff(radians, prepend=0.0))
    assert not in_degrees(turning, np.diff(turning, prepend=0.0))
    said = remarks(Trajectories.from_arrays(degrees, 1.0).transitions())
    assert said[0].startswith("x looks like an angle in degrees")
    walk = np.cumsum(rng.normal(size=2000))
    assert rounded_to(np.diff(np.round(walk, 1))) is not None
    assert rounded_to(np.diff(np.round(walk / 0.25) * 0.25)) == pytest.approx(0.25)
    assert rounded_to(np.diff(walk)) is None
    assert rounded_to(np.diff(np.round(walk, 4))) is None
    coarse = Trajectories.from_arrays(np.round(walk * 4) / 4, 1.0).transitions()
    assert "rounded to multiples of 0.25" in remarks(coarse)[0]
    assert "note      x is rounded to multiples of 0.25" in coarse.describe()
    with pytest.warns(LevytorchWarning, match="rounded to multiples of 0.25") as said_once:
        recover(coarse, alpha=0.9, period=None, n_basis=1, law="frozen")
    assert sum("rounded" in str(one.message) for one in said_once) == 1
    with pytest.warns(LevytorchWarning, match="x looks like an angle in degrees, while the period is 2 pi"):
        recover(degrees, dt=1.0, alpha=0.9, n_basis=3, law="frozen")
