"""A scene in the browser: cameras, points, aligned depth and pose graph, and what is known of each photograph.

Needs viser (the extra ``view``). The server has the state; all browsers that look at it see the same.
"""

import logging
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from threading import RLock

import numpy as np
import viser
from jaxtyping import Float64

from mbasfm.io.images import read_first_small
from mbasfm.runtime.parallel import in_parallel
from mbasfm.scene.derived import overview
from mbasfm.types.outcome import View
from mbasfm.viewer.exhibit import (
    BY_ERROR,
    BY_INLIERS,
    LINK_COLORS,
    Component,
    Exhibit,
    Link,
    Shot,
    depth_cloud,
    link_strengths,
    shade,
)
from mbasfm.viewer.panel import DEPTH_ALL, DEPTH_ONE, NEXT, component_label, label, legend_html, make_panel, shot_html
from mbasfm.viewer.viser_nodes import (
    CAMERA,
    add_cloud,
    add_frustum,
    add_lines,
    add_wall,
    frustum_scale,
    point_size,
    wxyz,
)

FOV = float(np.deg2rad(50.0))
PICTURE_SIDE_PX = 720
NEIGHBOUR, CHOSEN = (46, 184, 134), (255, 122, 26)
MAX_TILES = 60


class Viewer:
    """Serves one exhibit until it is stopped."""

    def __init__(self, exhibit: Exhibit, host: str = "127.0.0.1", port: int = 8080, max_points: int = 200_000):
        self.exhibit, self.max_points = exhibit, max_points
        # Browsers open connections that they never use, of which each would be a page of errors on the terminal.
        logging.getLogger("websockets.server").setLevel(logging.CRITICAL)
        with redirect_stdout(StringIO()):  # what it would say is ours to say
            self.server = viser.ViserServer(host=host, port=port, label=f"mba view: {exhibit.title}", verbose=False)
        self.server.scene.set_up_direction("+y")
        self.server.gui.main_panel.dock_right()
        self.panel = make_panel(self.server.gui, exhibit)
        self.frusta: dict[int, viser.CameraFrustumHandle] = {}
        self.depths: dict[tuple[int, int], viser.PointCloudHandle] = {}
        """Clouds by photograph number and largest number of points."""
        self.clouds: dict[tuple[int, str], viser.PointCloudHandle] = {}
        self._shots = {label(shot): shot for shot in exhibit.shots}
        self._lines: list[viser.LineSegmentsHandle] = []
        self._is_inside = False
        self._lock = RLock()
        self._views = {view.number: view for part in exhibit.components for view in part.views}
        for number, component in enumerate(exhibit.components):
            self._add_component(number, component)
        if not exhibit.components:
            self._add_tiles()
        self._start_view()
        self._listen()
        self._style_page()
        self._restyle()

    @property
    def url(self) -> str:
        """Address of the page."""
        host = self.server.get_host()
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server.get_port()}"

    @property
    def chosen(self) -> Shot | None:
        """The photograph that the panel shows."""
        return self._shots.get(self.panel.choice.value)

    @property
    def component(self) -> int:
        """Number of the shown component; components share no world."""
        labels = [component_label(number, part) for number, part in enumerate(self.exhibit.components)]
        return labels.index(self.panel.component.value) if labels else -1

    def choose(self, number: int) -> None:
        """Show a photograph in the panel, as a click on its camera does."""
        self.panel.choice.value = label(self.exhibit.shots[number])

    def stop(self) -> None:
        """Close the server."""
        self.server.stop()

    # ------------------------------------------------------------------------------------------------------------
    # What is there from the beginning

    def _add_component(self, number: int, component: Component) -> None:
        scene = self.server.scene
        for kind, cloud in component.clouds.items():
            self.clouds[number, kind] = add_cloud(scene, f"/{number}/{kind}", cloud)
        for view in component.views:
            name, picture = f"/{number}/cameras/{view.number}", self.exhibit.shots[view.number].thumbnail
            handle = add_frustum(scene, name, view, component.pose(view), picture)
            handle.on_click(lambda _, chosen=view.number: self.choose(chosen))
            self.frusta[view.number] = handle

    def _add_tiles(self) -> None:
        """Show the photographs on a wall if none has a pose."""
        pictures = {shot.number: shot.thumbnail for shot in self.exhibit.shots if shot.thumbnail is not None}
        for number, tile in add_wall(self.server.scene, dict(list(pictures.items())[:MAX_TILES])).items():
            tile.on_click(lambda _, chosen=number: self.choose(chosen))

    def _start_view(self) -> None:
        start = self.server.initial_camera
        start.position, start.look_at, start.fov = self._overview(), np.zeros(3), FOV
        start.up = np.array([0.0, 1.0, 0.0])

    def _overview(self) -> Float64[np.ndarray, "3"]:
        """Position from which the whole shown component is in view."""
        if not self.exhibit.components:
            return np.array([0.0, 0.0, 2.2])
        component = self.exhibit.components[self.component]
        points = component.clouds["sparse"].points
        centers = np.stack([component.pose(view)[:, 3] for view in component.views])
        return overview(np.concatenate([points[np.linalg.norm(points, axis=1) < 1], centers]), FOV)

    def _listen(self) -> None:
        panel = self.panel
        panel.step.on_click(lambda event: self._step(1 if event.target.value == NEXT else -1))
        panel.visit.on_click(lambda event: self._do(partial(self._visit, event.client)))
        panel.overview.on_click(lambda event: self._do(partial(self._step_back, event.client)))
        for handle, action in (
            (panel.choice, self._show_chosen),
            (panel.component, self._show_component),
            (panel.points, self._style_points),
            (panel.point_size, self._style_points),
            (panel.cameras, self._style_cameras),
            (panel.camera_size, self._style_cameras),
            (panel.photographs, self._style_photographs),
            (panel.links, self._draw_links),
            (panel.depth, self._draw_depth),
            (panel.dark, self._style_page),
        ):
            handle.on_update(partial(self._do, action))

    def _do(self, action: Callable[[], None], _: object = None) -> None:
        """Run one action at a time: every event comes in a thread of its own."""
        with self._lock:
            action()

    # ------------------------------------------------------------------------------------------------------------
    # What happens

    def _step(self, by: int) -> None:
        shots, chosen = self.exhibit.shots, self.chosen
        first = 0 if by > 0 else len(shots) - 1
        self.choose(first if chosen is None else (chosen.number + by) % len(shots))

    def _show_chosen(self) -> None:
        shot, panel = self.chosen, self.panel
        picture = None if shot is None else read_first_small(shot.paths, PICTURE_SIDE_PX)
        panel.picture.visible = picture is not None
        if picture is not None:
            panel.picture.image = picture
        panel.numbers.content = shot_html(shot)
        panel.visit.disabled = shot is None or shot.component < 0
        if shot is not None and shot.component not in (-1, self.component):
            panel.component.value = component_label(shot.component, self.exhibit.components[shot.component])
        elif self._is_inside:
            for client in self.server.get_clients().values():
                self._visit(client)
        self._restyle()

    def _show_component(self) -> None:
        self._start_view()
        for client in self.server.get_clients().values():
            self._step_back(client)
        self._restyle()

    def _visit(self, client: viser.ClientHandle | None) -> None:
        """Look through the chosen camera: its photograph fills the window, and other cameras are hidden."""
        shot = self.chosen
        if client is None or shot is None or shot.component < 0:
            return
        view = self._views[shot.number]
        pose = self.exhibit.components[shot.component].pose(view)
        wide, tall = view.size / view.focal / 2
        with client.atomic():
            client.camera.position = pose[:, 3]
            client.camera.look_at = pose[:, 3] + pose[:, 2]
            client.camera.wxyz = wxyz(pose)
            client.camera.fov = float(2 * np.arctan(max(tall, wide / client.camera.aspect)))
        self._is_inside = True
        self._restyle()

    def _step_back(self, client: viser.ClientHandle | None) -> None:
        if client is None:
            return
        with client.atomic():
            client.camera.up_direction = np.array([0.0, 1.0, 0.0])
            client.camera.position = self._overview()
            client.camera.look_at = np.zeros(3)
            client.camera.fov = FOV
        self._is_inside = False
        self._restyle()

    def _restyle(self) -> None:
        """Bring the scene in line with what is chosen."""
        with self.server.atomic():
            self._style_points()
            self._style_cameras()
            self._draw_links()
        self._draw_depth()

    def _style_page(self) -> None:
        self.server.gui.configure_theme(
            dark_mode=self.panel.dark.value, show_logo=False, show_share_button=False, control_width="large"
        )

    def _style_points(self) -> None:
        for (number, kind), handle in self.clouds.items():
            handle.visible = number == self.component and kind == self.panel.points.value
        for handle in (*self.clouds.values(), *self.depths.values()):
            handle.point_size = self.panel.point_size.value * point_size(len(handle.points))

    def _style_cameras(self) -> None:
        panel, chosen = self.panel, self.chosen
        near = {number for link in self._links_of(chosen) for number in (link.i, link.j)}
        for number, handle in self.frusta.items():
            component = self.exhibit.shots[number].component
            is_chosen = chosen is not None and number == chosen.number
            handle.visible = panel.cameras.value and component == self.component and not self._is_inside
            size = self.exhibit.components[component].size * panel.camera_size.value
            handle.scale = size * frustum_scale(self._views[number])
            handle.color = CHOSEN if is_chosen else NEIGHBOUR if number in near else CAMERA
            handle.thickness = 3.0 if is_chosen else 1.5

    def _style_photographs(self) -> None:
        for number, handle in self.frusta.items():
            handle.image = self.exhibit.shots[number].thumbnail if self.panel.photographs.value else None

    def _links_of(self, shot: Shot | None) -> list[Link]:
        if shot is None or shot.component < 0:
            return []
        return [link for link in self.exhibit.components[shot.component].links if shot.number in (link.i, link.j)]

    def _draw_links(self) -> None:
        for line in self._lines:
            line.remove()
        self._lines.clear()
        self.panel.legend.content = ""
        mode = self.panel.links.value
        if mode not in (BY_INLIERS, BY_ERROR) or self.component < 0 or self._is_inside:
            return
        component = self.exhibit.components[self.component]
        strength, limits = link_strengths(component.links, mode)
        if len(strength) == 0:
            return
        centers = {view.number: component.pose(view)[:, 3] for view in component.views}
        ends = np.array([[centers[link.i], centers[link.j]] for link in component.links])
        own = set(self._links_of(self.chosen))
        is_own = np.array([link in own for link in component.links])
        for name, thickness, kept in (("links", 1.2, ~is_own), ("own_links", 3.0, is_own)):
            if kept.any():
                colors = shade(strength[kept])
                self._lines.append(
                    add_lines(self.server.scene, f"/{self.component}/{name}", ends[kept], colors, thickness)
                )
        what = "inliers of the pair" if mode == BY_INLIERS else "median residual"
        self.panel.legend.content = legend_html(what, *limits, LINK_COLORS)

    def _draw_depth(self) -> None:
        views = self._views_with_depth()
        share = max(self.max_points // max(len(views), 1), 1)
        for key in set(self.depths) - {(view.number, share) for view in views}:
            self.depths.pop(key).remove()
        fresh = [view for view in views if (view.number, share) not in self.depths]
        clouds = in_parallel(lambda view: depth_cloud(self.exhibit.components[self.component], view, share), fresh)
        for view, cloud in zip(fresh, clouds, strict=True):
            if cloud is not None:
                name = f"/{self.component}/depth/{view.number}"
                self.depths[view.number, share] = add_cloud(self.server.scene, name, cloud)
        self._style_points()

    def _views_with_depth(self) -> tuple[View, ...]:
        """Views whose depth the panel asks for."""
        if self.component >= 0 and self.panel.depth.value == DEPTH_ALL:
            return self.exhibit.components[self.component].views
        chosen = self.chosen
        if self.panel.depth.value == DEPTH_ONE and chosen is not None and chosen.component == self.component >= 0:
            return (self._views[chosen.number],)
        return ()
