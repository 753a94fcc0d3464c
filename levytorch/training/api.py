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
    client: Any = None,
    **options: Any,
) -> Any:
    """Recover b(x), D_o(x), D_f(x) (and alpha) from data by maximum likelihood.

    Quiet, and writes nothing; train.py is the same code with configuration, logging and files.

    Args:
        data: Transitions, Trajectories or a Lattice; or a frame of pandas, polars or pyarrow, with the options of
            `Trajectories.from_frame` (`recover(df, id="animal", time="t", value="x", alpha="learn", period=None)`); or
            an array, with those of `Trajectories.from_arrays` (`recover(x, dt=0.1, alpha=0.3)`).
        alpha: a number in (0, 1) when known, "learn" for an unknown constant, "function" for alpha(x).
        coefficients: "auto" ("fourier" on a cell, "spline" on a line: n_basis functions per coefficient, 1 gives
            constants), "polynomial" (on a line: b a polynomial of a degree, 3 by default, D_o and D_f splines) or
            "mlp". For transitions in the plane or in space n_basis counts per coordinate (5 or 7 rather than 21; see
            truncation).
        n_basis: "auto" takes the number whose likelihood of held-out trajectories (blocks of time for few) is largest;
            the curve is in metrics["selection"].
        period: of the coefficients; in d > 1 dimensions one number or one per coordinate. None: a state on a line,
            whose window is the range of the data but for excursions; pairs that start outside of it are left out and
            counted, and beyond it coefficients are constant (b: see continuation).
        tempering: a rate lam >= 0 per unit of x beyond whose inverse jumps are exponentially rare, when known (0: the
            paper's law); "learn" for an unknown one.
        D_o, D_f: a known constant, in the units of the data, instead of a coefficient to be recovered (D_o=0: jumps
            alone).
        noise: the form of D_o in d > 1 dimensions: "isotropic" (a number at every state), "diagonal" (a variance per
            coordinate) or "matrix" (a symmetric positive matrix; `found.D_o(x)` is then [..., d, d]).
        tail: None; "auto" (CT from a preliminary fit, Appendix A); or {"CT": 8.0, "TRT": 20.0, "method": "tcf" |
            "conditional" | "none"}.
        engine: "fisher" (Fourier heads: maximum likelihood), "evidence" (fisher, smoothed as much as the data asks
            for), "lbfgs", "adam" (the paper's Algorithm B.1), or "auto": evidence for linear heads with more than 5
            functions, fisher for fewer, lbfgs for other heads; or an Engine, which has its options.
        seed: of adam's batches, of a random start and of the split of validation; also a generator of torch or NumPy,
            or None for a new one. `metrics["seed"]` has what was used.
        init: start at the scale of the "data", or at "random" (the paper).
        units: internal units from the scale of the "data", or "none" (the paper).
        density: how log p is computed: "auto", "table", "contour", "windowed" (the paper).
        law: coefficients "frozen" over a step, as in the paper; "exact": followed along it (one dimension, a period or
            splines on a line, a few distinct dt); "corrected": the frozen law's score, freed of its bias by the exact
            law, which is cheaper (linear heads); "auto": exact (on a line corrected) where that is available, changes
            anything and takes a minute at most, and metrics["law_reason"] says what was chosen and why; or an object
            with the methods of `levytorch.likelihood.laws.Law` (examples/own_law.py).
        std: the law whose information gives the standard errors: "auto", the one of the fit, or "frozen".
        lattice: whether full-batch engines see the data as a lattice, read once: "auto", "always", "never".
        validation: share of the trajectories to hold out; their likelihood is metrics["val/nll"].
        progress: show a progress bar.
        actions: "auto": where the transitions have actions each gets coefficients of its own, and a ControlledRecovery
            comes back (a ContinuousRecovery where they are numbers on a scale); None: all pairs alike.
        shared: which of "b", "D_o", "D_f" all actions have in common (alpha and tempering they always have).
        n_action: polynomials of a continuous action per function of x; 3 is a parabola.
        modulation: the period of a covariate, which the transitions hold as their action (24 for hours of the day):
            D_o and D_f are multiplied by a positive periodic function of it, `recovery.modulation`, whose mean over the
            data is one; fitted to the pairs under the frozen law.
        n_modulation: Fourier functions of its logarithm.
        memory: for volatility that comes in clusters: D_o and D_f are multiplied by f(m), m an exponentially weighted
            mean of the sizes of past steps. A half-life in the time of the data, two or three of them, or "learn", for
            those with the largest likelihood; `recovery.memory` has them. Pairs at the start of trajectories, until the
            memory has filled, are left out. Under the frozen law or the simulated one.
        client: a `dask.distributed.Client`, for data that is files: a pattern, a list of paths, or
            `levytorch.distributed.Files`, which has the options of reading. Files are read by the workers, and never
            are all pairs in one place (docs/scaling.md).
        options: the keywords of `levytorch.training.settings.Options`. Those of the head (fourier: origin, positivity,
            n_basis_alpha, truncation; spline: window, knots, continuation, free, positivity, n_basis_alpha, truncation;
            polynomial: degree, window, knots, positivity, n_basis_alpha; mlp: origin, positivity, width, depth,
            n_features, periodic, window, activation, shared_trunk, residual),
            of the engine (fisher: max_steps, tolerance, damping, n_bins, penalty; lbfgs:
            max_steps, iterations, history, tolerance; adam: max_steps, lr, window, gradient, stop_early, ...) and of
            batches (batch_size, mixing, chunk_size); one that this head and engine do not have is refused with the
            list. Also as a mapping: engine={"name": "adam", "max_steps": 1000}.

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
        **{"init": init, "units": units, "density": density, "law": law, "std": std},
        **{"lattice": lattice, "validation": validation, "progress": progress},
        **fit_options,
    )
    if files:
        from levytorch.training.from_files import recover_files  # Dask

        return recover_files(data, settings, client)
    if actions is not None:
        choice("actions", actions, ("auto",), "give None to fit all pairs alike")
    if settings.modulation is not None:
        actions = None  # the column is the covariate
    if actions and isinstance(transitions, Transitions) and transitions.action is not None:
        if transitions.actions:
            return recover_by_action(transitions, settings, fitted, shared)
        return recover_continuous(transitions, settings, n_action)
    if shared:
        raise InputError(f"shared must be left out of transitions without actions, found {shown(shared)}; remove it.")
    return fitted(transitions, settings)
