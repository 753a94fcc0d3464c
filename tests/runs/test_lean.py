"""Commands import Lightning without torch's compiler; who wants the compiler has it all the same.

Imports are not searched for garbage, and whoever has switched the search off or on finds it so.
"""

import gc
import os
import subprocess
import sys

import pytest

import levytorch
from levytorch.runs import lean

CODE = """
import sys
from levytorch.runs import lean
lean.let_threads_sleep()
lean.import_lightning()
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
        with lean.importing():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
        assert levytorch.__getattr__("InputError") is levytorch.InputError
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()
