"""How sure is a pose? Covariance and diagnosis of each frame, and what a frame without good matches looks like.

Nothing printed here but the last column needs the truth. Frame 2 gets random matches: it is reported, not raised.

Run: python examples/05_uncertainty.py [number of frames]
"""

import sys
from dataclasses import replace

import torch

from mbasfm import SPLIT_STAGES, adjust
from mbasfm.geometry.rigid import compose, invert, rotation_angle
from mbasfm.synthetic.cameras import perturb, scene_size
from mbasfm.synthetic.problem import make_problem

SPOILED_FRAME = 2


def main(num_frames: int = 12) -> None:
    problem = make_problem(num_frames, seed=0)
    truth, samples = problem.truth, problem.samples
    touches = (samples.edges == SPOILED_FRAME).any(-1)
    data = samples.data.clone()
    data[touches, :, 2:4] = torch.rand(data[touches, :, 2:4].shape, generator=torch.Generator().manual_seed(0)) * 480
    start = perturb(truth, seed=0, rotation_deg=5.0, translation=0.05 * scene_size(problem.scene, truth))
    result = adjust(start, replace(samples, data=data), SPLIT_STAGES)

    # Covariance is relative to the root, the frame that was held: its own is zero.
    sigma_deg = result.pose_covariance[:, :3, :3].diagonal(dim1=-2, dim2=-1).sum(-1).sqrt().rad2deg()
    root = int(sigma_deg.argmin())
    root_from_frame = [compose(c.cam_from_world[root], invert(c.cam_from_world)) for c in (result.cameras, truth)]
    error_deg = rotation_angle(root_from_frame[0][..., :3] @ root_from_frame[1][..., :3].mT).rad2deg()

    print(f"matches are good to {result.diagnosis.match_error_px:.2f} px; frame {root} is the root")
    print("frame  inliers  median px  depth error  sigma deg  true error deg")
    diagnosis = result.diagnosis
    for frame in range(num_frames):
        median = float(diagnosis.residual_quantiles_px[frame, 1])
        row = f"{frame:5d}  {100 * diagnosis.inlier_share[frame]:5.0f} %  {median:9.1f}"
        row += f"  {100 * diagnosis.depth_error[frame]:9.1f} %  {sigma_deg[frame]:9.3f}  {error_deg[frame]:14.3f}"
        print(row if result.registered[frame] else f"{row}\n       not registered: {result.reason[frame]}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
