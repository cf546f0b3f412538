"""Runs to store: a round worked out by hand, and random markets played by IP-FL's own rules."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from tests.methods.ipfl_plus.scripted import play

from ipfl.core import Record, Round, Seat
from ipfl.ledger.signing import SigningKey
from ipfl.ledger.store import RunStore
from ipfl.market.bank import opening_transfers
from ipfl.market.market_rows import Bid, Contribution, Figure, Transfer
from ipfl.methods import method

UPDATE_SIZE = 64
"""Length of the models of a random market: long enough to tell noise from structure."""
RULES = {"price": 10, "opening": 25, "eta": 0.5, "gamma": 0.1, "clusters": 2}
HEADER = {"method": "ipfl-plus", "config": {}, "seed": 0, "clients": [2, 5, 9], "rules": RULES}
"""Three clients with 25 tokens each; a bid costs 10."""

LINE = {
    "round": 0,
    "clients": 3,
    # Client 2 wants both clusters and can pay two bids; 5 wants cluster 0, 9 wants cluster 1.
    "bids": (Bid(2, 0, 1), Bid(2, 1, 0), Bid(5, 0, 0), Bid(9, 1, 0)),
    # In cluster 0 clients 2 and 5 sit by their bids; in cluster 1 client 9, and 5 as an explorer, whose
    # update is lost.
    "seats": (
        Seat(2, 0, "performance", True),
        Seat(5, 0, "performance", True),
        Seat(9, 1, "performance", True),
        Seat(5, 1, "random", False, True),
    ),
    "contributions": (Contribution(2, 0, 0.5, 1), Contribution(5, 0, 0.25, 1), Contribution(9, 1, None, 1)),
    "cluster_probe_accuracy": (Figure(0, 0.5), Figure(1, 0.75)),
    "best_before": (Figure(0, None), Figure(1, None)),
    "economy": {"gini": 0.125},
    "transfers": (
        # auction: every bid into escrow (−2: escrow 0, −4: escrow 1)
        Transfer("bid", 2, -2, 10, 0, 2),
        Transfer("bid", 2, -4, 10, 1, 2),
        Transfer("bid", 5, -2, 10, 0, 5),
        Transfer("bid", 9, -4, 10, 1, 9),
        # seats: into the pools (−3, −5); the explorer pays straight; client 2's second bid goes back
        Transfer("fee", -2, -3, 10, 0, 2),
        Transfer("fee", -2, -3, 10, 0, 5),
        Transfer("fee", -4, -5, 10, 1, 9),
        Transfer("fee", 5, -5, 10, 1, 5),
        Transfer("refund", -4, 2, 10, 1, 2),
        # client 5's update in cluster 1 got lost at the server
        Transfer("refund", -5, 5, 10, 1, 5),
        # no accuracy before: nothing is reimbursed. Pool 0 holds 20 for ranks 2 (client 2) and 1 (client 5):
        # 2/3·20 = 13⅓ and 1/3·20 = 6⅔; the odd token goes to the larger remainder: 13 and 7.
        Transfer("reward", -3, 2, 13, 0, 2),
        Transfer("reward", -3, 5, 7, 0, 5),
        # pool 1 holds 10, all for client 9
        Transfer("reward", -5, 9, 10, 1, 9),
    ),
}
ROLLED_BACK = {
    "round": 0,
    "clients": 3,
    "rolled_back": True,
    # The same bids and seats, but nobody delivered: all four bids go into escrow and back.
    "bids": LINE["bids"],
    "seats": tuple(seat._replace(delivered=False, excused=False) for seat in LINE["seats"]),
    "transfers": (
        *LINE["transfers"][:4],
        Transfer("refund", -2, 2, 10, 0, 2),
        Transfer("refund", -4, 2, 10, 1, 2),
        Transfer("refund", -2, 5, 10, 0, 5),
        Transfer("refund", -4, 9, 10, 1, 9),
    ),
}
BALANCES = {2: 25 - 10 + 13, 5: 25 - 10 + 7, 9: 25 - 10 + 10}
"""After the round: 28, 22, 25; still 75 in all."""


def change_as_owner(store: RunStore, *statements: str, **values: object) -> None:
    """Changes the database as whoever has the file can, who may drop its triggers."""
    with closing(sqlite3.connect(store.file)) as connection, connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement, values)


def opened_run(
    place: str | Path, name: str = "run", key: SigningKey | None = None, **header: Any
) -> RunStore:
    """The run by hand before its round: opening balances only."""
    store = RunStore.create(place, name, HEADER | header, key=key)
    store.commit_opening(opening_transfers(store.header["clients"], RULES["opening"]))
    return store


def worked_run(
    place: str | Path,
    name: str = "worked",
    line: dict[str, Any] = LINE,
    key: SigningKey | None = None,
    **header: Any,
) -> RunStore:
    """The round by hand, posted."""
    store = opened_run(place, name, key, **header)
    store.commit_round(0, line, "checkpoint-0")
    return store


def random_run(place: str | Path, name: str, seed: int, rounds: int, **settings: Any) -> RunStore:
    """IP-FL's rounds with clients whose answers are drawn, in a store."""
    rules, done = random_market(seed, rounds, **settings)
    header = {"method": "ipfl-plus", "config": {}, "seed": seed, "clients": list(range(8)), "rules": rules}
    store = RunStore.create(place, name, header)
    store.commit_opening(opening_transfers(range(8), rules["opening"]))
    for number, one in enumerate(done):
        line = {"round": number, "seats": one.seats, **one.market.line(), "events": one.events}
        store.commit_round(number, line, f"checkpoint-{number}")
    return store


def random_market(seed: int, rounds: int, **settings: Any) -> tuple[dict[str, Any], list[Round[Any]]]:
    """The rules of a market and its rounds, with clients whose answers are drawn.

    Bids, drop-outs, losses at the server, updates, accuracies, lost gradients.
    """
    rng = np.random.default_rng(seed)
    base = {"payment.price": 7, "payment.opening": 30, "payment.eta": 0.5, "clusters": 3}
    chosen: Any = method("ipfl-plus", **(base | settings))
    common = rng.normal(size=UPDATE_SIZE)

    def prefer(client: int, ask: Record) -> Record:
        order = rng.permutation(3)[: rng.integers(0, 4)].tolist()
        hits = rng.uniform(0, 10, 3).tolist() if ask.params else []
        return Record({}, {"bids": order, "hits": hits, "n": 10})

    def train(client: int, ask: Record) -> Record | None:
        """Some go the common way, some elsewhere, some nowhere."""
        step = rng.integers(-1, 3) * common + rng.integers(0, 2) * rng.normal(size=UPDATE_SIZE)
        models = {name: (model + step).astype(np.float32) for name, model in ask.params.items()}
        return None if rng.random() < 0.2 else Record(models, {"n": int(rng.integers(1, 50))})

    def appraise(client: int, ask: Record) -> Record | None:
        wanted = ask.params.items() if ask.facts["gradient"] else ()
        counts = {name: [float(rng.integers(0, 11)), 10] for name in ask.params}
        is_silent = rng.random() < 0.3
        return None if is_silent else Record({name: -np.ones_like(m) for name, m in wanted}, counts)

    script = {"preference": prefer, "train": train, "appraise": appraise}
    lost = np.flatnonzero(rng.random(8) < 0.2).tolist()
    state, done, _ = play(chosen, rounds, script, size=UPDATE_SIZE, lost=lost)
    return chosen.rules(state), [one.done for one in done]
