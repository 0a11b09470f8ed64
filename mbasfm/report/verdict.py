"""A report in plain words: what came out, how reliable it is, what went well or badly, and what to try next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int64

from mbasfm.estimators.two_view import MIN_INLIERS
from mbasfm.models.depth.flat import FlatDepth
from mbasfm.sfm.adjustment import has_parallax
from mbasfm.types.outcome import ALL_PAIRS, FocalSource, ImageRow, NoPose, NotPolished, Reason, RunReport

Tone = Literal["good", "fair", "bad"]
SHOWN_NAMES, SHOWN_BRIDGES = 5, 3
SURE_SHARE, UNSURE_SHARE = 0.8, 0.5
"""Shares of a photograph's matches that agree with its pose: above the first it is sure, below the second unsure."""
SHARP_PX = 1.5
"""Reprojection error below which a model is sharp [px]."""
WEAK_DEPTH = 0.25
"""Relative depth error above which depth hardly helps."""
FEW_INLIERS, FEW_POINTS = 60, 50
SHORT_TRACK = 2.5
LACKS_MATCHES = (NoPose.NO_PAIR, NoPose.NOT_PROVEN, NoPose.FEW_MATCHES_AGREE)
"""Reasons for which more matches may help."""
MORE_MATCHES = "More matches help: more overlap, sharper photographs, another matcher."
POLISH_ADVICE = {NotPolished.SWITCHED_OFF: "Leave out --no-polish.", NotPolished.HELD: ""}
"""Advice for reasons other than a lack of matches."""
USUAL_FOCAL = (0.6, 2.2)
"""Usual focal lengths over the long side of the image: from phones' wide angles to short telephoto lenses."""


@dataclass(frozen=True)
class Remark:
    """A remark on the result, and what can be done about it."""

    tone: Tone
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Verdict:
    """Verdict at the top of the page."""

    tone: Tone
    headline: str
    sureness: str
    remarks: tuple[Remark, ...]


def judge(report: RunReport) -> Verdict:
    """Verdict on a run, as someone who knows the program would read its report."""
    rules = (
        _missing,
        _hopeless,
        _components,
        _kept_apart,
        _lookalikes,
        _turned,
        _doubtful,
        _polish,
        _focal,
        _depth,
        _matches,
        _loose,
        _skipped,
        _fine,
    )
    remarks = tuple(remark for rule in rules for remark in rule(report))
    order = ("bad", "fair", "good")
    ranked = tuple(sorted(remarks, key=lambda remark: order.index(remark.tone)))
    tone, sureness = _sureness(report)
    return Verdict(tone, _headline(report), sureness, ranked)


def link_counts(report: RunReport) -> Int64[np.ndarray, " N"]:
    """Number of edges of the graph at each photograph."""
    count = np.zeros(len(report.images), dtype=np.int64)
    for i, j, used in zip(report.pairs.i, report.pairs.j, report.pairs.used, strict=True):
        count[[i, j]] += used
    return count


def _headline(report: RunReport) -> str:
    placed, total = len(report.registered), len(report.images)
    groups = len({row.component for row in report.registered})
    if placed == 0:
        return f"None of the {total} photographs could be placed."
    who = f"All {total}" if placed == total else f"{placed} of {total}"
    where = "in one component" if groups == 1 else f"in {groups} separate components"
    return f"{who} photographs were placed, {where}."


def _sureness(report: RunReport) -> tuple[Tone, str]:
    """Tone and sentence on how far the poses may be trusted, judging by the photographs themselves."""
    placed, components = report.registered, report.components
    if not placed:
        return "bad", "There are no poses to judge."
    shares = _shares(placed)
    errors = [item.mean_error_px for item in components if item.points and item.mean_error_px is not None]
    share, error = _mean(shares), _mean(errors)
    all_there = len(placed) == len(report.images)
    sharp = bool(errors) and error < SHARP_PX and all(item.polished for item in components)
    facts = [f"{_percent(share)} of the matches agree with the poses"] if shares else []
    facts += [f"points reproject to {error:.2f} px on average"] if errors else []
    turns = [_norm(row.sigma.rotation_deg) for row in placed if row.sigma is not None]
    facts += [f"a typical camera direction is known to {np.median(turns):.2g}°"] if turns and any(turns) else []
    because = ": " + ", ".join(facts) if facts else ""
    if shares and share > SURE_SHARE and not has_parallax(placed):
        return "fair", f"Camera directions are very likely right{because}; distances are unknown."
    if shares and share > SURE_SHARE and sharp:
        return ("good" if all_there and len(components) == 1 else "fair"), f"The poses are very likely right{because}."
    if shares and share > UNSURE_SHARE and not _is_thin(report):
        return "fair", f"The poses are probably right{because}."
    return "bad", f"The poses should not be trusted without a check{because}."


def _is_thin(report: RunReport) -> bool:
    """Whether there are too few points to trust, however well they fit."""
    return max((item.points for item in report.components), default=0) < FEW_POINTS


# ----------------------------------------------------------------------------------------------------------------
# Rules: each gives no remark, one, or several


def _missing(report: RunReport) -> Iterator[Remark]:
    told: dict[str, list[ImageRow]] = {}  # by sentence: reasons that read the same are one
    for row in report.images:
        if not row.registered:
            told.setdefault(str(row.reason), []).append(row)
    for sentence, rows in told.items():
        what = "photograph has" if len(rows) == 1 else "photographs have"
        names = _list([row.name for row in rows])
        yield Remark("bad", f"{len(rows)} {what} no pose ({names}): {sentence}.", _advice_for(rows[0].reason, report))


def _hopeless(report: RunReport) -> Iterator[Remark]:
    """Remark on how close a run without any placed photograph came."""
    if report.registered:
        return
    matches, inliers = report.pairs.matches, report.pairs.inliers
    features = [stage.facts["mean"] for stage in report.stages if stage.name == "features" and "mean" in stage.facts]
    best = f"The best of {len(matches)} pairs has {max(matches)} matches" if matches else "No pair has a single match"
    agree = f", of which {max(inliers)} agree with one pose" if matches else ""
    shown = f" Photographs have {features[0]} features on average." if features else ""
    advice = "Look at the photographs below: are they sharp, do they show the same place, does it have any texture?"
    yield Remark("bad", f"{best}{agree}; at least {MIN_INLIERS} must agree.{shown}", advice)


def _advice_for(reason: Reason[NoPose] | None, report: RunReport) -> str:
    kind = None if reason is None else reason.kind
    if kind is NoPose.NO_DEPTH:
        return "Try another depth model; `mba models` lists those that can run."
    options = [] if "xfeat" in str(report.settings["matcher"]) else ["--matcher sift+xfeat"]
    if report.pairs_chosen is None or report.pairs_chosen.kind not in ALL_PAIRS:
        options.append("--pairs exhaustive")
    tries = f", or try {' and '.join(options)}" if options and kind in LACKS_MATCHES else ""
    return f"Take photographs in between, with at least two thirds of the view in common{tries}."


def _components(report: RunReport) -> Iterator[Remark]:
    sizes = [item.images for item in report.components]
    if len(sizes) > 1:
        parts = ", ".join(map(str, sizes[:SHOWN_NAMES])) + (", ..." if len(sizes) > SHOWN_NAMES else "")
        yield Remark(
            "fair",
            f"The photographs fall into {len(sizes)} components ({parts} photographs) that no reliable pair connects; "
            "each has its own origin and scale.",
            "Add photographs that show two of the places at once, or try --pairs exhaustive.",
        )


def _kept_apart(report: RunReport) -> Iterator[Remark]:
    """Remarks on groups that may belong together, the likeliest first."""
    likely = sorted(report.kept_apart, key=lambda bridge: bridge.needed_log10_odds - bridge.log10_odds)
    for bridge in likely[:SHOWN_BRIDGES]:
        sizes = " and ".join(_photographs(group, report) for group in bridge.groups)
        pairs = [f"{report.images[i].name} with {report.images[j].name}" for i, j in bridge.pairs]
        yield Remark(
            "fair",
            f"{sizes} stay apart: what would join them ({_list(pairs)}) is right with odds of "
            f"{_odds(bridge.log10_odds)}, and {_odds(bridge.needed_log10_odds)} are asked for.",
            "Look at these photographs; if they show one place, take some in between.",
        )


def _lookalikes(report: RunReport) -> Iterator[Remark]:
    """Remark on pairs that were left out because they would put one thing into two places."""
    if report.lookalikes:
        many = len(report.lookalikes)
        pairs = [f"{report.images[i].name} with {report.images[j].name}" for i, j in report.lookalikes]
        yield Remark(
            "fair",
            f"{many} {'pair matches' if many == 1 else 'pairs match'} but {'shows' if many == 1 else 'show'} different "
            f"places with things that look alike ({_list(pairs)}), judging by those that match best, and "
            f"{'was' if many == 1 else 'were'} left out.",
            "Look at these photographs; if they show one place, take some in between.",
        )


def _photographs(group: Sequence[int], report: RunReport) -> str:
    return report.images[group[0]].name if len(group) == 1 else f"{len(group)} photographs"


def _odds(log10_odds: float) -> str:
    """Odds as people write them."""
    return f"{10**log10_odds:.0f} to 1" if log10_odds >= 0 else f"1 to {10 ** min(-log10_odds, 9):.0f}"


def _turned(report: RunReport) -> Iterator[Remark]:
    for number in sorted({row.component for row in report.registered}):
        members = [row for row in report.registered if row.component == number]
        if not has_parallax(members):
            yield Remark(
                "bad",
                f"There is no parallax in component {number}: its {len(members)} photographs show the scene from one "
                "place, or something very far away. Positions and points mean nothing there.",
                "Take photographs from places apart: a step to the side for every few steps of distance.",
            )


def _doubtful(report: RunReport) -> Iterator[Remark]:
    names = [row.name for row in report.registered if _below(row.inlier_share, UNSURE_SHARE)]
    if names:
        yield Remark(
            "fair",
            f"Fewer than {100 * UNSURE_SHARE:.0f} % of the matches of {_list(names)} agree with the pose, "
            "which may be wrong.",
            "Look at these cameras in the view below; repeated patterns and moving things are the usual causes.",
        )


def _polish(report: RunReport) -> Iterator[Remark]:
    for number, item in enumerate(report.components):
        if item.reason is not None:
            advice = POLISH_ADVICE.get(item.reason.kind, MORE_MATCHES)
            yield Remark("fair", f"Polish was not used in component {number}: {item.reason}.", advice)


def _focal(report: RunReport) -> Iterator[Remark]:
    for row in report.cameras:
        focal, long_side = row.focal_px, max(row.width, row.height)
        if row.focal_from is not FocalSource.SEARCH or focal is None or row.registered == 0:
            continue
        ratio = focal / long_side
        if not USUAL_FOCAL[0] <= ratio <= USUAL_FOCAL[1]:
            yield Remark(
                "fair",
                f"A focal length (of {row.images} of the photographs) was searched for and is unusual: "
                f"{focal:.0f} px, {ratio:.2f} times the long side.",
                "If the lens is a usual one, give --focal or --cameras, or photographs with their metadata.",
            )


def _depth(report: RunReport) -> Iterator[Remark]:
    errors = [row.depth_error for row in report.registered if row.depth_error is not None]
    if not report.registered:
        return
    if report.depth_model == FlatDepth.key:
        yield Remark(
            "fair",
            "No depth model was used; scale is arbitrary and small parallax is hard.",
            "Give --depth onnx:FILE or --depth files:DIR.",
        )
    elif errors and float(np.median(errors)) > WEAK_DEPTH:
        yield Remark(
            "fair",
            f"Depth is weak here: off by about {100 * float(np.median(errors)):.0f} %.",
            "Poses then rest on matches alone; another depth model may help where the camera hardly moved.",
        )


def _matches(report: RunReport) -> Iterator[Remark]:
    inliers = [count for count in report.pairs.inliers if count]
    tracks = [item.mean_track_length for item in report.components if item.mean_track_length]
    if inliers and float(np.median(inliers)) < FEW_INLIERS:
        yield Remark(
            "fair",
            f"Matches are few: half of the verified pairs have {int(np.median(inliers))} or fewer.",
            "Use sharper or larger photographs with more overlap, or --matcher sift+xfeat.",
        )
    elif tracks and tracks[0] < SHORT_TRACK:
        yield Remark(
            "fair",
            f"Points are seen by few photographs ({tracks[0]:.1f} on average).",
            "More overlap between photographs makes poses more precise.",
        )


def _loose(report: RunReport) -> Iterator[Remark]:
    """Photographs held by a single pair, which nothing else confirms."""
    if len(report.registered) <= 2:
        return
    names = [row.name for row, links in zip(report.images, link_counts(report), strict=True) if links == 1]
    if names:
        yield Remark(
            "fair",
            f"Held by only one pair each: {_list(names)}. Nothing else confirms their poses.",
            "One more photograph nearby would.",
        )


def _skipped(report: RunReport) -> Iterator[Remark]:
    if report.skipped:
        told = [f"{item.name} ({item.reason})" for item in report.skipped]
        files = "file was" if len(report.skipped) == 1 else "files were"
        yield Remark("fair", f"{len(report.skipped)} {files} left out: {_list(told)}.")


def _fine(report: RunReport) -> Iterator[Remark]:
    shares = _shares(report.registered)
    if shares and min(shares) > SURE_SHARE and not _is_thin(report):
        mean, worst = _percent(_mean(shares)), _percent(min(shares))
        yield Remark("good", f"Matches agree: {mean} on average, {worst} in the worst photograph.")
    for number, item in enumerate(report.components[:SHOWN_NAMES]):
        if item.polished and item.mean_error_px is not None and item.mean_error_px < SHARP_PX:
            yield Remark(
                "good",
                f"Component {number} is sharp: {item.points:,} points, each seen {item.mean_track_length or 0:.1f} "
                f"times, {item.mean_error_px:.2f} px off on average.",
            )


def _shares(rows: Sequence[ImageRow]) -> list[float]:
    return [row.inlier_share for row in rows if row.inlier_share is not None]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _percent(share: float) -> str:
    """Share in percent, rounded down so that only a full share is 100 %."""
    return f"{np.floor(1000 * share) / 10:g} %"


def _norm(values: Sequence[float | None]) -> float:
    return float(np.linalg.norm([value or 0.0 for value in values]))


def _below(value: float | None, limit: float) -> bool:
    return value is not None and value < limit


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN_NAMES])
    return shown if len(names) <= SHOWN_NAMES else f"{shown} and {len(names) - SHOWN_NAMES} more"
