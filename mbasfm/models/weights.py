"""Where the weights of a network lie: a path, the folder MBA_WEIGHTS, or the cache of the Hugging Face hub.

Nothing is fetched while running: what is missing is named together with the command that gets it.
"""

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from mbasfm.errors import InputError

VARIABLE = "MBA_WEIGHTS"
NETWORK = "model.safetensors"
NEEDED = ("config.json", "preprocessor_config.json", NETWORK)
CHUNK = 1 << 20


def weights_folder() -> Path | None:
    """What MBA_WEIGHTS says."""
    return Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def find_snapshot(repository: str) -> Path | None:
    """The complete folder of a hub repository on this machine: below MBA_WEIGHTS or in the hub's cache."""
    folder = weights_folder()
    if folder is not None:
        for place in (folder / repository, folder / repository.partition("/")[2]):
            if is_complete(place):
                return place
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repository, NETWORK)
    return Path(found).parent if isinstance(found, str) and is_complete(Path(found).parent) else None


def is_complete(folder: Path) -> bool:
    """Whether a folder has all files of a network."""
    return all((folder / name).is_file() for name in NEEDED)


def fetch_command(repository: str) -> str:
    """What to type to get a repository to where `find_snapshot` looks."""
    folder = weights_folder()
    target = f" --local-dir {folder / repository}" if folder else ""
    return f"hf download {repository} {' '.join(NEEDED)}{target}"


def require_snapshot(name: str, argument: str, repository: str) -> Path:
    """The folder a user gave, or that of the repository; raise InputError with the next step if it is not complete."""
    if argument:
        if not is_complete(Path(argument)):
            raise InputError(f"{name}:{argument}: must be a folder with {', '.join(NEEDED)}")
        return Path(argument)
    found = find_snapshot(repository)
    if found is None:
        raise InputError(f"{name}: its weights are not on this machine; get them: {fetch_command(repository)}")
    return found


def content_digest(*paths: Path) -> str:
    """Of the content of files, whatever their names."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()[:16]
