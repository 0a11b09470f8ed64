"""What depth models and matchers must and may have, how they are found, and where they look and compute.

Derive from one of the protocols: what is not required has a default here. The values they return are in types. Models
are entry points: those of other packages are found in the same way as ours.
"""

import difflib
import os
import re
import socket
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable
from urllib.parse import urlsplit

import torch

from mbasfm.errors import InputError, MBAError, ModelNotFoundError
from mbasfm.types.observations import RGB, AnyRGB, DepthEstimate, Features, Matches, Photo, PixelMatches

__all__ = [
    "AnyRGB",
    "DepthEstimate",
    "DepthModel",
    "Features",
    "ImageMatcher",
    "Matcher",
    "Matches",
    "PixelMatches",
    "RGB",
]
"""The values too: adapters of other packages import all of it from here."""
Kind = Literal["depth", "matcher"]
JOINT = re.compile(r"\+(?=\w+(?::|\+|$))")
"""A plus before the name of a model; one inside a path is part of it."""
VARIABLE, CLONES_VARIABLE = "MBA_WEIGHTS", "MBA_MODELS"
HUB = "https://huggingface.co"
CONNECT_S = 2.0
GIVEN: ContextVar[dict[str, str]] = ContextVar("folders that options name, by variable")
"""Folders given by options; they take precedence over the environment's."""


@runtime_checkable
class Model(Protocol):
    """What depth models and matchers have in common."""

    name: str
    licence: str
    key: str
    """Name, version and options: equal keys give equal results, so it is part of the cache's key."""
    download: str = ""
    """Size of the weights; empty if there are none to get."""
    memory: str = ""
    """What it needs on the CPU, where that matters."""
    cpu_seconds: float = 0.0
    """Seconds for one photograph, or for one pair, on two CPU cores; 0 if that is little, or on a GPU."""

    looks_at_images: bool = True
    """False if results are read from files, and so do not change with the image that is given."""

    @classmethod
    def missing(cls) -> str:
        """What has to be installed or fetched before it can run; empty if nothing."""
        return ""


@runtime_checkable
class DepthModel(Model, Protocol):
    """Estimates depth from one photograph."""

    batch_size: int = 1
    """Number of photographs that are best estimated together."""

    @abstractmethod
    def estimate(self, photo: Photo, image: RGB) -> DepthEstimate:
        """Depth of an upright image."""

    def estimate_batch(self, photos: Sequence[Photo], images: Sequence[AnyRGB]) -> list[DepthEstimate]:
        """Depth of several upright images."""
        return [self.estimate(photo, image) for photo, image in zip(photos, images, strict=True)]

    def content_of(self, photo: Photo) -> str:
        """What the depth of a photograph depends on besides the key and its pixels, as text for the cache's key."""
        del photo
        return ""


@runtime_checkable
class Matcher(Model, Protocol):
    """Describes images one by one, then matches pairs of descriptions."""

    @abstractmethod
    def describe(self, photo: Photo, image: RGB) -> Features:
        """Features of an upright image."""

    @abstractmethod
    def match(self, first: Features, second: Features) -> Matches:
        """Matches of two descriptions."""

    def pairs(self) -> list[tuple[str, str]] | None:
        """Names of the photographs of all pairs that it can match; None if it can match any."""
        return None


@runtime_checkable
class ImageMatcher(Model, Protocol):
    """Matches pairs of images without features of its own: keypoints follow from what it finds in all pairs."""

    @abstractmethod
    def match_images(self, first: AnyRGB, second: AnyRGB) -> PixelMatches:
        """Matches of two images; ideally at the same pixels of the first in all of its pairs."""


PROTOCOLS: dict[Kind, tuple[type, ...]] = {"depth": (DepthModel,), "matcher": (Matcher, ImageMatcher)}


@dataclass(frozen=True)
class AutoChoice:
    """A model that ``auto`` may stand for."""

    spec: str
    what: str
    advice: str
    """Sentence that ends with the option that would be better, without its value."""
    better: str
    """Value of that option: NAME or NAME:ARGUMENT."""
    fetched: str = ""
    """Size of the download if the weights are missing and the hub can be reached; empty if they are not fetched."""


AUTO: dict[Kind, tuple[AutoChoice, ...]] = {
    "depth": (
        AutoChoice("moge", "metric depth and the focal length", "sharper, but slower, is --depth", "moge:large"),
        AutoChoice("depth-anything-3", "depth and the focal length", "metric is --depth", "moge"),
        AutoChoice("metric3d", "depth that needs the focal length to be metric", "with both is --depth", "moge"),
        AutoChoice(
            "depth-anything-v2",
            "disparity from a small network",
            "in metres and with the focal length is --depth",
            "moge",
            fetched="100 MB",
        ),
        AutoChoice("zoedepth", "metric depth", "sharper at edges is --depth", "depth-anything-v2"),
        AutoChoice(
            "flat",
            "the same depth everywhere",
            "a monocular depth network is better, any with --depth onnx:FILE or --depth",
            "depth-anything-v2",
        ),
    ),
    "matcher": (
        AutoChoice(
            "sift+xfeat",
            "SIFT, and XFeat where SIFT finds little",
            "slower, but better across wide baselines, is --matcher",
            "sift+xfeat:lighterglue",
        ),
        AutoChoice("sift", "precise", "where there is little texture, more is found by --matcher", "sift+xfeat"),
    ),
}
"""Candidates of ``auto`` by kind: the first that can run. All have licences that permit every use."""


def installed(kind: Kind) -> dict[str, EntryPoint]:
    """Entry points of all installed models of a kind, by name."""
    return {point.name: point for point in entry_points(group=f"mbasfm.{kind}")}


def choose_auto(kind: Kind, say: Callable[[str], None] = lambda sentence: None) -> tuple[str, str]:
    """What ``auto`` stands for here, and a sentence that says what was taken and what would be better.

    The first whose weights are on this machine, else the one to fetch, else the last, which needs none. ``say`` hears
    of a download before it begins.
    """
    *others, last = AUTO[kind]
    choice = next((choice for choice in others if not _missing(kind, choice.spec)), None)
    if choice is None:
        choice = next((choice for choice in others if choice.fetched and _fetch(kind, choice, say)), last)
    first = _missing(kind, choice.better)
    hint = f" (first: {first})" if first else ""
    return choice.spec, f"Took {kind} model {choice.spec}, {choice.what}; {choice.advice} {choice.better}{hint}."


def _fetch(kind: Kind, choice: AutoChoice, say: Callable[[str], None]) -> bool:
    """Get the weights of a model whose code is there, if the hub can be reached; returns whether they are there now."""
    point = installed(kind).get(choice.spec)
    model = point.load() if point else None
    if model is None or model.missing_code() or not is_online():
        return False
    say(f"Fetching the weights of {choice.spec} ({choice.fetched}) from the Hugging Face hub, once.")
    problem = model.fetch()
    if problem:
        say(f"That did not work ({problem}); to get them later: {model.missing()}")
    return not problem


def _missing(kind: Kind, spec: str) -> str:
    """What has to be done before a model (or all of several, joined by +) can run; empty if nothing."""
    for part in JOINT.split(spec):
        name = part.partition(":")[0]
        point = installed(kind).get(name)
        missing = str(point.load().missing()) if point else f"install a package with the {kind} model {name}"
        if missing:
            return missing
    return ""


def load_model(kind: Kind, spec: str) -> Any:
    """The model that ``NAME`` or ``NAME:ARGUMENT`` stands for; only its own module is imported."""
    name, _, argument = spec.partition(":")
    known = installed(kind)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ModelNotFoundError(f"no {kind} model named {name!r}; {hint}installed: {', '.join(sorted(known))}")
    model = known[name].load()(argument)
    if not isinstance(model, PROTOCOLS[kind]):
        names = " or ".join(protocol.__name__ for protocol in PROTOCOLS[kind])
        raise InputError(
            f"the {kind} model {name} lacks a part of mbasfm.models.base.{names}; derive its class from it"
        )
    return model


@dataclass(frozen=True)
class ModelRow:
    """One line of `mba models`."""

    kind: str
    name: str
    licence: str
    missing: str
    """Empty if it can run now, otherwise what to do first."""
    download: str = ""
    """Size of the weights; empty if there are none to get."""
    memory: str = ""
    """What it needs on the CPU, where that matters."""


def list_models() -> list[ModelRow]:
    """All installed models and whether they can run now."""
    rows = []
    kinds: tuple[Kind, ...] = ("depth", "matcher")
    for kind in kinds:
        for name, point in sorted(installed(kind).items()):
            try:
                model = point.load()
                rows.append(ModelRow(kind, name, model.licence, model.missing(), model.download, model.memory))
            except (ImportError, AttributeError, MBAError) as error:
                rows.append(ModelRow(kind, name, "?", str(error)))
    return rows


@contextmanager
def looking_in(weights: str | None = None, models_path: str | None = None) -> Iterator[None]:
    """Look for weights and clones in these folders, where they are given, instead of the environment's."""
    for option, folder in (("--weights", weights), ("--models-path", models_path)):
        if folder is not None and not Path(folder).is_dir():
            raise InputError(f"{option} {folder}: there is no such folder")
    token = GIVEN.set({VARIABLE: weights or "", CLONES_VARIABLE: models_path or ""})
    try:
        yield
    finally:
        GIVEN.reset(token)


def weights_folder() -> Path | None:
    """Folder given by --weights, else MBA_WEIGHTS."""
    return _folder(VARIABLE)


def models_path() -> Path | None:
    """Folder of clones given by --models-path, else MBA_MODELS."""
    return _folder(CLONES_VARIABLE)


def _folder(variable: str) -> Path | None:
    text = GIVEN.get({}).get(variable) or os.environ.get(variable)
    return Path(text) if text else None


def is_online() -> bool:
    """Whether the hub answers within two seconds and nothing (HF_HUB_OFFLINE) forbids to ask it."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    address = urlsplit(os.environ.get("HF_ENDPOINT") or HUB)
    try:
        port = address.port or {"http": 80}.get(address.scheme, 443)
        with socket.create_connection((address.hostname or "", port), timeout=CONNECT_S):
            return True
    except (OSError, ValueError):
        return False


def accelerator() -> torch.device:
    """CUDA's or Apple's device, else the CPU."""
    kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return torch.device(kind)


def gpu_or_cpu() -> torch.device:
    """CUDA's device, else the CPU: for networks with operations that Apple's lacks."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def is_fast(device: torch.device) -> bool:
    """Whether a device is anything but the CPU."""
    return device.type != "cpu"


def half_if_fast(device: torch.device) -> AbstractContextManager[None]:
    """Context with half precision on an accelerator; on the CPU it would be slower."""
    return torch.autocast(device.type, torch.float16, enabled=is_fast(device))


def key_of(device: torch.device) -> str:
    """Precision as part of a model's key, because it changes the last digits."""
    return f"-{device.type}" if is_fast(device) else ""
