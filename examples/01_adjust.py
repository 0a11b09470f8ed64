"""Adjust cameras: make a problem with a known answer, start badly, adjust, and measure how good the result is.

Run: python examples/01_adjust.py [number of frames]
"""

import sys

from mbasfm import SPLIT_STAGES, adjust, pose_auc
from mbasfm.synthetic.cameras import perturb, scene_size
from mbasfm.synthetic.problem import make_problem


def main(num_frames: int = 16) -> None:
    problem = make_problem(num_frames, seed=0)
    truth, samples = problem.truth, problem.samples
    print(f"{num_frames} frames, {samples.num_edges} edges, {samples.samples_per_edge} samples on each")

    # 10 degrees and a tenth of the scene off; the focal length is 15 % too long and depth corrections are forgotten.
    offset = 0.1 * scene_size(problem.scene, truth)
    start = perturb(truth, seed=0, rotation_deg=10.0, translation=offset, focal_factor=1.15)
    result = adjust(start, samples, SPLIT_STAGES)

    for name, cameras in (("start", start), ("adjusted", result.cameras)):
        at_1, at_3, at_5 = pose_auc(cameras.cam_from_world, truth.cam_from_world)
        focal = float(cameras.intrinsics.focal[0, 0] / truth.intrinsics.focal[0, 0])
        print(f"{name:9s} AUC@1 {at_1:.3f}  AUC@3 {at_3:.3f}  AUC@5 {at_5:.3f}  focal / true focal {focal:.4f}")
    print(f"{int(result.registered.sum())} frames registered after {len(result.steps)} steps")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
