"""Before anybody can ask, the console has asked itself."""

import os
import shutil
import socket
import time

import pytest
import uvicorn
from tests.console.conftest import open_for

from ipfl.console import app as app_module
from ipfl.console.app import make_app, serve
from ipfl.console.warm_up import warm_up
from ipfl.errors import InputError

PAGES = ["{}", "/api{}/series", "/api{}/heat-map", "/api{}/flow", "{}/clients", "{}/ledger"]


def newest(folder):
    """Marks a run as the one that was written to last."""
    moment = time.time() + 60
    os.utime(folder / "run.db", (moment, moment))


@pytest.fixture
def runs(runs_folder, tmp_path):
    shutil.copytree(runs_folder, tmp_path / "runs")
    newest(tmp_path / "runs/both/ipfl-plus/seed-0")
    return tmp_path / "runs"


@pytest.mark.parametrize("auth", [False, True])
def test_pages_of_the_newest_run_are_answered(runs, auth):
    """With tokens too: pages that ask to sign in would warm up nothing (303 and 401)."""
    console = open_for(runs, auth=auth)
    page = "/runs/both~ipfl-plus~seed-0"
    wanted = ["/static/console.css", "/", *(address.format(page) for address in PAGES)]
    assert warm_up(make_app(console), console) == [(address, 200) for address in wanted]


def test_a_run_that_cannot_be_read_does_no_harm(runs):
    newest(runs / "damaged")
    console = open_for(runs)
    found = dict(warm_up(make_app(console), console))
    assert found["/"] == 200
    assert 400 <= found["/runs/damaged"] < 600


def test_no_runs(tmp_path):
    (tmp_path / "runs").mkdir()
    console = open_for(tmp_path / "runs")
    assert warm_up(make_app(console), console) == [("/static/console.css", 200), ("/", 200)]


class TestServing:
    def test_the_address_is_told_when_it_answers_at_once(self, runs, monkeypatch):
        done = []
        monkeypatch.setattr(app_module, "warm_up", lambda *_: done.append("warm"))
        monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: done.append("served"))
        serve(open_for(runs), "127.0.0.1", 0, lambda: done.append("told"))
        assert done == ["warm", "told", "served"]

    def test_no_address_is_told_where_another_program_listens(self, runs):
        told = []
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(
                InputError, match=f"cannot listen on 127.0.0.1:{port}: [A-Z][a-z ]+; try another --port"
            ):
                serve(open_for(runs), "127.0.0.1", port, lambda: told.append("address"))
        assert told == []
