"""Statements of account: what a client can prove, and what no statement gets away with."""

import json
import subprocess
from contextlib import suppress

import pytest
from tests.ledger.example_runs import BALANCES, LINE, ROLLED_BACK, change_as_owner, worked_run
from typer.testing import CliRunner

from ipfl.cli import app
from ipfl.errors import InputError
from ipfl.keep.run_audit import verify_run
from ipfl.ledger.signing import SigningKey, is_signed_by, read_public_key
from ipfl.ledger.statements import StatementGapError, parse_statements, read_statement
from ipfl.market.market_rows import Transfer


def signed_run(place, key):
    """The round by hand, then one that was rolled back, signed."""
    store = worked_run(place, key=key)
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
        assert told.balance == BALANCES[client]
        assert store.denial(told) is None

    def test_it_holds_all_transfers_of_the_client_and_of_nobody_else(self, store):
        content = through_json(store.statement(5, 0))
        mine = [[0, *t[:5]] for t in LINE["transfers"] if t.client == 5]
        assert content["moved"] == [[-1, "open", -1, 5, 25, -1], *mine]
        with store.snapshot() as reader:
            assert content["hash"] == reader.posted(0).hash

    def test_a_later_statement_brings_only_what_is_new(self, store):
        first, later = store.statement(2, 0), store.statement(2, 1, since=0)
        assert {one.round for one in later.moved} == {1}
        kept = "".join(json.dumps(one.to_json()) + "\n" for one in (first, later))
        assert parse_statements(kept) == [first, later]
        assert [store.denial(one) for one in (first, later)] == [None, None]
        store.statement(2, 1).check_follows(first)  # all from the beginning fits as well

    def test_what_it_says_is_one_line_that_steers_no_terminal(self, store):
        """Whoever sends a statement may write anything into it; unsigned, it still says so, on its line."""
        changed = {"run": "x\n\x1b[2Jall is well", "public_key": None}
        hostile = store.statement(5, 0).model_copy(update=changed)
        assert str(hostile).splitlines() == [str(hostile)]
        assert (str(hostile).isprintable(), str(hostile).endswith("NOT SIGNED")) == (True, True)


class TestFalse:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda c: c.update(signature=None), "signature of the account statement is false"),
            (lambda c: c.update(public_key=None), "signature of the account statement is false"),
            (lambda c: c.update(public_key="x"), "this is no account statement"),
            (lambda c: c.pop("moved"), "this is no account statement"),
            (lambda c: c.update(ipfl="manifest"), "this is no account statement"),
            (lambda c: c.update(more=9), "this is no account statement"),
            (lambda c: c.update(balance="25"), "this is no account statement"),
            (lambda c: c["moved"].append([1, "reward", -3]), "this is no account statement"),
        ],
    )
    def test_whatever_is_changed(self, store, change, words):
        content = through_json(store.statement(5))
        change(content)
        with pytest.raises(InputError, match=words) as caught:
            read_statement(content)
        assert len(str(caught.value).splitlines()) == 1

    def test_any_character_of_a_kept_line(self, store, key):
        """One that is another, or gone: found, or a blank between two fields."""
        told = store.statement(5)
        line = json.dumps(told.to_json())
        for place, character in enumerate(line):
            for other in ("", chr(ord(character) ^ 1), character.swapcase()):
                with suppress(InputError):
                    changed = line[:place] + other + line[place + 1 :]
                    assert parse_statements(changed, key.public) == [told], changed

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"balance": 99}, "do not lead to its balance"),
            ({"round": 0}, "not in the order of its rounds"),
            ({"since": 0}, "not in the order of its rounds"),
        ],
    )
    def test_what_is_signed_but_cannot_be(self, store, key, change, words):
        signed = store.statement(5).model_copy(update=change).signed(key)
        with pytest.raises(InputError, match=words):
            read_statement(through_json(signed))

    @pytest.mark.parametrize("content", [None, [], {}, "text", {"ipfl": "account statement"}])
    def test_other_things(self, content):
        with pytest.raises(InputError, match="this is no account statement"):
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
    def rewritten(self, tmp_path, key):
        """Client 9's reward goes to client 2."""
        moved = Transfer("reward", -5, 2, 10, 1, 9)
        line = LINE | {"transfers": (*LINE["transfers"][:-1], moved)}
        return worked_run(tmp_path / "run", line=line, key=key)

    def test_a_node_takes_no_older_one_of_no_other_key_and_none_after_a_gap(self, tmp_path, store):
        with pytest.raises(InputError, match="of round 0, after one of round 1"):
            store.statement(9, 0).check_follows(store.statement(9, 1))
        other = SigningKey.read_or_make(tmp_path / "other.key")
        with pytest.raises(InputError, match="signed by another key"):
            signed_run(tmp_path / "run", other).statement(9, 1).check_follows(store.statement(9, 0))
        with pytest.raises(StatementGapError, match="goes on from round 0, not -1"):
            store.statement(9, 1, since=0).check_follows(store.statement(9, -1))

    def test_by_the_command(self, store, key, rewritten, tmp_path):
        """The clients kept one line after each round; who lost nothing finds the forgery too."""
        for client, reason in ((9, "it says 15 tokens after round 0"), (5, "it has another round 0")):
            kept, lines = tmp_path / f"{client}.jsonl", []
            for round, since in ((-1, None), (0, -1)):
                lines.append(json.dumps(store.statement(client, round, since).to_json()))
            kept.write_text("\n".join(lines))
            check = ["ledger", "check", str(kept), "--public-key", key.public, "--against"]
            same = CliRunner().invoke(app, [*check, str(store.file)])
            assert same.exit_code == 0, same.output
            assert f"client {client} has {BALANCES[client]} tokens after round 0; signed by" in same.output
            other = CliRunner().invoke(app, [*check, str(rewritten.file)])
            assert (other.exit_code, f"denies this: {reason}" in other.output) == (1, True), other.output

    @pytest.mark.parametrize("text", ["{", "", "\xff"])
    def test_files_that_are_none(self, tmp_path, text):
        (tmp_path / "kept").write_bytes(text.encode("latin-1"))
        done = CliRunner().invoke(app, ["ledger", "check", str(tmp_path / "kept")])
        assert done.exit_code in (1, 2)
        assert done.output.startswith("error: ")
        assert len(done.output.splitlines()) == 1

    def test_proven_by_the_command_with_the_key_beside_the_run(self, tmp_path):
        key = SigningKey.read_or_make(tmp_path / "signing.key")
        store = signed_run(tmp_path / "run", key)
        proven = CliRunner().invoke(app, ["ledger", "prove", str(tmp_path / "run"), "--client", "9"])
        assert parse_statements(proven.output, key.public) == [store.statement(9)]


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("signature = NULL", "its signature is not one of what is recorded"),
        ("signature = NULL, public_key = NULL", "it is not signed"),
    ],
)
def test_a_signature_that_is_gone_is_found(place, key, change, words):
    store = signed_run(place, key)
    assert verify_run(store, public_key=key.public, expect=store.head()) is None
    assert "not by" in str(verify_run(store, public_key="0" * 64))
    change_as_owner(store, f"UPDATE rounds SET {change} WHERE round = 0")
    assert str(verify_run(store)) == f"round 0: {words}"
