"""Photographs that already lie in the scene, and masks that come out as they went in."""

import json

import numpy as np
import pycolmap
from made_up import make_lens
from PIL import Image
from test_pipeline import FOCAL, settings, write_scene

from mbasfm import export_scene, reconstruct


def test_photographs_in_the_scene_are_used_in_place_and_survive_a_second_run(tmp_path):
    """The second run goes over a scene whose report may list what was written: never the user's own files."""
    write_scene(tmp_path, alone=1)
    (tmp_path / "depth").rename(tmp_path / "maps")
    before = {path.name: path.read_bytes() for path in (tmp_path / "images").iterdir()}
    config = settings(tmp_path, focal=FOCAL, depth=f"files:{tmp_path / 'maps'}")
    result = reconstruct(tmp_path / "images", tmp_path, config)
    assert result.report.outputs["images"] == ()
    assert {path.name: path.read_bytes() for path in (tmp_path / "images").iterdir()} == before
    names = [frame["file_path"] for frame in json.loads((tmp_path / "transforms.json").read_text())["frames"]]
    assert all((tmp_path / name).is_file() for name in names)
    report = json.loads((tmp_path / "report.json").read_text())
    report["outputs"]["images"] = names  # as if an earlier run had copied them here
    (tmp_path / "report.json").write_text(json.dumps(report))
    reconstruct(tmp_path / "images", tmp_path, config)
    assert {path.name: path.read_bytes() for path in (tmp_path / "images").iterdir()} == before


def test_masks_are_written_undistorted_for_all_as_soon_as_one_has_one(tmp_path):
    write_scene(tmp_path, lens=make_lens(700.0, distortion=(-0.2, 0.0, 0.0, 0.0)), distance=2.6)
    mask = np.full((192, 256), 255, np.uint8)  # a quarter of the photograph's size
    mask[:40] = 0
    mask[:, :30] = 0
    Image.fromarray(mask).save(tmp_path / "images" / "0_1.png.png")
    (tmp_path / "bent.json").write_text(json.dumps({"focal": 700, "k1": -0.2}))
    reconstruct(tmp_path / "images", tmp_path / "out", settings(tmp_path, cameras=str(tmp_path / "bent.json")))
    frames = json.loads((tmp_path / "out" / "transforms.json").read_text())["frames"]
    assert [frame["mask_path"] for frame in frames] == [f"masks/0_{n}.png.png" for n in range(6)]
    masks = [np.asarray(Image.open(tmp_path / "out" / frame["mask_path"])) for frame in frames]
    for frame, found in zip(frames, masks, strict=True):
        with Image.open(tmp_path / "out" / frame["file_path"]) as image:
            assert found.shape == image.size[::-1]
    assert all((found == 255).all() for n, found in enumerate(masks) if n != 1) and set(np.unique(masks[1])) == {0, 255}
    (camera,) = pycolmap.Reconstruction(tmp_path / "out" / "distorted" / "sparse" / "0").cameras.values()
    (pinhole,) = pycolmap.Reconstruction(tmp_path / "out" / "sparse" / "0").cameras.values()
    random = np.random.default_rng(0)
    pixels = random.uniform([0, 0], [pinhole.width, pinhole.height], (500, 2))
    rays = pinhole.cam_from_img(pixels)
    original = camera.img_from_cam(np.column_stack([rays, np.ones(500)])) / 4
    column, row = original.astype(int).clip(0, [255, 191]).T
    agree = (masks[1][pixels[:, 1].astype(int), pixels[:, 0].astype(int)] > 0) == (mask[row, column] > 0)
    assert agree.mean() > 0.98  # the border itself is a pixel wide
    before = (tmp_path / "out" / "transforms.json").read_bytes()
    export_scene(tmp_path / "out", ["nerfstudio"])
    assert (tmp_path / "out" / "transforms.json").read_bytes() == before
