"""Known intrinsics: COLMAP's files written by COLMAP itself, JSON, other resolutions, and what is wrong with a file."""

import json
from pathlib import Path

import pytest

from mbasfm.errors import InputError
from mbasfm.io.calibration import KnownCamera, read_calibration
from mbasfm.io.colmap import COLMAP_MODELS, COLMAP_PARAMETERS
from mbasfm.types.observations import Photo

FOX = Path(__file__).parents[2] / "shared" / "data" / "ngp_fox" / "gt.json"
OPENCV = (500.0, 510.0, 320.0, 240.0, 0.1, -0.02, 0.001, 0.002)
PARAMETERS = {
    "SIMPLE_PINHOLE": (500.0, 320.0, 240.0),
    "PINHOLE": OPENCV[:4],
    "SIMPLE_RADIAL": (500.0, 320.0, 240.0, 0.1),
    "RADIAL": (500.0, 320.0, 240.0, 0.1, -0.02),
    "OPENCV": OPENCV,
}
EXPECTED = {
    "SIMPLE_PINHOLE": ((500.0, 500.0), (0.0, 0.0, 0.0, 0.0)),
    "PINHOLE": ((500.0, 510.0), (0.0, 0.0, 0.0, 0.0)),
    "SIMPLE_RADIAL": ((500.0, 500.0), (0.1, 0.0, 0.0, 0.0)),
    "RADIAL": ((500.0, 500.0), (0.1, -0.02, 0.0, 0.0)),
    "OPENCV": ((500.0, 510.0), (0.1, -0.02, 0.001, 0.002)),
}
EVERY_MODEL = [(model, 640, 480, values) for model, values in PARAMETERS.items()]


def photo(name: str, width: int = 640, height: int = 480) -> Photo:
    return Photo(name, Path(name), width, height, None, "", "0")


def write_colmap(folder: Path, cameras: list, images: dict[str, int], form: str) -> Path:
    """A model written by COLMAP. ``cameras``: model, width, height, parameters; ``images``: name to camera 1, 2 ..."""
    pycolmap = pytest.importorskip("pycolmap")
    model = pycolmap.Reconstruction()
    for number, (name, width, height, values) in enumerate(cameras, start=1):
        camera = pycolmap.Camera(camera_id=number, model=name, width=width, height=height, params=list(values))
        model.add_camera_with_trivial_rig(camera)
    for number, (name, camera_id) in enumerate(images.items(), start=1):
        points = pycolmap.Point2DList([pycolmap.Point2D([1.0, 2.0])] * (number - 1))  # the first image has none
        image = pycolmap.Image(name=name, camera_id=camera_id, image_id=number, points2D=points)
        model.add_image_with_trivial_frame(image, pycolmap.Rigid3d())
    folder.mkdir(parents=True, exist_ok=True)
    (model.write_text if form == "txt" else model.write_binary)(str(folder))
    return folder / f"cameras.{form}"


def write_text(folder: Path, *lines: str) -> Path:
    path = folder / "cameras.txt"
    path.write_text("# Camera list\n" + "\n".join(lines))
    return path


def write_json(folder: Path, content: object) -> Path:
    path = folder / "calibration.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("form", ["txt", "bin"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_one_camera_of_every_model_is_everybodys(tmp_path, form, name):
    path = write_colmap(tmp_path, [(name, 640, 480, PARAMETERS[name])], {}, form)
    focal, distortion = EXPECTED[name]
    known = KnownCamera(focal, (320.0, 240.0), distortion, "1")
    assert read_calibration(path, [photo("a/1.jpg"), photo("2.jpg")]) == {"a/1.jpg": known, "2.jpg": known}
    assert read_calibration(tmp_path, [photo("2.jpg")]) == {"2.jpg": known}


@pytest.mark.parametrize("form", ["txt", "bin"])
def test_several_cameras_are_told_apart_by_the_images_file(tmp_path, form):
    images = {"a/1.jpg": 1, "my house.jpg": 5, "deep/down/3.jpg": 3, "x/4.jpg": 2, "y/4.jpg": 4}
    path = write_colmap(tmp_path, EVERY_MODEL, images, form)
    photos = [photo(name) for name in ("a/1.jpg", "my house.jpg", "3.jpg", "4.jpg", "other.jpg")]
    found = read_calibration(path, photos)
    # 3.jpg has the only file name of its kind; 4.jpg could be either of two; other.jpg is not in the model.
    assert {name: camera.camera_id for name, camera in found.items()} == {
        "a/1.jpg": "1",
        "my house.jpg": "5",
        "3.jpg": "3",
    }
    for name, model in (("a/1.jpg", "SIMPLE_PINHOLE"), ("my house.jpg", "OPENCV"), ("3.jpg", "SIMPLE_RADIAL")):
        assert (found[name].focal, found[name].distortion) == EXPECTED[model]


@pytest.mark.parametrize("form", ["txt", "bin"])
def test_without_the_images_file_the_size_tells(tmp_path, form):
    cameras = [("PINHOLE", 640, 480, OPENCV[:4]), ("PINHOLE", 800, 600, (700.0, 700.0, 400.0, 300.0))]
    path = write_colmap(tmp_path, cameras, {}, form)
    (tmp_path / f"images.{form}").unlink()
    found = read_calibration(path, [photo("1.jpg"), photo("2.jpg", 800, 600)])
    assert (found["1.jpg"].camera_id, found["2.jpg"].camera_id) == ("1", "2")
    with pytest.raises(InputError, match="0 of its 2 cameras have the 320 x 240 px of 3.jpg; put .*images.txt"):
        read_calibration(path, [photo("3.jpg", 320, 240)])


def test_a_size_that_two_cameras_have_tells_nothing(tmp_path):
    path = write_text(tmp_path, "1 PINHOLE 640 480 500 500 320 240", "2 PINHOLE 640 480 510 510 320 240")
    with pytest.raises(InputError, match="2 of its 2 cameras have the 640 x 480 px of 1.jpg; put .*images.txt"):
        read_calibration(path, [photo("1.jpg")])


def test_both_forms_of_one_model_say_the_same_and_may_be_mixed(tmp_path):
    images = {"1.jpg": 5, "2.jpg": 4}
    text = write_colmap(tmp_path / "text", EVERY_MODEL, images, "txt")
    binary = write_colmap(tmp_path / "binary", EVERY_MODEL, images, "bin")
    photos = [photo("1.jpg"), photo("2.jpg")]
    expected = read_calibration(text, photos)
    assert read_calibration(binary, photos) == expected
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "cameras.txt").write_bytes(text.read_bytes())
    (tmp_path / "mixed" / "images.bin").write_bytes((tmp_path / "binary" / "images.bin").read_bytes())
    assert read_calibration(tmp_path / "mixed", photos) == expected


def test_model_names_and_parameters_are_colmaps():
    pycolmap = pytest.importorskip("pycolmap")
    numbers = {name: int(kind.value) for name, kind in pycolmap.CameraModelId.__members__.items()}
    assert all(numbers.get(name, number) == number for number, name in enumerate(COLMAP_MODELS))
    for name, parameters in COLMAP_PARAMETERS.items():
        camera = pycolmap.Camera(model=name, width=2, height=2, params=[1.0] * len(parameters))
        assert camera.verify_params()


def test_intrinsics_follow_the_resolution(tmp_path):
    """Half the size, rounded up in height: a pixel keeps its ray, and distortion has no unit."""
    path = write_text(tmp_path, "1 OPENCV 640 481 " + " ".join(map(str, OPENCV)))
    camera = read_calibration(path, [photo("1.jpg", 320, 241)])["1.jpg"]
    assert camera.focal == pytest.approx((250, 510 * 241 / 481))
    assert camera.center == pytest.approx((160, 240 * 241 / 481))
    assert camera.distortion == OPENCV[4:]


@pytest.mark.parametrize("size, advice", [((640, 640), "without cropping"), ((480, 640), "upright")])
def test_another_shape_is_refused(tmp_path, size, advice):
    path = write_text(tmp_path, "1 PINHOLE 640 480 500 500 320 240")
    with pytest.raises(
        InputError, match=f"1.jpg is calibrated at 640 x 480 px, but .* {size[0]} x {size[1]} px.*{advice}"
    ):
        read_calibration(path, [photo("1.jpg", *size)])


@pytest.mark.parametrize(
    "content, focal, center",
    [
        ({"focal": 600}, (600, 600), (320, 240)),
        ({"fx": 600}, (600, 600), (320, 240)),
        ({"fx": 600, "fy": 610, "cx": 321, "cy": 239, "k1": 0.1}, (600, 610), (321, 239)),
        ({"fx": 600, "fy": 610, "cx": 300, "cy": 200, "width": 320, "height": 240}, (1200, 1220), (600, 400)),
        ({"focal": 300, "width": 320, "height": 240}, (600, 600), (320, 240)),
        ({"focal": 600, "k1": None}, (600, 600), (320, 240)),
    ],
)
def test_json_for_every_photograph(tmp_path, content, focal, center):
    found = read_calibration(write_json(tmp_path, content), [photo("1.jpg"), photo("b/2.jpg")])
    distortion = ((content.get("k1") or 0.0), 0.0, 0.0, 0.0)
    known = KnownCamera(tuple(map(float, focal)), tuple(map(float, center)), distortion, "1")
    assert found == {"1.jpg": known, "b/2.jpg": known}


def test_json_for_each_photograph(tmp_path):
    content = {
        "note": "more than is asked for does no harm",
        "images": {
            "a/1.jpg": {"K": [600, 610, 320, 240], "width": 640, "height": 480, "R": [[1]]},
            "2.jpg": {"fx": 600, "fy": 610, "cx": 320, "cy": 240, "width": 640, "height": 480},
            "3.jpg": {"fx": 700, "fy": 700, "cx": 320, "cy": 240, "p2": 0.5},
        },
    }
    photos = [photo(name) for name in ("a/1.jpg", "deep/2.jpg", "3.jpg", "4.jpg")]
    found = read_calibration(write_json(tmp_path, content), photos)
    assert {name: camera.camera_id for name, camera in found.items()} == {
        "a/1.jpg": "1",
        "deep/2.jpg": "1",
        "3.jpg": "2",
    }
    assert found["a/1.jpg"].focal == (600, 610) and found["3.jpg"].distortion == (0, 0, 0, 0.5)


def test_a_file_name_that_two_photographs_have_is_nobodys(tmp_path):
    path = write_json(tmp_path, {"images": {"1.jpg": {"focal": 600}, "2.jpg": {"focal": 700}}})
    photos = [photo(name) for name in ("a/1.jpg", "b/1.jpg", "b/2.jpg")]
    assert set(read_calibration(path, photos)) == {"b/2.jpg"}


@pytest.mark.parametrize(
    "line, message",
    [
        (
            "1 FOV 640 480 500 500 320 240 0.1",
            "line 2: camera model FOV is none .* undistort",
        ),
        ("1 PINHOLE 640 480 500 320 240", "line 2: PINHOLE has 4 parameters .*, not 3"),
        ("1 PINHOLE 640 480 500 abc 320 240", "line 2: not 'CAMERA_ID MODEL WIDTH HEIGHT PARAMS'"),
        ("1 PINHOLE", "line 2: not 'CAMERA_ID MODEL WIDTH HEIGHT PARAMS'"),
        ("1 PINHOLE 640 480 -500 500 320 240", "line 2: .*positive focal lengths"),
        ("1 PINHOLE 640 480 500 500 nan 240", "line 2: needs finite numbers"),
        ("1 PINHOLE 0 480 500 500 320 240", "line 2: width and height must be positive"),
        ("", "no camera in it"),
    ],
)
def test_what_is_wrong_with_a_text_file(tmp_path, line, message):
    with pytest.raises(InputError, match=message):
        read_calibration(write_text(tmp_path, line), [photo("1.jpg")])


def test_what_is_wrong_with_an_images_file(tmp_path):
    path = write_text(tmp_path, "1 PINHOLE 640 480 500 500 320 240", "2 PINHOLE 640 480 510 510 320 240")
    images = tmp_path / "images.txt"
    images.write_text("1 1 0 0 0 0 0 0 7 1.jpg\n\n")
    with pytest.raises(InputError, match="1.jpg has camera 7, which is not in cameras.txt"):
        read_calibration(path, [photo("1.jpg")])
    images.write_text("# list\n1 1 0 0 0 0 0 0 1\n\n")
    with pytest.raises(InputError, match="images.txt, line 2: not 'IMAGE_ID"):
        read_calibration(path, [photo("1.jpg")])
    images.write_text("1 1 0 0 0 0 0 0 1 old.jpg\n\n")
    with pytest.raises(InputError, match="none of the photographs is in it; it lists old.jpg, a photograph is 1.jpg"):
        read_calibration(path, [photo("1.jpg")])


def test_what_is_wrong_with_a_binary_file(tmp_path):
    path = write_colmap(tmp_path, EVERY_MODEL, {"1.jpg": 1}, "bin")
    images = tmp_path / "images.bin"
    images.write_bytes(images.read_bytes()[:-12])
    with pytest.raises(InputError, match="images.bin: cut off"):
        read_calibration(path, [photo("1.jpg")])
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="cameras.bin: cut off"):
        read_calibration(path, [photo("1.jpg")])
    write_colmap(tmp_path, [("FOV", 640, 480, (500.0, 500.0, 320.0, 240.0, 0.1))], {}, "bin")
    with pytest.raises(InputError, match="camera 1: camera model FOV is none of .* undistort"):
        read_calibration(path, [photo("1.jpg")])
    path.write_bytes(b"\1" + bytes(7) + b"\1\0\0\0" + b"\xff" * 200)
    with pytest.raises(InputError, match="camera 1: camera model number -1"):
        read_calibration(path, [photo("1.jpg")])


@pytest.mark.parametrize(
    "content, message",
    [
        ([1, 2], "must be an object"),
        ({"cx": 320}, "no focal length; give fx, fy, cx, cy"),
        ({"focal": "600"}, "f must be a number, not '600'"),
        ({"fx": 600, "cx": 320}, "only one of cx and cy"),
        ({"fx": 600, "k3": 0.1}, "k3, k4, k5, k6 are not supported with OPENCV; undistort"),
        ({"fx": 600, "model": "OPENCV_FISHEYE", "p1": 0.1}, "p1, p2 are not supported with OPENCV_FISHEYE; undistort"),
        ({"fx": 600, "model": "FOV"}, "model 'FOV' is none of OPENCV, OPENCV_FISHEYE"),
        ({"focal": 1200, "cx": 900, "cy": 700}, r"principal point \(900, 700\) is outside .*width and height"),
        ({"images": [1]}, '"images" must map names'),
        ({"images": {}}, "none of the photographs is in it; it lists none"),
        ({"images": {"1.jpg": {"K": [1, 2, 3]}}}, "1.jpg: K must be four numbers"),
    ],
)
def test_what_is_wrong_with_json(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read_calibration(write_json(tmp_path, content), [photo("1.jpg")])


def test_files_that_are_no_calibration(tmp_path):
    with pytest.raises(InputError, match="does not exist; give COLMAP's cameras.txt"):
        read_calibration(tmp_path / "nowhere.txt", [photo("1.jpg")])
    with pytest.raises(InputError, match="neither cameras.bin nor cameras.txt"):
        read_calibration(tmp_path, [photo("1.jpg")])
    (tmp_path / "cameras.xml").write_text("<a/>")
    with pytest.raises(InputError, match="not a calibration; give COLMAP's"):
        read_calibration(tmp_path / "cameras.xml", [photo("1.jpg")])
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        read_calibration(tmp_path / "broken.json", [photo("1.jpg")])
    (tmp_path / "cameras.txt").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match="cannot be read as text"):
        read_calibration(tmp_path, [photo("1.jpg")])


@pytest.mark.skipif(not FOX.is_file(), reason="needs the shared photographs")
def test_ground_truth_of_real_photographs_is_a_calibration():
    entries = json.loads(FOX.read_text())["images"]
    photos = [photo(name, entry["width"] * 2, entry["height"] * 2) for name, entry in entries.items()]
    found = read_calibration(FOX, photos)
    assert set(found) == set(entries) and {camera.camera_id for camera in found.values()} == {"1"}
    assert found["0001.jpg"].focal == pytest.approx([2 * value for value in entries["0001.jpg"]["K"][:2]])
