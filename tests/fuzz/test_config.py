"""Configs from outside: TOML files, `--set`, labels of methods, and the tasks that they describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tests.fuzz.inputs import SCALARS, TREES, clean, edited, feed, hostile, refused

from ipfl.config.whole_config import Config
from ipfl.report.config_text import commented_toml
from ipfl.training.task import Task

VALID = Config().model_dump(mode="json")
WHOLE = commented_toml(Config()).encode()
SHORT = b'seed = 3\nrounds = 5\n[task]\npartition = "30:70"\nclients = 8\n[method]\nname = "fedavg"\n'
TOML = [
    b"[task]", b"[[method]]", b"task.", b'"""', b"0x", b"1_0", b"1979-05-27", b" = ", b"inf", b"e9",
    b"\\u0000", b"[" * 3000, b"9" * 5000,
]  # fmt: skip
KEYS = [f"{section}.{key}" for section, inner in VALID.items() if isinstance(inner, dict) for key in inner]
KEYS += ["", *"seed rounds method.clusters method.payment.price task method . a.b.c task. é".split()]  # noqa: SIM905


def used(config: Config | None) -> None:
    """What every command does with a config: it shows it, builds the method and writes both down."""
    if config is not None:
        clean(lambda: commented_toml(config))
        method = clean(config.build_method)
        if method is not None:
            json.dumps(config.record([method]))


@pytest.mark.slow
def test_edited_toml(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"

    def check(content: bytes) -> None:
        path.write_bytes(content)
        used(clean(lambda: Config.load(path)))

    feed(250, edited([WHOLE, SHORT, SHORT], TOML) | st.binary(max_size=60), check)


@pytest.mark.slow
def test_trees() -> None:
    """Values of all kinds at all places: what a TOML file, or the header of a run, can hold."""
    trees = hostile(VALID) | st.dictionaries(st.sampled_from([*VALID, "x"]), TREES)
    feed(250, trees, lambda tree: used(clean(lambda: Config.of(tree))))


WORTH = st.one_of(
    SCALARS.map(lambda value: str(value).encode("utf-8", "replace").decode()),
    st.sampled_from(
        [
            "10:90", "[1, 2]", "{a = 1}", "1979-05-27", "07:32:00", "'x'", '"', "1\nseed = 2",
            "[" * 3000, "{a=" * 3000, "9" * 5000,
        ]
    ),
)  # fmt: skip


@pytest.mark.slow
def test_set() -> None:
    sets = st.lists(
        st.builds("{}={}".format, st.sampled_from(KEYS), WORTH) | st.text(max_size=12), max_size=3
    )
    feed(300, sets, lambda given: used(clean(lambda: Config.load(None, given))))


def test_labels_of_methods() -> None:
    names = st.sampled_from(["ipfl-plus", "fedavg", "local", "IPFL", "", " ", "ipfl.x", "os"])
    own = st.builds(
        "{}={}".format, st.sampled_from(["beta", "price", "clusters", "mix", "name", "", "a.b"]), WORTH
    )
    labels = st.lists(
        st.builds(lambda name, settings: ":".join([name, *settings]), names, st.lists(own, max_size=2))
        | st.text(max_size=8),
        max_size=3,
    )
    feed(250, labels, lambda given: clean(lambda: Config().build_methods(given)))


TASKS = {
    "dataset": ["digits", "npz", "", "x", "digits\0"],
    "path": ["nowhere.npz", "\0", "/", "a" * 5000],
    "distributions": ["permuted", "permuted:3", "permuted:" + "9" * 30, "permuted:" + "9" * 5000, "rotated:2",
                      "halves", "groups:2", "natural", "iid", "iid:1", "groups:²"],
    "partition": ["10:90", "1e2:0", "0:100", "linear", "random", "classes:1", "classes:1e300",
                  "dirichlet:0.5", "dirichlet:1e-320", "dirichlet:1e308", "natural", "33:67:1",
                  "nan:nan", "٣:97"],
    "swap_test_mix": [True],
    "clients": [1, 2, 3, 20, 10**6, 10**9, 2**63, 10**30],
    "samples": [1, 2, 60, 2**31, 2**62, 10**30, None],
    "sizes": ["unequal"],
    "size_spread": [1e-300, 100.0, 1e308],
    "probe": [1e-300, 0.999999, 0.5],
    "test_samples": [1, 2**62, 10**30],
    "server_samples": [1, 5, 2**62, 10**30],
    "unseen": [1, 5, 2**63, 10**30],
    "drift_round": [1, 2**63, 10**30],
    "drift_share": [1e-300, 1.0],
    "model": ["mlp", "softmax", "cnn", "", ":", "os:getcwd", "nope:x", "a:\0"],
}  # fmt: skip
"""Values that pydantic lets through, far out or contradictory."""


@pytest.mark.slow
def test_tasks() -> None:
    """Settings that are fine one by one, but not together or not with the data."""
    field = st.sampled_from([(key, value) for key, values in TASKS.items() for value in values])

    def check(chosen: dict[str, Any]) -> None:
        config = clean(lambda: Config.of({"task": {"dataset": "digits", "model": "softmax", **chosen}}))
        task = clean(lambda: Task.build(config.task, 0)) if config is not None else None
        if task is not None:
            task.data.parts(task.data.clients[0])

    feed(100, st.lists(field, min_size=1, max_size=4).map(dict), check)


class TestFound:
    """What fuzzing found, each by itself."""

    @pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000, "{a=" * 10_000], ids=["list", "9", "table"])
    def test_values_that_the_parser_gives_up_on(self, tmp_path: Path, value: str) -> None:
        (tmp_path / "c.toml").write_text(f"seed = {value}")
        refused(lambda: Config.load(tmp_path / "c.toml"), "not valid TOML")
        refused(lambda: Config.load(None, [f"seed={value}"]), "seed")
        refused(lambda: Config.load(None, [f"task.path={value}"]), "expected a file")

    @pytest.mark.parametrize(
        "settings, says",
        [
            *((settings, "settings by name") for settings in (None, "text", [1], 5)),
            *(
                ({"task": {key: 10**30}}, f"task.{key}")
                for key in ("clients", "samples", "test_samples", "server_samples", "unseen", "drift_round")
            ),
            ({"seed": 2**64}, "seed"),  # more than torch takes
        ],
    )
    def test_settings_that_no_run_can_have(self, settings: Any, says: str) -> None:
        refused(lambda: Config.of(settings), says)

    def test_a_billion_clients(self) -> None:
        config = Config.of({"task": {"dataset": "digits", "clients": 10**9, "samples": None}})
        refused(lambda: Task.build(config.task, 0), "training points")
