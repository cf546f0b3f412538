"""Progress of a comparison: the whole and each run, with the time left."""

import pytest
from tests.report.screen import printed, terminal
from tests.report.test_progress import line

from ipfl.core import Event
from ipfl.report.comparison_progress import ComparisonPace, ComparisonProgress, Pace, format_seconds


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    "seconds, text", [(-3, "0:00"), (7.4, "0:07"), (59.6, "1:00"), (750, "12:30"), (11100, "3:05:00")]
)
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


class TestPace:
    def test_time_left(self):
        """2 of 10 rounds took 6 s: 3 s each, so 24 s for the 8 that are left; a second later it is 23."""
        pace = Pace(10, started=100.0)
        assert pace.text(100.0) == "–:–– left"
        pace.add(103.0, played=1)
        pace.add(106.0, played=1)
        assert pace.text(106.0) == "0:24 left"
        assert pace.text(107.0) == "0:23 left"

    def test_rounds_of_an_earlier_process_say_nothing_about_the_pace(self):
        """A run of 10 rounds is resumed after 6: one of the 4 took 5 s, so 15 s are left."""
        clock = Clock()
        whole = ComparisonPace(clock, runs=2)
        run = whole.begin_run(10)
        clock.now += 5
        whole.add_round(run, 6)
        assert (run.played, run.skipped, run.text(clock.now)) == (1, 6, "0:15 left")
        # Of the 20 rounds of two runs, 13 are left: 65 s.
        assert whole.text() == "1:05 left"

    def test_what_nobody_will_play(self):
        """Two runs of 4 rounds side by side; one fails after its first round, at 3 s a round."""
        clock = Clock()
        whole = ComparisonPace(clock, runs=2)
        first, second = whole.begin_run(4), whole.begin_run(4)
        clock.now += 6
        whole.add_round(first, 0)
        whole.add_round(second, 0)
        assert whole.text() == "0:18 left"  # 6 rounds
        whole.end_run(second)
        assert whole.text() == "0:09 left"  # 3 rounds
        assert whole.finished == 1


class TestBars:
    def progress(self, width=80):
        console, clock = terminal(live=True, width=width), Clock()
        return console, clock, ComparisonProgress(console, clock)

    def screen(self, progress):
        """The lines of all bars, as they are now."""
        console = terminal(width=progress.console.width)
        console.print(progress.bars.get_renderable())
        return printed(console).splitlines()

    @pytest.mark.parametrize("width", [80, 100])
    def test_a_line_for_the_whole_and_for_each_run(self, width):
        _, clock, progress = self.progress(width)
        with progress:
            for number, label in enumerate(["a, seed 0", "b, seed 0"], 1):
                progress(label, number, 6).start(label[0], 5)
            third = progress("c[x], seed 0", 3, 6)
            third.start("c", 5)
            clock.now += 2
            third.round(line(0, 0.417))
            clock.now += 2
            third.round(line(1))
            whole, *runs = self.screen(progress)
        # 2 of 30 rounds in 4 s: 56 s for 28. The run: 2 of 5, so 6 s for 3.
        assert whole.split()[:2] == ["6", "runs"]
        assert whole.split()[-3:] == ["0/6", "0:56", "left"]
        assert [run.split()[0] for run in runs] == ["1/6", "2/6", "3/6"]
        assert runs[0].split()[-3:] == ["0/5", "–:––", "left"]
        assert runs[2].split()[1] == "c[x],"
        assert runs[2].split()[-5:] == ["2/5", "0:06", "left", "41.7", "%"]
        assert max(map(len, [whole, *runs])) == width - 3  # room for ^C

    def test_a_run_that_is_over_leaves_a_line(self):
        console, clock, progress = self.progress()
        with progress:
            for number, (label, played) in enumerate([("a", 2), ("b", 1), ("c", 0)], 1):
                run = progress(label, number, 3)
                run.start(label, 2)
                for round in range(played):
                    clock.now += 30
                    run.round(line(round, 0.5))
                run.finish()
            assert self.screen(progress)[0].split()[-3:] == ["3/3", "0:00", "left"]
        shown = printed(console)
        assert "1/3 a                    2 rounds in 1:00             50.0 %" in shown
        assert "2/3 b                    stopped after 1 of 2 rounds" in shown
        assert "3/3 c                    nothing was left to play" in shown

    def test_events_name_their_run(self):
        console, _, progress = self.progress()
        with progress:
            run = progress("a", 1, 2)
            run.start("a", 2)
            run.round(line(0, events=[Event("left", 3, "[left]")]))
        assert "  1/2 a, round 0: client 3 [left]" in printed(console)

    def test_nothing_was_begun(self):
        console, _, progress = self.progress()
        with progress:
            pass
        assert "runs" not in printed(console)


def test_lines_without_a_terminal():
    console, clock = terminal(), Clock()
    with ComparisonProgress(console, clock) as progress:
        for number, label in enumerate(["a", "b"], 1):
            run = progress(label, number, 2)
            run.start(label, 2)
            for round in range(2):
                clock.now += 4
                run.round(line(round, 0.5 if round else None))
            run.finish()
    assert printed(console).splitlines() == [
        "1/2 a: 2 rounds",
        "1/2 a: 1 of 2 rounds",
        "1/2 a: 2 of 2 rounds, accuracy 50.0 %",
        "1 of 2 runs are over, 0:08 left",  # two rounds at 4 s
        "2/2 b: 2 rounds",
        "2/2 b: 1 of 2 rounds",
        "2/2 b: 2 of 2 rounds, accuracy 50.0 %",
    ]
