"""Pages of a run without tokens."""

import pytest
from fastapi.testclient import TestClient
from tests.console.conftest import make_app, open_for


@pytest.fixture(scope="module")
def web(runs_folder):
    return TestClient(make_app(open_for(runs_folder)), base_url="http://127.0.0.1")


def reasons(web, method):
    """Why clients had a seat, in all rounds."""
    rounds = (web.get(f"/api/runs/both~{method}~seed-0/rounds/{number}").json() for number in range(3))
    return {one["why"] for found in rounds for one in found["participants"]}


def test_clients_are_chosen_but_not_to_explore(web):
    assert reasons(web, "fedavg") == {"chosen at random"}
    assert "chosen at random, to explore" in reasons(web, "ipfl-plus")


@pytest.mark.parametrize("method, shown", [("fedavg", False), ("ipfl-plus", True)])
def test_columns_of_tokens(web, method, shown):
    run = f"/runs/both~{method}~seed-0"
    assert ("Paid in" in web.get(run).text) is shown
    client = web.get(f"{run}/clients/0").text
    assert ('data-label="Balance"' in client) is shown
    assert ("has no market: there is no account to state" in client) is not shown
