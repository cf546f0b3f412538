"""The folder of a finished run: its summary, and what its server would offer to a new client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from tests.fuzz.inputs import clean, edited, feed, hostile, refused

from ipfl.core import EMPTY, Record
from ipfl.results.finished import FinishedRun
from ipfl.system.files import write_record
from ipfl.training.architectures import model_factory
from ipfl.training.network import build_network

CONFIG = {"method": {"name": "ipfl-plus"}, "task": {"model": "softmax"}, "train": {}}
SUMMARY = {"config": CONFIG, "input_shape": [2], "classes": 2, "seed": 0, "rounds": 3}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run, as small as can be."""
    model = build_network(model_factory("softmax"), (2,), 2, 0).read()
    facts = {"clusters": [0, 1], "means": [0.5, 0.5]}
    write_record(tmp_path / "offer.safetensors", Record({"cluster_0": model, "cluster_1": -model}, facts))
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    return tmp_path


POINTS = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32), np.array([0, 1])


def personalized(folder: Path) -> None:
    run = clean(lambda: FinishedRun.open(folder))
    if run is not None:
        model = clean(lambda: run.personalize(*POINTS))
        if model is not None:
            clean(lambda: run.accuracy(model, *POINTS))


def test_summaries(finished: Path) -> None:
    words = [
        *("fedavg", "local", "mlp", "cnn", "subprocess:Popen", "os:system", "nope", 10**9),
        *([4, 4, 1], [10**9], [10**5, 10**5], [-1], [0], ["true"], [2.0], [True], {"name": ["fedavg"]}),
    ]  # fmt: skip

    def check(summary: Any) -> None:
        text = json.dumps(summary) if not isinstance(summary, str) else summary
        (finished / "summary.json").write_text(text, encoding="utf-8", errors="replace")
        personalized(finished)

    feed(
        150,
        hostile(SUMMARY, words) | st.sampled_from(["[" * 5000, "", "9" * 5000]),
        check,
    )


def test_offers(finished: Path) -> None:
    content = (finished / "offer.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    head, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    facts = json.loads(head["__metadata__"]["facts"])

    def packed(tree: Any) -> bytes:
        text = json.dumps({**head, "__metadata__": {"facts": json.dumps(tree)}}).encode()
        return len(text).to_bytes(8, "little") + text + body

    def check(given: bytes) -> None:
        (finished / "offer.safetensors").write_bytes(given)
        personalized(finished)

    feed(
        100,
        hostile(facts, [[0], [5], [0.5]]).map(packed) | edited([content], [b"F64", b"I32"]),
        check,
    )


def opened(folder: Path) -> None:
    FinishedRun.open(folder).personalize(*POINTS)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"input_shape": ["sh", "-c", "touch exploded"]}, "input_shape"),
        ({"input_shape": [10**5, 10**5]}, "does not fit the model"),
        ({"input_shape": [2**30, 2**30, 2**30]}, "cannot be made|does not fit"),
        ({"classes": 10**9}, "does not fit the model"),
        ({"classes": "2"}, "classes"),
        ({"seed": -1}, "seed"),
        ({"rounds": None}, "rounds"),
        ({"config": CONFIG | {"method": {}}}, "needs a name"),
        ({"config": CONFIG | {"method": {"name": ["ipfl-plus"]}}}, "needs a name"),
        ({"config": CONFIG | {"method": {"name": "fedavg"}}}, "does not fit its method"),
    ],
)
def test_summaries_that_do_not_fit(finished: Path, change: dict[str, Any], says: str) -> None:
    (finished / "summary.json").write_text(json.dumps(SUMMARY | change))
    refused(lambda: opened(finished), says)


def test_summaries_that_are_none(finished: Path) -> None:
    for text in ("[" * 100_000, "9" * 5000, "[]", "null"):
        (finished / "summary.json").write_text(text)
        refused(lambda: opened(finished), "is not the summary")


def test_a_huge_model_that_no_vector_vouches_for(finished: Path) -> None:
    write_record(finished / "offer.safetensors", EMPTY)
    (finished / "summary.json").write_text(json.dumps(SUMMARY | {"input_shape": [2**28]}))
    refused(lambda: opened(finished), "does not fit the model")


@pytest.mark.parametrize(
    "x, y",
    [
        (np.array(1.0), POINTS[1]),
        (POINTS[0], np.array(1)),
        (POINTS[0], POINTS[1][:, None]),
        (POINTS[0], POINTS[1][:1]),
        (POINTS[0][:0], POINTS[1][:0]),
        (POINTS[0][:, :1], POINTS[1]),
        (POINTS[0].astype("U3"), POINTS[1]),
        (POINTS[0].astype("c8"), POINTS[1]),
        (POINTS[0] * np.inf, POINTS[1]),
        (POINTS[0], np.array(["a", "b"])),
        (POINTS[0], np.array([0.5, 1.5])),
        (POINTS[0], np.array([-1, 0])),
        (POINTS[0], np.array([0, 2])),
    ],
)
def test_points_that_are_none(finished: Path, x: Any, y: Any) -> None:
    with np.errstate(invalid="ignore"):
        refused(lambda: FinishedRun.open(finished).personalize(x, y))
