"""Priors of camera positions and orientations, such as GPS, in a world of their own.

That world and the one being adjusted differ by a similarity, which is fitted anew whenever priors are evaluated. So
priors never fight over origin, size or heading, only shape; and at the minimum over similarities, how the similarity
itself moves makes no difference to the gradient. Priors that most others contradict count little (Cauchy).
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mbasfm.geometry.rigid import camera_centers
from mbasfm.geometry.similarity import Pairs, Similarity, fit_similarity, start_similarity
from mbasfm.types.cameras import Cameras

CAUCHY = 3.0
"""Standard deviations at which a prior begins to lose influence."""
ROUNDS, SETTLED = 30, 1e-9
"""Largest number of rounds of the similarity's fit, and the change of weights at which it ends."""
MIN_POSITIONS, MIN_POSES = 3, 2
"""Least number of priors that constrain a component's shape: positions alone, or with orientations."""


@dataclass(frozen=True)
class PosePriors:
    """Priors of the poses of some frames, in the priors' own world."""

    frame: Int[Tensor, " M"]
    cam_from_world: Float[Tensor, "M 3 4"]
    """Poses; where only the position is known, any pose at that position."""
    sigma: Float[Tensor, " M"]
    """Standard deviation of the position along each axis [priors' unit of length]."""
    sigma_turn: Float[Tensor, " M"]
    """Standard deviation of the rotation about each axis [rad]; infinite where unknown."""

    def of(self, chosen: Bool[Tensor, " N"]) -> "PosePriors | None":
        """Priors of the chosen frames, or None if they are too few to place them."""
        mine = chosen[self.frame]
        few = MIN_POSES if bool(self.sigma_turn[mine].isfinite().any()) else MIN_POSITIONS
        if int(mine.sum()) < few:
            return None
        return PosePriors(self.frame[mine], self.cam_from_world[mine], self.sigma[mine], self.sigma_turn[mine])

    def pairs(self, cam_from_world: Float[Tensor, "N 3 4"]) -> Pairs:
        """The same cameras in the given world and in the priors' own."""
        pairs = Pairs.of_poses(cam_from_world[self.frame], self.cam_from_world)
        return pairs if bool(self.sigma_turn.isfinite().any()) else replace(pairs, source_axes=None, target_axes=None)

    def similarity(self, cam_from_world: Float[Tensor, "N 3 4"]) -> tuple[Similarity, Float[Tensor, " M"]]:
        """Similarity from the given world to that of the priors, and the weight of each prior in it (0 to 1)."""
        pairs = self.pairs(cam_from_world)
        found = start_similarity(pairs, self.sigma)
        before = torch.zeros_like(self.sigma)
        for _ in range(ROUNDS):
            weight = 1 / (1 + self._squared_errors(cam_from_world, found) / CAUCHY**2)
            if float((weight - before).abs().max()) < SETTLED:
                break
            before = weight
            fit = fit_similarity(pairs, weight / self.sigma.square(), weight / (2 * self.sigma_turn.square()))
            found = Similarity(*fit)
        return found, weight

    def _squared_errors(self, cam_from_world: Float[Tensor, "N 3 4"], prior_from_world: Similarity) -> Tensor:
        distance, turn = self._errors(cam_from_world, prior_from_world)
        angle = (3 - turn.diagonal(dim1=-2, dim2=-1).sum(-1)).clamp_min(0)  # 2 - 2 cos(angle)
        return distance.square().sum(-1) / self.sigma.square() + angle / self.sigma_turn.square()

    def _errors(
        self, cam_from_world: Float[Tensor, "N 3 4"], prior_from_world: Similarity
    ) -> tuple[Float[Tensor, "M 3"], Float[Tensor, "M 3 3"]]:
        """Offset of positions in the priors' world, and rotation from each prior camera to the present one."""
        pose = cam_from_world[self.frame]
        offset = prior_from_world.points(camera_centers(pose)) - camera_centers(self.cam_from_world)
        turn = pose[..., :3] @ prior_from_world.rigid[:, :3].T @ self.cam_from_world[..., :3].mT
        return offset, turn

    def evaluate(self, cam_from_world: Float[Tensor, "N 3 4"]) -> tuple[float, Tensor, Tensor]:
        """Loss, gradient and diagonal of the Hessian in the twists (omega, tau) of all frames, T <- exp(xi) T.

        All priors must be of one component. A twist moves the centre by -R^T tau, so the Hessian is diagonal.
        """
        found, weight = self.similarity(cam_from_world)
        offset, turn = self._errors(cam_from_world, found)
        loss = 0.5 * CAUCHY**2 * (self._squared_errors(cam_from_world, found) / CAUCHY**2).log1p().sum()
        to_camera = cam_from_world[self.frame, :, :3] @ found.rigid[:, :3].T
        by_tau = -found.scale * (to_camera @ offset[..., None]).squeeze(-1)
        skew = (turn - turn.mT) / 2
        by_omega = torch.stack([skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0]], -1)
        turn_weight, weight = weight / self.sigma_turn.square(), weight / self.sigma.square()
        gradient, diagonal = (torch.zeros(len(cam_from_world), 6, dtype=torch.float64) for _ in range(2))
        gradient[self.frame] = torch.cat([turn_weight[:, None] * by_omega, weight[:, None] * by_tau], -1)
        curvature = torch.stack([turn_weight, weight * found.scale.square()], -1)
        diagonal[self.frame] = curvature.repeat_interleave(3, -1)
        return float(loss), gradient, diagonal


def anchor(cameras: Cameras, component: Int[Tensor, " N"], priors: PosePriors) -> tuple[Cameras, Float[Tensor, " N"]]:
    """Cameras in the world of their priors, component by component, and the factor by which each grew."""
    growth = torch.ones(cameras.num_frames, dtype=torch.float64)
    for number in component[component >= 0].unique():
        chosen = component == number
        mine = priors.of(chosen)
        if mine is not None:
            found, _ = mine.similarity(cameras.cam_from_world)
            cameras = found.cameras(cameras, chosen)
            growth[chosen] = found.scale
    return cameras, growth
