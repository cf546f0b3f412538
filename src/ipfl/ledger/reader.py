"""Reads a run from its store as of one moment: lines, transfers, balances, and a summary per account."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ipfl.ledger.database import StoreError
from ipfl.ledger.lines import Posting, check_line, check_rows
from ipfl.ledger.schema import ROW_TABLES
from ipfl.market.bank import ISSUER, account_name
from ipfl.market.market_rows import ROW_TYPES, Transfer


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


def _whole_numbers(rows: Iterable[tuple[Any, Any]], what: str) -> dict[int, int]:
    """A dict of rows that should be two whole numbers each."""
    found = dict(rows)
    _check_whole((*found, *found.values()), what)
    return found


@dataclass(frozen=True)
class Reader:
    """A run as of one moment.

    Every method raises `StoreError` if the database holds something that no run posts.
    """

    connection: sqlite3.Connection

    def column(self, query: str, *values: object) -> list[Any]:
        """The first value of every row that a query finds."""
        return [row[0] for row in self.connection.execute(query, values)]

    def round_numbers(self) -> list[int]:
        """Numbers of all posted rounds in order; the opening is one of them."""
        return _check_whole(self.column("SELECT round FROM rounds ORDER BY round"), "rounds")

    def posted(self, round: int) -> PostedRound | None:
        """The row of a round; None if it is not posted."""
        if abs(round) > MAX_ROUND:  # what SQLite does not take for a number
            return None
        row = self.connection.execute("SELECT * FROM rounds WHERE round = ?", [round]).fetchone()
        return None if row is None else PostedRound(*row)

    def all_posted(self) -> Iterator[PostedRound]:
        """The rows of all rounds in order, one at a time."""
        for number in self.round_numbers():
            if (posted := self.posted(number)) is not None:
                yield posted

    def files(self) -> dict[str, tuple[int, str]]:
        """Every file that rounds wrote, by path: the last round that wrote it, and its SHA-256 since then."""
        found: dict[str, tuple[int, str]] = {}
        for number, text in self.connection.execute("SELECT round, files FROM rounds ORDER BY round"):
            _check_whole([number], "rounds")
            named = _parse_files(number, text)
            found |= {path: (number, digest) for path, digest in named.items()}
        return found

    def rolled_back(self) -> list[int]:
        """Numbers of the rounds that were rolled back."""
        return self.column(
            "SELECT round FROM rounds WHERE json_extract(line, '$.rolled_back') ORDER BY round"
        )

    def last(self) -> PostedRound | None:
        """The newest row; the opening's if there is no round yet, None if nothing is posted."""
        (number,) = self.column("SELECT max(round) FROM rounds")
        return None if number is None else self.posted(*_check_whole([number], "rounds"))

    def line(self, posted: PostedRound) -> dict[str, Any]:
        """What the round loop reported of a round, with typed rows."""
        line = _parse_line(posted.round, posted.line)
        for table in ROW_TABLES:
            rows = self._rows(table, posted.round)
            if table in line and line[table] is None:
                line[table] = rows
            elif rows:
                raise StoreError(f"it has {table}, of which its line says nothing")
        return check_line(posted.round, line)

    def posting(self, posted: PostedRound) -> Posting:
        """All that a round posted."""
        files = _parse_files(posted.round, posted.files)
        return Posting(posted.round, self.line(posted), posted.checkpoint, files)

    def rest(self, round: int) -> dict[str, Any]:
        """What the line of a round says beside the rows that have tables; empty if it is not posted."""
        posted = self.posted(round)
        return {} if posted is None else _parse_line(round, posted.line)

    def _rows(self, table: str, round: int) -> list[tuple[Any, ...]]:
        """The values of a round's rows in a table, in order; they are numbered from 0 without gaps."""
        columns = ", ".join(ROW_TYPES[table]._fields)
        found = f"SELECT sequence, {columns} FROM {table} WHERE round = ? ORDER BY sequence"
        rows = []
        for number, (sequence, *values) in enumerate(self.connection.execute(found, [round])):
            if sequence != number:
                raise StoreError(f"entry {number} is missing from its {table}")
            rows.append(tuple(values))
        return rows

    def clients(self) -> list[int]:
        """The clients of the run."""
        return _check_whole(self.column("SELECT client FROM clients ORDER BY client"), "clients")

    def metrics(self, round: int) -> dict[str, float]:
        """The metrics of a round by name."""
        return dict(self.connection.execute("SELECT name, value FROM metrics WHERE round = ?", [round]))

    def transfers(self, client: int | None = None, round: int | None = None) -> Iterator[PostedTransfer]:
        """Transfers in the order posted, of one client, of one round, or all."""
        where, values = choose(client=client, round=round)
        columns = ", ".join(Transfer._fields)
        found = f"SELECT round, sequence, {columns} FROM transfers WHERE {where} ORDER BY round, sequence"
        for number, sequence, *rest in self.connection.execute(found, values):
            _check_whole((number, sequence), "a transfer's round and sequence")
            (transfer,) = check_rows("transfers", [rest])
            yield PostedTransfer(number, sequence, transfer)

    def damage(self) -> str | None:
        """The faults that SQLite finds in its file, such as an index that does not fit to its table."""
        (found,) = self.column("PRAGMA integrity_check(1)")
        return None if found == "ok" else " ".join(found.split())

    def kept_balances(self) -> dict[int, int]:
        """All balances as the database itself adds them up."""
        rows = self.connection.execute("SELECT account, balance FROM balances")
        return _whole_numbers(rows, "balances")

    def balances(self, round: int | None = None) -> dict[int, int]:
        """Balance of every account after a round, or now; the issuer's is minus what was issued."""
        if round is None:
            return self.kept_balances()
        summed = self.connection.execute(SUMS, {"round": round})
        return dict.fromkeys([*self.clients(), ISSUER], 0) | _whole_numbers(summed, "balances")

    def accounts(
        self, members: Sequence[int] | None = None, round: int | None = None
    ) -> dict[int, AccountSummary]:
        """What these clients, or all, paid and earned, in a round or in all; and their balance after it."""
        after = self.balances(round)
        where, values = choose(round=round)
        if members is not None:
            where, values = (
                f"{where} AND client IN (SELECT value FROM json_each(?))",
                [*values, json.dumps([*members])],
            )
        # What moves between escrow, pool and issuer on a client's behalf is neither paid nor received by it.
        summed = self.connection.execute(
            "SELECT client, CASE WHEN source >= 0 THEN 'paid' ELSE kind END AS what, sum(amount) "
            f"FROM transfers WHERE {where} AND (source >= 0 OR target >= 0) GROUP BY client, what",
            values,
        )
        totals: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for who, what, total in summed:
            (totals[who][what],) = _check_whole([total], "sums of transfers")
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


SUMS = """
SELECT account, sum(delta) FROM (
  SELECT source AS account, -amount AS delta FROM transfers WHERE round <= :round
  UNION ALL SELECT target, amount FROM transfers WHERE round <= :round
) GROUP BY account"""
"""The balances after a round, of all accounts that had a transfer until then."""


def choose(**wanted: object) -> tuple[str, list[object]]:
    """A condition of SQL on columns, and its values; None: any."""
    given = {column: value for column, value in wanted.items() if value is not None}
    return " AND ".join(["TRUE", *(f"{column} = ?" for column in given)]), [*given.values()]
