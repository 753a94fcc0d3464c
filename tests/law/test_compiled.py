"""numba's cache on disk: code compiled for one processor is not loaded on another."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.registry import cpu_target

import levytorch
from levytorch.law.compiled import cached_njit, processor

SCRIPT = """
import json
from levytorch.law.compiled import processor
from levytorch.simulation.kernels import stream_keys
keys = stream_keys(1, 2, 3, 4)
print(json.dumps([processor(), sum(stream_keys.stats.cache_hits.values()), [int(k) for k in keys]]))
"""
OVERRIDES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")


def run(directory, **settings):
    kept = {k: v for k, v in os.environ.items() if k not in OVERRIDES}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=kept | {"NUMBA_CACHE_DIR": str(directory), **settings},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.slow
def test_code_for_one_processor_is_not_loaded_on_another(tmp_path):
    """The kernel's own count of loads, in processes that take themselves for different processors."""
    here, hits, keys = run(tmp_path)
    assert hits == 0
    assert run(tmp_path) == [here, 1, keys]
    files = {file: file.read_bytes() for file in tmp_path.rglob("*.nb[ic]")}
    others = {here}
    for features in ("", "-avx"):  # another model; the same one with a feature less
        other, hits, found = run(tmp_path, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES=features)
        assert (hits, found) == (0, keys)
        others.add(other)
    assert len(others) == 3
    # nor does the compilation of one touch the files of another
    assert files
    assert all(file.read_bytes() == content for file, content in files.items())


def test_the_processor_is_in_the_name_of_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))

    @cached_njit()
    def twice(x):
        return x + x

    assert twice(2.0) == 4.0
    files = [file.name for file in tmp_path.rglob("*.nb[ic]")]
    assert len(files) == 2
    assert all(f"twice.{processor()}-" in name for name in files)


def test_a_kernel_from_the_cache_needs_no_compiler(tmp_path, monkeypatch):
    """One that allocates: numba's runtime is there, and nobody gets ready to compile."""
    monkeypatch.setattr("numba.config.CACHE_DIR", str(tmp_path))

    def again():
        @cached_njit()
        def halves(x):
            out = np.empty(x.size)
            for i in range(x.size):
                out[i] = 0.5 * x[i]
            return out

        return halves

    x = np.arange(5.0)
    first = again()
    assert (first(x) == x / 2).all()
    assert not sum(first.stats.cache_hits.values())

    def refused(*arguments):
        raise AssertionError("prepared for a compilation")

    monkeypatch.setattr(type(cpu_target.target_context), "load_additional_registries", refused)
    second = again()
    assert (second(x) == x / 2).all()
    assert sum(second.stats.cache_hits.values()) == 1
    with pytest.raises(AssertionError, match="prepared"):  # of another type, which is not there
        second(x.astype(np.float32))


def test_no_kernel_is_cached_in_another_way():
    sources = {file: file.read_text() for file in Path(levytorch.__file__).parent.rglob("*.py")}
    assert sum("cached_njit(" in text for text in sources.values()) >= 4
    assert [file.name for file, text in sources.items() if re.search(r"\bcache=True", text)] == ["compiled.py"]
