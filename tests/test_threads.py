"""How many cores a computation takes."""

import pytest
import torch

from mbasfm import SPLIT_STAGES, adjust
from mbasfm.runtime.parallel import cores, one_core, own_cores


def test_cores_are_given_back_even_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(ValueError), cores(before + 2):
        assert torch.get_num_threads() == before + 2
        raise ValueError
    assert torch.get_num_threads() == before


def test_a_decorated_function_takes_one_core_every_time():
    @one_core()
    def look() -> int:
        return torch.get_num_threads()

    with cores(2):
        assert [look(), torch.get_num_threads(), look()] == [1, 2, 1]


def test_a_small_problem_is_adjusted_on_one_core(noisy_problem):
    seen = []

    class Threads:
        def last(self):
            return None

        def keep(self, checkpoint):
            seen.append(torch.get_num_threads())

    with cores(2):
        adjust(noisy_problem.truth, noisy_problem.samples, SPLIT_STAGES, journal=Threads())
        assert torch.get_num_threads() == 2
    assert seen and set(seen) == {1}


def test_the_environment_limits_cores_except_under_torchrun(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert own_cores() == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    most = own_cores()
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")  # nested levels: not for us
    assert own_cores() == most
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert own_cores() == max(1, most // 2)
