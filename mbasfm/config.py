"""What a user can set, as frozen values that refuse what cannot work."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from mbasfm.adjust.stage import ANCHORED_STAGES, COARSE, FINE, Loss, Stage, annealed, with_loss
from mbasfm.errors import ConfigError

Objective = Literal["anchored", "paper"]
Solver = Literal["lm", "adam"]
Grouping = Literal["shared", "per-folder", "per-image"]
LensKind = Literal["auto", "pinhole", "simple-radial", "radial", "opencv", "fisheye"]
BENT: tuple[LensKind, ...] = ("simple-radial", "radial", "opencv", "fisheye")
"""Lenses whose distortion is looked for from the start."""
Tree = Literal["consistent", "paper"]
Extent = Literal["all", "coarse", "none"]
Preset = Literal["fast", "default", "accurate"]
Part = TypeVar("Part")
TOLD_LOG_FOCAL = 0.05
"""Standard deviation of the logarithm of a focal length from the metadata, or from the model to start from."""
MOST = 1_000_000
"""Of samples, tracks and steps: more is a typing error."""


@dataclass(frozen=True)
class Common:
    """Settings of a reconstruction and of a re-localization."""

    depth: str = "auto"
    """Depth model: auto, NAME or NAME:ARGUMENT; `mba models` lists them."""
    matcher: str = "auto"
    """Matcher: auto, NAME or NAME:ARGUMENT."""
    weights: str | None = None
    """Folder with weights of networks, before the one that the variable MBA_WEIGHTS names."""
    models_path: str | None = None
    """Folder with clones of networks' code, before the one that the variable MBA_MODELS names."""
    intrinsics: Grouping = "shared"
    """Which photographs share a camera. Photographs of different size or device never do."""
    cameras: str | None = None
    """Known intrinsics: COLMAP's cameras.txt or .bin, or JSON. They are held."""
    focal: float | None = None
    """Known focal length of all photographs [px]. It is held."""
    masks: str | None = None
    """Folder with masks, photo.jpg.png for photo.jpg, black = ignore; those beside the photographs are found anyway."""
    max_error_px: float = 3.0
    """Largest distance of a verified match to its epipolar line [px at a long side of 1024]."""
    samples_per_edge: int = 200
    """kappa: samples of every pair that adjustment uses."""
    seed: int = 0
    """Seed of all random choices."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything is computed."""
        if self.cameras is not None and self.focal is not None:
            raise ConfigError("give either cameras or focal, not both")
        if self.focal is not None and not 0 < self.focal < math.inf:
            raise ConfigError(f"focal must be positive, not {self.focal}")
        if not 0 < self.max_error_px < math.inf:
            raise ConfigError(f"max_error_px must be positive, not {self.max_error_px}")
        _check_count("samples_per_edge", self.samples_per_edge)
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed must be a whole number from 0 to {2**32 - 1}, not {self.seed}")

    def part(self, kind: type[Part]) -> Part:
        """The settings that one stage uses: a dataclass whose fields are named as here."""
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Config(Common):
    """Every setting of a reconstruction."""

    lens: LensKind = "auto"
    """Distortion of lenses that are not given: auto refines one radial term, the others fit that model or none."""
    init: str | None = None
    """Poses to start from: a COLMAP model, transforms.json, or trajectory. Its intrinsics are a start, too."""
    priors: str | None = None
    """What is roughly known about poses: exif (GPS), a .csv or .json with positions, or a file of poses."""
    prior_sigma_m: float | None = None
    """Standard deviation of known positions [m] where the file says none; by default 5 for GPS, else 1."""
    prior_sigma_deg: float = 5.0
    """Standard deviation of known rotations [deg] where the file says none."""
    pairs: str = "auto"
    """Which pairs to match: auto, exhaustive, sequential, retrieval, or a file with two names per line."""
    min_covisibility: float = 0.15
    """nu: pairs that share less of what they see become edges only where a frame would be cut off otherwise."""
    min_confidence: float = 0.0
    """chi: matches at or below it are not used."""
    min_depth_confidence: float = 0.0
    """Depth at or below it is not used, where the depth model says how sure it is."""
    tree: Tree = "consistent"
    """How frames join at the start: by verified inliers and consistent triplets, or the paper's greedy tree."""
    objective: Objective = "anchored"
    """``anchored`` marginalizes over depth as well, track by track; ``paper`` is the published objective."""
    loss: Loss | None = None
    """A rival loss in the stages of objective ``paper``, to compare with."""
    stages: Extent = "all"
    """How much is adjusted: all stages, the first one only, or none."""
    solver: Solver = "lm"
    """Levenberg-Marquardt, or the paper's Adam."""
    adam_steps: int = 2000
    """Steps per stage of ``--solver adam``. The paper takes 25,000 to 50,000."""
    max_memory_gb: float | None = None
    """Memory of each process: picks how samples are stored and read, and how many; None: as much as they need."""
    polish: bool = True
    """Classical bundle adjustment of tracks at the end."""
    tracks_per_frame: int = 1000
    """Polish adjusts this many tracks of every photograph, the longest; all are in the result."""
    align: str | None = None
    """World of the result: up (z up), gps (metres east, north, up), or a file of poses; by default that of init."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything is computed."""
        super().__post_init__()
        self._check_combinations()
        self._check_ranges()

    def _check_combinations(self) -> None:
        if self.priors is not None and self.solver == "adam":
            raise ConfigError("the solver adam uses no priors; leave out --priors or --solver")
        if self.solver == "adam" and self.objective != "paper":
            raise ConfigError("the solver adam is for objective paper; add --objective paper, or leave out --solver")
        if self.loss is not None and self.objective != "paper":
            raise ConfigError("a rival loss needs objective paper; anchors have their own")

    def _check_ranges(self) -> None:
        if not min(self.prior_sigma_m or 1.0, self.prior_sigma_deg) > 0:
            raise ConfigError("prior_sigma_m and prior_sigma_deg must be positive")
        confidences = self.min_confidence, self.min_depth_confidence
        if not 0 <= self.min_covisibility <= 1 or not 0 <= min(confidences) <= max(confidences) < 1:
            raise ConfigError("min_covisibility and both confidences must be shares between 0 and 1")
        _check_count("tracks_per_frame", self.tracks_per_frame)
        _check_count("adam_steps", self.adam_steps)
        if self.max_memory_gb is not None and not 0 < self.max_memory_gb < math.inf:
            raise ConfigError(f"max_memory_gb must be positive, not {self.max_memory_gb}")


@dataclass(frozen=True)
class LocalizeConfig(Common):
    """Every setting of a re-localization. Cameras and masks are those of the queries; the map brings its own."""

    depth: str = "auto"
    """Depth of the map: auto is what the map brings, else a model, NAME or NAME:ARGUMENT."""
    samples_per_edge: int = 400
    """kappa, or the matches of the largest pair if those are fewer."""
    independent: bool = False
    """One query at a time, as if there were no others."""
    map_neighbours: int = 40
    """Each query is matched with so many photographs of the map, those that look most alike. The paper: 200."""
    query_neighbours: int = 10
    """And with so many other queries. The paper: 200."""

    def __post_init__(self) -> None:
        """Refuse what cannot work, before anything is computed."""
        super().__post_init__()
        if min(self.map_neighbours, self.query_neighbours + 1) < 1:
            raise ConfigError("map_neighbours must be positive, and query_neighbours not negative")


@dataclass(frozen=True)
class Group:
    """Settings that belong together: a table in files, a heading in the help."""

    name: str
    about: str
    """One sentence, for the help."""
    settings: tuple[str, ...]


GROUPS = (
    Group("models", "The networks, and where they are.", ("depth", "matcher", "weights", "models_path")),
    Group("cameras", "What is known about the cameras.", ("intrinsics", "cameras", "focal", "lens")),
    Group("poses", "What is known about the poses.", ("init", "priors", "prior_sigma_m", "prior_sigma_deg")),
    Group(
        "matching",
        "What is matched with what, and which matches count.",
        ("masks", "pairs", "map_neighbours", "query_neighbours", "max_error_px")
        + ("min_covisibility", "min_confidence", "min_depth_confidence"),
    ),
    Group(
        "adjustment",
        "How matches and depth become poses.",
        ("samples_per_edge", "seed", "independent", "tree", "objective", "loss", "stages", "solver", "adam_steps")
        + ("max_memory_gb", "polish", "tracks_per_frame"),
    ),
    Group("output", "How the result is presented.", ("align",)),
)
"""Every setting of a reconstruction or a re-localization is in one of them."""


def grouped(config: Common) -> dict[Group, dict[str, Any]]:
    """All settings by group; groups of which the configuration has none are left out."""
    values = {group: {name: vars(config)[name] for name in group.settings if name in vars(config)} for group in GROUPS}
    return {group: settings for group, settings in values.items() if settings}


def _check_count(name: str, count: int) -> None:
    if not 1 <= count <= MOST:
        raise ConfigError(f"{name} must be from 1 to {MOST}, not {count}")


def localizing(config: Common) -> LocalizeConfig:
    """Settings of localizing photographs in a finished scene, from those of a reconstruction.

    Depth is what the scene brings, and the number of samples is localization's own.
    """
    names = {field.name for field in fields(Common)} - {"depth", "samples_per_edge"}
    return LocalizeConfig(**{name: getattr(config, name) for name in names})


PRESETS: dict[Preset, Config] = {
    "fast": Config(samples_per_edge=100, tracks_per_frame=500),
    "default": Config(),
    "accurate": Config(samples_per_edge=500, tracks_per_frame=2000),
}


def stages_of(config: Config, is_focal_told: bool = False) -> tuple[Stage, ...]:
    """The rounds of adjustment that a configuration asks for.

    A focal length that the metadata or a model to start from tell is nearer to the truth than one that was searched.
    """
    if is_focal_told:
        return tuple(replace(s, priors=replace(s.priors, log_focal=TOLD_LOG_FOCAL)) for s in stages_of(config))
    stages = ANCHORED_STAGES if config.objective == "anchored" else (COARSE, *annealed(FINE))
    if config.loss is not None:
        stages = with_loss(config.loss)
    if config.stages != "all":
        stages = stages[:1]
    if config.stages == "none":
        return tuple(replace(stage, max_steps=0, restarts=0) for stage in stages)
    if config.solver == "adam":
        return tuple(replace(stage, solver="adam", max_steps=config.adam_steps) for stage in stages)
    return stages
