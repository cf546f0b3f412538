"""Folders of methods in a comparison: names that every system allows, one for each."""

import re

from hypothesis import given
from hypothesis import strategies as st

from ipfl.study.method_labels import folder_names


def test_by_hand():
    labels = [
        "ipfl-plus",
        "ipfl-plus:incentive=false",
        "mine:Class",
        "mine+Class",
        "IPFL-PLUS",
        "con",
        "nul.txt",
        "a.",
        "..",
        "a/b",
    ]
    assert list(folder_names(labels).values()) == [
        "ipfl-plus", "ipfl-plus+incentive=false", "mine+Class", "mine+Class-2", "IPFL-PLUS-2", "_con",
        "_nul.txt", "a", "method", "a+b",
    ]  # fmt: skip


@given(st.lists(st.text(alphabet='aA1:+-. /\\<>|?*"=\n', min_size=1), unique=True))
def test_one_for_each(labels):
    names = folder_names(labels)
    assert list(names) == labels
    assert len({name.casefold() for name in names.values()}) == len(labels)
    for name in names.values():
        assert re.fullmatch(r'[^<>:"/\\|?*\x00-\x1f]+', name)
        assert name[-1] not in ". "
