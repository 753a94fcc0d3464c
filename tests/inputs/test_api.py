"""Every public name with every kind of wrong argument: a right answer or one helpful sentence, never a traceback."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import levytorch as lt
from tests.inputs import names_of_data, names_of_fit, names_of_law
from tests.inputs.judge import REFUSED, Defect, judge
from tests.inputs.targets import Target, numbers_of
from tests.inputs.values import ALL, plain
from tests.sampling import dice


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """What is saved under an odd name lands in a temporary directory."""
    monkeypatch.chdir(tmp_path)


TARGETS = {target.name: target for part in (names_of_law, names_of_data, names_of_fit) for target in part.targets()}
SLOW = {name for name in TARGETS if name.startswith(("recover", "solve_value", "value_from_data "))}
SLOW |= {"log_density tempered", "tail_probability tempered"}  # LevyStep tempered goes through both


def try_value(target: Target, argument: str, kind: str) -> None:
    """One argument replaced; accepted numbers must mean what the same numbers mean as a float64 array."""
    what = f"{target.name}({argument}={kind})"
    answer = judge(lambda: target.call(**(target.good | {argument: ALL[kind]()})), what)
    if answer is REFUSED:
        return
    value = ALL[kind]()
    numbers = plain(value)
    if argument in target.numbers and numbers is None:
        chosen = value is None and argument in target.optional
        chosen = chosen or (callable(value) and argument in target.functions)
        if not chosen:
            raise Defect(f"{what}: accepted what is no number")
    strange = numbers is not None and not np.isfinite(numbers).all()
    if target.finite and not (target.propagates and strange):
        for part in numbers_of(answer):
            assert np.isfinite(part).all(), f"{what}: {part}"
    if argument in target.numbers and numbers is not None:
        again = judge(lambda: target.call(**(target.good | {argument: numbers})), f"{what} as float64")
        assert again is not REFUSED, f"{what}: accepted, but refused as a float64 array"
        rtol = 1e-2 if kind in ("torch half", "torch bfloat16") else 1e-5 if kind.startswith("torch") else 1e-10
        for part, same in zip(numbers_of(answer), numbers_of(again)):
            np.testing.assert_allclose(part, same, rtol=rtol, err_msg=what)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_every_argument_with_every_value(name, record_property):
    target = TARGETS[name]
    judge(lambda: target.call(**target.good), name)
    defects = []
    for argument in target.good:
        for kind in ALL:
            try:
                try_value(target, argument, kind)
            except AssertionError as defect:
                defects.append(str(defect))
    assert not defects, "\n".join(defects)
    record_property("inputs to the API", len(target.good) * len(ALL))


@pytest.mark.parametrize("name", sorted(set(TARGETS) - SLOW))
def test_some_arguments_with_some_values(name, record_property):
    target, chance = TARGETS[name], dice(name)
    judge(lambda: target.call(**target.good), name)
    for _ in range(12):
        try_value(target, chance.choice(list(target.good)), chance.choice(list(ALL)))
    record_property("inputs to the API", 12)


def test_values_that_used_to_end_in_a_traceback():
    """A coefficient that raises, text as a state, a number as a path, None as transitions."""
    for name, argument, kind in (
        ("Dynamics", "b", "lambda that raises"),
        ("solve_value", "reward", "lambda that raises"),
        ("ValueFunction", "x", "text"),
        ("Recovery.load", "path", "7"),
        ("Trajectories.from_file", "path", "7"),
        ("make_pools", "transitions", "None"),
        ("log_density", "D_f", "10**400"),
        ("log_density", "alpha", "np.datetime64"),
        ("score", "wrt_alpha", "2**63"),
        ("simulate", "n_steps", "2**63"),
    ):
        target = TARGETS[name]
        assert judge(lambda t=target, a=argument, k=kind: t.call(**(t.good | {a: ALL[k]()})), name) is REFUSED


_ANY = st.floats(allow_nan=True, allow_infinity=True)
_SCALE = st.one_of(_ANY, st.floats(1e-6, 1e6))


def check_law(displacement, b, D_o, D_f, alpha, dt):
    """All derivatives finite and the two quadratures agree; or a refusal."""
    arguments = dict(displacement=displacement, b=b, D_o=D_o, D_f=D_f, alpha=alpha, dt=dt)
    score = judge(lambda: lt.score(**arguments, method="contour"), f"score({arguments})")
    if score is REFUSED:
        return
    for part in numbers_of(tuple(score)):
        assert np.isfinite(part).all(), (arguments, score)
    table = judge(lambda: lt.log_density(**arguments, method="table"), f"log_density({arguments})")
    assert abs(float(table) - float(score.log_p)) <= 1e-8 * max(1.0, abs(float(score.log_p)), abs(displacement))


@pytest.mark.slow
@settings(max_examples=600, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(_SCALE, _SCALE, _SCALE, _SCALE, st.one_of(st.floats(0.05, 0.95), _ANY), _SCALE)
def test_the_law_at_any_floats(displacement, b, D_o, D_f, alpha, dt):
    check_law(displacement, b, D_o, D_f, round(alpha, 1) if 0.05 < alpha < 0.95 else alpha, dt)
