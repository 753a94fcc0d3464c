"""Seeds of the fuzzers and campaigns of faults, and the share of them that every commit tries.

LEVYTORCH_SAMPLE, for instance the name of a commit, changes seeds and order: another sample for every commit, and
the same one when a commit is tried again. Without it the seeds are always the same.
"""

from __future__ import annotations

import hashlib
import os
import random

SAMPLE = os.environ.get("LEVYTORCH_SAMPLE", "")


def dice(name: object) -> random.Random:
    """A source of random numbers for a test."""
    return random.Random(f"{name}{SAMPLE}" if SAMPLE else name)  # type: ignore[arg-type]


def seed(number: int) -> int:
    """A seed for NumPy instead of a fixed one."""
    return int(order(str(number))[:8], 16) if SAMPLE else number


def order(name: str) -> str:
    """A key to sort tests by: a permutation for every sample."""
    return hashlib.sha256(f"{SAMPLE} {name}".encode()).hexdigest()
