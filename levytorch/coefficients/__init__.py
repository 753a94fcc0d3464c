"""Coefficient heads: b(x), D_o(x), D_f(x) and alpha as trainable functions of the state."""

from levytorch.coefficients.alpha import AlphaSpec
from levytorch.coefficients.basis import FourierBasis
from levytorch.coefficients.build import HEADS, build_head
from levytorch.coefficients.fourier import FourierHead
from levytorch.coefficients.head import Coefficients, Head
from levytorch.coefficients.init import initial_guess
from levytorch.coefficients.links import LINKS
from levytorch.coefficients.mlp import MLPHead
from levytorch.coefficients.tensor_basis import TensorBasis
from levytorch.coefficients.units import Units

__all__ = [
    "HEADS",
    "LINKS",
    "AlphaSpec",
    "Coefficients",
    "FourierBasis",
    "FourierHead",
    "Head",
    "MLPHead",
    "TensorBasis",
    "Units",
    "build_head",
    "initial_guess",
]
