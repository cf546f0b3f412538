"""A market run again from its record: the transfers that must have been, given bids, seats and contributions.

The rules themselves are those of the round loop (`Books`, which posts what `ipfl.market.tokens` computes);
here recorded rows become the tables that they ask for. What a record need not say, because it follows from
earlier rounds, is carried along and compared: Ω_ki, Acc_kmax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ipfl.market import Bools, Ints, tokens
from ipfl.market.economy import Books
from ipfl.market.ledger import ISSUER, NO_CLUSTER, account_name
from ipfl.market.scheduler import Selection
from ipfl.store.posting import PER_CLUSTER, per_cluster

RULES = ("price", "opening", "eta", "gamma", "clusters")
"""What a replay must know of a market. May be left out: `allowance` (0), `incentive` (true), and `positive`
(false: providers are rewarded even if their contribution is not positive)."""


MOST_CLUSTERS = 2**15 - 1
"""What the cluster of a transfer can be, an int16."""


class Replay(NamedTuple):
    """What a round must have moved."""

    transfers: list[list[Any]]
    """[kind, source, target, amount, cluster, client] each."""
    complaint: str | None = None
    """Why the record cannot be true, where the transfers alone do not show it."""


class ImpossibleError(Exception):
    """A record that cannot be true."""


def told(transfer: Sequence[Any] | None) -> str:
    """A transfer for people: `bid of 100 from client 3 to escrow 1 (client 3, cluster 1)`."""
    if transfer is None:
        return "nothing"
    kind, source, target, amount, cluster, client = transfer
    where = "" if cluster == NO_CLUSTER else f", cluster {cluster}"
    return (
        f"{kind} of {amount} from {account_name(source)} to {account_name(target)} (client {client}{where})"
    )


def opening_transfers(clients: Sequence[int], amount: int) -> list[list[Any]]:
    """The opening as rows for `RunStore.commit_opening`: the same balance for every client."""
    return [["open", ISSUER, client, amount, NO_CLUSTER, client] for client in sorted(clients)]


class Market:
    """The market's memory between replayed rounds."""

    def __init__(self, rules: Mapping[str, Any], members: Sequence[int]):
        self.ids = np.asarray(sorted(members), np.int64)
        self.row = {client: row for row, client in enumerate(self.ids.tolist())}
        self.clusters, self.price = int(rules["clusters"]), int(rules["price"])
        if not 1 <= self.clusters <= MOST_CLUSTERS:
            raise ValueError(f"{self.clusters} clusters")
        self.start = int(rules["opening"])
        self.eta, self.gamma = float(rules["eta"]), float(rules["gamma"])
        self.allowance = int(rules.get("allowance", 0))
        self.incentive = bool(rules.get("incentive", True))
        self.positive = bool(rules.get("positive", False))
        self.bank, _ = tokens.open_accounts(len(self.ids), self.clusters, self.start)
        self.omega = np.zeros((len(self.ids), self.clusters), np.int64)
        self.best = np.full(self.clusters, np.nan)

    def opening(self) -> Replay:
        """What the opening must have moved."""
        return Replay(opening_transfers(self.ids.tolist(), self.start))

    def round(self, line: Mapping[str, Any]) -> Replay:
        """What a round must have moved; nothing where the market was closed (a line without `wanted`)."""
        if "wanted" not in line:
            return Replay([])
        books, complaint = Books(self.bank, self.price), None
        try:
            (self._call_off if line.get("void") else self._play)(books, line)
        except (ImpossibleError, ValueError) as error:
            complaint = str(error)
        except (LookupError, TypeError, OverflowError) as error:  # rows that no database of ours would take
            complaint = f"the round cannot be replayed: {error!r}"
        self.bank = books.bank
        return Replay(books.entries(self.ids), complaint)

    def _play(self, books: Books, line: Mapping[str, Any]) -> None:
        """The steps of a round in the order of Algorithm 1."""
        books.allowance(self.allowance)
        paid = books.auction(self._wanted(line))
        selection, delivered = self._seats(line.get("seats") or ())
        seats = books.seat(paid, selection)
        books.give_back(seats & ~delivered)
        if self.incentive:
            self._settle(books, delivered, line)
        else:
            books.give_back(delivered)
        self.omega = self.omega + delivered

    def _call_off(self, books: Books, line: Mapping[str, Any]) -> None:
        """A void round: bids and their refunds, nothing learned."""
        books.call_off(self._wanted(line))
        if known := [key for key in ("contributions", *PER_CLUSTER) if line.get(key)]:
            raise ImpossibleError(f"the round is void, but reports {known[0]}")

    def _wanted(self, line: Mapping[str, Any]) -> Ints:
        """(N, K) rank of every bid."""
        wanted = np.full((len(self.ids), self.clusters), -1)
        for client, cluster, rank in line["wanted"]:
            wanted[self._at(client, cluster)] = rank
        return wanted

    def _at(self, client: int, cluster: int) -> tuple[int, int]:
        """Row and column."""
        if client not in self.row or not 0 <= cluster < self.clusters:
            raise ImpossibleError(f"there is no client {client} or no cluster {cluster} in this run")
        return self.row[client], cluster

    def _seats(self, seats: Sequence[Sequence[Any]]) -> tuple[Selection, Bools]:
        """ζ_k, and which of the seats delivered."""
        chosen: dict[str, list[list[int]]] = {
            how: [[] for _ in range(self.clusters)] for how in ("performance", "random")
        }
        delivered = np.zeros((len(self.ids), self.clusters), bool)
        for client, cluster, how, did in seats:
            row, column = self._at(client, cluster)
            chosen[how][column].append(row)
            delivered[row, column] = did
        performance, random = (
            tuple(np.asarray(rows, np.int64) for rows in chosen[how]) for how in ("performance", "random")
        )
        return Selection(performance, random, 0), delivered

    def _settle(self, books: Books, delivered: Bools, line: Mapping[str, Any]) -> None:
        """Eqs. reimbursement_utility, reimbursement and reward_distribution of every cluster."""
        known = {self._at(i, k): (psi, omega) for i, k, psi, omega in line.get("contributions") or ()}
        if {*known} != {*zip(*map(np.ndarray.tolist, np.nonzero(delivered)), strict=True)}:
            raise ImpossibleError("the contributions are not those of the seats that delivered")
        accuracy, said = (per_cluster(line, key) for key in PER_CLUSTER)
        for k in np.flatnonzero(delivered.any(axis=0)).tolist():
            providers = np.flatnonzero(delivered[:, k])
            psi = np.array([np.nan if (p := known[row, k][0]) is None else p for row in providers.tolist()])
            omega = np.array([known[row, k][1] for row in providers.tolist()])
            if wrong := np.flatnonzero(omega != self.omega[providers, k] + 1).tolist():
                row = providers[wrong[0]]
                raise ImpossibleError(
                    f"client {self.ids[row]} is said to have trained in cluster {k} {omega[wrong[0]]} times, "
                    f"but did so {self.omega[row, k] + 1} times"
                )
            best = None if np.isnan(self.best[k]) else float(self.best[k])
            if k in said and said[k] != best:
                raise ImpossibleError(
                    f"best accuracy of cluster {k} before is said to be {said[k]}, but was {best}"
                )
            now = np.nan if (a := accuracy.get(k)) is None else a
            share = tokens.utility(now, best, self.eta, self.gamma)
            books.settle(k, providers, psi, omega, share, positive=self.positive)
            self.best[k] = np.fmax(self.best[k], now)
