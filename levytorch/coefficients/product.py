"""Heads on a product of circles and lines, such as an angle and a speed: products of splines of each coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

from levytorch.coefficients.fourier import LinearHead, alpha_functions
from levytorch.coefficients.head import LinkOptions
from levytorch.coefficients.periodic_spline import PeriodicSplineBasis
from levytorch.convert import shown
from levytorch.errors import InputError
from levytorch.spaces.basis import Basis, TensorBasis, per_coordinate
from levytorch.spaces.splines import SplineBasis, check_windows


class ProductHead(LinearHead):
    """Splines that repeat on the coordinates with a period, splines over a window, constant beyond it, on the others.

    n_basis: functions of every coordinate; 1 gives constants. period: one per coordinate, None on a line. window: one
    pair per coordinate, which counts on a line only (None until the data are there).

    >>> head = ProductHead(5, (6.0, None), window=[None, (-1.0, 1.0)])
    >>> x = torch.tensor([[1.0, 0.5], [7.0, 0.5], [1.0, 0.9]])
    >>> bool((head.basis.rows(x)[:, 0] - head.basis.rows(x)[:, 1]).abs().max() < 1e-12), head.repeats
    (True, False)
    """

    def __init__(
        self,
        n_basis: int = 5,
        period: Sequence[float | None] = (6.283185307179586, None),
        origin: float | Sequence[float] = 0.0,
        window: Any = None,
        n_basis_alpha: int = 4,
        dim: int = 2,
        truncation: str = "total",
        **options: Unpack[LinkOptions],
    ) -> None:
        if dim == 1 or len(period) != dim:
            raise InputError(
                f"period must have one entry per coordinate, found {shown(period)} for dim = {dim}; None is a line."
            )
        origins = per_coordinate("origin", origin, dim)
        windows = product_windows(period, origins, window)

        def basis(n: int) -> Basis:
            lines: list[Basis] = [
                SplineBasis(n, ends) if p is None else PeriodicSplineBasis(n, p, o)
                for p, o, ends in zip(period, origins, windows)
            ]
            return TensorBasis(dim, n, truncation=truncation, lines=lines)

        n_alpha = alpha_functions(options.get("alpha"), n_basis_alpha)
        super().__init__(basis(n_basis), basis(n_alpha) if n_alpha else None, dim, **options)
        self.n_basis, self.n_basis_alpha, self.truncation = n_basis, n_alpha, truncation
        self.period, self.window = tuple(period), windows
        self.origin = tuple(low for low, _ in windows)

    def config(self) -> dict[str, Any]:
        own = {"name": "product", "n_basis": self.n_basis, "n_basis_alpha": self.n_basis_alpha or 4, "dim": self.dim}
        place = {"period": list(self.period), "origin": list(self.origin), "window": [list(w) for w in self.window]}
        return own | {"truncation": self.truncation} | place | self.settings()


def product_windows(
    period: Sequence[float | None], origin: Sequence[float], window: Any
) -> tuple[tuple[float, float], ...]:
    """The two ends of every coordinate: of the cell where there is a period, else of the window."""
    dim = len(period)
    if window is not None and (not isinstance(window, Sequence) or len(window) != dim):
        raise InputError(
            f"window must have {dim} entries, a pair (low, high) per coordinate on a line, found {shown(window)}; "
            "give None for coordinates with a period."
        )
    given = [None] * dim if window is None else list(window)
    return tuple((o, o + p) if p is not None else check_windows(w, 1)[0] for p, o, w in zip(period, origin, given))
