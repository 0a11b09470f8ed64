"""`mba view`: a scene in the browser."""

import socket
import time
import webbrowser
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import tyro

from mbasfm.errors import ConfigError, MissingExtraError
from mbasfm.viewer.exhibit import read_exhibit


@dataclass(frozen=True)
class View:
    """Look at a scene in the browser: cameras, points, aligned depth, pose graph; click a camera for its numbers."""

    scene: tyro.conf.Positional[Path]
    """The --output of mba sfm."""
    port: int = 8080
    """Where the page is served; the next free one if it is taken, 0 for any."""
    host: str = "127.0.0.1"
    """0.0.0.0 lets other machines look, too."""
    browser: bool = True
    """Open the page."""
    max_points: int = 200_000
    """Of each cloud; more need a faster graphics card."""

    def run(self) -> int:
        """Serve until Ctrl-C."""
        self._check()
        exhibit = read_exhibit(self.scene, self.max_points)
        from mbasfm.viewer.server import Viewer

        viewer = Viewer(exhibit, self.host, self.port, self.max_points)
        print(f"{exhibit.verdict.headline} Look at {viewer.url} (Ctrl-C ends)", flush=True)
        if self.browser:
            webbrowser.open(viewer.url)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            return 0
        finally:
            viewer.stop()

    def _check(self) -> None:
        """Refuse early: the server itself would try forever, in a thread of its own."""
        if find_spec("viser") is None:
            raise MissingExtraError("mba view", "view")
        if self.max_points < 1:
            raise ConfigError(f"--max-points is {self.max_points}; give at least 1")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port is {self.port}; give a number between 0 and 65535")
        try:
            family, _, _, _, address = socket.getaddrinfo(self.host, 0, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(address)
        except OSError as error:
            raise ConfigError(f"--host is {self.host}: {error}; try 127.0.0.1") from error
