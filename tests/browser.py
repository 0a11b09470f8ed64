"""Headless Chromium, driven through its DevTools protocol: open a page, press the mouse, take a screenshot."""

import base64
import io
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
from helpers import HANG_S
from PIL import Image

EXECUTABLE = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--no-first-run",
    "--remote-debugging-port=0",
)


class Browser:
    """One window; use it in a ``with`` statement."""

    def __init__(self, url, size=(1000, 700), start_s=HANG_S):
        from websockets.sync.client import connect

        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        command = [EXECUTABLE, *FLAGS, f"--user-data-dir={self._folder.name}", f"--window-size={size[0]},{size[1]}"]
        self._process = subprocess.Popen([*command, url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._socket = connect(self._page_address(url, start_s), max_size=None)
        self._number = 0
        self.call(
            "Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False
        )

    def _page_address(self, url, start_s):
        port_file, end = Path(self._folder.name) / "DevToolsActivePort", time.monotonic() + start_s
        while time.monotonic() < end:
            time.sleep(0.1)
            if port_file.is_file() and port_file.read_text().strip():
                port = port_file.read_text().splitlines()[0]
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
                    pages = [page for page in json.load(answer) if page["type"] == "page" and url in page["url"]]
                if pages:
                    return pages[0]["webSocketDebuggerUrl"]
        self.close()
        raise TimeoutError(f"{EXECUTABLE} did not open {url} within {start_s:g} s")

    def call(self, method, **arguments):
        """One command of the protocol; returns its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": arguments}))
        while True:
            message = json.loads(self._socket.recv(timeout=HANG_S))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]

    def open(self, url):
        """Go to another page."""
        self.call("Page.navigate", url=url)

    def screenshot(self):
        """What is to be seen, RGB."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))

    def text(self):
        """All words of the page."""
        return self.call("Runtime.evaluate", expression="document.body.innerText")["result"].get("value", "")

    def click(self, x, y):
        """Press and release the left button, and leave: what is under the mouse may look different."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        time.sleep(0.3)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        time.sleep(0.3)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)

    def close(self):
        """End the process that was started here."""
        if hasattr(self, "_socket"):
            self._socket.close()
        self._process.terminate()
        self._process.wait(timeout=HANG_S)
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
