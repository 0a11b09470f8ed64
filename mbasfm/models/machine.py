"""What this machine has for networks: weights, clones of code that no package provides, and devices to compute on.

Weights are looked for at the path in NAME:PATH, below --weights or the folder MBA_WEIGHTS names, and in the cache of
the Hugging Face hub; clones below --models-path or the folder MBA_MODELS names, and in the cache of torch.hub. Nothing
is fetched unasked, but for the small network that ``auto`` may stand for: what is missing is named together with the
command that gets it.
"""

import hashlib
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import torch

from mbasfm.errors import InputError

VARIABLE, CLONES_VARIABLE = "MBA_WEIGHTS", "MBA_MODELS"
NETWORK = "model.safetensors"
NEEDED = ("config.json", "preprocessor_config.json", NETWORK)
CHUNK = 1 << 20
HUB = "https://huggingface.co"
CONNECT_S = 2.0
GIVEN: ContextVar[dict[str, str]] = ContextVar("folders that options name, by variable")
"""Folders given by options; they take precedence over the environment's."""


@contextmanager
def looking_in(weights: str | None = None, models_path: str | None = None) -> Iterator[None]:
    """Look for weights and clones in these folders, where they are given, instead of the environment's."""
    for option, folder in (("--weights", weights), ("--models-path", models_path)):
        if folder is not None and not Path(folder).is_dir():
            raise InputError(f"{option} {folder}: there is no such folder")
    token = GIVEN.set({VARIABLE: weights or "", CLONES_VARIABLE: models_path or ""})
    try:
        yield
    finally:
        GIVEN.reset(token)


def weights_folder() -> Path | None:
    """Folder given by --weights, else MBA_WEIGHTS."""
    return _folder(VARIABLE)


def _folder(variable: str) -> Path | None:
    text = GIVEN.get({}).get(variable) or os.environ.get(variable)
    return Path(text) if text else None


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


def is_online() -> bool:
    """Whether the hub answers within two seconds and nothing (HF_HUB_OFFLINE) forbids to ask it."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    address = urlsplit(os.environ.get("HF_ENDPOINT") or HUB)
    try:
        port = address.port or {"http": 80}.get(address.scheme, 443)
        with socket.create_connection((address.hostname or "", port), timeout=CONNECT_S):
            return True
    except (OSError, ValueError):
        return False


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

    given = _folder(CLONES_VARIABLE)
    return [folder for folder in (given, Path(torch.hub.get_dir())) if folder is not None and folder.is_dir()]


def clone_command(repository: str, options: str = "") -> str:
    """Command that gets a clone to where `find_clone` looks."""
    import torch

    folder = _folder(CLONES_VARIABLE) or Path(torch.hub.get_dir())
    return f"git clone {options}https://github.com/{repository} {folder / repository.partition('/')[2]}"


def accelerator() -> torch.device:
    """CUDA's or Apple's device, else the CPU."""
    kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    return torch.device(kind)


def gpu_or_cpu() -> torch.device:
    """CUDA's device, else the CPU: for networks with operations that Apple's lacks."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def is_fast(device: torch.device) -> bool:
    """Whether a device is anything but the CPU."""
    return device.type != "cpu"


def half_if_fast(device: torch.device) -> AbstractContextManager[None]:
    """Context with half precision on an accelerator; on the CPU it would be slower."""
    return torch.autocast(device.type, torch.float16, enabled=is_fast(device))


def key_of(device: torch.device) -> str:
    """Precision as part of a model's key, because it changes the last digits."""
    return f"-{device.type}" if is_fast(device) else ""
