"""The functions that coefficients are sums of, where they used to be; they are those of `levytorch.spaces`."""

from levytorch.spaces.basis import *  # noqa: F403
