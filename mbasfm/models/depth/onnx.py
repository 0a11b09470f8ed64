"""Any depth network in ONNX form, with a small JSON file that describes its input and output."""

import hashlib
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np

from mbasfm.errors import InputError, MissingExtraError
from mbasfm.io.files import read_json
from mbasfm.models.base import DepthModel
from mbasfm.types.observations import RGB, DepthEstimate, Photo

OUTPUTS = ("depth", "disparity", "log_depth", "log_disparity")
MAX_SIDE_PX = 8192
MIN_STD = 1e-6


@dataclass(frozen=True)
class Sidecar:
    """Contents of NAME.json beside NAME.onnx; all optional, these are the defaults."""

    long_side: int = 384
    """Size to which the long side of images is reduced [px]."""
    multiple_of: int = 32
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Together with ``mean``, the normalisation of RGB in 0..1."""
    output: Literal["depth", "disparity", "log_depth", "log_disparity"] = "disparity"
    is_metric: bool = False
    licence: str = "see the network's own"

    @staticmethod
    def read(path: Path) -> "Sidecar":
        """Contents of a file; refuses unknown keys, as a typo must not become a default."""
        content = read_json(path)
        known = {field.name for field in fields(Sidecar)}
        if not isinstance(content, dict) or set(content) - known:
            raise InputError(f"{path}: must be an object with keys out of {', '.join(sorted(known))}")
        values: dict[str, Any] = {field.name: field.default for field in fields(Sidecar)} | content
        _check_sidecar(values, path)
        for name in ("mean", "std"):
            values[name] = tuple(float(value) for value in values[name])
        return Sidecar(**values)


def _check_sidecar(values: dict[str, Any], path: Path) -> None:
    """Raise InputError unless all values make sense."""
    if values["output"] not in OUTPUTS:
        raise InputError(f"{path}: output is {values['output']!r}; choose one of {', '.join(OUTPUTS)}")
    sizes = values["long_side"], values["multiple_of"]
    if not (all(type(size) is int for size in sizes) and MAX_SIDE_PX >= sizes[0] >= sizes[1] >= 1):
        what = f"whole numbers up to {MAX_SIDE_PX}, long_side the larger"
        raise InputError(f"{path}: long_side and multiple_of must be {what}")
    for name in ("mean", "std"):
        value = values[name]
        numbers = isinstance(value, (list, tuple)) and all(type(v) in (int, float) for v in value)
        if not numbers or len(value) != 3 or (name == "std" and min(map(abs, value)) < MIN_STD):
            raise InputError(f"{path}: {name} must be three numbers (std not 0), one for each of R, G and B")
    if type(values["is_metric"]) is not bool or not isinstance(values["licence"], str):
        raise InputError(f"{path}: is_metric must be true or false, licence a text")


class OnnxDepth(DepthModel):
    """``onnx:FILE``. Without a JSON beside it, input and output must have telling names (rgb01, log_disparity)."""

    name = "onnx"
    licence = "that of the network"

    @staticmethod
    def missing() -> str:
        """The extra to install, if onnxruntime is not there."""
        return "" if find_spec("onnxruntime") else "pip install 'mbasfm[onnx]'"

    def __init__(self, argument: str = ""):
        if self.missing():
            raise MissingExtraError("depth from an ONNX network", "onnx")
        import onnxruntime

        self._path = Path(argument)
        if not self._path.is_file():
            raise InputError(f"onnx:{argument}: there is no such file; give the path of an ONNX depth network")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(self._path), options, providers=onnxruntime.get_available_providers()
            )
        except Exception as error:  # onnxruntime has no common error type
            raise InputError(f"{self._path}: not a readable ONNX network ({error})") from error
        sidecar = self._path.with_suffix(".json")
        self._sidecar = Sidecar.read(sidecar) if sidecar.is_file() else self._guess()
        self.licence = self._sidecar.licence
        content = hashlib.sha256(self._path.read_bytes()).hexdigest()[:16]
        self.key = f"onnx-1-{content}-{self._sidecar}"

    def _guess(self) -> Sidecar:
        """Interface guessed from the names of input and output."""
        source, target = self._session.get_inputs()[0].name, self._session.get_outputs()[0].name
        if source == "rgb01" and target in OUTPUTS:
            return Sidecar(output=target)
        raise InputError(
            f"{self._path}: input {source!r} and output {target!r} do not say what they are; write "
            f'{self._path.with_suffix(".json").name} beside it, e.g. {{"long_side": 384, "output": "disparity"}}'
        )

    def estimate(self, photo: Photo, image: RGB) -> DepthEstimate:
        """Depth of one image: shrink, normalise, run, and undo a logarithm."""
        del photo
        sidecar = self._sidecar
        scale = sidecar.long_side / max(image.shape[:2])
        step = sidecar.multiple_of
        height, width = (max(step, round(side * scale / step) * step) for side in image.shape[:2])
        resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32) / 255
        normal = (resized - np.array(sidecar.mean, np.float32)) / np.array(sidecar.std, np.float32)
        name = self._session.get_inputs()[0].name
        (values, *_) = self._session.run(None, {name: np.ascontiguousarray(normal.transpose(2, 0, 1)[None])})
        values = np.asarray(values, dtype=np.float32).squeeze()
        if sidecar.output.startswith("log_"):
            values = np.exp(values)
        return DepthEstimate(values, sidecar.output.endswith("disparity"), sidecar.is_metric)
