"""Pairs of photographs from a text file."""

import numpy as np
import pytest

from mbasfm.errors import InputError
from mbasfm.io.lists import read_pairs

NAMES = ("a/1.jpg", "a/2.jpg", "my house.jpg", "john's.jpg", "#5.jpg")


def pairs_of(tmp_path, text: str, names=NAMES) -> list[list[int]]:
    path = tmp_path / "pairs.txt"
    path.write_bytes(text.encode())
    found = read_pairs(path, names)
    assert found.dtype == np.int64
    return found.tolist()


@pytest.mark.parametrize(
    "line, pair",
    [
        ("a/1.jpg a/2.jpg", [0, 1]),
        ("a/2.jpg   a/1.jpg  ", [0, 1]),
        ("a/1.jpg\ta/2.jpg", [0, 1]),
        ("a/1.jpg a/2.jpg\t# the door", [0, 1]),
        ("a/1.jpg a/2.jpg # the door", [0, 1]),
        ('a/1.jpg "my house.jpg"', [0, 2]),
        ("'my house.jpg' john's.jpg", [2, 3]),
        ("my house.jpg\tjohn's.jpg", [2, 3]),
        ('\t"my house.jpg" \t "a/2.jpg"', [1, 2]),
        ("my house.jpg\t\ta/1.jpg\r", [0, 2]),
        ('a/1.jpg "#5.jpg"', [0, 4]),
    ],
)
def test_all_ways_to_write_a_pair(tmp_path, line, pair):
    assert pairs_of(tmp_path, line) == [pair]


def test_pairs_are_sorted_and_unique_and_comments_are_left_out(tmp_path):
    text = "\ufeff# who with whom\n\njohn's.jpg a/1.jpg\na/2.jpg a/1.jpg\n   # twice:\na/1.jpg a/2.jpg\n"
    assert pairs_of(tmp_path, text) == [[0, 1], [0, 3]]


@pytest.mark.parametrize(
    "text, message",
    [
        ("a/1.jpg a/2.jpg\na/1.jpg a/3.jpg", r"pairs.txt, line 2: no photograph is named a/3.jpg; .* a/[12].jpg"),
        ("a/1.jpg zebra", "line 1: no photograph is named zebra; the closest name is"),
        ("\n\nmy house.jpg a/1.jpg", "line 3: 3 names instead of two .*quotes, or a tab"),
        ("a/1.jpg", "line 1: 1 names instead of two"),
        ("a/1.jpg a/1.jpg", "line 1: pairs a/1.jpg with itself"),
        ("# nothing\n", "no pairs in it"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        pairs_of(tmp_path, text)


def test_without_photographs_no_name_is_offered(tmp_path):
    with pytest.raises(InputError, match="there are no photographs"):
        pairs_of(tmp_path, "a b", names=())


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read.*two names per line"):
        read_pairs(tmp_path / "nowhere.txt", NAMES)
    (tmp_path / "1.bin").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(InputError, match="cannot be read.*two names per line"):
        read_pairs(tmp_path / "1.bin", NAMES)
