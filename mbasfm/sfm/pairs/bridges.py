"""What joins two groups of photographs must itself be beyond doubt; otherwise they stay two."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.spatial.transform import Rotation

from mbasfm.estimators.chance import MAX_LOG10_FALSE_ALARMS
from mbasfm.sfm.pairs.judge import Verdict
from mbasfm.sfm.pairs.pose_graph import MAX_TRIPLET_ERROR_DEG, find_groups
from mbasfm.sfm.start.averaging import average_rotations
from mbasfm.types.outcome import Bridge
from mbasfm.types.pairs import TwoView

PROOF_LOG10 = -MAX_LOG10_FALSE_ALARMS
"""Odds from which a pair is beyond doubt, whatever it joins."""
PROOF_OF_ONE_LOG10, ONE_WITNESS_LOG10 = 1.0, 1.0
"""Odds from which one photograph is joined; the more are at stake, the better they must be. Where depth does not speak
for it there is one witness only, and that much more is needed."""
MAX_DEPTH_LOG10_AGAINST = 1.0
"""A pair that depth speaks against by more proves nothing alone."""
AGREEMENT_LOG10 = 1.3
"""What each further pair adds that turns one group against the other as the first does. Wrong pairs do so at most once
in 20 times (pairs of unrelated photographs: once in 300)."""


@dataclass(frozen=True)
class Joined:
    """Pairs without those that would join groups on too little evidence."""

    views: list[TwoView]
    cut: tuple[Bridge, ...]


def cut_weak_bridges(views: Sequence[TwoView], verdict: Verdict, num_frames: int) -> Joined:
    """Join frames by pairs beyond doubt, then groups by pairs that agree; what joins nothing that is proven is cut."""
    odds = np.array([verdict.log10_odds[view.i, view.j] for view in views])
    depth = np.array([verdict.log10_depth[view.i, view.j] for view in views])
    contested = depth < -MAX_DEPTH_LOG10_AGAINST
    groups = _Groups(views, (odds >= PROOF_LOG10) & ~contested, num_frames)
    prior = float(np.log10(verdict.law.right_share / (1 - verdict.law.right_share)))
    ratio = np.where(contested, np.minimum(odds - prior, 0.0), odds - prior)
    candidates = groups.candidates(ratio, depth, prior)
    while any(candidate.margin >= 0 for candidate in candidates):
        groups.join_best(candidates)
        candidates = groups.candidates(ratio, depth, prior)
    kept = [view for view in views if groups.label[view.i] == groups.label[view.j]]
    return Joined(kept, tuple(groups.bridge(candidate) for candidate in candidates))


@dataclass(frozen=True)
class _Candidate:
    groups: tuple[int, int]
    """The lower number first."""
    pairs: Int64[np.ndarray, " C"]
    agrees: Bool[np.ndarray, " C"]
    turns: Float64[np.ndarray, "C 3 3"]
    """Rotation from the world of the lower group to that of the higher, by each pair."""
    log10_odds: float
    needed_log10_odds: float

    @property
    def margin(self) -> float:
        return self.log10_odds - self.needed_log10_odds


class _Groups:
    """Groups of frames that surely belong together, with rotations in a world of their own."""

    def __init__(self, views: Sequence[TwoView], sure: Bool[np.ndarray, " P"], num_frames: int):
        self._ends = np.array([(view.i, view.j) for view in views], dtype=np.int64).reshape(-1, 2)
        self._relative = np.stack([view.j_from_i[:, :3] for view in views]) if views else np.zeros((0, 3, 3))
        certain = [views[number] for number in np.flatnonzero(sure).tolist()]
        self.label = find_groups(certain, num_frames)
        self._sizes = np.bincount(self.label, minlength=num_frames)
        self._rotation = average_rotations(certain, num_frames) if certain else np.tile(np.eye(3), (num_frames, 1, 1))

    def candidates(
        self, log10_ratio: Float64[np.ndarray, " P"], log10_depth: Float64[np.ndarray, " P"], prior: float
    ) -> list[_Candidate]:
        """For each two groups with pairs between them, the evidence that they belong together."""
        low, high = np.sort(self.label[self._ends], axis=1).T
        crossing = np.flatnonzero(low != high)
        key = (low * len(self.label) + high)[crossing]
        order = np.argsort(key, kind="stable")
        parts = np.split(crossing[order], np.flatnonzero(np.diff(key[order])) + 1)
        return [self._candidate(part, log10_ratio[part], log10_depth[part], prior) for part in parts if len(part)]

    def _candidate(
        self,
        pairs: Int64[np.ndarray, " C"],
        log10_ratio: Float64[np.ndarray, " C"],
        log10_depth: Float64[np.ndarray, " C"],
        prior: float,
    ) -> _Candidate:
        """The set of pairs that agree on one rotation between two groups and is most likely right."""
        i, j = self._ends[pairs].T
        turns = self._rotation[j].swapaxes(1, 2) @ self._relative[pairs] @ self._rotation[i]
        upwards = self.label[i] < self.label[j]
        turns = np.where(upwards[:, None, None], turns, turns.swapaxes(1, 2))
        cosine = (np.einsum("axy,bxy->ab", turns, turns) - 1) / 2
        agrees = cosine > np.cos(np.deg2rad(MAX_TRIPLET_ERROR_DEG))
        total = agrees @ log10_ratio + AGREEMENT_LOG10 * (agrees.sum(1) - 1) + prior
        best = int(total.argmax())
        low, high = np.sort(self.label[self._ends[pairs[0]]]).tolist()
        at_stake = min(self._sizes[low], self._sizes[high])
        needed = PROOF_OF_ONE_LOG10 + float(np.log10(at_stake))
        needed += 0.0 if agrees[best] @ log10_depth > 0 else ONE_WITNESS_LOG10
        return _Candidate((low, high), pairs, agrees[best], turns, float(total[best]), needed)

    def join_best(self, candidates: Sequence[_Candidate]) -> None:
        """Join groups that are proven to belong together, the surest first and each once."""
        done: set[int] = set()
        for candidate in sorted(candidates, key=lambda candidate: -candidate.margin):
            if candidate.margin >= 0 and done.isdisjoint(candidate.groups):
                done.update(candidate.groups)
                self._join(candidate)

    def _join(self, candidate: _Candidate) -> None:
        """Turn one group into the world of the other, and make them one."""
        low, high = candidate.groups
        high_from_low = Rotation.from_matrix(candidate.turns[candidate.agrees]).mean().as_matrix()
        members = self.label == high
        self._rotation[members] = self._rotation[members] @ high_from_low
        self.label[members] = low
        self._sizes[low] += self._sizes[high]

    def bridge(self, candidate: _Candidate) -> Bridge:
        """What to tell about groups that were not joined."""
        first, second = (tuple(np.flatnonzero(self.label == group).tolist()) for group in candidate.groups)
        pairs = tuple((i, j) for i, j in self._ends[candidate.pairs].tolist())
        odds = candidate.log10_odds, candidate.needed_log10_odds
        return Bridge((first, second), pairs, int(candidate.agrees.sum()), *odds)
