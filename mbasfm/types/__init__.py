"""Frozen nouns and the conventions; no behaviour beyond properties.

* ``b_from_a`` maps coordinates of frame a to frame b: ``j_from_i = j_from_world @ world_from_i``.
* Camera axes are OpenCV's: x right, y down, z forward. Poses are world-to-camera, as in COLMAP.
* (0, 0) is the image's upper left corner; the centre of the first pixel is (0.5, 0.5).
* Depth is z along the optical axis, not the length of the ray. Angles are radians; names end in ``_deg`` at the edges.
* Axis letters: N frames, E directed edges, K samples per edge, G groups, T bins.
* Cameras are float64. Samples are float32; kernels compute in the samples' precision, sums and solves in float64.

Nouns are frozen: a stage returns a new value (``dataclasses.replace``) and never changes what it was given.
"""
