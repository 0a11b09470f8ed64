"""SCENE/report.json: the only place where a run's report becomes JSON, and JSON a report.

A reason is written twice: ``reason`` is the sentence, for people, and ``why`` its kind and values, for programs.
"""

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from mbasfm.errors import InputError
from mbasfm.io.files import plain_json, read_json, write_text
from mbasfm.types.outcome import (
    Bridge,
    CameraRow,
    ComponentRow,
    FocalSource,
    ImageRow,
    Kind,
    NoPose,
    NotPolished,
    PairChoice,
    PairColumns,
    Reason,
    ResidualCurve,
    Residuals,
    RunReport,
    Sigma,
    SkippedFile,
    StageRow,
    StepColumns,
)

Json = dict[str, Any]
Item = TypeVar("Item")
NAME = "report.json"
WHOLE_STAGES = ("name", "seconds", "peak_memory_mb")
NUMBERS = ("inlier_share", "depth_error", "parallax_px", "depth_misfit")
"""Numbers of a photograph that are left out where unknown."""


def write_report_json(report: RunReport, folder: Path) -> None:
    """Write report.json into a scene folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / NAME, json.dumps(report_to_json(report), indent=1) + "\n")


def read_report(folder: Path) -> RunReport:
    """The report of a scene folder; one of an older version has no kinds of reasons."""
    path = folder / NAME
    if not path.is_file():
        raise InputError(f"{folder}: no report.json there; run `mba sfm` with --output {folder} first")
    content = read_json(path)
    with damaged_report_as_error(folder):
        return report_from_json(content)


@contextmanager
def damaged_report_as_error(folder: Path) -> Iterator[None]:
    """Raise InputError for any error that damaged values of a report cause."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{type(error).__name__} {error}".split("\n")[0]
        raise InputError(f"{folder}/report.json: damaged, or of another version ({what}); run mba sfm again") from error


def read_sources(folder: Path) -> dict[str, Path]:
    """Original paths of the photographs by name; empty without a report, the rest of which may be damaged."""
    path = folder / NAME
    if not path.is_file():
        return {}
    content = read_json(path)
    try:
        return {row["name"]: Path(row["source"]) for row in content["images"]}
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: does not say where the photographs were; run mba sfm again") from error


def read_outputs(folder: Path) -> list[Path]:
    """Files that the report lists as written; none if it cannot be read."""
    try:
        outputs = json.loads((folder / NAME).read_text(encoding="utf-8"))["outputs"]
        return [folder / path for paths in outputs.values() for path in paths]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return []


# ----------------------------------------------------------------------------------------------------------------
# To JSON


def report_to_json(report: RunReport) -> Json:
    """The report with plain values only, null for numbers that are not finite."""
    content = {
        "images": [_image_to_json(row) for row in report.images],
        "components": [_component_to_json(row) for row in report.components],
        "kept_apart": [asdict(bridge) for bridge in report.kept_apart],
        "lookalikes": [list(pair) for pair in report.lookalikes],
        **({} if report.world is None else {"world": dict(report.world)}),
        "skipped": [asdict(item) for item in report.skipped],
        "stages": [stage_to_json(row) for row in report.stages],
        "notes": list(report.notes),
        "source": report.source,
        "settings": dict(report.settings),
        "depth_model": report.depth_model,
        "pairs_chosen": _kind_to_json(report.pairs_chosen),
        "cameras": [asdict(row) | {"focal_from": row.focal_from.value} for row in report.cameras],
        "pairs": asdict(report.pairs),
        "residuals": asdict(report.residuals),
        "steps": asdict(report.steps),
        "depth_pictures": list(report.depth_pictures),
        "outputs": dict(report.outputs),
    }
    return dict(plain_json(content))


def reason_to_json(reason: Reason[Any] | None) -> Json:
    """A reason as two entries: its sentence for people, its kind and values for programs."""
    return {"reason": "" if reason is None else str(reason), "why": _kind_to_json(reason)}


def _kind_to_json(reason: Reason[Any] | None) -> Json | None:
    return None if reason is None else {"kind": reason.kind.name.lower(), "values": list(reason.values)}


def stage_to_json(row: StageRow) -> Json:
    """Name, seconds, memory and facts of a stage side by side."""
    facts = {key: _fact_to_json(value) for key, value in row.facts.items()}
    return {"name": row.name, "seconds": row.seconds, "peak_memory_mb": row.peak_memory_mb, **facts}


def _fact_to_json(value: Any) -> Any:
    if isinstance(value, Reason):
        return str(value)
    if isinstance(value, list):
        return [_component_to_json(item) if isinstance(item, ComponentRow) else item for item in value]
    return value


def _image_to_json(row: ImageRow) -> Json:
    status = "registered" if row.registered else "not registered"
    content = {"name": row.name, "source": row.source, "status": status, "component": row.component}
    numbers = {key: getattr(row, key) for key in NUMBERS if getattr(row, key) is not None}
    sigma = {} if row.sigma is None else {"sigma": asdict(row.sigma)}
    return content | reason_to_json(row.reason) | numbers | sigma


def _component_to_json(row: ComponentRow) -> Json:
    return asdict(row) | {"polished": row.polished} | reason_to_json(row.reason)


# ----------------------------------------------------------------------------------------------------------------
# From JSON: anything but a report raises one of the errors that mean damage


def report_from_json(content: Any) -> RunReport:
    """A report from what `report_to_json` made, in this version or an older one."""
    stages = _each(stage_row, content["stages"])
    return RunReport(
        images=_each(_image_from_json, content["images"]),
        components=_each(_component_from_json, _components_of(content, stages)),
        kept_apart=_each(_bridge_from_json, content.get("kept_apart", [])),
        lookalikes=_each(_pair_from_json, content.get("lookalikes", [])),
        world=content.get("world"),
        source=_text(content["source"]),
        settings=_facts(content["settings"]),
        depth_model=_text(content.get("depth_model", "")),
        pairs_chosen=_reason(PairChoice, content.get("pairs_chosen")),
        cameras=_each(_camera_from_json, content["cameras"]),
        pairs=PairColumns(**{item.name: _each(_whole, content["pairs"][item.name]) for item in fields(PairColumns)}),
        residuals=_residuals_from_json(content["residuals"]),
        steps=_steps_from_json(content["steps"]),
        depth_pictures=_each(lambda item: None if item is None else _text(item), content["depth_pictures"]),
        stages=stages,
        notes=_each(_text, content["notes"]),
        skipped=_each(lambda item: SkippedFile(_text(item["name"]), _text(item["reason"])), content.get("skipped", [])),
        outputs={kind: _each(_text, paths) for kind, paths in _facts(content.get("outputs", {})).items()},
    )


def _bridge_from_json(content: Json) -> Bridge:
    first, second = (_each(_whole, group) for group in content["groups"])
    pairs = _each(_pair_from_json, content["pairs"])
    odds = float(content["log10_odds"]), float(content["needed_log10_odds"])
    return Bridge((first, second), pairs, _whole(content["agreeing"]), *odds)


def _pair_from_json(content: Any) -> tuple[int, int]:
    first, second = _each(_whole, content)
    return first, second


def stage_row(content: Json) -> StageRow:
    """A stage as `runtime.progress.Progress` and report.json have it."""
    facts = {key: value for key, value in content.items() if key not in WHOLE_STAGES}
    return StageRow(_text(content["name"]), float(content["seconds"]), _number(content["peak_memory_mb"]), facts)


def _components_of(content: Json, stages: Sequence[StageRow]) -> Any:
    """Rows of the components; an older report has them in the last stage that touched them only."""
    found = [stage.facts["components"] for stage in stages if isinstance(stage.facts.get("components"), list)]
    return content.get("components", found[-1] if found else [])


def _each(read: Callable[[Any], Item], content: Any) -> tuple[Item, ...]:
    if not isinstance(content, list):
        raise TypeError(f"expected a list, got {type(content).__name__}")
    return tuple(read(item) for item in content)


def _facts(content: Any) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise TypeError(f"expected an object, got {type(content).__name__}")
    return content


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise TypeError(f"expected text, got {type(content).__name__}")
    return content


def _whole(content: Any) -> int:
    return int(operator.index(content))


def _number(content: Any) -> float | None:
    return None if content is None else float(content)


def _reason(kinds: type[Kind], content: Json | None) -> Reason[Kind] | None:
    if content is None:
        return None
    reason = Reason(kinds[content["kind"].upper()], _each(_value, content["values"]))
    str(reason)  # raises if the values do not fit into the sentence
    return reason


def _value(content: Any) -> str | int | float:
    if not isinstance(content, str | int | float):
        raise TypeError(f"expected a number or a name, got {type(content).__name__}")
    return content


def _why(kinds: type[Kind], content: Json) -> Reason[Kind]:
    """Why something did not happen; in the report's own words where it does not name the kind."""
    return _reason(kinds, content.get("why")) or Reason(kinds["UNKNOWN"], (_text(content["reason"]),))


def _image_from_json(content: Json) -> ImageRow:
    component, sigma = _whole(content["component"]), content.get("sigma")
    return ImageRow(
        name=_text(content["name"]),
        source=_text(content.get("source", "")),
        component=component,
        reason=None if component >= 0 else _why(NoPose, content),
        sigma=None if sigma is None else Sigma(*(_each(_number, sigma[item.name]) for item in fields(Sigma))),
        **{key: _number(content.get(key)) for key in NUMBERS},
    )


def _component_from_json(content: Json) -> ComponentRow:
    return ComponentRow(
        images=_whole(content["images"]),
        points=_whole(content["points"]),
        mean_track_length=_number(content["mean_track_length"]),
        mean_error_px=_number(content["mean_error_px"]),
        reason=None if content["polished"] else _why(NotPolished, content),
        held_out_px=_each(_number, content.get("held_out_px", [None, None])),
        used_depth=bool(content.get("used_depth", False)),
    )


def _camera_from_json(content: Json) -> CameraRow:
    return CameraRow(
        images=_whole(content["images"]),
        width=_whole(content["width"]),
        height=_whole(content["height"]),
        focal_from=FocalSource(content["focal_from"]),
        start_focal_px=_number(content.get("start_focal_px")),
        focal_px=_number(content["focal_px"]),
        registered=None if content.get("registered") is None else _whole(content["registered"]),
    )


def _residuals_from_json(content: Json) -> Residuals:
    curves = _each(
        lambda item: ResidualCurve(_text(item["stage"]), _text(item["part"]), _each(float, item["counts"])),
        content["curves"],
    )
    return Residuals(_each(float, content.get("edges_px", [])), float(content["inlier_px"]), curves)


def _steps_from_json(content: Json) -> StepColumns:
    numbers = {key: _each(_number, content[key]) for key in ("loss", "score", "damping")}
    number, stage = _each(_whole, content["number"]), _each(_text, content["stage"])
    return StepColumns(number, stage, accepted=_each(bool, content["accepted"]), **numbers)
