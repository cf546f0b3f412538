"""The run store: the history of one run in a file; each round is posted in one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ipfl.errors import InputError
from ipfl.ledger import database
from ipfl.ledger.canonical import canonical
from ipfl.ledger.database import StoreError
from ipfl.ledger.lines import Posting, check_line, run_hash
from ipfl.ledger.reader import PostedRound, PostedTransfer, Reader
from ipfl.ledger.schema import OPENING, ROW_TABLES, check_format, make_tables
from ipfl.ledger.signing import RoundHead, SigningKey
from ipfl.ledger.statements import AccountMove, Statement, balance_of
from ipfl.market.bank import ISSUER
from ipfl.market.market_rows import Transfer


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a name must be printable")
    return text


def _check_once(ids: list[int]) -> list[int]:
    if len(set(ids)) < len(ids):
        raise ValueError("a client is named twice")
    return ids


class _Header(BaseModel):
    """The required keys of a run's header; the rest is for its readers."""

    model_config = ConfigDict(strict=True)

    clients: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], AfterValidator(_check_once)]
    client_names: (
        dict[Annotated[str, Field(pattern="^[0-9]{1,10}$")], Annotated[str, AfterValidator(_check_printable)]]
        | None
    ) = None
    rules: dict[str, Any] | None = None


def _parse_header(text: Any) -> dict[str, Any]:
    """The header of a run from its JSON; another program may have changed it.

    Raises:
        InputError: It is none.
    """
    try:
        _Header.model_validate_json(text)
        return dict(json.loads(text))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        reason = f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
    except (ValueError, TypeError, RecursionError) as error:
        reason = str(error)
    raise InputError(f"the run's header cannot be read: {reason}")


class RunStore:
    """The history of a run.

    Rounds are posted in order, each in one transaction. Posting a round again changes nothing: a commit whose
    result is not known can be repeated.

    Args:
        file: Where it is.
        name: Of the run.
        header: JSON: method, config, seed, clients (their ids), and for a market its rules.
        key: Signs every round and statement; None: nothing is signed.
    """

    def __init__(self, file: Path, name: str, header: dict[str, Any], key: SigningKey | None = None):
        self.file, self.name, self.header, self.key = file, name, header, key
        self.begun = run_hash(name, header)
        """The hash that the first round follows."""

    @classmethod
    def create(
        cls, place: str | Path, name: str, header: Mapping[str, Any], *, key: SigningKey | None = None
    ) -> RunStore:
        """Makes the store of a new run, with an account for every client.

        Args:
            place: The run's folder, or a file whose name ends with `.db`.
            name: Of the run.
            header: See the class.
            key: See the class.

        Raises:
            InputError: There is a store already, the header is none, or the file cannot be written.
        """
        file = database.store_file(place)
        if not name or not name.isprintable():
            raise InputError(f"a run needs a printable name, not {name!r}")
        try:
            text = json.dumps(header, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"the run's header cannot be kept as JSON: {error}") from error
        kept = _parse_header(text)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder of {file}: {error.strerror}") from error
        if file.exists() and file.stat().st_size:
            raise InputError(f"{file} is there already")
        with database.explained(file, f"cannot begin run {name!r}"), database.writing(file) as connection:
            make_tables(connection)
            insert_rows(connection, "run", [(name, text)])
            insert_rows(connection, "clients", ((client,) for client in sorted(kept["clients"])))
            insert_rows(connection, "balances", ((account, 0) for account in (ISSUER, *kept["clients"])))
        return cls(file, name, kept, key)

    @classmethod
    def open(cls, place: str | Path, *, key: SigningKey | None = None) -> RunStore:
        """Opens the store of a run.

        Args:
            place: The run's folder, or a file whose name ends with `.db`.
            key: See the class.

        Raises:
            InputError: There is no store, one of another format, or one that cannot be read.
        """
        file = database.store_file(place)
        if not file.is_file():
            raise InputError(f"there is no run store {file}")
        with database.explained(file, "cannot open the run store"), database.reading(file) as connection:
            check_format(connection, file)
            row = connection.execute("SELECT name, header FROM run").fetchone()
        if row is None or not isinstance(row[0], str):
            raise InputError(f"{file} is damaged: it names no run")
        try:
            return cls(file, row[0], _parse_header(row[1]), key)
        except InputError as error:
            raise InputError(f"{file}: {error}") from error

    @property
    def client_names(self) -> dict[int, str]:
        """Names of the clients by id; empty if they have none."""
        return {int(client): name for client, name in (self.header.get("client_names") or {}).items()}

    def __repr__(self) -> str:
        return f"RunStore({str(self.file)!r}, run={self.name!r})"

    def commit_opening(self, transfers: Sequence[Transfer]) -> None:
        """Posts the opening balances, before round 0."""
        self._commit(OPENING, {"round": OPENING, "transfers": transfers}, None, {})

    def commit_round(
        self,
        round: int,
        line: Mapping[str, Any],
        checkpoint: str | None = None,
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Posts a round in one transaction: its line, its hash, its rows, its metrics.

        Args:
            round: Its number, one more than the last.
            line: What the round loop reports, JSON; the rows of `ROW_TABLES` have tables.
            checkpoint: Name of the checkpoint that belongs to it.
            files: SHA-256 of each file that the round wrote, by path in the run's folder.

        Raises:
            StoreError: The round is posted with another content or out of order, the database refuses it
                or cannot be written. Nothing was kept then.
        """
        if round < 0:
            raise StoreError(f"rounds are numbered from 0, not {round}")
        self._commit(round, line, checkpoint, dict(files or {}))

    def _commit(
        self, round: int, line: Mapping[str, Any], checkpoint: str | None, files: Mapping[str, str]
    ) -> None:
        posting = Posting(round, check_line(round, line), checkpoint, files)
        what = "the opening" if round == OPENING else f"round {round}"
        with database.explained(self.file, f"cannot post {what}"), database.writing(self.file) as connection:
            if previous := self._previous_hash(Reader(connection), posting):
                self._post(connection, posting, previous)

    def _previous_hash(self, reader: Reader, posting: Posting) -> str | None:
        """The hash of what was posted before a round; None if the same round is posted already."""
        last = reader.last()
        expected = 0 if last is None else last.round + 1
        if posting.round == expected or (last is None and posting.round == OPENING):
            return self.begun if last is None else last.hash
        posted = reader.posted(posting.round)
        if posted is None:
            raise StoreError(f"round {posting.round} cannot be posted: the next one is round {expected}")
        if posted.hash == posting.hash(posted.previous):
            return None
        raise StoreError(
            f"round {posting.round} of run {self.name!r} is posted already, with another content"
        )

    def _post(self, connection: sqlite3.Connection, posting: Posting, previous: str) -> None:
        round, hash = posting.round, posting.hash(previous)
        head = RoundHead(begun=self.begun, round=round, hash=hash).signed(self.key)
        files, signed = canonical(posting.files), (head.public_key, head.signature)
        row = (round, previous, hash, posting.checkpoint, posting.rest, files, *signed)
        insert_rows(connection, "rounds", [row])
        for table in ROW_TABLES:
            rows = posting.line.get(table, ())
            insert_rows(connection, table, ((round, n, *values) for n, values in enumerate(rows)))
        insert_rows(connection, "metrics", ((round, *metric) for metric in posting.metrics.items()))

    def statement(self, client: int, round: int | None = None, since: int | None = None) -> Statement:
        """What is said of a client's account after a round, or now; signed if the store has a key.

        Args:
            client: Whose.
            round: After which; None: the last one.
            since: The round of a statement that the client has already; what it told is left out.

        Raises:
            InputError: There is no such client or round, or the run has no tokens.
        """
        if client not in self.header["clients"]:
            raise InputError(f"run {self.name!r} has no client {client}")
        if not self.header.get("rules"):
            raise InputError(f"run {self.name!r} has no tokens")
        with self.snapshot() as reader:
            posted = reader.last() if round is None else reader.posted(round)
            if posted is None:
                missing = "rounds" if round is None else f"round {round}"
                raise InputError(f"run {self.name!r} has no {missing}")
            moved = [
                AccountMove(one.round, *one.transfer[:5])
                for one in reader.transfers(client)
                if one.round <= posted.round
            ]
        return Statement(
            begun=self.begun,
            round=posted.round,
            hash=posted.hash,
            run=self.name,
            client=client,
            balance=balance_of(client, moved),
            since=since,
            moved=tuple(one for one in moved if since is None or one.round > since),
        ).signed(self.key)

    def denial(self, told: Statement) -> str | None:
        """In what the ledger says otherwise than it did in a statement; None: it says the same."""
        if self.begun != told.begun:
            return "it is of a run with another name or header"
        try:
            now = self.statement(told.client, told.round, told.since)
        except InputError as error:
            return str(error)
        if now.balance != told.balance:
            return f"it says {now.balance} tokens after round {told.round}"
        if now.moved != told.moved:
            return f"it says other transfers up to round {told.round}"
        if now.hash != told.hash:
            return f"it has another round {told.round}, or other rounds before it"
        return None

    @contextmanager
    def snapshot(self) -> Iterator[Reader]:
        """A reader of the run as of this moment; what is posted later does not show in it.

        Raises:
            StoreError: The database cannot be read.
        """
        with (
            database.explained(self.file, f"cannot read run {self.name!r}"),
            database.reading(self.file) as connection,
        ):
            yield Reader(connection)

    def _last(self) -> PostedRound | None:
        with self.snapshot() as reader:
            return reader.last()

    def last_round(self) -> int | None:
        """Number of the last posted round."""
        last = self._last()
        return None if last is None or last.round == OPENING else last.round

    def head(self) -> str:
        """The newest hash of the chain. Kept elsewhere, it shows later whether the history was changed."""
        last = self._last()
        return self.begun if last is None else last.hash

    def lines(self) -> Iterator[dict[str, Any]]:
        """What the round loop reported, a dict per round."""
        with self.snapshot() as reader:
            for posted in reader.all_posted():
                if posted.round != OPENING:
                    yield reader.line(posted)

    def balances(self, round: int | None = None) -> dict[int, int]:
        """Balance of every account after a round, or now (−1: the issuer; see `ipfl.market.bank`)."""
        with self.snapshot() as reader:
            return reader.balances(round)

    def transfers(self, client: int | None = None, round: int | None = None) -> list[PostedTransfer]:
        """Transfers in the order posted, of one client, of one round, or all."""
        with self.snapshot() as reader:
            return list(reader.transfers(client, round))


def insert_rows(connection: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> None:
    """Inserts rows, with values in the order of the table's columns; they are read one by one."""
    width = len(connection.execute(f"SELECT * FROM {table} LIMIT 0").description)
    connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * width)})", rows)
