"""A server that puts its own keys between the clients of a secure sum: nodes that know each other refuse."""

import json

import pytest
from tests.runs.test_secure_sum import Clients, assert_sum, sum_of

from ipfl.client.secure_sum import KEYS, PLAN, PROOFS, SHARES
from ipfl.core import Record
from ipfl.core.masks import Secrets
from ipfl.deploy.credentials import write_key_pair
from ipfl.engines.flower.sum_identity import NodeIdentity, check_proof, keep_known_keys
from ipfl.errors import InputError
from ipfl.ledger.receipts import prepare_receipt_key

CLIENTS = 4
SESSION = "0/1/train"


def make_node(folder, client):
    """A node's memory folder with its keys; returns its public key."""
    memory = folder / str(client)
    memory.mkdir()
    write_key_pair(memory)
    prepare_receipt_key(memory, memory / "key")
    return " ".join((memory / "key.pub").read_text().split()[:2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Four nodes that know each other, and one of the server's own, which they do not know."""
    folder = tmp_path_factory.mktemp("nodes")
    known = {client: make_node(folder, client) for client in range(CLIENTS)}
    make_node(folder, 9)
    for client in (*known, 9):
        keep_known_keys(folder / str(client), known)
    return folder


def load(folder, client, attempt="run/1"):
    return NodeIdentity.load(folder / str(client), attempt)


def federation(folder, tmp_path, **settings):
    identities = {client: load(folder, client) for client in range(CLIENTS)}
    return Clients(folder=tmp_path, is_seeded=False, identities=identities, **settings)


def with_keys_of(client, keys, proof):
    """A server that passes on other keys and another proof to client 0."""

    def change(action, to, record):
        if (action, to) != (SHARES, 0):
            return record
        plan, proofs = json.loads(record.facts[PLAN]), list(record.facts[PROOFS])
        (place,) = [place for place, (one, _) in enumerate(plan["keys"]) if one == client]
        plan["keys"][place][1], proofs[place] = keys, proof
        return Record({}, {PLAN: json.dumps(plan), PROOFS: proofs})

    return change


def test_nodes_that_know_each_other_are_summed(folder, tmp_path):
    engine = federation(folder, tmp_path)
    assert_sum(sum_of(engine, CLIENTS), range(CLIENTS))
    proofs = [reply.facts["proof"] for step, _, _, reply in engine.seen if step == KEYS]
    assert len({*proofs}) == CLIENTS
    assert max(map(len, proofs)) < 1500


class TestTheServerInTheMiddle:
    OWN = Secrets.of(b"the server's own").public

    def test_nodes_without_a_list_believe_it(self, tmp_path):
        """What this protects from: without identities client 0 shares its secrets with the server."""
        engine = Clients(folder=tmp_path, is_seeded=False, change=with_keys_of(1, self.OWN, ""))
        sum_of(engine, CLIENTS)
        shared = [reply for step, client, _, reply in engine.seen if (step, client) == (SHARES, 0)]
        assert len(shared[0].facts["sealed"]) == CLIENTS

    @pytest.mark.parametrize(
        ("signer", "signed", "words"),
        [
            (1, {}, "not those that it has signed"),  # the true proof, of client 1's true keys
            (2, {}, "signed by another node"),
            (9, {}, "signed by another node"),  # a node that the server has registered itself
            (1, {"session": "0/2/train"}, "not those that it has signed"),
            (1, {"client": 3}, "not those that it has signed"),
            (1, {"attempt": "run/0"}, "not those that it has signed"),
            (None, {}, "has not signed"),
        ],
    )
    def test_nodes_with_a_list_refuse(self, folder, tmp_path, signer, signed, words):
        proof = ""
        if signer is not None:
            about = {"client": 1, "session": SESSION, "attempt": "run/1"} | signed
            of_what = self.OWN if signed or signer != 1 else Secrets.of(b"client 1's own").public
            proof = load(folder, signer, about["attempt"]).sign(about["client"], about["session"], of_what)
        engine = federation(folder, tmp_path, change=with_keys_of(1, self.OWN, proof))
        with pytest.raises(InputError, match=words):
            sum_of(engine, CLIENTS)

    def test_an_invented_client(self, folder):
        proof = load(folder, 9).sign(9, SESSION, self.OWN)
        with pytest.raises(InputError, match="client 9 is not in the list"):
            load(folder, 0).check(9, SESSION, self.OWN, proof)

    def test_a_key_for_which_the_registered_one_does_not_vouch(self, folder):
        content = json.loads(load(folder, 9).sign(1, SESSION, self.OWN))
        content["voucher"] = json.loads(load(folder, 1).sign(1, SESSION, self.OWN))["voucher"]
        with pytest.raises(InputError, match="not those that it has signed"):
            load(folder, 0).check(1, SESSION, self.OWN, json.dumps(content))


def test_a_node_without_a_list_takes_part_in_no_sum(tmp_path):
    make_node(tmp_path, 0)
    with pytest.raises(InputError, match=r"no list of the other nodes' keys \(peers\.txt"):
        load(tmp_path, 0)
    keep_known_keys(tmp_path / "0", {0: "x"})
    assert load(tmp_path, 0).known == {0: "x"}
    keep_known_keys(tmp_path / "0", None)
    with pytest.raises(InputError, match="no list"):
        load(tmp_path, 0)
    assert NodeIdentity.load(tmp_path / "of an own app", "run/1") is None


@pytest.mark.parametrize(
    "proof", ["", "[]", "{}", "[" * 2000, '{"public_key": 1, "signature": 2, "voucher": 3}']
)
def test_proofs_that_are_none(proof):
    with pytest.raises(InputError, match="has not signed"):
        check_proof("run/1", 0, SESSION, ["x"], proof, lambda client, key: True)
