"""Two objectives: the paper's residual mixes match error and depth error, the split residual keeps them apart.

The simulated depth gets worse from row to row. The paper's objective follows it; the split one hardly does.

Run: python examples/02_paper_and_split.py [number of frames]
"""

import sys

from mbasfm import PAPER_STAGES, SPLIT_STAGES, adjust, pose_auc
from mbasfm.synthetic.cameras import perturb, scene_size
from mbasfm.synthetic.depth_errors import DepthError
from mbasfm.synthetic.problem import Settings, make_problem

DEPTH_ERRORS = (0.02, 0.05, 0.15)


def main(num_frames: int = 16) -> None:
    print("depth error   paper: AUC@1  AUC@5   split: AUC@1  AUC@5")
    for depth_error in DEPTH_ERRORS:
        settings = Settings(kind="object", depth_error=DepthError(smooth=depth_error))
        problem = make_problem(num_frames, seed=0, settings=settings)
        offset = 0.1 * scene_size(problem.scene, problem.truth)
        start = perturb(problem.truth, seed=0, rotation_deg=10.0, translation=offset)
        row = [f"{100 * depth_error:9.0f} %"]
        for stages in (PAPER_STAGES, SPLIT_STAGES):
            result = adjust(start, problem.samples, stages)
            estimate, truth = result.cameras.cam_from_world, problem.truth.cam_from_world
            at_1, _, at_5 = pose_auc(estimate, truth, result.registered)
            row.append(f"{at_1:12.3f}  {at_5:5.3f}")
        print("   ".join(row))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
