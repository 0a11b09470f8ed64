"""Which photographs look alike, by a network: a tiny DINOv2 with random weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import photograph_room

from mbasfm.cli import main
from mbasfm.errors import InputError
from mbasfm.io.files import Cache
from mbasfm.io.images import find_photos
from mbasfm.matching.choose_pairs import Looks, PairSettings, choose_pairs, retrieval_pairs
from mbasfm.matching.inference import photo_vectors
from mbasfm.models import base
from mbasfm.models.matchers.dinov2 import REPOSITORIES, Dinov2

transformers = pytest.importorskip("transformers", reason="needs: pip install 'mbasfm[transformers]'")
COLOURS = {"size": {"shortest_edge": 256}, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Path:
    """A folder for --weights that holds the small one."""
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        image_size=56, patch_size=14, hidden_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    folder = tmp_path_factory.mktemp("weights") / REPOSITORIES[-1]
    network = transformers.Dinov2Model(config)
    for parameter in network.parameters():
        if parameter.dim() > 1:  # as it starts, it hardly looks at the image
            torch.nn.init.kaiming_normal_(parameter)
    network.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(COLOURS))
    return folder.parents[1]


@pytest.fixture(autouse=True)
def empty_hub(monkeypatch, tmp_path):
    """What the machine happens to have must not decide."""
    monkeypatch.delenv(base.VARIABLE, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Four small photographs."""
    return photograph_room(tmp_path_factory.mktemp("photos"), 4, (160, 120))


def test_a_vector_is_that_of_what_is_seen_not_of_its_size(places):
    network = Dinov2(places / REPOSITORIES[-1])
    generator = np.random.default_rng(0)
    one, other = (np.kron(generator.integers(0, 256, (6, 8, 3)), np.ones((20, 20, 1))).astype(np.uint8) for _ in "ab")
    small, large = one, np.kron(one, np.ones((3, 3, 1), np.uint8))
    vectors = [network.vector(image) for image in (small, large, other, one.transpose(1, 0, 2))]
    assert all(vector.shape == (32,) and np.linalg.norm(vector) == pytest.approx(1, abs=1e-5) for vector in vectors)
    assert vectors[0] @ vectors[1] > 0.99 > vectors[0] @ vectors[2]
    np.testing.assert_array_equal(vectors[0], network.vector(one))


def test_vectors_are_computed_once(monkeypatch, places, folder, tmp_path):
    photos, _ = find_photos(folder)
    network, cache = Dinov2(places / REPOSITORIES[-1]), Cache(tmp_path)
    with cache.active():
        first = np.stack(list(photo_vectors(photos, network)))
        monkeypatch.setattr(network, "vector", None)
        np.testing.assert_array_equal(np.stack(list(photo_vectors(photos, network))), first)


def test_it_goes_before_local_descriptors_and_the_sentence_says_so():
    vectors = np.eye(4, dtype=np.float32)[[0, 1, 0, 1]]
    looks, nothing = Looks("DINOv2", lambda: vectors), [np.zeros((5, 0), np.float32)] * 4
    found, sentence = choose_pairs("retrieval", nothing, False, 0, PairSettings(0, 1), lambda: looks)
    assert found.tolist() == retrieval_pairs(vectors, 1).tolist() == [[0, 2], [1, 3]]
    assert "most alike (by DINOv2), as asked for" in str(sentence)


def test_few_photographs_need_no_looks():
    features = [np.zeros((5, 2), np.float32)] * 4
    assert len(choose_pairs("auto", features, False, 0, looks=lambda: pytest.fail("asked for nothing"))[0]) == 6


def test_the_command_takes_it_if_it_is_there(places, folder, tmp_path, capsys):
    command = ["sfm", str(folder), "--output", str(tmp_path), "--matcher", "sift", "--depth", "flat", "--pairs"]
    options = ["retrieval", "--no-polish", "--stages", "none"]
    for more, by in (([], "VLAD of local features"), (["--weights", str(places)], "DINOv2")):
        assert main([*command, *options, *more]) in (0, 3)
        assert f"look most alike (by {by})" in " ".join(capsys.readouterr().err.split())
        stages = json.loads((tmp_path / "report.json").read_text())["stages"]
        assert by in next(stage["why"] for stage in stages if stage["name"] == "pairs")


def test_weights_of_something_else_are_refused(monkeypatch, places, tmp_path):
    monkeypatch.setenv(base.VARIABLE, str(places))
    assert Dinov2.find() == places / REPOSITORIES[-1]
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(COLOURS))
    with pytest.raises(InputError, match="type 'vit', not one for DINOv2"):
        Dinov2(tmp_path)
