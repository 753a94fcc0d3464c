"""Options of `recover` and train.py, sorted into what the head, the engine, the data module and the start take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, TypedDict

import torch

from levytorch.coefficients import AlphaSpec, LinearHead
from levytorch.coefficients.build import HEADS, LINEAR, ON_A_LINE, OPTIONS, build_head
from levytorch.coefficients.clock import Clock, Covariate
from levytorch.coefficients.head import KNOWABLE, Head, check_head, known_constants
from levytorch.coefficients.links import TemperingSpec
from levytorch.convert import choice, known_keys, positive_number, real_array, seed_of, shown, switch, whole_number
from levytorch.data.batches import check_data_options
from levytorch.data.memory import Memory
from levytorch.errors import InputError
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.laws import Law, check_law
from levytorch.likelihood.tail import TailSettings, check_learned, parse_tail
from levytorch.training.drift import DRIFTS, check_mean
from levytorch.training.engines.base import Engine, build_engine, check_engine, chosen_engine, engine_options

DATA_OPTIONS = {"batch_size", "mixing", "validation", "chunk_size", "lattice"}
FIT_OPTIONS = {"init", "units", "density", "law", "std", "log_every", "progress"}
INITS = ("data", "random")
UNITS = ("data", "none")
DENSITIES = ("auto", "table", "contour", "windowed")
LAWS = ("auto", "exact", "corrected", "simulated", "frozen")
READING = ("time", "times", "value", "id", "dt", "reward", "action", "time_unit", "max_dt", "missing", "sort", "log")
# what a misspelt option may have meant beside those of the head and the engine
ARGUMENTS = (
    *("alpha", "coefficients", "n_basis", "period", "tempering", "D_o", "D_f", "tail", "engine", "seed", "modulation"),
    *("n_modulation", "memory", "drift", "observation_noise", "actions", "shared", "n_action"),
)
_NOT_OPTIONS = {"alpha", "alpha_mode", "length", "time", "period", "n_basis", "tempering", "tempering_mode", *KNOWABLE}
STDS = ("auto", "frozen")  # the law's own information, or the frozen law's
# of settings that coefficients auto has for both of its heads: what says nothing
_SILENT: dict[str, tuple[Any, ...]] = {
    **{
        "origin": (0.0,),
        "truncation": ("total",),
        "knots": ("even",),
        "continuation": ("constant",),
    },
    "free": ("auto", "lines"),
}


class Options(TypedDict, total=False):
    """Further keywords of `recover`: those of heads, engines and batches, for whichever of them there are."""

    # of heads
    positivity: str  # how D_o and D_f are kept positive: "softplus", "clamp" (the paper)
    origin: float | Sequence[float]  # where the cell begins
    window: Any  # (low, high) of a line, or one pair per coordinate; adam: steps of its moving average
    dim: int  # as the data has it
    n_basis_alpha: int  # functions of alpha(x)
    alpha_link: str  # of a learned alpha: "sigmoid", "clamp" (the paper)
    alpha_bounds: Sequence[float]
    noise: str  # the form of D_o in several dimensions: "isotropic", "diagonal", "matrix"
    truncation: str  # which products of functions a head in the plane has: "total", "box"
    knots: str | Sequence[float]  # splines: "even", "quantiles", or states
    continuation: str  # of b beyond the window: "constant", "linear"
    free: str  # what of b is not smoothed: "lines", "cubics", or "auto", as much as the evidence says
    degree: int  # of the polynomial b
    width: int  # mlp
    depth: int
    n_features: int  # waves of its inputs on a circle
    periodic: bool
    activation: str  # "silu", "tanh", "gelu", "sine"
    shared_trunk: bool  # one network for all coefficients
    residual: bool
    trained: str  # "all", or "last_layer"
    # of engines
    max_steps: int  # passes, or steps of adam
    tolerance: float
    penalty: str | float | Sequence[float]  # fisher: "none", "evidence", "harmonics", "cross_validation", strengths
    damping: float
    n_bins: int
    iterations: int  # lbfgs: of a step
    history: int
    lr: float  # adam
    beta1: float
    beta2: float
    eps: float
    gradient: str  # "direct", "finite_difference", "mixture"
    mixture: float
    n_components: int
    stop_early: bool
    schedule: str  # "constant", "cosine", "one_cycle"
    clip: float  # norm of a gradient
    weight_decay: float  # adamw
    patience: int  # looks at held-out pairs without a better likelihood
    look_every: int  # steps
    last_layer: bool  # by Fisher scoring at the end
    # of batches
    batch_size: int | None
    mixing: str  # "stratified", "bernoulli" (the paper)
    chunk_size: int
    log_every: int


@dataclass
class FitSettings:
    """Everything a fit needs besides the data. Plain values, but for head and engine, built here and nowhere else.

    plain: the settings of the head; None for a head of the user's own. law: coefficients "frozen" over a step, "exact",
    following them, "corrected", "auto", or a Law of the user's own. std: the information
    that standard errors use, "auto" (the law's own) or "frozen".
    """

    alpha: AlphaSpec
    head: Head
    plain: dict[str, Any] | None
    engine: Engine
    tail: TailSettings = field(default_factory=TailSettings)
    data: dict[str, Any] = field(default_factory=dict)
    init: str = "data"
    units: str = "data"
    density: str = "auto"
    law: str | Law = "auto"
    std: str = "auto"
    log_every: int = 50
    progress: bool = False
    seed: int = 0
    tempering: TemperingSpec = field(default_factory=TemperingSpec)
    exponent: float | None = None  # alpha of the link of a learned tempering; None: where a learned alpha starts
    n_action: int | None = None  # polynomials of an action on a scale, where coefficients depend on one
    modulation: Covariate | None = None  # in the action column of the pairs
    memory: Memory | tuple[float, ...] | str | None = None  # of the sizes of past steps; half-lives, or "learn"
    clock: Clock | None = None  # of a memory that several fits share
    drift: str = "location"  # what b is: where the likelihood puts the law of a step, or the mean of a step
    profile: dict[str, Any] | None = None  # what is reported of half-lives that were learned
    observation_noise: float | str | None = None  # its standard deviation, or "learn"
    left_open: tuple[str, ...] = ()  # of n_basis and penalty: what cross-validation chooses
    engine_reason: str = "as requested"  # why this engine

    @property
    def has_inputs(self) -> bool:
        """Whether coefficients depend on more than the state."""
        return not (self.n_action is None and self.modulation is None and self.memory is None)

    def with_head(self, plain: dict[str, Any]) -> FitSettings:
        """With a head of other settings: what the data has said, or cross-validation."""
        return replace(self, plain=plain, head=_build(plain, self.alpha, self.tempering, self.seed))


def make_settings(
    *,
    alpha: Any,
    coefficients: Any = "auto",
    n_basis: int | str = 21,
    period: float | Sequence[float] | None = 2 * math.pi,
    tail: Any = None,
    engine: Any = "auto",
    seed: Any = 0,
    tempering: Any = 0.0,
    D_o: Any = None,
    D_f: Any = None,
    modulation: Any = None,
    n_modulation: int = 9,
    memory: Any = None,
    drift: str = "location",
    observation_noise: Any = None,
    **options: Any,
) -> FitSettings:
    """Check every argument and sort the options; nothing has been computed yet."""
    spec, tempered = AlphaSpec.parse(alpha), TemperingSpec.parse(tempering)
    known = known_constants({"D_o": D_o, "D_f": D_f})
    if known.get("D_f") == 0 and (spec.learned or tempered.learned):
        what = "alpha" if spec.learned else "tempering"
        raise InputError(
            f"{what} must be given where D_f is zero, found that it is to be learned; there are no jumps to learn it "
            "from: give any number."
        )
    own = coefficients if isinstance(coefficients, Head) else None
    if own is not None and known:
        raise InputError(
            f"{' and '.join(known)} must be left to a head of your own, found a known constant; return it in forward."
        )
    asked_engine = engine.get("name") if isinstance(engine, Mapping) else engine
    averaged = isinstance(asked_engine, str) and asked_engine in ("adam", "adamw")  # have a window of their own
    bounded = options.get("window") is not None and not averaged
    plain = _plain_head(coefficients, n_basis, period, bounded=bounded) | known if own is None else {}
    head_keys = OPTIONS[plain["name"]] - _NOT_OPTIONS if own is None else set()
    seed = seed_of(seed)
    left_open: tuple[str, ...] = ()
    asked = plain.get("n_basis")
    if isinstance(asked, str) and asked == "auto":
        plain["n_basis"], left_open = 1, ("n_basis",)  # a place holder
    engine_config: dict[str, Any] = {}
    engine_keys, engine_name, reason = set[str](), getattr(engine, "name", ""), "as requested"
    if not isinstance(engine, Engine):
        name, engine_given = _named("engine", engine)
        if name == "auto":
            engine_given |= {key: options[key] for key in ("penalty", "max_steps") if key in options}
        law = options.get("law", "auto")
        has_scores = isinstance(law, str | FrozenLaw)
        engine_config, reason = chosen_engine(
            name, engine_given, plain["name"] if own is None else own, asked, options.get("units", "data"), has_scores
        )
        engine_name = engine_config["name"]
        engine_keys = engine_options(engine_name)
    data: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    head_keys -= engine_keys  # window: of adam's average, or of a line; then coefficients={"name": ..., "window": ...}
    kind = "this head" if own is not None else f"a {plain['name']} head"
    known_keys(
        f"the options for {kind} with engine {engine_name}",
        options,
        head_keys | engine_keys | DATA_OPTIONS | FIT_OPTIONS,
        also=(*ARGUMENTS, *READING),
    )
    parts = ((head_keys, plain), (engine_keys, engine_config), (DATA_OPTIONS, data), (FIT_OPTIONS, rest))
    for key, value in options.items():
        next(target for keys, target in parts if key in keys)[key] = value
    penalty = engine_config.get("penalty")
    if isinstance(penalty, str) and penalty == "cross_validation":
        if (own is not None and not isinstance(own, LinearHead)) or (own is None and plain["name"] not in LINEAR):
            raise InputError(
                'penalty "cross_validation" must have a Fourier, spline or polynomial head, found another; use '
                '"evidence".'
            )
        engine_config["penalty"] = "none"
        left_open = (*left_open, "penalty")
    if plain.get("knots", "even") != "even" and "n_basis" in left_open:
        raise InputError(f"knots must be even where n_basis is auto, found {shown(plain['knots'])}; leave knots out.")
    if own is not None:
        check_head(own)
    elif plain.get("origin") is not None:
        plain["origin"] = _plain_cell("origin", plain["origin"])
    head = _build(plain, spec, tempered, seed) if own is None else own
    if isinstance(engine, Engine):
        check_engine(engine)
    else:
        engine = build_engine(engine_config)
    engine.accepts(head)
    for key, choices in (("init", INITS), ("units", UNITS), ("density", DENSITIES), ("std", STDS)):
        choice(key, rest.get(key, choices[0]), choices)
    _check_tempering(rest, own, tempered)
    if "log_every" in rest:
        rest["log_every"] = whole_number("log_every", rest["log_every"], 1)
    if "progress" in rest:
        rest["progress"] = switch("progress", rest["progress"])
    data = check_data_options(data)
    given = not (tail is None or isinstance(tail, str))
    tails = check_learned(parse_tail(tail), alpha=spec.learned, tempering=tempered.learned, given=given)
    rest["law"] = _checked_law(rest.get("law", "auto"), head, engine, tails)
    rest["modulation"] = None if modulation is None else Covariate.periodic("covariate", modulation, n_modulation)
    rest["memory"], rest["drift"] = _half_lives(memory), choice("drift", drift, DRIFTS)
    if drift == "mean":
        check_mean(head, tails, tempered.active)
        rest["law"], data["lattice"] = _frozen_alone(rest["law"], data.get("lattice"))
    rest["observation_noise"] = _noise(observation_noise)
    rest |= {"tempering": tempered, "left_open": left_open, "engine_reason": reason}
    settings = FitSettings(spec, head, plain if own is None else None, engine, tails, data, seed=seed, **rest)
    _check_noise(settings)
    return settings


def _build(plain: dict[str, Any], alpha: AlphaSpec, tempering: TemperingSpec, seed: int) -> Head:
    """The head in the units of the data, its random parameters from the seed."""
    given = {key: value for key, value in plain.items() if key != "period" or plain["name"] not in ON_A_LINE}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_head({**given, "alpha_mode": alpha.mode, "alpha": alpha.value, **tempering.config()})


def _check_tempering(options: dict[str, Any], own: Head | None, tempering: TemperingSpec) -> None:
    if tempering.active and own is not None:
        raise InputError(
            "tempering must be left to a head of your own, found one given; return it in Coefficients(..., "
            "tempering=lam)."
        )
    if tempering.active and options.get("density", "auto") not in ("auto", "contour"):
        raise InputError(
            f"density must be auto or contour with tempering, found {options['density']}; leave it out (there is no "
            "table of the tempered law)."
        )


def _frozen_alone(law: str | Law, lattice: str | None) -> tuple[str, str]:
    """The law and the lattice of a fit whose b is a mean, which is computed from pairs."""
    if law not in ("auto", "frozen") or lattice == "always":
        raise InputError(
            f'drift "mean" must be computed from pairs under the frozen law, found law '
            f"{law if isinstance(law, str) else law.name} and lattice {lattice}; leave them out."
        )
    return "frozen", "never"


def _noise(noise: Any) -> float | str | None:
    """None, "learn", or a standard deviation."""
    if noise is None or (isinstance(noise, str) and noise == "learn"):
        return noise
    return positive_number("observation_noise", noise, 'give its standard deviation in the units of x, or "learn"')


def _check_noise(settings: FitSettings) -> None:
    """Refuse what the filter of observation noise cannot be used with."""
    if settings.observation_noise is None:
        return
    found = None
    if settings.engine.name != "fisher":
        found = f"engine {settings.engine.name}"
    elif settings.law not in ("auto", "exact", "frozen"):
        found = f"law {settings.law if isinstance(settings.law, str) else settings.law.name}"
    elif settings.tail.active or settings.tail.TRT is not None:
        found = f"tail.method {settings.tail.method}"
    elif settings.memory is not None:
        found = "a memory"
    elif settings.drift != "location":
        found = f'drift "{settings.drift}"'
    elif settings.modulation is not None:
        found = "a modulation"
    elif settings.data.get("validation"):
        found = "held-out pairs"
    elif settings.data.get("lattice") == "always":
        found = "a lattice"
    elif settings.head.dim not in (None, 1):
        found = f"{settings.head.dim} coordinates"
    if found is not None:
        raise InputError(
            "observation_noise must be fitted to whole trajectories in one dimension, by engine fisher or evidence, "
            "under law auto, exact or frozen, with drift location, and without a treatment of tails, a memory, a "
            f"modulation or held-out pairs, found {found}; leave that out, or observation_noise."
        )


def _half_lives(memory: Any) -> tuple[float, ...] | str | None:
    """None, "learn", or one to three half-lives."""
    if memory is None or (isinstance(memory, str) and memory == "learn"):
        return memory
    remedy = 'give a half-life in the time unit of the data, up to three of them, or "learn"'
    values = real_array("memory", memory, remedy).reshape(-1).tolist()
    found = tuple(sorted(positive_number("memory", value, remedy) for value in values))
    if not 1 <= len(found) <= 3 or len(set(found)) < len(found):
        raise InputError(f"memory must be one to three different half-lives, found {shown(memory)}; {remedy}.")
    return found


def _checked_law(law: Any, head: Head, engine: Engine, tail: TailSettings) -> str | Law:
    """The law as the fit takes it; what the data must have for it is checked with the data (`training.problem`)."""
    if not isinstance(law, str):
        return _checked_own_law(check_law(law), head, engine, tail)
    choice("law", law, LAWS)
    by_last_layer = engine.last_layer and not isinstance(head, LinearHead)
    if not engine.full_batch and not by_last_layer:
        if law not in ("auto", "simulated", "frozen"):
            raise InputError(
                f'law "{law}" must have a full-batch engine, found {engine.name}; use engine fisher, evidence or lbfgs.'
            )
        return "frozen" if law == "auto" else law
    if law in ("exact", "corrected"):
        if head.alpha_spec.mode == "function" and (lacking := ExactLaw.supports.missing(head)):
            raise InputError(f'law "{law}" must have {lacking.needed}, found {lacking.found}; use law="frozen".')
        if law == "corrected" and not isinstance(head, LinearHead) and not (engine.name == "fisher" or by_last_layer):
            raise InputError(
                f'law "corrected" must have engine fisher or evidence with a {type(head).__name__}, found '
                f'{engine.name}; use one of these, or law="exact".'
            )
    return law


def _checked_own_law(law: Law, head: Head, engine: Engine, tail: TailSettings) -> Law:
    if engine.name == "fisher" and not isinstance(law, FrozenLaw):
        raise InputError(
            f"the engine must be lbfgs or adam for law {law.name}, which has no scores, found {engine.name}; leave the "
            "engine out, or derive the law from FrozenLaw with score and exceedance of its own."
        )
    if tail.active and not law.supports.tails:
        raise InputError(
            f"law {law.name} must have mass_beyond for tail.method {tail.method}, found none; define it, or use tail "
            "none."
        )
    return law


def _plain_head(coefficients: Any, n_basis: int | str, period: Any, *, bounded: bool = False) -> dict[str, Any]:
    """A name, or a mapping with one, as plain settings of a head; "period" is None on a line.

    bounded: whether a window is given, which splines have on a line only.
    """
    name, given = _named("coefficients", coefficients)
    bounded = bounded or given.get("window") is not None
    choice("coefficients", name, ("auto", *HEADS))
    period = _plain_periods(given.pop("period", period))
    line = period is None
    product = isinstance(period, list) and None in period
    asked = given.get("n_basis", n_basis)
    constant = isinstance(asked, Integral) and asked == 1
    if name == "auto" or (name == "fourier" and (line or product) and constant):
        own, name = name, "product" if product else "spline" if line else "fourier"
        given = _of_head(own, name, given)
    if name == "spline":
        own, name = name, "product" if product else "spline" if line or bounded else "periodic_spline"
        given = _of_head(own, name, given)
    if name == "fourier" and (line or product):
        raise InputError("Fourier heads must have a period, found none; use coefficients spline, or give the period.")
    if product and name not in ("product", "mlp"):
        raise InputError(
            f"coefficients must be spline or mlp where some coordinates have a period and others have none, found "
            f"{name}; use one of these."
        )
    if name in ON_A_LINE and not line and period != 2 * math.pi:
        raise InputError(
            f"period must be None for splines and polynomials, found {shown(period)}; use that, or coefficients "
            "fourier."
        )
    line = line or name in ON_A_LINE
    head = {"name": name, "period": None if line else period, **given}
    if product:
        assert isinstance(period, list)
        head["dim"] = len(period)
    if name in LINEAR:
        head.setdefault("n_basis", n_basis)
    return head


def _plain_periods(period: Any) -> float | list[float | None] | None:
    """One number, or a list with one per coordinate; None, or infinity, is a line."""
    if period is None:
        return None
    several = isinstance(period, list | tuple)
    numbers = [math.inf if p is None else p for p in period] if several else period
    found = _plain_cell("period", numbers)
    if not isinstance(found, list):
        return None if found == math.inf else found
    plain = [None if p == math.inf else p for p in found]
    return None if all(p is None for p in plain) else plain


def _of_head(own: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that the head which was chosen has; refuses others, unless they say nothing."""
    known_keys(f"the options of coefficients {own}", given, OPTIONS["fourier"] | OPTIONS["spline"])
    for key, value in given.items():
        if key not in OPTIONS[name] and value not in (None, *_SILENT.get(key, ())):
            raise InputError(
                f"{key} must be left out of a {name} head, which coefficients {own} is here, found {shown(value)}; "
                "remove it, or name another head."
            )
    return {key: value for key, value in given.items() if key in OPTIONS[name] and value is not None}


def _plain_cell(name: str, given: Any) -> float | list[float]:
    """One number, or a list with one per coordinate, as floats."""
    array = real_array(name, given, "pass one number, or one per coordinate")
    if array.ndim > 1 or array.size not in (1, 2, 3):
        raise InputError(f"{name} must be one number, or one per coordinate, found {shown(given)}; pass a float.")
    return float(array) if array.ndim == 0 else [float(v) for v in array]


def _named(key: str, value: Any) -> tuple[str, dict[str, Any]]:
    """A name, or a mapping with a name and options (what configurations hold)."""
    if isinstance(value, str):
        return value, {}
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return value["name"], {str(k): v for k, v in value.items() if k != "name"}
    raise InputError(
        f"{key} must be a name, a mapping with a name, or {'an Engine' if key == 'engine' else 'a Head'}, found "
        f"{shown(value)}; see the documentation for the names."
    )
