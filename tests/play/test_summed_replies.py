"""Secure sums: the server learns the sum and nothing else, also when clients drop out at any step."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.federation import run_here
from tests.small_runs import small_task

import ipfl
from ipfl.client import sum_plan
from ipfl.client.runner import Delivery
from ipfl.client.secure_sum import PROOFS, SumIdentity, SummingRunner
from ipfl.client.sum_plan import MASKED, SUM_KEYS, SUM_OPEN, SUM_PLAN, SUM_SHARES, SumPlan
from ipfl.config.run_config import RunConfig
from ipfl.core import Ask, Event, Record, is_below_quorum
from ipfl.core.masks import Secrets
from ipfl.core.method import sums_of, weigh_by_samples
from ipfl.core.records import sum_of_replies
from ipfl.core.replies import Count, ReplySchema
from ipfl.errors import InputError
from ipfl.methods import METHODS, method
from ipfl.methods.shared.steps import random_seats
from ipfl.play.driver import Traffic, exchange_sum
from ipfl.play.summed_replies import SecureSums

SUMS = SecureSums(frozenset({"train"}), 2 / 3, seed=5)
UPDATE = ReplySchema({"n": Count}, {"m": 2})


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def honest_reply(client: int) -> Record:
    """Client c has c + 1 samples, and the model (c/2, −c)."""
    return Record({"m": vector(client / 2, -client)}, {"n": client + 1})


def expected_sum(clients) -> tuple[list[float], int]:
    """Σ (c + 1)·(c/2, −c) and Σ (c + 1); halves are exact with any number of bits."""
    weighted = [(c + 1) * np.array([c / 2, -c]) for c in clients]
    return np.sum(weighted, axis=0).tolist(), sum(c + 1 for c in clients)


@dataclass
class Clients:
    """An engine whose clients answer with known numbers, and may drop out of a step or cheat in it."""

    folder: Path = Path()
    absent: dict[str, set[int]] = field(default_factory=dict)
    """By step."""
    forged: dict[tuple[str, int], Record] = field(default_factory=dict)
    """Replies instead of the honest ones, by step and client."""
    replies: dict[int, Record] = field(default_factory=dict)
    is_seeded: bool = True
    identities: dict[int, SumIdentity] = field(default_factory=dict)
    """Of those clients that have one."""
    is_patient: bool = False
    """Whether what a client refuses becomes an event, as over Flower, or ends the test."""
    change: Callable[[str, int, Record], Record] = lambda step, client, record: record
    """What a server that cheats sends instead."""
    events: list = field(default_factory=list)
    seen: list[tuple[str, int, Record, Record]] = field(default_factory=list)
    """All that passed: step, client, what was sent, what came back."""

    def __post_init__(self) -> None:
        inner = SimpleNamespace(memory=SimpleNamespace(folder=self.folder / "memory"), deliver=self.plain)
        weigh = {"train": weigh_by_samples}
        self.runner = SummingRunner(inner, weigh, seed=5, is_seeded=self.is_seeded)
        self.runners = {
            client: SummingRunner(inner, weigh, seed=5, is_seeded=self.is_seeded, identity=identity)
            for client, identity in self.identities.items()
        }

    def plain(self, job):
        yield Delivery(job, self.replies.get(job.client, honest_reply(job.client)))

    def ask(self, ask, round):
        found = {}
        for client, record in ask.to.items():
            if client not in self.absent.get(ask.action, ()):
                record = self.change(ask.action, client, record)
                job = ipfl.client.runner.Job(ask.action, round, client, record)
                runner = self.runners.get(client, self.runner)
                try:
                    found[client] = self.forged.get((ask.action, client)) or runner.run(job)
                except InputError as error:
                    if not self.is_patient:
                        raise
                    self.events.append(Event("client_failed", client, str(error)))
                    continue
                self.seen.append((ask.action, client, record, found[client]))
        return found


def sum_of(engine: Clients, count: int, traffic: Traffic | None = None):
    ask = Ask("train", {c: Record({"m": vector(0, 0)}, {"hint": c}) for c in range(count)}, UPDATE)
    return exchange_sum(ask, engine, 0, traffic or Traffic(), SUMS)


def assert_sum(replies, clients) -> None:
    total = sum_of_replies(replies)
    assert (total.vectors["m"].tolist(), total.weights["m"]) == expected_sum(clients)
    assert total.facts["n"] == expected_sum(clients)[1]
    assert list(replies) == list(clients)
    assert all(reply == Record() for reply in replies.values())


def test_everyone_delivers():
    # By hand, of clients 0 to 3: Σ (c + 1)·c/2 = 0 + 1 + 3 + 6 = 10, twice that with a minus, Σ (c + 1) = 10.
    replies = sum_of(Clients(), 4)
    total = sum_of_replies(replies)
    assert (total.vectors["m"].tolist(), total.weights) == ([10, -20], {"m": 10})
    assert total.mean("m").tolist() == [1, -2]
    assert_sum(replies, range(4))


@pytest.mark.parametrize(
    "absent, left",
    [
        ({SUM_KEYS: {1}}, (0, 2, 3, 4, 5)),
        ({SUM_SHARES: {1}}, (0, 2, 3, 4, 5)),
        ({"train": {1}}, (0, 2, 3, 4, 5)),
        ({"train": {1, 4}}, (0, 2, 3, 5)),
        ({SUM_OPEN: {1, 4}}, (0, 1, 2, 3, 4, 5)),
        ({SUM_SHARES: {0}, "train": {3}, SUM_OPEN: {1}}, None),
        ({SUM_KEYS: {0}, SUM_SHARES: {1}, "train": {2}}, None),
        ({SUM_KEYS: {5}, "train": {2}}, (0, 1, 3, 4)),
    ],
)
def test_clients_drop_out_of_any_step(absent, left):
    """Two thirds of six or five clients are four; the others may drop out, whenever they like."""
    traffic = Traffic()
    replies = sum_of(Clients(absent=absent), 6, traffic)
    if left is None:
        assert not replies
        assert [event.kind for event in traffic.events()].count("sum_failed") == 1
    else:
        assert_sum(replies, left)


@pytest.mark.parametrize(
    "absent",
    [{SUM_KEYS: {0, 1, 2, 3}}, {SUM_SHARES: {0, 1, 2}}, {"train": {0, 1, 2}}, {SUM_OPEN: {0, 1, 2}}],
)
def test_too_few_are_left_in_any_step(absent):
    traffic = Traffic()
    replies = sum_of(Clients(absent=absent), 6, traffic)
    assert (dict(replies), sum_of_replies(replies)) == ({}, None)
    assert [event.kind for event in traffic.failed_sums] == ["sum_failed"]
    assert is_below_quorum(random_seats(range(6), replies), 1)


def test_many_clients_have_few_neighbours(monkeypatch):
    monkeypatch.setattr(sum_plan, "MAX_NEIGHBOURS", 4)
    monkeypatch.setattr(ipfl.play.summed_replies, "MAX_NEIGHBOURS", 4)
    engine = Clients(absent={"train": {7}})
    assert_sum(sum_of(engine, 12), [c for c in range(12) if c != 7])
    assert {len(reply.facts["sealed"]) for step, _, _, reply in engine.seen if step == SUM_SHARES} == {5}


@pytest.fixture(scope="module")
def finished():
    """A sum of six clients, of which client 2 dropped out in training."""
    engine = Clients(absent={"train": {2}})
    sum_of(engine, 6)
    return engine


class TestWhatTheServerSees:
    def test_only_keys_shares_and_masked_vectors_come_back(self, finished):
        assert {step for step, *_ in finished.seen} == {SUM_KEYS, SUM_SHARES, "train", SUM_OPEN}
        for step, _, _, reply in finished.seen:
            held = {*reply.params, *reply.facts}
            expected = {
                SUM_KEYS: {"keys", "proof"},
                SUM_SHARES: {"sealed"},
                "train": {MASKED},
                SUM_OPEN: {"shares"},
            }
            assert held == expected[step]

    def test_a_masked_vector_tells_nothing_of_the_reply(self, finished):
        """The same clients with other replies: the difference is all that another mask would have hidden."""
        masked = {c: reply.params[MASKED] for step, c, _, reply in finished.seen if step == "train"}
        for client, sent in masked.items():
            limbs = sent.reshape(3, -1)
            assert len({*limbs.ravel().tolist()}) == limbs.size  # a small number has equal high limbs
            assert not np.array_equal(sent, masked[(client + 1) % 2])

    def test_never_both_secrets_of_one_client(self, finished):
        """Shares of the own mask of those that delivered, of the pair key of those that did not."""
        secrets = {c: finished.runner._secrets.begin(c, "0/1/train") for c in range(6)}
        found: dict[int, dict[int, bytes]] = {}
        for step, holder, sent, reply in finished.seen:
            if step == SUM_OPEN:
                plan = SumPlan.read(sent.facts[SUM_PLAN])
                for owner, share in zip(plan.members, reply.facts["shares"], strict=True):
                    place = plan.holders_of_shares(owner).index(holder)
                    found.setdefault(owner, {})[place] = bytes.fromhex(share)
        for owner, shares in found.items():
            told = secure_sum_combine(shares)
            assert told == (secrets[owner].pair_seed if owner == 2 else secrets[owner].own_seed)

    def test_what_is_sent_to_clients_is_public(self, finished):
        for _, client, sent, _ in finished.seen:
            plan = json.loads(sent.facts[SUM_PLAN])
            assert {*sent.facts} <= {SUM_PLAN, PROOFS, "hint", "delivered", "sealed"}
            assert "seed" not in plan
            assert sent.facts.get("hint", client) == client


def secure_sum_combine(shares):
    from ipfl.core.masks import combine_shares

    return combine_shares(shares, 4)


class TestClientsThatCheat:
    def test_a_reply_that_cannot_be_summed(self):
        """Diverged, or too large: left out of the sum, and reported like any other invalid reply."""
        replies = {1: Record({"m": vector(np.nan, 0)}, {"n": 2}), 3: Record({"m": vector(1)}, {"n": 2})}
        traffic = Traffic()
        assert_sum(sum_of(Clients(replies=replies), 6, traffic), (0, 2, 4, 5))
        assert {event.client for event in traffic.events()} == {1, 3}

    def test_a_key_that_nobody_can_agree_with(self):
        forged = {(SUM_KEYS, 1): Record({}, {"keys": ["00" * 32] * 3, "proof": ""})}
        assert_sum(sum_of(Clients(forged=forged), 6), (0, 2, 3, 4, 5))

    def test_shares_that_cannot_be_read(self):
        forged = {(SUM_SHARES, 1): Record({}, {"sealed": ["00" * 48] * 6})}
        traffic = Traffic()
        assert not sum_of(Clients(forged=forged), 6, traffic)
        assert [event.kind for event in traffic.failed_sums] == ["sum_failed"]

    def test_wrong_shares_do_not_make_a_wrong_sum(self):
        forged = {(SUM_OPEN, 0): Record({}, {"shares": ["11" * 16] * 6})}
        traffic = Traffic()
        assert not sum_of(Clients(forged=forged), 6, traffic)
        assert [event.kind for event in traffic.failed_sums] == ["sum_failed"]


class TestAServerThatAsksForMore:
    """A node answers every step once, and only where the sum hides it."""

    @pytest.fixture
    def engine(self, tmp_path):
        return Clients(folder=tmp_path, is_seeded=False)

    @staticmethod
    def repeat(engine, step, client=0, **facts):
        """What a client answers to a step of the last sum, once more, or with other facts."""
        sent = next(sent for s, c, sent, _ in reversed(engine.seen) if (s, c) == (step, client))
        record = Record(sent.params, {**sent.facts, **facts})
        return engine.runner.run(ipfl.client.runner.Job(step, 0, client, record))

    def test_node_secrets_are_new_in_every_sum(self, engine):
        assert_sum(sum_of(engine, 4), range(4))
        first = [reply.facts["keys"] for step, _, _, reply in engine.seen if step == SUM_KEYS]
        assert_sum(sum_of(engine, 4), range(4))
        second = [reply.facts["keys"] for step, _, _, reply in engine.seen if step == SUM_KEYS][4:]
        assert len({key for keys in first + second for key in keys}) == 3 * 8
        assert not list((engine.folder / "sums").glob("*.json"))  # forgotten when it is opened

    def test_no_step_is_answered_twice(self, engine):
        engine.absent = {SUM_OPEN: {0}}
        sum_of(engine, 6)
        for step in (SUM_SHARES, "train"):
            assert self.repeat(engine, step) == Record()
        for step in (SUM_SHARES, "train", SUM_OPEN):
            assert self.repeat(engine, step, client=1) == Record()

    def test_a_sum_of_one_is_not_opened(self, engine):
        engine.absent = {SUM_OPEN: {0}}
        sum_of(engine, 6)
        opening = next(sent for step, _, sent, _ in engine.seen if step == SUM_OPEN)
        sealed = opening.facts["sealed"]
        for delivered in ([0], [0, 1], [1, 2, 3, 4, 5]):
            record = Record({}, {SUM_PLAN: opening.facts[SUM_PLAN], "delivered": delivered, "sealed": sealed})
            assert engine.runner.run(ipfl.client.runner.Job(SUM_OPEN, 0, 0, record)) == Record()

    def test_a_sum_of_one_that_looks_like_one_of_many(self, engine):
        """Names that nobody has do not count among those that delivered."""
        engine.absent = {SUM_OPEN: {0}}
        sum_of(engine, 6)
        opening = next(sent for step, _, sent, _ in engine.seen if step == SUM_OPEN)
        record = Record({}, {**opening.facts, "delivered": [0, *range(100, 110)]})
        assert engine.runner.run(ipfl.client.runner.Job(SUM_OPEN, 0, 0, record)) == Record()

    @pytest.mark.parametrize(
        "change",
        [
            {"holders": {"m": [0, 100, 101]}},
            {"holders": {"m": [1, 2, 3, 4, 5]}},
            {"members": [*range(6), 100]},
            {"holders": {"m": [0, 1]}},
        ],
    )
    def test_vectors_that_others_are_only_said_to_send(self, engine, change):
        def pretend(action: str, client: int, record: Record) -> Record:
            if (action, client) != ("train", 0):
                return record
            plan = json.loads(record.facts[SUM_PLAN]) | change
            return Record(record.params, {**record.facts, SUM_PLAN: json.dumps(plan)})

        engine.change = pretend
        assert_sum(sum_of(engine, 6), range(1, 6))

    def test_clients_that_are_told_different_plans_have_masks_that_do_not_cancel(self, engine):
        """Client 0 is told the same in another order: nothing is wrong with that, and the sum is noise."""

        def differ(action: str, client: int, record: Record) -> Record:
            if client or SUM_PLAN not in record.facts or action in (SUM_KEYS, SUM_SHARES):
                return record
            plan = json.loads(record.facts[SUM_PLAN])
            plan["holders"]["m"] = sorted(plan["holders"]["m"], reverse=True)
            return Record(record.params, {**record.facts, SUM_PLAN: json.dumps(plan)})

        engine.change = differ
        total = sum_of_replies(sum_of(engine, 6))
        assert np.abs(total.vectors["m"] - expected_sum(range(6))[0]).min() > 1e3

    def test_another_plan_than_before(self, engine):
        engine.absent = {SUM_OPEN: {0}}
        sum_of(engine, 6)
        plan = next(sent.facts[SUM_PLAN] for step, _, sent, _ in engine.seen if step == SUM_OPEN)
        other = json.dumps({**json.loads(plan), "members": [0, 1, 2, 3, 4]})
        opening = next(sent for step, _, sent, _ in engine.seen if step == SUM_OPEN)
        record = Record({}, {**opening.facts, SUM_PLAN: other, "sealed": opening.facts["sealed"][:5]})
        assert engine.runner.run(ipfl.client.runner.Job(SUM_OPEN, 0, 0, record)) == Record()

    @pytest.mark.parametrize("step", [SUM_SHARES, "train"])
    def test_keys_that_are_exchanged_on_the_way(self, engine, step):
        """Its own ones when secrets are shared, those of others after that: what was checked stays."""

        def exchange(action: str, client: int, record: Record) -> Record:
            if (action, client) != (step, 0):
                return record
            plan = json.loads(record.facts[SUM_PLAN])
            (one,) = [
                place for place, (c, _) in enumerate(plan["keys"]) if c == (0 if step == SUM_SHARES else 1)
            ]
            plan["keys"][one][1] = Secrets.of(b"the server's own").public
            return Record(record.params, {**record.facts, SUM_PLAN: json.dumps(plan)})

        engine.change = exchange
        assert_sum(sum_of(engine, 6), range(1, 6))
        (reply,) = [reply for action, c, _, reply in engine.seen if (action, c) == (step, 0)]
        assert reply == Record()

    def test_the_plain_reply_is_never_sent(self, engine):
        job = ipfl.client.runner.Job("train", 0, 0, Record({"m": vector(0, 0)}))
        assert engine.runner.run(job) == Record()
        # What is not summed is answered as always.
        other = engine.runner.run(ipfl.client.runner.Job("other", 0, 3, Record()))
        assert other.params["m"].tolist() == [1.5, -3]

    @pytest.mark.parametrize("held", [{}, {"m": [0]}, {"m": [0, 1]}, {"m": [0, 0, 0]}])
    def test_a_vector_that_few_hold(self, engine, held):
        engine.absent = {"train": set(range(6))}
        sum_of(engine, 6)
        plan = {"session": "0/1/train", "threshold": 4, "keys": [], "members": [], "holders": held}
        record = Record({}, {SUM_PLAN: json.dumps({**plan, "layout": [{"m": 2}, {}, 20]})})
        assert engine.runner.run(ipfl.client.runner.Job("train", 0, 0, record)) == Record()


@pytest.fixture(scope="module")
def task():
    return small_task(seed=3, clients=6)


ONLY_SUMS = sorted(name for name in METHODS if not sums_of(method(name)).needs_single)


@pytest.mark.parametrize("name", ONLY_SUMS)
def test_every_method_that_needs_only_sums_learns_the_same(task, name):
    """Up to the rounding of every number to 26 bits behind the point, twice: 2 · 2^-27, and of float32."""
    settings = {"rounds": 2, "train": {"per_round": 5, "epochs": 1}}
    plain = run_here(task, method(name), **settings)
    summed = run_here(task, method(name), **settings, privacy={"secure_sum": "all"})
    assert all(seat.delivered for line in summed.history for seat in line["seats"])
    assert summed.models.keys() == plain.models.keys()
    for one, model in plain.models.items():
        # The second round starts from models that differ a little, and training carries that on.
        assert np.abs(model - summed.models[one]).max() < 1e-6
    if plain.models:
        assert any((model != summed.models[one]).any() for one, model in plain.models.items())


def test_the_same_bytes_with_any_number_of_workers(task, tmp_path):
    results = []
    for workers in (0, 2):
        config = RunConfig(rounds=2, train={"per_round": 4, "epochs": 1}, privacy={"secure_sum": "all"})
        engine, out = ipfl.local_engine(workers=workers), tmp_path / str(workers) / "run"
        results.append(ipfl.run(task, method("fedavg"), config, engine=engine, out=out))
    assert results[0].models["global"].tobytes() == results[1].models["global"].tobytes()
    assert results[0].summary["ledger"] == results[1].summary["ledger"]


def test_clients_that_fail_are_left_out_and_below_the_quorum_the_round_is_rolled_back(task):
    settings = {"rounds": 3, "train": {"per_round": 6, "epochs": 1}, "faults": {"dropout": 0.5}, "seed": 2}
    result = run_here(task, method("fedavg"), **settings, privacy={"secure_sum": "all"})
    for line in result.history:
        delivered = sum(seat.delivered for seat in line["seats"])
        failed = any(event.kind == "sum_failed" for event in line["events"])
        assert (delivered == 0) == failed == line.get("rolled_back", False)
        assert delivered == 0 or delivered >= 4
    assert any(line.get("rolled_back") for line in result.history)


def test_contributions_from_a_summed_gradient(task):
    """IP-FL gets g_k from the sum; ψ is the same up to the rounding, and the server saw no gradient."""
    settings = {"rounds": 2, "train": {"per_round": 6, "epochs": 1}, "seed": 2}
    market = method("ipfl-plus", contribution="clients", clusters=1)
    plain = run_here(task, market, **settings)
    summed = run_here(task, market, **settings, privacy={"secure_sum": "gradients"})
    for before, after in zip(plain.history, summed.history, strict=True):
        psi = [one.psi for one in before["contributions"]]
        assert psi
        assert [one.psi for one in after["contributions"]] == pytest.approx(psi, abs=1e-6)


def test_clusters_of_two_are_not_summed(task):
    """Their sum would tell each of the two what the other sent: nobody knows their contributions."""
    market = method("ipfl-plus", contribution="clients", clusters=3)
    summed = run_here(
        task,
        market,
        rounds=1,
        train={"per_round": 6, "epochs": 1},
        privacy={"secure_sum": "gradients"},
    )
    (line,) = summed.history
    assert sum(seat.delivered for seat in line["seats"]) == 6
    assert all(one.psi is None for one in line["contributions"])


def test_the_table_in_the_documents_is_what_the_methods_say():
    text = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    table = text.split("<!-- checked by tests/play/test_summed_replies.py -->")[1].split("\n\n")[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == sorted(METHODS)
    for name, every, gradients, reason in rows:
        settings = {"contribution": "clients"} if gradients.startswith("with") else {}
        sums = sums_of(method(name, **settings))
        assert (every == "yes", reason) == (not sums.needs_single, sums.needs_single), name
        assert (gradients != "no") == bool(sums.gradients), name
        assert not sums_of(method(name)).gradients


class TestRefusals:
    @pytest.mark.parametrize("name", sorted(set(METHODS) - set(ONLY_SUMS)))
    def test_methods_that_need_single_replies(self, task, name):
        with pytest.raises(InputError, match=f"{name} needs single replies for"):
            run_here(task, method(name), rounds=1, privacy={"secure_sum": "all"})

    @pytest.mark.parametrize("rule", [{"rule": "trimmed_mean"}, {"rule": "multi_krum"}, {"clip": 1.0}])
    def test_rules_that_need_single_updates(self, task, rule):
        with pytest.raises(InputError, match=r"aggregate\..* needs single updates"):
            run_here(task, method("fedavg"), rounds=1, privacy={"secure_sum": "all"}, aggregate=rule)

    def test_a_method_that_says_nothing(self):
        config = RunConfig(privacy={"secure_sum": "all"})
        silent = SimpleNamespace(name="own", needs_single=ipfl.core.Method.needs_single)
        with pytest.raises(InputError, match="does not say that sums are enough"):
            SecureSums.plan(silent, config, 5)

    @pytest.mark.parametrize("name, settings", [("fedavg", {}), ("ipfl-plus", {"contribution": "momentum"})])
    def test_no_gradients_to_sum(self, name, settings):
        config = RunConfig(privacy={"secure_sum": "gradients"})
        with pytest.raises(InputError, match='"gradients" has no effect'):
            SecureSums.plan(method(name, **settings), config, 5)

    def test_too_few_clients(self, task):
        with pytest.raises(InputError, match=r"train\.per_round is 2"):
            run_here(task, method("fedavg"), rounds=1, privacy={"secure_sum": "all"}, train={"per_round": 2})
