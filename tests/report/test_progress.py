"""Progress of runs: bars on a terminal, lines elsewhere."""

import pytest
from tests.report.screen import printed, terminal

from ipfl.core import Event
from ipfl.report import progress
from ipfl.report.progress import MAX_EVENTS, RunsProgress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only a test moves on."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def line(round, accuracy=None, events=()):
    found = {"round": round, "events": list(events)}
    if accuracy is not None:
        found["evaluation"] = {"personalized_accuracy": {"mean": accuracy, "std": 0.0}}
    return found


class TestLines:
    def test_a_line_every_tenth(self):
        console = terminal()
        shown = RunsProgress(console)("m", 1, 1)
        shown.start("m", 30)
        for round in range(30):
            shown.round(line(round, 0.5 if round == 4 else None))
        shown.finish()
        lines = printed(console).splitlines()
        assert lines[:3] == ["m: 30 rounds", "m: 3 of 30 rounds", "m: 6 of 30 rounds, accuracy 50.0 %"]
        assert len(lines) == 11
        assert lines[-1] == "m: 30 of 30 rounds, accuracy 50.0 %"

    def test_of_many_runs(self):
        """Few rounds give a line each."""
        console = terminal()
        with RunsProgress(console) as shown:
            for number, label in enumerate(["a", "b"], 1):
                run = shown(label, number, 2)
                run.start(label, 2)
                for round in range(2):
                    run.round(line(round, 0.5 if round else None))
                run.finish()
        assert printed(console).splitlines() == [
            "1/2 a: 2 rounds",
            "1/2 a: 1 of 2 rounds",
            "1/2 a: 2 of 2 rounds, accuracy 50.0 %",
            "1 of 2 runs are over",
            "2/2 b: 2 rounds",
            "2/2 b: 1 of 2 rounds",
            "2/2 b: 2 of 2 rounds, accuracy 50.0 %",
        ]


class TestBars:
    def rows(self, shown, width=80):
        """The words of all bars, as they are now."""
        console = terminal(width=width)
        console.print(shown.bars.get_renderable())
        lines = printed(console).splitlines()
        assert max(map(len, lines)) == width
        return [row.split() for row in lines]

    @pytest.mark.parametrize("width", [80, 100])
    def test_a_line_for_the_whole_and_for_each_run(self, width):
        console = terminal(live=True, width=width)
        with RunsProgress(console) as shown:
            for number, label in enumerate(["a, seed 0", "b, seed 0"], 1):
                shown(label, number, 6).start(label[0], 5)
            third = shown("c[x], seed 0", 3, 6)
            third.start("c", 5)
            third.round(line(0, 0.417))
            third.round(line(1))
            whole, *runs = self.rows(shown, width)
            (task,) = (one for one in shown.bars.tasks if one.id == shown.whole)
        assert (task.completed, task.total) == (0, 6)
        assert (whole[:2], whole[-2]) == (["6", "runs"], "0/6")
        assert [run[0] for run in runs] == ["1/6", "2/6", "3/6"]
        assert runs[0][-2:] == ["0/5", "--:--"]
        assert (runs[2][1], runs[2][-4], runs[2][-2:]) == ("c[x],", "2/5", ["41.7", "%"])

    def test_a_run_that_is_over_leaves_a_line(self, clock):
        console = terminal(live=True)
        with RunsProgress(console) as shown:
            for number, (label, played) in enumerate([("a", 2), ("b", 1), ("c", 0)], 1):
                run = shown(label, number, 3)
                run.start(label, 2)
                for round in range(played):
                    clock[0] += 30
                    run.round(line(round, 0.5))
                run.finish()
            (whole,) = shown.bars.tasks
            assert (whole.completed, whole.total, whole.fields["count"]) == (3, 3, "3/3")
        told = printed(console)
        assert "1/3 a                    2 rounds in 1:00             50.0 %" in told
        assert "2/3 b                    stopped after 1 of 2 rounds" in told
        assert "3/3 c                    nothing was left to play" in told

    def test_rounds_of_an_earlier_process_say_nothing_about_the_pace(self):
        """A run of 10 rounds is resumed after 6: that is no sample of how long rounds take, one more is."""
        console = terminal(live=True)
        with RunsProgress(console) as shown:
            run = shown("a", 1, 2)
            run.start("a", 10)
            run.round(line(6))
            _, task = shown.bars.tasks
            assert task.completed == 7
            assert sum(sample.completed for sample in task._progress) <= 1
            run.finish()
        assert "stopped after 7 of 10 rounds" in printed(console)


@pytest.mark.parametrize("live", [False, True])
class TestEvents:
    def test_events_are_told_but_not_without_end(self, live):
        console = terminal(live=live)
        with RunsProgress(console) as progress:
            shown = progress("m", 1, 2)
            shown.start("m", 100)
            for round in range(50):
                shown.round(line(round, events=[Event("left", 3, "[left]")]))
            shown.finish()
        assert printed(console).count("client 3 [left]") == MAX_EVENTS
        assert "1/2 m, round 1: client 3 [left]" in printed(console)
        assert printed(console).count("more events") == 1
