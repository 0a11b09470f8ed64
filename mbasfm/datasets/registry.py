"""Datasets by name."""

from collections.abc import Callable, Mapping
from pathlib import Path

from mbasfm.datasets.base import Dataset
from mbasfm.datasets.eth3d import ETH3D
from mbasfm.datasets.fastmap import FastMap
from mbasfm.datasets.imc2021 import IMC2021
from mbasfm.datasets.pair_lists import PairSets
from mbasfm.datasets.plain import Plain
from mbasfm.datasets.scannet import ScanNet
from mbasfm.datasets.seven_scenes import SevenScenes
from mbasfm.datasets.tanks_and_temples import TanksAndTemples
from mbasfm.datasets.wayspots import Wayspots
from mbasfm.errors import ConfigError

DATASETS: Mapping[str, Callable[[Path], Dataset]] = {
    "plain": Plain,
    "eth3d": ETH3D,
    "imc2021": IMC2021,
    "scannet": ScanNet,
    "tanks-and-temples": TanksAndTemples,
    "7scenes": SevenScenes,
    "wayspots": Wayspots,
    "fastmap": FastMap,
    "pairs": PairSets,
}


def open_dataset(name: str, folder: Path) -> Dataset:
    """Dataset of a name in a folder; the error for an unknown name lists all."""
    if name not in DATASETS:
        raise ConfigError(f"no dataset is named {name!r}; there are {', '.join(DATASETS)}")
    return DATASETS[name](folder)
