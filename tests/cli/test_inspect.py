"""Short options, JSON for scripts, and commands that look at runs which are there already."""

import json
import shutil

import pytest
from tests.cli.test_cli import ipfl, refused
from tests.small_runs import run_small

from ipfl.report.result_tables import format_count
from ipfl.training.task import Task

TINY = ["--workers", "0", "--set", "task.model=softmax", "--clients", "4", "--quiet"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """`runs/a` and `runs/b`, a run with named clients, a comparison with a variant."""
    folder = tmp_path_factory.mktemp("inspect") / "runs"
    assert ipfl("run", *TINY, "--rounds", 2, "--out", folder / "a").exit_code == 0
    done = ipfl("run", *TINY, "--rounds", 1, "--method", "fedavg", "--json", "--out", folder / "b")
    assert done.exit_code == 0, done.output
    (folder / "b.json").write_text(done.stdout)
    methods = "fedavg,fedprox:mu=0.5"
    done = ipfl("compare", *TINY, "--rounds", 1, "--methods", methods, "--json", "--out", folder / "c")
    assert done.exit_code == 0, done.output
    (folder / "c.json").write_text(done.stdout)
    wards = {"north": ([[0.0], [1.0]] * 4, [0, 1] * 4), "south": ([[0.0], [1.0]] * 4, [1, 0] * 4)}
    run_small(Task.from_clients(wards, model="softmax"), "fedavg", folder / "named", rounds=1)
    return folder


class TestShortOptions:
    def test_they_are_settings(self, place):
        summary = json.loads((place / "b" / "summary.json").read_text())
        assert (summary["method"], summary["rounds"], summary["clients"]) == ("fedavg", 1, 4)
        shown = ipfl("run", "--dataset", "har", "--rounds", 7, "--set", "rounds=5", "--show-config").stdout
        assert "rounds = 7" in shown
        assert 'dataset = "har"' in shown

    def test_a_resumed_run_keeps_its_settings(self, place):
        for option in (["--method", "fedavg"], ["--clients", 3], ["--dataset", "digits"]):
            assert "keeps the settings" in refused("run", "--resume", place / "a", *option)
        assert "keeps the settings" in refused("compare", "--resume", place / "c", "--rounds", 3)


@pytest.fixture
def own_code(place, tmp_path):
    """A run that names a network which cannot be imported here."""
    folder = tmp_path / "own"
    shutil.copytree(place / "b", folder)
    summary = json.loads((folder / "summary.json").read_text())
    summary["model"] = summary["config"]["task"]["model"] = "elsewhere:Net"
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_long_names_do_not_take_the_room_of_numbers(tmp_path):
    wards = {"The children's ward in the building behind the lake": ([[0.0], [1.0]] * 4, [0, 1] * 4)}
    wards["[bold]south"] = wards[next(iter(wards))]
    run_small(Task.from_clients(wards, model="softmax"), "ipfl-plus", tmp_path / "run", rounds=1)
    shown = ipfl("show", tmp_path / "run").stdout
    assert all(header in shown for header in ("own model %", "trained", "returned", "building"))
    accounts = ipfl("ledger", "show", tmp_path / "run").stdout
    assert "10 000" in accounts
    assert "[bold]south" in accounts
    assert "The children'…" in ipfl("ledger", "show", tmp_path / "run", "--client", 0).stdout


def test_figures_need_no_code(own_code):
    """`show` imports nothing, so nobody is asked for trust."""
    assert "own model %" in ipfl("show", own_code).stdout


class TestJson:
    def test_run(self, place):
        printed = json.loads((place / "b.json").read_text())
        assert printed.pop("folder") == str(place / "b")
        assert printed == json.loads((place / "b" / "summary.json").read_text())

    def test_compare(self, place):
        printed = json.loads((place / "c.json").read_text())
        assert printed.pop("folder") == str(place / "c")
        assert printed == json.loads((place / "c" / "compare.json").read_text())

    def test_list(self, place):
        entries = {entry["folder"]: entry for entry in json.loads(ipfl("list", place, "--json").stdout)}
        assert entries[str(place / "a")]["rounds"] == 2
        assert entries[str(place / "c" / "fedprox+mu=0.5" / "seed-0")]["method"] == "fedprox"
        assert len(entries) == 5


class TestList:
    def test_rows_and_states(self, place, tmp_path):
        (tmp_path / "begun").mkdir()
        (tmp_path / "begun" / "metrics.jsonl").write_text("{}\n{}\n{}\n")
        (tmp_path / "mlflow" / "artifacts").mkdir(parents=True)  # copies, as `--track mlflow` leaves them
        (tmp_path / "mlflow" / "meta.yaml").touch()
        (tmp_path / "mlflow" / "artifacts" / "metrics.jsonl").touch()
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "metrics.jsonl").touch()
        (tmp_path / "broken" / "summary.json").write_text("{")
        rows = {
            row.split()[0]: row.split()[1:]
            for row in ipfl("list", tmp_path).stdout.splitlines()
            if row.strip()
        }
        assert "mlflow" not in "".join(rows)
        assert rows["begun"] == ["–", "–", "–", "3", "–", "–", "not", "finished"]
        assert rows["broken"][-1] == "damaged"
        shown = ipfl("list", place).stdout
        assert max(map(len, shown.splitlines())) <= 80
        assert " c/fedprox+mu=0.5/ " in shown  # what does not fit goes on after a slash
        assert "\n seed-0 " in shown

    def test_nothing_there(self, tmp_path):
        assert ipfl("list", tmp_path).stdout == f"no runs in {tmp_path}\n"
        assert "there is no folder" in refused("list", tmp_path / "nowhere")


class TestShow:
    def test_clients_by_name(self, place):
        rows = [row.split() for row in ipfl("show", place / "named").stdout.splitlines()]
        assert [row[0] for row in rows if row and row[0] in ("north", "south")] == ["north", "south"]
        clients = json.loads(ipfl("show", place / "named", "--json").stdout)["clients"]
        assert [client["name"] for client in clients] == ["north", "south"]

    def test_tokens_of_a_market(self, place):
        shown = ipfl("show", place / "a").stdout
        assert "earned" in shown
        clients = json.loads(ipfl("show", place / "a", "--json").stdout)["clients"]
        assert [client["client"] for client in clients] == [0, 1, 2, 3]
        assert all(format_count(client["tokens"]) in shown for client in clients)

    def test_what_is_no_run(self, place, tmp_path):
        assert "holds a comparison" in refused("show", place / "c")
        assert "holds no finished run" in refused("show", tmp_path)


class TestExport:
    def test_a_client_by_its_name(self, place, tmp_path):
        done = ipfl("export", place / "named", "south", "global", "--out", tmp_path)
        assert done.stdout.splitlines()[0] == f"client south: {tmp_path / 'client-1.safetensors'}"
        assert "did you mean 'south'?" in refused("export", place / "named", "sout")
