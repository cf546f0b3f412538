"""Verification: a true history passes, a changed one is found and the entry named."""

import random
import re
import sqlite3
from contextlib import closing, suppress
from itertools import count

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.ledger.example_runs import (
    HEADER,
    LINE,
    ROLLED_BACK,
    RULES,
    change_as_owner,
    opened_run,
    random_run,
    worked_run,
)

from ipfl.core import Seat
from ipfl.errors import InputError
from ipfl.keep.run_audit import verify_run
from ipfl.ledger.export import csv_lines
from ipfl.ledger.lines import Posting
from ipfl.ledger.signing import SigningKey
from ipfl.ledger.store import RunStore
from ipfl.ledger.verify import Finding, verify
from ipfl.market.bank import opening_transfers
from ipfl.market.market_rows import Bid, Contribution, Figure, Transfer
from ipfl.methods.ipfl_plus.ipfl_plus import IPFLPlus

NAMES = count()
MARKET_RULES = {
    "payment.rule": ["willing", "paper", "none"],
    "contribution.rule": ["agreement", "paper"],
    "seats.rule": ["draw", "paper"],
}
"""Who pays, for what, and who gets it."""

NO_LINES = [
    *("[]", "{", "9" * 5000, "[" * 5000, '{"loss": NaN}', '{"loss": 1e999}', '{"bids": [[1e999, 0, 0]]}'),
    *('{"transfers": 5}', '{"a":' * 60 + "1" + "}" * 60),
]
"""What no round reported, damaged or on purpose."""


def test_the_round_by_hand_is_true(place):
    assert verify_run(worked_run(place)) is None


def test_a_run_without_rounds_is_true(place):
    assert verify_run(RunStore.create(place, "new", HEADER)) is None
    assert verify_run(opened_run(place / "opened")) is None


@pytest.mark.parametrize(
    ("rules", "replay", "words"),
    [
        (
            {"price": 1},
            IPFLPlus.replay,
            "the rules in the run's header are not those of a market: 'clusters'",
        ),
        (RULES | {"clusters": 2**15}, IPFLPlus.replay, "not those of a market: 32768 clusters"),
        (RULES | {"eta": "much"}, IPFLPlus.replay, "not those of a market: could not convert"),
    ],
)
def test_rules_that_cannot_be_replayed_are_found(place, rules, replay, words):
    """Before any round is looked at."""
    found = verify(worked_run(place, rules=rules), replay)
    assert found is not None
    assert found.round is None
    assert words in found.what


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "UPDATE transfers SET amount = 14 WHERE sequence = 10",
            r"round 0, entry 10: recorded is reward of 14 from pool 0 to client 2 \(client 2, cluster 0\); "
            r"the replay gives reward of 13 from pool 0 to client 2 \(client 2, cluster 0\)$",
        ),
        # One token from client 5 to client 2: every sum is still right.
        (
            "UPDATE transfers SET amount = 14 - (sequence - 10) * 8 WHERE sequence IN (10, 11)",
            "round 0, entry 10: recorded is reward of 14",
        ),
        ("UPDATE transfers SET amount = 35 WHERE amount = 25", "opening, entry 0: recorded is open of 35"),
        ("UPDATE transfers SET client = 9 WHERE sequence = 4", r"round 0, entry 4: .*\(client 9, cluster 0"),
        ("UPDATE transfers SET kind = 'fee' WHERE sequence = 3", "round 0, entry 3: recorded is fee of 10"),
        ("DELETE FROM transfers WHERE sequence = 3", "round 0: .* entry 3 is missing from its transfers"),
        ("DELETE FROM transfers WHERE sequence = 12", "round 0, entry 12: recorded is nothing"),
        (
            "INSERT INTO transfers VALUES (0, 13, 'bid', 2, -2, 1, 0, 2)",
            "round 0, entry 13: .* the replay gives nothing",
        ),
        # ψ of client 2 below that of client 5: the other one would have rank 2.
        ("UPDATE contributions SET psi = 0.1 WHERE client = 2", "round 0, entry 10: .* gives reward of 7"),
        ("UPDATE contributions SET omega = 4 WHERE client = 2", "round 0: .* trained in cluster 0 4 times"),
        ("DELETE FROM contributions WHERE sequence = 2", "round 0: .* not those of the seats that delivered"),
        ("UPDATE bids SET client = 5 WHERE sequence = 3", "round 0, entry 3: .* bid of 10 from client 5"),
        ("UPDATE bids SET cluster = 7 WHERE sequence = 3", "round 0: .* no cluster 7"),
        # Were client 2 in the seat, its bid for cluster 1 would have gone from escrow to the pool.
        (
            "UPDATE seats SET client = 2, how = 'performance' WHERE sequence = 3",
            "round 0, entry 5: .* the replay gives fee of 10 from escrow 1 to pool 1",
        ),
        ("UPDATE seats SET how = 'random' WHERE sequence = 0", "round 0: .* not have the hash"),
        # Client 2 can pay both of its bids: their ranks move no token, but they are history.
        ("UPDATE bids SET rank = 2 WHERE sequence = 0", "round 0: .* not have the hash"),
        ("UPDATE rounds SET checkpoint = 'other' WHERE round = 0", "round 0: .* not have the hash"),
        ("UPDATE rounds SET hash = 'other' WHERE round = -1", "opening: .* not have the hash"),
        ("UPDATE rounds SET line = '{}' WHERE round = 0", "round 0: .* it has bids, of which its line says"),
        *(
            (f"UPDATE rounds SET line = '{line}' WHERE round = 0", "round 0: .* not what a round can report")
            for line in NO_LINES
        ),
        (
            f"UPDATE rounds SET line = '{{\"loss\": 1{'0' * 400}, ' || substr(line, 2) WHERE round = 0",
            "round 0: .* larger than a database can hold",
        ),
        ("UPDATE metrics SET value = 0.5 WHERE name = 'economy.gini'", "round 0: the metrics are not"),
        ("UPDATE run SET name = 'other'", "opening: the hash of the round before"),
        ("UPDATE clients SET client = 4 WHERE client = 5", "the clients of the run are not"),
        (
            "UPDATE balances SET balance = 29 WHERE account = 2",
            "client 2 is kept at 29 tokens, but its transfers come to 28",
        ),
    ],
)
def test_a_changed_history_is_found(place, change, said):
    change_as_owner(worked_run(place), change)
    found = str(verify_run(RunStore.open(place)))
    assert re.match(said, found), found
    assert "\n" not in found


class TestRolledBack:
    def test_it_is_true(self, place):
        store = worked_run(place, line=ROLLED_BACK, min_clients=2)
        assert verify_run(store) is None
        assert {i: store.balances()[i] for i in HEADER["clients"]} == {2: 25, 5: 25, 9: 25}
        store.commit_round(1, LINE | {"round": 1}, None)  # and the market goes on from where it was
        assert verify_run(store) is None

    @pytest.mark.parametrize(
        ("change", "finding"),
        [
            (  # 10 tokens of client 2 kept back in the pool, and paid out to client 5
                {"transfers": [*ROLLED_BACK["transfers"][:4], Transfer("fee", -2, -3, 10, 0, 2),
                               Transfer("reward", -3, 5, 10, 0, 5), *ROLLED_BACK["transfers"][5:]]},
                Finding(0, 4, "recorded is fee of 10 from escrow 0 to pool 0 (client 2, cluster 0); the "
                              "replay gives refund of 10 from escrow 0 to client 2 (client 2, cluster 0)"),
            ),
            (
                {"transfers": ROLLED_BACK["transfers"][:-1]},
                Finding(0, 7, "recorded is nothing; the replay "
                              "gives refund of 10 from escrow 1 to client 9 (client 9, cluster 1)"),
            ),
            (
                {"seats": LINE["seats"]},
                Finding(0, None, "the round is rolled back, but client 2 is said to have trained"),
            ),
            (
                {"contributions": [Contribution(2, 0, 0.5, 1)]},
                Finding(0, None, "the round is rolled back, but reports contributions"),
            ),
            (
                {"cluster_probe_accuracy": [Figure(0, 0.5)]},
                Finding(0, None, "the round is rolled back, but reports cluster_probe_accuracy"),
            ),
        ],
        ids=["a reward", "no refund", "a seat that delivered", "contributions", "an accuracy"],
    )  # fmt: skip
    def test_what_should_not_be_there_is_found(self, place, change, finding):
        assert verify_run(worked_run(place, line=ROLLED_BACK | change)) == finding

    def test_a_round_that_should_have_been_rolled_back_is_found(self, place):
        """Three clients delivered: enough for three, not for four."""
        assert verify_run(worked_run(place, "enough", min_clients=3)) is None
        found = verify_run(worked_run(place / "other", "too few", min_clients=4))
        assert found == Finding(0, None, "only 3 of at least 4 clients delivered: it must be rolled back")


def test_a_missing_round_is_found(place):
    store = worked_run(place)
    for number in (1, 2):
        store.commit_round(number, {"round": number})
    change_as_owner(store, "DELETE FROM metrics WHERE round = 1", "DELETE FROM rounds WHERE round = 1")
    assert verify_run(store) == Finding(1, None, "missing")


def test_a_missing_opening_is_found(place):
    store = RunStore.create(place, "closed", HEADER)
    store.commit_round(0, {"round": 0})
    assert str(verify_run(store)) == "opening: missing"


def test_a_round_with_a_new_hash_breaks_the_chain(place):
    """A changed round can be given a hash that fits, but the round after it has the old one."""
    store = worked_run(place)
    store.commit_round(1, {"round": 1})
    with store.snapshot() as reader:
        posted = reader.posted(0)
    forged = Posting(0, LINE, "other", {}).hash(posted.previous)
    change = "UPDATE rounds SET checkpoint = 'other', hash = :hash WHERE round = 0"
    change_as_owner(store, change, hash=forged)
    assert verify_run(store) == Finding(1, None, "the hash of the round before is not the one recorded here")


@pytest.mark.parametrize(
    ("said", "complaint"),
    [(0.5, None), (0.25, "said to be 0.25, but was 0.5"), (None, "said to be None, but was 0.5")],
)
def test_the_best_accuracy_before_follows_from_earlier_rounds(place, said, complaint):
    """0.5, then 0.25, so that Acc_kmax stays 0.5: the third round returns η·pool, whatever else is said."""
    store = opened_run(place, "best", clients=[2])
    for number, (accuracy, best) in enumerate([(0.5, None), (0.25, 0.5), (0.5, said)]):
        # Alone in its cluster, client 2 gets its 10 tokens back one way or the other: η = 1/2 of them as
        # reimbursement where the accuracy is not above the best one before, the rest as reward.
        back = [Transfer("reward", -3, 2, 10, 0, 2)] if number == 0 else [
            Transfer("reimbursement", -3, 2, 5, 0, 2),
            Transfer("reward", -3, 2, 5, 0, 2),
        ]  # fmt: skip
        line = {
            "bids": [Bid(2, 0, 0)],
            "seats": [Seat(2, 0, "performance", True)],
            "contributions": [Contribution(2, 0, 1.0, number + 1)],
            "cluster_probe_accuracy": [Figure(0, accuracy)],
            "best_before": [Figure(0, best)],
            "transfers": [Transfer("bid", 2, -2, 10, 0, 2), Transfer("fee", -2, -3, 10, 0, 2), *back],
        }
        store.commit_round(number, line)
    found = verify_run(store)
    assert (found is None) == (complaint is None)
    assert complaint is None or complaint in str(found)


def test_without_rules_the_sums_still_count(place):
    """A run whose market cannot be replayed: double entry and conservation are checked all the same."""
    store = RunStore.create(place, "foreign", {"clients": [2, 5]})
    store.commit_opening(opening_transfers([2, 5], 10))
    bid = Transfer("bid", 2, -2, 10, 0, 2)
    store.commit_round(0, {"transfers": [bid, Transfer("refund", -2, 5, 10, 0, 5)]})
    assert verify_run(store) is None
    store.commit_round(1, {"transfers": [bid._replace(source=5, client=5)]})
    assert verify_run(store) == Finding(1, None, "escrow 0 still holds 10 tokens")
    change_as_owner(store, "UPDATE transfers SET amount = 11 WHERE round = 0")
    assert verify_run(store) == Finding(0, 0, "client 2 would hold -1 tokens")


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(
    seed=st.integers(0, 2**32 - 1),
    rules=st.fixed_dictionaries(
        {
            "payment.price": st.integers(1, 9),
            "payment.opening": st.integers(9, 40),
            "payment.eta": st.floats(0, 1),
            "payment.subsidy": st.floats(0, 2),
            "payment.trial_rounds": st.integers(0, 2),
            "incentive": st.booleans(),
            "importance.budget": st.sampled_from([3, None]),
            "guards.rule": st.sampled_from(["all", "paper"]),
            **{name: st.sampled_from(values) for name, values in MARKET_RULES.items()},
        }
    ),
)
@example(  # an explorer pays for a model that it did not bid for
    seed=1977882589,
    rules={
        "payment.price": 8,
        "payment.opening": 31,
        "payment.eta": 1,
        "guards.rule": "paper",
        "contribution.rule": "paper",
        "seats.rule": "paper",
    },
)
def test_whatever_the_market_does_is_verified(place, seed, rules):
    """Drop-outs, the broke, lost gradients, any rules: the replay comes to the same transfers."""
    store = random_run(place / str(next(NAMES)), "economy", seed, 5, **rules)
    assert verify_run(store) is None
    moved = [entry for entry in store.transfers() if entry.transfer.amount and entry.round >= 0]
    assert sum(store.balances().values()) == 0
    if moved:  # and nothing of it can be changed unseen
        entry = moved[seed % len(moved)]
        where = f"round = {entry.round} AND sequence = {entry.sequence}"
        change_as_owner(store, f"UPDATE transfers SET amount = amount - 1 WHERE {where}")
        found = verify_run(store)
        assert (found.round, found.sequence) == (entry.round, entry.sequence)


def everything(store):
    """All that anybody reads of a store."""
    with store.snapshot() as reader:
        told = [store.statement(client) for client in HEADER["clients"]]
        rounds = [
            (posted, reader.line(posted), reader.metrics(posted.round)) for posted in reader.all_posted()
        ]
        accounts = [reader.accounts(), reader.accounts([5]), reader.accounts(round=0), reader.balances()]
        return store.name, store.header, told, rounds, accounts, [*csv_lines(store)]


def test_whatever_bit_of_the_file_is_changed(place, tmp_path):
    """Found or refused; or the bit says nothing, and all that anybody reads is as it was."""
    key = SigningKey.read_or_make(tmp_path / "signing.key")
    store = worked_run(place, key=key)
    with closing(sqlite3.connect(store.file)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content, before = store.file.read_bytes(), everything(store)
    drawn, found = random.Random(0), 0
    for first in range(0, len(content), size):  # in SQLite, each table and index has its own pages
        used = [place for place in range(first, first + size) if content[place]]
        for place in drawn.choices(used, k=15):
            changed = bytearray(content)
            changed[place] ^= 1 << drawn.randrange(8)
            store.file.write_bytes(changed)
            with suppress(InputError):
                other = RunStore.open(store.file, key=key)
                if verify_run(other, public_key=key.public) is None:
                    assert everything(other) == before, place
                    continue
            found += 1
    assert found > 100
