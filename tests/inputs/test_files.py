"""Files that were cut, damaged, written in another encoding or filled with the wrong things.

A file that is read must say what an independent reader finds in it; everything else is refused in one sentence.
"""

import csv
import io
import math

import numpy as np
import polars as pl
import pytest

from levytorch import Recovery, Trajectories, ValueFunction
from tests import sampling
from tests.inputs.judge import REFUSED, judge
from tests.inputs.targets import recovery, value

N = 60
TIMES = np.arange(N) * 0.5
VALUES = np.cumsum(np.random.default_rng(0).standard_normal(N))
CSV = "time,x\n" + "".join(f"{t},{x!r}\n" for t, x in zip(TIMES.tolist(), VALUES.tolist()))


def write(folder, suffix):
    """The clean file of a kind."""
    file = folder / f"clean{suffix}"
    if suffix == ".csv":
        file.write_text(CSV)
    elif suffix == ".tsv":
        file.write_text(CSV.replace(",", "\t"))
    elif suffix == ".parquet":
        pl.DataFrame({"time": TIMES, "x": VALUES}).write_parquet(file)
    elif suffix == ".npy":
        np.save(file, VALUES)
    else:
        np.savez(file, x=VALUES, times=TIMES)
    return file


def read(file):
    options = {"dt": 0.5} if file.suffix == ".npy" else {}
    return Trajectories.from_file(file, **options)


def independent(file):
    """x as another reader sees it, or None when it cannot."""
    try:
        if file.suffix in (".csv", ".tsv"):
            text = file.read_bytes().decode("utf-8-sig")
            rows = list(csv.DictReader(io.StringIO(text), delimiter="\t" if file.suffix == ".tsv" else ","))
            return np.array([float(row["x"]) for row in rows if row["x"] not in (None, "")])
        if file.suffix == ".parquet":
            return pl.read_parquet(file)["x"].to_numpy().astype(float)
        loaded = np.load(file, allow_pickle=False)
        return np.asarray(loaded if file.suffix == ".npy" else loaded["x"], dtype=float).reshape(-1)
    except BaseException:  # polars panics are BaseException
        return None


def damage(data, dice):
    """Bytes cut, flipped, removed, repeated, or overwritten."""
    data, kind = bytearray(data), dice.randrange(6)
    at = dice.randrange(len(data))
    if kind == 0:
        return bytes(data[:at])
    if kind == 1:
        data[at] ^= 1 << dice.randrange(8)
    elif kind == 2:
        for _ in range(dice.randrange(1, 20)):
            data[dice.randrange(len(data))] = dice.randrange(256)
    elif kind == 3:
        del data[at : at + dice.randrange(1, 30)]
    elif kind == 4:
        data[at:at] = data[at : at + 40]
    else:
        data[at : at + 8] = b"\xff" * 8
    return bytes(data)


def try_file(file, what):
    """Read a file and compare; returns whether it was read."""
    answer = judge(lambda: read(file), what)
    if answer is REFUSED:
        return False
    judge(answer.transitions, what)
    assert np.isfinite(answer.x).all(), what
    other = independent(file)
    if other is not None:
        np.testing.assert_array_equal(answer.x.reshape(-1), other, err_msg=what)
    return True


def damaged(folder, suffix, n, seed):
    clean = write(folder, suffix).read_bytes()
    dice = sampling.dice(f"{suffix}{seed}")
    for k in range(n):
        file = folder / f"bad{suffix}"
        file.write_bytes(damage(clean, dice))
        try_file(file, f"{suffix} damage {k}")


SUFFIXES = (".csv", ".tsv", ".parquet", ".npy", ".npz")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files(suffix, tmp_path, record_property):
    damaged(tmp_path, suffix, 400, 0)
    record_property("damaged files", 400)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_some_damaged_files(suffix, tmp_path, record_property):
    assert try_file(write(tmp_path, suffix), suffix)
    damaged(tmp_path, suffix, 30, 1)
    record_property("damaged files", 30)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["recovery", "value"])
def test_damaged_results(kind, tmp_path, record_property):
    """recovery.pt and value.pt: torch.load has its own ways to fail."""
    clean = (recovery() if kind == "recovery" else value()).save(tmp_path / "clean.pt").read_bytes()
    dice = sampling.dice(kind)
    load = Recovery.load if kind == "recovery" else ValueFunction.load
    for k in range(200):
        file = tmp_path / "bad.pt"
        file.write_bytes(damage(clean, dice))
        judge(lambda f=file: load(f), f"{kind} damage {k}")
    record_property("damaged results", 200)


CELLS = [
    *("", " ", "NA", "nan", "NaN", "inf", "-inf", "Infinity", "1e308", "-1e308", "1e309", "1e-400", "0x10", "1_000"),
    *(
        "1,5",
        "1.5.2",
        "--1",
        "+1",
        "1e",
        "e1",
        "True",
        "None",
        "null",
        "#N/A",
        "12345678901234567890123456789",
        "½",
        "１",
    ),
    *('"', "'1'", "1 2", "2024-01-01", "1;2", "\ufeff1", "1\u00a0", "-", "∞", "1d5", "1/3", "{}", "[1]", "=1+1"),
]
STAMPS = [
    *("", "0", "-1", "nan", "inf", "1e400", "2024-01-01", "2024-13-01", "01/02/2024", "1.2.2024", "20240101"),
    *("2024-01-01T25:00", "2024-01-01T00:00:00Z", "12:30", "yesterday", "1704067200", "1704067200000000000", "0.5"),
    *("2024-W05", "Jan 3 2024", "2024-02-30", "9999999999999999999999", "1e18", "-0", "0.5000000000000001"),
]


def odd_tables():
    """(what, text or bytes, options): single odd cells, odd stamps, odd shapes."""
    lines = CSV.splitlines()
    for row in (1, 2, 30, N):
        for cell in CELLS:
            bad = [*lines]
            bad[row] = f"{TIMES[row - 1]},{cell if ',' not in cell else chr(34) + cell + chr(34)}"
            for options in ({}, {"missing": "drop"}):
                yield f"cell {cell!r} in row {row} {options}", "\n".join(bad) + "\n", options
        for stamp in STAMPS:
            bad = [*lines]
            bad[row] = f"{stamp},{VALUES[row - 1]!r}"
            for options in ({}, {"sort": True}, {"time_unit": "h"}, {"time_unit": "h", "time_in": "s"}):
                yield f"stamp {stamp!r} in row {row} {options}", "\n".join(bad) + "\n", options
    for encoding in ("utf-16", "utf-16-le", "utf-32", "latin-1", "cp037", "utf-8-sig", "utf-7"):
        yield encoding, CSV.replace("x", "x\u00e9" if encoding == "latin-1" else "x").encode(encoding), {}
    for what, text in {
        "nothing": "",
        "a header": "time,x\n",
        "one row": "time,x\n0,1\n",
        "no header": CSV.split("\n", 1)[1],
        "two x": CSV.replace("time,x", "x,x"),
        "three columns of x": "time,x,x\n0,1,2\n1,2,3\n",
        "an empty column": "time,x,y\n" + "".join(f"{k},,{k}\n" for k in range(5)),
        "an unnamed column": ",x\n0,1\n1,2\n",
        "a short row": CSV + "99\n",
        "a long row": CSV + "99,1,2\n",
        "blank lines": CSV + "\n\n\n",
        "old Mac lines": CSV.replace("\n", "\r"),
        "Windows lines": CSV.replace("\n", "\r\n"),
        "a quote that never ends": CSV + '99,"1\n',
        "nulls": CSV + "99,\0\n",
        "one column": "x\n1\n2\n4\n",
        "ids of one row": "id,time,x\na,0,1\na,1,2\nb,0,5\n",
        "the same stamp": "time,x\n0,1\n0,2\n1,3\n",
        "backwards": "time,x\n" + "".join(f"{-k},{k % 3}\n" for k in range(9)),
        "constant": "time,x\n0,1\n1,1\n2,1\n",
        "semicolons and commas": "time;x\n0;1,5\n1;2,5\n",
        "a comment": "# made by hand\ntime,x\n0,1\n1,2\n",
        "html": "<html><body>404</body></html>\n",
        "json": '[{"time": 0, "x": 1}]\n',
    }.items():
        for options in ({}, {"dt": 1.0}, {"value": "x"}, {"layout": "wide", "dt": 1.0}, {"layout": "rows", "dt": 1.0}):
            yield f"{what} {options}", text, options


def try_table(folder, what, content, options):
    file = folder / "odd.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    answer = judge(lambda: Trajectories.from_file(file, **options), what)
    if answer is REFUSED:
        return
    assert np.isfinite(answer.x).all(), what
    if answer.times is not None:
        steps = np.diff(answer.times)[np.diff(np.repeat(np.arange(len(answer)), answer.lengths)) == 0]
        assert (steps > 0).all(), what
    judge(answer.transitions, what)
    other = independent(file)
    if (
        other is not None
        and options.get("layout", "long") == "long"
        and len(other) == len(answer.x)
        and answer.dim == 1
    ):
        kept = other if options.get("sort") is None else np.sort(other)
        found = answer.x if options.get("sort") is None else np.sort(answer.x)
        np.testing.assert_array_equal(found, kept, err_msg=what)


@pytest.mark.slow
def test_odd_tables(tmp_path, record_property):
    count = 0
    for case in odd_tables():
        try_table(tmp_path, *case)
        count += 1
    record_property("odd tables", count)


def test_some_odd_tables(tmp_path, record_property):
    for case in sampling.dice(2).sample(list(odd_tables()), 60):
        try_table(tmp_path, *case)
    record_property("odd tables", 60)


def test_a_byte_order_mark_changes_nothing(tmp_path):
    (tmp_path / "mark.csv").write_bytes(CSV.encode("utf-8-sig"))
    np.testing.assert_array_equal(read(tmp_path / "mark.csv").x, VALUES)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_things_that_are_no_files(suffix, tmp_path):
    """A directory, nothing, an empty file, another kind of file under this name."""
    (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / f"empty{suffix}").touch()
    names = [f"folder{suffix}", f"empty{suffix}", f"none{suffix}", f"{'n' * 300}{suffix}"]
    for other in SUFFIXES:
        if (other in (".csv", ".tsv")) != (suffix in (".csv", ".tsv")) and other != suffix:
            file = write(tmp_path, other)
            (tmp_path / f"from{other[1:]}{suffix}").write_bytes(file.read_bytes())
            names.append(f"from{other[1:]}{suffix}")
    for name in names:
        assert judge(lambda n=name: read(tmp_path / n), name) is REFUSED


ARRAYS = {
    "text": np.array(["a", "b"]),
    "objects": np.array([1, None], dtype=object),
    "complex": np.array([1j, 2.0]),
    "bool": np.array([True, False, True]),
    "dates": np.array(["2024-01-01", "2024-01-02"], dtype="datetime64[D]"),
    "empty": np.zeros(0),
    "no steps": np.zeros((3, 0)),
    "one point": np.zeros((3, 1)),
    "four axes": np.zeros((2, 2, 2, 2)),
    "a number": np.array(1.0),
    "records": np.array([(0.5, 1)], dtype=[("a", "f8"), ("b", "i4")]),
    "nan": np.array([1.0, math.nan]),
    "inf": np.array([1.0, math.inf]),
    "huge": np.array([1e308, -1e308, 1e308]),
    "constant": np.ones(5),
    "uint64": np.array([0, 2**64 - 1, 5], dtype=np.uint64),
    "big endian": np.array([1.0, 2.5, 2.0], dtype=">f8"),
    "half": np.array([1.0, 2.5, 2.0], dtype=np.float16),
    "int8": np.array([1, -128, 127], dtype=np.int8),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3) ** 2),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_odd_arrays(kind, tmp_path, record_property):
    np.save(tmp_path / "x.npy", ARRAYS[kind], allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=ARRAYS[kind], allow_pickle=True)
    for name in ("x.npy", "x.npz"):
        answer = judge(lambda n=name: Trajectories.from_file(tmp_path / n, dt=0.5, value=None), f"{kind} in {name}")
        if answer is not REFUSED:
            np.testing.assert_array_equal(answer.x.reshape(-1), ARRAYS[kind].astype(float).reshape(-1))
            pairs = judge(answer.transitions, kind)
            assert pairs is REFUSED or np.isfinite(pairs.dx.numpy()).all()
    record_property("odd arrays", 2)
