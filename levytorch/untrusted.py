"""Files from any source, read as plain values: YAML, JSON, CSV, and what torch.save wrote.

Reading executes nothing and costs no more than the size of the file says: a few hundred bytes of YAML that refers to
itself, or a packed archive, could otherwise ask for all of the memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from levytorch import exchange
from levytorch.archives import check_tensors
from levytorch.errors import InputError

LARGEST = 1 << 20  # bytes of a file of settings; honest ones have some thousands
DEEPEST = 50  # levels of nesting; honest files have less than ten
MOST = 50_000  # keys and values; reading more takes seconds
LONGEST = 64  # characters of a number: longer ones do not fit a float, and take time without bound to convert
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")


def read_yaml(file: Path) -> Any:
    """The plain values of a YAML file without references (levytorch and hydra write none)."""
    text = _text(file, LARGEST)
    try:
        _check_events(text)
        return _yaml().load(text, Loader=_plain_loader())
    except Exception as error:  # PyYAML lets through whatever int(), date() and the like raise
        raise InputError(f"{file} must be plain YAML, found {_told(error)}; restore it.") from None


def read_settings(file: Path) -> Mapping[str, Any]:
    """A YAML file that holds a mapping."""
    content = read_yaml(file)
    if not isinstance(content, Mapping):
        held = "nothing" if content is None else f"a {type(content).__name__}"
        raise InputError(f"{file} must hold a mapping of settings, found {held}; restore it.")
    return content


def read_json(file: Path, largest: int | None = LARGEST) -> Any:
    """The values of a JSON file; `largest`: bytes it may have."""
    text = _text(file, largest)
    try:
        return json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} must be JSON, found {_told(error)}; restore it.") from None


def read_csv(file: Path, columns: Sequence[str], texts: Sequence[str] = ()) -> dict[str, np.ndarray[Any, Any]]:
    """Columns by name, of numbers unless they are named in `texts`; those of `columns` must be there."""
    import polars as pl

    try:
        table = pl.read_csv(file, infer_schema_length=None)
        kinds = {name: pl.String if name in texts else pl.Float64 for name in table.columns}
        out = {name: table[name].cast(kind).to_numpy() for name, kind in kinds.items()}
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(
            f"{file} must be a CSV of numbers, found what cannot be read ({type(error).__name__}); run again."
        ) from error
    absent = [name for name in columns if name not in out]
    if absent:
        raise InputError(f"{file} must have the columns {', '.join(columns)}, found no {absent[0]}; run again.")
    return out


def load_tensors(file: Path) -> Any:
    """Plain tensors and numbers of a file that holds all that it declares: of torch.save, or of safetensors."""
    if exchange.is_exchange(file):
        return exchange.unpack(file)
    check_tensors(file)
    return torch.load(file, map_location="cpu", weights_only=True)


def _text(file: Path, largest: int | None) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read() if largest is None else stream.read(largest + 1)
    except OSError as error:
        raise InputError(f"{file} must be a file that can be read, found {error.strerror}; restore it.") from None
    if largest is not None and len(content) > largest:
        raise InputError(f"{file} must have at most {largest} bytes, found more; restore it.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{file} must be text in UTF-8, found other bytes; restore it.") from None


def _yaml() -> Any:
    import yaml  # type: ignore[import-untyped]

    return yaml


@cache
def _plain_loader() -> type:
    """A SafeLoader that refuses merge keys and numbers of absurd length."""
    yaml = _yaml()

    class PlainSafeLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def flatten_mapping(self, node: Any) -> None:
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise ValueError("a merge key")
            super().flatten_mapping(node)

    for name in ("int", "float"):
        original = getattr(PlainSafeLoader, f"construct_yaml_{name}")
        PlainSafeLoader.add_constructor(f"tag:yaml.org,2002:{name}", _short(original))
    return PlainSafeLoader


def _short(construct: Any) -> Any:
    """A constructor of numbers that looks at their length first: 1:1:1:... is a number of base 60 to YAML."""

    def checked(loader: Any, node: Any) -> Any:
        if len(node.value) > LONGEST:
            raise ValueError(f"a number of {len(node.value)} characters")
        return construct(loader, node)

    return checked


def _check_events(text: str) -> None:
    """Refuse references, deep nesting and masses of values while they are only events: building them costs more."""
    yaml = _yaml()
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_plain_loader())):
        if count > MOST:
            raise ValueError(f"more than {MOST} values")
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"a reference, *{event.anchor:.40}")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} levels of nesting")


def _integer(text: str) -> int:
    if len(text) > LONGEST:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _told(error: Exception) -> str:
    """What is wrong, on one line: parsers show the place on several."""
    if isinstance(error, RecursionError):
        return "too many levels of nesting"
    message = " ".join(str(error).split())[:200]
    # what is raised by accident does not speak of the file: !!bool x is a KeyError 'x'
    accident = isinstance(error, LookupError | AttributeError | TypeError | ArithmeticError)
    return f"{type(error).__name__}: {message}" if accident or not message else message


def lookup(config: Mapping[str, Any], key: str, default: Any = None, depth: int = 8) -> Any:
    """The value of a dotted key, references within the configuration followed (to a limited depth).

    `${dotted.key}` is looked up in the same configuration only: no resolvers, so neither code nor the environment.
    """
    value: Any = config
    for part in key.split("."):
        value = _follow(config, value, depth)
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return _follow(config, value, depth)


def _follow(config: Mapping[str, Any], value: Any, depth: int) -> Any:
    """A value, or what its `${dotted.key}` refers to; any other interpolation stays the text it is."""
    if isinstance(value, str) and depth > 0:
        reference = _REFERENCE.fullmatch(value)
        if reference is not None:
            return lookup(config, reference[1], None, depth - 1)
    return value
