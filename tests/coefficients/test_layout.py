"""The rows of a head: forms of D_o, their Jacobians and scores, in heads with a matrix."""

import copy
import dataclasses
import math
import pickle

import pytest
import torch

from levytorch.coefficients import Coefficients, FourierHead, Head, MLPHead, SplineHead, build_head, check_head
from levytorch.coefficients.layout import NOISES, in_one_form
from levytorch.coefficients.links import AlphaSpec, TemperingSpec
from levytorch.coefficients.tangent import TangentHead
from levytorch.data.batches import Batch
from levytorch.errors import InputError
from levytorch.likelihood.frozen import FrozenLaw, coefficient_jacobian, sweep
from levytorch.likelihood.sums import StateBins, assemble

D = torch.float64


def head_of(noise: str, kind: str = "fourier", seed: int = 0, **options):
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    more = {"dim": 2, "noise": noise, "alpha": AlphaSpec("constant", 0.6)} | options
    head = MLPHead(width=8, depth=2, **more) if kind == "mlp" else FourierHead(n_basis=3, **more)
    head.set_flat(head.flat() + 0.2 * torch.randn(head.flat().shape, generator=generator, dtype=D))
    return head


def pairs(n: int = 40) -> Batch:
    generator = torch.Generator().manual_seed(1)
    x = 2 * math.pi * torch.rand((n, 2), generator=generator, dtype=D)
    dx = 0.5 * torch.randn((n, 2), generator=generator, dtype=D)
    return Batch(x, dx, torch.full((n,), 0.1, dtype=D), torch.rand(n, generator=generator, dtype=D))


@pytest.mark.parametrize("name", list(NOISES))
@pytest.mark.parametrize("dim", [2, 3])
def test_rows_jacobians_and_scores_of_every_form(name, dim):
    noise = NOISES[name]
    k = len(noise.positive(dim))
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn((k, 5), generator=generator, dtype=D)
    rows = torch.where(torch.tensor(noise.positive(dim))[:, None], rows.abs() + 0.3, rows)
    torch.testing.assert_close(noise.rows(noise.D_o(rows)), rows)
    slopes = torch.randn((k, 5, 4), generator=generator, dtype=D)
    J = noise.jacobian(rows, slopes)
    for p in range(4):  # along each parameter
        moved = (noise.D_o(rows + 1e-6 * slopes[..., p]) - noise.D_o(rows - 1e-6 * slopes[..., p])) / 2e-6
        torch.testing.assert_close(J[..., p], moved, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(noise.jacobian_of_rows(rows, J), slopes)
    weight = torch.randn(noise.D_o(rows).shape, generator=generator, dtype=D)
    weight = weight + weight.mT if name != "isotropic" else weight
    leaf = rows.clone().requires_grad_()
    (expected,) = torch.autograd.grad((noise.D_o(leaf) * weight).sum(), leaf)
    torch.testing.assert_close(noise.scores(weight, rows), expected)
    value = torch.tensor([0.7, 2.0], dtype=D)
    full = noise.D_o(noise.of_identity(value, dim))
    identity = value if name == "isotropic" else value[:, None, None] * torch.eye(dim, dtype=D)
    torch.testing.assert_close(full, identity)


def test_a_singular_matrix_has_a_triangular_factor():
    noise = NOISES["matrix"]
    flat = torch.ones((1, 2, 2), dtype=D)
    torch.testing.assert_close(noise.D_o(noise.rows(flat)), flat)


@pytest.mark.parametrize("kind", ["fourier", "mlp"])
@pytest.mark.parametrize("noise", ["diagonal", "matrix"])
def test_jacobian_is_that_of_forward(kind, noise):
    head = head_of(noise, kind)
    x = pairs(6).x
    for own, by_autograd in zip(head.jacobian(x), Head.jacobian(head, x)):
        torch.testing.assert_close(own, by_autograd)


@pytest.mark.parametrize("noise", ["isotropic", "diagonal", "matrix"])
def test_sums_of_a_sweep_are_derivatives_of_the_likelihood(noise):
    head = head_of(noise, tempering=TemperingSpec("learn", 0.5))
    law, batch = FrozenLaw("contour", 2), pairs()
    bins = StateBins(head, batch.dt[:1], 400)
    sums = sweep(head, law, batch, bins, hessian=True)

    def likelihood(theta):
        head.set_flat(theta)
        return (batch.weight * law.log_prob(head, batch.x, batch.dx, batch.dt)).sum()

    start, step = head.flat(), 1e-5
    identity = step * torch.eye(len(start), dtype=D)
    with torch.no_grad():
        slopes = torch.stack([(likelihood(start + e) - likelihood(start - e)) / (2 * step) for e in identity])
    head.set_flat(start)
    torch.testing.assert_close(sums.gradient, slopes, rtol=1e-6, atol=1e-6)
    # second derivatives, of which every pair is in a bin: along parameters of constants, whose functions are 1
    bent = assemble(head, sums.hessian, head.design(bins.x))
    constants = [head.starts[row] for row in range(len(head.sizes))]
    for i in constants:
        ends = []
        for sign in (1.0, -1.0):
            head.set_flat(start + sign * identity[i])
            ends.append(sweep(head, law, batch, bins).gradient)
        head.set_flat(start)
        expected = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(bent[i, constants], expected[constants], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["fourier", "mlp"])
def test_coefficients_survive_config_units_and_copies(kind):
    head = head_of("matrix", kind)
    again = build_head(head.config())
    again.set_flat(head.flat())
    x = pairs(5).x
    with torch.no_grad():
        torch.testing.assert_close(again(x).D_o, head(x).D_o)
        assert bool((torch.linalg.eigvalsh(head(x).D_o) > 0).all())
    assert head.layout.names == ["b"] * 2 + ["D_o"] * 3 + ["D_f", "alpha"]
    head.set_constants([0.1, 0.2], 0.8, 1.5)
    if kind == "fourier":
        torch.testing.assert_close(head(x).D_o[0].detach(), 0.8 * torch.eye(2, dtype=D))


class OwnMatrix(Head):
    """A head of the user's own whose D_o is a matrix."""

    dim = 2

    def __init__(self):
        super().__init__()
        self.period = (2 * math.pi,) * 2
        self.origin = (0.0, 0.0)
        self.raw = torch.nn.Parameter(torch.tensor([0.3, 0.4, 0.9], dtype=D))

    def forward(self, x):
        one = torch.ones(len(x), dtype=D)
        c = torch.tanh(self.raw[0]) * torch.sin(x[:, 0])
        D_o = self.raw[2] * torch.stack([one, c, c, one], dim=-1).reshape(-1, 2, 2)
        return Coefficients(self.raw[1] * torch.cos(x), D_o, one, torch.tensor(0.6, dtype=D))


def test_a_head_of_ones_own_may_return_matrices():
    head = OwnMatrix()
    check_head(head)
    assert head.noise.name == "matrix"
    x = pairs(7).x
    rows = coefficient_jacobian(head, x)
    tangent = TangentHead(head, x)
    torch.testing.assert_close(tangent(x).D_o.detach(), head(x).D_o.detach())
    eps = 1e-6
    with torch.no_grad():
        low, high = (head.noise.rows(head(x).D_o) for _ in range(2))
        for p in range(3):
            head.raw[p] += eps
            high = head.noise.rows(head(x).D_o)
            head.raw[p] -= 2 * eps
            low = head.noise.rows(head(x).D_o)
            head.raw[p] += eps
            torch.testing.assert_close(
                rows[head.layout.rows("D_o")][..., p], (high - low) / (2 * eps), atol=1e-8, rtol=1e-6
            )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FourierHead(3, dim=2, noise="full"), "noise must be one of"),
        (lambda: FourierHead(3, dim=2, noise="matrix", known={"D_o": 1.0}), 'noise must be "isotropic"'),
        (lambda: SplineHead(5, [(0, 1), (0, 1)], dim=2, noise="triangular"), "noise must be one of"),
    ],
)
def test_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_two_D_o_in_one_form():
    one, matrix = torch.tensor([1.0, 2.0], dtype=D), torch.ones((2, 3, 3), dtype=D)
    for found, other in (in_one_form(one, matrix), reversed(in_one_form(matrix, one))):
        torch.testing.assert_close(found, one[:, None, None] * torch.eye(3, dtype=D))
        assert other is matrix
    assert in_one_form(one, one)[0] is one


def test_layouts_compare_and_count():
    layout = head_of("matrix").layout
    assert dataclasses.replace(layout) == layout
    assert layout.positive("D_o") == [2, 4]
    assert [name for name, _ in layout.numbers("D_o")] == ["D_o_11", "D_o_12", "D_o_22"]


@pytest.mark.parametrize("noise", NOISES.values(), ids=repr)
def test_a_form_of_D_o_is_one_object_in_copies_and_elsewhere(noise):
    assert copy.deepcopy(noise) is noise
    assert pickle.loads(pickle.dumps(noise)) is noise
