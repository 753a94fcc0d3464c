"""train.py, killed by SIGKILL after some step of a phase has been written into its checkpoint.

python -m tests.runs.killer <phase> <step> <overrides>
"""

import os
import signal
import sys

from levytorch.training.callbacks import Checkpoints


def main() -> None:
    wanted, last = sys.argv.pop(1), int(sys.argv.pop(1))
    written = Checkpoints.on_train_batch_end

    def on_train_batch_end(self, trainer, pl_module, *arguments):
        taken = pl_module.fit.phase.steps if pl_module.fit.phase.name == wanted else 0
        written(self, trainer, pl_module, *arguments)
        if taken == last:
            os.kill(os.getpid(), signal.SIGKILL)

    Checkpoints.on_train_batch_end = on_train_batch_end
    from levytorch import train

    train.main()


if __name__ == "__main__":
    main()
