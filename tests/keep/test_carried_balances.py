"""Accounts that outlive a run: the next one opens with what the last one left."""

import importlib
import json
import shutil

import pytest
from tests.ledger.example_runs import change_as_owner
from tests.small_runs import InterruptAfter, finding, small_task

import ipfl
from ipfl.errors import InputError
from ipfl.keep import carried_balances as accounts
from ipfl.keep.run_audit import Audit, verify_run
from ipfl.ledger.signing import SigningKey
from ipfl.ledger.store import RunStore

journal = importlib.import_module("ipfl.keep.journal")
MARKET = {"payment": {"price": 100, "opening": 300, "subsidy": 0}}


@pytest.fixture(scope="module")
def task():
    return small_task(seed=3)


def play(task, folder, rounds=2, method="ipfl-plus", observer=None, **options):
    chosen = ipfl.method(method, **(MARKET if method == "ipfl-plus" else {}))
    output = ipfl.RunOutput(folder, **{"accounts": "club", **options})
    config = ipfl.RunConfig(rounds=rounds, seed=3, train=ipfl.TrainConfig(per_round=4))
    return ipfl.run(task, chosen, config, engine=ipfl.local_engine(0), out=output, observer=observer)


def balances(folder, round=None):
    store = RunStore.open(folder)
    return {client: tokens for client, tokens in store.balances(round).items() if client >= 0}


def delete_last_round(store):
    """Takes round 1 out of a run, so that all that is left is true in itself."""
    tables = ("transfers", "bids", "seats", "contributions", "metrics", "rounds")
    gone = [f"DELETE FROM {table} WHERE round = 1" for table in tables]
    sums = "UPDATE balances SET balance = (SELECT SUM(CASE WHEN target = account THEN amount "
    sums += "ELSE -amount END) FROM transfers WHERE account IN (source, target)) WHERE account >= -1"
    closed = "DELETE FROM balances WHERE account < -1 AND account NOT IN (SELECT target FROM transfers)"
    change_as_owner(store, *gone, closed, sums)
    assert verify_run(store) is None


@pytest.fixture(scope="module")
def place(task, tmp_path_factory):
    """Two runs one after the other."""
    folder = tmp_path_factory.mktemp("club")
    play(task, folder / "first")
    play(task, folder / "second")
    return folder


@pytest.fixture
def copied(place, tmp_path):
    """The two runs and their key, to be changed."""
    shutil.copytree(place, tmp_path / "club")
    return tmp_path / "club"


def test_the_second_opens_with_what_the_first_left(place):
    left = balances(place / "first")
    assert balances(place / "first", -1) == dict.fromkeys(range(6), 300)
    assert left != balances(place / "first", -1)  # somebody won or lost
    assert balances(place / "second", -1) == left
    assert sum(left.values()) == sum(balances(place / "second").values()) == 6 * 300
    assert finding(place / "first") is finding(place / "second") is None
    first, second = RunStore.open(place / "first"), RunStore.open(place / "second")
    pointer = json.loads((place / "club.accounts.json").read_text())
    assert pointer == {"run": "second", "head": second.head()}
    told = {"name": "club", "run": "first", "head": first.head(), "absent": {}}
    assert second.header["accounts"] == told


def test_absent_clients_keep_theirs_and_newcomers_open_as_usual(copied):
    """Of six clients four take part in the third run, and eight in the fourth."""
    play(small_task(seed=3, clients=4), copied / "third", rounds=1)
    left, then = balances(copied / "second"), balances(copied / "third")
    assert sorted(then) == [0, 1, 2, 3]
    play(small_task(seed=3, clients=8), copied / "fourth", rounds=1)
    assert balances(copied / "fourth", -1) == left | then | {6: 300, 7: 300}
    assert finding(copied / "fourth") is None


class TestVerified:
    def test_another_run_in_the_place_of_the_first(self, place, copied):
        """It is true in itself, but ends otherwise: it has one round less."""
        store = RunStore.open(copied / "first")
        delete_last_round(store)
        assert finding(copied / "second") == "run 'first' is not the one whose balances this run opened with"

    def test_an_edited_opening(self, copied):
        store = RunStore.open(copied / "second")
        more = "UPDATE transfers SET amount = amount + 1 WHERE round = -1 AND client = 2"
        change_as_owner(store, more)
        assert "opening, entry 2: recorded is open of" in finding(copied / "second")

    def test_a_wrong_ledger_leaves_no_accounts(self, task, copied):
        store = RunStore.open(copied / "second")
        change_as_owner(store, "UPDATE balances SET balance = balance + 1 WHERE account = 2")
        with pytest.raises(InputError, match="'second', which left the accounts 'club', is wrong: client 2"):
            play(task, copied / "third")

    def test_without_the_earlier_run_it_says_what_it_did_not_compare(self, copied):
        (copied / "first" / "run.db").unlink()
        store = RunStore.open(copied / "second")
        audit = Audit(store, copied / "second")
        assert audit.finding() is None
        assert any("the opening balances are not compared" in note for note in audit.report())


class TestRefused:
    def test_a_run_that_is_not_over(self, task, copied):
        (copied / "club.accounts.json").write_text('{"run": "second", "head": null}')
        with pytest.raises(InputError, match="run 'second' has the accounts 'club': resume and end it first"):
            play(task, copied / "third")
        assert not (copied / "third").exists()

    def test_to_overwrite_the_run_that_has_them(self, task, copied):
        with pytest.raises(InputError, match="would forget them"):
            play(task, copied / "second", overwrite=True)
        assert finding(copied / "second") is None

    @pytest.mark.parametrize("options", [{"overwrite": True}, {"overwrite": True, "method": "fedavg"}, {}])
    def test_to_put_another_run_in_its_place_without_a_word_of_accounts(self, task, copied, options):
        """Once, the next run took the fresh balances of that one for those of the club."""
        if not options:
            shutil.rmtree(copied / "second")
        with pytest.raises(InputError, match="'club': another run in its folder would forget them"):
            play(task, copied / "second", accounts=None, **options)
        assert not options or finding(copied / "second") is None

    def test_a_run_whose_last_rounds_were_deleted(self, task, copied):
        """Nobody needs the key for that; the debts of the last round would be gone."""
        store = RunStore.open(copied / "second")
        delete_last_round(store)
        with pytest.raises(InputError, match="it did not end with round 0: rounds are missing"):
            play(task, copied / "third")

    def test_a_run_that_another_key_signed(self, task, copied):
        (copied / "signing.key").unlink()
        SigningKey.read_or_make(copied / "signing.key")
        with pytest.raises(InputError, match=r"'second', which left .* is wrong: .*key"):
            play(task, copied / "third")

    def test_two_runs_that_begin_at_once(self, task, copied, monkeypatch):
        """The second one begins and ends after the first has read the balances."""
        opened = accounts.load_carried_accounts

        def open_slowly(output, *key):
            carried = opened(output, *key)
            monkeypatch.undo()
            play(task, copied / "faster", rounds=1)
            return carried

        monkeypatch.setattr(journal, "load_carried_accounts", open_slowly)
        with pytest.raises(InputError, match="run 'faster' has taken the accounts 'club' meanwhile"):
            play(task, copied / "slower", rounds=1)
        assert not (copied / "slower").exists()

    def test_to_go_on_with_a_run_whose_accounts_another_one_has(self, task, place):
        with pytest.raises(InputError, match="does not have the accounts 'club' any more"):
            play(task, place / "first", resume=True, accounts=None)

    def test_names_methods_and_pointers(self, task, tmp_path):
        with pytest.raises(InputError, match="a plain name"):
            play(task, tmp_path / "one", accounts="../club")
        with pytest.raises(InputError, match="need a method with tokens"):
            play(task, tmp_path / "one", method="fedavg")
        (tmp_path / "club.accounts.json").write_text("{}")
        with pytest.raises(InputError, match="cannot be read"):
            play(task, tmp_path / "one")


def test_a_resumed_run_keeps_its_accounts(task, place, tmp_path):
    """The end of a resumed run under accounts is that of one that was left alone."""
    shutil.copytree(place / "first", tmp_path / "first")
    shutil.copy2(place / "signing.key", tmp_path)
    first = RunStore.open(place / "first")
    (tmp_path / "club.accounts.json").write_text(json.dumps({"run": "first", "head": first.head()}))
    with pytest.raises(ipfl.Interrupted):
        play(task, tmp_path / "second", observer=InterruptAfter(0))
    play(task, tmp_path / "second", resume=True, accounts=None)
    store = RunStore.open(tmp_path / "second")
    whole = RunStore.open(place / "second")
    assert store.head() == whole.head()
