"""What a run comes to, as values: why, how well, and views and points of a finished scene. Words are made when told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np
from jaxtyping import Float64, UInt8


class NoPose(Enum):
    """Why a photograph has no pose."""

    NO_PAIR = "no other photograph shares enough matches that agree with one relative pose"
    NOT_PROVEN = "what connects it to other photographs is not beyond doubt"
    NO_DEPTH = "none of its verified matches has depth"
    NO_EDGE = "no edge to any other frame"
    FEW_MATCHES_AGREE = "only {:.1f} % of its matches agree with any pose that was tried"
    NEIGHBOURS_LOST = "its neighbours could not be registered"
    NO_MAP_POINT = "no match leads to a point of the map"
    NO_POSE_FITS = "no pose fits its {} matched points"
    FEW_KEYPOINTS_AGREE = "only {} of {} matched keypoints agree with the best pose"
    CHANCE = "only {} of {} matched keypoints agree with the best pose, as many as chance allows"
    UNKNOWN = "{}"
    """In the words of a report that does not name the kind."""


class NotPolished(Enum):
    """Why a component's cameras were left as adjustment made them."""

    SWITCHED_OFF = "switched off"
    NOTHING_TO_ADD = "intrinsics are known, so that points have nothing to add to adjusted tracks"
    HELD = "the cameras of the older scene stay as they are"
    FEW_POINTS = "only {} points could be triangulated; {} are needed"
    FEW_POINTS_LEFT = "only {} of {} points were left"
    HELD_OUT_WORSE = "held-out points got worse in third views, {:.2f} to {:.2f} px"
    UNKNOWN = "{}"
    """In the words of a report that does not name the kind."""


class PairChoice(Enum):
    """Which pairs were matched, and why."""

    ALL_WANTED = "All pairs of {} frames, as asked for."
    ALL_OF_FEW = "All pairs, as there are only {} frames."
    ALL_UNLIKE = "All pairs of {} frames, as there is nothing to compare by."
    SEQUENCE = "Each of {} frames with the {} following and some later ones, as asked for."
    SEQUENCE_UNNUMBERED = (
        "Each of {} frames with the {} following and some later ones, as asked for, although the names are not"
        " numbered like a sequence."
    )
    ALIKE_WANTED = "Each of {} frames with the {} that look most alike (by {}), as asked for."
    ALIKE = "Each of {} frames with the {} that look most alike (by {}), as there are more than {} frames."
    ALIKE_AND_SEQUENCE = (
        "Each of {} frames with the {} that look most alike (by {}) and the {} following, as there are more than {}"
        " frames and they are numbered in sequence."
    )
    LISTED = "from {}"
    OF_MATCHER = "those that the matcher has"
    OF_WEAK = "those of photographs with few matches"


ALL_PAIRS = (PairChoice.ALL_WANTED, PairChoice.ALL_OF_FEW, PairChoice.ALL_UNLIKE)
Kind = TypeVar("Kind", NoPose, NotPolished, PairChoice)


@dataclass(frozen=True)
class Reason(Generic[Kind]):
    """One kind of reason and the numbers (or names) of this case; as text it is a sentence."""

    kind: Kind
    values: tuple[str | int | float, ...] = ()

    def __str__(self) -> str:
        return str(self.kind.value).format(*self.values)


class FocalSource(str, Enum):
    """Where a focal length came from."""

    GIVEN = "given"
    METADATA = "metadata"
    INITIAL_MODEL = "model to start from"
    DEPTH_MODEL = "depth model"
    SEARCH = "search"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Sigma:
    """Standard deviations of a pose; None where unknown."""

    rotation_deg: tuple[float | None, ...]
    translation: tuple[float | None, ...]
    """In the world's unit."""


@dataclass(frozen=True)
class ImageRow:
    """What became of a photograph; numbers are None where they are unknown."""

    name: str
    source: str
    """Path of the photograph."""
    component: int
    """Number of the component, 0 for the largest; -1 without a pose."""
    reason: Reason[NoPose] | None = None
    """Why it has no pose; None if it has one."""
    inlier_share: float | None = None
    """Share of its matches that agree with the pose."""
    depth_error: float | None = None
    """Relative error of its depth after correction."""
    parallax_px: float | None = None
    """How far baseline and depth move what it shows in a neighbour, at a long side of 1024."""
    sigma: Sigma | None = None
    depth_misfit: float | None = None
    """Relative difference of its written depth map and the points."""

    @property
    def registered(self) -> bool:
        """Whether the photograph has a pose."""
        return self.component >= 0


@dataclass(frozen=True)
class ComponentRow:
    """What became of one component; numbers are None where they are unknown."""

    images: int
    points: int
    mean_track_length: float | None
    mean_error_px: float | None
    reason: Reason[NotPolished] | None
    """Why it was not polished; None if it was."""
    held_out_px: tuple[float | None, ...] = (None, None)
    """Median epipolar distance of held-out matches before and after polish."""
    used_depth: bool = False
    """Whether depth took part in polish."""

    @property
    def polished(self) -> bool:
        """Whether polish was used."""
        return self.reason is None


@dataclass(frozen=True)
class CameraRow:
    """One camera, which may have taken many photographs."""

    images: int
    width: int
    height: int
    focal_from: FocalSource
    start_focal_px: float | None
    focal_px: float | None
    registered: int | None = None
    """How many of its photographs have a pose; None if unknown."""


@dataclass(frozen=True)
class PairColumns:
    """Pairs of photographs that have matches, by columns."""

    i: tuple[int, ...] = ()
    j: tuple[int, ...] = ()
    matches: tuple[int, ...] = ()
    inliers: tuple[int, ...] = ()
    """Matches that agree with one relative pose."""
    used: tuple[int, ...] = ()
    """1 for edges of the final graph, 0 for others."""


@dataclass(frozen=True)
class StepColumns:
    """Steps of the solver, by columns."""

    number: tuple[int, ...] = ()
    stage: tuple[str, ...] = ()
    loss: tuple[float | None, ...] = ()
    score: tuple[float | None, ...] = ()
    damping: tuple[float | None, ...] = ()
    accepted: tuple[bool, ...] = ()


@dataclass(frozen=True)
class ResidualCurve:
    """Histogram of residuals after one stage."""

    stage: str
    part: str
    counts: tuple[float, ...]
    """Mass per bin; the last one lies beyond all bins."""


@dataclass(frozen=True)
class Residuals:
    """Histograms of residuals over the same bins [px at a long side of 1024]."""

    edges_px: tuple[float, ...] = ()
    inlier_px: float = 0.0
    """Residuals below it are inliers."""
    curves: tuple[ResidualCurve, ...] = ()


@dataclass(frozen=True)
class Bridge:
    """Pairs that would join two groups of photographs, which stay apart because the pairs are not beyond doubt.

    Photographs are numbers of rows in the report.
    """

    groups: tuple[tuple[int, ...], tuple[int, ...]]
    pairs: tuple[tuple[int, int], ...]
    agreeing: int
    """Largest number of pairs that turn one group against the other in the same way."""
    log10_odds: float
    """Odds that these are right."""
    needed_log10_odds: float


@dataclass(frozen=True)
class StageRow:
    """One stage of a run."""

    name: str
    seconds: float
    peak_memory_mb: float | None
    facts: Mapping[str, Any]
    """Further values by name, to be shown."""


@dataclass(frozen=True)
class SkippedFile:
    """A file that was left out, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class RunReport:
    """What is known about a run: what became of photographs and components, then how it came to that."""

    images: tuple[ImageRow, ...]
    components: tuple[ComponentRow, ...]
    """Largest first."""
    kept_apart: tuple[Bridge, ...] = ()
    """Groups that look as if they belonged together, but not beyond doubt."""
    lookalikes: tuple[tuple[int, int], ...] = ()
    """Pairs that match but show different places; photographs are numbers of rows."""
    world: Mapping[str, Any] | None = None
    """Frame of reference of the result and how well each component fits it; None if none was asked for."""
    source: str = ""
    """Folder or list file of the photographs."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    depth_model: str = ""
    """Key of the depth model that was used; empty if unknown."""
    pairs_chosen: Reason[PairChoice] | None = None
    """Why these pairs were matched; None if unknown."""
    cameras: tuple[CameraRow, ...] = ()
    pairs: PairColumns = PairColumns()
    residuals: Residuals = Residuals()
    steps: StepColumns = StepColumns()
    depth_pictures: tuple[str | None, ...] = ()
    """Small JPEG files as base64; None where depth is the same everywhere."""
    stages: tuple[StageRow, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences that the user was told."""
    skipped: tuple[SkippedFile, ...] = ()
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Paths of written files, relative to the scene folder, by kind."""

    @property
    def registered(self) -> tuple[ImageRow, ...]:
        """Photographs with a pose."""
        return tuple(row for row in self.images if row.registered)


@dataclass(frozen=True)
class View:
    """A registered photograph without distortion."""

    name: str
    number: int
    """Number of the photograph in the whole set, by name."""
    cam_from_world: Float64[np.ndarray, "3 4"]
    focal: Float64[np.ndarray, "2"]
    """fx, fy [px]."""
    center: Float64[np.ndarray, "2"]
    """cx, cy [px]."""
    size: tuple[int, int]
    """Width, height [px]."""
    camera: int
    """Photographs with the same number have the same intrinsics."""

    @property
    def world_from_cam(self) -> Float64[np.ndarray, "3 4"]:
        """Inverse pose; its last column is the centre of the camera."""
        turn = self.cam_from_world[:, :3].T
        return np.column_stack([turn, -turn @ self.cam_from_world[:, 3]])

    def project(
        self, points: Float64[np.ndarray, "M 3"]
    ) -> tuple[Float64[np.ndarray, "M 2"], Float64[np.ndarray, " M"]]:
        """Pixels and depth of points in the world; pixels are meaningless where depth is not positive."""
        x, y, depth = (points @ self.cam_from_world[:, :3].T + self.cam_from_world[:, 3]).T
        safe = np.where(depth > 0, depth, 1.0)
        return np.stack([x / safe, y / safe], -1) * self.focal + self.center, depth

    def lift(self, pixels: Float64[np.ndarray, "M 2"], depth: Float64[np.ndarray, " M"]) -> Float64[np.ndarray, "M 3"]:
        """World points of pixels with depth."""
        rays = np.column_stack([(pixels - self.center) / self.focal, np.ones(len(pixels))])
        return (rays * depth[:, None]) @ self.world_from_cam[:, :3].T + self.world_from_cam[:, 3]


@dataclass(frozen=True)
class Cloud:
    """Coloured points in the world."""

    points: Float64[np.ndarray, "M 3"]
    colors: UInt8[np.ndarray, "M 3"]
