"""Coefficient heads: b(x), D_o(x), D_f(x) and alpha as trainable functions of the state."""

from levytorch.coefficients.build import HEADS, build_head
from levytorch.coefficients.fourier import FourierHead, LinearHead, linear
from levytorch.coefficients.head import Head, Units, check_head
from levytorch.coefficients.init import initial_guess
from levytorch.coefficients.layout import Coefficients
from levytorch.coefficients.links import LINKS, AlphaSpec
from levytorch.coefficients.mlp import MLPHead
from levytorch.coefficients.network import NetworkHead
from levytorch.coefficients.spline import PolynomialHead, SplineHead
from levytorch.spaces.basis import Basis, FourierBasis, TensorBasis
from levytorch.spaces.splines import PolynomialBasis, SplineBasis

__all__ = [
    "HEADS",
    "LINKS",
    "AlphaSpec",
    "Basis",
    "Coefficients",
    "FourierBasis",
    "FourierHead",
    "Head",
    "LinearHead",
    "MLPHead",
    "NetworkHead",
    "PolynomialBasis",
    "PolynomialHead",
    "SplineBasis",
    "SplineHead",
    "TensorBasis",
    "Units",
    "build_head",
    "check_head",
    "initial_guess",
    "linear",
]
