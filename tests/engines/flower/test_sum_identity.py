"""A server that lies in a secure sum, of keys or of who delivered: nodes that know each other refuse."""

import json

import pytest
from tests.play.test_summed_replies import SUMS, UPDATE, Clients, assert_sum, sum_of

from ipfl.client.runner import Job
from ipfl.client.secure_sum import PROOFS
from ipfl.client.sum_plan import MASKED, SUM_AGREE, SUM_KEYS, SUM_OPEN, SUM_PLAN, SUM_SHARES, SumPlan
from ipfl.core import Ask, Record
from ipfl.core.masks import Secrets
from ipfl.core.ring import RING_MASK, from_vector
from ipfl.deploy.credentials import write_key_pair
from ipfl.engines.flower.sum_identity import NodeIdentity, check_sum_keys, keep_known_keys
from ipfl.errors import InputError
from ipfl.ledger.receipts import prepare_receipt_key
from ipfl.play.summed_replies import _SecureSum

CLIENTS = 6
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
    """Six nodes that know each other, and one of the server's own, which they do not know."""
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
        if (action, to) != (SUM_SHARES, 0):
            return record
        plan, proofs = json.loads(record.facts[SUM_PLAN]), list(record.facts[PROOFS])
        (place,) = [place for place, (one, _) in enumerate(plan["keys"]) if one == client]
        plan["keys"][place][1], proofs[place] = keys, proof
        return Record({}, {SUM_PLAN: json.dumps(plan), PROOFS: proofs})

    return change


def test_nodes_that_know_each_other_are_summed(folder, tmp_path):
    engine = federation(folder, tmp_path)
    assert_sum(sum_of(engine, CLIENTS), range(CLIENTS))
    assert [step for step, client, *_ in engine.seen if client == 0] == [
        SUM_KEYS,
        SUM_SHARES,
        "train",
        SUM_AGREE,
        SUM_OPEN,
    ]
    proofs = [reply.facts["proof"] for step, _, _, reply in engine.seen if step == SUM_KEYS]
    assert len({*proofs}) == CLIENTS
    assert max(map(len, proofs)) < 1500


class TestTheServerInTheMiddle:
    OWN = Secrets.of(b"the server's own").public

    def test_nodes_without_a_list_believe_it(self, tmp_path):
        """What this protects from: without identities client 0 shares its secrets with the server."""
        engine = Clients(folder=tmp_path, is_seeded=False, change=with_keys_of(1, self.OWN, ""))
        sum_of(engine, CLIENTS)
        shared = [reply for step, client, _, reply in engine.seen if (step, client) == (SUM_SHARES, 0)]
        assert len(shared[0].facts["sealed"]) == CLIENTS

    @pytest.mark.parametrize(
        ("signer", "signed", "words"),
        [
            (1, {}, "not what it has signed"),  # the true proof, of client 1's true keys
            (2, {}, "signed by another node"),
            (9, {}, "signed by another node"),  # a node that the server has registered itself
            (1, {"session": "0/2/train"}, "not what it has signed"),
            (1, {"client": 3}, "not what it has signed"),
            (1, {"attempt": "run/0"}, "not what it has signed"),
            (None, {}, "has signed nothing"),
        ],
    )
    def test_nodes_with_a_list_refuse(self, folder, tmp_path, signer, signed, words):
        proof = ""
        if signer is not None:
            about = {"client": 1, "session": SESSION, "attempt": "run/1"} | signed
            of_what = self.OWN if signed or signer != 1 else Secrets.of(b"client 1's own").public
            proof = load(folder, signer, about["attempt"]).sign(
                SUM_KEYS, about["client"], about["session"], of_what
            )
        engine = federation(folder, tmp_path, change=with_keys_of(1, self.OWN, proof))
        with pytest.raises(InputError, match=words):
            sum_of(engine, CLIENTS)

    def test_an_invented_client(self, folder):
        proof = load(folder, 9).sign(SUM_KEYS, 9, SESSION, self.OWN)
        with pytest.raises(InputError, match="client 9 is not in the list"):
            load(folder, 0).check(SUM_KEYS, 9, SESSION, self.OWN, proof)

    def test_a_key_for_which_the_registered_one_does_not_vouch(self, folder):
        content = json.loads(load(folder, 9).sign(SUM_KEYS, 1, SESSION, self.OWN))
        content["voucher"] = json.loads(load(folder, 1).sign(SUM_KEYS, 1, SESSION, self.OWN))["voucher"]
        with pytest.raises(InputError, match="not what it has signed"):
            load(folder, 0).check(SUM_KEYS, 1, SESSION, self.OWN, json.dumps(content))


class TestTwoListsOfWhoDelivered:
    """Six nodes of which four are needed, t = 4 of n = 6. All deliver, and the server says otherwise."""

    SUM_OF_THREE = ({0: [0, 1, 2, 3], 1: [0, 1, 2, 4], 2: [0, 1, 2, 5]}) | {
        c: [0, 1, 2, c] for c in (3, 4, 5)
    }
    """Everyone delivered twice at most but clients 0 to 2: four will tell the pair keys of all others."""

    @staticmethod
    def play(engine, lists, steps=(SUM_AGREE, SUM_OPEN), colluding=()):
        """The sum with such a server, which has the keys of those that work with it; who gave it shares."""

        def change(step, client, record):
            if step not in steps or client not in lists:
                return record
            facts = {**record.facts, "delivered": lists[client]}
            if step == SUM_OPEN:
                plan = SumPlan.read(facts[SUM_PLAN])
                facts[PROOFS] = [
                    engine.identities[one].sign(SUM_AGREE, one, SESSION, [plan.agreement(lists[client])])
                    if one in colluding
                    else proof
                    for one, proof in zip(plan.holders_left(client), facts.get(PROOFS, ()), strict=False)
                ]
            return Record({}, facts)

        engine.change, engine.is_patient = change, True
        replies = sum_of(engine, CLIENTS)
        opened = {c for step, c, _, reply in engine.seen if step == SUM_OPEN and "shares" in reply.facts}
        return replies, opened

    def test_nodes_without_a_list_of_keys_open_a_sum_over_fewer(self, tmp_path):
        """What this protects from: the sum of clients 0 to 2, Σ (c + 1)·(c/2, −c) = (4, −8)."""
        engine = Clients(folder=tmp_path, is_seeded=False)
        assert self.play(engine, self.SUM_OF_THREE)[1] == set(range(CLIENTS))
        shares, masked = {}, {}
        for step, client, sent, reply in engine.seen:
            if step == "train":
                masked[client] = from_vector(reply.params[MASKED])
            elif step == SUM_OPEN:
                plan = SumPlan.read(sent.facts[SUM_PLAN])
                for owner, share in zip(plan.holders_left(client), reply.facts["shares"], strict=True):
                    place, is_own = (
                        plan.holders_of_shares(owner).index(client),
                        owner in sent.facts["delivered"],
                    )
                    if is_own == (owner < 3):
                        shares.setdefault(owner, {})[place] = bytes.fromhex(share)
        ask = Ask("train", {c: Record() for c in range(CLIENTS)}, UPDATE)
        masks = _SecureSum(ask, SUMS, 0, 1, None)._left_over(plan, {0, 1, 2}, shares)
        total = (masked[0] + masked[1] + masked[2] - masks) & RING_MASK
        assert plan.layout.unpack(total).vectors["m"].tolist() == [4, -8]

    @pytest.mark.parametrize("steps", [(SUM_AGREE, SUM_OPEN), (SUM_OPEN,)])
    def test_nodes_that_compare_refuse(self, folder, tmp_path, steps):
        """Told so from the beginning, or only after they have signed the true list: nobody opens anything."""
        engine = federation(folder, tmp_path)
        replies, opened = self.play(engine, self.SUM_OF_THREE, steps)
        assert (dict(replies), opened) == ({}, set())
        assert [(event.kind, event.client) for event in engine.events] == [
            ("client_failed", client) for client in range(CLIENTS)
        ]
        told = "2 nodes have signed the list" if SUM_AGREE in steps else "0 nodes have signed the list"
        assert all(told in event.text and "it takes 4" in event.text for event in engine.events)

    def test_a_server_that_does_not_ask_for_agreement(self, folder, tmp_path):
        engine = federation(folder, tmp_path)
        engine.is_patient, engine.absent = True, {SUM_AGREE: set(range(CLIENTS))}
        assert not sum_of(engine, CLIENTS)
        plan = next(sent.facts[SUM_PLAN] for step, _, sent, _ in reversed(engine.seen) if step == "train")
        opening = Record({}, {SUM_PLAN: plan, "delivered": [*range(CLIENTS)], "sealed": ["00"] * CLIENTS})
        with pytest.raises(InputError, match="0 nodes have signed the list"):
            engine.runners[0].run(Job(SUM_OPEN, 0, 0, opening))

    def test_one_list_alone_is_signed(self, folder, tmp_path):
        engine = federation(folder, tmp_path)
        engine.absent = {SUM_OPEN: {0}}
        sum_of(engine, CLIENTS)
        asked = next(sent for step, client, sent, _ in engine.seen if (step, client) == (SUM_AGREE, 0))
        other = Record({}, {**asked.facts, "delivered": [0, 1, 2, 3]})
        assert engine.runners[0].run(Job(SUM_AGREE, 0, 0, other)) == Record()

    @pytest.mark.parametrize(("colluding", "lists_opened"), [((), 1), ((5,), 1), ((4, 5), 2)])
    def test_how_many_may_work_with_the_server(self, folder, tmp_path, colluding, lists_opened):
        """One list is opened while fewer than 2t − n = 2 nodes sign for both: 4 + 4 signatures of 6 + 2."""
        ours, others = [0, 1, 4, 5], [2, 3, 4, 5]
        if not colluding:  # a list needs four honest ones: the second has two
            ours = [0, 1, 2, 3]
        elif len(colluding) == 1:
            ours = [0, 1, 2, 5]
        lists = {client: ours if client in ours else others for client in range(CLIENTS)}
        _, opened = self.play(federation(folder, tmp_path), lists, colluding=colluding)
        honest = opened.difference(colluding)
        assert len({tuple(lists[client]) for client in honest}) == lists_opened


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
    with pytest.raises(InputError, match="has signed nothing"):
        check_sum_keys("run/1", 0, SESSION, ["x"], proof, lambda client, key: True)
