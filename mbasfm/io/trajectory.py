"""Camera paths as text, for evo and its relatives."""

from collections.abc import Sequence

from scipy.spatial.transform import Rotation

from mbasfm.fuse import View


def tum_text(views: Sequence[View]) -> str:
    """TUM: number of the photograph (instead of a time), centre of the camera, quaternion x y z w of world_from_cam."""
    lines = ["# number tx ty tz qx qy qz qw"]
    for view in views:
        pose = view.world_from_cam
        numbers = [*pose[:, 3], *Rotation.from_matrix(pose[:, :3]).as_quat()]
        lines.append(" ".join([str(view.number), *(f"{number:.9f}" for number in numbers)]))
    return "\n".join(lines) + "\n"
