"""recover(): coefficients out of transitions in one call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from levytorch.coefficients import Head
from levytorch.convert import choice, shown
from levytorch.data import Transitions
from levytorch.data.given import pairs_of_data
from levytorch.errors import InputError
from levytorch.likelihood.laws import Law
from levytorch.training.by_action import recover_by_action
from levytorch.training.continuous import recover_continuous
from levytorch.training.engines import Engine
from levytorch.training.fit import fitted
from levytorch.training.settings import make_settings


def recover(
    data: Any,
    *,
    alpha: float | str,
    coefficients: str | dict[str, Any] | Head = "auto",
    n_basis: int | str = 21,
    period: float | Sequence[float] | None = 2 * math.pi,
    tempering: float | str = 0.0,
    D_o: float | None = None,
    D_f: float | None = None,
    tail: str | dict[str, Any] | None = None,
    engine: str | dict[str, Any] | Engine = "auto",
    seed: Any = 0,
    init: str = "data",
    units: str = "data",
    density: str = "auto",
    law: str | Law = "auto",
    std: str = "auto",
    lattice: str = "auto",
    validation: float = 0.0,
    progress: bool = False,
    actions: str | None = "auto",
    shared: Sequence[str] = (),
    n_action: int = 3,
    modulation: float | None = None,
    n_modulation: int = 9,
    memory: float | Sequence[float] | str | None = None,
    drift: str = "location",
    observation_noise: float | str | None = None,
    client: Any = None,
    **options: Any,
) -> Any:
    """Recover b(x), D_o(x) and D_f(x), and on request alpha and the tempering, from data by maximum likelihood.

    It prints nothing and writes nothing. train.py is the same code with configuration, logging and files.

    Args:
        data: Transitions, Trajectories or a Lattice; a frame of pandas, polars or pyarrow, with the options of
            `Trajectories.from_frame` (`recover(df, id="animal", time="t", value="x", alpha="learn", period=None)`); or
            an array, with those of `Trajectories.from_arrays` (`recover(x, dt=0.1, alpha=0.3)`).
        alpha: a number in (0, 1) if it is known, "learn" for an unknown constant, "function" for alpha(x).
        coefficients: the head: "auto" ("fourier" on a circle, "spline" on a line), "polynomial" (on a line: b a
            polynomial, D_o and D_f splines), "mlp" (a network), or a Head of your own.
        n_basis: functions per coefficient; 1 gives constants. In d > 1 dimensions it counts per coordinate (5 or 7
            rather than 21). "auto" takes the number with the largest likelihood of held-out trajectories.
        period: of the state, one number or one per coordinate. None is a state on a line: coefficients are fitted on a
            window, the central 99 % of the observed states and a margin; pairs that start outside are left out and
            counted.
        tempering: a rate >= 0 per unit of x, if it is known: jumps larger than its inverse are exponentially rare. 0 is
            the stable law of the paper. "learn" estimates it.
        D_o, D_f: a known constant, in the units of the data, instead of a coefficient to be recovered.
        noise: the form of D_o in d > 1 dimensions: "isotropic" (a number at every state), "diagonal" (a variance per
            coordinate) or "matrix" (a symmetric positive matrix).
        tail: how lost tails are treated: None; "auto" (CT from a preliminary fit, Appendix A); or {"CT": 8.0, "TRT":
            20.0, "method": "tcf" | "conditional" | "none"}.
        engine: what maximises the likelihood: "fisher", "evidence" (fisher, with as much smoothing as the data ask
            for), "lbfgs", "adam" (the paper's Algorithm B.1), "adamw", "auto", or an Engine, which has its options.
        seed: of mini-batches, of a random start and of held-out trajectories; a number, a generator of torch or NumPy,
            or None for a new one. `metrics["seed"]` has what was used.
        init: start at the scale of the "data", or at "random" (the paper).
        units: internal units from the scale of the "data", or "none" (the paper).
        density: how log p is computed: "auto", "table", "contour" or "windowed" (the paper).
        law: the density of a step: "frozen" holds coefficients constant during it, as the paper does; "exact" follows
            them; "corrected" and "simulated" remove the bias of the frozen law; "auto" takes the frozen law unless
            another is available and would change the estimates, and `metrics["law_reason"]` says why; or a Law of your
            own.
        std: the law whose information gives the standard errors: "auto", that of the fit, or "frozen".
        lattice: whether all pairs are read once into a weighted batch: "auto", "always" or "never".
        validation: share of the trajectories to hold out; their likelihood is `metrics["val/nll"]`.
        progress: show a progress bar.
        actions: "auto" gives every action of the data coefficients of its own; None ignores the actions.
        shared: which of "b", "D_o", "D_f" all actions have in common (alpha and tempering they always have).
        n_action: polynomials of an action on a scale per function of x; 3 is a parabola.
        modulation: the period of a covariate, which the transitions hold as their action (24 for hours of the day). D_o
            and D_f are multiplied by a positive periodic function of it, `found.modulation`, whose mean over the data
            is one.
        n_modulation: Fourier functions of the logarithm of that function.
        memory: for volatility that comes in clusters: D_o and D_f are multiplied by a function of the sizes of past
            steps. A half-life in the time unit of the data, two or three of them, or "learn". `found.memory` has them.
            Pairs at the start of a trajectory, until the memory has filled, are left out.
        drift: what b is: the "location" of the law of a step, where the likelihood puts it, or with tempering the
            "mean" of a step, by least squares. They differ if steps are not symmetric: an animal that rests in most
            hours has its location at the rests, and returns home by its mean.
        observation_noise: for states that are measured with an error: the standard deviation of independent Gaussian
            errors in the units of x, or "learn". b, D_o, D_f and alpha are then those of the states without errors.
            `found.observation_noise` has it. Noise that cannot be distinguished from zero is dropped. For trajectories
            in one dimension.
        client: a `dask.distributed.Client`, for data that are files: a pattern, a list of paths, or
            `levytorch.distributed.Files`.
        options: further keywords of the head (origin, positivity, window, knots, continuation, degree, width, depth,
            ...), of the engine (max_steps, tolerance, penalty, lr, ...) and of batches (batch_size, mixing,
            chunk_size). One that this head and engine do not have is refused with the list.
            `levytorch.training.settings.Options` names all. `engine={"name": "adam", "max_steps": 1000}` gives those of
            an engine with its name.

    Returns:
        A Recovery; for data with labelled actions a ControlledRecovery, for actions on a scale a ContinuousRecovery.

    Example:
        >>> from levytorch import Dynamics, recover, simulate
        >>> data = simulate(Dynamics.named("constant"), 2000, 40, 1 / 40, seed=1).transitions()
        >>> found = recover(data, alpha=0.3, n_basis=1)
        >>> abs(float(found.D_o(0.0)) - 4.0) < 0.2
        True
    """
    files = client is not None or type(data).__module__ == "levytorch.distributed.files"
    transitions, fit_options = (data, dict(options)) if files else pairs_of_data(data, dict(options))
    settings = make_settings(
        alpha=alpha,
        coefficients=coefficients,
        n_basis=n_basis,
        period=period,
        tempering=tempering,
        D_o=D_o,
        D_f=D_f,
        tail=tail,
        engine=engine,
        seed=seed,
        modulation=modulation,
        n_modulation=n_modulation,
        memory=memory,
        drift=drift,
        observation_noise=observation_noise,
        **{"init": init, "units": units, "density": density, "law": law, "std": std},
        **{"lattice": lattice, "validation": validation, "progress": progress},
        **fit_options,
    )
    if files:
        from levytorch.training.from_files import recover_files  # Dask

        if settings.drift == "mean":
            raise InputError('drift "mean" must be computed from pairs, found files; pass Transitions.')

        return recover_files(data, settings, client)
    if actions is not None:
        choice("actions", actions, ("auto",), "give None to ignore the actions")
    if settings.modulation is not None:
        actions = None  # the column is the covariate
    if actions and isinstance(transitions, Transitions) and transitions.action is not None:
        if transitions.actions:
            return recover_by_action(transitions, settings, fitted, shared)
        return recover_continuous(transitions, settings, n_action)
    if shared:
        raise InputError(f"shared must be left out of transitions without actions, found {shown(shared)}; remove it.")
    return fitted(transitions, settings)
