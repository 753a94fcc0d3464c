"""A dt beside a file's own times: both are used only where they say the same."""

from __future__ import annotations

import numpy as np

from levytorch.data.arrays import Array, Counts
from levytorch.errors import InputError

_SAME = 1e-6  # relative difference of steps that are one
_BLOCK = 1 << 17  # times looked at together


def check_dt(where: str, times: Array, offsets: Counts, dt: float, unit_known: bool) -> None:
    """Refuse a dt that the times of the file contradict (`where` names them).

    The unit of dates is not known without time_unit: dt then says what one step is, and the steps need only be even.
    """
    if len(times) < 2:
        return
    expected = dt if unit_known else float(times[1] - times[0])
    ends = offsets[1:-1] - 1  # the steps from one trajectory to the next
    for low in range(0, len(times) - 1, _BLOCK):
        block = np.asarray(times[low : low + _BLOCK + 1])
        steps = np.diff(block)
        first, last = np.searchsorted(ends, [low, low + len(steps)])
        steps[ends[first:last] - low] = expected
        rounding = 4 * float(np.spacing(np.abs(block).max()))
        wrong = ~(np.abs(steps - expected) <= max(_SAME * expected, rounding))
        if wrong.any():
            raise _refusal(where, float(steps[int(np.argmax(wrong))]), dt, expected, unit_known)


def _refusal(where: str, found: float, dt: float, expected: float, unit_known: bool) -> InputError:
    if unit_known:
        return InputError(
            f"{where}: steps of dt = {dt:g} were expected between these times, found one of {found:g}: leave dt out to "
            "use the times (time_in and time_unit convert them), or remove them from the file."
        )
    return InputError(
        f"{where}: even steps were expected beside dt = {dt:g}, found one of {found:g} s after {expected:g} s: leave "
        "dt out and pass time_unit=... to use the dates, or remove them from the file."
    )
