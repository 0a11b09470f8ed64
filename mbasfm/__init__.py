"""Camera poses from monocular depth and correspondences by marginalized bundle adjustment."""

import logging
import os
from importlib.metadata import PackageNotFoundError, version

# Threads that wait for each other sleep meanwhile, instead of taking the core from who has work. Read once, by torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from mbasfm.adjust.adjust import Adjustment, adjust
from mbasfm.adjust.diagnosis import Diagnosis
from mbasfm.adjust.levenberg_marquardt import Step
from mbasfm.adjust.pose_priors import PosePriors
from mbasfm.adjust.stage import (
    ANCHORED,
    ANCHORED_STAGES,
    COARSE,
    FINE,
    PAPER_STAGES,
    SPLIT,
    SPLIT_STAGES,
    Priors,
    Stage,
    annealed,
)
from mbasfm.config import PRESETS, Config, LocalizeConfig
from mbasfm.errors import ConfigError, DegenerateError, InputError, MBAError
from mbasfm.evaluation.metrics import pose_auc, pose_errors_deg
from mbasfm.localization.result import Localization, Located
from mbasfm.localize import Map, relocalize
from mbasfm.pair import PairPose, two_view
from mbasfm.reconstruct import reconstruct
from mbasfm.report.record import write_report
from mbasfm.scene.folder import export_scene
from mbasfm.scene.reconstruction import Reconstruction
from mbasfm.types.cameras import Cameras, Fixed, Intrinsics
from mbasfm.types.observations import PoseGraph, Samples
from mbasfm.types.outcome import NoPose, NotPolished, Reason, RunReport

try:
    __version__ = version("mbasfm")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "ANCHORED",
    "ANCHORED_STAGES",
    "Adjustment",
    "COARSE",
    "Cameras",
    "Config",
    "ConfigError",
    "DegenerateError",
    "Diagnosis",
    "FINE",
    "Fixed",
    "InputError",
    "Intrinsics",
    "Localization",
    "LocalizeConfig",
    "Located",
    "MBAError",
    "Map",
    "NoPose",
    "NotPolished",
    "PAPER_STAGES",
    "PRESETS",
    "PairPose",
    "PoseGraph",
    "PosePriors",
    "Priors",
    "Reason",
    "Reconstruction",
    "RunReport",
    "SPLIT",
    "SPLIT_STAGES",
    "Samples",
    "Stage",
    "Step",
    "adjust",
    "annealed",
    "export_scene",
    "pose_auc",
    "pose_errors_deg",
    "reconstruct",
    "relocalize",
    "two_view",
    "write_report",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
