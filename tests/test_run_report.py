"""What happened is a value: reasons are kinds, a report survives its file, and no module reads another's words."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

import mbasfm
from mbasfm.errors import InputError
from mbasfm.scene.report_file import read_report, report_from_json, report_to_json, write_report_json
from mbasfm.types.outcome import (
    Bridge,
    CameraRow,
    ComponentRow,
    FocalSource,
    ImageRow,
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

FOLDER = Path(mbasfm.__file__).parent
KINDS = [*NoPose, *NotPolished, *PairChoice]


def example(kind):
    """A reason of a kind, with as many numbers as its sentence takes."""
    return Reason(kind, tuple(range(3, 3 + kind.value.count("{"))))


def full_report():
    """A report with a row for every kind of reason and a value in every field."""
    sigma = Sigma((0.1, None, 0.3), (1.0, 2.0, None))
    rows = tuple(ImageRow(f"{kind.name}.jpg", "/a", -1, example(kind)) for kind in NoPose)
    good = ImageRow("good.jpg", "/a/good.jpg", 0, None, 0.9, 0.1, 30.0, sigma, 0.02)
    parts = tuple(ComponentRow(2, 90, 2.5, 0.5, example(kind), (0.4, None), False) for kind in NotPolished)
    best = ComponentRow(5, 900, 3.5, 0.25, None, (0.5, 0.25), True)
    return RunReport(
        images=(good, *rows),
        components=(best, *parts),
        kept_apart=(Bridge(((0, 1), (2,)), ((0, 2), (1, 2)), 1, -0.5, 2.3),),
        lookalikes=((0, 2), (1, 2)),
        world={"frame": "up", "components": [{"component": 0, "aligned": True}]},
        source="/a",
        settings={"depth": "auto", "matcher": "sift", "polish": True},
        depth_model="flat-1",
        pairs_chosen=Reason(PairChoice.ALIKE, (100, 25, "VLAD", 60)),
        cameras=tuple(CameraRow(3, 640, 480, source, None, 500.0) for source in FocalSource),
        pairs=PairColumns((0, 0), (1, 2), (40, 30), (30, 0), (1, 0)),
        residuals=Residuals((0.0, 1.0), 20.0, (ResidualCurve("start", "whole", (1.0, 2.0)),)),
        steps=StepColumns((0, 1), ("split", "split"), (1.0, None), (2.0, 1.0), (1.0, 0.1), (True, False)),
        depth_pictures=(None, "abc"),
        stages=(StageRow("features", 1.5, None, {"mean": 51}), StageRow("align", 0.5, 12.0, {})),
        notes=("Took depth model flat.",),
        skipped=(SkippedFile("x.jpg", "empty"),),
        outputs={"ply": ("points.ply",)},
    )


# ----------------------------------------------------------------------------------------------------------------
# Reasons


@pytest.mark.parametrize("kind", KINDS)
def test_a_reason_is_a_sentence_without_gaps(kind):
    sentence = str(example(kind))
    assert sentence and "{" not in sentence and "  " not in sentence


def test_sentences_differ_and_hold_their_numbers():
    assert len({str(example(kind)) for kind in (*NoPose, *PairChoice)}) == len(NoPose) + len(PairChoice)
    assert str(Reason(NoPose.NO_POSE_FITS, (7,))) == "no pose fits its 7 matched points"
    worse = str(Reason(NotPolished.HELD_OUT_WORSE, (0.5, 0.756)))
    assert worse == "held-out points got worse in third views, 0.50 to 0.76 px"


# ----------------------------------------------------------------------------------------------------------------
# The file


def test_a_report_survives_its_file(tmp_path):
    report = full_report()
    write_report_json(report, tmp_path)
    assert read_report(tmp_path) == report


@pytest.mark.parametrize("kind", PairChoice)
def test_every_choice_of_pairs_survives_the_file(kind):
    report = replace(full_report(), pairs_chosen=example(kind))
    assert report_from_json(json.loads(json.dumps(report_to_json(report)))) == report


def test_facts_of_a_stage_are_told_in_words():
    reason, part = Reason(PairChoice.ALL_OF_FEW, (3,)), full_report().components[1]
    stages = (StageRow("pairs", 1.0, 2.0, {"why": reason}), StageRow("polish", 1.0, 2.0, {"components": [part]}))
    pairs, polish = report_to_json(replace(full_report(), stages=stages))["stages"]
    assert pairs["why"] == "All pairs, as there are only 3 frames."
    assert polish["components"][0]["reason"] == "switched off" and not polish["components"][0]["polished"]


def older(content):
    """The report as it was before kinds were named."""
    parts = content.pop("components")
    content["stages"].append({"name": "polish", "seconds": 1.0, "peak_memory_mb": 1.0, "components": parts})
    for row in (*content["images"], *parts):
        del row["why"]
    for key in ("depth_model", "pairs_chosen"):
        del content[key]
    return content


def test_an_older_report_keeps_its_words():
    report = full_report()
    read = report_from_json(older(report_to_json(report)))
    assert [str(row.reason) for row in read.images] == [str(row.reason) for row in report.images]
    assert [str(row.reason) for row in read.components] == [str(row.reason) for row in report.components]
    assert {row.reason.kind for row in read.images if row.reason} == {NoPose.UNKNOWN}
    assert read.components[0] == report.components[0] and read.images[0] == report.images[0]
    assert read.pairs_chosen is None and read.depth_model == ""


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c.pop("images"),
        lambda c: c.update(images={}),
        lambda c: c["images"][0].update(component="0"),
        lambda c: c["images"][0].update(inlier_share="much"),
        lambda c: c["images"][1]["why"].update(kind="bad weather"),
        lambda c: c["images"][5]["why"].update(values=[]),
        lambda c: c["images"][5]["why"].update(values=["few"]),
        lambda c: c["cameras"][0].update(focal_from="hearsay"),
        lambda c: c["pairs"].update(i=[0.5]),
        lambda c: c.update(notes=[None]),
        lambda c: c.update(settings=[]),
        lambda c: c["kept_apart"][0].update(groups=[[0], [0.5]]),
        lambda c: c.update(lookalikes=[[0]]),
    ],
)
def test_a_damaged_report_is_refused_by_name(tmp_path, damage):
    content = report_to_json(full_report())
    damage(content)
    (tmp_path / "report.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"report\.json: damaged, or of another version"):
        read_report(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"images"'])
def test_what_is_no_report_is_refused(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(InputError, match="damaged, or of another version"):
        read_report(tmp_path)


# ----------------------------------------------------------------------------------------------------------------
# No module reads another's words

TOLD = {"reason", "why", "note", "sentence", "advice", "headline", "sureness", "remark", "focal_from", "explanation"}
"""Names of values that are words for people, or stand for an enum; plurals too."""
LOOKING = {"startswith", "endswith", "find", "index", "count", "partition", "split", "removeprefix"}
REGEX = {"match", "search", "fullmatch", "findall"}


def name_of(node):
    """Last name of an expression, through calls that pass text on: ``str(item.get("why", "")).lower()`` is why."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            return text_of(node.args[0])
        inner = node.func.value if isinstance(node.func, ast.Attribute) else (node.args or [node.func])[0]
        return name_of(inner)
    if isinstance(node, ast.Subscript):
        return text_of(node.slice) or name_of(node.value)
    return getattr(node, "attr", getattr(node, "id", ""))


def text_of(node):
    """Text of a constant; empty for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def texts_of(node):
    """Texts of a constant, or of the constants in a tuple, list or set."""
    items = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return [text for item in items if (text := text_of(item))]


def is_told(node):
    return name_of(node).removesuffix("s") in TOLD


def is_sentence(text):
    """Three words or more: fewer may be a name, such as that of a measure."""
    return len(text.split()) >= 3 and all(word.strip(",.:;%").isalpha() for word in text.split()[:3])


def matched_words(source):
    """Lines that compare words for people with words of their own."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = [text for side in sides for text in texts_of(side)]
            others = [side for side in sides if not texts_of(side)]
            if words and (any(map(is_told, others)) or any(map(is_sentence, words))):
                found.append(node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            looks = node.func.attr in LOOKING and is_told(node.func.value)
            searches = node.func.attr in REGEX and any(map(is_told, (node.func.value, *node.args)))
            if (looks and node.args and text_of(node.args[0])) or searches:
                found.append(node.lineno)
        elif isinstance(node, ast.MatchValue) and is_sentence(text_of(node.value)):
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_module_reads_the_words_of_another(path):
    assert matched_words(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        'if "depth" in reason: pass',
        'off = item["reason"] == "switched off"',
        'flat = any(note.startswith("Took depth model flat") for note in notes)',
        'whole = str(stage.get("why", "")).startswith("All pairs")',
        'if row["focal_from"] != "search": pass',
        'if row.reason in ("switched off", "lost"): pass',
        'if "matches" not in str(row.reason).lower(): pass',
        'if text == "no pose fits": pass',
        're.search("only (.*) %", result.reason[2])',
        "if row.reasons[0] == 'no_edge': pass",
    ],
)
def test_words_that_are_matched_are_found(source):
    assert matched_words(source) == [1]


@pytest.mark.parametrize(
    "source",
    [
        'if line.startswith("# Image list"): pass',
        'if "xfeat" in str(settings["matcher"]): pass',
        "if row.reason is not None: pass",
        "if reason.kind is NoPose.NO_DEPTH: pass",
        'told = {"reason": str(row.reason)}',
        'if mode == "exhaustive" and name in ("adjust", "polish"): pass',
        'if row["reason"] == "": pass',
        'name = note.replace("_", " ")',
    ],
)
def test_other_comparisons_are_no_matter(source):
    assert matched_words(source) == []
