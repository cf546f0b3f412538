"""Progress of a run: a bar on a terminal, lines elsewhere."""

import pytest
from tests.report.screen import printed, terminal

from ipfl.core import Event
from ipfl.report.progress import MAX_EVENTS, ProgressBar, ProgressLines, progress_observer


def line(round, accuracy=None, events=()):
    found = {"round": round, "events": list(events)}
    if accuracy is not None:
        found["evaluation"] = {"personalized_accuracy": {"mean": accuracy, "std": 0.0}}
    return found


class TestProgress:
    def test_a_line_every_tenth(self):
        console = terminal()
        shown = progress_observer(console, "m")
        assert isinstance(shown, ProgressLines)
        shown.start("m", 30)
        for round in range(30):
            shown.round(line(round, 0.5 if round == 4 else None))
        shown.finish()
        lines = printed(console).splitlines()
        assert lines[:3] == ["m: 30 rounds", "m: 3 of 30 rounds", "m: 6 of 30 rounds, accuracy 50.0 %"]
        assert len(lines) == 11
        assert lines[-1] == "m: 30 of 30 rounds, accuracy 50.0 %"

    def test_few_rounds_give_a_line_each(self):
        console = terminal()
        shown = ProgressLines(console, "m, seed 1", "2/6 ")
        shown.start("m", 3)
        for round in range(3):
            shown.round(line(round))
        assert printed(console).splitlines()[1:] == [f"2/6 m, seed 1: {n} of 3 rounds" for n in (1, 2, 3)]

    def test_bar(self):
        console = terminal(live=True)
        shown = progress_observer(console, "m")
        assert isinstance(shown, ProgressBar)
        shown.start("m", 2)
        shown.round(line(0, 0.5))
        shown.round(line(1))
        shown.finish()
        last = printed(console).splitlines()[-2]  # the last one shows the cursor again
        assert last.split("K")[-1].startswith("m ")
        assert "2/2" in last
        assert "50.0 %" in last

    @pytest.mark.parametrize("live", [False, True])
    def test_what_is_done_after_the_last_round_is_said(self, live):
        console = terminal(live=live)
        shown = progress_observer(console, "m")
        shown.start("m", 1)
        shown.round(line(0))
        shown.finish()
        shown.note("making the models of 3 clients")
        assert printed(console).splitlines()[-1].endswith("m: making the models of 3 clients")

    @pytest.mark.parametrize("live", [False, True])
    def test_events_are_told_but_not_without_end(self, live):
        console = terminal(live=live)
        shown = progress_observer(console, "m")
        shown.start("m", 100)
        for round in range(50):
            shown.round(line(round, events=[Event("left", 3, "[left]")]))
        shown.finish()
        assert printed(console).count("client 3 [left]") == MAX_EVENTS
        assert "round 1: client 3 [left]" in printed(console)
        assert printed(console).count("more events") == 1
