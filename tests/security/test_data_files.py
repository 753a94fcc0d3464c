"""Arrays, archives, tables and text that lie about themselves."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from levytorch import Dynamics, Trajectories, simulate
from levytorch.data import numpy_files
from levytorch.errors import InputError
from tests.security.hostile import Hostile


def npy(shape: str, descr: str = "'<f8'", data: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


ROUND = {
    "x": npy("(4, 8)", data=np.random.default_rng(0).normal(size=32).tobytes()),
    "dt": npy("()", data=np.float64(0.1).tobytes()),
}
ARRAYS = {
    "terabytes": npy("(1000000000000, 1000)", data=bytes(64)),
    "more than there is": npy("(100,)", data=bytes(64)),
    "less than there is": npy("(4,)", data=bytes(64)),
    "negative": npy("(-1,)", data=bytes(64)),
    "an overflow": npy("(4611686018427387904, 4)", data=bytes(64)),
    "no shape": npy("'x'", data=bytes(64)),
    "code as a shape": npy("__import__('os').mkdir('executed')", data=bytes(64)),
    "code as a type": npy("(8,)", "__import__('os').mkdir('executed')", data=bytes(64)),
    "a truncated header": npy("(8,)")[:20],
    "entries without size": npy("(100000000000,)", "'<U0'"),
    "negative twice": npy("(-1, -8)", data=bytes(64)),
    "a header nested deeply": npy("-" * 9000 + "1", data=bytes(64)),
    "a header of gigabytes": b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + b" " * 20000,
}


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("kind", [*ARRAYS, "objects"])
@pytest.mark.parametrize("on_disk", [{}, {"on_disk": "cache"}])
def test_hostile_arrays(kind, suffix, on_disk, proof, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = ARRAYS.get(kind) or npy("(1,)", "'|O'", pickle.dumps(np.array([Hostile(proof)], dtype=object)))
    file = tmp_path / f"data{suffix}"
    file.write_bytes(content if suffix == ".npy" else zipped(x=content))
    with pytest.raises(InputError, match="file of plain arrays, found"):
        Trajectories.from_file(file, dt=0.1, **on_disk)
    assert not proof.exists()


def encrypted(whole: bytes) -> bytes:
    """Every member marked as encrypted."""
    content = bytearray(whole)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(signature)
        while place >= 0:
            content[place + offset] |= 1
            place = content.find(signature, place + 4)
    return bytes(content)


def garbled(whole: bytes) -> bytes:
    """The compressed bytes of the first member replaced."""
    start = whole.index(b"PK\x03\x04") + 55
    return whole[:start] + b"\xff" * 30 + whole[start + 30 :]


@pytest.mark.parametrize("on_disk", [{}, {"on_disk": "cache"}])
@pytest.mark.parametrize("damage", [encrypted, garbled, lambda whole: whole[:60] + whole[90:]])
def test_damaged_archives(damage, on_disk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.npz").write_bytes(zipped(**ROUND))
    Trajectories.from_file("x.npz")
    Path("x.npz").write_bytes(damage(zipped(**ROUND)))
    with pytest.raises(InputError, match="file of plain arrays, found"):
        Trajectories.from_file("x.npz", **on_disk)


@pytest.mark.parametrize("on_disk", [{}, {"on_disk": "cache"}])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ids", npy("(100000000000,)", "'<U0'")),
        ("ids", npy("(1000000,)", "'|u1'", bytes(1_000_000))),
        ("ids", npy("(2, 2)", "'<i8'", bytes(32))),
        ("ids", npy("()", "'<i8'", bytes(8))),
        ("dt", npy("(1000000,)", "'|u1'", bytes(1_000_000))),
        ("offsets", npy("(1000000,)", "'<i8'", bytes(8_000_000))),
    ],
)
def test_small_arrays_that_are_large(name, content, on_disk, tmp_path, monkeypatch):
    """A file of kilobytes does not become megabytes of Python objects before it is refused."""
    monkeypatch.chdir(tmp_path)
    Path("x.npz").write_bytes(zipped(**{**ROUND, name: content}))
    with pytest.raises(InputError, match=r"x\.npz(: | must be )"):
        Trajectories.from_file("x.npz", **on_disk)


@pytest.mark.parametrize("kind", ["<M8[s]", "|S3", "<c16", "|V8", "<m8[s]"])
def test_ids_that_a_record_cannot_hold(kind, tmp_path):
    file = tmp_path / "x.npz"
    size = 4 * np.dtype(kind).itemsize
    file.write_bytes(zipped(**ROUND, ids=npy("(4,)", f"'{kind}'", bytes(range(size)))))
    with pytest.raises(InputError, match="ids must be numbers or text on disk"):
        Trajectories.from_file(file, on_disk=tmp_path / "cache")


IDS = {
    "list": pl.Series([[1.0]] * 6),
    "array": pl.Series([[1.0]] * 6, dtype=pl.Array(pl.Float64, 1)),
    "struct": pl.Series([{"a": 1.0}] * 6),
    "binary": pl.Series([b"x"] * 6),
    "date": pl.Series([0] * 6).cast(pl.Date),
    "datetime": pl.Series([0] * 6).cast(pl.Datetime("us")),
    "decimal": pl.Series(["1.5"] * 6).cast(pl.Decimal(10, 2)),
    "duration": pl.Series([1] * 6).cast(pl.Duration("us")),
    "time": pl.Series([1] * 6).cast(pl.Time),
    "null": pl.Series([None] * 6),
}


@pytest.mark.parametrize("kind", IDS)
def test_columns_that_name_no_trajectories(kind, tmp_path):
    file = tmp_path / "x.parquet"
    columns = {"x": [0.1, 0.3, 0.2, 0.5, 0.4, 0.9], "time": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "id": IDS[kind]}
    pl.DataFrame(columns).write_parquet(file)
    with pytest.raises(InputError, match=r"column 'id'.*; (convert|fill)"):
        Trajectories.from_file(file, on_disk=tmp_path / "cache")
    if kind in ("list", "array", "struct", "null"):
        with pytest.raises(InputError, match=r"column 'id'.*; (convert|fill)"):
            Trajectories.from_file(file)
    else:  # told apart and printed, which is all that names are for
        assert len(Trajectories.from_file(file)) == 1


@pytest.mark.parametrize(
    "values", [[1] * 6, ["a"] * 6, [1.5] * 6, [True] * 6, pl.Series(["a"] * 6, dtype=pl.Categorical)]
)
def test_columns_that_do(values, tmp_path):
    file = tmp_path / "x.parquet"
    columns = {"x": [0.1, 0.3, 0.2, 0.5, 0.4, 0.9], "time": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "id": values}
    pl.DataFrame(columns).write_parquet(file)
    assert Trajectories.from_file(file).ids == Trajectories.from_file(file, on_disk=tmp_path / "cache").ids


def test_an_archive_that_unpacks_to_more_than_the_memory(tmp_path, monkeypatch):
    file = tmp_path / "bomb.npz"
    file.write_bytes(zipped(x=npy("(1000000,)", data=bytes(8_000_000))))
    assert file.stat().st_size < 20_000
    monkeypatch.setattr(numpy_files, "physical_memory", lambda: 4_000_000)
    with pytest.raises(InputError, match="more than"):
        Trajectories.from_file(file, dt=0.1)


def test_an_archive_that_lies_about_its_sizes(tmp_path):
    whole = bytearray(zipped(x=npy("(1000,)", data=bytes(8000))))
    place = whole.index(b"PK\x01\x02") + 24  # the uncompressed size in the central directory
    whole[place : place + 4] = struct.pack("<I", 200)
    (tmp_path / "lies.npz").write_bytes(whole)
    with pytest.raises(InputError, match="file of plain arrays, found"):
        Trajectories.from_file(tmp_path / "lies.npz", dt=0.1)


def test_parquet_files_that_lie(tmp_path):
    """Every byte of the footer damaged in turn: refused or read, but never a crash of the parser."""
    good = tmp_path / "good.parquet"
    simulate(Dynamics.named("constant"), 3, 4, 0.1).to_file(good)
    whole = good.read_bytes()
    for place in range(len(whole) - 1, max(4, len(whole) - 400), -13):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        file = tmp_path / "bad.parquet"
        file.write_bytes(damaged)
        try:
            Trajectories.from_file(file)
        except InputError:
            continue


def test_csv_files_are_text_only(tmp_path):
    for number, text in enumerate(["=cmd|' /C calc'!A0,1\n", "x,time\n=1+1,0\n", "x,time\n__import__('os'),0\n"]):
        file = tmp_path / f"{number}.csv"
        file.write_text(text)
        with pytest.raises(InputError):
            Trajectories.from_file(file)
