"""The run store: one run in a database; each round is posted in one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Column, Connection, Engine, Integer, Table, insert, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from ipfl.core import Transfer
from ipfl.errors import InputError
from ipfl.ledger import database, schema
from ipfl.ledger.database import StoreError
from ipfl.ledger.lines import STORE_FORMAT, Posting, metrics_of, run_hash
from ipfl.ledger.migrations import holds_store, upgrade
from ipfl.ledger.reader import PostedRound, PostedTransfer, Reader
from ipfl.ledger.schema import OPENING


class RunStore:
    """One run. Several may share a database, each under its name.

    Rounds are posted in order, each in one transaction. Posting a round again changes nothing: a commit whose
    result is not known can be repeated.
    """

    def __init__(
        self, engine: Engine, run_id: int, name: str, header: dict[str, Any], retry_seconds: float | None
    ):
        self.engine, self.run_id, self.name, self.header = engine, run_id, name, header
        self.retry_seconds = retry_seconds

    @classmethod
    def create(
        cls, address: str | Path, run: str, header: Mapping[str, Any], *, retry_seconds: float | None = None
    ) -> RunStore:
        """Enters a new run, with an account for every client; creates the tables if there are none.

        Args:
            address: A run's folder, a database file or a URL.
            run: The run's name, new in this database.
            header: JSON: method, config, seed, clients (their ids), and for a market its rules.
            retry_seconds: How long a commit is retried while the database cannot be reached; None for the
                default of `ipfl.core.retry`.

        Raises:
            InputError: A run of this name is there already, or the database cannot be used.
        """
        url = database.parse_address(address)
        if url.drivername == "sqlite":
            _make_folder(Path(str(url.database)))
        text = _header_text(run, {"format": STORE_FORMAT, **header})
        engine = database.make_engine(url)

        def enter() -> int:
            upgrade(engine)
            with engine.begin() as connection:
                if _find_run(connection, run):
                    raise InputError(
                        f"{database.display_url(url)} already holds a run {run!r}; choose another name"
                    )
                new = connection.execute(insert(schema.runs).values(name=run, header=text))
                run_id = int(new.inserted_primary_key[0])  # type: ignore[index]
                members = sorted(json.loads(text)["clients"])
                insert_rows(connection, schema.clients, [(run_id, client) for client in members])
                return run_id

        # No retries: a wrong address is an error at once.
        run_id = database.transact(enter, url, f"cannot enter run {run!r}", retry_seconds=0)
        return cls(engine, run_id, run, json.loads(text), retry_seconds)

    @classmethod
    def open(
        cls, address: str | Path, run: str | None = None, *, retry_seconds: float | None = None
    ) -> RunStore:
        """Opens a run; without a name, the only one of the database.

        Raises:
            InputError: No such store, no such run, or several and no name.
        """
        url = database.parse_address(address)
        if url.drivername == "sqlite" and not Path(str(url.database)).is_file():
            raise InputError(f"there is no run store {url.database}")
        engine = database.make_engine(url)
        try:
            if not holds_store(engine):
                raise InputError(f"{database.display_url(url)} holds no run store")
            upgrade(engine)
            with engine.connect() as connection, database.read_only(connection).begin():
                names = connection.scalars(select(schema.runs.c.name).order_by(schema.runs.c.name))
                known = [one for one in names if isinstance(one, str)]
                name = _choose_run(known, run, url)
                row = _find_run(connection, name)
        except DBAPIError as error:
            raise database.explain(error, url, "cannot open the run store") from None
        if row is None:  # its index and its table disagree
            raise InputError(f"{database.display_url(url)} is damaged: run {name!r} cannot be found")
        header = _read_header(row[1], name, url)
        if header.get("format") != STORE_FORMAT:
            raise InputError(
                f"{database.display_url(url)}: run {name!r} was written by another release of ipfl "
                f"(format {header.get('format', 1)!r}, this one reads {STORE_FORMAT})"
            )
        return cls(engine, row[0], name, header, retry_seconds)

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
        self._commit(Posting.make(OPENING, {"round": OPENING, "transfers": transfers}, None))

    def commit_round(self, round: int, line: Mapping[str, Any], checkpoint: str | None = None) -> None:
        """Posts a round in one transaction: its line, its hash, its rows, its metrics.

        Args:
            round: Its number, one more than the last.
            line: What the round loop reports, JSON; the rows of `ipfl.ledger.lines.TABLE_KEYS` have tables.
            checkpoint: Name of the checkpoint that belongs to it.

        Raises:
            StoreError: The round is posted with another content or out of order, the database refuses it
                or could not be reached. Nothing was kept then.
        """
        if round < 0:
            raise StoreError(f"rounds are numbered from 0, not {round}")
        self._commit(Posting.make(round, line, checkpoint))

    def _commit(self, posting: Posting) -> None:
        what = "the opening" if posting.round == OPENING else f"round {posting.round}"

        def work() -> None:
            with self.engine.begin() as connection:
                # One writer per run at a time; SQLite has one per file anyway.
                connection.execute(
                    select(schema.runs.c.id).where(schema.runs.c.id == self.run_id).with_for_update()
                )
                if previous := self._previous_hash(Reader(connection, self.run_id), posting):
                    self._insert(connection, posting, previous)

        database.transact(work, self.engine.url, f"cannot post {what}", self.retry_seconds)

    def _previous_hash(self, reader: Reader, posting: Posting) -> str | None:
        """The hash of what was posted before a round; None if the same round is posted already."""
        last = reader.last()
        expected = 0 if last is None else last.round + 1
        if posting.round == expected or (last is None and posting.round == OPENING):
            return run_hash(self.name, self.header) if last is None else last.hash
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
        head = (*key, previous, posting.hash(previous), posting.checkpoint, posting.rest)
        insert_rows(connection, schema.rounds, [head])
        for name, rows in posting.rows.items():
            numbered = [(*key, sequence, *row) for sequence, row in enumerate(rows)]
            insert_rows(connection, schema.row_tables[name], numbered)
        metrics = [(*key, *metric) for metric in metrics_of(posting.line).items()]
        insert_rows(connection, schema.metrics, metrics)

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
        return run_hash(self.name, self.header) if last is None else last.hash

    def lines(self) -> Iterator[dict[str, Any]]:
        """What the round loop reported, a dict per round."""
        with self.snapshot() as reader:
            for posted in reader.all_posted():
                if posted.round != OPENING:
                    yield reader.line(posted)

    def balances(self, round: int | None = None) -> dict[int, int]:
        """Balance of every account after a round, or now (−1: the issuer; see `ipfl.ledger.accounts`)."""
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


def _header_text(run: str, header: Mapping[str, Any]) -> str:
    """The header as JSON.

    Raises:
        InputError: It cannot be the header of a run.
    """
    if not run or not run.isprintable():
        raise InputError(f"a run needs a printable name, not {run!r}")
    try:
        text = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"the run's header cannot be kept as JSON: {error}") from error
    members = json.loads(text).get("clients")
    if not isinstance(members, list) or not all(isinstance(i, int) and 0 <= i < 2**31 for i in members):
        raise InputError("the run's header needs clients, a list of their ids")
    if len(set(members)) < len(members):
        raise InputError("the run's header names a client twice")
    if not _are_names(header.get("client_names") or {}):
        raise InputError("the run's header has client_names that are not texts by client id")
    if header.get("rules") and not isinstance(header["rules"], Mapping):
        raise InputError("the run's header has rules that are not a mapping")
    return text


def _are_names(names: Any) -> bool:
    """Whether these are names of clients: printable texts by id."""
    return isinstance(names, Mapping) and all(
        str(client).isascii()
        and str(client).isdigit()
        and len(str(client)) < 11
        and isinstance(name, str)
        and name.isprintable()
        for client, name in names.items()
    )


def _read_header(text: Any, name: str, url: URL) -> dict[str, Any]:
    """The header from its JSON. It is not trusted: another program may have changed the database."""
    try:
        header = json.loads(text)
        if not isinstance(header, dict):
            raise ValueError("it is not an object")
        _header_text(name, header)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"{database.display_url(url)}: the header of run {name!r} cannot be read: {error}"
        ) from error
    return header


def _find_run(connection: Connection, name: str) -> tuple[int, str] | None:
    found = select(schema.runs.c.id, schema.runs.c.header).where(schema.runs.c.name == name)
    row = connection.execute(found).first()
    return None if row is None else (row.id, row.header)


def _choose_run(known: Sequence[str], run: str | None, url: URL) -> str:
    """The name of the run to open: the given one, or the only one."""
    if run is not None and run not in known:
        raise InputError(f"{database.display_url(url)} has no run {run!r}; it holds {_list_names(known)}")
    if run is None and len(known) != 1:
        raise InputError(f"{database.display_url(url)} holds {_list_names(known)}; name one of these runs")
    return known[0] if run is None else run


def _list_names(known: Sequence[str]) -> str:
    return ", ".join(known) or "no runs"


def insert_rows(connection: Connection, table: Table, rows: Sequence[Sequence[Any]]) -> None:
    """Inserts many rows at once, values in the order of the table's columns.

    PostgreSQL gets a list per column in one statement, so that the trigger on transfers runs once.
    """
    if not rows:
        return
    names = ", ".join(column.name for column in table.columns)
    into = f"INSERT INTO {table.name} ({names})"
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" for _ in table.columns)
        connection.exec_driver_sql(f"{into} VALUES ({marks})", [tuple(row) for row in rows])
        return
    types = [column.type.compile(connection.dialect) for column in table.columns]
    lists = ", ".join(f"%s::{sql_type}[]" for sql_type in types)
    values = zip(*rows, strict=True)
    arrays = tuple(_array(column, next(values)) for column in table.columns)
    connection.exec_driver_sql(f"{into} SELECT * FROM unnest({lists})", arrays)


def _array(column: Column[Any], values: Sequence[Any]) -> list[Any] | str:
    """The values of a column for PostgreSQL."""
    if isinstance(column.type, Integer) and not column.nullable:  # as text: many times as fast in the driver
        return "{" + ",".join(map(str, values)) + "}"
    return list(values)
