"""Nodes are told what the ledger says of their accounts, check it, and keep it."""

import json
from itertools import pairwise

import pytest
from tests.engines.flower.loopback import TINY, Loopback, engine_factory, join_nodes, run
from tests.small_runs import InterruptAfter

import ipfl
from ipfl.config.whole_config import Config
from ipfl.engines.flower.account_statements import DENIED_FILE, STATEMENTS_FILE, keep_statement
from ipfl.engines.flower.message_headers import AskHeader
from ipfl.engines.flower.messages import unpack
from ipfl.errors import InputError
from ipfl.keep.signing_keys import key_beside
from ipfl.ledger.signing import SigningKey
from ipfl.ledger.statements import AccountMove, parse_statements
from ipfl.ledger.store import RunStore
from ipfl.training.task import Task

SETTINGS = Config(rounds=3, task=TINY, method={"name": "ipfl-plus"})


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A run of three rounds over six nodes: its folder, the nodes' folder, and the grid."""
    folder, grid = tmp_path_factory.mktemp("told"), Loopback()
    join_nodes(grid, folder / "nodes", 6)
    run(SETTINGS, engine_factory(grid, SETTINGS), out=folder / "run")
    return folder / "run", folder / "nodes" / "memory", grid


def kept(nodes):
    """What each client's node keeps, the newest last."""
    return {
        int(path.parent.name): parse_statements(path.read_text())
        for path in nodes.glob(f"*/*/{STATEMENTS_FILE}")
    }


@pytest.fixture
def signed(played):
    """The store, as a server that has the key."""
    return RunStore.open(played[0], key=SigningKey.read(key_beside(played[0])))


def test_every_node_keeps_a_line_for_each_round(played):
    folder, nodes, _ = played
    found = kept(nodes)
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    store = RunStore.open(folder)
    for client, statements in found.items():
        # Of the last round nobody was asked after its commit.
        assert statements[-1].round == 1
        assert len(statements) > 1
        for told in statements:
            assert (told.client, told.balance) == (client, store.balances(told.round)[client])
            assert store.denial(told) is None


def test_a_statement_travels_once_and_brings_only_what_is_new(played):
    _, _, grid = played
    told = [unpack(message.content)[0] for message in grid.sent]
    of_three = [head["statement"] for head in told if head.get("client") == 3 and "statement" in head]
    assert len(of_three) >= 2
    assert of_three[0]["moved"][0][0] == -1
    for before, later in pairwise(of_three):
        assert later["since"] == before["round"] < later["round"]
        assert all(moved[0] > before["round"] for moved in later["moved"])
    assert len(of_three) < sum(head.get("client") == 3 for head in told)


def test_a_resumed_server_tells_all_again_and_nodes_go_on(tmp_path):
    grid = Loopback()
    join_nodes(grid, tmp_path / "nodes", 6)
    task = Task.build(SETTINGS.task, SETTINGS.seed)
    method, make = SETTINGS.build_method(), engine_factory(grid, SETTINGS)
    with pytest.raises(ipfl.Interrupted):
        ipfl.run(task, method, SETTINGS, engine=make, out=tmp_path / "run", observer=InterruptAfter(0))
    result = run(SETTINGS, make, ipfl.RunOutput(tmp_path / "run", resume=True))
    assert result.summary["rounds"] == 3
    assert not [event for line in result.history for event in line["events"]]
    assert {one[-1].round for one in kept(tmp_path / "nodes" / "memory").values()} == {1}


def ask_with(statement, client=3):
    return AskHeader(client, 2, 1, "0" * 32, (0,), "0" * 32, 1, {}, {}, statement.to_json())


@pytest.mark.parametrize("since", [None, 1])
def test_what_the_operator_denies_is_refused_and_kept_as_proof(signed, tmp_path, since):
    """The operator takes a token from client 3 in round 0 and signs again; the node has the old line."""
    before, true = signed.statement(3, 1), signed.statement(3, 2, since)
    assert keep_statement(tmp_path, ask_with(before))
    first = (tmp_path / STATEMENTS_FILE).read_text()
    fine = (AccountMove(0, "fee", 3, -3, 1, 0),) if since is None else ()
    moved = tuple(sorted((*true.moved, *fine), key=lambda one: one.round))
    forged = true.model_copy(update={"balance": true.balance - 1, "moved": moved}).signed(signed.key)
    with pytest.raises(InputError, match=f"{before.balance} tokens after round 1; its word on round 2"):
        keep_statement(tmp_path, ask_with(forged))
    assert (tmp_path / STATEMENTS_FILE).read_text() == first
    both = [json.loads(line) for line in (tmp_path / DENIED_FILE).read_text().splitlines()]
    assert both == [before.to_json(), forged.to_json()]


def test_another_story_of_the_same_round_is_refused(signed, tmp_path):
    assert keep_statement(tmp_path, ask_with(signed.statement(3, 1)))
    assert keep_statement(tmp_path, ask_with(signed.statement(3, 1)))  # as a resumed server tells it
    other = signed.statement(3, 1).model_copy(update={"hash": "0" * 64}).signed(signed.key)
    with pytest.raises(InputError, match="says something else of round 1 than before"):
        keep_statement(tmp_path, ask_with(other))
    assert len((tmp_path / STATEMENTS_FILE).read_text().splitlines()) == 1


def test_a_gap_asks_for_all(signed, tmp_path):
    assert not keep_statement(tmp_path, ask_with(signed.statement(3, 2, since=1)))  # nothing is known yet
    assert keep_statement(tmp_path, ask_with(signed.statement(3, -1)))
    assert not keep_statement(tmp_path, ask_with(signed.statement(3, 2, since=1)))
    assert keep_statement(tmp_path, ask_with(signed.statement(3, 2)))
    rounds = [one.round for one in parse_statements((tmp_path / STATEMENTS_FILE).read_text())]
    assert rounds == [-1, 2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"signature": None, "public_key": None}, "did not sign"),
        ({"balance": 1}, "the signature of the account statement is false"),
    ],
)
def test_what_proves_nothing_is_refused(signed, tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        keep_statement(tmp_path, ask_with(signed.statement(3).model_copy(update=change)))
    with pytest.raises(InputError, match="the account of client 3"):
        keep_statement(tmp_path, ask_with(signed.statement(3), client=4))
    assert not (tmp_path / STATEMENTS_FILE).exists()
