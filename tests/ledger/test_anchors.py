"""Anchors as files: what a process that died left in one, and what somebody else wrote."""

import json

import pytest
from tests.ledger.example_runs import worked_run

from ipfl.errors import InputError
from ipfl.ledger.anchors import anchor_findings, append_head, newest_head, read_heads


@pytest.fixture
def store(tmp_path):
    return worked_run(tmp_path / "run")


def findings(store, anchor):
    with store.snapshot() as reader:
        return [str(one) for one in anchor_findings(anchor, store, reader)]


@pytest.mark.parametrize("left", [1, 30, -1])
def test_a_line_that_was_not_written_to_its_end_is_replaced(store, tmp_path, left):
    """Once, the next line was added to its end, and nobody could read the anchor any more."""
    anchor, head = tmp_path / "heads.jsonl", newest_head(store)
    append_head(anchor, head | {"run": "other"})
    whole = anchor.read_bytes()
    anchor.write_bytes(whole + (json.dumps(head) + "\n").encode()[:left])
    assert read_heads(anchor, "other") == [head | {"run": "other"}]
    append_head(anchor, head)
    append_head(anchor, head)
    assert anchor.read_bytes() == whole + (json.dumps(head) + "\n").encode()
    assert findings(store, anchor) == []


def test_a_last_line_without_an_end_counts_if_it_is_whole(store, tmp_path):
    anchor = tmp_path / "heads.jsonl"
    anchor.write_text(json.dumps(newest_head(store) | {"hash": "0" * 64}))
    assert findings(store, anchor) == [f"round 0: it has another hash than in the anchor {anchor}"]


@pytest.mark.parametrize(
    "change", [{"round": [1]}, {"round": 1.5}, {"hash": [1]}, {"closing": {}}, {"begun": 3}]
)
def test_what_is_no_head_is_refused_on_one_line(store, tmp_path, change):
    anchor = tmp_path / "heads.jsonl"
    anchor.write_text(json.dumps(newest_head(store) | change) + "\n")
    with pytest.raises(InputError, match="is not an anchor: line 1 is not the head of a run"):
        findings(store, anchor)
