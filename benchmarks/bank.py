"""The bank at 100,000 clients: a round of the market, and its transfers into the store.

    python benchmarks/bank.py market 100000 16     # one market, in this process
    python benchmarks/bank.py post 100000           # the transfers of one round

The market: auction, selection, payments, reimbursement and rewards of 16 clusters, by the functions that a
round of IP-FL calls, on tables of the types that it keeps. Then the round's transfers, posted by
`RunStore.commit_round` in one durable transaction with every check and trigger in force. Each measurement
has a process of its own; peak memory is the process's, with and without what the imports took. Everyone who
is there was sent the models and pays for its bids. Half of the clients get a seat; a twentieth of them does
not deliver, and one in two of those through a fault of the server's.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.core.arrays import Bools
from ipfl.ledger.store import RunStore
from ipfl.market.bank import ISSUER, TokenAccounts, TokenManager, opening_transfers
from ipfl.market.settlement import Served, SettlementRule, settle
from ipfl.methods.ipfl_plus.seats import Bidders, SeatRecord, Seats, count_places
from measuring import in_process

CLUSTERS, PRICE, OPENING = 16, 100, 10_000
BIDS = (1, 4, 8, 16)
"""Bids per client that are tried: 1 once the clusters have come apart, 16 while all models are alike."""
EXPLORERS, LATE = 0.06, 20
"""Share of the clients with a random seat; one in so many does not deliver."""


def peak() -> float:
    """Peak memory of this process, in MB."""
    # Not `ru_maxrss`, which begins with that of the process that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


IMPORTS = peak()


@dataclass(frozen=True)
class Tables:
    """What the server knows before the round: a row per client, a column per cluster."""

    bid_ranks: NDArray[np.int16]
    importance: NDArray[np.float64]
    psi: NDArray[np.float64]
    omega: NDArray[np.int64]
    score: NDArray[np.float64]
    usual_score: NDArray[np.float64]
    available: Bools


def tables(clients: int, bids: int) -> Tables:
    """Random importance, bids for the most important clusters, half of the contributions known."""
    rng = np.random.default_rng(0)
    shape = (clients, CLUSTERS)
    made = Tables(
        np.full(shape, -1, np.int16),
        np.empty(shape),
        np.empty(shape),
        np.ones(shape, np.int64),
        np.empty(shape),
        np.empty(shape),
        rng.random(clients) < 0.98,
    )
    for first in range(0, clients, 10_000):  # in parts, so that making them is not the peak
        rows = slice(first, first + 10_000)
        importance = rng.random(made.bid_ranks[rows].shape)
        rank = CLUSTERS - 1 - importance.argsort(axis=1).argsort(axis=1)
        made.bid_ranks[rows] = np.where(rank < bids, rank, -1)
        made.importance[rows] = importance / importance.sum(axis=1, keepdims=True)
        made.score[rows] = importance
        made.usual_score[rows] = importance * rng.uniform(0.95, 1.05, rank.shape)
        made.psi[rows] = np.where(rng.random(rank.shape) < 0.5, rng.normal(size=rank.shape), np.nan)
    return made


def play(given: Tables, steps: dict[str, float]) -> TokenManager:
    """A round of the bank; adds the seconds of each step."""
    clients, rng = len(given.available), np.random.default_rng(1)
    accounts = TokenAccounts.open(range(clients), CLUSTERS, OPENING)
    begun = time.perf_counter()

    def lap(step: str) -> None:
        nonlocal begun
        now = time.perf_counter()
        steps[step], begun = now - begun, now

    manager = TokenManager(accounts, PRICE)
    paid = manager.collect_bids(given.bid_ranks, given.available)
    lap("auction")
    seats_rule, record = Seats(), SeatRecord(given.omega, given.omega)
    n_r = int(EXPLORERS * clients)
    known = Bidders(
        paid,
        given.bid_ranks,
        given.importance,
        given.psi,
        given.available,
        manager.balances,
    )
    places = count_places(clients // 2 - n_r, CLUSTERS, turn=0)
    seating = seats_rule.select(known, record, places, n_r, PRICE, rng)
    lap("selection")
    payments = manager.charge(paid, seating, given.available)
    seats = seating.all
    delivered = seats & (np.arange(clients) % LATE != 0)[:, None]
    excused = seats & (np.arange(clients) % (2 * LATE) == 0)[:, None]
    manager.refund(excused)
    lap("payments")
    psi = {k: rng.normal(size=int(delivered[:, k].sum())) for k in range(CLUSTERS)}
    rule = SettlementRule("shortfall", eta=0.1, gamma=0.1)
    served = Served(payments & ~excused, seats, delivered, psi, given.omega, given.score, given.usual_score)
    settle(manager, rule, served, {})
    lap("reimbursement and rewards")
    return manager


def conserved(manager: TokenManager) -> None:
    """Stops if a token was made or lost, or is still in an escrow or a pool."""
    held, issued = int(manager.balances.sum()), OPENING * len(manager.balances)
    if manager.escrow.any() or manager.pool.any() or held != issued:
        raise RuntimeError("the tokens do not add up")


def market(clients: int, bids: int) -> dict[str, Any]:
    """Plays one round; what it took."""
    steps: dict[str, float] = {}
    given = tables(clients, bids)
    worked = time.process_time()
    manager = play(given, steps)
    worked = time.process_time() - worked
    top = peak()
    conserved(manager)
    total, count = sum(steps.values()), len(manager.transfers)
    return {
        "bids": bids,
        "transfers": count,
        "seconds": total,
        "processor": worked,
        "peak": top,
        "without imports": top - IMPORTS,
        "steps": steps,
    }


def post(clients: int) -> dict[str, Any]:
    """Posts the opening and a round with one bid each, and reads the balances back; what it took."""
    manager = play(tables(clients, BIDS[0]), {})
    rows = tuple(manager.transfers)
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore.create(folder, "bank", {"clients": list(range(clients))})
        opening = opening_transfers(range(clients), OPENING)
        begun = time.perf_counter()
        store.commit_opening(opening)
        opened, worked = time.perf_counter(), time.process_time()
        store.commit_round(0, {"round": 0, "transfers": rows})
        done, worked = time.perf_counter(), time.process_time() - worked
        check_posted(store, manager)
    return {
        "rows": len(rows),
        "opening": opened - begun,
        "seconds": done - opened,
        "processor": worked,
        "peak": peak(),
    }


def check_posted(store: RunStore, manager: TokenManager) -> None:
    """Stops unless the database holds the balances of the bank, and no other tokens."""
    held: dict[int, int] = store.balances()
    own = manager.balances.tolist()
    wrong = [client for client, balance in enumerate(own) if held[client] != balance]
    between = {account: tokens for account, tokens in held.items() if account < ISSUER and tokens}
    if wrong or between or sum(held.values()) != 0 or held[ISSUER] != -sum(own):
        raise RuntimeError(f"the database holds other balances: {wrong[:3]}, {between}")


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """A row per number of bids, the median of three; then a row of the store."""
    clients, repeats = (1000, 1) if quick else (100_000, 3)
    rows = []
    for bids in BIDS:
        found = [in_process("bank", "market", clients=clients, bids=bids) for _ in range(repeats)]
        rows.append(sorted(found, key=lambda one: one["processor"])[repeats // 2])
    return [*rows, in_process("bank", "post", clients=clients)]


if __name__ == "__main__":
    what, *sizes = sys.argv[1:]
    print((market if what == "market" else post)(*map(int, sizes)))
