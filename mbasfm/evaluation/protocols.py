"""The evaluation protocols of published benchmarks as values; one function computes them all.

A measure is a name: ``RRA@5``. Translation angles are sign-aware where nothing is said; the same measure with
``folded`` behind it does not tell t from -t. Both are always given.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from mbasfm.errors import ConfigError
from mbasfm.evaluation.metrics import (
    FrameErrors,
    PairErrors,
    absolute_trajectory_error,
    accuracy,
    all_pairs,
    auc,
    auc_trapezoid,
    cosine_rounded_deg,
    frame_errors,
    normalised_trajectory_error,
    pair_errors,
    registration_rate,
)


@dataclass(frozen=True)
class Protocol:
    """Measures, the pairs they are over, and how scenes are combined."""

    title: str
    measures: tuple[str, ...]
    ordered: bool = False
    """Whether both (i, j) and (j, i) count, not only i < j."""
    folded: bool = False
    """Whether published figures ignore the sign of t."""
    trapezoid: bool = False
    """Whether the AUC has straight lines between errors instead of steps."""
    pooled: bool = False
    """Whether all pairs of all scenes count together, instead of the mean over scenes."""
    covisible: bool = False
    """Whether only covisible pairs count, of which the truth has a list."""
    absolute: bool = False
    """Whether poses are in the world of the truth, so that nothing is aligned."""


ANGLES = ("RRA@1", "RRA@3", "RRA@5", "RTA@1", "RTA@3", "RTA@5", "AUC@1", "AUC@3", "AUC@5", "AUC@10")
PROTOCOLS: Mapping[str, Protocol] = {
    "default": Protocol("Relative poses of all pairs", ("registered", *ANGLES, "ATE")),
    "positions": Protocol("Positions only, as from GPS", ("registered", "ATE")),
    "mast3r-sfm": Protocol("ETH3D in MASt3R-SfM's way", ("registered", "RRA@5", "RTA@5"), ordered=True, folded=True),
    "df-sfm": Protocol("ETH3D in DF-SfM's way", ("registered", "AUC@1", "AUC@3", "AUC@5"), trapezoid=True),
    "imc2021": Protocol(
        "IMC 2021, pairs of all bags together",
        ("registered", "AUC@3", "AUC@5", "AUC@10"),
        ordered=True,
        folded=True,
        pooled=True,
    ),
    "scannet": Protocol("ScanNet, co-visible pairs", ("registered", "ACC@3", "ACC@5", "ACC@10"), covisible=True),
    "tanks-and-temples": Protocol(
        "Tanks and Temples in SAIL-Recon's way",
        ("RRA@5", "RTA@5", "ATE", "ATE normalised", "registered"),
        ordered=True,
        folded=True,
    ),
    "fastmap": Protocol(
        "FastMap",
        (
            "registered",
            "ATE normalised",
            "RTA@3",
            "AUC-R&T@3",
            "RTA@1",
            "AUC-R&T@1",
            "AUC-R&T rounded@3",
            "AUC-R&T rounded@1",
        ),
        trapezoid=True,
    ),  # fmt: skip
    "7scenes": Protocol("7-Scenes", ("registered", "median cm", "median deg", "5cm/5deg"), absolute=True),
    "wayspots": Protocol("Wayspots", ("registered", "10cm/5deg", "5cm/5deg", "median cm", "median deg"), absolute=True),
    "localization": Protocol(
        "Re-localization",
        ("registered", "5cm/5deg", "10cm/5deg", "median cm", "median deg", "beyond 50cm/30deg"),
        absolute=True,
    ),
    "two-view": Protocol(
        "MegaDepth-1500 and ScanNet-1500", ("AUC@5", "AUC@10", "AUC@20"), folded=True, trapezoid=True, pooled=True
    ),
    "pairs": Protocol("Two views, pairs of all sets together", ("AUC@5", "AUC@10", "AUC@20"), pooled=True),
}


def find_protocol(name: str) -> Protocol:
    """Protocol of a name; the error for an unknown name lists all."""
    if name not in PROTOCOLS:
        raise ConfigError(f"no protocol is named {name!r}; there are {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


def evaluate(
    cam_from_world: Float[Tensor, "N 3 4"],
    true_cam_from_world: Float[Tensor, "N 3 4"],
    registered: Bool[Tensor, " N"],
    protocol: Protocol,
    pairs: Int64[Tensor, "P 2"] | None = None,
) -> dict[str, float]:
    """All measures of a protocol by name; ``pairs`` restricts those of relative poses."""
    given = all_pairs(len(registered)) if pairs is None else pairs
    given = torch.cat([given, given.flip(1)]) if protocol.ordered else given
    errors = pair_errors(cam_from_world, true_cam_from_world, registered, given)
    values = pair_measures(errors, protocol)
    frames = frame_errors(cam_from_world, true_cam_from_world, registered)
    whole: dict[str, Callable[[], float]] = {
        "registered": lambda: registration_rate(registered),
        "ATE": lambda: absolute_trajectory_error(cam_from_world, true_cam_from_world, registered),
        "ATE normalised": lambda: normalised_trajectory_error(cam_from_world, true_cam_from_world, registered),
    }
    found: dict[str, float] = {}
    for name in protocol.measures:
        if name in values:
            found |= {key: values[key] for key in (name, f"{name} folded") if key in values}
        else:
            found[name] = whole[name]() if name in whole else _frame_measure(name, frames)
    return found


def pair_measures(errors: PairErrors, protocol: Protocol) -> dict[str, float]:
    """Measures of a protocol that are about pairs; usable alone for two-view benchmarks."""
    found: dict[str, float] = {}
    for name in protocol.measures:
        kind, at, limit = name.partition("@")
        if not at:
            continue
        area = auc_trapezoid if protocol.trapezoid else auc
        summary = area if kind.startswith("AUC") else accuracy
        signed, folded = _angles(kind, errors)
        found[name] = summary(signed, float(limit))
        if folded is not None:
            found[f"{name} folded"] = summary(folded, float(limit))
    return found


def _angles(kind: str, errors: PairErrors) -> tuple[Tensor, Tensor | None]:
    """Angles of a measure: sign-aware and, where translation enters, folded."""
    if kind == "RRA":
        return errors.rotation_deg, None
    if kind == "RTA":
        return errors.translation_deg, errors.folded_deg
    if kind == "AUC-R&T rounded":
        rounded = PairErrors(cosine_rounded_deg(errors.rotation_deg), errors.translation_deg, errors.known)
        return rounded.pose_deg(), rounded.pose_deg(folded=True)
    return errors.pose_deg(), errors.pose_deg(folded=True)


def _frame_measure(name: str, frames: FrameErrors) -> float:
    """Medians, and shares within limits such as 10cm/5deg, or beyond them; world units are metres."""
    if name == "median cm":
        return 100 * frames.median_distance
    if name == "median deg":
        return frames.median_rotation_deg
    limits = re.fullmatch(r"(beyond )?([\d.]+)cm/([\d.]+)deg", name)
    assert limits is not None, name
    share = frames.share_beyond if limits[1] else frames.share_within
    return share(float(limits[2]) / 100, float(limits[3]))
