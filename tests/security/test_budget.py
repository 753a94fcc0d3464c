"""Small files that would become large: refused before anything is allocated, within a hard limit on memory."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from levytorch import Dynamics, Lattice, Recovery, simulate
from levytorch.archives import MOST_MEMBERS, check_tensors
from levytorch.errors import InputError

LIMIT = 256 << 20  # bytes beyond what the process has when its libraries are loaded
CHILD = """
import json, resource, sys, time
from pathlib import Path
from levytorch import Lattice, Recovery
from levytorch.errors import LevytorchError
from levytorch.runs import resume
import levytorch.data.lattice_tables, levytorch.training
LOADERS = {"lattice": Lattice.load, "recovery": Recovery.load, "checkpoint": lambda file: resume._steps(Path(file))}
used = 1024 * int(next(l for l in open("/proc/self/status") if l.startswith("VmSize")).split()[1])
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]), resource.RLIM_INFINITY))
found = {}
for kind, file in json.loads(sys.argv[2]):
    began = time.process_time()
    try:
        LOADERS[kind](file)
        result = "loaded"
    except LevytorchError as error:
        result = str(error)
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"
    found[file] = [result, time.process_time() - began]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def lattice(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("lattice") / "honest.npz"
    simulate(Dynamics.named("constant"), 50, 40, 1 / 40).transitions().lattice().save(file)
    return file


def npy(array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def extended(source: Path, target: Path, members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
    """A copy of an archive with further members."""
    target.write_bytes(source.read_bytes())
    with zipfile.ZipFile(target, "a", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target


def hostile_files(honest: Path, lattice: Path, place: Path) -> list[tuple[str, Path]]:
    zeros = npy(np.zeros(1 << 24))  # 128 MiB, 130 KB compressed
    small = npy(np.zeros(1))
    content = torch.load(honest / "recovery.pt", weights_only=True)
    state = torch.load(honest / "checkpoints" / "last.ckpt", weights_only=True)
    one = torch.zeros(1, dtype=torch.float64)
    files = [
        ("lattice", extended(lattice, place / "extra.npz", {f"extra{k}.npy": zeros for k in range(3)})),
        ("lattice", extended(lattice, place / "many.npz", {f"extra{k}.npy": small for k in range(4000)})),
        ("lattice", extended(lattice, place / "more.npz", {f"{k}.npy": b"" for k in range(MOST_MEMBERS + 1)})),
        ("recovery", extended(honest / "recovery.pt", place / "packed.pt", {"recovery/data/99": zeros})),
    ]
    mlp = {"name": "mlp", "width": 4096, "depth": 4096, "period": 6.28}
    shared: list = [1.0] * 10
    for _ in range(12):
        shared = [shared] * 10
    variants = {
        "mlp": content | {"head": mlp, "covariance": None},
        "spline": content | {"head": {"name": "spline", "n_basis": 100_000, "window": [0.0, 1.0]}},
        "theta": content | {"theta": one.expand(1 << 28)},
        "covariance": content | {"covariance": one.expand(1 << 14, 1 << 14)},
        "values": content | {"metrics": {"shared": shared}},
    }
    same = torch.zeros(1 << 12)
    variants["views"] = content | {"history": [{"a": same.view(64, 64)} for _ in range(2000)]}
    for name, variant in variants.items():
        torch.save(variant, place / f"{name}.pt")
        files.append(("recovery", place / f"{name}.pt"))
    weights = {key: one.expand(1 << 28) for key in state["state_dict"]}
    torch.save(state | {"state_dict": weights}, place / "expanded.ckpt")
    return [*files, ("checkpoint", place / "expanded.ckpt")]


@pytest.mark.long
def test_small_files_stay_small(honest, lattice, tmp_path):
    kept = [
        ("lattice", lattice),
        ("recovery", honest / "recovery.pt"),
        ("checkpoint", honest / "checkpoints/last.ckpt"),
    ]
    hostile = hostile_files(honest, lattice, tmp_path)
    assert all(file.stat().st_size < 4_000_000 for _, file in hostile)
    listed = json.dumps([(kind, str(file)) for kind, file in kept + hostile])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(LIMIT), listed], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for _, file in kept:
        assert found[str(file)][0] == "loaded"
    for _, file in hostile:
        result, seconds = found[str(file)]
        assert result.startswith(str(file)), (file.name, result)
        assert "; save it again." in result or "; remove it" in result
        assert seconds < 3, (file.name, seconds)


def rewritten(source: Path, target: Path, change) -> Path:
    """A copy of a file of torch.save with another pickle in it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for member in old.infolist():
            content = old.read(member)
            new.writestr(member.filename, change(content) if member.filename.endswith("data.pkl") else content)
    return target


@pytest.mark.parametrize(
    ("pickled", "found"),
    [
        (b"cbuiltins\nbytearray\nJ\x00\x00\x00\x40\x85R.", "the name builtins.bytearray"),
        (b"ctorch\nDoubleTensor\nJ\x00\x00\x00\x40\x85R.", "the name torch.DoubleTensor"),
        (b"]r\xff\xff\xff\x7f.", None),  # an index of a memo, for which pickle in C allocates gigabytes
        (b"\x80\x02" + b"](" * 100_000 + b"e" * 100_000 + b".", "levels"),
        (b"\x80\x02]q\x00h\x00a.", "values"),  # a list that is its own entry
        (pickle.dumps(1 << 100, 2), "a number of 101 bits"),
    ],
)
def test_pickles_are_gone_through_before_they_are_loaded(pickled, found, honest, tmp_path):
    file = rewritten(honest / "recovery.pt", tmp_path / "recovery.pt", lambda _: pickled)
    if found is not None:
        with pytest.raises((ValueError, pickle.UnpicklingError), match=found):
            check_tensors(file)
    with pytest.raises(InputError, match="must be a recovery"):
        Recovery.load(file)


def test_a_storage_holds_the_numbers_that_it_declares(honest, tmp_path):
    """torch takes the declared number, and would read beyond the end."""

    def larger(content: bytes) -> bytes:
        assert content.count(b"K\x09tq") == 1  # theta has 9 numbers
        return content.replace(b"K\x09tq", b"K\xfftq")

    file = rewritten(honest / "recovery.pt", tmp_path / "recovery.pt", larger)
    with pytest.raises(InputError, match="a storage of 255 numbers, which the file does not hold"):
        Recovery.load(file)


def test_an_archive_lists_every_name_once(lattice, tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        extended(lattice, tmp_path / "twice.npz", {"dt.npy": npy(np.ones(1))}, zipfile.ZIP_STORED)
    with pytest.raises(InputError, match=r"the member 'dt\.npy', which is there twice; save it again\.$"):
        Lattice.load(tmp_path / "twice.npz")
