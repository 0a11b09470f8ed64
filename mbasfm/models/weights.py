"""Where networks are on this machine: weights, and clones of code that no package provides.

Weights are looked for at the path in NAME:PATH, below --weights or the folder MBA_WEIGHTS names, and in the cache of
the Hugging Face hub; clones below --models-path or the folder MBA_MODELS names, and in the cache of torch.hub. Nothing
is fetched unasked, but for the small network that ``auto`` may stand for: what is missing is named together with the
command that gets it.
"""

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mbasfm.errors import InputError
from mbasfm.models.base import models_path, weights_folder

NETWORK = "model.safetensors"
NEEDED = ("config.json", "preprocessor_config.json", NETWORK)
CHUNK = 1 << 20


# ----------------------------------------------------------------------------------------------------------------
# Weights


def find_snapshot(repository: str, needed: Sequence[str] = NEEDED) -> Path | None:
    """The complete folder of a hub repository on this machine: below the folder for weights or in the hub's cache."""
    folder = weights_folder()
    if folder is not None:
        for place in (folder / repository, folder / repository.partition("/")[2]):
            if is_complete(place, needed):
                return place
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository, needed[-1])
    return Path(found).parent if isinstance(found, str) and is_complete(Path(found).parent, needed) else None


def is_complete(folder: Path, needed: Sequence[str] = NEEDED) -> bool:
    """Whether a folder has all files of a network."""
    return all((folder / name).is_file() for name in needed)


def fetch_command(repository: str, needed: Sequence[str] = NEEDED) -> str:
    """Command that gets a repository to where `find_snapshot` looks."""
    folder = weights_folder()
    target = f" --local-dir {folder / repository}" if folder else ""
    return f"hf download {repository} {' '.join(needed)}{target}"


def require_snapshot(name: str, argument: str, repository: str, needed: Sequence[str] = NEEDED) -> Path:
    """The folder a user gave, or that of the repository; raise InputError with the next step if it is not complete."""
    if argument:
        if not is_complete(Path(argument), needed):
            raise InputError(f"{name}:{argument}: must be a folder with {', '.join(needed)}")
        return Path(argument)
    found = find_snapshot(repository, needed)
    if found is None:
        raise InputError(f"{name}: its weights are not on this machine; get them: {fetch_command(repository, needed)}")
    return found


def fetch_snapshot(repository: str, needed: Sequence[str] = NEEDED) -> str:
    """Get a repository to where `find_snapshot` looks; returns an error message, empty on success."""
    from huggingface_hub import snapshot_download

    folder = weights_folder()
    try:
        snapshot_download(
            repository, allow_patterns=list(needed), local_dir=None if folder is None else folder / repository
        )
    except Exception as error:  # whatever the network, the hub or the disk has to say
        return str(error).partition("\n")[0] or type(error).__name__
    return "" if find_snapshot(repository, needed) else f"{repository} does not have {', '.join(needed)}"


def content_digest(*paths: Path) -> str:
    """Digest of the content of files, independent of their names."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()[:16]


# ----------------------------------------------------------------------------------------------------------------
# Clones of code


def find_clone(repository: str) -> Path | None:
    """The clone of a GitHub repository: NAME, OWNER/NAME, or OWNER_NAME_BRANCH as torch.hub calls it."""
    owner, _, name = repository.casefold().partition("/")
    for folder in clone_folders():
        inside = sorted(path for path in (*folder.glob("*"), *folder.glob("*/*")) if path.is_dir())
        for path in inside:
            place = path.relative_to(folder).as_posix().casefold()
            if place in (name, f"{owner}/{name}") or place.startswith(f"{owner}_{name}_"):
                return path
    return None


def clone_folders() -> list[Path]:
    """Folders in which clones are looked for, in order."""
    import torch

    given = models_path()
    return [folder for folder in (given, Path(torch.hub.get_dir())) if folder is not None and folder.is_dir()]


def clone_command(repository: str, options: str = "") -> str:
    """Command that gets a clone to where `find_clone` looks."""
    import torch

    folder = models_path() or Path(torch.hub.get_dir())
    return f"git clone {options}https://github.com/{repository} {folder / repository.partition('/')[2]}"
