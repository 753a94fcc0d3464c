"""The paper's band: `python -m benchmarks.paper.btc_replicas experiment=btc_first6000 data.path=... out=...`.

Eight random starts of Algorithm B.1 with the TCF and eight without (`seeds=`, `tail=`), the starts of an arm side by
side; each leaves recovery.pt and metrics.json in <out>/<tail>/K<n_basis>/seed<seed>. Run it from the repository, where
conf/ is. `python train.py -m experiment=... paper=prices seed='range(8)'` gives the same, one run after the other.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levytorch.errors import ConfigError, LevytorchError

log = logging.getLogger("benchmarks.paper")


def main(arguments: Sequence[str]) -> None:
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    from benchmarks.paper.btc_adam import adam_replicas
    from levytorch.runs.evaluation_report import check_output
    from levytorch.runs.run import settings_of
    from levytorch.tables import write_json, write_text

    own = {"seeds": "8", "tail": "tcf,none", "out": ""}
    rest = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in own:
            own[key] = value
        else:
            rest.append(argument)
    if not own["out"] or not own["seeds"].isdigit() or int(own["seeds"]) < 1:
        raise ConfigError("out=<new directory> must be given and seeds must be a positive number; add them.")
    conf, out = Path.cwd() / "conf", Path(own["out"])
    check_output(out)
    if not (conf / "train.yaml").is_file():
        raise ConfigError(f"conf/train.yaml must be in the working directory, found none in {Path.cwd()}; go there.")
    for arm in own["tail"].split(","):
        with initialize_config_dir(str(conf), version_base="1.3"):
            try:
                config = compose("train", overrides=["paper=prices", f"tail={arm}", *rest])
            except HydraException as error:
                raise ConfigError(f"the settings must fit conf/train.yaml, but: {str(error).splitlines()[0]}") from None
        settings: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
        source = instantiate(config.data, _convert_="all")()
        began = time.perf_counter()
        seeds = range(int(own["seeds"]))
        found = adam_replicas(source.transitions, settings_of(settings), list(seeds), progress=sys.stderr.isatty())
        seconds = (time.perf_counter() - began) / len(found)
        for seed, recovery in zip(seeds, found):
            place = out / arm / f"K{settings['coefficients']['n_basis']}" / f"seed{seed}"
            (place / ".hydra").mkdir(parents=True, exist_ok=True)
            write_text(place / ".hydra" / "config.yaml", OmegaConf.to_yaml(OmegaConf.merge(config, {"seed": seed})))
            recovery.save(place / "recovery.pt")
            write_json(place / "metrics.json", {**recovery.metrics, "alpha": recovery.alpha, "seconds": seconds})
        log.info(f"{arm}: {len(found)} replicas, {seconds:.1f} s each, in {out / arm}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        main(sys.argv[1:])
    except LevytorchError as error:
        sys.exit(f"{type(error).__name__}: {error}")
