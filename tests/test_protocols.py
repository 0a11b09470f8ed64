"""Every measure of every protocol against independent computations, on a COLMAP model and its own perturbation."""

import math
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pycolmap
import pytest
import torch
from scipy.spatial import procrustes
from scipy.spatial.transform import Rotation

from mbasfm.errors import ConfigError
from mbasfm.evaluation.metrics import absolute_trajectory_error, align_to_truth
from mbasfm.evaluation.protocols import PROTOCOLS, evaluate, find_protocol

NUM_FRAMES = 9


@pytest.fixture(scope="module")
def truth() -> np.ndarray:
    """(N, 4, 4) cam_from_world of a COLMAP model."""
    pycolmap.set_random_seed(3)
    options = pycolmap.SyntheticDatasetOptions(num_rigs=1, num_cameras_per_rig=1, num_frames_per_rig=NUM_FRAMES)
    model = pycolmap.synthesize_dataset(options)
    poses = [np.vstack([image.cam_from_world().matrix(), [0, 0, 0, 1]]) for image in model.images.values()]
    return np.stack(poses)


@pytest.fixture(scope="module")
def estimate(truth: np.ndarray) -> np.ndarray:
    """Turned by a few degrees, moved a little, in another world."""
    random = np.random.default_rng(0)
    world = np.eye(4)
    world[:3, :3] = Rotation.random(rng=random).as_matrix() / 2.5
    world[:3, 3] = random.normal(size=3)
    poses = []
    for number, pose in enumerate(truth):
        turn = np.eye(4)
        turn[:3, :3] = Rotation.from_rotvec(np.deg2rad(1 + number) * random.normal(size=3)).as_matrix()
        turn[:3, 3] = 0.05 * random.normal(size=3)
        moved = turn @ pose @ world
        size = np.cbrt(np.linalg.det(moved[:3, :3]))
        moved[:3] /= size  # a rigid camera in a world of another scale
        poses.append(moved)
    return np.stack(poses)


REGISTERED = np.array([True] * 7 + [False, True])


# ----------------------------------------------------------------------------------------------------------------
# The slow twin: loops, arc cosines and quaternions, as published evaluations write them.


def slow_pair_errors(estimate, truth, registered, ordered, pairs=None):
    """Lists of rotation, sign-aware and folded translation errors."""
    names = pairs or list((permutations if ordered else combinations)(range(len(truth)), 2))
    if pairs and ordered:
        names = pairs + [(j, i) for i, j in pairs]
    rotation, signed, folded = [], [], []
    for i, j in names:
        if not (registered[i] and registered[j]):
            for errors in (rotation, signed, folded):
                errors.append(math.inf)
            continue
        a, b = (poses[j] @ np.linalg.inv(poses[i]) for poses in (estimate, truth))
        rotation.append(
            math.degrees((Rotation.from_matrix(a[:3, :3]).inv() * Rotation.from_matrix(b[:3, :3])).magnitude())
        )
        cosine = a[:3, 3] @ b[:3, 3] / np.linalg.norm(a[:3, 3]) / np.linalg.norm(b[:3, 3])
        signed.append(math.degrees(math.acos(min(max(cosine, -1), 1))))
        folded.append(math.degrees(math.acos(min(abs(cosine), 1))))
    return np.array(rotation), np.array(signed), np.array(folded)


def slow_step_area(errors, limit):
    """Integral of the step function of recall, error by error."""
    return sum(max(0.0, limit - error) for error in errors) / limit / len(errors)


def slow_line_area(errors, limit):
    ordered = np.concatenate([[0.0], np.sort(errors)])
    recall = np.arange(len(ordered)) / len(errors)
    last = np.searchsorted(ordered, limit)
    x, y = np.append(ordered[:last], limit), np.append(recall[:last], recall[last - 1])
    return sum((x[k + 1] - x[k]) * (y[k + 1] + y[k]) / 2 for k in range(len(x) - 1)) / limit


def slow_centers(poses):
    return np.stack([np.linalg.inv(pose)[:3, 3] for pose in poses])


def slow_pair_measure(kind, limit, protocol, errors):
    rotation, signed, folded = errors
    if kind == "RRA":
        return float(np.mean(rotation < limit)), None
    if kind == "RTA":
        return float(np.mean(signed < limit)), float(np.mean(folded < limit))
    if kind == "AUC-R&T rounded":
        known = np.isfinite(rotation)
        cosine = np.round(np.cos(np.deg2rad(np.where(known, rotation, 0))), 4)
        rotation = np.where(known, np.rad2deg(np.arccos(cosine)), math.inf)
    both = [np.maximum(rotation, translation) for translation in (signed, folded)]
    if kind == "ACC":
        return tuple(float(np.mean(errors < limit)) for errors in both)
    area = slow_line_area if protocol.trapezoid else slow_step_area
    return tuple(area(errors, limit) for errors in both)


def slow_measure(name, protocol, estimate, truth, pairs):
    centers, true_centers = slow_centers(estimate), slow_centers(truth)
    if name == "registered":
        return sum(REGISTERED) / len(REGISTERED), None
    if name == "ATE":
        aligned = pycolmap_aligned(centers[REGISTERED], true_centers[REGISTERED])
        return math.sqrt(np.mean(np.sum((aligned - true_centers[REGISTERED]) ** 2, axis=1))), None
    if name == "ATE normalised":
        filled = np.where(REGISTERED[:, None], centers, centers[0])
        one, other, _ = procrustes(true_centers, filled)
        return math.sqrt(np.mean((one - other) ** 2)), None
    if "@" in name:
        kind, _, limit = name.partition("@")
        errors = slow_pair_errors(estimate, truth, REGISTERED, protocol.ordered, pairs)
        return slow_pair_measure(kind, float(limit), protocol, errors)
    distance = np.where(REGISTERED, np.linalg.norm(centers - true_centers, axis=1), math.inf)
    turn = [
        np.linalg.norm(Rotation.from_matrix(a[:3, :3] @ b[:3, :3].T).as_rotvec())
        for a, b in zip(estimate, truth, strict=True)
    ]
    angle = np.where(REGISTERED, np.rad2deg(turn), math.inf)
    if name.startswith("median"):
        return float(np.median(100 * distance if name == "median cm" else angle)), None
    near, _, straight = name.removeprefix("beyond ").partition("/")
    limit_m, limit_deg = float(near[:-2]) / 100, float(straight[:-3])
    if name.startswith("beyond "):
        wrong = [d > limit_m or a > limit_deg for d, a in zip(distance, angle, strict=True)]
        return float(np.mean(np.logical_and(wrong, REGISTERED))), None
    return float(np.mean([d < limit_m and a < limit_deg for d, a in zip(distance, angle, strict=True)])), None


def pycolmap_aligned(source, target):
    """Alignment by somebody else."""
    similarity = pycolmap.estimate_sim3d(source, target)
    return np.stack([similarity * point for point in source])


def tensors(estimate, truth):
    return (
        *(torch.from_numpy(np.ascontiguousarray(poses[:, :3])) for poses in (estimate, truth)),
        torch.from_numpy(REGISTERED),
    )


@pytest.mark.parametrize("pairs", [None, [(0, 3), (1, 2), (2, 8), (4, 7), (3, 5)]], ids=["all", "some"])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_measure_equals_an_independent_computation(name, pairs, truth, estimate):
    protocol = PROTOCOLS[name]
    if protocol.absolute:  # no alignment: compare within one world
        estimate = truth.copy()
        estimate[::2, 0, 3] += 0.04
        estimate[1, :3] = Rotation.from_euler("x", 4, degrees=True).as_matrix() @ estimate[1, :3]
        estimate[3, :3] = Rotation.from_euler("y", 40, degrees=True).as_matrix() @ estimate[3, :3]
        estimate[5, 0, 3] += 0.6
    found = evaluate(*tensors(estimate, truth), protocol, None if pairs is None else torch.tensor(pairs))
    expected = {}
    for measure in protocol.measures:
        value, folded = slow_measure(measure, protocol, estimate, truth, pairs)
        expected[measure] = value
        if folded is not None:
            expected[f"{measure} folded"] = folded
    assert found == pytest.approx(expected, abs=1e-6)
    assert list(found)[0] == protocol.measures[0]


def test_the_example_is_neither_perfect_nor_hopeless(truth, estimate):
    found = evaluate(*tensors(estimate, truth), PROTOCOLS["default"])
    assert found["registered"] == pytest.approx(8 / 9)
    assert 0.05 < found["AUC@10"] < 0.8 and 0 < found["RRA@5"] < 1 and 0 < found["RTA@3"] < 1


def test_trajectory_error_agrees_with_evo(truth, estimate):
    trajectory = pytest.importorskip("evo.core.trajectory")
    metrics = pytest.importorskip("evo.core.metrics")
    theirs, reference = (
        trajectory.PosePath3D(poses_se3=[np.linalg.inv(pose) for pose in poses[REGISTERED]])
        for poses in (estimate, truth)
    )
    theirs.align(reference, correct_scale=True)
    measure = metrics.APE(metrics.PoseRelation.translation_part)
    measure.process_data((reference, theirs))
    ours = absolute_trajectory_error(*tensors(estimate, truth))
    assert ours == pytest.approx(measure.get_statistic(metrics.StatisticsType.rmse), abs=1e-9)


def test_alignment_agrees_with_pycolmap(truth, estimate):
    poses, true_poses, registered = tensors(estimate, truth)
    aligned = align_to_truth(poses, true_poses, registered).numpy()
    centers = np.stack([-pose[:, :3].T @ pose[:, 3] for pose in aligned])[REGISTERED]
    expected = pycolmap_aligned(slow_centers(estimate)[REGISTERED], slow_centers(truth)[REGISTERED])
    assert centers == pytest.approx(expected, abs=1e-9)


def test_an_unknown_protocol_is_explained():
    with pytest.raises(ConfigError, match="there are default, positions, mast3r-sfm"):
        find_protocol("mast3r")


def test_nothing_registered_is_all_wrong(truth):
    poses = torch.from_numpy(truth[:, :3].copy())
    nothing = torch.zeros(len(poses), dtype=torch.bool)
    for protocol in PROTOCOLS.values():
        for name, value in evaluate(poses, poses, nothing, protocol).items():
            assert value == 0 or (not math.isfinite(value) and name.split()[0] in ("ATE", "median")), name


def test_docs_name_every_protocol():
    page = (Path(__file__).parents[1] / "docs" / "evaluation.md").read_text()
    assert all(f"`{name}`" in page for name in PROTOCOLS)
