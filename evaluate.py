"""Policy evaluation from the command line: `python evaluate.py run=<run directory or glob>` (conf/evaluate.yaml)."""

from levytorch.evaluate import start

if __name__ == "__main__":
    start()
