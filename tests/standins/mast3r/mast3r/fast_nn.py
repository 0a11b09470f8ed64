"""Stand-in for mast3r.fast_nn."""

import numpy as np


def fast_reciprocal_NNs(
    pts1, pts2, subsample_or_initxy1=8, ret_xy=True, pixel_tol=0, ret_basin=False, device="cuda", **matcher_kw
):
    assert matcher_kw == {"dist": "dot", "block_size": 8192}
    step = subsample_or_initxy1
    rows, columns = np.mgrid[step // 2 : pts1.shape[0] : step, step // 2 : pts1.shape[1] : step].reshape(2, -1)
    flat = pts2.reshape(-1, pts2.shape[-1])
    nearest = (pts1[rows, columns] @ flat.T).argmax(1).numpy()
    backward = pts1.reshape(-1, pts1.shape[-1]) @ flat[nearest].T
    mutual = backward.argmax(0).numpy() == rows * pts1.shape[1] + columns
    other = np.stack([nearest % pts2.shape[1], nearest // pts2.shape[1]], 1)
    return np.stack([columns, rows], 1)[mutual], other[mutual]
