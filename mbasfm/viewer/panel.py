"""The panel beside a scene in the browser: switches, and text about scene and photographs."""

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import viser

from mbasfm.report.verdict import Verdict
from mbasfm.viewer.exhibit import BY_ERROR, BY_INLIERS, Component, Exhibit, Shot

NOBODY, OFF = "none", "off"
DEPTH_ONE, DEPTH_ALL = "of the chosen camera", "of all cameras"
PREVIOUS, NEXT = "previous", "next"
TONES = {"good": "#2eb886", "fair": "#e0a030", "bad": "#e05228"}
MAX_LINKS = 300
"""Largest number of links shown by default: more would hide the scene."""
ROW = '<tr><td style="opacity:.65;padding:1px 10px 1px 0;vertical-align:top;white-space:nowrap">{}</td><td>{}</td></tr>'
BLOCK = '<div style="font-size:.86em;line-height:1.45;padding:.3em 1em .3em .6em;overflow-wrap:anywhere">{}</div>'


@dataclass(frozen=True)
class Panel:
    """Handles of all controls."""

    choice: viser.GuiDropdownHandle[str]
    step: viser.GuiButtonGroupHandle
    picture: viser.GuiImageHandle
    numbers: viser.GuiHtmlHandle
    visit: viser.GuiButtonHandle
    overview: viser.GuiButtonHandle
    component: viser.GuiDropdownHandle[str]
    points: viser.GuiDropdownHandle[str]
    point_size: viser.GuiSliderHandle
    cameras: viser.GuiCheckboxHandle
    camera_size: viser.GuiSliderHandle
    photographs: viser.GuiCheckboxHandle
    links: viser.GuiDropdownHandle[str]
    legend: viser.GuiHtmlHandle
    depth: viser.GuiDropdownHandle[str]
    dark: viser.GuiCheckboxHandle


def make_panel(gui: viser.GuiApi, exhibit: Exhibit) -> Panel:
    """Build the panel from top to bottom."""
    placed = bool(exhibit.components)
    gui.add_html(headline_html(exhibit.verdict))
    camera = _camera_part(gui, exhibit)
    show = _show_part(gui, exhibit, placed)
    with gui.add_folder("What to know", expand_by_default=not placed):
        gui.add_html(BLOCK.format(remarks_html(exhibit.verdict)))
    if exhibit.missing:
        with gui.add_folder(f"Not placed ({len(exhibit.missing)})", expand_by_default=not placed):
            gui.add_html(BLOCK.format(missing_html(exhibit.missing)))
    return Panel(**camera, **show)


def _camera_part(gui: viser.GuiApi, exhibit: Exhibit) -> dict[str, Any]:
    placed = bool(exhibit.components)
    with gui.add_folder("Camera" if placed else "Photograph"):
        return {
            "choice": gui.add_dropdown("Photograph", [NOBODY, *(label(shot) for shot in exhibit.shots)]),
            "step": gui.add_button_group("Step", (PREVIOUS, NEXT)),
            "picture": gui.add_image(np.zeros((2, 3, 3), np.uint8), visible=False),
            "numbers": gui.add_html(shot_html(None)),
            "visit": gui.add_button("Look through this camera", disabled=True, icon=viser.Icon.CAMERA, visible=placed),
            "overview": gui.add_button("Overview", icon=viser.Icon.HOME, visible=placed),
        }


def _show_part(gui: viser.GuiApi, exhibit: Exhibit, placed: bool) -> dict[str, Any]:
    components = exhibit.components or ()
    kinds = [kind for kind in ("fused", "sparse") if any(kind in part.clouds for part in components)]
    has_depth = any(part.scene.depth_file(view).is_file() for part in components for view in part.views)
    many = any(len(part.links) > MAX_LINKS for part in components)
    names = [component_label(number, part) for number, part in enumerate(components)] or [NOBODY]
    with gui.add_folder("Show", visible=placed):
        return {
            "component": gui.add_dropdown("Component", names, visible=len(components) > 1),
            "points": gui.add_dropdown("Points", [*kinds, OFF]),
            "point_size": gui.add_slider("Point size", 0.25, 4.0, 0.05, 1.0),
            "cameras": gui.add_checkbox("Cameras", True),
            "camera_size": gui.add_slider("Camera size", 0.1, 4.0, 0.05, 1.0),
            "photographs": gui.add_checkbox("Photographs", True, hint="On the cameras."),
            "links": gui.add_dropdown(
                "Pose graph", (OFF, BY_INLIERS, BY_ERROR), initial_value=OFF if many else BY_INLIERS
            ),
            "legend": gui.add_html(""),
            "depth": gui.add_dropdown("Aligned depth", (OFF, DEPTH_ONE, DEPTH_ALL), disabled=not has_depth),
            "dark": gui.add_checkbox("Dark", True),
        }


# ----------------------------------------------------------------------------------------------------------------
# Words. Names of files may hold anything, so nothing gets into a page unescaped.


def label(shot: Shot) -> str:
    """Name of a photograph in the list."""
    return shot.name if shot.component >= 0 else f"{shot.name} (not placed)"


def component_label(number: int, component: Component) -> str:
    """Name of a component in the list."""
    return f"{number}: {len(component.views)} photographs"


def headline_html(verdict: Verdict) -> str:
    """The verdict in two sentences."""
    color = TONES[verdict.tone]
    return BLOCK.format(
        f'<div style="border-left:4px solid {color};padding-left:.7em"><b>{escape(verdict.headline)}</b><br>'
        f'<span style="opacity:.8">{escape(verdict.sureness)}</span></div>'
    )


def remarks_html(verdict: Verdict) -> str:
    """What went well or badly, and what to try."""
    parts = [
        f'<p style="margin:.4em 0"><span style="color:{TONES[remark.tone]}">●</span> {escape(remark.text)} '
        f'<span style="opacity:.7">{escape(remark.advice)}</span></p>'
        for remark in verdict.remarks
    ]
    return "".join(parts) or "Nothing in particular."


def missing_html(missing: tuple[tuple[str, str], ...]) -> str:
    """Every photograph without a pose, with the reason."""
    return "".join(
        f'<p style="margin:.3em 0"><b>{escape(name)}</b><br><span style="opacity:.75">{escape(reason)}</span></p>'
        for name, reason in missing
    )


def shot_html(shot: Shot | None) -> str:
    """Name and numbers of a photograph."""
    if shot is None:
        return BLOCK.format('<span style="opacity:.7">Click a photograph, or choose one, to see its numbers.</span>')
    rows = "".join(ROW.format(escape(name), escape(value)) for name, value in shot.facts)
    return BLOCK.format(f"<b>{escape(shot.name)}</b><table>{rows}</table>")


def legend_html(what: str, low: str, high: str, colors: np.ndarray) -> str:
    """The colours of the pose graph between their two ends."""
    stops = ",".join("rgb({:.0f},{:.0f},{:.0f})".format(*color) for color in colors)
    return BLOCK.format(
        f'<div style="height:6px;border-radius:3px;background:linear-gradient(90deg,{stops})"></div>'
        f'<div style="display:flex;justify-content:space-between;opacity:.75">'
        f"<span>{low}</span><span>{what}</span><span>{high}</span></div>"
    )
