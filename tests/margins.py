"""How near comparisons come to their bounds: with MBA_MARGINS=FOLDER every tight one is noted.

A bound on rounding that is nearly reached on one machine is passed on another, which adds up in another order. So
between it and what is seen there should be a factor of ten. Bounds on anything but rounding are not looked at.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

FOLDER = os.environ.get("MBA_MARGINS")
ROUNDING = 1e-4
"""Bounds above it, absolute or relative, are about something else."""
TIGHT = 0.1
_WORST: dict[str, tuple[float, float, float]] = {}
"""Place in a test to the largest share of the bound that was seen, with the error and the bound."""


def note(error: float, bound: float, scale: float = 1.0) -> None:
    """An error was compared with a bound, for numbers of this size."""
    if FOLDER and 0 < bound <= ROUNDING * max(scale, 1.0) and error > TIGHT * bound and np.isfinite(error):
        place = _place()
        if place not in _WORST or error / bound > _WORST[place][0]:
            _WORST[place] = (error / bound, error, bound)


def assert_below(values: Any, bound: float) -> None:
    """No value, in magnitude, reaches a bound on rounding."""
    largest = float(torch.as_tensor(values).detach().abs().max())
    note(largest, bound)
    assert largest < bound


def _place() -> str:
    """The line of a test file that led here."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.parent.name == "tests" and path.name.startswith("test_"):
            return f"{path.name}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


def install() -> None:
    """Listen to the comparisons of torch and pytest."""
    number = type(pytest.approx(0.0))
    close, equal = torch.testing.assert_close, number.__eq__

    def listening_close(actual: Any, expected: Any, **options: Any) -> None:
        close(actual, expected, **options)
        if isinstance(actual, torch.Tensor) and options.get("rtol") is not None and actual.numel():
            one, other = actual.detach().double(), torch.as_tensor(expected).double()
            error, bound = (one - other).abs(), options["atol"] + options["rtol"] * other.abs()
            share = (error / bound.clamp_min(1e-300)).nan_to_num(0.0, 0.0, 0.0).flatten()
            worst = int(share.argmax())
            note(float(error.flatten()[worst]), float(bound.flatten()[worst]), float(other.abs().flatten()[worst]))

    def listening_equal(self: Any, actual: Any) -> bool:
        same = equal(self, actual)
        if same and isinstance(actual, (float, np.floating)) and isinstance(self.expected, (int, float)):
            note(abs(float(actual) - float(self.expected)), float(self.tolerance), abs(float(self.expected)))
        return same

    torch.testing.assert_close = listening_close
    number.__eq__ = listening_equal


def write(session: pytest.Session) -> None:
    """One file per process."""
    if FOLDER and _WORST:
        Path(FOLDER).mkdir(parents=True, exist_ok=True)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        Path(FOLDER, f"{worker}-{os.getpid()}.json").write_text(json.dumps(_WORST))
