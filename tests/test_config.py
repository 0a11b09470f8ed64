"""What settings mean, what they refuse, and how two kinds of them share theirs."""

from dataclasses import fields, replace

import pytest

from mbasfm.adjust.adjust import adjust
from mbasfm.adjust.stage import ANCHORED_STAGES, COARSE, FINE, ROUGH, with_loss, without_depth
from mbasfm.config import Common, Config, LocalizeConfig, localizing, stages_of
from mbasfm.errors import ConfigError
from mbasfm.synthetic.cameras import perturb


def test_stages_of_each_objective():
    assert stages_of(Config()) == ANCHORED_STAGES
    assert stages_of(Config(stages="coarse")) == (ROUGH,)
    assert stages_of(Config(objective="paper"))[:2] == (COARSE, FINE)
    assert stages_of(Config(objective="paper", stages="coarse")) == (COARSE,)


def test_without_depth_is_the_same_but_for_its_say():
    """The names differ, too, so that a history tells them apart."""
    for stage, other in zip(ANCHORED_STAGES, without_depth(ANCHORED_STAGES), strict=True):
        assert 0 < other.anchoring.faith < 1e-3 < stage.anchoring.faith and other.name != stage.name
        assert replace(other, name=stage.name, anchoring=stage.anchoring) == stage


def test_rival_losses_see_all_residuals():
    assert stages_of(Config(objective="paper", loss="mba")) == (COARSE, FINE)
    for loss in ("l2", "cauchy", "soft_l1", "tukey"):
        coarse, fine = with_loss(loss)
        assert coarse.loss == fine.loss == loss
        assert fine.tau_max == COARSE.tau_max and not fine.per_star
    assert with_loss("truncated_l1")[1].tau_max == FINE.tau_max
    with pytest.raises(ConfigError, match="needs objective paper"):
        Config(loss="l2")


def test_adam_is_for_the_paper_objective():
    stages = stages_of(Config(objective="paper", solver="adam", adam_steps=7))
    assert {(stage.solver, stage.max_steps) for stage in stages} == {("adam", 7)}
    with pytest.raises(ConfigError, match="add --objective paper"):
        Config(solver="adam")


def test_no_stage_leaves_the_start_as_it_is(noisy_problem):
    start = perturb(noisy_problem.truth, 0, 5.0, 0.2, 1.1)
    for solver in ("lm", "adam"):
        stages = stages_of(Config(objective="paper", stages="none", solver=solver))
        result = adjust(start, noisy_problem.samples, stages)
        assert not result.steps
        assert (result.cameras.cam_from_world == start.cam_from_world).all()


# ----------------------------------------------------------------------------------------------------------------
# What reconstruction and localization share

CHANGED = {
    "depth": "flat",
    "matcher": "sift",
    "weights": "w",
    "models_path": "m",
    "intrinsics": "per-image",
    "focal": 700.0,
    "masks": "black",
    "max_error_px": 2.0,
    "samples_per_edge": 50,
    "seed": 3,
}
"""Another value of every setting that both have, but for cameras, which exclude a focal length."""


@pytest.mark.parametrize("kind", [Config, LocalizeConfig])
@pytest.mark.parametrize(
    "settings, words",
    [
        ({"focal": 700.0, "cameras": "a.txt"}, "not both"),
        ({"focal": -1.0}, "focal must be positive"),
        ({"focal": float("nan")}, "focal must be positive"),
        ({"max_error_px": 0.0}, "max_error_px must be positive"),
        ({"samples_per_edge": 0}, "samples_per_edge must be from 1"),
        ({"samples_per_edge": 10**7}, "samples_per_edge must be from 1"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_both_refuse_what_cannot_work(kind, settings, words):
    with pytest.raises(ConfigError, match=words):
        kind(**settings)


def test_localizing_takes_over_all_but_depth_and_samples():
    assert {*CHANGED, "cameras"} == {field.name for field in fields(Common)}
    own = localizing(Config(**CHANGED, lens="pinhole"))
    kept = LocalizeConfig()
    assert (own.depth, own.samples_per_edge) == (kept.depth, kept.samples_per_edge)
    same = CHANGED.keys() - {"depth", "samples_per_edge"}
    assert {name: getattr(own, name) for name in same} == {name: CHANGED[name] for name in same}
    assert localizing(Config(cameras="a.txt")).cameras == "a.txt"
