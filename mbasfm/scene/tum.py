"""Camera paths as text, for evo and its relatives."""

from collections.abc import Mapping, Sequence

from scipy.spatial.transform import Rotation

from mbasfm.types.outcome import View


def tum_text(views: Sequence[View], seconds: Mapping[str, float]) -> str:
    """TUM trajectory: time, camera centre, quaternion x y z w of world_from_cam; without times, photograph numbers."""
    lines = ["# time tx ty tz qx qy qz qw" if seconds else "# number tx ty tz qx qy qz qw"]
    for view in views:
        pose = view.world_from_cam
        stamp = f"{seconds[view.name]:.6f}" if seconds else str(view.number)
        numbers = [*pose[:, 3], *Rotation.from_matrix(pose[:, :3]).as_quat()]
        lines.append(" ".join([stamp, *(f"{number:.9f}" for number in numbers)]))
    return "\n".join(lines) + "\n"
