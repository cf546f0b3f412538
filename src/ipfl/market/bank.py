"""Double-entry bookkeeping: the clients' tokens between rounds, and on their way through one.

Tokens are whole numbers. Every movement is a transfer from one account to another, so that at any time
Σ balances + Σ escrow + Σ pools = what the issuer issued. In the order of a round, with price τ_p:

1. `collect_bids`  Eq. consumer_cost: τ_i ← τ_i − τ_p for every bid, into escrow.
2. `charge`        consumers pay into the pool, all others get their bids back. Consumers are those with a
                   seat, Eq. update_available_tokens: τ_ar = (N_p + N_r)·τ_p; by `ipfl-plus` everyone who was
                   sent models in this round, Algorithm 1's "bid payments from all willing clients".
3. `refund`        seats whose training was lost through no fault of the client's.
4. `ipfl.market.settlement` empties the pools: `reimburse`, `subsidise`, `reward`, `return_pool`.

Accounts are numbered independently of N and K, so that a number means the same in all rounds: a client
is its own number, the issuer −1, the escrow of cluster k −2−2k, the pool of cluster k −3−2k.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, repeat
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ipfl.core import NO_CLUSTER, ClientId, Fact, Setup
from ipfl.core.arrays import Bools, Floats, Ints
from ipfl.errors import InputError
from ipfl.market.market_rows import MarketSetup, Transfer, TransferKind
from ipfl.market.market_stats import gini, rank_correlation
from ipfl.market.payments import affordable_bids, ranks, split_tokens
from ipfl.market.seating import Seating

ISSUER = -1
MAX_TOKENS = 2**62
"""Largest sum that may be issued: half of what an int64 holds."""
LEAST_PRICES = 100
"""Prices that every client starts with at least, in a short run."""
Party = Literal["client", "escrow", "pool", "issuer"]
"""An account by client and cluster: the client's own, one of the cluster's, or the issuer's."""


def escrow(cluster: Ints) -> Ints:
    """Account numbers of the escrows of these clusters."""
    return -2 - 2 * cluster


def pool(cluster: Ints) -> Ints:
    """Account numbers of the pools of these clusters."""
    return -3 - 2 * cluster


def account_name(account: int) -> str:
    """An account for people: `client 3`, `escrow 0`, `pool 1`, `issuer`."""
    if account >= 0:
        return f"client {account}"
    if account == ISSUER:
        return "issuer"
    cluster, is_pool = divmod(-2 - account, 2)
    return f"{'pool' if is_pool else 'escrow'} {cluster}"


def describe_transfer(transfer: Transfer | None) -> str:
    """A transfer for people: `bid of 100 from client 3 to escrow 1 (client 3, cluster 1)`."""
    if transfer is None:
        return "nothing"
    source, target = account_name(transfer.source), account_name(transfer.target)
    cluster = "" if transfer.cluster == NO_CLUSTER else f", cluster {transfer.cluster}"
    return (
        f"{transfer.kind} of {transfer.amount} from {source} to {target} (client {transfer.client}{cluster})"
    )


def opening_transfers(
    clients: Iterable[ClientId], amount: int, brought: Mapping[ClientId, int] | None = None
) -> tuple[Transfer, ...]:
    """The opening of a run: the same balance for every client that brings none along."""
    own = brought or {}
    return tuple(
        Transfer("open", ISSUER, client, own.get(client, amount), NO_CLUSTER, client)
        for client in sorted(clients)
    )


def client_balances(*transfers: Iterable[Transfer]) -> dict[int, int]:
    """Tokens of every client after all these transfers."""
    balances: dict[int, int] = {}
    for transfer in chain(*transfers):
        for account, amount in ((transfer.source, -transfer.amount), (transfer.target, transfer.amount)):
            if account >= 0:
                balances[account] = balances.get(account, 0) + amount
    return balances


@dataclass(frozen=True)
class TokenAccounts:
    """The clients' tokens between rounds; a row per client in ascending id, a column per cluster."""

    ids: NDArray[np.int64]
    """Client of each row."""
    balances: NDArray[np.int64]
    """(N,) tokens τ_i of each client."""
    net: NDArray[np.int64]
    """(N, K) tokens that each cluster has brought the client, less what it cost."""
    earned: NDArray[np.int64]
    """(N,) rewards so far."""
    issued: int
    """All tokens that there are."""
    opening: int
    """Tokens that every client started with."""
    brought: Mapping[ClientId, int]
    """Tokens that clients brought along from an earlier run, instead of the opening."""

    def __post_init__(self) -> None:
        if self.balances.min(initial=0) < 0 or int(self.balances.sum()) != self.issued:
            raise ValueError(f"balances that are not the {self.issued} tokens that were issued")

    @classmethod
    def open(
        cls,
        clients: Iterable[ClientId],
        clusters: int,
        opening: int,
        brought: Mapping[ClientId, int] | None = None,
    ) -> TokenAccounts:
        """The same balance for everyone who brings none along."""
        transfers = opening_transfers(clients, opening, brought)
        issued = check_issue(0, [row.amount for row in transfers])
        ids, balances = (
            np.array([getattr(row, name) for row in transfers], np.int64) for name in ("client", "amount")
        )
        net = np.zeros((len(ids), clusters), np.int64)
        return cls(ids, balances, net, net[:, 0].copy(), issued, opening, dict(brought or {}))

    @classmethod
    def of_run(cls, setup: Setup, clusters: int, price: int, opening: int | None) -> TokenAccounts:
        """Those before the first round; an opening that is not given is a price for every round.

        Raises:
            InputError: An opening below the price, or too many tokens.
        """
        if opening is None:
            opening = max(LEAST_PRICES, setup.config.rounds) * price
        if opening < price:
            raise InputError(f"opening balance {opening} is below the price {price}: nobody could ever bid")
        brought = setup.balances if isinstance(setup, MarketSetup) else {}
        return cls.open(setup.clients, clusters, opening, brought)

    def after(self, manager: TokenManager, counted: Bools | None = None) -> TokenAccounts:
        """The accounts after a round; `counted`: (N, K) where `net` counts, everywhere by default."""
        net = manager.net if counted is None else np.where(counted, manager.net, 0)
        return replace(
            self,
            balances=manager.balances,
            net=self.net + net,
            earned=self.earned + manager.earned,
            issued=manager.issued,
        )

    def rules(self) -> dict[str, Fact]:
        """The opening, for audits."""
        brought = {str(client): balance for client, balance in sorted(self.brought.items())}
        return {"opening": self.opening, **({"brought": brought} if brought else {})}

    def report(self, price: int, psi: Floats) -> dict[str, Fact]:
        """The balances, and how far rewards follow contributions (section Fairness).

        Args:
            price: τ_p.
            psi: (N, K) remembered contributions, NaN = unknown.
        """
        known = np.isfinite(psi)
        contribution = np.where(known.any(axis=1), np.where(known, psi, 0).sum(axis=1), np.nan)
        return {
            "gini": gini(self.balances),
            "broke": self.ids[self.balances < price].tolist(),
            "contribution_reward_correlation": rank_correlation(contribution, self.earned.astype(float)),
            "balances": self.balances.tolist(),
            "issued": self.issued,
        }


class TokenManager:
    """The accounts on their way through one round, and every transfer that moved them.

    Clients are given by their rows, clusters by their columns.

    Args:
        accounts: Those before the round.
        price: τ_p, the same for all: section Fairness, "Opportunity fairness".
    """

    def __init__(self, accounts: TokenAccounts, price: int):
        self.ids, self.price = accounts.ids, price
        self.net, self.earned = np.zeros_like(accounts.net), np.zeros_like(accounts.earned)
        """Each client's net of this round: in each cluster, and as rewards."""
        self.transfers: list[Transfer] = []
        n, k = accounts.net.shape
        self.clusters = np.arange(k)
        # By account number: those below 0 (issuer, escrows, pools) count from the end.
        self._held = np.zeros(n + 2 * k + 1, np.int64)
        self._held[:n], self._held[ISSUER] = accounts.balances, -accounts.issued

    @property
    def balances(self) -> NDArray[np.int64]:
        """(N,) tokens of each client."""
        return self._held[: len(self.ids)].copy()

    @property
    def escrow(self) -> NDArray[np.int64]:
        """(K,) bids that are not yet decided on."""
        return self._held[escrow(self.clusters)]

    @property
    def pool(self) -> NDArray[np.int64]:
        """(K,) τ_ar; empty between rounds."""
        return self._held[pool(self.clusters)]

    @property
    def issued(self) -> int:
        """All tokens that there are."""
        return -int(self._held[ISSUER])

    def collect_bids(self, bid_ranks: Ints, bidders: Bools | None = None) -> Bools:
        """Eq. consumer_cost, for the bids of these clients or of all; returns which of them lie in escrow."""
        paid = affordable_bids(self.balances, bid_ranks, self.price, bidders)
        self._move("bid", "client", "escrow", np.nonzero(paid), self.price)
        return paid

    def charge(self, paid: Bools, seats: Seating, served: Bools) -> Bools:
        """Consumers pay into the pools of their clusters; all other bids are refunded.

        A seat is paid for in any case (Eq. update_available_tokens), by explorers too: from escrow if they
        had bid for that cluster, else straight from their balance.

        Args:
            paid: (N, K) bids in escrow.
            seats: Who has a seat where.
            served: (N,) clients that pay for all their bids, seat or no seat.

        Returns:
            The (N, K) payments that lie in the pools.

        Raises:
            ValueError: A seat without a bid, two seats in one, or an explorer that cannot pay.
        """
        if (seats.selected & ~paid).any():
            raise ValueError("a bidder was selected whose bid is not in escrow")
        if (seats.selected & seats.explorers).any():
            raise ValueError("a client was seated twice in one cluster")
        due = seats.all | served[:, None]
        self._move("fee", "escrow", "pool", np.nonzero(paid & due), self.price)
        self._move("fee", "client", "pool", np.nonzero(seats.explorers & ~paid), self.price)
        # Last: nobody takes a seat with tokens that still lie in escrow for another one.
        self._move("refund", "escrow", "client", np.nonzero(paid & ~due), self.price)
        return seats.all | (paid & due)

    def return_bids(self, bid_ranks: Ints) -> None:
        """A round that is rolled back: every bid goes into escrow and back, and nobody has a seat."""
        paid = self.collect_bids(bid_ranks)
        self.charge(paid, Seating.empty(paid.shape), np.zeros(len(paid), bool))

    def refund(self, payments: Bools) -> None:
        """Refunds (N, K) payments from the pools."""
        self._move("refund", "pool", "client", np.nonzero(payments), self.price)

    def reimburse(self, cluster: int, payers: Ints, share: float) -> None:
        """Eq. reimbursement: the share U_k of the pool goes back to consumers, equally.

        Printed as a deduction from every client it would destroy tokens; the text says what is meant, and
        since the reward pool shrinks by as much it is the penalty on the providers at the same time. The sum
        is rounded to the nearest token; single tokens left over go to the lowest client ids.
        """
        if len(payers):
            total = math.floor(Fraction(share) * int(self.pool[cluster]) + Fraction(1, 2))
            self._pay_out("reimbursement", cluster, payers, total, np.ones(len(payers), np.int64))

    def subsidise(self, cluster: int, providers: Ints, amount: int) -> None:
        """Issues `amount` into the pool of a cluster for each provider that earns there; not in the paper.

        What consumers pay is all that providers can earn, so together they gain nothing; who has a cost of
        training would rather keep the models that it has. The subsidy is what the work is worth to the
        server.
        """
        check_issue(self.issued, [amount] * len(providers))
        if amount:
            self._move("allowance", "issuer", "pool", (providers, cluster), amount)

    def reward(self, cluster: int, providers: Ints, psi: Floats, participation: Ints) -> None:
        """Eq. reward_distribution: the n providers share what is left in the pool by rank.

        Rank a gets a/(n(n+1)/2) of it: the printed N_r is n here, as only then does the pool come out even.

        Args:
            cluster: k.
            providers: (n,) rows of the clients that earn, ascending.
            psi: (n,) their contributions ψ_ki.
            participation: (n,) Ω_ki, rounds each took part in the cluster.
        """
        rank = ranks(psi, participation)
        self._pay_out("reward", cluster, providers, int(self.pool[cluster]), rank)

    def return_pool(self, cluster: int, payers: Ints) -> None:
        """A pool that nobody earned goes back, equally."""
        self._pay_out("refund", cluster, payers, int(self.pool[cluster]), np.ones(len(payers), np.int64))

    def _pay_out(
        self, kind: TransferKind, cluster: int, rows: Ints, total: int, weights: NDArray[np.int64]
    ) -> None:
        """Pays `total` out of a pool to clients in ascending id, by weight."""
        amounts = split_tokens(total, weights)
        some = amounts > 0
        self._move(kind, "pool", "client", (rows[some], cluster), amounts[some])

    def _move(
        self,
        kind: TransferKind,
        source: Party,
        target: Party,
        places: Sequence[Ints | int],
        amount: Ints | int,
    ) -> None:
        """Posts a transfer for every row and column of `places`, or none of them.

        Raises:
            ValueError: An account other than the issuer's that would fall below zero.
        """
        row, cluster, amount = np.broadcast_arrays(*places, amount)
        sides = {"client": row, "escrow": escrow(cluster), "pool": pool(cluster)}
        sides["issuer"] = np.full_like(row, ISSUER)
        after = self._held.copy()
        np.subtract.at(after, sides[source], amount)
        np.add.at(after, sides[target], amount)
        if (after[:ISSUER] < 0).any():
            place = int(after[:ISSUER].argmin())
            account = int(self.ids[place]) if place < len(self.ids) else place - len(after)
            raise ValueError(f"overdraft: {account_name(account)} would hold {int(after[place])}")
        self._held = after
        if source == "client":
            np.subtract.at(self.net, (row, cluster), amount)
        if target == "client":
            np.add.at(self.net, (row, cluster), amount)
        if kind == "reward":
            np.add.at(self.earned, row, amount)
        client = self.ids[row]
        sides["client"] = client
        columns = (sides[source], sides[target], amount, cluster, client)
        self.transfers += map(Transfer, repeat(kind), *(column.tolist() for column in columns))


def check_issue(issued: int, amounts: Sequence[int]) -> int:
    """The tokens issued in all, after these amounts.

    Raises:
        InputError: They are not tokens, or too many.
    """
    total = issued + sum(amounts)
    if min(amounts, default=0) < 0 or total > MAX_TOKENS:
        raise InputError(
            f"cannot issue {total} tokens (from 0 to {MAX_TOKENS} in all, none of them negative)"
        )
    return total
