"""Other losses and solvers: a variation of a stage is another ``Stage`` value, made with ``dataclasses.replace``.

After one common coarse stage, the fine stage runs with the marginalized loss and with classical robust losses, each
by Levenberg-Marquardt (lm) and by Adam, which is the paper's recipe.

Run: python examples/04_rival_losses.py [number of frames [steps of adam]]
"""

import sys
import time
from dataclasses import replace

from mbasfm import COARSE, FINE, adjust, pose_auc
from mbasfm.synthetic.cameras import perturb, scene_size
from mbasfm.synthetic.problem import Settings, make_problem

LOSSES = ("mba", "cauchy", "tukey", "truncated_l1")


def main(num_frames: int = 10, adam_steps: int = 150) -> None:
    problem = make_problem(num_frames, seed=0, settings=Settings(kind="object", samples_per_edge=100))
    offset = 0.1 * scene_size(problem.scene, problem.truth)
    start = perturb(problem.truth, seed=0, rotation_deg=10.0, translation=offset)
    start = adjust(start, problem.samples, COARSE).cameras
    at_1, at_3, _ = pose_auc(start.cam_from_world, problem.truth.cam_from_world)
    print(f"after coarse         AUC@1 {at_1:.3f}  AUC@3 {at_3:.3f}")
    for loss in LOSSES:
        lm = replace(FINE, name=loss, loss=loss)
        adam = replace(lm, solver="adam", max_steps=adam_steps)
        for stage in (lm, adam):
            begin = time.perf_counter()
            result = adjust(start, problem.samples, stage)
            seconds = time.perf_counter() - begin
            at_1, at_3, _ = pose_auc(result.cameras.cam_from_world, problem.truth.cam_from_world, result.registered)
            steps = f"{len(result.steps)} steps, {seconds:.1f} s"
            print(f"{loss:13s} {stage.solver:5s}  AUC@1 {at_1:.3f}  AUC@3 {at_3:.3f}  {steps}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
