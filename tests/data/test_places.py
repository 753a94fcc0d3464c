"""Patterns, directories, lists, compressed text, feather, and remote files by fsspec."""

import gzip

import numpy as np
import pytest

from levytorch import Trajectories
from levytorch.data import transition_blocks
from levytorch.data.places import data_file, file_names
from levytorch.errors import InputError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def tracks(tmp_path):
    """Three files, each of two trajectories."""
    for k in range(3):
        x = np.random.default_rng(k).normal(size=(2, 4))
        Trajectories.from_arrays(x, 0.5, ids=["a", "b"]).to_file(tmp_path / f"t{k}.csv")
    return tmp_path


def read(path, **options):
    t = Trajectories.from_file(path, **options)
    return t.ids, t.x


def test_patterns_directories_and_lists(tracks):
    ids, x = read(str(tracks / "t*.csv"))
    assert ids == ("t0/a", "t0/b", "t1/a", "t1/b", "t2/a", "t2/b")
    assert Trajectories.from_file(str(tracks / "t*.csv")).dt == 0.5
    for path in (tracks, [tracks / f"t{k}.csv" for k in range(3)], [str(tracks / "t[01].csv"), tracks / "t2.csv"]):
        np.testing.assert_array_equal(read(path)[1], x)
    assert read([tracks / "t1.csv"])[0] == ("t1/a", "t1/b")
    assert read(tracks / "t1.csv")[0] == ("a", "b")


def test_parts_with_other_steps_and_labels_become_one(tmp_path):
    Trajectories.from_arrays([1.0, 2.0, 4.0], 0.5, action=["up", "up", "up"]).to_file(tmp_path / "a.parquet")
    Trajectories.from_arrays([1.0, 0.0], 0.25, action=["down", "down"]).to_file(tmp_path / "b.feather")
    t = Trajectories.from_file(tmp_path).transitions()
    np.testing.assert_array_equal(t.dt, [0.5, 0.5, 0.25])
    assert list(t.action) == ["up", "up", "down"]
    Trajectories.from_arrays([1.0, 0.0], 0.25).to_file(tmp_path / "c.csv")
    with pytest.raises(InputError, match="all files must have a action if one has, found none in c"):
        Trajectories.from_file(tmp_path)


def test_compressed_text_and_feather(tracks):
    plain = tracks / "t0.csv"
    packed = tracks / "p.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    np.testing.assert_array_equal(read(packed)[1], read(plain)[1])
    blocks = transition_blocks(packed, block=3)
    np.testing.assert_array_equal(
        np.concatenate([b.dx for b in blocks]), Trajectories.from_file(plain).transitions().dx
    )
    Trajectories.from_file(plain).to_file(tracks / "f.feather")
    np.testing.assert_array_equal(read(tracks / "f.feather")[1], read(plain)[1])
    np.testing.assert_array_equal(read(tracks / "f.feather", on_disk=tracks / "cache")[1], read(plain)[1])
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"p\.csv\.gz must be a readable \.csv\.gz file, found a damaged one"):
        read(packed)
    packed.write_bytes(plain.read_bytes())
    with pytest.raises(InputError, match=r"must be a \.csv\.gz file, found other content"):
        read(packed)


def test_a_bad_cell_of_a_compressed_file_is_named_by_the_file_itself(tmp_path):
    (tmp_path / "p.csv.gz").write_bytes(gzip.compress(b"time,x\n0,1\n1,zwei\n2,3\n"))
    with pytest.raises(InputError, match=rf"{tmp_path}/p\.csv\.gz, column 'x', row 2"):
        read(tmp_path / "p.csv.gz")


def test_remote_files(tracks):
    memory = fsspec.filesystem("memory")
    for k in range(2):
        memory.pipe(f"/levytorch/t{k}.csv", (tracks / f"t{k}.csv").read_bytes())
    assert read("memory://levytorch/t0.csv")[0] == ("a", "b")
    assert read("memory://levytorch/*.csv")[0] == ("t0/a", "t0/b", "t1/a", "t1/b")
    assert file_names("memory://levytorch") == ["memory:///levytorch/t0.csv", "memory:///levytorch/t1.csv"]
    file = data_file("memory://levytorch/t0.csv")
    before, copy = file.identity(), file.local
    memory.pipe("/levytorch/t0.csv", (tracks / "t2.csv").read_bytes())
    assert data_file("memory://levytorch/t0.csv").identity() != before
    del file
    assert not copy.exists()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("memory://levytorch/none.csv", "the file must be readable, found FileNotFoundError"),
        ("nosuch://a.csv", "the protocol must be one that fsspec can open here"),
        ("simplecache::memory://a.csv", "a path must have one protocol, found a chain"),
        ("none*.csv", "a file must match this pattern, found none"),
        ([], "path must name at least one file"),
        (["a.csv", "a.csv"], "path must name each file once, found a.csv 2 times"),
    ],
)
def test_refusals(path, said):
    with pytest.raises(InputError, match=said):
        Trajectories.from_file(path)


def test_an_empty_directory_and_several_files_on_disk(tmp_path, tracks):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="a directory must hold files of data"):
        Trajectories.from_file(tmp_path / "empty")
    with pytest.raises(InputError, match="on_disk must be used with one file"):
        Trajectories.from_file(str(tracks / "*.csv"), on_disk=tmp_path / "cache")
