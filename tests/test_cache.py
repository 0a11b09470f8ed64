"""The cache never computes twice and never hands out half of a result."""

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from helpers import HANG_S

from mbasfm.io.files import Cache


def test_a_result_is_computed_once(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return {"a": np.arange(5), "b": np.ones((2, 3), np.float32)}

    cache = Cache(tmp_path)
    first, second = cache.get("key", compute), Cache(tmp_path).get("key", compute)
    assert len(calls) == 1
    assert all(np.array_equal(first[name], second[name]) for name in ("a", "b"))
    assert cache.has("key") and not cache.has("other")
    cache.get("other", compute)
    assert len(calls) == 2


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "text"])
def test_a_damaged_entry_is_computed_again(tmp_path, damage):
    cache = Cache(tmp_path)
    cache.get("key", lambda: {"a": np.arange(1000)})
    (path,) = tmp_path.rglob("*.npz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes({"cut": content[:100], "empty": b"", "flipped": content, "text": b"hello"}[damage])
    again = cache.get("key", lambda: {"a": np.arange(1000)})
    assert np.array_equal(again["a"], np.arange(1000))


def test_a_failing_computation_leaves_nothing_behind(tmp_path):
    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        Cache(tmp_path).get("key", fail)
    assert not list(tmp_path.rglob("*.npz")) and not list(tmp_path.rglob("*.part"))


def test_pickled_objects_are_never_loaded(tmp_path):
    cache = Cache(tmp_path)
    cache.get("key", lambda: {"a": np.arange(3)})
    (path,) = tmp_path.rglob("*.npz")
    np.savez(path, a=np.array([{"evil": 1}], dtype=object))
    assert np.array_equal(cache.get("key", lambda: {"a": np.arange(3)})["a"], np.arange(3))


def write_for_ever(folder):
    number = 0
    while True:
        Cache(folder).get(f"key {number}", lambda: {"a": np.full(200_000, 7.0)})
        number += 1


def test_kill_leaves_whole_entries_only(tmp_path):
    context = multiprocessing.get_context("spawn")
    worker = context.Process(target=write_for_ever, args=(tmp_path,))
    worker.start()
    deadline = time.monotonic() + HANG_S
    while len(list(tmp_path.rglob("*.npz"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    worker.close()
    entries = list(tmp_path.rglob("*.npz"))
    assert len(entries) >= 5
    for path in entries:
        with np.load(path, allow_pickle=False) as archive:
            assert float(archive["a"].min()) == float(archive["a"].max()) == 7.0
