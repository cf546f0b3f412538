"""What a profile says, with a clock that is set by hand; and that a run is measured from end to end."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app
from ipfl.methods.one_model.fedavg import FedAvg
from ipfl.play.profile import Profile
from ipfl.system import timing
from ipfl.system.timing import add_span, measure
from ipfl.training.task import Task


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when the test says so."""

    class Clock:
        now = 100.0

        def wait(self, seconds: float) -> None:
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    return clock


def recorded(clock) -> Profile:
    """1 s of data, then twice 2 s of training with 3 s of evaluation around 4 s of its ask, then 5 s."""
    found = Profile()
    with found.recording():
        with measure("data"):
            clock.wait(1)
        for round in range(2):
            with measure("train", round=round) as span:
                begun = clock.now
                clock.wait(2)
                add_span("train", "worker 1", begun, client=7)
                span.down, span.up = 10, 20
            with measure("evaluation"):
                clock.wait(1)
                with measure("evaluate"):
                    clock.wait(4)
                clock.wait(2)
        clock.wait(5)
    return found


def test_phases(clock):
    phases = [(one.name, one.times, one.seconds, one.down, one.up) for one in recorded(clock).phases()]
    # An evaluation takes 1 + 4 + 2 s, of which 4 are those of its ask. Whole: 1 + 2·(2 + 7) + 5.
    assert phases == [
        ("data", 1, 1, 0, 0),
        ("train", 2, 4, 20, 40),
        ("evaluation", 2, 6, 0, 0),
        ("evaluate", 2, 8, 0, 0),
        ("other", 1, 5, 0, 0),
    ]
    assert recorded(clock).seconds == sum(seconds for _, _, seconds, _, _ in phases) == 24


def test_trace(clock):
    events = json.loads(json.dumps(recorded(clock).trace()))["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {0: "server", 1: "worker 1"}
    spans = [(e["name"], names[e["tid"]], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans[:5] == [
        ("data", "server", 0, 1e6),
        ("train", "worker 1", 1e6, 2e6),
        ("train", "server", 1e6, 2e6),
        ("evaluation", "server", 3e6, 7e6),
        ("evaluate", "server", 4e6, 4e6),
    ]
    by_worker = next(e for e in events if e["ph"] == "X" and e["tid"] == 1)
    assert by_worker["args"] == {"client": 7, "bytes_down": 0, "bytes_up": 0}


def test_an_error_ends_its_spans(clock):
    found = Profile()
    with suppress(KeyError), found.recording(), measure("outer"), measure("inner"):
        clock.wait(1)
        raise KeyError
    assert [(span.name, span.own) for span in found.spans] == [("inner", 1), ("outer", 0)]
    assert found.phases()[-1].seconds == 0


def test_nothing_is_kept_without_a_profile(clock):
    found = Profile()
    with found.recording():
        pass
    with measure("train"):
        add_span("train", "worker 0", clock.now)
    assert found.spans == []


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run(workers, tmp_path):
    found = Profile()
    config = ipfl.RunConfig(rounds=2, train=ipfl.TrainConfig(epochs=1))
    task = Task.load(clients=4, model="softmax")
    with found.recording():
        done = ipfl.run(
            task, FedAvg(), config, engine=ipfl.local_engine(workers=workers), out=tmp_path / "run"
        )
    phases = {phase.name: phase for phase in found.phases()}
    assert list(phases)[:2] == ["set-up", "server at the start"]
    assert {"train", "server after train", "evaluation", "evaluate", "assess", "store"} <= set(phases)
    assert [phases[name].times for name in ("train", "store")] == [2, 2]
    assert (phases["train"].down, phases["train"].up) == (
        done.summary["bytes_down"],
        done.summary["bytes_up"],
    )
    jobs = [span for span in found.spans if span.name == "train" and span.track != "server"]
    assert {span.track for span in jobs} == {"worker 0" if workers else "clients"}
    assert len(jobs) == 4, "two clients in each of two rounds"
    assert 0 <= phases["other"].seconds < found.seconds


def test_the_command(tmp_path):
    options = [
        "--set",
        "rounds=1",
        "--set",
        "task.model=softmax",
        "--set",
        "task.clients=4",
        "--workers",
        "0",
    ]
    command = ["run", "--profile", "--quiet", *options, "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert {"data", "train", "evaluate", "store"} <= {line[0] for line in lines if line}
    trace = json.loads((tmp_path / "run" / "trace.json").read_text())
    assert {"train", "store"} <= {event["name"] for event in trace["traceEvents"]}
    again = CliRunner().invoke(app, [*command[:1], *command[2:], "--overwrite"])
    assert again.exit_code == 0, again.output
    assert not (tmp_path / "run" / "trace.json").exists(), "that was of the run before"
