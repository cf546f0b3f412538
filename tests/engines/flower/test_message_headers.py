"""Headers of messages: read as they were written, and refused where a field is not what it must be."""

import json
from dataclasses import replace

import pytest

from ipfl.engines.flower.message_headers import AskHeader, NodeInfo, ReplyHeader
from ipfl.engines.flower.messages import MalformedError


@pytest.mark.parametrize("said", [{}, {"params": [1]}, {"params": {"w": 1}}, {"params": "w"}])
def test_names_must_be_names(said):
    with pytest.raises(MalformedError):
        ReplyHeader.read({"client": 0, "facts": {}} | said)


INFO = NodeInfo(3, 650, 10, (8, 8, 1), {"train": 16, "test": 0})


def test_what_a_node_says_of_itself_is_read_as_it_was_written():
    """A part without samples counts as one: the counts are divisors elsewhere."""
    read = NodeInfo.read(json.loads(json.dumps(INFO.to_header())))
    assert read == replace(INFO, samples={"train": 16, "test": 1})


RUN_ID, DIGEST = "0123456789abcdef" * 2, "f" * 32
ASK = AskHeader(3, 1, 0, RUN_ID, (0, 1), DIGEST, 650, {"global": DIGEST}, {"limit": 10})


@pytest.mark.parametrize("run_id", [RUN_ID, ""])
def test_an_ask_is_read_as_it_was_written(run_id):
    ask = replace(ASK, run_id=run_id)
    assert AskHeader.read(json.loads(json.dumps(ask.to_header()))) == ask


@pytest.mark.parametrize(
    "name", ["..", "../" * 10 + "22", "/" + "a" * 31, "x" * 32, "A" * 32, "a" * 33, "a\n"]
)
@pytest.mark.parametrize("field", ["run_id", "settings", "params"])
def test_a_name_that_could_lead_to_another_folder_is_refused(field, name):
    """A node uses run ids and digests as names of files; they are 32 hex digits."""
    value = {"global": name} if field == "params" else name
    with pytest.raises(MalformedError, match=f"^{field}"):
        AskHeader.read(ASK.to_header() | {field: value})


@pytest.mark.parametrize("field", ASK.to_header())
@pytest.mark.parametrize("value", [None, True, -1.5, "1", ["x"]])
def test_an_ask_with_a_field_of_another_type_is_refused(field, value):
    with pytest.raises(MalformedError):
        AskHeader.read(ASK.to_header() | {field: value})
