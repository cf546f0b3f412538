"""Nodes with registered keys hold the server to what they insist on."""

import numpy as np
import pytest
from tests.engines.flower.loopback import Loopback

from ipfl.deploy.federation_folder import create_folder
from ipfl.deploy.node.supernode import prepare_node
from ipfl.deploy.server_app import ServerConfig, run_server
from ipfl.engines.flower.node_app import NodeApp
from ipfl.errors import InputError

CONFIG = """\
rounds = 2
[task]
model = "softmax"
[train]
per_round = 4
epochs = 1
[method]
name = "ipfl-plus"
clusters = 1
contribution.rule = "paper"
"""


@pytest.fixture
def folder(tmp_path):
    """A federation of four nodes, each with its data."""
    folder = create_folder(tmp_path / "federation", nodes=4)
    rng = np.random.default_rng(0)
    for client in range(4):
        x, y = rng.normal(size=(30, 5)).astype(np.float32), np.arange(30) % 3
        np.savez(folder.node_folder(client).root / "data.npz", x=x, y=y)
    folder.config_file.write_text(CONFIG)
    return folder


def started(folder, clients=range(4)):
    """A grid with the nodes, as `ipfl deploy node` starts them."""
    grid = Loopback()
    for client in clients:
        node = folder.node_folder(client)
        settings = prepare_node(node)
        config = {"client": client, "data": str(settings.data), "memory": str(settings.memory)}
        grid.join(10 + client, NodeApp(), node.public_key.read_bytes(), **config, **settings.limits())
    return grid


def play(folder, grid, nodes=4):
    values = {"config": folder.config_file, "out": folder.runs / "run-1", "registry": folder.accounts_file}
    config = {key: str(value) for key, value in values.items()} | {"nodes": nodes, "wait": 0.0}
    return run_server(grid, ServerConfig.read(config))


def events(result):
    return [(event.kind, event.client) for line in result.history for event in line["events"]]


def test_registered_nodes_play_without_events(folder):
    assert events(play(folder, started(folder))) == []


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("least_noise = 0.5", "privacy.noise = 0, this node wants 0.5 or more"),
        ("most_epsilon = 8", "no privacy.epsilon at delta = 1e-05, this node wants 8 or less"),
    ],
)
def test_a_node_refuses_runs_that_protect_too_little(folder, limit, words):
    name = limit.split(" = ")[0]
    file = folder.node_folder(2).settings_file
    kept = [line for line in file.read_text().splitlines() if not line.startswith(name)]
    file.write_text("\n".join([*kept, limit]))
    with pytest.raises(InputError, match="3 of 4 clients came") as refused:
        play(folder, started(folder))
    assert words in str(refused.value)
    assert play(folder, started(folder), nodes=3).summary["rounds"] == 2  # the others go on


@pytest.mark.parametrize(
    ("privacy", "is_accepted"),
    [
        ("noise = 1.0\nepsilon = 8.0", True),
        ("noise = 1.0\nepsilon = 8.1", False),
        ("noise = 1.0\nepsilon = 8.0\ndelta = 0.5", False),
    ],
)
def test_a_budget_means_something_only_with_a_small_delta(folder, privacy, is_accepted):
    folder.config_file.write_text(
        f'rounds = 1\n[task]\nmodel = "softmax"\n[method]\nname = "fedavg"\n[privacy]\n{privacy}\n'
    )
    for client in range(4):
        file = folder.node_folder(client).settings_file
        file.write_text(file.read_text() + "\nmost_epsilon = 8.0\n")
    if is_accepted:
        assert play(folder, started(folder)).summary["rounds"] == 1
    else:
        with pytest.raises(InputError, match=r"this node wants 8 or less at 1e-05 or less"):
            play(folder, started(folder))
