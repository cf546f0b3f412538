"""A node is watched by what it does: one that is connected and does nothing any more is started again."""

from __future__ import annotations

import os
import sqlite3
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import flwr.supernode.fleet_http_connection as connection
import flwr.supernode.start_client_internal as flower
import pytest

from ipfl.deploy.federation_folder import NodeFolder
from ipfl.deploy.node import supernode
from ipfl.deploy.node.supernode import run_node, wait_until_silent
from ipfl.deploy.processes import Processes, RunningProcess
from ipfl.deploy.server.message_store import clean_message_store
from ipfl.deploy.settings_files import NodeSettings
from ipfl.engines.flower import flwr_internals
from ipfl.engines.flower.flwr_internals import (
    ask_soon_after_messages,
    beat_while_at_work,
)
from ipfl.errors import InputError


class TestHeartbeat:
    """What a SuperNode does between two heartbeats, with Flower's own functions replaced."""

    @pytest.fixture
    def beats(self, monkeypatch):
        """How often it has beaten; Flower's functions as they are given here."""
        found: list[int] = []

        def patched(pull=lambda **given: None, push=lambda **given: None):
            monkeypatch.setattr(flower, "_pull_and_store_message", pull)
            monkeypatch.setattr(flower, "_push_messages", push)
            monkeypatch.setattr(connection, "HeartbeatSender", connection.HeartbeatSender)
            beat_while_at_work(lambda: found.append(1))
            return found

        return patched

    def test_a_look_for_messages_is_a_beat_also_without_any(self, beats):
        found = beats()
        for _ in range(3):
            assert flower._pull_and_store_message(pull_object=None) is None
        assert len(found) == 3

    def test_a_look_after_the_heartbeats_to_the_server_have_ended_is_none(self, beats):
        """They end with any error that Flower does not expect; the server then counts the node as gone."""

        def fail():
            raise RuntimeError("HTTP 400")

        found = beats()
        with pytest.raises(RuntimeError):
            connection.HeartbeatSender(fail)._run()
        flower._pull_and_store_message(pull_object=None)
        assert found == []

    def test_every_part_of_a_long_message_is_one(self, beats):
        found = beats(push=lambda **given: [given["push_object"](part) for part in range(4)])
        flower._push_messages(push_object=lambda part: part)
        assert len(found) == 4 + 1

    def test_it_asks_soon_after_a_message_and_then_ever_later(self, monkeypatch):
        """Pauses of 0.5, 0.75, 1.125 s and so on; a message begins anew, other pauses stay as they are."""
        slept: list[float] = []
        answers = [*[None] * 7, "run", None, None]
        monkeypatch.setattr(flwr_internals, "time", SimpleNamespace(sleep=slept.append))
        monkeypatch.setattr(flower, "time", flower.time)
        monkeypatch.setattr(flower, "_pull_and_store_message", lambda **given: answers.pop(0))
        ask_soon_after_messages()
        while answers:  # as the loop of `start_client_internal`
            if flower._pull_and_store_message() is None:
                flower.time.sleep(3)
            else:
                flower.time.sleep(0.25)
        assert slept == pytest.approx([0.5, 0.75, 1.125, 1.6875, 2.53125, 3, 3, 0.25, 0.5, 0.75])


SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
WORK = "import pathlib, time\nfor _ in range(10):\n    pathlib.Path({!r}).touch()\n    time.sleep(0.1)\n"


class TestSilence:
    def test_there_is_none_while_it_works(self, tmp_path):
        """It works for about a second, longer than it may be silent, and ends."""
        file = tmp_path / "heartbeat"
        file.touch()
        with Processes(tmp_path) as processes:
            processes.start("supernode", [sys.executable, "-c", WORK.format(str(file))], os.environ, tmp_path)
            assert not wait_until_silent(processes, file, 5.0)

    def test_a_silent_node_is_started_again(self, tmp_path, monkeypatch):
        """The first SuperNode stays connected and does nothing; the second one ends in order."""
        folder, starts, said = NodeFolder(tmp_path), list[str](), list[str]()
        (tmp_path / folder.flower_home.name).mkdir(exist_ok=True)
        settings = NodeSettings(server="127.0.0.1:1", client=3, data=Path("x"), memory=Path("y"))

        def start(processes: Processes, *_: object, **__: object) -> RunningProcess:
            starts.append("")
            command = SLEEP if len(starts) == 1 else [sys.executable, "-c", ""]
            return processes.start("supernode", command, os.environ, tmp_path)

        monkeypatch.setattr(supernode, "prepare_node", lambda folder: settings)
        monkeypatch.setattr(supernode, "start_node", start)
        monkeypatch.setattr(supernode, "wait_for_connection", lambda *_: None)
        monkeypatch.setattr(supernode, "SILENT_SECONDS", 0.3)
        begun = time.monotonic()
        with pytest.raises(InputError, match="no longer registered"):
            run_node(folder, said.append)
        assert (len(starts), time.monotonic() - begun < 20) == (2, True)
        assert sum("has not asked for messages" in line for line in said) == 1


class TestPrivateFiles:
    def test_messages_go_and_nodes_stay(self, tmp_path):
        file = tmp_path / "superlink.db"
        with sqlite3.connect(file) as database:
            for table in ("node", "message_res", "objects"):
                database.execute(f"CREATE TABLE {table} (content)")
                database.execute(f"INSERT INTO {table} VALUES (zeroblob(1000000))")
        file.chmod(0o644)
        before = file.stat().st_size
        clean_message_store(file)
        with sqlite3.connect(file) as database:
            counts = [
                database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("node", "message_res", "objects")
            ]
        assert counts == [1, 0, 0]
        assert file.stat().st_size < before / 2
        assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def test_what_is_no_store(self, tmp_path):
        (tmp_path / "superlink.db").write_bytes(b"something else" * 100)
        with pytest.raises(InputError, match="cannot be used"):
            clean_message_store(tmp_path / "superlink.db")

    def test_what_processes_write_is_for_their_user(self, tmp_path):
        with Processes(tmp_path / "logs") as processes:
            writing = [sys.executable, "-c", "open('messages', 'w')"]
            processes.start("writer", writing, os.environ, tmp_path).popen.wait(30)
        for path in (tmp_path / "messages", tmp_path / "logs" / "writer.log"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
