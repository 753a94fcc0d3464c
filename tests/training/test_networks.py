"""Networks are fitted by the same scoring as series, and have everything that series have."""

import itertools
import warnings

import pytest
import torch
from torch import nn

import levytorch
from levytorch import Dynamics, recover, simulate
from levytorch.coefficients import AlphaSpec, Coefficients, Head, MLPHead, NetworkHead
from levytorch.coefficients.links import TemperingSpec
from levytorch.coefficients.network import _by_states, raw_jacobian
from levytorch.coefficients.tangent import TangentHead
from levytorch.likelihood.network import LayerPenalty
from tests.golden.cases import pairwise

B, D_O, D_F, ALPHA = 0.6, 0.8, 0.5, 0.5
SMALL = {"name": "mlp", "width": 4, "depth": 1}


def steps(n=1000, dim=1, line=False, seed=0):
    """Pairs of constant coefficients, which every head contains."""

    def constant(value):
        return lambda x: torch.full(x.shape[:-1] if dim > 1 else x.shape, value, dtype=torch.float64)

    def drift(x):
        return torch.full_like(x, B) if not line else -B * x

    period = None if line else 2 * torch.pi if dim == 1 else (2 * torch.pi,) * dim
    system = Dynamics(drift, constant(D_O), constant(D_F), ALPHA, period=period, dim=dim)
    x0 = 0.0 if line else None
    return simulate(system, n // 10, 10, 0.05, seed=seed, substeps=4, x0=x0).transitions()


class Own(Head):
    """A head of the user's own with a network in it."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).double()

    def forward(self, x):
        out = self.net(torch.stack([x.sin(), x.cos()], -1))
        D_o, D_f = nn.functional.softplus(out[:, 1:]).T
        return Coefficients(out[:, 0], D_o, D_f, torch.tensor(ALPHA, dtype=torch.float64))


def heads(kind):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.SiLU(), nn.Linear(4, 3))
    return {
        "mlp": SMALL,
        "shared": {**SMALL, "shared_trunk": True, "residual": True, "depth": 2},
        "module": NetworkHead(module, alpha=ALPHA, n_features=1),
        "own": Own(),
    }[kind]


TAILS = {
    "none": None,
    "tcf": {"method": "tcf", "CT": 1.5, "TRT": 20.0, "min_tail": 10},
    "conditional": {"method": "conditional", "CT": 1.5, "TRT": 20.0, "min_tail": 10},
}
FAST = [
    ("circle", "mlp", "tcf", "auto", ALPHA, 0.0, "pairs"),
    ("circle", "shared", "none", "exact", "learn", 0.0, "lattice"),
    ("line", "mlp", "conditional", "frozen", ALPHA, 0.0, "pairs"),
    ("circle", "own", "none", "corrected", ALPHA, 0.0, "pairs"),
]


def combinations():
    """All of them that have a meaning: hundreds."""
    laws, data = ("frozen", "corrected", "exact", "auto"), ("pairs", "lattice")
    every = itertools.product(
        ("circle", "line", "torus"),
        ("mlp", "shared", "module", "own"),
        TAILS,
        laws,
        (ALPHA, "learn", "function"),
        (0.0, "learn"),
        data,
    )
    for space, head, tail, law, alpha, tempering, kind in every:
        if tail == "tcf" and (alpha != ALPHA or tempering):  # both are read off the tails that it weighs
            continue
        if head in ("module", "own") and (alpha != ALPHA or tempering or space != "circle"):  # heads made for one case
            continue
        if law in ("exact", "corrected") and (alpha == "function" or space == "torus"):
            continue
        if kind == "lattice" and space != "circle":
            continue
        yield space, head, tail, law, alpha, tempering, kind


def check(space, head, tail, law, alpha, tempering, kind):
    dim = 2 if space == "torus" else 1
    data = steps(dim=dim, line=space == "line")
    period = None if space == "line" else 2 * torch.pi
    if kind == "lattice":
        thresholds = {key: TAILS[tail][key] for key in ("CT", "TRT")} if TAILS[tail] else {}
        data = data.lattice(reach=2 * torch.pi, n_blocks=10, **thresholds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = recover(
            data, alpha=alpha, coefficients=heads(head), period=period, tail=TAILS[tail], law=law, tempering=tempering
        )
        x = found.head.grid(9)
        std, robust = found.std(x), found.std(x, kind="robust")
        replicas = found.bootstrap(3).std(x)
    assert found.converged
    truth = (-B * x if space == "line" else torch.full_like(x, B), D_O, D_F)
    bends = 0.05 if space == "line" else 0.0  # a small network on a line is no line
    for value, true, one in zip(found.coefficients(x)[:3], truth, std[:3]):
        assert bool(torch.isfinite(one).all())
        assert float(one.min()) > 0
        if alpha == ALPHA and not tempering:
            assert float(((value - true).abs() / (one + bends)).max()) < 5.0
    for other in (robust, replicas):
        assert all(bool(torch.isfinite(v).all()) for v in other[:3])


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case[0] == "line" else pytest.mark.long, id=str(case)) for case in FAST]
)
def test_what_series_have(case):
    check(*case)


@pytest.mark.slow
@pytest.mark.parametrize("case", pairwise(list(combinations())), ids=str)
def test_every_pair_of_what_can_be_chosen(case):
    check(*case)


@pytest.mark.long
def test_value_and_its_error():
    found = recover(steps(3000), alpha=ALPHA, coefficients=SMALL, law="frozen")
    V = levytorch.solve_value(found, lambda x: torch.cos(x), 1.0)
    x = found.head.grid(5)
    assert bool((V.std(x) > 0).all())
    fourier = levytorch.solve_value(recover(steps(3000), alpha=ALPHA, n_basis=3, law="frozen"), torch.cos, 1.0)
    assert float(((V(x) - fourier(x)).abs() / fourier.std(x)).max()) < 3.0


@pytest.mark.parametrize(
    "options",
    [
        {"activation": "tanh"},
        {"shared_trunk": True, "residual": True, "depth": 3},
        {"dim": 2},
        {"alpha": AlphaSpec("function", 0.5), "tempering": TemperingSpec("learn", 1.0)},
        {"period": None, "window": (-1.0, 2.0), "activation": "sine"},
    ],
    ids=str,
)
def test_jacobians_by_layers_are_those_of_autograd(options):
    torch.manual_seed(1)
    head = MLPHead(width=6, **options)
    head.set_flat(head.flat() + 0.1 * torch.randn_like(head.flat()))
    x = head.grid(9)
    for mine, other in zip(head.jacobian(x), Head.jacobian(head, x)):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)
    by_states = _by_states(head, x, dict(head.named_parameters()))
    torch.testing.assert_close(raw_jacobian(head, x), by_states, rtol=1e-12, atol=1e-12)


def test_a_tangent_touches_its_head_and_keeps_its_prior():
    torch.manual_seed(2)
    head = MLPHead(width=8)
    head.set_flat(head.flat() + 0.2 * torch.randn_like(head.flat()))
    prior = LayerPenalty(head, 2.0)
    x, center = head.grid(128), torch.zeros_like(head.flat())
    tangent = TangentHead(head, x, prior.full_precision(), center)
    assert tangent.flat().numel() < head.flat().numel()
    for mine, other in zip(tangent(x), head(x)):
        torch.testing.assert_close(mine, other)
    for mine, other in zip(tangent.jacobian(x), head.jacobian(x)):  # in the directions that the tangent has
        torch.testing.assert_close(mine, tangent.pulled(other), rtol=1e-9, atol=1e-9)
    z = tangent.z0 + 1e-5 * torch.randn_like(tangent.z0)
    moved = tangent.parameters_of_head(z)
    quadratic = (prior.full_precision() * moved**2).sum()
    torch.testing.assert_close((tangent.prior_precision * z**2).sum(), quadratic)
    there = MLPHead(width=8)
    there.set_flat(moved)
    tangent.set_flat(z)
    assert float((tangent(x).D_o - there(x).D_o).abs().max()) < 1e-8
    torch.testing.assert_close(tangent.coordinates_of(moved - tangent.base), z - tangent.z0)


def test_covariance_is_the_inverse_of_the_information():
    """J (J^T S J + Lambda)^-1 J^T, by brute force in all weights."""
    torch.manual_seed(3)
    head = MLPHead(width=4, depth=1)
    head.set_flat(head.flat() + 0.3 * torch.randn_like(head.flat()))
    x, prior = head.grid(64), LayerPenalty(head, 0.5)
    tangent = TangentHead(head, x, prior.full_precision(), torch.zeros_like(head.flat()))
    J, full = head.eta_jacobian(x), prior.full_precision()
    S = torch.rand(3, 64, dtype=torch.float64) * 30
    whole = torch.einsum("cnp,cn,cnq->pq", J, S, J) + torch.diag(full)
    reduced = torch.einsum("cnp,cn,cnq->pq", tangent.pulled(J), S, tangent.pulled(J))
    reduced += torch.diag(tangent.prior_precision)
    mine = torch.einsum("cnp,pq,cnq->cn", J, tangent.covariance_of_head(torch.linalg.inv(reduced)), J)
    other = torch.einsum("cnp,pq,cnq->cn", J, torch.linalg.inv(whole), J)
    torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-12)


def test_a_module_that_does_not_fit_is_refused():
    with pytest.raises(levytorch.InputError, match="must return 3 raw outputs per state"):
        NetworkHead(nn.Linear(1, 2), alpha=0.5)
