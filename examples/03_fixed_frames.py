"""Re-localization: find new frames in a map. Map frames keep poses, focal and depth; only the others move.

There is no special call: ``Fixed`` says which unknowns of which frames must not change.

Run: python examples/03_fixed_frames.py [number of frames]
"""

import sys
from dataclasses import replace

import torch

from mbasfm import SPLIT_STAGES, Fixed, adjust
from mbasfm.geometry.rigid import camera_centers, rotation_angle
from mbasfm.synthetic.cameras import perturb, scene_size
from mbasfm.synthetic.problem import make_problem


def main(num_frames: int = 16) -> None:
    problem = make_problem(num_frames, seed=1)
    truth, size = problem.truth, scene_size(problem.scene, problem.truth)
    is_map = torch.arange(num_frames) % 3 != 1

    moved = perturb(truth, seed=1, rotation_deg=10.0, translation=0.1 * size)
    start = replace(
        truth,
        cam_from_world=torch.where(is_map[:, None, None], truth.cam_from_world, moved.cam_from_world),
        depth_scale=torch.where(is_map, truth.depth_scale, 1.0),
        depth_shift=torch.where(is_map, truth.depth_shift, 0.0),
    )
    everyone = torch.ones(num_frames, dtype=torch.bool)
    fixed = Fixed(pose=is_map, focal=everyone, radial=everyone, scale=is_map, shift=is_map)
    result = adjust(start, problem.samples, SPLIT_STAGES, fixed)

    # The map holds the world in place: errors need no alignment.
    for name, cameras in (("start", start), ("found", result.cameras)):
        turned = cameras.cam_from_world[..., :3] @ truth.cam_from_world[..., :3].mT
        rotation = rotation_angle(turned)[~is_map].rad2deg().median()
        offset = camera_centers(cameras.cam_from_world) - camera_centers(truth.cam_from_world)
        distance = offset[~is_map].norm(dim=-1).median()
        print(f"{name}: {int((~is_map).sum())} query frames, median {rotation:.3f} deg, {100 * distance:.2f} cm")
    same = torch.equal(result.cameras.cam_from_world[is_map], truth.cam_from_world[is_map])
    print(f"map frames unchanged to the last bit: {same}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
