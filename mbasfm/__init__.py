"""Camera poses from monocular depth and correspondences by marginalized bundle adjustment."""

import logging
import os
from importlib.metadata import PackageNotFoundError, version

# Threads that wait for each other sleep meanwhile, instead of taking the core from who has work. Read once, by torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from mbasfm.adjust import Adjustment, adjust
from mbasfm.config import (
    COARSE,
    FINE,
    PAPER_STAGES,
    PRESETS,
    SPLIT,
    SPLIT_STAGES,
    Config,
    LocalizeConfig,
    Priors,
    Stage,
    annealed,
)
from mbasfm.diagnose import Diagnosis
from mbasfm.errors import ConfigError, DegenerateError, InputError, MBAError
from mbasfm.export import export_scene
from mbasfm.localization import Localization, Located
from mbasfm.localize import Map, relocalize
from mbasfm.metrics import pose_auc, pose_errors_deg
from mbasfm.pair import PairPose, two_view
from mbasfm.pipeline import reconstruct
from mbasfm.pose_priors import PosePriors
from mbasfm.reconstruction import Reconstruction
from mbasfm.report import write_report
from mbasfm.solve_lm import Step
from mbasfm.types import Cameras, Fixed, Frames, Intrinsics, PoseGraph, Samples

try:
    __version__ = version("mbasfm")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "Adjustment",
    "COARSE",
    "Cameras",
    "Config",
    "ConfigError",
    "DegenerateError",
    "Diagnosis",
    "FINE",
    "Fixed",
    "Frames",
    "InputError",
    "Intrinsics",
    "Localization",
    "LocalizeConfig",
    "Located",
    "MBAError",
    "Map",
    "PAPER_STAGES",
    "PRESETS",
    "PairPose",
    "PoseGraph",
    "PosePriors",
    "Priors",
    "Reconstruction",
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
