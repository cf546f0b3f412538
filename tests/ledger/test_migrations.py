"""Databases of earlier releases: they are upgraded, and what they hold stays as it was."""

import json
from types import SimpleNamespace

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text
from sqlalchemy.exc import IntegrityError
from tests.ledger.example_runs import HEADER, worked_run

from ipfl.errors import InputError
from ipfl.keep.run_audit import verify_run
from ipfl.ledger.database import make_engine, parse_address, read_only
from ipfl.ledger.migrations import (
    _with_the_same_columns,
    alembic_config,
    current_revision,
    readable_revisions,
    upgrade,
)
from ipfl.ledger.store import RunStore

OLD_RUN = [
    "INSERT INTO runs (name, header) VALUES ('old', :header)",
    "INSERT INTO clients (run_id, client) VALUES (1, 2), (1, 5), (1, 9)",
    "INSERT INTO rounds VALUES (1, 0, '', 'hash', NULL, '{\"wanted\": null}')",
    "INSERT INTO bids VALUES (1, 0, 0, 2, 0, 0)",
    "INSERT INTO selections VALUES (1, 0, 0, 2, 0, 'random', :yes)",
]
"""A run as the release with revision 0001 posted it: its header has no format."""


def make_old(place):
    """A database at revision 0001 with a run of that time in it."""
    engine = make_engine(parse_address(place))
    with engine.begin() as connection:
        settings = alembic_config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, "0001")
        for statement in OLD_RUN:
            values = {"header": json.dumps(HEADER), "yes": 1 if engine.dialect.name == "sqlite" else True}
            connection.execute(text(statement), {k: v for k, v in values.items() if f":{k}" in statement})
    return engine


@pytest.fixture
def old(place, tmp_path):
    """The old database on SQLite and on PostgreSQL."""
    (tmp_path / "run").mkdir()
    return make_old(place)


NEWEST = ScriptDirectory.from_config(alembic_config()).get_current_head()


def revision_of(engine):
    with engine.connect() as connection:
        return current_revision(read_only(connection))


def test_the_table_is_renamed_with_its_rows(old):
    assert revision_of(old) == "0001"
    upgrade(old)
    assert revision_of(old) == NEWEST
    with old.connect() as connection:
        rows = connection.execute(text("SELECT client, cluster, how FROM seats")).all()
    assert rows == [(2, 0, "random")]
    assert not inspect(old).has_table("selections")


def test_new_columns_hold_what_was_not_known_before(old):
    upgrade(old)
    with old.connect() as connection:
        assert connection.execute(text("SELECT client, score, served FROM bids")).all() == [(2, None, False)]
        assert connection.execute(text("SELECT client, excused FROM seats")).all() == [(2, False)]


def test_an_upgraded_database_is_upgraded_once(old):
    upgrade(old)
    upgrade(old)
    assert revision_of(old) == NEWEST


@pytest.mark.parametrize("change", ["UPDATE seats SET how = 'performance'", "DELETE FROM seats"])
def test_seats_are_still_never_changed(old, change):
    upgrade(old)
    with pytest.raises(IntegrityError, match="seats are never changed"), old.begin() as connection:
        connection.execute(text(change))


@pytest.mark.parametrize(
    "values",
    [
        "1, 0, 0, 9, 1, 'random', 0, 0",  # the same sequence
        "1, 0, 1, 2, 0, 'random', 0, 0",  # the same client in the same cluster
    ],
)
def test_sqlite_does_not_replace_seats(tmp_path, values):
    upgrade(old := make_old(tmp_path))
    with pytest.raises(IntegrityError, match="seats are never changed"), old.begin() as connection:
        connection.execute(text(f"INSERT OR REPLACE INTO seats VALUES ({values})"))


def test_postgresql_does_not_truncate_seats(postgresql):
    upgrade(old := make_old(postgresql()))
    with pytest.raises(IntegrityError, match="seats are never changed"), old.begin() as connection:
        connection.execute(text("TRUNCATE seats"))


def trigger_names(engine):
    column, table = ("name", "sqlite_master WHERE type = 'trigger'")
    if engine.dialect.name == "postgresql":
        column, table = "tgname", "pg_trigger WHERE NOT tgisinternal AND tgrelid = 'seats'::regclass"
    with engine.connect() as connection:
        return set(connection.scalars(text(f"SELECT {column} FROM {table}")))


def test_no_trigger_keeps_the_old_name(old):
    upgrade(old)
    names = trigger_names(old)
    assert {"seats_no_update", "seats_no_delete"} <= names
    assert not [name for name in names if name.startswith("selections")]


def test_a_run_of_an_earlier_format_is_refused_in_one_line(old, place):
    with pytest.raises(InputError, match="run 'old' was written by another release of ipfl") as caught:
        RunStore.open(place, "old")
    assert "(format 1, this one reads 2 and 3)" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_new_run_can_be_entered_beside_it(old, place):
    store = worked_run(place, "new")
    assert verify_run(store) is None
    assert RunStore.open(place, "new").header["format"] == 3
    with pytest.raises(InputError, match="holds new, old; name one of these runs"):
        RunStore.open(place)


def test_a_run_of_format_2_keeps_its_hash_and_is_verified(tmp_path):
    """The hash that the release before format 3 gave to the round by hand."""
    store = worked_run(str(tmp_path / "run"), format=2)
    assert store.head() == "edd559ce6437946b069c166bc6e9189fd1d4c4f3e61210bdd6adcf26c6fb0b08"
    assert not store.has_files
    with store.snapshot() as reader:
        assert reader.posted(0).files is None
    assert verify_run(store) is None
    assert worked_run(str(tmp_path / "new")).head() != store.head()


class TestReadableRevisions:
    def test_an_index_alone_leaves_a_database_readable(self):
        assert readable_revisions() == {"0004", "0005"}

    @pytest.mark.parametrize(
        "newest, readable",
        [({}, {"3"}), ({"CHANGES_COLUMNS": False}, {"3", "2"}), ({"CHANGES_COLUMNS": True}, {"3"})],
    )
    def test_a_migration_that_says_nothing_changes_columns(self, newest, readable):
        modules = [SimpleNamespace(**newest), SimpleNamespace(), SimpleNamespace(CHANGES_COLUMNS=False)]
        scripts = [SimpleNamespace(revision=r, module=m) for r, m in zip("321", modules, strict=True)]
        assert _with_the_same_columns(scripts) == readable
