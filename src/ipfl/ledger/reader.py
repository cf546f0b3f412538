"""Reads a run from its store as of one moment: lines, transfers, balances, and a summary per account."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, func, select, union_all

from ipfl.ledger.database import StoreError
from ipfl.ledger.lines import Posting, check_line, check_rows
from ipfl.ledger.schema import balances, clients, metrics, rounds, row_tables, transfers
from ipfl.market.bank import ISSUER, account_name
from ipfl.market.market_rows import Transfer


class PostedTransfer(NamedTuple):
    """A transfer in the store. It is identified by (run, round, sequence)."""

    round: int
    sequence: int
    transfer: Transfer

    @property
    def account_names(self) -> tuple[str, str]:
        """Names of the source and the target account."""
        return account_name(self.transfer.source), account_name(self.transfer.target)

    @property
    def reason(self) -> str:
        """What the transfer was for."""
        is_subsidy = self.transfer.source == ISSUER and self.transfer.target < 0
        kind = "subsidy" if is_subsidy else self.transfer.kind
        return REASONS[kind].format(cluster=self.transfer.cluster)


REASONS = {
    "open": "opening balance",
    "allowance": "allowance",
    "subsidy": "added to pool {cluster} for the update",
    "bid": "bid for cluster {cluster}",
    "refund": "refund for cluster {cluster}",
    "fee": "seat in cluster {cluster}",
    "reimbursement": "share of pool {cluster} returned",
    "reward": "trained in cluster {cluster}",
}
"""`Transfer.kind`, or `subsidy`, → what the transfer was for."""


def names_one_of(members: Sequence[int]) -> ColumnElement[bool]:
    """Transfers on behalf of these clients, which the database finds by its index of clients."""
    # One of them twice: for a single value, SQLite takes the index of rounds and reads the whole run.
    return transfers.c.client.in_([*members, *members[:1]])


class AccountSummary(NamedTuple):
    """What a client was issued, paid and earned, in tokens, and its balance."""

    issued: int
    paid: int
    refunded: int
    reimbursed: int
    earned: int
    balance: int


class PostedRound(NamedTuple):
    """The row of a round."""

    round: int
    previous: str
    hash: str
    checkpoint: str | None
    line: str
    files: str
    """JSON."""
    public_key: str | None
    """Who signed the hash; None: nobody."""
    signature: str | None


MAX_ROUND = 2**31 - 1
"""Largest number of a round."""
MAX_JSON_DEPTH = 50
"""Levels of lists and objects inside each other in the JSON of a line."""


def _parse_line(round: int, text: Any) -> dict[str, Any]:
    """A round's line from its JSON. It is not trusted: another program may have changed the database."""
    try:
        line = json.loads(text, parse_constant=_parse_finite, parse_float=_parse_finite)
        if not isinstance(line, dict) or not _is_within_depth(line, MAX_JSON_DEPTH):
            raise ValueError(f"not an object, or more than {MAX_JSON_DEPTH} levels deep")
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"the line of round {round} is not one that a round can report: {error}") from error
    return line


def _parse_files(round: int, text: Any) -> dict[str, str]:
    """SHA-256 by path, from its JSON; it is not trusted."""
    try:
        files = json.loads(text)
        if not isinstance(files, dict) or not all(isinstance(one, str) for one in files.values()):
            raise ValueError("not names with a text each")
    except (ValueError, TypeError, RecursionError) as error:
        raise StoreError(f"the files of round {round} cannot be read: {error}") from error
    return files


def _parse_finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return value


def _is_within_depth(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value
    # Most of a line are lists of numbers, which need no look of their own.
    deeper = [one for one in inner if isinstance(one, dict | list)]
    return levels > 0 and all(_is_within_depth(one, levels - 1) for one in deeper)


def _check_whole(values: Iterable[Any], what: str) -> list[int]:
    """The values, if they are whole numbers: a changed SQLite file can hold any value in any column."""
    found = list(values)
    for value in found:
        if type(value) is not int:
            raise StoreError(f"{what} should be whole numbers, but one is {value!r}")
    return found


@dataclass(frozen=True)
class Reader:
    """A run as of one moment.

    Every method raises `StoreError` if the database holds something that no run posts.
    """

    connection: Connection
    run_id: int

    def round_numbers(self) -> list[int]:
        """Numbers of all posted rounds in order; the opening is one of them."""
        found = select(rounds.c.round).where(rounds.c.run_id == self.run_id).order_by(rounds.c.round)
        return _check_whole(self.connection.scalars(found), "rounds")

    def posted(self, round: int) -> PostedRound | None:
        """The row of a round; None if it is not posted."""
        if abs(round) > MAX_ROUND:  # what drivers of databases do not take for a number
            return None
        columns = [rounds.c[name] for name in PostedRound._fields]
        where = (rounds.c.run_id == self.run_id) & (rounds.c.round == round)
        row = self.connection.execute(select(*columns).where(where)).first()
        return None if row is None else PostedRound(*row)

    def all_posted(self) -> Iterator[PostedRound]:
        """The rows of all rounds in order, one at a time."""
        for number in self.round_numbers():
            if (posted := self.posted(number)) is not None:
                yield posted

    def files(self) -> dict[str, tuple[int, str]]:
        """Every file that rounds wrote, by path: the last round that wrote it, and its SHA-256 since then."""
        found: dict[str, tuple[int, str]] = {}
        columns = select(rounds.c.round, rounds.c.files).where(rounds.c.run_id == self.run_id)
        for number, text in self.connection.execute(columns.order_by(rounds.c.round)):
            _check_whole([number], "rounds")
            named = _parse_files(number, text)
            found |= {path: (number, digest) for path, digest in named.items()}
        return found

    def rolled_back(self) -> list[int]:
        """Numbers of the rounds that were rolled back."""
        likely = rounds.c.line.contains('"rolled_back": true')  # so that the database sends few lines
        found = select(rounds.c.round, rounds.c.line).where(rounds.c.run_id == self.run_id, likely)
        lines = self.connection.execute(found.order_by(rounds.c.round))
        return [round for round, line in lines if _parse_line(round, line).get("rolled_back")]

    def last(self) -> PostedRound | None:
        """The newest row; the opening's if there is no round yet, None if nothing is posted."""
        newest = select(func.max(rounds.c.round)).where(rounds.c.run_id == self.run_id)
        number = self.connection.scalar(newest)
        return None if number is None else self.posted(*_check_whole([number], "rounds"))

    def line(self, posted: PostedRound) -> dict[str, Any]:
        """What the round loop reported of a round, with typed rows."""
        line = _parse_line(posted.round, posted.line)
        for key, table in row_tables.items():
            if key in line and line[key] is None:
                line[key] = self._rows(table, posted.round)
        return check_line(posted.round, line)

    def posting(self, posted: PostedRound) -> Posting:
        """All that a round posted."""
        files = _parse_files(posted.round, posted.files)
        return Posting(posted.round, self.line(posted), posted.checkpoint, files)

    def rest(self, round: int) -> dict[str, Any]:
        """What the line of a round says beside the rows that have tables; empty if it is not posted."""
        posted = self.posted(round)
        return {} if posted is None else _parse_line(round, posted.line)

    def _rows(self, table: Table, round: int) -> Sequence[Sequence[Any]]:
        """The values of a round's rows in a table, in order."""
        chosen = [column for column in table.columns if column.name not in ("run_id", "round", "sequence")]
        where = (table.c.run_id == self.run_id) & (table.c.round == round)
        return self.connection.execute(select(*chosen).where(where).order_by(table.c.sequence)).all()

    def sequences(self, table: Table, round: int) -> list[int]:
        """Numbers of a round's rows in a table."""
        where = (table.c.run_id == self.run_id) & (table.c.round == round)
        found = self.connection.scalars(select(table.c.sequence).where(where).order_by(table.c.sequence))
        return _check_whole(found, f"sequences in {table.name}")

    def clients(self) -> list[int]:
        """The clients of the run."""
        found = select(clients.c.client).where(clients.c.run_id == self.run_id).order_by(clients.c.client)
        return _check_whole(self.connection.scalars(found), "clients")

    def metrics(self, round: int) -> dict[str, float]:
        """The metrics of a round by name."""
        where = (metrics.c.run_id == self.run_id) & (metrics.c.round == round)
        return {row.name: row.value for row in self.connection.execute(select(metrics).where(where))}

    def transfers(self, client: int | None = None, round: int | None = None) -> Iterator[PostedTransfer]:
        """Transfers in the order posted, of one client, of one round, or all."""
        columns = [transfers.c[name] for name in ("round", "sequence", *Transfer._fields)]
        found = select(*columns).where(*self._chosen(client, round))
        # An option of the statement: as one of the connection it would stay, and a stream cannot insert.
        streamed = self.connection.execute(
            found.order_by(transfers.c.round, transfers.c.sequence), execution_options={"yield_per": 10_000}
        )
        for number, sequence, *values in streamed:
            _check_whole((number, sequence), "a transfer's round and sequence")
            (transfer,) = check_rows("transfers", [values])
            yield PostedTransfer(number, sequence, transfer)

    def _chosen(self, client: int | None, round: int | None) -> list[ColumnElement[bool]]:
        chosen: list[ColumnElement[bool]] = [transfers.c.run_id == self.run_id]
        if client is not None:
            chosen.append(transfers.c.client == client)
        if round is not None:
            chosen.append(transfers.c.round == round)
        return chosen

    def kept_balances(self) -> dict[int, int]:
        """All balances as the database itself adds them up."""
        found = select(balances.c.account, balances.c.balance).where(balances.c.run_id == self.run_id)
        rows = [(row.account, row.balance) for row in self.connection.execute(found)]
        _check_whole((value for row in rows for value in row), "accounts and balances")
        return dict(rows)

    def balances(self, round: int | None = None) -> dict[int, int]:
        """Balance of every account after a round, or now; the issuer's is minus what was issued."""
        if round is None:
            return self.kept_balances()
        chosen = [transfers.c.run_id == self.run_id, transfers.c.round <= round]
        sides = union_all(
            select(transfers.c.source.label("account"), (-transfers.c.amount).label("delta")).where(*chosen),
            select(transfers.c.target, transfers.c.amount).where(*chosen),
        ).subquery()
        summed = select(sides.c.account, func.sum(sides.c.delta)).group_by(sides.c.account)
        found = dict.fromkeys([*self.clients(), ISSUER], 0)
        return found | {account: int(total) for account, total in self.connection.execute(summed)}

    def accounts(
        self, members: Sequence[int] | None = None, round: int | None = None
    ) -> dict[int, AccountSummary]:
        """What these clients, or all, paid and earned, in a round or in all; and their balance after it."""
        after = self.balances(round)
        is_payment = (transfers.c.source >= 0).label("is_payment")
        # What moves between escrow, pool and issuer on a client's behalf is neither paid nor received by it.
        is_own = (transfers.c.source >= 0) | (transfers.c.target >= 0)
        chosen = self._chosen(None, round) + ([] if members is None else [names_one_of(members)])
        summed = (
            select(transfers.c.client, transfers.c.kind, is_payment, func.sum(transfers.c.amount))
            .where(*chosen, is_own)
            .group_by(transfers.c.client, transfers.c.kind, is_payment)
        )
        totals: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for who, kind, is_paid, total in self.connection.execute(summed):
            totals[who]["paid" if is_paid else kind] += int(total)
        return {
            who: AccountSummary(
                totals[who]["open"] + totals[who]["allowance"],
                totals[who]["paid"],
                totals[who]["refund"],
                totals[who]["reimbursement"],
                totals[who]["reward"],
                after.get(who, 0),
            )
            for who in (self.clients() if members is None else members)
        }
