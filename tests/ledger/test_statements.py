"""Statements of account: what a client can prove, and what no statement gets away with."""

import json
import subprocess
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from tests.ledger.example_runs import BALANCES, HEADER, LINE, ROLLED_BACK, RULES
from tests.ledger.test_verify import change_without_triggers
from typer.testing import CliRunner

from ipfl.cli import app
from ipfl.core import Transfer
from ipfl.errors import InputError
from ipfl.keep.run_audit import verify_run
from ipfl.ledger.signing import SigningKey, is_signed_by, read_public_key
from ipfl.ledger.statements import StatementGapError, denial, read_statement
from ipfl.ledger.store import RunStore
from ipfl.market.bank import opening_transfers


def signed_run(place, key):
    """The round by hand, then one that was rolled back, signed."""
    store = RunStore.create(place, "worked", HEADER, key=key)
    store.commit_opening(opening_transfers(HEADER["clients"], RULES["opening"]))
    store.commit_round(0, LINE)
    store.commit_round(1, ROLLED_BACK | {"round": 1})
    return store


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return SigningKey.read_or_make(tmp_path_factory.mktemp("key") / "signing.key")


@pytest.fixture(scope="module")
def store(tmp_path_factory, key):
    return signed_run(tmp_path_factory.mktemp("signed") / "run", key)


def through_json(statement):
    return json.loads(json.dumps(statement.to_json()))


class TestTrue:
    @pytest.mark.parametrize("client", [2, 5, 9])
    def test_everyone_can_prove_its_balance(self, store, key, client):
        told = read_statement(through_json(store.statement(client, 0)), key.public)
        assert told.account.balance == BALANCES[client]
        assert denial(told, store) is None

    def test_it_holds_all_transfers_of_the_client_and_of_nobody_else(self, store):
        content = store.statement(5, 0).to_json()
        mine = [list(t[:5]) for t in LINE["transfers"] if t.client == 5]
        assert content["entries"] == [[-1, [["open", -1, 5, 25, -1]]], [0, mine]]
        # The path of the second of three entries: its neighbour, and the third one, which goes up as it is.
        assert (content["index"], content["size"], len(content["path"])) == (1, 3, 2)

    def test_heads_of_others_cannot_be_guessed(self, tmp_path, key, store):
        """Two runs that are equal but for their secret have no hash of an account in common."""
        other = signed_run(tmp_path / "run", key)
        assert other.head() == store.head()
        assert other.statement(5).account.balance == store.statement(5).account.balance
        assert not {*other.statement(5).path} & {*store.statement(5).path}

    def test_a_later_statement_brings_only_what_is_new(self, store):
        first, later = store.statement(2, 0), store.statement(2, 1, since=0)
        assert [round for round, _ in later.entries] == [1]
        assert later.start == first.account
        merged = read_statement(through_json(later.following(first)))
        assert merged == store.statement(2, 1)

    def test_what_it_says_is_one_line_that_steers_no_terminal(self, store):
        """Whoever sends a statement may write anything into it; unsigned, it still says so, on its line."""
        told = store.statement(5, 0)
        hostile = replace(told, head=replace(told.head, run="x\n\x1b[2Jall is well"), signed=None)
        assert str(hostile).splitlines() == [str(hostile)]
        assert (str(hostile).isprintable(), str(hostile).endswith("NOT SIGNED")) == (True, True)

    def test_signatures_are_verified_with_the_run(self, store, key):
        assert verify_run(store, public_key=key.public) is None
        assert "not by" in str(verify_run(store, public_key="0" * 64))


class TestFalse:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda c: c["account"].update(balance=99), "not among those that were signed"),
            (lambda c: c["account"].update(client=2), "this is no statement"),
            (lambda c: c["head"].update(round=7), "signature of the statement is false"),
            (lambda c: c["head"].update(hash="0" * 64), "signature of the statement is false"),
            (lambda c: c.update(index=0), "not among those that were signed"),
            (lambda c: c.update(size=2), "not among those that were signed"),
            (lambda c: c["path"].pop(), "not among those that were signed"),
            (lambda c: c["entries"].pop(), "do not lead to its balance"),
            (lambda c: c["entries"][0][1][0].__setitem__(3, 30), "do not lead to its balance"),
            (lambda c: c.update(signature="00" * 64), "signature of the statement is false"),
            (lambda c: c.update(public_key="x"), "this is no statement"),
            (lambda c: c.pop("path"), "this is no statement"),
            (lambda c: c.update(format=9), "this is no statement"),
            (lambda c: c["entries"].append([1, [["reward", -3]]]), "this is no statement"),
        ],
    )
    def test_whatever_is_changed(self, store, change, words):
        content = through_json(store.statement(5))
        change(content)
        with pytest.raises(InputError, match=words) as caught:
            read_statement(content)
        assert len(str(caught.value).splitlines()) == 1

    @pytest.mark.parametrize("content", [None, [], {}, "text", {"ipfl": "account statement"}])
    def test_other_things(self, content):
        with pytest.raises(InputError, match="this is no statement of account"):
            read_statement(content)

    def test_another_signer(self, store):
        with pytest.raises(InputError, match="not signed by the key"):
            read_statement(through_json(store.statement(5)), "0" * 64)

    def test_without_a_signature_it_says_so(self, tmp_path):
        store = signed_run(tmp_path / "run", None)
        assert "NOT SIGNED" in str(read_statement(through_json(store.statement(5))))
        assert verify_run(store) is None


class TestDenied:
    """The operator, who has the key, writes another history."""

    @pytest.fixture
    def rewritten(self, tmp_path, key, store):
        """Client 9's reward goes to client 2. The secret is that of the true run, as the operator has it."""
        other = RunStore.create(tmp_path / "run", "worked", HEADER, key=key)
        change_without_triggers(other, f"UPDATE runs SET secret = '{store.secret}'")
        other.close()
        other = RunStore.open(tmp_path / "run", key=key)
        other.commit_opening(opening_transfers(HEADER["clients"], RULES["opening"]))
        moved = Transfer("reward", -5, 2, 10, 1, 9)
        other.commit_round(0, LINE | {"transfers": (*LINE["transfers"][:-1], moved)})
        return other

    def test_what_was_signed_can_be_proven(self, store, rewritten):
        assert denial(store.statement(9, 0), rewritten) == "it says 15 tokens after round 0"
        assert "has another round 0" in denial(store.statement(5, 0), rewritten)
        assert denial(store.statement(9, 1), rewritten) == "run 'worked' has no round 1"

    def test_a_node_does_not_take_the_second_story(self, store, rewritten):
        with pytest.raises(InputError, match="says something else of round 0 than before"):
            rewritten.statement(9, 0).following(store.statement(9, 0))
        rewritten.commit_round(1, {"round": 1, "transfers": ()})
        with pytest.raises(StatementGapError, match="does not follow from that"):
            rewritten.statement(9, 1).following(store.statement(9, 0))

    def test_nor_an_older_one_or_that_of_another_key(self, tmp_path, store):
        with pytest.raises(InputError, match="of round 0, after one of round 1"):
            store.statement(9, 0).following(store.statement(9, 1))
        other = SigningKey.read_or_make(tmp_path / "other.key")
        with pytest.raises(InputError, match="signed by another key"):
            signed_run(tmp_path / "run", other).statement(9, 1).following(store.statement(9, 0))

    def test_by_the_command(self, store, rewritten, tmp_path):
        run = ["ledger", "prove", str(store.engine.url.database), "--client", "9", "--round", "0"]
        proven = CliRunner().invoke(app, run)
        (tmp_path / "nine.json").write_text(proven.stdout)
        file = str(tmp_path / "nine.json")
        same = CliRunner().invoke(app, ["ledger", "check", file, "--against", store.engine.url.database])
        assert same.exit_code == 0, same.output
        assert "client 9 has 25 tokens after round 0; signed by" in same.output
        other = CliRunner().invoke(app, ["ledger", "check", file, "--against", rewritten.engine.url.database])
        assert other.exit_code == 1
        assert "denies this: it says 15 tokens after round 0" in other.output
        (tmp_path / "nine.json").write_text(proven.stdout.replace('"balance": 25', '"balance": 26'))
        assert CliRunner().invoke(app, ["ledger", "check", file]).exit_code == 1
        (tmp_path / "nine.json").write_text("{")
        assert CliRunner().invoke(app, ["ledger", "check", file]).exit_code == 2


class TestKeys:
    def test_a_key_is_made_once_and_for_its_owner_alone(self, tmp_path):
        path = tmp_path / "new" / "signing.key"
        first = SigningKey.read_or_make(path)
        assert path.stat().st_mode & 0o777 == 0o600
        assert SigningKey.read_or_make(path).public == first.public
        assert is_signed_by(first.public, b"text", first.sign(b"text"))
        assert not is_signed_by(first.public, b"other", first.sign(b"text"))
        assert [one.name for one in path.parent.iterdir()] == ["signing.key"]

    def test_a_key_that_others_can_read_is_refused(self, tmp_path):
        SigningKey.read_or_make(tmp_path / "key")
        (tmp_path / "key").chmod(0o644)
        with pytest.raises(InputError, match="can be read by others: chmod 600"):
            SigningKey.read(tmp_path / "key")

    def test_keys_of_openssl(self, tmp_path):
        private, public, rsa = (tmp_path / name for name in ("private.pem", "public.pem", "rsa.pem"))
        for command in (
            ["genpkey", "-algorithm", "ed25519", "-out", private],
            ["pkey", "-in", private, "-pubout", "-out", public],
            ["genpkey", "-algorithm", "rsa", "-out", rsa],
        ):
            subprocess.run(["openssl", *command], check=True, capture_output=True)
        private.chmod(0o600)
        rsa.chmod(0o600)
        key = SigningKey.read(private)
        assert read_public_key(str(public)) == read_public_key(str(private)) == key.public
        assert read_public_key(key.public) == key.public
        with pytest.raises(InputError, match="no Ed25519 key"):
            SigningKey.read(rsa)

    @pytest.mark.parametrize("content", [b"", b"text", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
    def test_other_files(self, tmp_path, content):
        (tmp_path / "key").write_bytes(content)
        (tmp_path / "key").chmod(0o600)
        for read in (SigningKey.read, lambda path: read_public_key(str(path))):
            with pytest.raises(InputError):
                read(tmp_path / "key")
        with pytest.raises(InputError, match="64 hex digits or a PEM file"):
            read_public_key("nonsense")


def test_on_both_databases(place, key):
    """Signatures and closings are posted once, verified, and never changed."""
    store = signed_run(place, key)
    first = store.commit_closing({"summary.json": "0" * 64})
    assert store.commit_closing({"summary.json": "0" * 64}) == first  # a commit may be repeated
    assert verify_run(store, public_key=key.public, expect=first) is None
    assert denial(read_statement(through_json(store.statement(9)), key.public), store) is None
    for change in ("UPDATE closings SET round = 0", "DELETE FROM signatures"):
        with pytest.raises(IntegrityError, match="are never changed"), store.engine.begin() as connection:
            connection.execute(text(change))
    change_without_triggers(store, *_without_triggers(store, "UPDATE closings SET round = 0"))
    assert "the run ended with another round 0" in str(verify_run(store))


def _without_triggers(store, change):
    """`change_without_triggers` knows the tables of the rounds only."""
    is_sqlite = store.engine.dialect.name == "sqlite"
    return [change] if is_sqlite else ["ALTER TABLE closings DISABLE TRIGGER USER", change]
