"""Tensors and plain values as a safetensors file: JSON and raw numbers, which can hold neither code nor strides.

The nested content stands as JSON in the metadata of the file, with `{"$": "tensor", "name": ...}` where a tensor was.
Other programs read the numbers by name with any safetensors library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SUFFIX = ".safetensors"
MOST_TENSORS, MOST_LEVELS, MOST_VALUES, LONGEST = 4096, 50, 1_000_000, 64
MOST_HEADER = 32 << 20  # bytes
_CONTENT, _MARK = "levytorch", "$"
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def is_exchange(path: Path) -> bool:
    """Whether a file has, or will have, this format, by its name."""
    return path.suffix == SUFFIX


def pack(content: Any) -> bytes:
    """The bytes of a file."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    plain = _plain(content, "", tensors)
    return bytes(save(tensors, {_CONTENT: json.dumps(plain, allow_nan=False, separators=(",", ":"))}))


def unpack(file: Path) -> Any:
    """What `pack` was given; ValueError unless the file holds exactly what its JSON refers to."""
    from safetensors import SafetensorError, safe_open

    with file.open("rb") as stream:
        header = int.from_bytes(stream.read(8), "little")
    if header > MOST_HEADER:
        raise ValueError(f"a header of {header} bytes")
    try:
        with safe_open(str(file), "pt") as opened:
            names = list(opened.keys())
            text = (opened.metadata() or {}).get(_CONTENT)
            if text is None:
                raise ValueError("no description of its content")
            if len(names) > MOST_TENSORS or text.count(",") + text.count("[") + text.count("{") > MOST_VALUES:
                raise ValueError(f"{len(names)} tensors and {len(text)} characters of JSON")
            tensors = {name: opened.get_tensor(name) for name in names}
        content = _restored(json.loads(text, parse_int=_integer, parse_constant=_no_constant), tensors, 0)
    except (SafetensorError, RecursionError, KeyError, TypeError) as error:
        raise ValueError(f"a safetensors file that is none ({type(error).__name__})") from None
    if tensors:
        raise ValueError(f"the tensor {next(iter(tensors))[:60]!r}, which is not expected")
    return content


def _plain(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """JSON of a value; its tensors are put aside under names that say where they stood."""
    if isinstance(value, Tensor):
        kind = "complex" if value.is_complex() else "tensor"
        numbers = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        tensors[name] = numbers.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {_MARK: kind, "name": name}
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) or key.startswith(_MARK) for key in value):
            return {_MARK: "items", "of": _plain([list(item) for item in value.items()], name, tensors)}
        return {key: _plain(part, f"{name}/{key}" if name else key, tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_plain(part, f"{name}/{i}", tensors) for i, part in enumerate(value)]
        return parts if isinstance(value, list) else {_MARK: "tuple", "of": parts}
    if isinstance(value, float) and not math.isfinite(value):
        return {_MARK: "float", "of": next(word for word, number in _WORDS.items() if repr(number) == repr(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"plain values only, found {type(value).__name__}")


def _restored(value: Any, tensors: dict[str, Tensor], level: int) -> Any:
    """The inverse of `_plain`; every tensor is used once."""
    if level > MOST_LEVELS:
        raise ValueError(f"more than {MOST_LEVELS} levels")
    if isinstance(value, list):
        return [_restored(part, tensors, level + 1) for part in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_MARK)
    if kind is None:
        return {key: _restored(part, tensors, level + 1) for key, part in value.items()}
    if kind in ("tensor", "complex"):
        numbers = tensors.pop(value["name"])
        if kind == "tensor":
            return numbers
        if numbers.ndim == 0 or numbers.shape[-1] != 2 or numbers.dtype not in (torch.float64, torch.float32):
            raise ValueError("complex numbers without two parts")
        return torch.view_as_complex(numbers)
    if kind == "float":
        return _WORDS[value["of"]]
    parts = [_restored(part, tensors, level + 1) for part in value["of"]]
    if kind == "tuple":
        return tuple(parts)
    if kind == "items":
        return dict(parts)
    raise ValueError(f"a value of the kind {str(kind)[:30]!r}")


def _integer(text: str) -> int:
    if len(text) > LONGEST or not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _no_constant(text: str) -> float:
    raise ValueError(f"the number {text}")
