"""Damaged files: a clear error or a right result each, soon, in little memory, and nothing is ever unpickled."""

import ast
import contextlib
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
from damage import READERS, Reader, colmap_model, damage

import mbasfm
from mbasfm.errors import InputError, MBAError
from mbasfm.io.colmap_model import read_model
from mbasfm.io.files import read_array, read_arrays

SEED = 20
CASES = 40
"""Per kind of file."""
MAX_SECONDS = 10
"""Of this process, not of the clock: others may keep the machine busy."""
MAX_BYTES = 1 << 30


@contextlib.contextmanager
def limits():
    """Neither hang nor ask for a giant piece of memory."""

    def stop(*_):
        raise TimeoutError(f"more than {MAX_SECONDS} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES, before[1]))
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="needs Linux to limit memory")
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # Pillow tells the metadata that it leaves out
@pytest.mark.parametrize("number", range(len(READERS)), ids=[reader.name for reader in READERS])
def test_damaged_files_give_a_clear_error_or_a_right_result(tmp_path, number):
    reader: Reader = READERS[number]
    path = reader.make(tmp_path)
    good = path.read_bytes()
    reader.read(path)
    for case in range(CASES):
        bad = damage(good, np.random.default_rng([SEED, number, case]))
        path.write_bytes(bad)
        try:
            with limits():
                reader.read(path)
        except MBAError as error:
            assert str(error) and "\n" not in str(error), str(error)
        except Exception as error:
            raise AssertionError(
                f"{reader.name}, seed {[SEED, number, case]}: {type(error).__name__} {error}"
            ) from error


def test_there_are_cases_enough():
    assert CASES * len(READERS) >= 500


# ----------------------------------------------------------------------------------------------------------------
# Nothing is unpickled


def unsafe_calls(source: str) -> list[str]:
    """Calls and imports that may run code from a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [name.name for name in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.split(".")[0] in {"pickle", "marshal", "shelve", "dill", "joblib"}]
        if isinstance(node, ast.Call):
            options = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
            name = ast.unparse(node.func)
            if name == "torch.load" and options.get("weights_only") is not True:
                found.append(name)
            if name in {"np.load", "numpy.load"} and options.get("allow_pickle") is not False:
                found.append(name)
            if options.get("allow_pickle") is True or name in {"eval", "exec"}:
                found.append(name)
    return found


@pytest.mark.parametrize(
    "source, is_unsafe",
    [
        ("import pickle", True),
        ("from pickle import loads", True),
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=False)", True),
        ("torch.load(path, weights_only=True)", False),
        ("np.load(path)", True),
        ("np.load(path, allow_pickle=False)", False),
        ("np.savez(path, a=1)", False),
    ],
)
def test_unsafe_calls_are_seen(source, is_unsafe):
    assert bool(unsafe_calls(source)) == is_unsafe


def test_the_package_never_unpickles():
    folder = Path(mbasfm.__file__).parent
    found = {str(path.relative_to(folder)): unsafe_calls(path.read_text()) for path in folder.rglob("*.py")}
    assert len(found) > 50 and not {path: calls for path, calls in found.items() if calls}


# ----------------------------------------------------------------------------------------------------------------
# Cases that need no luck


@pytest.mark.parametrize("count", [10**12, 2**64 - 1])
@pytest.mark.parametrize("name", ["cameras", "images", "points3D", "rigs", "frames"])
def test_a_model_that_claims_more_than_it_holds_is_refused_at_once(tmp_path, name, count):
    colmap_model().write_binary(tmp_path)
    path = tmp_path / f"{name}.bin"
    path.write_bytes(count.to_bytes(8, "little") + path.read_bytes()[8:])
    with limits(), pytest.raises(InputError, match=rf"{name}\.bin.*export it again"):
        read_model(tmp_path)


@pytest.mark.parametrize("name", ["../1.jpg", "/tmp/1.jpg", "a/../../1.jpg", "a\nb.jpg"])
def test_names_of_a_model_cannot_lead_out_of_the_scene(tmp_path, name):
    model = colmap_model()
    model.images[2].name = name
    model.write_binary(tmp_path)
    with pytest.raises(InputError, match="cannot be the name of a photograph"):
        read_model(tmp_path)


def test_arrays_that_claim_more_than_they_hold_and_objects_are_refused(tmp_path):
    values = np.arange(6.0).reshape(2, 3)
    np.save(tmp_path / "a.npy", values)
    np.savez_compressed(tmp_path / "a.npz", c=values, f=np.asfortranarray(values), one=np.array(True))
    assert np.array_equal(read_array(tmp_path / "a.npy"), values)
    found = read_arrays(tmp_path / "a.npz")
    assert np.array_equal(found["c"], values) and np.array_equal(found["f"], values) and found["one"].shape == ()
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content.replace(b"(2, 3), }" + 7 * b" ", b"(2, 3000000000), "[:16]))
    with limits(), pytest.raises(InputError, match="a.npy: cannot be read as npy"):
        read_array(tmp_path / "a.npy")
    np.save(tmp_path / "o.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match="Python objects"):
        read_array(tmp_path / "o.npy")
