"""Whatever is changed in a finished run is found, and named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.ledger.example_runs import change_as_owner
from tests.small_runs import InterruptAfter, copy_run, finding, run_small, small_task
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app
from ipfl.errors import InputError
from ipfl.keep.manifest import RoundFiles, covered_files
from ipfl.keep.run_audit import Audit
from ipfl.keep.signing_keys import find_key, key_beside
from ipfl.ledger.store import RunStore

ROUNDS = 5
OPTIONS = {"rounds": ROUNDS, "seed": 3, "train": ipfl.TrainConfig(per_round=4)}


@pytest.fixture(scope="module")
def task():
    return small_task(seed=3)


@pytest.fixture(scope="module")
def market(task, tmp_path_factory):
    """A finished run with tokens."""
    folder = tmp_path_factory.mktemp("market") / "run"
    run_small(task, "ipfl-plus", folder, **OPTIONS)
    return folder


@pytest.fixture
def copied(market, tmp_path):
    """The run with the key beside it, to be changed."""
    return copy_run(market, tmp_path / "run")


NOT_NEEDED = "%s has come or gone since the run ended; nothing needs it"


def notes(folder):
    """What is not proven of a run in which nothing is wrong."""
    store = RunStore.open(folder)
    audit = Audit(store, folder)
    assert audit.finding() is None
    return audit.notes


def command(*arguments):
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)])


def edit(path: Path) -> None:
    """Changes one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("method", "special"),
    [("ipfl-plus", {"model", "offer.safetensors"}), ("fedamp", {"client_models"}), ("ditto", {"memory"})],
)
def test_every_edit_of_every_file_is_found_by_name(task, method, special, tmp_path):
    folder = tmp_path / "run"
    run_small(task, method, folder, **OPTIONS)
    assert finding(folder) is None
    files = [*covered_files(folder), "metrics.jsonl", "manifest.json"]
    kinds = {path.split("/")[0] for path in files}
    assert kinds >= {"checkpoint", "summary.json", "metrics.jsonl", *special}
    for path in files:
        whole = (folder / path).read_bytes()
        edit(folder / path)
        assert path in finding(folder), path
        (folder / path).unlink()
        missing = "no manifest.json" if path == "manifest.json" else path
        assert missing in finding(folder) if is_needed(files, path) else notes(folder) == [NOT_NEEDED % path]
        (folder / path).write_bytes(whole)
    assert finding(folder) is None


def is_needed(files, path):
    """All but what a client remembered before its newest round: a run goes on without it."""
    of_a_client = [one for one in files if one.rpartition("/")[0] == path.rpartition("/")[0]]
    return not path.startswith(("memory/", "client_models/")) or path == max(of_a_client)


@pytest.mark.parametrize("path", ["memory/1/4.safetensors.bak", "memory/1/0.safetensors", "model/x"])
def test_a_file_more_is_found(copied, path):
    (copied / path).parent.mkdir(parents=True, exist_ok=True)
    (copied / path).write_bytes(b"more")
    assert path in finding(copied)


@pytest.mark.parametrize("path", ["memory/1/9.safetensors", "checkpoint/round-9.safetensors"])
def test_a_file_of_a_round_that_never_was_is_no_harm(task, market, copied, tmp_path, path):
    """As a run that was made longer, and was killed in its first new round, leaves it."""
    (copied / path).parent.mkdir(parents=True, exist_ok=True)
    (copied / path).write_bytes(b"more")
    assert notes(copied) == [NOT_NEEDED % path]
    run_small(task, "ipfl-plus", copied, resume=True, **OPTIONS)
    assert notes(copied) == []


def test_a_finished_run_by_the_command(market):
    done = command("verify", market)
    store = RunStore.open(market)
    head = store.head()
    assert done.exit_code == 0, done.output
    assert not list(market.rglob("*.key"))
    count = len(covered_files(market))
    assert f"run: 5 of 5 rounds verified, {count} files, signed by " in done.output
    assert f"hash {head}\n" in done.output
    assert command("verify", market, "--expect", head).exit_code == 0
    no_hash = command("verify", market, "--expect", head[:63])
    assert (no_hash.exit_code, "64 hex digits" in no_hash.output) == (2, True)


def delete_last_rounds(folder: Path, kept: int) -> None:
    """What an insider does who can write to the database: rounds go, balances are folded again."""
    tables = ("transfers", "bids", "seats", "contributions", "metrics", "rounds")
    store = RunStore.open(folder)
    sums = (
        "UPDATE balances SET balance ="
        " COALESCE((SELECT SUM(amount) FROM transfers WHERE target = account), 0) -"
        " COALESCE((SELECT SUM(amount) FROM transfers WHERE source = account), 0)"
    )
    gone = [f"DELETE FROM {table} WHERE round >= {kept}" for table in tables]
    change_as_owner(store, *gone, sums)


class TestDeletedRounds:
    def test_the_manifest_knows_them(self, copied):
        delete_last_rounds(copied, 4)
        assert finding(copied) == "the run ended after 5 rounds, but only 4 are there"

    def test_without_the_manifest_other_files_do(self, copied):
        delete_last_rounds(copied, 4)
        (copied / "manifest.json").unlink()
        assert finding(copied) == "metrics.jsonl has line 5, of a round that is not in the ledger"
        lines = (copied / "metrics.jsonl").read_text().splitlines(keepends=True)
        (copied / "metrics.jsonl").write_text("".join(lines[:4]))
        assert "checkpoint/round-" in finding(copied)

    def test_a_database_alone_says_4_of_5_and_a_noted_hash_finds_it(self, market, copied):
        store = RunStore.open(market)
        noted = store.head()
        delete_last_rounds(copied, 4)
        alone = command("verify", copied / "run.db")
        assert alone.exit_code == 0
        assert "run: 4 of 5 rounds verified" in alone.output
        expected = command("verify", copied / "run.db", "--expect", noted)
        assert (expected.exit_code, "none of its 4 rounds has the expected hash" in expected.output) == (
            1,
            True,
        )


class TestManifest:
    """Somebody without the key edits a file, and the manifest with it."""

    def change(self, folder, **changes):
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def test_its_signature_finds_it(self, copied):
        edit(copied / "model" / "cluster_0.safetensors")
        files = json.loads((copied / "manifest.json").read_text())["files"]
        self.change(copied, files=files | {"model/cluster_0.safetensors": "0" * 64})
        assert finding(copied) == "manifest.json: the signature of the manifest is false"

    def test_without_its_signature_the_rounds_do(self, copied):
        self.change(copied, public_key=None, signature=None)
        assert finding(copied) == "manifest.json is not signed by the key that signed round 4"

    def test_what_is_no_manifest(self, copied):
        self.change(copied, round="4")
        assert finding(copied).startswith("manifest.json: this is no manifest: round: ")


def forge_psi(folder: Path) -> None:
    """Raises a contribution without changing who ranks where, and computes all hashes again."""
    store = RunStore.open(folder)
    with store.snapshot() as reader:
        best = "SELECT round, sequence FROM contributions WHERE psi > 0 ORDER BY psi DESC LIMIT 1"
        round, sequence = reader.connection.execute(best).fetchone()
    change = f"UPDATE contributions SET psi = psi * 1.5 WHERE round = {round} AND sequence = {sequence}"
    change_as_owner(store, change)
    with store.snapshot() as reader:
        postings = [(row.round, reader.posting(row)) for row in reader.all_posted()]
    hash, updates = store.begun, []
    for round, posting in postings:
        new = posting.hash(hash)
        updates.append(f"UPDATE rounds SET previous = '{hash}', hash = '{new}' WHERE round = {round}")
        hash = new
    change_as_owner(store, *updates)


def test_a_forged_contribution_is_found_by_signatures_or_the_key_beside_the_run(copied):
    forge_psi(copied)
    assert finding(copied).endswith("its signature is not one of what is recorded")
    change_as_owner(RunStore.open(copied), "UPDATE rounds SET public_key = NULL, signature = NULL")
    done = command("verify", copied / "run.db", "--public-key", key_beside(copied))
    assert (done.exit_code, "round 4: it is not signed" in done.output) == (1, True)
    assert "NOT SIGNED" in command("verify", copied / "run.db").output


def test_another_key_is_not_the_one_beside_the_run(market, copied):
    key_beside(copied).unlink()
    assert command("verify", copied).exit_code == 0
    assert find_key(ipfl.RunOutput(copied.parent / "other")) is not None
    done = command("verify", copied)
    assert (done.exit_code, "signed by the key" in done.output) == (1, True)
    assert command("verify", copied, "--public-key", key_beside(market)).exit_code == 0


def stop(task, method, folder):
    """A run that is stopped after 3 of 5 rounds."""
    with pytest.raises(ipfl.Interrupted):
        run_small(task, method, folder, observer=InterruptAfter(2), **OPTIONS)
    return folder


@pytest.fixture(scope="module")
def stopped(task, tmp_path_factory):
    return stop(task, "ipfl-plus", tmp_path_factory.mktemp("stopped") / "run")


class TestResume:
    def test_it_goes_on_to_the_same_end_whatever_the_key(self, task, market, stopped, tmp_path):
        folder = copy_run(stopped, tmp_path / "run")
        assert "3 of 5 rounds verified" in command("verify", folder).output
        assert key_beside(folder).read_bytes() != key_beside(market).read_bytes()
        run_small(task, "ipfl-plus", folder, resume=True, **OPTIONS)
        assert finding(folder) is None
        store = RunStore.open(folder)
        whole = RunStore.open(market)
        assert store.head() == whole.head()

    @pytest.mark.parametrize(("method", "kind"), [("ipfl-plus", "checkpoint"), ("ditto", "memory")])
    def test_changed_models_are_refused_in_one_line(self, task, tmp_path, method, kind):
        folder = stop(task, method, tmp_path / "run")
        path = next(path for path in covered_files(folder) if path.startswith(kind))
        edit(folder / path)
        with pytest.raises(InputError, match="was changed, and cannot go on") as caught:
            run_small(task, method, folder, resume=True, **OPTIONS)
        assert f"{path} is not the file that round" in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1

    def test_a_memory_from_elsewhere_is_refused(self, task, stopped, tmp_path):
        folder = copy_run(stopped, tmp_path / "run")
        (folder / "memory/77").mkdir(parents=True)
        (folder / "memory/77/1.safetensors").write_bytes(b"")
        with pytest.raises(InputError, match=r"memory/77/1\.safetensors is not a file that the run wrote"):
            run_small(task, "ipfl-plus", folder, resume=True, **OPTIONS)

    def test_another_key_is_refused_unless_it_is_named(self, task, stopped, tmp_path):
        folder = tmp_path / "run"
        shutil.copytree(stopped, folder)
        with pytest.raises(InputError, match="name the file of its signing key"):
            run_small(task, "ipfl-plus", folder, resume=True, **OPTIONS)


def test_a_file_that_comes_late_counts_to_the_next_round(tmp_path):
    files = RoundFiles(tmp_path)
    (tmp_path / "memory/3").mkdir(parents=True)
    (tmp_path / "memory/3/0.safetensors").write_bytes(b"a")
    assert list(files.changed()) == ["memory/3/0.safetensors"]
    assert files.changed() == {}
    (tmp_path / "memory/3/0.safetensors").write_bytes(b"late")
    assert list(files.changed()) == ["memory/3/0.safetensors"]


def test_without_a_place_for_a_key_it_says_so(tmp_path, monkeypatch):
    """A key that was named must be there; the one beside the run may fail, but not in silence."""

    def refuse(path):
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr("ipfl.ledger.signing._make_key", refuse)
    with pytest.warns(UserWarning, match="the ledger is NOT SIGNED: cannot make a signing key"):
        assert find_key(ipfl.RunOutput(tmp_path / "run")) is None
    with pytest.raises(InputError, match="Read-only file system"):
        find_key(ipfl.RunOutput(tmp_path / "run", signing_key=tmp_path / "mine.key"))


def test_the_key_of_a_comparison_is_beside_all_of_it(tmp_path):
    (tmp_path / "compare").mkdir()
    (tmp_path / "compare" / "plan.json").write_text("{}")
    assert key_beside(tmp_path / "compare" / "ipfl-plus" / "seed-0") == tmp_path / "signing.key"
    assert key_beside(tmp_path / "run") == tmp_path / "signing.key"
