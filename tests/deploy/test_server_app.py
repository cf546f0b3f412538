"""The server over nodes with data of their own: it learns what it may know, and refuses what does not fit."""

import json

import numpy as np
import pytest
from tests.engines.flower.loopback import Loopback
from torch import nn

from ipfl.core import Event
from ipfl.deploy.server_app import run_server
from ipfl.deploy.settings_files import ServerConfig
from ipfl.engines.flower.flower_engine import RemoteData
from ipfl.engines.flower.node_app import NodeApp
from ipfl.engines.flower.node_memory import DataDescription
from ipfl.errors import InputError
from ipfl.training.architectures import model_factory
from ipfl.training.task import Task

CLASSES = 3


def points(seed, n=40, features=4):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, features)).astype(np.float32)
    return x, np.arange(n) % CLASSES


@pytest.fixture
def place(tmp_path):
    (tmp_path / "run.toml").write_text(
        'rounds = 2\n[task]\nmodel = "softmax"\n[method]\nname = "ipfl-plus"\n[evaluate]\nevery = 1\n'
    )
    return tmp_path


def file(place, name, x, y, **more):
    np.savez(place / f"{name}.npz", x=x, y=y, **more)
    return str(place / f"{name}.npz")


def joined(grid, place, client, node=None, **data):
    x, y = points(client)
    path = file(place, client, **({"x": x, "y": y} | data))
    grid.join(node or 10 + client, NodeApp(), client=client, data=path, memory=str(place / f"node-{client}"))


@pytest.fixture
def grid(place):
    grid = Loopback()
    for client in (0, 1, 4):
        joined(grid, place, client)
    return grid


def server_config(place, **changes):
    return ServerConfig.read(
        {
            "config": str(place / "run.toml"),
            "out": str(place / "out"),
            "nodes": 3,
            "wait": 0.0,
            "registry": "",
        }
        | changes
    )


def enumerate_balances(result):
    """(client, tokens) at the end of a run."""
    return zip((0, 1, 4), result.summary["report"]["balances"], strict=True)


class TestRun:
    def test_the_server_learns_shape_and_classes_and_keeps_books(self, grid, place, capsys):
        result = run_server(grid, server_config(place))
        assert result.summary["input_shape"] == [4]
        assert result.summary["classes"] == CLASSES
        assert set(result.last.personalized) == {0, 1, 4}
        assert len(result.summary["report"]["balances"]) == 3
        assert result.summary["cluster_accuracy"] is None  # nobody has a test pool of a distribution
        printed = capsys.readouterr().out.splitlines()
        assert printed[0] == "ipfl: ipfl-plus: 2 rounds"
        assert printed[-1].startswith("ipfl: 2 of 2 rounds: 3 clients, ")

    def test_balances_outlive_a_run(self, grid, place):
        """The second run opens with what the first left."""
        first = run_server(grid, server_config(place, accounts="club"))
        second = run_server(grid, server_config(place, out=str(place / "second"), accounts="club"))
        opened = {transfer.target: transfer.amount for transfer in second.opening}
        assert opened == dict(enumerate_balances(first))
        assert (place / "club.accounts.json").exists()
        with pytest.raises(InputError, match="plain name"):
            run_server(grid, server_config(place, out=str(place / "third"), accounts="../club"))

    def test_a_node_with_far_more_points_counts_ten_times_the_median(self, grid, place):
        """FedAvg counts every point; on nodes, where nobody can count them, there is a limit."""
        config = place / "run.toml"
        config.write_text(config.read_text().replace('"ipfl-plus"', '"fedavg"') + "[train]\nper_round = 3\n")
        x, y = points(4, n=4000)
        joined(grid, place, 4, x=x, y=y)
        result = run_server(grid, server_config(place, out=str(place / "limited")))
        assert result.summary["config"]["aggregate"]["max_weight"] == 10
        (limited,) = {event for line in result.history for event in line["events"]}
        assert limited[:2] == ("weight_limited", 4)

    def test_a_cluster_with_one_provider_stays_as_it_is(self, grid, place):
        """Else its buyers, who know the model before, would know the provider's update."""
        config = place / "run.toml"
        config.write_text(config.read_text().replace("[evaluate]", "guards.rule = 'paper'\n[evaluate]"))
        result = run_server(grid, server_config(place, rounds=1))
        (line,) = result.history
        providers = [[s.client for s in line["seats"] if s.cluster == k and s.delivered] for k in (0, 1)]
        assert sorted(map(len, providers)) == [1, 2], "three nodes are dealt to two clusters"
        alone = min((0, 1), key=lambda k: len(providers[k]))
        before = Task(RemoteData(DataDescription((0, 1, 4), (4,), CLASSES)), model_factory("softmax"))
        start = before.network(0).read()
        assert np.array_equal(result.models[f"cluster_{alone}"], start)
        assert not np.array_equal(result.models[f"cluster_{1 - alone}"], start)
        told = f"cluster_{alone} stays as it is: fewer than 2 updates to it counted"
        assert line["events"] == (Event("too_few_providers", None, told),)

    @pytest.mark.parametrize("setting", ["[train]\nper_round = 1", "[aggregate]\nmin_providers = 4"])
    def test_a_federation_whose_models_would_never_move_is_refused(self, grid, place, setting):
        config = place / "run.toml"
        config.write_text(config.read_text() + setting)
        with pytest.raises(InputError, match="no model would ever move"):
            run_server(grid, server_config(place))
        assert not (place / "out").exists()

    @pytest.mark.parametrize(
        ("clients", "seconds"), [("[clients]\ndeadline = 40\n", 40), ("", 50)], ids=["config", "app"]
    )
    def test_messages_live_as_long_as_their_deadline(self, grid, place, clients, seconds):
        """The config's deadline is for clients in a round; the app's holds for everything else."""
        config = place / "run.toml"
        config.write_text(config.read_text() + clients)
        run_server(grid, server_config(place, deadline=50.0))
        lives = {message.metadata.message_type: message.metadata.ttl for message in grid.sent}
        assert (lives.pop("query.hello"), lives.pop("evaluate")) == (50, 50)
        assert len(lives) > 1
        assert set(lives.values()) == {seconds}

    def test_no_point_leaves_its_node(self, grid, place):
        """No message holds a row of anybody's data."""
        arrived = []
        grid.fault = lambda ask, reply: arrived.append(reply) or reply
        run_server(grid, server_config(place))
        rows = [row.tobytes() for client in (0, 1, 4) for row in points(client)[0]]
        sent = [array.data for reply in arrived for array in reply.content["arrays"].values()]
        assert sent
        assert not any(row in data for row in rows for data in sent)

    def test_a_resumed_run_is_the_run_that_was_begun(self, grid, place):
        """With fewer nodes, none of which has seen the last class, it has its clients and classes."""
        run_server(grid, server_config(place))
        run = json.loads((place / "out/flower.json").read_text())["run"]
        assert {path.parent.name for path in place.glob(f"node-*/{run}/*/*")} == {"0", "1", "4"}
        grid.leave(11)
        grid.leave(14)
        x, y = points(0)
        joined(grid, place, 0, x=x[y < 2], y=y[y < 2])
        again = run_server(grid, server_config(place, resume=True, nodes=1))
        assert again.summary["classes"] == CLASSES
        assert again.summary["clients"] == 3

    def test_tables_on_the_nodes(self, place):
        """Each node has a CSV file with two of the three classes; the run's config says their order."""
        (place / "run.toml").write_text(
            'rounds = 1\n[task]\nmodel = "softmax"\ntarget = "y"\nclass_names = ["a", "b", "c"]\n'
        )
        grid = Loopback()
        for client, labels in enumerate(("ab", "bc")):
            rows = "\n".join(f"{number},{number % 5},{labels[number % 2]}" for number in range(20))
            (place / f"{client}.csv").write_text(f"age,dose,y\n{rows}\n")
            data = {"data": str(place / f"{client}.csv"), "memory": str(place / f"node-{client}")}
            grid.join(10 + client, NodeApp(), client=client, **data)
        result = run_server(grid, server_config(place, nodes=2, classes=3))
        assert (result.summary["classes"], result.summary["input_shape"]) == (3, [2])
        assert set(result.last.personalized) == {0, 1}

    def test_a_model_of_ones_own(self, place):
        def model(shape, classes):
            return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, classes))

        grid = Loopback()
        for client in (0, 1):
            app = NodeApp(lambda context: points(context.node_config["partition-id"]), model)
            config = {"partition-id": client, "num-partitions": 2, "memory": str(place / f"node-{client}")}
            grid.join(10 + client, app, **config)
        result = run_server(grid, server_config(place, nodes=2), model)
        size = 4 * 5 + 5 + 5 * CLASSES + CLASSES
        assert {len(vector) for vector in result.models.values()} == {size}
        # The summary tells of the app's own data, network and clients, not of those that a config would name.
        told = result.summary
        assert (told["dataset"], told["partition"], told["clients"]) == ("remote", "own", 2)
        assert (told["input_shape"], told["classes"], told["model"]) == ([4], CLASSES, None)
        assert "task" not in told["config"]
        with pytest.raises(InputError, match=rf"has a model of {size} parameters, not 15"):
            run_server(grid, server_config(place, nodes=2, out=str(place / "other")))  # softmax: 4 · 3 + 3


class TestRefused:
    def test_more_classes_than_the_run_has(self, grid, place):
        with pytest.raises(InputError, match=r"cannot take part: .*the label 2, but classes = 2"):
            run_server(grid, server_config(place, classes=2))

    def test_data_that_cannot_be_read(self, place):
        grid = Loopback()
        config = {"client": 0, "data": str(place / "run.toml"), "memory": str(place / "node")}
        grid.join(10, NodeApp(), **config)
        with pytest.raises(InputError, match=r"node 10 cannot take part: .*run.toml"):
            run_server(grid, server_config(place, nodes=1))

    def test_a_node_without_a_name(self, place):
        grid = Loopback()
        x, y = points(0)
        grid.join(10, NodeApp(), data=file(place, 0, x, y), memory=str(place / "node"))
        with pytest.raises(InputError, match="started without client or partition-id"):
            run_server(grid, server_config(place, nodes=1))

    @pytest.mark.parametrize(
        ("said", "why"),
        [
            ({"out": ""}, "out Field required"),
            ({"deadline": -1}, "deadline"),
            ({"dealine": 3}, "dealine"),
            ({"config": "nowhere.toml"}, "cannot read config nowhere.toml"),
        ],
    )
    def test_run_configs(self, grid, place, said, why):
        with pytest.raises(InputError, match=why):
            run_server(grid, server_config(place, **said))
