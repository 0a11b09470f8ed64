"""Files of every kind that is read, and ways to damage them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pycolmap
from made_up import make_lens, orbit, photograph, relief
from PIL import ExifTags, Image

from mbasfm.config import PRESETS, Config
from mbasfm.io.calibration import read_calibration
from mbasfm.io.colmap_model import read_model
from mbasfm.io.files import Cache, read_config, write_config
from mbasfm.io.images import TIMES_NAME, find_photos, read_small, read_times, read_upright, with_masks
from mbasfm.io.lists import read_pairs
from mbasfm.io.poses import read_poses
from mbasfm.io.priors import read_priors
from mbasfm.matching.inference import counts
from mbasfm.models.depth.files import FilesDepth
from mbasfm.models.depth.onnx import Sidecar
from mbasfm.models.matchers.files import FilesMatcher
from mbasfm.report.record import write_report
from mbasfm.scene.folder import export_scene, read_scenes
from mbasfm.scene.formats import read_depth, read_ply, write_depth, write_ply
from mbasfm.types.observations import Photo
from mbasfm.types.outcome import Cloud
from mbasfm.viewer.exhibit import read_exhibit

SIZE = (96, 80)
NUMBERS = (b"-1", b"0", b"1e999", b"nan", b"99999999999999999999", b"1e-320", b"true", b"[]", b"{}", b'""', b"null")


# ----------------------------------------------------------------------------------------------------------------
# Damage


def damage(content: bytes, generator: np.random.Generator) -> bytes:
    """The same bytes, changed in one or several of the ways in which files get damaged."""
    for _ in range(int(generator.choice([1, 1, 1, 2, 3]))):
        ways = (flip, cut, insert, fill, swell, renumber)
        content = ways[int(generator.integers(len(ways)))](content, generator)
    return content


def place(content: bytes, generator: np.random.Generator) -> int:
    """Anywhere, but every second time near the start, where headers are."""
    return int(generator.integers(max(min(len(content), 200 if generator.random() < 0.5 else len(content)), 1)))


def flip(content: bytes, generator: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for _ in range(int(generator.integers(1, 6)) if content else 0):
        changed[place(content, generator)] ^= 1 << int(generator.integers(8))
    return bytes(changed)


def cut(content: bytes, generator: np.random.Generator) -> bytes:
    start = place(content, generator)
    end = len(content) if generator.random() < 0.7 else start + int(generator.integers(1, 40))
    return content[:start] + content[end:]


def insert(content: bytes, generator: np.random.Generator) -> bytes:
    start = place(content, generator)
    return content[:start] + generator.bytes(int(generator.integers(1, 40))) + content[start:]


def fill(content: bytes, generator: np.random.Generator) -> bytes:
    """A block of zeros, as after a crash of the machine."""
    start, length = place(content, generator), int(generator.integers(1, 64))
    return content[:start] + b"\0" * len(content[start : start + length]) + content[start + length :]


def swell(content: bytes, generator: np.random.Generator) -> bytes:
    """A number that became huge: a header that claims a billion of billions of things."""
    start, length = place(content, generator) // 4 * 4, (4, 8)[int(generator.integers(2))]
    huge = (b"\xff" * 8, (10**12).to_bytes(8, "little"), b"\x7f" * 8)[int(generator.integers(3))]
    return content[:start] + huge[: len(content[start : start + length])] + content[start + length :]


def renumber(content: bytes, generator: np.random.Generator) -> bytes:
    """Another number, or no number, where a text has one."""
    digits = [position for position, byte in enumerate(content) if chr(byte).isdigit()]
    if not digits:
        return content
    start = end = digits[int(generator.integers(len(digits)))]
    while end < len(content) and chr(content[end]).isdigit():
        end += 1
    return content[:start] + NUMBERS[int(generator.integers(len(NUMBERS)))] + content[end:]


# ----------------------------------------------------------------------------------------------------------------
# Readers


@dataclass(frozen=True)
class Reader:
    """A kind of file, and how it is read."""

    name: str
    make: Callable[[Path], Path]
    """Write everything that is needed into a folder; returns the file to damage."""
    read: Callable[[Path], object]
    """Read that file and check what came out."""


def picture(seed: int, mode: str = "RGB") -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 255, (SIZE[1] // 8, SIZE[0] // 8, 3), dtype=np.uint8)
    return Image.fromarray(values).resize(SIZE).convert(mode)


def image_reader(name: str, mode: str = "RGB") -> Reader:
    """With metadata, which are read too."""

    def make(folder: Path) -> Path:
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation], exif[ExifTags.Base.Make] = 6, "Maker"
        details = exif.get_ifd(ExifTags.IFD.Exif)
        details[ExifTags.Base.FocalLength], details[ExifTags.Base.FocalPlaneXResolution] = 25.4, 300.0
        path = folder / name
        if mode == "I;16":
            Image.fromarray(np.asarray(picture(1, "L")).astype(np.uint16) * 257).save(path)
        else:
            picture(1, mode).save(path, exif=exif)
        return path

    def read(path: Path) -> None:
        photos, skipped = find_photos(path.parent)
        assert len(photos) + len(skipped) == 1 and all(item.reason for item in skipped)
        for photo in photos:
            assert read_upright(photo.path).shape == (photo.height, photo.width, 3)
            assert max(read_small(photo.path, 32).shape) == 32

    return Reader(name, make, read)


def some_photos() -> tuple[Photo, ...]:
    return tuple(Photo(f"{number}.jpg", Path(f"{number}.jpg"), *SIZE, None, "", str(number)) for number in range(3))


def make_list(folder: Path) -> Path:
    (folder / "photos").mkdir()
    for number in range(3):
        picture(number).save(folder / "photos" / f"{number}.png")
    (folder / "list.txt").write_text("".join(f"photos/{number}.png\n" for number in range(3)))
    return folder / "list.txt"


def make_mask(folder: Path) -> Path:
    picture(1, "L").save(folder / "0.jpg.png")
    return folder / "0.jpg.png"


def read_damaged_mask(path: Path) -> None:
    (photo, *_) = with_masks(some_photos(), path.parent)
    assert counts(photo, np.array([[3.0, 4.0]], np.float32)).dtype == bool


def make_pairs(folder: Path) -> Path:
    (folder / "pairs.txt").write_text('0.jpg 1.jpg\n"1.jpg" 2.jpg  # a pair\n\n0.jpg\t2.jpg\n')
    return folder / "pairs.txt"


def read_damaged_pairs(path: Path) -> None:
    pairs = read_pairs(path, [photo.name for photo in some_photos()])
    assert ((0 <= pairs) & (pairs < 3)).all() and (pairs[:, 0] < pairs[:, 1]).all()


def colmap_model(num_points: int = 30) -> pycolmap.Reconstruction:
    """Three images of two cameras with tracks."""
    made = photograph(relief(num_points, 0), orbit(3), make_lens(80.0, SIZE), 0)
    model = pycolmap.Reconstruction()
    for number in (1, 2):
        camera = pycolmap.Camera(model="PINHOLE", width=96, height=80, params=[80, 80, 48, 40], camera_id=number)
        model.add_camera_with_trivial_rig(camera)
    for frame, (pixels, pose) in enumerate(zip(made.pixels, made.cam_from_world, strict=True)):
        image = pycolmap.Image(name=f"{frame}.jpg", keypoints=pixels, camera_id=1 + frame % 2, image_id=frame + 1)
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d(pose))
    for number, point in enumerate(made.points):
        track = pycolmap.Track()
        for frame, shown in enumerate(made.point_of):
            for index in np.flatnonzero(shown == number).tolist():
                track.add_element(frame + 1, index)
        model.add_point3D(point, track)
    return model


def calibration_reader(name: str, text: str | None = None) -> Reader:
    def make(folder: Path) -> Path:
        if text is not None:
            (folder / name).write_text(text)
        elif name.endswith(".bin"):
            colmap_model().write_binary(folder)
        else:
            colmap_model().write_text(folder)
        return folder / name

    def read(path: Path) -> None:
        calibration = path if path.suffix == ".json" else path.with_stem("cameras")
        for camera in read_calibration(calibration, some_photos()).values():
            numbers = np.array([*camera.focal, *camera.center, *camera.distortion])
            assert np.isfinite(numbers).all() and (numbers[:4] > 0).all()

    return Reader(f"calibration {name}", make, read)


def make_settings(folder: Path) -> Path:
    write_config(folder / "a.toml", Config(depth="files:depth", focal=800.0, masks="masks"))
    return folder / "a.toml"


def depth_reader(name: str) -> Reader:
    def make(folder: Path) -> Path:
        values = np.linspace(0.5, 4.0, 20 * 24, dtype=np.float32).reshape(20, 24)
        path = folder / name
        if path.suffix == ".npy":
            np.save(path, values)
        elif path.suffix == ".npz":
            points = np.stack([values, values, values + 1], -1)
            np.savez_compressed(path, **({"points": points} if "points" in name else {"depth": values}))
        elif path.suffix == ".png":
            cv2.imwrite(str(path), np.round(values * 1000).astype(np.uint16))
        else:
            cv2.imwrite(str(path), values)
        return path

    def read(path: Path) -> None:
        photo = Photo(f"{path.stem}.jpg", path, *SIZE, None, "", "")
        model = FilesDepth(str(path.parent))
        model.content_of(photo)
        estimate = model.estimate(photo, np.zeros((*SIZE[::-1], 3), np.uint8))
        assert estimate.values.ndim == 2 and np.isfinite(estimate.values).any()
        assert estimate.focal_px is None or 0 < estimate.focal_px < np.inf

    return Reader(f"depth {name}", make, read)


def make_matches(folder: Path) -> tuple[Path, Path]:
    generator = np.random.default_rng(0)
    (folder / "features").mkdir()
    (folder / "matches" / "0.jpg").mkdir(parents=True)
    for name in ("0.jpg", "1.jpg"):
        arrays = {"pixels": generator.uniform(0, 80, (30, 2)), "descriptors": generator.uniform(0, 1, (30, 8))}
        np.savez(folder / "features" / f"{name}.npz", **arrays)
    indices = np.stack([np.arange(30), np.arange(30)], -1)
    pair = folder / "matches" / "0.jpg" / "1.jpg.npz"
    np.savez(pair, indices=indices, confidence=np.ones(30, np.float32))
    return folder / "features" / "0.jpg.npz", pair


def read_damaged_matches(path: Path) -> None:
    folder = path.parents[1] if path.parent.name == "features" else path.parents[2]
    matcher, blank = FilesMatcher(str(folder)), np.zeros((*SIZE[::-1], 3), np.uint8)
    matcher.pairs()
    first, second = (matcher.describe(photo, blank) for photo in some_photos()[:2])
    found = matcher.match(first, second)
    assert ((0 <= found.indices) & (found.indices < 30)).all() and np.isfinite(first.descriptors).all()


def make_sidecar(folder: Path) -> Path:
    content = {"long_side": 384, "multiple_of": 32, "mean": [0.4, 0.4, 0.4], "std": [0.2, 0.2, 0.2], "output": "depth"}
    (folder / "a.json").write_text(json.dumps(content))
    return folder / "a.json"


def read_damaged_sidecar(path: Path) -> None:
    sidecar = Sidecar.read(path)
    assert np.isfinite([*sidecar.mean, *sidecar.std]).all() and min(sidecar.std) != 0


def entry() -> dict[str, np.ndarray]:
    return {"pixels": np.arange(60.0).reshape(30, 2), "is_metric": np.array(True)}


def make_entry(folder: Path) -> Path:
    Cache(folder).get("key", entry)
    return next(folder.rglob("*.npz"))


def read_damaged_entry(path: Path) -> None:
    """Right, or computed again: never wrong."""
    found = Cache(path.parents[1]).get("key", entry)
    assert set(found) == set(entry()) and all(np.array_equal(found[name], value) for name, value in entry().items())


def make_times(folder: Path) -> Path:
    (folder / TIMES_NAME).write_text(json.dumps({f"frame_{number:06d}.jpg": number / 30 for number in range(5)}))
    return folder / TIMES_NAME


def read_damaged_times(path: Path) -> None:
    assert all(np.isfinite(seconds) for seconds in read_times(path.parent).values())


def make_ply(folder: Path) -> Path:
    write_ply(folder / "points.ply", Cloud(np.random.default_rng(0).normal(size=(50, 3)), np.zeros((50, 3), np.uint8)))
    return folder / "points.ply"


def make_depth(folder: Path) -> Path:
    write_depth(folder / "0.npz", np.linspace(1, 2, 12 * 16, dtype=np.float32).reshape(12, 16))
    return folder / "0.npz"


def pose_reader(name: str, text: str | None = None) -> Reader:
    """Poses to start from, and the same file as priors."""

    def read(path: Path) -> None:
        if path.suffix != ".csv":
            turns = read_poses(path).cam_from_world[:, :, :3]
            assert np.abs(turns @ turns.transpose(0, 2, 1) - np.eye(3)).max() < 1e-6
        for prior in read_priors(str(path), some_photos(), {}).of_photo.values():
            assert np.isfinite(prior.cam_from_world).all() and (prior.sigma_m or 1) > 0

    return Reader(f"poses {name}", calibration_reader(name, text).make, read)


def make_text_model(folder: Path) -> Path:
    colmap_model().write_text(folder)
    return folder


def scene_reader(name: str, read: Callable[[Path], object]) -> Reader:
    """A file of a finished scene."""

    def make(folder: Path) -> Path:
        write_small_scene(folder)
        return folder / name

    return Reader(f"scene {name}", make, lambda path: read(path.parents[len(Path(name).parts) - 1]))


def write_small_scene(folder: Path) -> None:
    model = folder / "sparse" / "0"
    model.mkdir(parents=True)
    colmap_model().write_binary(model)
    (folder / "images").mkdir()
    rows, blank = [], {"component": 0, "reason": "", "status": "registered", "inlier_share": 0.9, "depth_error": 0.1}
    for number in range(3):
        path = folder / "images" / f"{number}.jpg"
        picture(number).save(path)
        write_depth(folder / "depth" / f"{number}.npz", np.full((20, 24), 4 + number, np.float32))
        sigma = {"rotation_deg": [0.1] * 3, "translation": [0.1] * 3}
        rows.append(blank | {"name": path.name, "source": str(folder / path.name), "sigma": sigma})
    report = {
        "source": str(folder / "images"),
        "images": rows,
        "pairs": {"i": [0, 0], "j": [1, 2], "matches": [40, 30], "inliers": [30, 20], "used": [1, 1]},
        "residuals": {"inlier_px": 20.0, "curves": [{"stage": "start", "part": "whole", "counts": [1.0] * 101}]},
        "steps": {
            "number": [0],
            "stage": ["split"],
            "loss": [1.0],
            "score": [1.0],
            "damping": [1.0],
            "accepted": [True],
        },
        "stages": [{"name": "polish", "seconds": 1.0, "peak_memory_mb": 1.0, "components": [COMPONENT]}],
        "cameras": [
            {"images": 3, "width": 96, "height": 80, "focal_from": "search", "start_focal_px": 70.0, "focal_px": 80.0}
        ],
        "settings": {"depth": "flat", "matcher": "sift"},
        "notes": ["a note"],
        "skipped": [],
        "depth_pictures": [None] * 3,
        "outputs": {"ply": ["points.ply"]},
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1))


COMPONENT = {
    "images": 3,
    "points": 30,
    "mean_track_length": 3.0,
    "mean_error_px": 0.5,
    "polished": True,
    "reason": "",
    "held_out_px": [0.5, 0.5],
}


def parent_model(path: Path) -> None:
    read_model(path.parent)


def export_all(folder: Path) -> None:
    export_scene(folder, ["ply", "tum", "glb", "nerfstudio"])


def export_without_an_image(folder: Path) -> None:
    """The report says where the photograph was."""
    (folder / "images" / "1.jpg").rename(folder / "1.jpg") if (folder / "images" / "1.jpg").exists() else None
    export_scene(folder, ["images"])


ONE_CAMERA = json.dumps({"fx": 80, "fy": 81, "cx": 48, "cy": 40, "k1": 0.1, "width": 96, "height": 80})
PER_IMAGE = json.dumps(
    {"images": {f"{n}.jpg": {"K": [80 + n, 80, 48, 40], "width": 96, "height": 80} for n in range(3)}}
)

TUM = "".join(f"{n}.jpg {n}.5 0.25 -1 0 0 0.6 0.8\n" for n in range(3))
KITTI = "".join(f"1 0 0 {n} 0 1 0 0.5 0 0 1 -2\n" for n in range(3))
TABLE = "name,latitude,longitude,altitude,sigma_m\n" + "".join(f"{n}.jpg,48.{n},11.5,500,3\n" for n in range(3))
TURNED = [[0, -1, 0, 2.5], [1, 0, 0, 0], [0, 0, 1, -1], [0, 0, 0, 1]]
FRAMES = [{"file_path": f"images/{n}.jpg", "transform_matrix": TURNED} for n in range(3)]
TRANSFORMS = json.dumps({"fl_x": 80, "cx": 48, "cy": 40, "w": 96, "h": 80, "frames": FRAMES})
POSED = {f"{n}.jpg": {"R": np.eye(3).tolist(), "t": [n, 0, 1.5], "K": [80, 80, 48, 40]} for n in range(3)}

READERS = (
    image_reader("1.jpg"),
    image_reader("1.png"),
    image_reader("16.png", "I;16"),
    image_reader("1.webp"),
    image_reader("1.tif"),
    image_reader("cmyk.jpg", "CMYK"),
    image_reader("1.bmp"),
    Reader("list", make_list, find_photos),
    Reader("mask", make_mask, read_damaged_mask),
    Reader("pairs", make_pairs, read_damaged_pairs),
    *(calibration_reader(f"{file}.{kind}") for file in ("cameras", "images") for kind in ("txt", "bin")),
    calibration_reader("one.json", ONE_CAMERA),
    calibration_reader("all.json", PER_IMAGE),
    *(pose_reader(f"images.{kind}") for kind in ("txt", "bin")),
    pose_reader("poses.tum", TUM),
    pose_reader("poses.txt", KITTI),
    pose_reader("transforms.json", TRANSFORMS),
    pose_reader("gt.json", json.dumps({"images": POSED, "sigma_m": 0.1})),
    pose_reader("places.csv", TABLE),
    Reader("settings", make_settings, lambda path: read_config(path, PRESETS["fast"])),
    *(depth_reader(name) for name in ("1.npy", "1.npz", "points.npz", "1.png", "1.tif")),
    Reader("features", lambda folder: make_matches(folder)[0], read_damaged_matches),
    Reader("matches", lambda folder: make_matches(folder)[1], read_damaged_matches),
    Reader("sidecar", make_sidecar, read_damaged_sidecar),
    Reader("cache", make_entry, read_damaged_entry),
    Reader("times", make_times, read_damaged_times),
    Reader("ply", make_ply, read_ply),
    Reader("aligned depth", make_depth, read_depth),
    *(
        scene_reader(f"sparse/0/{name}.bin", read_scenes)
        for name in ("cameras", "images", "points3D", "rigs", "frames")
    ),
    *(scene_reader(f"sparse/0/{name}.bin", export_all) for name in ("cameras", "images", "points3D")),
    *(
        Reader(f"text model {name}", lambda folder, name=name: make_text_model(folder) / f"{name}.txt", parent_model)
        for name in ("cameras", "images", "points3D", "rigs", "frames")
    ),
    scene_reader("depth/1.npz", export_all),
    scene_reader("images/1.jpg", export_all),
    scene_reader("report.json", export_without_an_image),
    scene_reader("report.json", write_report),
    scene_reader("report.json", lambda folder: read_exhibit(folder, 100)),
    scene_reader("sparse/0/points3D.bin", write_report),
)
