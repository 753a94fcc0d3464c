"""How long the first five minutes take: `python train.py` again, and a first result in Python, against plain imports.

    python benchmarks/startup.py                                    what `python train.py` does, its parts
    python benchmarks/startup.py --repeat 3 law=frozen              with overrides
    python benchmarks/startup.py --first                            `recover` with a full-batch engine

Runs and imports take turns, and the shortest of each counts: other work on the machine only ever adds. Seconds of the
clock and of the processor (all threads) are printed side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORTS = "import torch, lightning, hydra, matplotlib.figure"
STEPS = {
    "jumps": """
from levytorch import Dynamics, simulate
import numpy
x = simulate(Dynamics.named("constant"), 100, 40, 1 / 40, seed=1).to_array()
numpy.savez("jumps.npz", x=x[:, :-1].ravel(), dx=numpy.diff(x).ravel())
""",
    "gaussian": """
import numpy
random = numpy.random.default_rng(0)
numpy.savez("gaussian.npz", x=random.random(4000), dx=0.1 * random.normal(size=4000))
""",
}
FIRST = """
import warnings
warnings.simplefilter("ignore")
import numpy
from levytorch import Transitions, recover
steps = numpy.load("{steps}.npz")
print(recover(Transitions(steps["x"], steps["dx"], 1 / 40), alpha=0.3, n_basis=1, engine={engine!r}).D_f(0.0))
import sys
assert not {{"lightning", "matplotlib"}} & set(sys.modules)
"""


def took(arguments: list[str], place: str) -> tuple[float, float]:
    """Seconds of the clock and of the processor that a Python process takes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # or these modules, unlike installed ones, are compiled every time
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=place, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return time.perf_counter() - began, processor


def shortest(times: list[tuple[float, float]]) -> tuple[float, float]:
    return min(t[0] for t in times), min(t[1] for t in times)


def compare(name: str, ours: list[tuple[float, float]], plain: list[tuple[float, float]], of: str) -> None:
    """The line that counts."""
    (clock, processor), (clock_plain, processor_plain) = shortest(ours), shortest(plain)
    print(f"{of:45} {clock_plain:7.2f} s   processor {processor_plain:7.2f} s")
    print(f"{name:45} {clock:7.2f} s   processor {processor:7.2f} s")
    print(f"{'ratio':45} {clock / clock_plain:7.2f}     {'':10}{processor / processor_plain:7.2f}")
    turns = sorted(mine[0] / other[0] for mine, other in zip(ours, plain))
    print(f"{'ratios of the turns':45} {' '.join(f'{ratio:7.2f}' for ratio in turns)}")


def train(overrides: list[str], repeat: int) -> None:
    """`python train.py` and its parts, after one run that compiles what is not compiled yet."""
    with tempfile.TemporaryDirectory() as place:
        took([str(ROOT / "train.py"), *overrides, "trainer.progress=false"], place)
        ours, plain, parts = [], [], []
        for number in range(repeat):
            plain.append(took(["-c", IMPORTS], place))
            run = f"{place}/run{number}"
            ours.append(took([str(ROOT / "train.py"), *overrides, f"hydra.run.dir={run}"], place))
            parts.append(json.loads(Path(run, "metrics.json").read_text())["seconds_of"])
    compare(" ".join(["python train.py", *overrides]), ours, plain, IMPORTS)
    best = min(range(repeat), key=lambda number: ours[number][0])
    rest = ours[best][0] - sum(parts[best].values())
    for name, seconds in {"imports, configuration, writing": rest, **parts[best]}.items():
        print(f"    {name:41} {seconds:7.2f} s")


def first(repeat: int) -> None:
    """A first result in Python, on 4000 steps: with jumps, and of a Brownian motion, which drive D_f to zero."""
    with tempfile.TemporaryDirectory() as place:
        for steps, code in STEPS.items():
            took(["-c", code], place)
            for engine in ("fisher", "evidence"):
                code = FIRST.format(steps=steps, engine=engine)
                took(["-c", code], place)
                turns = [(took(["-c", "import torch"], place), took(["-c", code], place)) for _ in range(repeat)]
                name = f"recover, engine {engine}, {steps}"
                compare(name, [t[1] for t in turns], [t[0] for t in turns], "import torch")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("overrides", nargs="*")
    chosen = parser.parse_args()
    if chosen.first:
        first(chosen.repeat)
    else:
        train(chosen.overrides, chosen.repeat)
