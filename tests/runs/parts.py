"""What a user would bring: a callback, and a plain thing that is none."""

from pathlib import Path

import lightning as L


class Steps(L.Callback):
    """Counts the steps of a fit into a file."""

    def __init__(self, file: str, sign: str = ".") -> None:
        self.file, self.sign = Path(file), sign

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        with self.file.open("a") as stream:
            stream.write(self.sign)


class Plain:
    """Nothing that Lightning knows."""

    def __init__(self, **options):
        self.options = options
