"""What the console shows equals what the stores hold; the numbers of `worked` are derived in `LINE`."""

import json

import pytest
from fastapi.testclient import TestClient
from safetensors.torch import load_file
from tests.console.conftest import make_app, make_worked, open_for
from tests.ledger.example_runs import LINE, worked_run
from tests.small_runs import run_small, small_task

import ipfl
from ipfl.config.whole_config import Config
from ipfl.console.client_page import describe_round, ordinal
from ipfl.console.figures import non_default_settings, thin
from ipfl.console.pages import points
from ipfl.keep.file_names import PLAN_FILE
from ipfl.keep.signing_keys import statement_key
from ipfl.ledger.export import csv_lines
from ipfl.ledger.store import RunStore
from ipfl.methods import method_settings
from ipfl.system.files import write_json


@pytest.fixture(scope="module")
def console(runs_folder):
    return open_for(runs_folder)


@pytest.fixture(scope="module")
def web(console):
    return TestClient(make_app(console), base_url="http://127.0.0.1")


@pytest.fixture
def get(web):
    def ask(address):
        answer = web.get(f"/api{address}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


class TestWorkedRound:
    def test_clusters(self, get):
        """Cluster 1: bids of 2 and 9; seats of 9 and of 5 by lot, who fails; 9 and 5 pay 10 into the pool.

        The 10 of client 2 go back from the escrow, those of client 5 from the pool: 20 refunded; 9 earns 10.
        """
        first, second = get("/runs/worked/rounds/0")["clusters"]
        assert first == {
            "cluster": 0, "bids": 2, "paid": 20, "added": 0, "refunded": 0, "reimbursed": 0, "rewarded": 20,
            "seats": 2, "by_lot": 0, "delivered": 2,
        }  # fmt: skip
        assert second == {
            "cluster": 1, "bids": 2, "paid": 20, "added": 0, "refunded": 20, "reimbursed": 0, "rewarded": 10,
            "seats": 2, "by_lot": 1, "delivered": 1,
        }  # fmt: skip

    def test_participants(self, get):
        found = get("/runs/worked/rounds/0")
        told = {(one["client"], one["cluster"]): one for one in found["participants"]}
        assert found["total"] == len(told) == 5
        assert told[2, 1]["why"] == "bid, no seat"
        assert told[2, 1]["wish"] == 1
        assert (told[2, 1]["paid"], told[2, 1]["refunded"]) == (10, 10)
        assert told[5, 1]["why"] == "chosen at random, to explore"
        assert told[5, 1]["delivered"] is False
        assert (told[5, 0]["place"], told[5, 0]["of"], told[5, 0]["earned"]) == (2, 2, 7)
        assert told[2, 0]["place"] == 1

    def test_participants_are_paged(self, get):
        pages = [get(f"/runs/worked/rounds/0?limit=2&offset={offset}") for offset in (0, 2, 4)]
        found = [(one["client"], one["cluster"]) for page in pages for one in page["participants"]]
        assert found == [(2, 0), (2, 1), (5, 0), (5, 1), (9, 1)]

    @pytest.mark.parametrize(
        "client, change, balance, words",
        [
            (
                2,
                3,
                28,
                "paid 10 for cluster 0, ranked 1st of 2, earned 13; paid 10 for cluster 1, got 10 back",
            ),
            (
                5,
                -3,
                22,
                "paid 10 for cluster 0, ranked 2nd of 2, earned 7; "
                "paid 10 for cluster 1, was asked to train and delivered nothing, got 10 back",
            ),
            (9, 0, 25, "paid 10 for cluster 1, ranked 1st of 1, earned 10"),
        ],
    )
    def test_movements_in_words(self, get, client, change, balance, words):
        newest, opening = get(f"/runs/worked/clients/{client}/movements")["movements"]
        assert newest == {"round": 0, "change": change, "balance": balance, "words": words}
        assert opening == {"round": -1, "change": 25, "balance": 25, "words": "started with 25 tokens"}

    def test_movements_are_paged(self, get):
        first = get("/runs/worked/clients/2/movements?limit=1")
        assert [one["round"] for one in first["movements"]] == [0]
        rest = get(f"/runs/worked/clients/2/movements?limit=1&before={first['before']}")
        assert [one["round"] for one in rest["movements"]] == [-1]
        assert rest["before"] is None

    def test_client(self, get):
        found = get("/runs/worked/clients/2")
        assert found["account"] == {
            "client": 2, "name": None, "issued": 25, "paid": 20, "refunded": 10, "reimbursed": 0,
            "earned": 13, "balance": 28,
        }  # fmt: skip
        assert [(wish["cluster"], wish["rank"]) for wish in found["wishes"]] == [(1, 1), (0, 2)]
        assert get("/runs/worked/clients/2/series")["columns"]["balance"] == [25, 28]

    def test_event(self, get):
        (event,) = get("/runs/worked/rounds/0")["events"]
        assert (event["kind"], event["client"]) == ("no_answer", 5)


class TestWords:
    def test_of_a_method_without_market(self):
        assert describe_round({}, {-1: True}, {}) == "trained"

    def test_reimbursement(self):
        sums = {("paid", 0): 10, ("reimbursement", 0): 4}
        assert describe_round(sums, {}, {}) == "paid 10 for cluster 0, got 4 of the pool back"

    def test_ordinals(self):
        said = ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th"]
        assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 112)] == said


class TestLedger:
    def test_pages_are_the_whole_ledger(self, get, runs_folder):
        store = RunStore.open(runs_folder / "worked")
        posted = [(one.round, one.sequence, one.transfer.amount) for one in store.transfers()]
        pages = [get(f"/runs/worked/transfers?limit=5&offset={offset}") for offset in (0, 5, 10, 15)]
        assert {page["total"] for page in pages} == {len(posted)} == {3 + 13}
        found = [one for page in pages for one in page["transfers"]]
        assert [(one["round"], one["sequence"], one["amount"]) for one in found] == posted

    @pytest.mark.parametrize(
        "search, total",
        # 3 rewards; client 9: opening, bid, fee, reward; cluster 1: 2 bids, 2 fees, 2 refunds, 1 reward
        [("kind=reward", 3), ("client=9", 4), ("cluster=1", 7), ("round=-1", 3), ("client=9&kind=bid", 1)],
    )
    def test_search(self, get, search, total):
        found = get(f"/runs/worked/transfers?{search}")
        assert found["total"] == len(found["transfers"]) == total

    def test_csv(self, web, runs_folder):
        store = RunStore.open(runs_folder / "worked")
        assert web.get("/api/runs/worked/transfers.csv").text == "".join(csv_lines(store))


@pytest.fixture(scope="module")
def summaries(runs_folder):
    return {
        name: json.loads((runs_folder / f"both/{name}/seed-0/summary.json").read_text())
        for name in ("ipfl-plus", "fedavg")
    }


@pytest.fixture(scope="module")
def lines(runs_folder):
    """What `metrics.jsonl` says of every round, by method."""
    return {
        name: [json.loads(line) for line in (runs_folder / f"both/{name}/seed-0/metrics.jsonl").open()]
        for name in ("ipfl-plus", "fedavg")
    }


class TestRealRuns:
    def test_list(self, get, summaries):
        rows = {row["key"]: row for row in get("/runs")["runs"]}
        assert set(rows) == {"worked", "begun", "damaged", "both~ipfl-plus~seed-0", "both~fedavg~seed-0"}
        row, summary = rows["both~ipfl-plus~seed-0"], summaries["ipfl-plus"]
        assert row["accuracy"] == summary["personalized_accuracy"]
        assert row["pma"] == summary["pma"]
        assert row["participation"] == summary["participation_rate"]
        assert row["tokens"] == summary["report"]["issued"]
        assert (row["state"], row["done"], row["rounds"], row["clients"]) == ("finished", 3, 3, 6)
        assert rows["damaged"]["state"] == "unreadable"
        assert "is not a run store" in rows["damaged"]["problem"]
        # Two rounds to go; written a moment ago, or a minute where other tests take the processor.
        assert rows["begun"]["state"] in ("running", "unfinished")

    @pytest.mark.parametrize(
        "text, total", [("fedavg", 1), ("digits", 2), ("seed-0 ipfl", 1), ("nothing", 0)]
    )
    def test_filter(self, get, text, total):
        assert get(f"/runs?text={text}")["total"] == total

    def test_series(self, get, lines):
        lines = lines["ipfl-plus"]
        columns = get("/runs/both~ipfl-plus~seed-0/series")["columns"]
        assert columns["accuracy"] == [one["evaluation"]["personalized_accuracy"]["mean"] for one in lines]
        assert columns["pma"] == [one["evaluation"]["pma"]["mean"] for one in lines]
        assert columns["bytes_up"] == [one["bytes_up"] for one in lines]

    @pytest.mark.parametrize(
        "method, models", [("ipfl-plus", ["cluster 0", "cluster 1"]), ("fedavg", ["global"])]
    )
    def test_heat_map(self, get, summaries, method, models):
        found = get(f"/runs/both~{method}~seed-0/heat-map")
        assert (found["models"], found["accuracy"]) == (models, summaries[method]["cluster_accuracy"])

    def test_heat_map_after_clusters_were_merged(self, tmp_path):
        """Cluster 1 went into another: the columns are clusters 0 and 2, as in all other tables."""
        evaluation = {
            "personalized_accuracy": {"mean": 0.5, "std": 0.0},
            "cluster_accuracy": [[0.25, 0.75], [0.5, 0.125]],
            "assessed_models": ["cluster_0", "cluster_2"],
        }
        folder = tmp_path / "runs"
        worked_run(str(folder / "merged"), "merged", {**LINE, "evaluation": evaluation})
        web = TestClient(make_app(open_for(folder)), base_url="http://127.0.0.1")
        found = web.get("/api/runs/merged/heat-map").json()
        assert found["models"] == ["cluster 0", "cluster 2"]
        assert found["accuracy"] == evaluation["cluster_accuracy"]

    def test_flow_counts_every_bidder_once(self, get, lines):
        wanted = [
            {bid[0]: bid[1] for bid in line.get("bids", ()) if bid[2] == 0} for line in lines["ipfl-plus"]
        ]
        found = get("/runs/both~ipfl-plus~seed-0/flow")
        for before, after in zip(found["rounds"], found["rounds"][1:], strict=False):
            links = [link for link in found["links"] if link["from_round"] == before]
            assert sum(link["clients"] for link in links) == len(wanted[before].keys() & wanted[after].keys())
        assert len(found["rounds"]) >= 2

    def test_comparison(self, get, summaries):
        found = get("/compare?run=both~ipfl-plus~seed-0&run=both~fedavg~seed-0")
        assert found["reference"] == "both~fedavg~seed-0"
        ours, reference = found["runs"]
        assert ours["mean_pma"] == pytest.approx(summaries["ipfl-plus"]["pma"]["mean"])
        assert ours["share_gaining"] == pytest.approx(summaries["ipfl-plus"]["participation_rate"])
        assert len(ours["pma"]) == 6
        assert reference["pma"] == []
        assert found["warnings"] == []

    def test_client_against_its_threshold(self, get, lines):
        last = (lines[name][-1]["evaluation"]["personalized"] for name in ("ipfl-plus", "fedavg"))
        for client, (mine, theirs) in enumerate(zip(*last, strict=True)):
            found = get(f"/runs/both~ipfl-plus~seed-0/clients/{client}")
            assert (found["accuracy"], found["threshold"]) == (mine, theirs)
            assert found["gains"] is (mine > theirs)
            assert found["verdict"].startswith("Stays" if mine > theirs else "Has reason to leave")

    def test_the_reference_is_compared_with_nothing(self, get, web):
        found = get("/runs/both~fedavg~seed-0/clients/0")
        assert (found["verdict"], found["gains"]) == (
            "This run is the reference that others are compared with.",
            None,
        )
        assert "this is the reference" in web.get("/runs/both~fedavg~seed-0").text

    def test_threshold_is_the_newest_of_the_reference(self, tmp_path):
        """The reference is evaluated after rounds 1 and 3, the run after rounds 0, 1, 2 and 3."""
        folder = tmp_path / "runs"
        (folder / "both").mkdir(parents=True)
        write_json(folder / "both" / PLAN_FILE, {"reference": "fedavg"})
        task = small_task()
        for name, every in (("fedavg", 2), ("local", 1)):
            run_small(task, name, folder / f"both/{name}/seed-0", rounds=4, evaluate={"every": every})
        lines = (folder / "both/fedavg/seed-0/metrics.jsonl").read_text().splitlines()
        given = [json.loads(lines[number])["evaluation"]["personalized"][2] for number in (1, 3)]
        web = TestClient(make_app(open_for(folder)), base_url="http://127.0.0.1")
        found = web.get("/api/runs/both~local~seed-0/clients/2/series").json()
        assert found["round"] == [0, 1, 2, 3]
        assert found["columns"]["threshold"] == [None, given[0], given[0], given[1]]
        assert found["columns"]["threshold_round"] == [None, 1, 1, 3]
        assert web.get("/api/runs/both~local~seed-0/clients/2").json()["threshold"] == given[1]

    def test_tokens_that_the_issuer_adds_belong_to_pools(self, get, lines):
        rows = [line["transfers"] for line in lines["ipfl-plus"]]
        added = [sum(t[3] for t in moved if t[1] == -1 and t[2] < -1) for moved in rows]
        assert sum(added) > 0
        for number, amount in enumerate(added):
            clusters = get(f"/runs/both~ipfl-plus~seed-0/rounds/{number}")["clusters"]
            assert sum(one["added"] for one in clusters) == amount
        for one in get("/runs/both~ipfl-plus~seed-0/clients")["clients"]:
            received = one["issued"] + one["refunded"] + one["reimbursed"] + one["earned"]
            assert received - one["paid"] == one["balance"]

    def test_statement_is_the_one_that_the_ledger_proves(self, get, runs_folder):
        folder = runs_folder / "both/ipfl-plus/seed-0"
        store = RunStore.open(folder, key=statement_key(folder))
        proven = store.statement(3).to_json()
        assert get("/runs/both~ipfl-plus~seed-0/clients/3/statement") == proven
        assert proven["public_key"] in get("/runs/both~ipfl-plus~seed-0/clients/3")["statement"]

    def test_model_is_the_one_that_the_run_gives(self, web, runs_folder, tmp_path):
        answer = web.get("/api/runs/both~ipfl-plus~seed-0/clients/3/model")
        assert answer.status_code == 200
        (tmp_path / "mine").write_bytes(answer.content)
        found, own = load_file(tmp_path / "mine"), ipfl.load(runs_folder / "both/ipfl-plus/seed-0").model(3)
        assert {name: tensor.tolist() for name, tensor in found.items()} == {
            name: tensor.tolist() for name, tensor in own.state_dict().items()
        }

    def test_nothing_is_written(self, web, runs_folder):
        folder = runs_folder / "both/ipfl-plus/seed-0"
        store, files = folder / "run.db", sorted(folder.rglob("*"))
        before = store.read_bytes()
        for address in ("", "/ledger", "/clients/0", "/clients"):
            assert web.get(f"/runs/both~ipfl-plus~seed-0{address}").status_code == 200
        assert store.read_bytes() == before
        assert sorted(folder.rglob("*")) == files
        assert not list(folder.glob("run.db-*"))  # no log of the database either

    def test_news_of_a_finished_run_are_the_last(self, get):
        assert get("/runs/worked/news") == {"version": "finished 1 of 1", "is_last": True}
        assert get("/runs/worked/clients/5/news") == get("/runs/worked/news")
        assert not get("/runs/begun/news")["is_last"]

    def test_news_of_the_list_are_those_of_the_files(self, tmp_path):
        make_worked(tmp_path / "one")
        web = TestClient(make_app(open_for(tmp_path)), base_url="http://127.0.0.1")
        first, again = (web.get("/api/news").json()["version"] for _ in range(2))
        (tmp_path / "one/summary.json").write_text("{}")
        assert first == again != web.get("/api/news").json()["version"]


def test_long_series_are_thinned_with_both_ends():
    # 10 numbers to 4: indices 0, 3, 6, 9
    assert thin(range(10), 4) == [0, 3, 6, 9]
    assert thin([5, 7], 4) == [5, 7]
    found = thin(range(100_000), 1000)
    assert len(found) == 1000
    assert (found[0], found[-1]) == (0, 99_999)


def test_one_mean_is_one_number_whatever_the_order_of_its_sum():
    """0.3575 and the next number but one below it: what two orders of summation left of one mean."""
    assert points(0.3575) == points(0.35749999999999993) == "+35.8 pts"


class TestSettings:
    """Which settings the page of a run tells."""

    def test_those_of_the_method_are_among_them(self):
        config = Config(rounds=7).model_dump(mode="json")
        own = method_settings(ipfl.method("ipfl-plus", clusters=4, payment={"price": 7}))
        assert non_default_settings(config | {"method": own}) == {
            "rounds": "7", "method.name": "ipfl-plus", "method.clusters": "4", "method.payment.price": "7",
        }  # fmt: skip

    def test_nothing_is_imported_for_a_method_of_others(self):
        """A store is only data, whoever wrote it."""
        config = {"method": {"name": "no.such.module:Class", "price": 5}}
        assert non_default_settings(config) == {"method.name": "no.such.module:Class", "method.price": "5"}

    @pytest.mark.parametrize("config", [None, [], "text", {"method": "text"}, {"method": []}])
    def test_any_config_will_do(self, config):
        assert set(non_default_settings(config)) <= {"method"}


def reasons(get, method):
    """Why clients had a seat, in all rounds."""
    rounds = (get(f"/runs/both~{method}~seed-0/rounds/{number}") for number in range(3))
    return {one["why"] for found in rounds for one in found["participants"]}


class TestWithoutMarket:
    def test_clients_are_chosen_but_not_to_explore(self, get):
        assert reasons(get, "fedavg") == {"chosen at random"}
        assert "chosen at random, to explore" in reasons(get, "ipfl-plus")

    @pytest.mark.parametrize("method, shown", [("fedavg", False), ("ipfl-plus", True)])
    def test_columns_of_tokens(self, web, method, shown):
        run = f"/runs/both~{method}~seed-0"
        assert ("Paid in" in web.get(run).text) is shown
        assert (web.get(f"/api{run}/clients/0").json()["account"] is not None) is shown
        client = web.get(f"{run}/clients/0").text
        assert ('data-label="Balance"' in client) is shown
        assert ("has no market: there is no account to state" in client) is not shown
