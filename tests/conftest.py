"""A problem small enough for every test, and repeatable examples for the laws."""

import os

import pytest
import torch
from hypothesis import settings

from mbasfm.synthetic import Problem, Settings, make_problem

os.environ["HF_HUB_OFFLINE"] = "1"  # no test fetches weights, wherever it runs
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None, max_examples=25)
settings.load_profile("repeatable")
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # workers that wait for each other's threads take many times as long


@pytest.fixture(scope="session")
def noisy_problem() -> Problem:
    """Six frames with the usual errors of depth and matches."""
    return make_problem(6, 0, Settings(samples_per_edge=40))
