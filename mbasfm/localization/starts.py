"""Starts for the registration of queries: focal lengths and poses that matches suggest."""

from collections.abc import Sequence

import numpy as np

from mbasfm.estimators.absolute import estimate_focal, pose_from_pair, with_focal
from mbasfm.localization.match_queries import Query
from mbasfm.localization.prepared_map import PreparedMap
from mbasfm.localization.register import Unknown
from mbasfm.sfm.intrinsics import FALLBACK_FOCAL
from mbasfm.types.cameras import Lens


def with_focals(prepared: PreparedMap, queries: Sequence[Query], lenses: Sequence[Lens]) -> list[Lens]:
    """Lenses with focal lengths filled in from points; a query without a result takes the median of the others."""
    missing = [n for n, lens in enumerate(lenses) if not np.isfinite(lens.focal).all()]
    found = {n: estimate_focal(queries[n].sightings(prepared), lenses[n]) for n in missing}
    shares = [focal / float(lenses[n].size.max()) for n, focal in found.items() if np.isfinite(focal)]
    usual = float(np.median(shares)) if shares else FALLBACK_FOCAL
    filled = list(lenses)
    for n in missing:
        focal = found[n] if np.isfinite(found[n]) else usual * float(lenses[n].size.max())
        filled[n] = with_focal(lenses[n], focal)
    return filled


def unknown_of(prepared: PreparedMap, query: Query, lens: Lens, is_known: bool) -> Unknown:
    """A query with the starts that its verified pairs suggest."""
    starts = []
    for frame, view in zip(query.frames, query.views, strict=True):
        if np.isfinite(view.j_from_i).all():
            keypoints = prepared.keypoints[frame]
            pixels = keypoints.pixels.astype(np.float64), query.pixels.astype(np.float64)
            placed = prepared.cameras.cam_from_world[frame].numpy()
            depth = keypoints.raw_depth.astype(np.float64)
            lenses = prepared.cameras.intrinsics.lens(frame), lens
            pose = pose_from_pair(view, pixels, lenses, depth, placed)
            starts += [] if pose is None else [pose]
    return Unknown(query.pixels, query.sightings(prepared), lens, tuple(starts), is_known)
