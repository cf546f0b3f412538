"""Nodes with registered keys sign receipts and keys of sums, and hold the server to what they insist on."""

import json

import numpy as np
import pytest
from tests.engines.flower.loopback import Loopback

from ipfl.deploy.federation_folder import create_folder
from ipfl.deploy.node.supernode import prepare_node
from ipfl.deploy.peers import peers_text, read_peers
from ipfl.deploy.registry import Registry
from ipfl.deploy.server_app import ServerConfig, run_server
from ipfl.engines.flower.node_app import NodeApp
from ipfl.errors import InputError
from ipfl.ledger.receipts import VOUCHER_FILE, read_receipt
from ipfl.play.summed_replies import _SecureSum

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
contribution = "clients"
[privacy]
secure_sum = "gradients"
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


def test_sums_and_receipts_of_registered_nodes(folder):
    result = play(folder, started(folder))
    assert events(result) == []
    assert all(one.psi is not None for line in result.history for one in line["contributions"])
    for client in range(4):
        receipt = read_receipt(json.loads((folder.runs / "run-1/receipts" / f"{client}.json").read_text()))
        key = folder.node_folder(client).public_key.read_text().strip()
        assert (receipt.account.client, receipt.voucher.node_key) == (client, key)


def test_a_node_with_another_list_takes_no_part_in_the_sum(folder):
    """Client 1 has another key of client 2 in its list than the server passes on."""
    peers = folder.node_folder(1).peers_file
    keys = peers.read_text().splitlines()[-4:]
    peers.write_text("\n".join([keys[0], keys[1], "2" + keys[3][1:], "3" + keys[2][1:]]))
    result = play(folder, started(folder))
    assert ("client_failed", 1) in events(result)
    texts = {event.text for line in result.history for event in line["events"] if event.client == 1}
    assert any("signed by another node than the one that is known" in text for text in texts)
    # The other three are enough.
    assert ("sum_failed", None) not in events(result)


def test_a_server_that_asks_for_no_agreement_opens_nothing(folder, monkeypatch):
    """An event about each node that refuses, in both rounds; the run goes on, without contributions."""
    monkeypatch.setattr(
        _SecureSum, "_agree", lambda self, plan, delivered: dict.fromkeys(delivered, "signed")
    )
    result = play(folder, started(folder))
    refused = [("client_failed", client) for client in range(4)]
    assert events(result) == 2 * [*refused, ("sum_failed", None)]
    texts = {event.text for line in result.history for event in line["events"] if event.client == 3}
    assert all("0 nodes have signed the list of who delivered" in text for text in texts)
    assert all(one.psi is None for line in result.history for one in line["contributions"])


def test_one_node_that_signs_nothing_does_not_stop_the_others(folder):
    """A client whose voucher is another node's: the server leaves it out before the others see it."""
    grid = started(folder)
    memories = [folder.node_folder(client).root / "memory" for client in (0, 3)]
    (memories[1] / VOUCHER_FILE).write_text((memories[0] / VOUCHER_FILE).read_text())
    result = play(folder, grid)
    assert {("malformed_reply", 3), ("no_receipt", 3)} <= {*events(result)}
    assert {client for _, client in events(result)} == {3}
    assert ("sum_failed", None) not in events(result)
    assert not (folder.runs / "run-1/receipts/3.json").exists()


def test_a_receipt_for_which_nobody_vouches_is_none(folder):
    grid = started(folder)
    (folder.node_folder(3).root / "memory" / VOUCHER_FILE).unlink()
    folder.config_file.write_text(CONFIG.replace("gradients", "off"))
    result = play(folder, grid)
    assert {*events(result)} == {("no_receipt", 3)}


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ('least_secure_sum = "all"', 'privacy.secure_sum = "gradients", this node wants "all"'),
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


def test_a_server_that_calls_everything_summed_of_a_method_that_sends_single_replies(folder, monkeypatch):
    """The server's own check is taken out, as a malicious one would do: the nodes have theirs."""
    from ipfl.play import summed_replies as secure_sum

    monkeypatch.setattr(secure_sum, "refuse_single_replies", lambda method: None)
    folder.config_file.write_text(CONFIG.replace("gradients", "all"))
    with pytest.raises(InputError, match=r"0 of 4 clients came.*ipfl needs single replies for contributions"):
        play(folder, started(folder))


class TestPeers:
    def test_the_list_that_init_writes_is_the_accounts(self, folder):
        registry = Registry.load(folder.accounts_file)
        for client in range(4):
            found = read_peers(folder.node_folder(client).peers_file)
            assert found == {account.client: account.key for account in registry.accounts}
        assert read_peers(folder.root / "none") is None

    @pytest.mark.parametrize("line", ["3 {key}", "x y", "7 ssh-rsa AAAA", "7", "\0", "٣ {key}"])
    def test_other_lists_are_refused_with_the_line(self, folder, line):
        path, key = folder.node_folder(0).peers_file, folder.node_folder(3).public_key.read_text()
        path.write_text(path.read_text() + line.format(key=key.strip()))
        with pytest.raises(InputError, match=r"peers\.txt, line \d+: "):
            prepare_node(folder.node_folder(0))

    def test_the_text_has_fingerprints_to_compare(self, folder):
        registry = Registry.load(folder.accounts_file)
        assert registry.accounts[2].fingerprint in peers_text(registry)
