"""A process with a fake accelerator, on which steps of mini-batches are taken: prints what every step has left on the
CPU. Tensors have shapes, types and devices there, and no values: whoever reads one is stopped.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from levytorch.coefficients import AlphaSpec, FourierHead, MLPHead
from levytorch.coefficients.links import TemperingSpec
from levytorch.data.batches import Batch
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import Likelihood
from levytorch.training.engines.adam import AdamEngine, AdamWEngine

GPU = "gpu:0"  # autograd asks a device for its streams, which one called cuda does not have in a build without CUDA
HEADS = {
    "mlp": lambda: MLPHead(width=4),
    "alpha(x) and tempering": lambda: MLPHead(
        width=4, shared_trunk=True, alpha=AlphaSpec("function", 0.6), tempering=TemperingSpec("learn", 1.0)
    ),
    "line": lambda: MLPHead(width=4, period=None, window=(-1.0, 2.0), alpha=AlphaSpec("constant", 0.4)),
    "plane": lambda: MLPHead(width=4, dim=2),
    "fourier": lambda: FourierHead(5),
}


class Devices(TorchDispatchMode):
    """Notes the operations that give tensors on the CPU; numbers on their way to a device may begin there."""

    def __init__(self) -> None:
        super().__init__()
        self.on_cpu: list[str] = []
        self.operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.operations += 1
        devices = {t.device.type for t in tree_leaves(out) if isinstance(t, torch.Tensor)}
        if "cpu" in devices and "lift_fresh" not in str(function):
            self.on_cpu.append(str(function))
        return out


def on_gpu(head):
    """`head.to(GPU)`, which torch cannot do with fake parameters."""
    for module in head.modules():
        for name, p in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(p.detach().to(GPU)))
    return head


def main() -> None:
    _setup_privateuseone_for_python_backend("gpu")
    for name, make in HEADS.items():
        engine = AdamEngine(max_steps=10) if name == "fourier" else AdamWEngine(max_steps=10)
        with FakeTensorMode():
            head = on_gpu(make())
            likelihood = Likelihood(head, FrozenLaw(dim=head.dim))
            optimizer = engine.optimizer(likelihood)
            states = [torch.rand((64, 2)[: head.dim], dtype=torch.float64, device=GPU) for _ in range(2)]
            rest = [torch.full((64,), value, dtype=torch.float64, device=GPU) for value in (0.1, 1 / 64)]
            for step in range(2):
                with Devices() as devices:
                    nll = engine.descend(likelihood, optimizer, Batch(*states, *rest), step)
                print(name, step, nll.device, devices.operations > 100, sorted(set(devices.on_cpu)), sep="|")
            for p in head.parameters():
                assert p.device == p.grad.device == torch.device(GPU)
            for state in optimizer.state.values():
                assert all(t.device == torch.device(GPU) for t in state.values())


if __name__ == "__main__":
    main()
