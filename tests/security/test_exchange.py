"""Recoveries, value functions and lattices as safetensors: the same content comes back, and nothing but content."""

from __future__ import annotations

import json
import math
import struct
import warnings

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from levytorch import Dynamics, Lattice, Recovery, ValueFunction, recover, simulate, solve_value
from levytorch.errors import InputError
from levytorch.exchange import pack, unpack


@pytest.fixture(scope="module")
def pairs():
    return simulate(Dynamics.named("constant"), 40, 20, 1 / 20, seed=2).transitions()


@pytest.fixture(scope="module")
def found(pairs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return recover(pairs, alpha=0.3, n_basis=3, law="frozen")


def same(one, other) -> bool:
    """Equal in kind and to the bit, at any depth; NaN is NaN."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


def test_a_recovery_is_the_same_in_both_formats(found, tmp_path):
    old = Recovery.load(found.save(tmp_path / "x.pt"))
    new = Recovery.load(found.save(tmp_path / "x.safetensors"))
    assert same(old.content(), new.content())
    with safe_open(str(tmp_path / "x.safetensors"), "np") as opened:  # by another program
        assert np.array_equal(opened.get_tensor("theta"), found.theta.numpy())
        assert json.loads(opened.metadata()["levytorch"])["converged"] is True


def test_a_value_function_is_the_same_in_both_formats(found, tmp_path):
    V = solve_value(found, torch.cos, 1.0, n_modes=9)
    x = torch.linspace(-1.0, 1.0, 5, dtype=torch.float64)
    for name in ("v.pt", "v.safetensors"):
        assert torch.equal(ValueFunction.load(V.save(tmp_path / name))(x), V(x))


def test_a_lattice_is_the_same_in_both_formats(pairs, tmp_path):
    lattice = pairs.lattice(CT=3.0, TRT=20.0, n_blocks=2, reach=15.0)
    for name in ("x.npz", "x.safetensors"):
        lattice.save(tmp_path / name)
        loaded = Lattice.load(tmp_path / name)
        assert all(torch.equal(a, b) for a, b in zip(loaded.batch_of_blocks(), lattice.batch_of_blocks()))
        assert loaded.facts() == lattice.facts()
        assert loaded.grid == lattice.grid


def test_plain_values_come_back_as_they_were(tmp_path):
    content = {
        "numbers": [1, -(2**63), 0.1, -0.0, math.nan, math.inf, -math.inf, True, None, "\x1b text"],
        "tuple": (1, (2.0, [])),
        "keys": {1: "a", (2, 3): "b", "$": {"$": "tensor"}},
        "tensors": [torch.ones(2, 3).T, torch.zeros(0), torch.tensor(1 + 2j), torch.arange(3), torch.ones(1).expand(4)],
    }
    file = tmp_path / "x.safetensors"
    file.write_bytes(pack(content))
    assert same(unpack(file), content)
    with pytest.raises(TypeError, match="plain values only, found Dynamics"):
        pack(Dynamics.named("constant"))


def described(**tensors):
    return {"a": torch.zeros(2)} | tensors


@pytest.mark.parametrize(
    ("tensors", "content", "message"),
    [
        (described(), None, "no description"),
        (described(), '{"a": 1', "JSONDecodeError|Expecting"),
        (described(), '{"a": {"$": "tensor", "name": "b"}}', "KeyError"),
        (described(), '[{"$": "tensor", "name": "a"}, {"$": "tensor", "name": "a"}]', "KeyError"),
        (described(), '{"a": 1}', "the tensor 'a', which is not expected"),
        (described(), '{"$": "code", "of": ["import os"]}', "a value of the kind 'code'"),
        (described(), '{"$": "tensor", "name": ["a"]}', "TypeError"),
        (described(), '{"$": "complex", "name": "a", "of": NaN}', "the number NaN"),
        (described(), "9" * 5000, "5000 digits"),
        (described(), "[" * 100_000 + "]" * 100_000, "RecursionError|levels"),
        (described(), "[" + "0," * 1_000_001 + "0]", "characters of JSON"),
        ({f"t{k}": torch.zeros(1) for k in range(5000)}, "1", "5000 tensors"),
    ],
)
def test_files_from_others_are_refused_in_one_sentence(tensors, content, message, tmp_path):
    file = tmp_path / "x.safetensors"
    save_file(tensors, file, None if content is None else {"levytorch": content})
    with pytest.raises(InputError, match=rf"found .*({message}).*; save it again\.$"):
        Recovery.load(file)
    with pytest.raises(InputError, match=r"; save it again\.$"):
        Lattice.load(file)


@pytest.mark.parametrize("damage", ["short", "header", "empty", "pickle"])
def test_damaged_files_are_refused(damage, found, tmp_path):
    file = found.save(tmp_path / "x.safetensors")
    whole = file.read_bytes()
    header = struct.pack("<Q", 1 << 40)
    pieces = {
        "short": whole[:-9],
        "header": header + whole[8:],
        "empty": b"",
        "pickle": found.save(tmp_path / "x.pt").read_bytes(),
    }
    file.write_bytes(pieces[damage])
    for load in (Recovery.load, Lattice.load):
        with pytest.raises(InputError, match=r"; save it again\.$"):
            load(file)
