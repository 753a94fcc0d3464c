"""What an attacker would send."""

from __future__ import annotations

import os
from pathlib import Path


class Hostile:
    """Unpickled by an unguarded loader, it makes a directory."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self):
        return os.mkdir, (str(self.proof),)
