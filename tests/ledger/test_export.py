"""The ledger for people and other programs: `ipfl ledger show`, `verify`, `export`."""

import csv
import io
from collections import Counter

import pytest
import typer
from tests.ledger.example_runs import random_run, worked_run
from typer.testing import CliRunner

from ipfl.cli.exit_codes import Commands
from ipfl.cli.ledger_commands import app as ledger
from ipfl.ledger import database
from ipfl.ledger.export import csv_lines
from ipfl.market.bank import account_name

app = typer.Typer(cls=Commands)
app.add_typer(ledger, name="ledger")


def ipfl(*arguments):
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)], env={"COLUMNS": "80"})


def cells(output):
    """The words of every line of a table, by its first ones."""
    return [line.split() for line in output.splitlines() if line.split()]


def test_csv_adds_up_to_the_balances(place):
    store = random_run(place, "run", 3, 4)
    rows = list(csv.DictReader(io.StringIO("".join(csv_lines(store)))))
    sums = Counter()
    for row in rows:
        sums[row["source"]] -= int(row["amount"])
        sums[row["target"]] += int(row["amount"])
    assert sums == Counter({account_name(a): balance for a, balance in store.balances().items()})
    assert [row["id"] for row in rows] == [f"run/{e.round}/{e.sequence}" for e in store.transfers()]
    assert len({row["id"] for row in rows}) == len(rows)


def test_csv_of_the_round_by_hand(place):
    lines = list(csv_lines(worked_run(place)))
    assert lines[0] == "id,round,sequence,kind,source,target,amount,cluster,client,client_name\n"
    assert lines[1] == "worked/-1/0,-1,0,open,issuer,client 2,25,,2,\n"
    assert lines[-1] == "worked/0/12,0,12,reward,pool 1,client 9,10,1,9,\n"


@pytest.mark.parametrize("name", ['=HYPERLINK("http://x")', "+1+1", "-2+3", "@SUM(A1)"])
def test_no_cell_is_a_formula(place, name):
    """Names are those of whoever has the data; people open the file in a spreadsheet."""
    store = worked_run(place, client_names={"2": name, "5": "Bern"})
    rows = list(csv.DictReader(io.StringIO("".join(csv_lines(store)))))
    assert {row["client_name"] for row in rows} == {f"'{name}", "Bern", ""}


def test_show_all_clients(place):
    worked_run(place)
    done = ipfl("show", place)
    assert done.exit_code == 0, done.output
    table = cells(done.stdout)
    assert ["client", "issued", "paid", "refunded", "reimbursed", "earned", "balance"] in table
    # Client 2 bid twice (20), got one bid back and was rewarded 13: 25 − 20 + 10 + 13.
    assert ["2", "25", "20", "10", "0", "13", "28"] in table
    assert ["5", "25", "20", "10", "0", "7", "22"] in table
    assert ["9", "25", "10", "0", "0", "10", "25"] in table
    assert ["all", "75", "50", "20", "0", "30", "75"] in table
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_show_one_client(place):
    worked_run(place)
    done = ipfl("show", place, "--client", 5)
    table = cells(done.stdout)
    assert ["opening", "1", "5", "opening", "balance", "issuer", "client", "5", "25"] in table
    assert ["0", "9", "5", "refund", "for", "cluster", "1", "pool", "1", "client", "5", "10"] in table
    assert ["0", "11", "5", "trained", "in", "cluster", "0", "pool", "0", "client", "5", "7"] in table
    assert ["5", "25", "20", "10", "0", "7", "22"] in table
    assert "client 9" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_show_one_round(place):
    worked_run(place)
    done = ipfl("show", place, "--round", 0)
    assert ["2", "0", "20", "10", "0", "13", "28"] in cells(done.stdout)
    assert "opening balance" not in done.stdout
    first = ipfl("show", place, "--round", -1)
    assert ["2", "25", "0", "0", "0", "0", "25"] in cells(first.stdout)


def test_verify_a_true_run(place):
    store = worked_run(place)
    done = ipfl("verify", place)
    assert done.exit_code == 0
    assert done.stdout == f"worked: 1 round verified, NOT SIGNED, hash {store.head()}\n"


def test_verify_names_the_first_broken_entry(place):
    store = worked_run(place)
    with database.writing(store.file) as connection:  # nothing that the database refuses
        connection.execute("INSERT INTO transfers VALUES (0, 13, 'bid', 2, -2, 1, 0, 2)")
    done = ipfl("verify", place)
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr == (
        "error: run worked: round 0, entry 13: recorded is bid of 1 from client 2 to escrow 0 "
        "(client 2, cluster 0); the replay gives nothing\n"
    )


def test_export_writes_to_standard_output(place):
    store = worked_run(place)
    assert ipfl("export", place).stdout == "".join(csv_lines(store))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["show", "--client", "3"], "run 'worked' has no client 3"),
        (["show", "--round", "1"], "run 'worked' has no round 1"),
    ],
)
def test_bad_input_is_one_line(place, arguments, complaint):
    worked_run(place)
    command, *options = arguments
    done = ipfl(command, place, *options)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_run_no_trace(tmp_path):
    done = ipfl("show", tmp_path / "nothing")
    assert done.exit_code == 2
    assert done.stderr == f"error: there is no run store {tmp_path / 'nothing' / 'run.db'}\n"
    assert list(tmp_path.iterdir()) == []
