"""The shortcuts of levytorch.startup still find what they rely on in Lightning, torch and numba."""

import gc
import os
import subprocess
import sys

import pytest
from numba.core.caching import FunctionCache
from torch.optim import Optimizer

from levytorch import startup
from levytorch.law.compiled import Cache
from levytorch.simulation.kernels import stream_keys

CODE = """
import sys
from levytorch import startup
startup.import_lightning()
import lightning, torch
import scipy
there = {"torch._dynamo", "scipy.signal", "sympy"} & set(sys.modules)
assert not there, there
assert "_dynamo" not in vars(torch) and "signal" not in vars(scipy)
from lightning.pytorch.utilities.compile import OptimizedModule, to_uncompiled
module = lightning.LightningModule()
assert not isinstance(module, OptimizedModule)
import torch._dynamo
import torch._dynamo.config
import scipy.signal
assert scipy.signal.windows.hamming(3).shape == (3,)
compiled = torch._dynamo.OptimizedModule(module, torch._dynamo.disable)
assert isinstance(compiled, OptimizedModule)
assert not isinstance(module, OptimizedModule)
assert torch._dynamo.is_compiling() is False
"""


@pytest.mark.long
def test_lightning_without_what_no_run_uses():
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={**os.environ, "PYTHONPATH": os.getcwd()}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_searched_for_afterwards_as_before(enabled):
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with startup.importing():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


@pytest.mark.parametrize("name", ["add_param_group", "zero_grad", "state_dict", "load_state_dict"])
def test_methods_of_optimisers_are_wrapped(name):
    method = getattr(Optimizer, name)
    assert startup.uncompiled(method) is not method


def test_a_kernel_is_loaded_without_its_compiler(monkeypatch):
    """What one process has compiled and kept is there, without the call by which numba gets ready to compile."""
    stream_keys(1, 2, 3, 4)
    target = stream_keys.targetctx
    monkeypatch.setattr(type(target), "refresh", lambda self: pytest.fail("got ready to compile"))
    assert Cache is not FunctionCache
    assert Cache(stream_keys.py_func).load_overload(stream_keys.nopython_signatures[0].args, target) is not None
