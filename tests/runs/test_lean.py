"""Commands import Lightning without torch's compiler; who wants the compiler has it all the same."""

import os
import subprocess
import sys

CODE = """
import sys
from levytorch.runs import lean
lean.prepare()
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
