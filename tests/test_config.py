"""Which stages of adjustment a configuration means."""

import pytest

from mbasfm.adjust.adjust import adjust
from mbasfm.adjust.stage import COARSE, FINE, SPLIT_STAGES, with_loss
from mbasfm.config import Config, stages_of
from mbasfm.errors import ConfigError
from mbasfm.synthetic.cameras import perturb


def test_stages_of_each_objective():
    assert stages_of(Config()) == SPLIT_STAGES
    assert stages_of(Config(objective="paper"))[:2] == (COARSE, FINE)
    assert stages_of(Config(objective="paper", stages="coarse")) == (COARSE,)


def test_rival_losses_see_all_residuals():
    assert stages_of(Config(objective="paper", loss="mba")) == (COARSE, FINE)
    for loss in ("l2", "cauchy", "soft_l1", "tukey"):
        coarse, fine = with_loss(loss)
        assert coarse.loss == fine.loss == loss
        assert fine.tau_max == COARSE.tau_max and not fine.per_star
    assert with_loss("truncated_l1")[1].tau_max == FINE.tau_max
    with pytest.raises(ConfigError, match="needs objective paper"):
        Config(loss="l2")


def test_no_stage_leaves_the_start_as_it_is(noisy_problem):
    start = perturb(noisy_problem.truth, 0, 5.0, 0.2, 1.1)
    for solver in ("lm", "adam"):
        stages = stages_of(Config(objective="paper", stages="none", solver=solver))
        result = adjust(start, noisy_problem.samples, stages)
        assert not result.steps
        assert (result.cameras.cam_from_world == start.cam_from_world).all()
