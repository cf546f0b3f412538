"""Nodes are told what the ledger says of their accounts, check it, and keep it."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.engines.flower.loopback import TINY, Loopback, engine_factory, join_nodes, run
from tests.ledger.test_verify import change_without_triggers
from tests.small_runs import InterruptAfter
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app as cli
from ipfl.config.run_config import Config
from ipfl.deploy.credentials import write_key_pair
from ipfl.engines.flower.account_statements import (
    DENIED_FILE,
    RECEIPT_FILE,
    STATEMENT_FILE,
    check_receipt,
    countersign,
    keep_statement,
)
from ipfl.engines.flower.message_headers import AskHeader
from ipfl.engines.flower.messages import unpack
from ipfl.errors import InputError
from ipfl.keep.run_audit import Audit, key_beside
from ipfl.keep.run_folder import RECEIPTS
from ipfl.ledger.receipts import (
    RECEIPT_KEY_FILE,
    VOUCHER_FILE,
    Voucher,
    prepare_receipt_key,
    read_receipt,
)
from ipfl.ledger.signing import SigningKey
from ipfl.ledger.statements import SignedHead, denial, read_statement
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
    return {int(path.parent.name): path for path in nodes.glob(f"*/*/{STATEMENT_FILE}")}


def test_every_node_keeps_what_it_was_told(played):
    folder, nodes, _ = played
    files = kept(nodes)
    assert sorted(files) == [0, 1, 2, 3, 4, 5]
    with RunStore.open(folder) as store:
        for client, path in files.items():
            told = read_statement(json.loads(path.read_text()))
            assert told.account.client == client
            assert told.head.round >= 1  # of the last round nobody was asked after its commit
            assert told.account.balance == store.balances(told.head.round)[client]
            assert denial(told, store) is None


def test_a_statement_travels_once_and_brings_only_what_is_new(played):
    _, _, grid = played
    told = [unpack(message.content)[0] for message in grid.sent]
    of_three = [head["statement"] for head in told if head.get("client") == 3 and "statement" in head]
    rounds = [one["head"]["round"] for one in of_three]
    assert rounds == sorted({*rounds})
    assert len(rounds) >= 2
    assert of_three[0]["entries"][0][0] == -1
    for before, later in pairwise(of_three):
        assert all(round > before["head"]["round"] for round, _ in later["entries"])
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
    assert {read_statement(json.loads(p.read_text())).head.round for p in kept(tmp_path).values()} <= {1, 2}


def ask_with(statement, client=3):
    return AskHeader(client, 2, 1, "0" * 32, (0,), "0" * 32, 1, False, {}, {}, statement)


def signed_by_server(folder, statement, entry):
    """A statement with one more entry, as a server that has the key can make it; its tree has one account."""
    account = statement.account.after(entry)
    head = replace(statement.head, accounts=account.leaf().hex())
    signed = SignedHead.make(head, SigningKey.read(key_beside(folder)))
    entries = [*statement.entries, entry]
    return replace(
        statement, account=account, index=0, size=1, path=[], signed=signed, head=head, entries=entries
    )


@pytest.mark.parametrize("round", [0, 1, 9])
def test_a_server_cannot_spoil_what_a_node_keeps(played, tmp_path, round):
    """Transfers of a round that was told before once replaced the proof by one that proves nothing."""
    folder, late = played[0], (round, [["reward", -3, 3, 5, 0]])
    with RunStore.open(folder) as store:
        first, later = store.statement(3, 1), store.statement(3, 2)
    assert keep_statement(tmp_path, ask_with(first.to_json()))
    forged = signed_by_server(folder, replace(first, head=later.head), late)
    for told in (forged, replace(forged, start=first.account, entries=[late])):
        with pytest.raises(InputError, match=r"not in the order of its rounds|told before"):
            keep_statement(tmp_path, ask_with(told.to_json()))
        assert read_statement(json.loads((tmp_path / STATEMENT_FILE).read_text())) == first


def test_what_the_operator_denies_is_refused_and_kept_as_proof(played, tmp_path):
    """The operator takes a token from client 3 and signs again; the node has the old statement."""
    folder, nodes, _ = played
    first = kept(nodes)[3].read_text()
    (tmp_path / STATEMENT_FILE).write_text(first)
    with RunStore.open(folder) as store:
        true = store.statement(3, 2)
    opening = true.entries[0]
    forged_entries = [(-1, [["open", -1, 3, opening[1][0][3] - 1, -1]]), *true.entries[1:]]
    account = true.start
    for entry in forged_entries:
        account = account.after(entry)
    head = replace(true.head, accounts=account.leaf().hex())
    signed = SignedHead.make(head, SigningKey.read(key_beside(folder)))
    forged = replace(
        true, account=account, index=0, size=1, path=[], signed=signed, head=head, entries=forged_entries
    )
    with pytest.raises(InputError, match="does not follow from that"):
        keep_statement(tmp_path, ask_with(forged.to_json()))
    assert (tmp_path / STATEMENT_FILE).read_text() == first
    both = [
        read_statement(json.loads((tmp_path / name).read_text())) for name in (STATEMENT_FILE, DENIED_FILE)
    ]
    assert both[0].signed.public_key == both[1].signed.public_key


def test_a_gap_asks_for_all(played, tmp_path):
    folder, _, _ = played
    with RunStore.open(folder) as store:
        assert keep_statement(tmp_path, ask_with(store.statement(3, -1).to_json()))
        later = store.statement(3, 2, since=1)
        if later.start != store.statement(3, -1).account:  # client 3 moved tokens in rounds 0 or 1
            assert not keep_statement(tmp_path, ask_with(later.to_json()))
        assert keep_statement(tmp_path, ask_with(store.statement(3, 2).to_json()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(signature=None, public_key=None), "did not sign"),
        (lambda c: c["account"].update(balance=1), "not among those that were signed"),
    ],
)
def test_what_proves_nothing_is_refused(played, tmp_path, change, words):
    with RunStore.open(played[0]) as store:
        content = json.loads(json.dumps(store.statement(3).to_json()))
    change(content)
    with pytest.raises(InputError, match=words):
        keep_statement(tmp_path, ask_with(content))
    with pytest.raises(InputError, match="the account of client 3"), RunStore.open(played[0]) as store:
        keep_statement(tmp_path, ask_with(store.statement(3).to_json(), client=4))
    assert not (tmp_path / STATEMENT_FILE).exists()


def test_changed_ledgers_are_denied_by_kept_statements(played, tmp_path):
    folder, nodes, _ = played
    shutil.copytree(folder, tmp_path / "run")
    told = read_statement(json.loads(kept(nodes)[3].read_text()))
    with RunStore.open(tmp_path / "run") as store:
        change_without_triggers(
            store, "UPDATE transfers SET amount = amount + 1 WHERE client = 3 AND round = -1"
        )
        assert "tokens after round" in denial(told, store)


class TestReceipts:
    """Nodes sign what they were told; the server keeps it, and cannot be told otherwise later."""

    def test_server_and_node_keep_the_same_receipt(self, played):
        folder, nodes, _ = played
        for client, path in kept(nodes).items():
            of_node = json.loads((path.parent / RECEIPT_FILE).read_text())
            of_server = json.loads((folder / RECEIPTS / f"{client}.json").read_text())
            receipt = read_receipt(of_server)
            assert of_node == of_server
            assert receipt.account == read_statement(json.loads(path.read_text())).account
            with RunStore.open(folder) as store:
                assert denial(receipt, store) is None

    def test_receipts_are_among_the_files_that_the_closing_covers(self, played, tmp_path):
        shutil.copytree(played[0], tmp_path / "run")
        shutil.copy(key_beside(played[0]), tmp_path)
        (tmp_path / "run" / RECEIPTS / "3.json").write_text("{}")
        with RunStore.open(tmp_path / "run") as store:
            finding = Audit(store, tmp_path / "run", None, None, None).finding()
        assert f"{RECEIPTS}/3.json" in str(finding)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda c: c["account"].update(balance=1), "signature of the receipt is false"),
            (lambda c: c["head"].update(round=0), "signature of the receipt is false"),
            (lambda c: c.update(voucher={"node_key": "ecdsa x", "signature": "00"}), "does not vouch"),
            (lambda c: c.pop("head"), "no receipt"),
            (lambda c: c.update(public_key="x"), "no receipt"),
            (lambda c: c.update(format=2), "no receipt"),
        ],
    )
    def test_a_changed_receipt_proves_nothing(self, played, change, words):
        content = json.loads((played[0] / RECEIPTS / "3.json").read_text())
        read_receipt(content)
        change(content)
        with pytest.raises(InputError, match=words):
            read_receipt(content)

    def test_the_key_of_the_node_vouches_for_the_key_of_the_receipt(self, played, tmp_path):
        with RunStore.open(played[0]) as store:
            told = store.statement(3)
        node, other = tmp_path / "node", tmp_path / "other"
        for folder in (node, other):
            folder.mkdir()
            write_key_pair(folder)
            prepare_receipt_key(folder, folder / "key")
        assert keep_statement(node / "run", ask_with(told.to_json()))
        receipt = countersign(node / "run", node)
        assert receipt.voucher.node_key == (node / "key.pub").read_text().strip()
        assert read_receipt(receipt.to_json()) == receipt
        assert (node / RECEIPT_KEY_FILE).stat().st_mode & 0o077 == 0
        # The voucher of another node is not good for this key.
        foreign = Voucher(**json.loads((other / VOUCHER_FILE).read_text()))
        with pytest.raises(InputError, match="does not vouch"):
            read_receipt(replace(receipt, voucher=foreign).to_json())

    def test_a_node_that_signs_something_else(self, played):
        with RunStore.open(played[0]) as store:
            now, before = store.statement(3, 2).to_json(), store.statement(3, 0).to_json()
        content = json.loads((played[0] / RECEIPTS / "3.json").read_text())
        told = next(one for one in (now, before) if one["head"] != content["head"])
        for given, words in ((None, "sent none"), (content, "another statement")):
            with pytest.raises(InputError, match=words):
                check_receipt(given, told)

    def test_the_command_takes_receipts(self, played, tmp_path):
        path, run_command = played[0] / RECEIPTS / "3.json", CliRunner().invoke
        found = run_command(cli, ["ledger", "check", str(path), "--against", str(played[0])])
        assert found.exit_code == 0, found.output
        assert "client 3 was told that it has" in found.output
        shutil.copytree(played[0], tmp_path / "run")
        with RunStore.open(tmp_path / "run") as store:
            change_without_triggers(
                store, "UPDATE transfers SET amount = amount + 1 WHERE client = 3 AND round = -1"
            )
        found = run_command(cli, ["ledger", "check", str(path), "--against", str(tmp_path / "run")])
        assert found.exit_code == 1
        content = json.loads(path.read_text()) | {"signature": "00"}
        (tmp_path / "false.json").write_text(json.dumps(content))
        assert run_command(cli, ["ledger", "check", str(tmp_path / "false.json")]).exit_code == 1
