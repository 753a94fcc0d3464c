"""Files of lattices: what was saved comes back, and nothing else is believed."""

import math
import zipfile

import numpy as np
import pytest
import torch

from levytorch import InputError, Lattice, Transitions
from levytorch.data import lattice_tables

rng = np.random.default_rng(0)


def lattice(**options):
    t = Transitions(rng.uniform(0, 6, 300), rng.standard_cauchy(300), 0.1, trajectory=np.arange(300) // 10)
    return t.lattice(**options)


def same(a, b):
    assert (a.grid, a.n_blocks, a.mu, a.mu_is_rate, a.reach) == (b.grid, b.n_blocks, b.mu, b.mu_is_rate, b.reach)
    assert (a.dropped, a.x_range) == (b.dropped, b.x_range)
    for name in ("dt", "CT", "TRT"):
        assert np.array_equal(getattr(a, name), getattr(b, name))
    for name in ("weights", "states", "loose"):
        for p, q in zip(getattr(a, name), getattr(b, name)):
            assert np.array_equal(p, q)
            assert p.dtype == q.dtype
    assert all(torch.equal(p, q) for p, q in zip(a.batch(), b.batch()))


@pytest.mark.parametrize(
    "options", [{}, {"CT": 1.0, "TRT": 30.0, "n_blocks": 4, "reach": 3.0}, {"period": None, "n_blocks": 2}]
)
def test_what_was_saved_comes_back(tmp_path, options):
    saved = lattice(**options)
    for name in ("a.npz", "b.lattice"):
        saved.save(tmp_path / "deep" / name)
        loaded = Lattice.load(tmp_path / "deep" / name)
        same(loaded, saved)
        same(loaded + saved, saved + loaded)
        assert repr(loaded) == repr(saved)
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["a.npz", "b.lattice"]  # nothing left over


@pytest.fixture
def contents(tmp_path):
    """The arrays of a sound file, and a function that loads changed ones."""
    file = tmp_path / "lattice.npz"
    lattice(CT=1.0, reach=3.0, n_blocks=2).save(file)
    arrays = dict(np.load(file))

    def load(**changes):
        np.savez(file, **{k: v for k, v in (arrays | changes).items() if v is not None})
        return Lattice.load(file)

    assert load().n_blocks == 2
    return arrays, load


def test_a_file_that_says_what_cannot_be(contents):
    arrays, load = contents

    def with_entry(name, index, value):
        changed = arrays[name].copy()
        changed[index] = value
        return changed

    entries = [
        ("version", np.array(2)),
        ("version", np.array("1")),
        ("version", None),
        ("dt", np.array([-1.0])),
        ("dt", np.array([])),
        ("dt", np.array([0.1, 0.2])),
        ("dt", np.array([math.nan])),
        ("dt", np.array([1], dtype=np.int64)),
        ("n_blocks", np.array(0)),
        ("n_blocks", np.array(10**9)),
        ("n_blocks", np.array(3)),
        ("mu", np.array([math.nan, 0.0])),
        ("CT", np.array([-1.0])),
        ("TRT", np.array([math.nan])),
        ("reach", np.array(0.0)),
        *(("grid", with_entry("grid", k, v)) for k, v in ((0, -1.0), (1, math.inf), (2, 0.0), (2, 0.01), (3, 5.0))),
        *(("grid", with_entry("grid", k, v)) for k, v in ((4, 1e9), (4, 0.5), (5, math.nan), (6, 0.0), (6, 1e9))),
        ("grid", with_entry("grid", 0, math.inf)),
        ("grid", arrays["grid"][:3]),
        ("weights_keys", arrays["weights_keys"][::-1].copy()),
        ("weights_keys", with_entry("weights_keys", -1, 2**62)),
        ("weights_keys", with_entry("weights_keys", 0, -1)),
        ("weights_keys", arrays["weights_keys"].astype(np.float64)),
        ("weights_values", with_entry("weights_values", 3, math.inf)),
        ("weights_values", arrays["weights_values"][:-1]),
        ("weights_starts", arrays["weights_starts"][:-1]),
        ("weights_starts", with_entry("weights_starts", 1, -5)),
        ("weights_starts", with_entry("weights_starts", -1, 10**9)),
        ("states_keys", with_entry("states_keys", -1, 10**6)),
        ("states_values", with_entry("states_values", 0, 0.5)),
        ("states_values", with_entry("states_values", 0, -1.0)),
        ("states_values", 0 * arrays["states_values"]),
        ("loose_row", with_entry("loose_row", 0, 99)),
        ("loose_dx", arrays["loose_dx"][:-1]),
        ("loose_x", with_entry("loose_x", 0, math.nan)),
        ("dropped_reasons", np.array([1.0])),
        ("dropped", np.array([1, 2])),
        ("x_range", np.array([0.0])),
        ("loose_x", None),
        ("CT", np.array([{}], dtype=object)),
    ]
    for name, value in entries:
        with pytest.raises(
            InputError, match=r"must be a lattice that Lattice\.save wrote, found .*; save it again"
        ) as e:
            load(**{name: value})
        assert "\n" not in str(e.value), (name, value)


def test_a_file_that_is_no_lattice(tmp_path):
    file = tmp_path / "some.npz"
    lattice().save(file)
    whole = file.read_bytes()
    for content in (b"", b"PK\x03\x04", whole[: len(whole) // 2], whole[:-30], b"x" * 1000, whole[100:]):
        file.write_bytes(content)
        with pytest.raises(InputError, match="save it again"):
            Lattice.load(file)
    np.savez(file, x=np.zeros(3))
    with pytest.raises(InputError, match=r"found the member 'x\.npy', which is not expected"):
        Lattice.load(file)
    with pytest.raises(InputError, match="found no file"):
        Lattice.load(tmp_path / "absent.npz")
    with pytest.raises(InputError, match="found no file; check the path"):
        Lattice.load(tmp_path)
    with pytest.raises(InputError, match="must be that of a file"):
        Lattice.load(3)


def test_a_file_that_declares_more_than_it_holds(tmp_path):
    """Refused before memory is taken."""
    file = tmp_path / "huge.npz"
    header = (
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000,), }".ljust(117)
    )
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("weights_values.npy", header + b"\n" + b"\0" * 80)
    with pytest.raises(InputError, match="declares"):
        Lattice.load(file)


def test_a_failed_save_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "a.npz"
    first = lattice()
    first.save(file)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lattice_tables.np, "savez", full)
    with pytest.raises(OSError, match="could not be written"):
        lattice().save(file)
    monkeypatch.undo()
    same(Lattice.load(file), first)
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]
