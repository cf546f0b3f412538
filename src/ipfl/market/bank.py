"""Double-entry bookkeeping: accounts, transfers, and the bank that posts them.

Tokens are whole numbers. Every movement is a transfer from one account to another, so that at any time
Σ balances + Σ escrow + Σ pools = what the issuer issued. The method decides which transfers a round makes
(`ipfl.market.payments`).

Accounts are numbered independently of N and K, so that a number means the same in all rounds: a client
is its own number, the issuer −1, the escrow of cluster k −2−2k, the pool of cluster k −3−2k.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from ipfl.core import NO_CLUSTER
from ipfl.core.arrays import Ints
from ipfl.market.market_rows import Transfer

ISSUER = -1
_CHUNK_SIZE = 2**16
"""Transfers that are summed at a time; so many fit into the processor's cache."""
_FEW = 2**12
"""Transfers of a round that are kept once they were made."""


class Kind(IntEnum):
    """Why tokens moved; the arrows say from which account to which."""

    OPEN = 0
    """issuer → client: opening balance, the same for all."""
    ALLOWANCE = 1
    """issuer → client: optional income, the same for all; issuer → pool: for an update that earns there."""
    BID = 2
    """client → escrow: Eq. consumer_cost."""
    REFUND = 3
    """escrow or pool → client: not selected, no valid update, or the round was rolled back."""
    FEE = 4
    """escrow or client → pool: a seat taken, Eq. update_available_tokens."""
    REIMBURSEMENT = 5
    """pool → client that paid: Eq. reimbursement."""
    REWARD = 6
    """pool → client that trained: Eq. reward_distribution."""


KIND_NAMES = {int(kind): kind.name.lower() for kind in Kind}
"""`Transfer.kind` of every number."""


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


@dataclass(frozen=True)
class Transfers:
    """Many transfers as columns of one length: 23 bytes each, so that a million clients fit."""

    kind: NDArray[np.int8]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    amount: NDArray[np.int64]
    cluster: NDArray[np.int16]
    client: NDArray[np.int32]

    @classmethod
    def of(
        cls,
        kind: Kind,
        source: Ints | int,
        target: Ints | int,
        amount: Ints | int,
        cluster: Ints | int,
        client: Ints,
    ) -> Transfers:
        """Transfers of one kind, one per entry of `client`; single numbers hold for all of them."""
        n = len(client)
        return cls(
            np.broadcast_to(np.int8(kind), n),
            np.broadcast_to(np.asarray(source, np.int32), n),
            np.broadcast_to(np.asarray(target, np.int32), n),
            np.broadcast_to(np.asarray(amount, np.int64), n),
            np.broadcast_to(np.asarray(cluster, np.int16), n),
            np.asarray(client, np.int32),
        )

    @classmethod
    def concat(cls, *parts: Transfers | TransferTable) -> Transfers:
        """The transfers of all parts, in order; empty without parts."""
        found = [*chain.from_iterable(part.chunks() for part in parts)] or [
            cls.of(Kind.OPEN, 0, 0, 0, NO_CLUSTER, np.empty(0, np.int32))
        ]
        return cls(*(np.concatenate([getattr(part, f.name) for part in found]) for f in fields(cls)))

    def __len__(self) -> int:
        return len(self.kind)

    def chunks(self) -> Iterator[Transfers]:
        """The same in parts that are small enough to be read at once."""
        for first in range(0, len(self), _CHUNK_SIZE):
            part = slice(first, first + _CHUNK_SIZE)
            yield Transfers(*(getattr(self, f.name)[part] for f in fields(self)))

    def rows(self, ids: NDArray[np.int64]) -> tuple[Transfer, ...]:
        """The transfers one by one, with client ids instead of row numbers."""
        kinds = [KIND_NAMES[kind] for kind in self.kind.tolist()]
        sides = (np.where(side >= 0, ids[np.maximum(side, 0)], side) for side in (self.source, self.target))
        columns = (*sides, self.amount, self.cluster, ids[self.client])
        return tuple(map(Transfer, kinds, *(column.tolist() for column in columns)))


Party = Literal["client", "escrow", "pool"]
"""An account by client and cluster: the client's own, or one of the cluster's."""


@dataclass(frozen=True)
class TransferTable:
    """Transfers of one kind and one amount as an (N, K) table: a byte each, and sums instead of postings.

    True where the client's tokens move for the cluster. In the order of the table, row by row.
    """

    kind: Kind
    source: Party
    target: Party
    amount: int
    entries: NDArray[np.bool_]

    def __len__(self) -> int:
        return int(np.count_nonzero(self.entries))

    def chunks(self) -> Iterator[Transfers]:
        """The same as columns, in parts."""
        n, k = self.entries.shape
        step = max(1, _CHUNK_SIZE // max(1, k))
        for first in range(0, n, step):
            client, cluster = np.nonzero(self.entries[first : first + step])
            if not len(client):
                continue
            client += first
            sides = {"client": client, "escrow": escrow(cluster), "pool": pool(cluster)}
            yield Transfers.of(
                self.kind, sides[self.source], sides[self.target], self.amount, cluster, client
            )

    def totals(self, party: Party) -> NDArray[np.int64]:
        """Tokens that pass through each account of a party: (N,) for clients, (K,) for the others."""
        # As `sum`, which takes twice as long over the bytes of a million rows.
        counted = np.einsum("nk->n" if party == "client" else "nk->k", self.entries, dtype=np.int64)
        return np.asarray(counted * self.amount)


class TransferRows(Sequence[Transfer]):
    """The transfers of a round as a round reports them, made one by one only while they are read.

    A round reads them several times: for its hash, its rows, its balances, its line. Few are made once.

    Args:
        parts: In the order posted, with row numbers instead of clients.
        ids: Client of each row.
    """

    def __init__(self, parts: Iterable[Transfers | TransferTable], ids: NDArray[np.int64]):
        self._parts, self._ids = tuple(parts), ids
        self._length = sum(map(len, self._parts))

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _few(self) -> tuple[Transfer, ...]:
        return tuple(chain.from_iterable(self._made()))

    def chunks(self) -> Iterator[tuple[Transfer, ...]]:
        """All rows, some ten thousand at a time."""
        return iter([self._few]) if 0 < self._length <= _FEW else self._made()

    def _made(self) -> Iterator[tuple[Transfer, ...]]:
        for part in self._parts:
            for chunk in part.chunks():
                yield chunk.rows(self._ids)

    def __iter__(self) -> Iterator[Transfer]:
        return chain.from_iterable(self.chunks())

    @overload
    def __getitem__(self, index: int) -> Transfer: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Transfer, ...]: ...
    def __getitem__(self, index: int | slice) -> Transfer | tuple[Transfer, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            one == another for one, another in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TransferRows({len(self)} transfers)"


@dataclass(frozen=True)
class Bank:
    """All accounts at one moment. Cannot be made with a negative account or a sum that does not add up."""

    balances: NDArray[np.int64]
    """(N,) tokens τ_i of each client."""
    escrow: NDArray[np.int64]
    """(K,) bids of the running round, not yet decided on."""
    pool: NDArray[np.int64]
    """(K,) τ_ar of each cluster in the running round; empty between rounds."""
    issued: int
    """The issuer's account is minus this."""

    def __post_init__(self) -> None:
        for name, account in (("balance", self.balances), ("escrow", self.escrow), ("pool", self.pool)):
            if account.dtype != np.int64:
                raise ValueError(f"tokens are int64, but {name} is {account.dtype}")
            if account.size and account.min() < 0:
                raise ValueError(f"overdraft: {name} {int(account.argmin())} would hold {int(account.min())}")
        total = int(self.balances.sum() + self.escrow.sum() + self.pool.sum())
        if total != self.issued:
            raise ValueError(f"the accounts hold {total} tokens, but {self.issued} were issued")


def post(bank: Bank, transfers: Transfers | TransferTable) -> Bank:
    """The bank after these transfers, as one transaction.

    Raises:
        ValueError: a negative amount, or an account other than the issuer's that would fall below zero.
    """
    if isinstance(transfers, TransferTable):
        return _post_table(bank, transfers)
    if len(transfers) and transfers.amount.min() < 0:
        raise ValueError("a transfer of a negative amount")
    n, k = len(bank.balances), len(bank.pool)
    shared = np.zeros(1 + 2 * k, np.int64)  # the issuer, then escrow and pool of each cluster in turn
    shared[0], shared[1::2], shared[2::2] = -bank.issued, bank.escrow, bank.pool
    accounts = np.concatenate([bank.balances, shared])
    np.subtract.at(accounts, _slot(transfers.source, n), transfers.amount)
    np.add.at(accounts, _slot(transfers.target, n), transfers.amount)
    balances, shared = accounts[:n], accounts[n:]
    return Bank(balances, shared[1::2].copy(), shared[2::2].copy(), -int(shared[0]))


def _post_table(bank: Bank, table: TransferTable) -> Bank:
    if table.amount < 0:
        raise ValueError("a transfer of a negative amount")
    held = {"client": bank.balances, "escrow": bank.escrow, "pool": bank.pool}
    for party, sign in ((table.source, -1), (table.target, 1)):
        held[party] = held[party] + sign * table.totals(party)
    return Bank(held["client"], held["escrow"], held["pool"], bank.issued)


def _slot(account: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """Index of an account in the array of all accounts: clients, then −1, −2 and so on."""
    return np.where(account >= 0, account, np.int32(n - 1) - account)


@dataclass(frozen=True)
class ClientTotals:
    """What transfers meant for each client, all (N,) and in tokens.

    Balances change by −paid + reimbursed + earned, plus what the issuer gave.
    """

    paid: NDArray[np.int64]
    """As a consumer, refunds taken off."""
    reimbursed: NDArray[np.int64]
    """As a consumer."""
    earned: NDArray[np.int64]
    """As a provider."""

    @property
    def net(self) -> NDArray[np.int64]:
        """Gain (or loss) over both roles."""
        return self.reimbursed + self.earned - self.paid


def client_totals(transfers: Transfers, n: int, cluster: int | None = None) -> ClientTotals:
    """Sums the transfers per client, of all clusters or of one."""
    paid, reimbursed, earned = (np.zeros(n, np.int64) for _ in range(3))
    for first in range(0, len(transfers), _CHUNK_SIZE):
        part = slice(first, first + _CHUNK_SIZE)
        kind, client, amount = transfers.kind[part], transfers.client[part], transfers.amount[part]
        here = True if cluster is None else transfers.cluster[part] == cluster
        for add, sums, chosen in (
            (np.add, paid, transfers.source[part] >= 0),
            (np.subtract, paid, kind == Kind.REFUND),
            (np.add, reimbursed, kind == Kind.REIMBURSEMENT),
            (np.add, earned, kind == Kind.REWARD),
        ):
            where = np.flatnonzero(chosen & here)
            add.at(sums, client[where], amount[where])
    return ClientTotals(paid, reimbursed, earned)


def opening_balances(clients: Sequence[int], amount: int, brought: Mapping[int, int]) -> NDArray[np.int64]:
    """What clients open with: what they bring along from an earlier run, or the same for all others."""
    return np.array([brought.get(client, amount) for client in clients], np.int64)


def opening_transfers(
    clients: Sequence[int], amount: int, brought: Mapping[int, int] | None = None
) -> tuple[Transfer, ...]:
    """The opening of a run: the same balance for every client that brings none along."""
    ids = sorted(clients)
    amounts = opening_balances(ids, amount, brought or {}).tolist()
    return tuple(
        Transfer("open", ISSUER, client, tokens, NO_CLUSTER, client)
        for client, tokens in zip(ids, amounts, strict=True)
    )


def client_balances(*transfers: Iterable[Transfer]) -> dict[int, int]:
    """Tokens of every client after all these transfers."""
    balances: dict[int, int] = {}
    for transfer in chain(*transfers):
        for account, amount in ((transfer.source, -transfer.amount), (transfer.target, transfer.amount)):
            if account >= 0:
                balances[account] = balances.get(account, 0) + amount
    return balances
