"""What callers hand over, as float64 numbers: the one place that decides what counts as a number.

Real numbers of Python, NumPy and torch count, in any nesting that has a shape. Text, truth values, dates, complex
numbers, masked entries and tensors without plain memory do not, even where NumPy or torch would convert them: 0.5 as
text is a column that was read as text, and True is a flag in the wrong place.
"""

from __future__ import annotations

import decimal
import difflib
import numbers
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.errors import InputError, LevytorchError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
_LONGEST_NAME = 255  # bytes, in every common file system


def real_array(name: str, value: Any, remedy: str = "pass a number or an array of numbers") -> Array:
    """value as a float64 NumPy array."""
    if isinstance(value, Tensor):
        return real_tensor(name, value, remedy).detach().cpu().numpy()
    if isinstance(value, (set, frozenset, dict, Iterator, memoryview)):
        raise _refusal(name, type(value).__name__, remedy)
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            raise _refusal(name, "an array with masked entries", remedy)
        value = value.data
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            array = np.array([_real(v) for v in array.reshape(-1)], dtype=np.float64).reshape(array.shape)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise _refusal(name, _kind(value), remedy) from None
    if array.dtype.kind not in "fiu":
        raise _refusal(name, _kind(value), remedy)
    return np.asarray(array, dtype=np.float64)


def real_tensor(name: str, value: Any, remedy: str = "pass a number, an array or a tensor") -> Tensor:
    """value as a float64 tensor; one that is a float64 tensor already comes back itself, with its graph."""
    if not isinstance(value, Tensor):
        array = real_array(name, value, remedy)
        # torch knows neither negative strides nor, without a warning, memory that must not be written to
        return torch.from_numpy(array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy())
    if value.dtype == torch.float64 and value.layout == torch.strided and not value.is_meta:
        return value
    if value.is_complex() or value.dtype == torch.bool or value.is_quantized:
        raise _refusal(name, f"a tensor of {value.dtype}", remedy)
    if value.layout != torch.strided or value.is_meta:
        raise _refusal(name, "a tensor without plain memory (sparse or meta)", remedy)
    return value.to(torch.float64)


def real_number(name: str, value: Any, remedy: str = "pass a number") -> float:
    """value as one finite float."""
    try:
        array = real_array(name, value)
    except InputError:
        array = np.empty(0)
    if array.size != 1 or not np.isfinite(array).all():
        raise InputError(f"{name} must be a finite number, found {shown(value)}; {remedy}.")
    return float(array.reshape(-1)[0])


def positive_number(name: str, value: Any, remedy: str = "pass such a number") -> float:
    """value as one finite float above zero."""
    try:
        number = real_number(name, value)
    except InputError:
        number = 0.0
    if not number > 0:
        raise InputError(f"{name} must be a positive number, found {shown(value)}; {remedy}.")
    return number


def number_within(name: str, value: Any, interval: str, remedy: str) -> float:
    """value as one float within an interval such as "(0, 1]"."""
    number = real_number(name, value, remedy)
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = number >= low if interval[0] == "[" else number > low
    below = number <= high if interval[-1] == "]" else number < high
    if not (above and below):
        raise InputError(f"{name} must lie in {interval}, found {shown(value)}; {remedy}.")
    return number


def check_finite(name: str, values: Tensor, at: Tensor, remedy: str) -> None:
    """Refuse values of a function at the states `at` that are NaN or infinite."""
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        first = tuple(bad.nonzero()[0].tolist())
        raise InputError(f"{name} must be finite, found {float(values[first])} at x = {at[first].tolist()}; {remedy}.")


def whole_number(name: str, value: Any, least: int, most: int | None = None, remedy: str = "") -> int:
    """value as an int of at least `least` (and at most `most`); 3.0 and True are not integers here."""
    range_ = "a positive integer" if least == 1 else f"an integer of at least {least}"
    range_ += "" if most is None else f" and at most {most}"
    remedy = remedy or ("pass such a number" if most is not None else f"pass {least} or more")
    good = not isinstance(value, (bool, np.bool_)) and hasattr(value, "__index__")
    if good and isinstance(value, (Tensor, np.ndarray)):
        good = value.ndim == 0 and "bool" not in str(value.dtype) and not getattr(value, "is_meta", False)
    try:
        number = value.__index__() if good else least - 1
    except (TypeError, ValueError, RuntimeError):
        number = least - 1
    if number < least or (most is not None and number > most):
        raise InputError(f"{name} must be {range_}, found {shown(value)}; {remedy}.")
    return int(number)


def seed_of(seed: Any, remedy: str = "0 is the default") -> int:
    """A seed as a number from 0 to 2^63 - 1: one that is given, one drawn from a generator of torch or NumPy, which
    moves on by that, or a new one from the operating system (None).
    """
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> 1)
    if isinstance(seed, torch.Generator):
        return int(torch.randint(0, 2**63 - 1, (), generator=seed, device=seed.device))
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(0, 2**63 - 1))
    return whole_number("seed", seed, 0, 2**63 - 1, remedy)


def choice(name: str, value: Any, allowed: tuple[str, ...], remedy: str = "choose one of these") -> str:
    """value if it is one of the allowed names."""
    if not isinstance(value, str) or value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}, found {shown(value)}; {remedy}.")
    return value


def switch(name: str, value: Any) -> bool:
    """value if it is a truth value."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} must be true or false, found {shown(value)}; pass one of these.")
    return bool(value)


def listed(name: str, given: Any, remedy: str) -> list[Any]:
    """The entries of a list, a tuple, a set or an array of one or two dimensions; text and anything else is refused."""
    if isinstance(given, np.ndarray | Tensor):
        given = real_array(name, given, remedy).tolist() if given.ndim in (1, 2) else None
    if not isinstance(given, list | tuple | set | frozenset | range):
        raise InputError(f"{name} must be a list, found {shown(given)}; {remedy}.")
    return list(given)


def answer_of(name: str, function: Callable[[Tensor], Any], x: Tensor, argument: str = "x") -> Any:
    """The values of a caller's function at x; an error in it is reported with its name."""
    try:
        return function(x)
    except LevytorchError:
        raise
    except Exception as error:  # anything may happen in a function that someone else wrote
        raise InputError(
            f"{name}({argument}) must return numbers for a tensor {argument}, found that it raises "
            f"{type(error).__name__} ({' '.join(str(error).split())[:200]}); correct the function."
        ) from error


def shown(value: Any) -> str:
    """A value in one short line of a message."""
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim:
        return f"an array of shape {tuple(value.shape)}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a repr may do anything, an int may be too long to print
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _real(value: Any) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (numbers.Real, decimal.Decimal, np.number)):
        if isinstance(value, Tensor) and value.ndim == 0 and not value.is_complex() and value.dtype != torch.bool:
            return float(value)
        raise TypeError
    return float(value)


def common_shape(*shapes: Sequence[int]) -> torch.Size:
    """The shape that these broadcast to, or a ValueError; torch's own function imports a second's worth of modules."""
    return torch.Size(np.broadcast_shapes(*(tuple(shape) for shape in shapes)))


def known_keys(
    name: str,
    given: Iterable[Any],
    allowed: Collection[str],
    error: type[LevytorchError] = InputError,
    also: Collection[str] = (),
) -> None:
    """Refuse a key that nothing would read: it is misspelt, or meant for something else.

    also: names that are no keys, but may have been meant.
    """
    for key in given:
        if key not in allowed:
            near = nearest_names(str(key), [*allowed, *also])
            remedy = f"use {near[0]}, or remove it" if near else "remove it"
            raise error(f"{name} must be among {', '.join(sorted(allowed))}, found {shown(key)}; {remedy}.")


def nearest_names(name: str, known: Iterable[str]) -> list[str]:
    """The name that a misspelt one most probably means, if there is one; small and large letters count as the same."""
    by_letters = {one.lower().replace("_", ""): one for one in known}
    near = difflib.get_close_matches(name.lower().replace("_", ""), by_letters, 1, cutoff=0.7)
    return [by_letters[one] for one in near]


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} in an array of shape {value.shape}"
    return "None" if value is None else f"{type(value).__name__} {shown(value)}"


def _refusal(name: str, found: str, remedy: str) -> InputError:
    return InputError(f"{name} must be numeric, found {found}; {remedy}.")


def path_of(path: Any) -> Path:
    """A path from text or a path; anything else is refused (open(5) would be somebody's socket)."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(
            f"path must be that of a file, found {' '.join(repr(path).split())[:80]}; pass text or a pathlib.Path."
        )
    if any(len(part.encode(errors="surrogateescape")) > _LONGEST_NAME for part in Path(text).parts):
        raise InputError(f"path must have names of at most {_LONGEST_NAME} bytes, found {text[:60]!r}...; shorten it.")
    return Path(text)
