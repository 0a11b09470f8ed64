"""A problem small enough for every test, and repeatable examples for the laws."""

import os

# Threads that wait for each other take many times as long; processes that tests start read it, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", os.environ["OMP_NUM_THREADS"])
os.environ["HF_HUB_OFFLINE"] = "1"  # no test fetches weights, wherever it runs

import margins
import pytest
from hypothesis import settings

from mbasfm.synthetic.problem import Problem, Settings, make_problem

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, max_examples=25)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def noisy_problem() -> Problem:
    """Six frames with the usual errors of depth and matches."""
    return make_problem(6, 0, Settings(samples_per_edge=40))


def pytest_configure() -> None:
    if margins.FOLDER:
        margins.install()


def pytest_sessionfinish(session: pytest.Session) -> None:
    margins.write(session)
