"""Coefficients out of transitions: `python train.py` (see conf/train.yaml and README)."""

from levytorch.train import start

if __name__ == "__main__":
    start()
