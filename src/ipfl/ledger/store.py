"""The run store: one run in a database; each round is posted in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Engine, Table, insert, select
from sqlalchemy.exc import DBAPIError

from ipfl.errors import InputError
from ipfl.ledger import database, headers, schema
from ipfl.ledger.canonical import canonical
from ipfl.ledger.database import StoreError
from ipfl.ledger.lines import Posting, check_line, run_hash
from ipfl.ledger.reader import PostedRound, PostedTransfer, Reader
from ipfl.ledger.schema import OPENING
from ipfl.ledger.signing import RoundHead, SigningKey
from ipfl.ledger.statements import AccountMove, Statement, balance_of
from ipfl.market.bank import ISSUER
from ipfl.market.market_rows import Transfer

ROWS_AT_A_TIME = 2**14
"""Rows that one statement inserts into SQLite."""


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
        key: SigningKey | None = None,
    ):
        self.engine, self.run_id, self.name, self.header = engine, run_id, name, header
        self.retry_seconds, self.key = retry_seconds, key
        self.begun = run_hash(name, header)
        """The hash that the first round follows."""

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
        text, engine = headers.header_text(run, header), database.make_engine(url)

        def enter() -> int:
            schema.make_tables(engine)
            with engine.begin() as connection:
                if headers.find_stored_run(connection, run):
                    raise InputError(
                        f"{database.display_url(url)} already holds a run {run!r}; choose another name"
                    )
                new = connection.execute(insert(schema.runs).values(name=run, header=text))
                run_id = int(new.inserted_primary_key[0])  # type: ignore[index]
                members = sorted(json.loads(text)["clients"])
                insert_rows(connection, schema.clients, [(run_id, client) for client in members])
                accounts = [(run_id, account, 0) for account in (ISSUER, *members)]
                insert_rows(connection, schema.balances, accounts)
                return run_id

        # No retries: a wrong address is an error at once.
        run_id = database.transact(enter, url, f"cannot enter run {run!r}", retry_seconds=0)
        return cls(engine, run_id, run, json.loads(text), retry_seconds, key)

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
            key: What rounds and statements are signed with; None: nothing is signed.
            read_only: Through connections that cannot write, as always where the file cannot be written.

        Raises:
            InputError: No such store, one of another format, no such run, or several and no name.
        """
        url = database.parse_address(address)
        if url.drivername == "sqlite" and not Path(str(url.database)).is_file():
            raise InputError(f"there is no run store {url.database}")
        read_only = read_only or not database.is_writable(url)
        engine = database.make_read_only_engine(url) if read_only else database.make_engine(url)
        try:
            schema.check_tables(engine)
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
        return cls(engine, row[0], name, header, retry_seconds, key)

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
            line: What the round loop reports, JSON; the rows of `ipfl.ledger.lines.TABLE_KEYS` have tables.
            checkpoint: Name of the checkpoint that belongs to it.
            files: SHA-256 of each file that the round wrote, by path in the run's folder.

        Raises:
            StoreError: The round is posted with another content or out of order, the database refuses it
                or could not be reached. Nothing was kept then.
        """
        if round < 0:
            raise StoreError(f"rounds are numbered from 0, not {round}")
        self._commit(round, line, checkpoint, dict(files or {}))

    def _lock(self, connection: Connection) -> None:
        """One writer per run at a time; SQLite has one per file anyway."""
        connection.execute(select(schema.runs.c.id).where(schema.runs.c.id == self.run_id).with_for_update())

    def _commit(
        self, round: int, line: Mapping[str, Any], checkpoint: str | None, files: Mapping[str, str]
    ) -> None:
        posting = Posting(round, check_line(round, line), checkpoint, files)

        def work() -> None:
            with self.engine.begin() as connection:
                self._lock(connection)
                if previous := self._previous_hash(Reader(connection, self.run_id), posting):
                    self._insert(connection, posting, previous)

        what = "the opening" if round == OPENING else f"round {round}"
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
        key, hash = (self.run_id, posting.round), posting.hash(previous)
        head = RoundHead(begun=self.begun, round=posting.round, hash=hash).signed(self.key)
        files, signed = canonical(posting.files), (head.public_key, head.signature)
        row = (*key, previous, hash, posting.checkpoint, posting.rest, files, *signed)
        insert_rows(connection, schema.rounds, [row])
        for name, table in schema.row_tables.items():
            numbered = ((*key, n, *values) for n, values in enumerate(posting.line.get(name, ())))
            insert_rows(connection, table, numbered)
        metrics = [(*key, *metric) for metric in posting.metrics.items()]
        insert_rows(connection, schema.metrics, metrics)

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
