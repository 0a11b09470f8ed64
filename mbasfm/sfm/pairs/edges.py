"""From matches to the edges of the pose graph: pairs that can be verified, are believed and see enough in common."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from scipy.spatial.transform import Rotation

from mbasfm.config import BENT, LensKind, Tree
from mbasfm.estimators.two_view import (
    FEWEST_INLIERS,
    MAX_LOG10_FALSE_ALARMS,
    inherit,
    pack,
    propose,
    stands_alone,
    unpack,
)
from mbasfm.io.files import active_cache
from mbasfm.matching.inference import shared_in_parallel
from mbasfm.runtime.progress import each
from mbasfm.sfm.intrinsics import StartIntrinsics, lenses_of, search_lens, with_searched_focal
from mbasfm.sfm.pairs.doubts import SecondOpinion, Sights, leave_out_lookalikes
from mbasfm.sfm.pairs.judge import DepthWitness, Verdict, judge_pairs
from mbasfm.sfm.pairs.pose_graph import (
    MAX_TRIPLET_ERROR_DEG,
    agree_with,
    choose_answers,
    drop_inconsistent,
    find_groups,
    select_edges,
)
from mbasfm.sfm.start.averaging import average_rotations, rays_of
from mbasfm.types.cameras import Intrinsics
from mbasfm.types.observations import Observations, TwoView
from mbasfm.types.outcome import Bridge

FISHEYE_FOCAL = 0.5
"""Where the search for a fisheye's focal length begins [long sides]."""
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


def verify_pairs(
    observations: Observations, start: StartIntrinsics, lens: LensKind, max_error_px: float
) -> tuple[StartIntrinsics, list[TwoView]]:
    """Keep the pairs whose matches agree with one relative pose; find focal lengths and lenses on the way.

    Among them are pairs that may agree by chance: they do not stand alone and need a second witness.
    """
    if lens in BENT and not bool(start.is_known.all()):
        start = search_lens(observations, _with_focal(observations, start, lens, max_error_px), lens, max_error_px)
    known = ~torch.isnan(start.intrinsics.focal[:, 0])
    found = _Verifier(observations, start.intrinsics, max_error_px).verify(known.numpy())
    views = [view for view in each(found, len(observations.pairs)) if view is not None]
    if not bool(known.all()):
        start = with_searched_focal(start, [view for view in views if stands_alone(view)])
        found = _Verifier(observations, start.intrinsics, max_error_px).calibrate(views)
        views = [view for view in each(found, len(views)) if view is not None]
    return start, views


def _with_focal(
    observations: Observations, start: StartIntrinsics, lens: LensKind, max_error_px: float
) -> StartIntrinsics:
    """Some focal length for every frame to begin the search for a lens with."""
    old = start.intrinsics
    known = ~torch.isnan(old.focal[:, 0])
    if bool(known.all()):
        return start
    if lens == "fisheye":
        guess = FISHEYE_FOCAL * old.sizes.amax(-1, keepdim=True).double()
        return replace(start, intrinsics=replace(old, focal=torch.where(known[:, None], old.focal, guess)))
    views = _Verifier(observations, old, max_error_px).verify(known.numpy())
    return with_searched_focal(start, [view for view in views if view is not None and stands_alone(view)])


class _Verifier:
    """Two-view geometry of all pairs, on all cores, each pair once: what is in the cache is not estimated again."""

    def __init__(self, observations: Observations, intrinsics: Intrinsics, max_error_px: float):
        self._observations, self._lenses, self._cache = observations, lenses_of(intrinsics), active_cache()
        self._pixels = [points.pixels.astype(np.float64) for points in observations.keypoints]
        self._digests = [_digest(pixels) for pixels in self._pixels]
        self._max_error_px = max_error_px

    def verify(self, known: Bool[np.ndarray, " N"]) -> Iterator[TwoView | None]:
        """Every pair, by its pose where both focal lengths are known; None where matches are no more than chance."""

        def work(number: int) -> TwoView | None:
            i, j = self._observations.pairs[number].tolist()
            return self._verify((i, j), self._observations.matches[number], bool(known[i] and known[j]))

        return shared_in_parallel(work, range(len(self._observations.pairs)))

    def calibrate(self, views: Sequence[TwoView]) -> Iterator[TwoView | None]:
        """Give pairs that were verified without focal length their pose, now that it is known."""

        def work(view: TwoView) -> TwoView | None:
            if not np.isnan(view.j_from_i).any():
                return view
            found = self._verify((view.i, view.j), view.matches, True)
            return None if found is None else inherit(found, view)

        return shared_in_parallel(work, views)

    def _verify(self, ends: tuple[int, int], matches: Int64[np.ndarray, "M 2"], calibrated: bool) -> TwoView | None:
        if len(matches) < FEWEST_INLIERS:
            return None
        (i, j), lenses, pixels = ends, self._lenses, self._pixels

        def compute() -> dict[str, np.ndarray]:
            return pack(propose(ends, (pixels[i], pixels[j]), matches, (lenses[i], lenses[j]), *how))

        how = self._max_error_px, calibrated
        given = [lenses[end].camera() if calibrated else lenses[end].size.tolist() for end in ends]
        key = f"verified-2|{self._digests[i]}|{self._digests[j]}|{_digest(matches)}|{given}|{how}"
        return unpack(ends, self._cache.get(key, compute))


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@dataclass(frozen=True)
class Joined:
    """Pairs without those that would join groups on too little evidence."""

    views: list[TwoView]
    cut: tuple[Bridge, ...]


def beyond_doubt(views: Sequence[TwoView], verdict: Verdict) -> Bool[np.ndarray, " P"]:
    """Which pairs prove what they join."""
    odds, depth = _odds(views, verdict)
    return (odds >= PROOF_LOG10) & (depth >= -MAX_DEPTH_LOG10_AGAINST)


def _odds(views: Sequence[TwoView], verdict: Verdict) -> tuple[Float64[np.ndarray, " P"], Float64[np.ndarray, " P"]]:
    """Log10 odds that pairs are right, and what depth has added to them."""
    pairs = [(view.i, view.j) for view in views]
    columns = ([known[pair] for pair in pairs] for known in (verdict.log10_odds, verdict.log10_depth))
    odds, depth = (np.array(column, dtype=np.float64) for column in columns)
    return odds, depth


def cut_weak_bridges(views: Sequence[TwoView], verdict: Verdict, num_frames: int) -> Joined:
    """Join frames by pairs beyond doubt, then groups by pairs that agree; what joins nothing that is proven is cut."""
    odds, depth = _odds(views, verdict)
    contested = depth < -MAX_DEPTH_LOG10_AGAINST
    groups = _Groups(views, beyond_doubt(views, verdict), num_frames)
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


@dataclass(frozen=True)
class Trust:
    """Pairs that are believed, and what was said about the others."""

    views: list[TwoView]
    verdict: Verdict
    lookalikes: list[TwoView]
    """Pairs that would show the same point in two places."""
    inconsistent: list[TwoView]
    """Pairs that disagree in most of their triangles."""
    cut: tuple[Bridge, ...]
    """Pairs that would join groups on too little evidence."""

    def facts(self) -> dict[str, int]:
        """Counts for the report."""
        weak = sum(not stands_alone(view) for view in self.views)
        counts = {"reversed": self.verdict.reversed, "doubtful": self.verdict.doubtful, "turned": self.verdict.turned}
        counts |= {"weak": weak, "lookalike": len(self.lookalikes), "inconsistent": len(self.inconsistent)}
        return {**counts, "kept_apart": len(self.cut)}


def trust_pairs(
    views: Sequence[TwoView],
    observations: Observations,
    intrinsics: Intrinsics,
    rays: Sequence[Float64[np.ndarray, "_ 3"]],
    max_error_px: float,
) -> Trust:
    """Ask depth, then the pairs that match all they should, then triangles, then what every pair joins."""
    focal = intrinsics.reference_focal.double().numpy()
    sizes, num_frames = intrinsics.sizes.numpy(), len(rays)
    witness = DepthWitness(observations.keypoints, observations.depths, sizes, rays, focal)
    verdict = judge_pairs(SecondOpinion(observations, intrinsics, max_error_px).ask(views, witness), witness)
    believed = choose_answers(verdict.views, num_frames)
    sights = Sights(observations.keypoints, rays, intrinsics, observations.is_disparity)
    believed, lookalikes = leave_out_lookalikes(believed, beyond_doubt(believed, verdict), sights)
    kept, wrong = drop_inconsistent(believed, num_frames)
    joined = cut_weak_bridges(kept, verdict, num_frames)
    return Trust(joined.views, verdict, lookalikes, wrong, joined.cut)


@dataclass(frozen=True)
class Graph:
    """Pairs that are edges, and what was said about the others."""

    views: list[TwoView]
    trust: Trust | None = None
    """None where pairs were not judged."""

    def facts(self) -> dict[str, int]:
        """Counts for the report; none where pairs were not judged."""
        return {} if self.trust is None else self.trust.facts()

    @property
    def kept_apart(self) -> tuple[Bridge, ...]:
        """Groups that were not joined, as the pairs between them are not beyond doubt."""
        return () if self.trust is None else self.trust.cut

    @property
    def lookalikes(self) -> tuple[tuple[int, int], ...]:
        """Pairs that match but show different places."""
        return () if self.trust is None else tuple((view.i, view.j) for view in self.trust.lookalikes)


def build_graph(
    verified: Sequence[TwoView],
    observations: Observations,
    intrinsics: Intrinsics,
    tree: Tree,
    min_covisibility: float,
    max_error_px: float,
) -> Graph:
    """The edges: pairs that are believed, agree with averaged rotations and see enough in common.

    The paper's tree takes every pair that stands alone.
    """
    num_frames, trust = len(observations.photos), None
    views = [view for view in verified if stands_alone(view)]
    if tree == "consistent" and verified:
        rays = rays_of(observations.keypoints, intrinsics)
        trust = trust_pairs(verified, observations, intrinsics, rays, max_error_px)
        views = agree_with(trust.views, average_rotations(trust.views, num_frames), rays) if trust.views else []
    return Graph(select_edges(views, num_frames, min_covisibility), trust)
