"""The progress bar: rate, remaining time and likelihood in every phase, within the columns of a terminal."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from levytorch import Dynamics, recover, simulate
from levytorch.training.progress import ProgressLine

WHOLE = re.compile(r"^[a-z, -]+: \d+/\d+ \|.+\| \d+:\d\d<\d+:\d\d, +[\d.]+(pass/s|s/pass), log p=-?[\d.e+-]+$")


@contextmanager
def terminal(monkeypatch):
    """A terminal of 80 columns in the place of sys.stderr; the lines that were drawn, when the block has ended."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    drawn, found = b"", []
    with os.fdopen(there, "w") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        yield found
        stream.flush()
        while select.select([here], [], [], 0)[0]:
            drawn += os.read(here, 4096)
    os.close(here)
    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", drawn.decode())
    found += [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


@pytest.mark.parametrize("label", ["fisher, simulated law", "cross-validation"])
def test_a_line_fits_80_columns(monkeypatch, label):
    phase = SimpleNamespace(label=label, engine=SimpleNamespace(full_batch=True), max_steps=200, steps=120)
    fit = SimpleNamespace(phase=phase, tail=SimpleNamespace(method="tcf"))
    fit.likelihood = SimpleNamespace(correction=SimpleNamespace(tcf=torch.tensor(0.0123456)))
    with terminal(monkeypatch) as drawn:
        line = ProgressLine(fit)
        for _ in range(3):
            time.sleep(0.12)  # tqdm draws ten times a second at most
            phase.steps += 1
            line.update(fit, 1234.5678)
        line.close()
    assert max(map(len, drawn)) <= 80
    assert WHOLE.match(drawn[-1])


def test_every_phase_has_a_line(monkeypatch):
    """Also cross-validation, whose steps are candidates."""
    data = simulate(Dynamics(b=torch.sin, D_o=1.0, D_f=0.5, alpha=0.6), 20, 25, 0.05, seed=1).transitions()
    with terminal(monkeypatch) as drawn:
        recover(data, alpha=0.6, n_basis="auto", law="frozen", progress=True)
    assert {"cross-validation", "fisher, frozen law"} <= {line.split(":")[0] for line in drawn}
    assert [line for line in drawn if line.startswith("cross-validation") and WHOLE.match(line)]
