"""The run store: one run in a database; each round is posted in one transaction."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine, Table, insert, select
from sqlalchemy.exc import DBAPIError

from ipfl.core import Transfer
from ipfl.errors import InputError
from ipfl.ledger import database, headers, schema
from ipfl.ledger.canonical import canonical
from ipfl.ledger.database import StoreError
from ipfl.ledger.lines import (
    FILES_FORMAT,
    READABLE_FORMATS,
    STORE_FORMAT,
    Posting,
    closing_hash,
    metrics_of,
    run_hash,
)
from ipfl.ledger.migrations import check_revision, holds_store, upgrade
from ipfl.ledger.reader import PostedRound, PostedTransfer, Reader
from ipfl.ledger.run_accounts import RunAccounts
from ipfl.ledger.schema import OPENING
from ipfl.ledger.signing import SigningKey
from ipfl.ledger.statements import AccountBook, LedgerHead, SignedHead, Statement

ROWS_AT_A_TIME = 2**14
"""Rows that one statement inserts into SQLite."""
SECRET = re.compile(r"[0-9a-f]{64}")
"""Of a run: 32 bytes in hex."""


class RunStore:
    """One run. Several may share a database, each under its name.

    Rounds are posted in order, each in one transaction. Posting a round again changes nothing: a commit whose
    result is not known can be repeated.
    """

    def __init__(
        self,
        engine: Engine,
        run_id: int,
        name: str,
        header: dict[str, Any],
        retry_seconds: float | None,
        secret: str | None = None,
        key: SigningKey | None = None,
    ):
        self.engine, self.run_id, self.name, self.header = engine, run_id, name, header
        self.secret, self.retry_seconds, self.key = secret, retry_seconds, key
        self.begun = run_hash(name, header)
        """The hash that the first round follows."""
        self._accounts = RunAccounts(name, self.begun, header, secret)

    @classmethod
    def create(
        cls,
        address: str | Path,
        run: str,
        header: Mapping[str, Any],
        *,
        retry_seconds: float | None = None,
        key: SigningKey | None = None,
    ) -> RunStore:
        """Enters a new run, with an account for every client; creates the tables if there are none.

        Args:
            address: A run's folder, a database file or a URL.
            run: The run's name, new in this database.
            header: JSON: method, config, seed, clients (their ids), and for a market its rules.
            retry_seconds: How long a commit is retried while the database cannot be reached; None for the
                default of `ipfl.system.retry`.
            key: Signs every round; None: nothing is signed.

        Raises:
            InputError: A run of this name is there already, or the database cannot be used.
        """
        url = database.parse_address(address)
        if url.drivername == "sqlite":
            _make_folder(Path(str(url.database)))
        text = headers.header_text(run, {"format": STORE_FORMAT, **header})
        engine, secret = database.make_engine(url), secrets.token_hex(32)

        def enter() -> int:
            upgrade(engine)
            with engine.begin() as connection:
                if headers.find_stored_run(connection, run):
                    raise InputError(
                        f"{database.display_url(url)} already holds a run {run!r}; choose another name"
                    )
                new = connection.execute(insert(schema.runs).values(name=run, header=text, secret=secret))
                run_id = int(new.inserted_primary_key[0])  # type: ignore[index]
                members = sorted(json.loads(text)["clients"])
                insert_rows(connection, schema.clients, [(run_id, client) for client in members])
                return run_id

        # No retries: a wrong address is an error at once.
        run_id = database.transact(enter, url, f"cannot enter run {run!r}", retry_seconds=0)
        return cls(engine, run_id, run, json.loads(text), retry_seconds, secret, key)

    @classmethod
    def open(
        cls,
        address: str | Path,
        run: str | None = None,
        *,
        retry_seconds: float | None = None,
        key: SigningKey | None = None,
        read_only: bool = False,
    ) -> RunStore:
        """Opens a run; without a name, the only one of the database.

        Args:
            address: A run's folder, a database file or a URL.
            run: The run's name.
            retry_seconds: As for `create`.
            key: What statements and heads are signed with; None: nothing is signed.
            read_only: Through connections that cannot write, as always where the file cannot be written; a
                store of an earlier release is refused then, as it would have to be changed first.

        Raises:
            InputError: No such store, no such run, or several and no name.
        """
        url = database.parse_address(address)
        if url.drivername == "sqlite" and not Path(str(url.database)).is_file():
            raise InputError(f"there is no run store {url.database}")
        read_only = read_only or not database.is_writable(url)
        engine = database.make_read_only_engine(url) if read_only else database.make_engine(url)
        try:
            if not holds_store(engine):
                raise InputError(f"{database.display_url(url)} holds no run store")
            if read_only:
                check_revision(engine)
            else:
                upgrade(engine)
            with engine.connect() as connection, database.read_only(connection).begin():
                names = connection.scalars(select(schema.runs.c.name).order_by(schema.runs.c.name))
                known = [one for one in names if isinstance(one, str)]
                name = headers.choose_run(known, run, url)
                row = headers.find_stored_run(connection, name)
        except DBAPIError as error:
            raise database.explain(error, url, "cannot open the run store") from None
        if row is None:  # its index and its table disagree
            raise InputError(f"{database.display_url(url)} is damaged: run {name!r} cannot be found")
        header = headers.parse_header(row[1], name, url)
        if header.get("format") not in READABLE_FORMATS:
            readable = " and ".join(map(str, READABLE_FORMATS))
            raise InputError(
                f"{database.display_url(url)}: run {name!r} was written by another release of ipfl "
                f"(format {header.get('format', 1)!r}, this one reads {readable})"
            )
        secret = row[2] if isinstance(row[2], str) and SECRET.fullmatch(row[2]) else None
        return cls(engine, row[0], name, header, retry_seconds, secret, key)

    @property
    def client_names(self) -> dict[int, str]:
        """Names of the clients by id; empty if they have none."""
        return {int(client): name for client, name in (self.header.get("client_names") or {}).items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the database."""
        self.engine.dispose()

    def __repr__(self) -> str:
        return f"RunStore({database.display_url(self.engine.url)!r}, run={self.name!r})"

    def commit_opening(self, transfers: Sequence[Transfer]) -> None:
        """Posts the opening balances, before round 0."""
        files: dict[str, str] | None = {} if self.has_files else None
        self._commit(Posting.make(OPENING, {"round": OPENING, "transfers": transfers}, None, files))

    @property
    def has_files(self) -> bool:
        """Whether the hash of a round covers its files."""
        return bool(self.header["format"] >= FILES_FORMAT)

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
            line: What the round loop reports, JSON; the rows of `ipfl.ledger.lines.TABLE_KEYS` have tables.
            checkpoint: Name of the checkpoint that belongs to it.
            files: SHA-256 of each file that the round wrote, by path in the run's folder.

        Raises:
            StoreError: The round is posted with another content or out of order, the database refuses it
                or could not be reached. Nothing was kept then.
        """
        if round < 0:
            raise StoreError(f"rounds are numbered from 0, not {round}")
        self._commit(Posting.make(round, line, checkpoint, dict(files or {}) if self.has_files else None))

    def commit_closing(self, files: Mapping[str, str]) -> str:
        """Posts what the run wrote after its last round, and returns the hash over all of it.

        Args:
            files: SHA-256 of each file, by path in the run's folder.
        """
        text = canonical(files)

        def work() -> str:
            with self.engine.begin() as connection:
                self._lock(connection)
                reader = Reader(connection, self.run_id)
                last, known = reader.last(), reader.closings()
                round, head = (OPENING, self.begun) if last is None else (last.round, last.hash)
                hash = closing_hash(head, round, files)
                if known and known[-1].hash == hash:
                    return hash
                number = known[-1].number + 1 if known else 0
                signed = (None, None) if self.key is None else (self.key.public, self.key.sign(hash.encode()))
                row = (self.run_id, number, round, head, text, hash, *signed)
                insert_rows(connection, schema.closings, [row])
                return hash

        return database.transact(work, self.engine.url, "cannot post the results", self.retry_seconds)

    def _lock(self, connection: Connection) -> None:
        """One writer per run at a time; SQLite has one per file anyway."""
        connection.execute(select(schema.runs.c.id).where(schema.runs.c.id == self.run_id).with_for_update())

    def _commit(self, posting: Posting) -> None:
        what = "the opening" if posting.round == OPENING else f"round {posting.round}"

        def work() -> None:
            with self.engine.begin() as connection:
                self._lock(connection)
                if previous := self._previous_hash(Reader(connection, self.run_id), posting):
                    self._insert(connection, posting, previous)

        database.transact(work, self.engine.url, f"cannot post {what}", self.retry_seconds)

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

    def _insert(self, connection: Connection, posting: Posting, previous: str) -> None:
        key = (self.run_id, posting.round)
        hash = posting.hash(previous)
        files = None if posting.files is None else canonical(posting.files)
        head = (*key, previous, hash, posting.checkpoint, posting.rest, files)
        insert_rows(connection, schema.rounds, [head])
        for name, rows in posting.rows.items():
            numbered = ((*key, sequence, *row) for sequence, row in enumerate(rows))
            insert_rows(connection, schema.row_tables[name], numbered)
        metrics = [(*key, *metric) for metric in metrics_of(posting.line).items()]
        insert_rows(connection, schema.metrics, metrics)
        if self.key is not None:
            moved = posting.line.get("transfers", ())
            book = self._accounts.after(Reader(connection, self.run_id), posting.round, moved)
            signed = SignedHead.make(self.ledger_head(posting.round, hash, book), self.key)
            row = (*key, signed.head.accounts, signed.public_key, signed.signature)
            insert_rows(connection, schema.signatures, [row])

    def ledger_head(self, round: int, hash: str, book: AccountBook | None) -> LedgerHead:
        """What is signed of a round."""
        return self._accounts.head(round, hash, book)

    def statement(self, client: int, round: int | None = None, since: int | None = None) -> Statement:
        """What can be said of a client's account after a round, or now.

        Args:
            client: Whose.
            round: After which; None: the last one.
            since: The round of a statement that the client has already; what it told is left out.

        Raises:
            InputError: There is no such client or round, or the run has no tokens.
        """
        with self.snapshot() as reader:
            return self._accounts.statement(reader, client, round, since)

    @contextmanager
    def snapshot(self) -> Iterator[Reader]:
        """A reader of the run as of this moment; what is posted later does not show in it.

        Raises:
            StoreError: The database cannot be read.
        """
        try:
            with self.engine.connect() as connection, database.read_only(connection).begin():
                yield Reader(connection, self.run_id)
        except DBAPIError as error:
            raise database.explain(error, self.engine.url, f"cannot read run {self.name!r}") from None

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


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder of {path}: {error.strerror}") from error


def insert_rows(connection: Connection, table: Table, rows: Iterable[Sequence[Any]]) -> None:
    """Inserts many rows, values in the order of the table's columns; they are read one by one.

    PostgreSQL gets them by one COPY, so that the trigger on transfers runs once.
    """
    names = ", ".join(column.name for column in table.columns)
    left = iter(rows)
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" for _ in table.columns)
        while some := [tuple(row) for row in islice(left, ROWS_AT_A_TIME)]:
            connection.exec_driver_sql(f"INSERT INTO {table.name} ({names}) VALUES ({marks})", some)
    elif (first := next(left, None)) is not None:
        database.copy_rows(connection, f"COPY {table.name} ({names}) FROM STDIN", chain([first], left))
