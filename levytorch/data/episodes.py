"""Episodes of Gymnasium and Minari as arrays: a chosen state, actions, rewards per unit of time, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from levytorch.convert import Array, answer_of, choice, real_array, real_number, shown
from levytorch.errors import InputError

State = int | str | Sequence[int] | Callable[[Any], Any] | None
_FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")


class EpisodeArrays(NamedTuple):
    """One entry per episode: x (n + 1,) or (n + 1, d), action (n,) or (n, 2), reward (n,); terminal is NaN where an
    episode was cut off, else the value of the state in which it ended.
    """

    x: list[Array]
    action: list[NDArray[Any]] | None
    reward: list[Array] | None
    terminal: Array


def episode_arrays(
    episodes: Any, dt: float, state: State, action: Any, terminal_value: float, reward_per: str
) -> EpisodeArrays:
    """The arrays behind `Trajectories.from_episodes`, whose arguments these are."""
    choice("reward_per", reward_per, ("step", "time"))
    end = real_number("terminal_value", terminal_value, "pass the value of the state in which an episode ends")
    if isinstance(episodes, Mapping) or not isinstance(episodes, Iterable) or hasattr(episodes, "observations"):
        episodes = [episodes]
    x: list[Array] = []
    held: list[NDArray[Any]] = []
    reward: list[NDArray[Any]] = []
    terminal: list[float] = []
    for k, episode in enumerate(episodes):
        states = _states(k, _field(k, episode, "observations", needed=True), state)
        n = len(states) - 1
        x.append(states)
        for name, rows in (("actions", held), ("rewards", reward)):
            given = _field(k, episode, name)
            if given is not None and not (name == "actions" and action is None):
                rows.append(_of_steps(k, name, given, n, action if name == "actions" else None))
        ended = _field(k, episode, "terminations")
        terminal.append(end if ended is not None and bool(_of_steps(k, "terminations", ended, n)[-1]) else np.nan)
    if not x:
        raise InputError("episodes must hold at least one episode, found none; collect some.")
    for name, rows in (("actions", held), ("rewards", reward)):
        if rows and len(rows) < len(x):
            raise InputError(f"all episodes must have {name} if one has, found some without; add or remove them.")
    scale = dt if reward_per == "step" else 1.0
    rates = [np.asarray(rows, dtype=np.float64) / scale for rows in reward]
    return EpisodeArrays(x, held or None, rates or None, np.array(terminal))


def _field(k: int, episode: Any, name: str, needed: bool = False) -> Any:
    found = episode.get(name) if isinstance(episode, Mapping) else getattr(episode, name, None)
    if found is None and needed:
        raise InputError(
            f"episode {k} must have {', '.join(_FIELDS)} as attributes or keys, found no {name} in {shown(episode)}; "
            "pass episodes of Minari, or dicts of arrays."
        )
    return found


def _states(k: int, observations: Any, state: State) -> Array:
    """The chosen coordinates of all observations of an episode."""
    if callable(state):
        chosen = answer_of("state", state, observations, "observations")
    elif isinstance(state, str):
        if not isinstance(observations, Mapping) or state not in observations:
            names = sorted(observations) if isinstance(observations, Mapping) else "no names"
            raise InputError(
                f"state must be a key of the observations, found {state!r} among {names}; pass one of these, numbers "
                "of coordinates, or a function of the observations."
            )
        chosen = observations[state]
    else:
        if isinstance(observations, Mapping):
            raise InputError(
                f"state must be given for observations with keys, found None with {sorted(observations)}; pass one."
            )
        chosen = real_array(f"observations of episode {k}", observations)
        if state is not None:
            chosen = _coordinates(k, chosen, state)
    x = real_array(f"state of episode {k}", chosen)
    x = x[:, 0] if x.ndim == 2 and x.shape[1] == 1 else x
    if x.ndim not in (1, 2) or len(x) < 2:
        raise InputError(
            f"the state of episode {k} must have shape (n_time,) or (n_time, d) with two times at least, found "
            f"{x.shape}; choose coordinates with state=, or leave the episode out."
        )
    if x.ndim == 2 and x.shape[1] > 3:
        raise InputError(
            f"the state must have at most 3 coordinates, found {x.shape[1]} in episode {k}; choose some with state=."
        )
    return x


def _coordinates(k: int, observations: Array, state: Any) -> Array:
    flat = observations.reshape(len(observations), -1)
    try:
        return flat[:, state]
    except IndexError:
        raise InputError(
            f"state must be numbers of the {flat.shape[1]} coordinates of an observation, found {shown(state)}; pass "
            "one or several, or a function of the observations."
        ) from None


def _of_steps(k: int, name: str, given: Any, n: int, choose: Any = None) -> NDArray[Any]:
    """One entry per step of an episode."""
    values = np.asarray(answer_of("action", choose, given, "actions") if callable(choose) else given)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if len(values) != n:
        raise InputError(
            f"{name} of episode {k} must have {n} entries, one per step, found {len(values)}; keep the observation "
            "after the last step."
        )
    return values
