"""Comparisons: the reference first, PMA against it, failures noted, folders kept tidy."""

import json

import numpy as np
import pytest
from pydantic.dataclasses import dataclass
from tests.failing_methods import Broken, Stopped, add_methods

from ipfl import api, methods
from ipfl import compare as compared
from ipfl.config.run_config import Config
from ipfl.errors import InputError
from ipfl.keep.file_names import COMPARISON_FILE, PLAN_FILE
from ipfl.methods import REFERENCE, method_class
from ipfl.study.comparison import (
    MethodRuns,
    compare,
    read_plan,
)
from ipfl.study.comparison_folder import FIGURE_FILES, comparison_files

TINY = ["rounds=2", "task.model=softmax", "task.clients=4", "evaluate.every=1"]
OTHER = next(name for name in methods.METHODS if name not in (REFERENCE, methods.DEFAULT))


@dataclass(frozen=True)
class Same(method_class(REFERENCE)):
    """The reference under another name: PMA must be 0 for every client."""

    name = "same"


@pytest.fixture
def stand_ins(monkeypatch):
    add_methods(monkeypatch, Same, Broken, Stopped)


def config(*sets):
    return Config.load(None, [*TINY, *sets])


class Witness:
    """Notes which runs were watched."""

    def __init__(self):
        self.seen = []

    def __call__(self, label, number, of):
        self.seen.append((label, number, of))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "out"
    return compare(config("seed=5"), [OTHER], range(5, 7), out=out, workers=0), out


class TestRuns:
    def test_reference_is_added(self, done):
        assert list(done[0].entries) == [OTHER, REFERENCE]

    def test_files(self, done):
        _, out = done
        for name in (OTHER, REFERENCE):
            for seed in (5, 6):
                summary = json.loads((out / name / f"seed-{seed}" / "summary.json").read_text())
                assert (summary["method"], summary["seed"], summary["config"]["seed"]) == (name, seed, seed)
        assert (out / COMPARISON_FILE).stat().st_size > 0

    def test_json_has_means_over_seeds(self, done):
        comparison, out = done
        content = json.loads((out / COMPARISON_FILE).read_text())
        assert content["seeds"] == [5, 6]
        assert content["reference"] == REFERENCE
        assert content["interrupted"] is False
        assert "commit" in content
        assert content["config"]["rounds"] == 2
        figures = content["methods"][OTHER]
        results = comparison.entries[OTHER].results
        assert figures["personalized_accuracy"]["mean"] == pytest.approx(
            np.mean([one.personalized_accuracy for one in results.values()])
        )
        assert figures["seeds"]["6"]["opt_outs"] == results[6].summary["opt_outs"]
        # 2 rounds, 4 clients
        assert figures["seeds"]["5"]["bytes_down_per_client_round"] == results[5].summary["bytes_down"] / 8
        assert content["methods"][REFERENCE]["pma"] is None

    def test_pma_is_measured_against_the_reference_of_the_same_seed(self, done):
        entries = done[0].entries
        for seed in (5, 6):
            ours, theirs = (entries[name].results[seed].last.personalized for name in (OTHER, REFERENCE))
            assert entries[OTHER].pma[seed] == {client: ours[client] - theirs[client] for client in ours}
            gains = entries[OTHER].pma[seed].values()
            assert entries[OTHER].results[seed].summary["opt_outs"] == sum(gain <= 0 for gain in gains)

    def test_seeds_change_the_data(self, done):
        first, second = done[0].entries[REFERENCE].results.values()
        assert first.last.personalized != second.last.personalized


@pytest.mark.usefixtures("stand_ins")
class TestOrder:
    def test_the_reference_against_itself(self):
        entry = compare(config(), ["same"], workers=0).entries["same"]
        assert set(entry.pma[0].values()) == {0.0}
        assert entry.results[0].summary["opt_outs"] == 4  # PMA ≤ 0 opts out

    def test_reference_runs_first_but_is_shown_where_it_was_asked_for(self):
        witness = Witness()
        comparison = compare(
            config(), ["same", OTHER, REFERENCE, OTHER], [3, 4], workers=0, make_observer=witness
        )
        assert list(comparison.entries) == ["same", OTHER, REFERENCE]
        labels = [f"{name}, seed {seed}" for seed in (3, 4) for name in (REFERENCE, "same", OTHER)]
        assert witness.seen == [(label, number, 6) for number, label in enumerate(labels, 1)]

    def test_any_method_can_be_the_reference(self, tmp_path):
        witness, label = Witness(), OTHER
        comparison = compare(
            config(), [REFERENCE], reference=label, out=tmp_path, workers=0, make_observer=witness
        )
        assert [name for name, *_ in witness.seen] == [label, REFERENCE], "the reference first"
        assert list(comparison.entries) == [REFERENCE, label]
        ours, theirs = (comparison.entries[name].results[0] for name in (REFERENCE, label))
        rho = theirs.last.personalized
        gains = {client: value - rho[client] for client, value in ours.last.personalized.items()}
        assert comparison.entries[REFERENCE].pma == {0: gains}
        assert not comparison.entries[label].pma
        assert ours.summary["reference"] == OTHER
        assert theirs.summary["reference"] is None
        assert json.loads((tmp_path / COMPARISON_FILE).read_text())["reference"] == label
        assert read_plan(tmp_path).reference == label

    def test_a_variant_can_be_the_reference(self):
        label = f"{methods.DEFAULT}:clusters=1"
        comparison = compare(config("rounds=1"), [REFERENCE], reference=label, workers=0)
        assert comparison.reference == label
        assert set(comparison.entries[REFERENCE].pma[0]) == {0, 1, 2, 3}

    def test_an_unknown_reference(self, tmp_path):
        with pytest.raises(InputError, match="nope"):
            compare(config(), [REFERENCE], reference="nope", out=tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_clients_leave_what_is_no_better_than_the_reference(self):
        settings = config("clients.leave=true", "clients.grace=0")
        entries = compare(settings, ["same"], workers=0).entries
        assert entries["same"].results[0].summary["left"] == 4
        assert entries[REFERENCE].results[0].summary["left"] == 0


@pytest.mark.usefixtures("stand_ins")
class TestFailures:
    def test_the_others_go_on(self, tmp_path):
        comparison = compare(config(), ["broken", "same"], [0, 1], out=tmp_path / "out", workers=0)
        assert comparison.failed
        assert comparison.entries["broken"].failures == dict.fromkeys((0, 1), "RuntimeError: out of luck")
        assert set(comparison.entries["same"].results) == {0, 1}
        content = json.loads((tmp_path / "out" / COMPARISON_FILE).read_text())
        assert content["methods"]["broken"]["failures"]["1"] == "RuntimeError: out of luck"
        assert content["methods"]["broken"]["personalized_accuracy"] is None

    def test_ctrl_c_keeps_what_is_finished(self, tmp_path):
        comparison = compare(config(), ["same", "stopped", OTHER], [0, 1], out=tmp_path / "out", workers=0)
        assert comparison.interrupted
        assert set(comparison.entries["same"].results) == {0}
        assert comparison.entries["stopped"].failures == {0: "interrupted after 1 rounds"}
        assert comparison.entries[OTHER] == MethodRuns(comparison.entries[OTHER].method)
        assert json.loads((tmp_path / "out" / COMPARISON_FILE).read_text())["interrupted"] is True


class CtrlC:
    """An observer that presses Ctrl-C after the first round of the third run."""

    def __init__(self, label, number, of):
        self.pressed = number == 3

    def start(self, method, rounds): ...

    def round(self, line):
        if self.pressed:
            raise KeyboardInterrupt

    def finish(self): ...


class TestResume:
    def test_the_same_as_without_the_interruption(self, done, tmp_path):
        """Of four runs, two were finished, one had a round done and one was not begun."""
        _, untouched = done
        out = tmp_path / "out"
        begun = compare(config("seed=5"), [OTHER], range(5, 7), out=out, workers=0, make_observer=CtrlC)
        assert begun.interrupted
        assert len(list(out.glob("*/seed-*"))) == 3
        plan = read_plan(out)
        assert plan == (config("seed=5"), [OTHER, REFERENCE], [5, 6], REFERENCE)
        finished = compare(plan.config, plan.methods, plan.seeds, out=out, resume=True, workers=0)
        assert not finished.interrupted

        def figures(folder):
            content = json.loads((folder / COMPARISON_FILE).read_text())
            for entry in content["methods"].values():
                for one in (entry, *entry["seeds"].values()):
                    assert one.pop("seconds_per_round") > 0
            return content

        assert figures(out) == figures(untouched)
        for metrics in untouched.glob("*/seed-*/metrics.jsonl"):
            assert (out / metrics.relative_to(untouched)).read_bytes() == metrics.read_bytes()

    def test_a_row_with_the_last_step(self, tmp_path):
        """Its rounds are FedAvg's, its clients' models are not; what it took is said, and an interruption
        changes none of it."""
        adapted, out = f"{REFERENCE}+adapt", tmp_path / "out"
        whole = compare(config(), [adapted, OTHER], workers=0)
        assert compare(config(), [adapted, OTHER], out=out, workers=0, make_observer=CtrlC).interrupted
        plan = read_plan(out)
        resumed = compare(plan.config, plan.methods, plan.seeds, out=out, resume=True, workers=0)
        runs = {label: entry.results[0] for label, entry in resumed.entries.items()}
        assert np.array_equal(runs[adapted].models["global"], runs[REFERENCE].models["global"])
        assert runs[adapted].accuracies != runs[REFERENCE].accuracies
        assert runs[adapted].accuracies == whole.entries[adapted].results[0].accuracies
        written = json.loads((out / COMPARISON_FILE).read_text())["methods"]
        assert written[adapted]["last_step_passes"] >= 15  # five epochs of three passes
        assert written[adapted]["last_step_seconds"] > 0
        assert written[REFERENCE]["last_step_passes"] is None

    def test_nothing_to_resume(self, tmp_path):
        with pytest.raises(InputError, match="no comparison to resume"):
            read_plan(tmp_path)
        with pytest.raises(InputError, match="needs a folder"):
            compare(config(), [OTHER], resume=True)

    @pytest.mark.parametrize("plan", ["", "[]", "{}", '{"methods": 3, "seeds": [], "config": {}}'])
    def test_damaged_plan(self, tmp_path, plan):
        (tmp_path / PLAN_FILE).write_text(plan)
        with pytest.raises(InputError, match="not the plan"):
            read_plan(tmp_path)


def test_files_of_a_comparison(done):
    """All that it may write is removed when it is overwritten; there is nothing else beside its runs.

    The figures come from the command line.
    """
    _, out = done
    beside = {path for path in out.iterdir() if path.is_file()}
    assert beside == set(comparison_files(out)) - {out / name for name in FIGURE_FILES}


class TestFolder:
    def test_a_comparison_is_not_overwritten_unasked(self, tmp_path):
        compare(config(), [OTHER], out=tmp_path, workers=0)
        before = (tmp_path / COMPARISON_FILE).read_bytes()
        with pytest.raises(InputError, match="already holds a run"):
            compare(config(), [REFERENCE], out=tmp_path, workers=0)
        assert (tmp_path / COMPARISON_FILE).read_bytes() == before
        (tmp_path / OTHER / "seed-0" / "notes.txt").write_text("in the old run's folder")
        (tmp_path / "pma.png").write_text("a figure of the old comparison")
        (tmp_path / "mine.txt").write_text("not ours")
        compare(config(), [REFERENCE], out=tmp_path, overwrite=True, workers=0)
        assert not (tmp_path / OTHER).exists()
        assert not (tmp_path / "pma.png").exists()  # of the old comparison
        assert (tmp_path / "mine.txt").exists()

    def test_a_single_run_is_never_overwritten(self, tmp_path):
        (tmp_path / "metrics.jsonl").touch()
        for overwrite in (False, True):
            with pytest.raises(InputError, match="already holds a run; choose another folder"):
                compare(config(), [REFERENCE], out=tmp_path, overwrite=overwrite)

    @pytest.mark.parametrize("below", [False, True])
    def test_a_file_in_the_way(self, tmp_path, below):
        (tmp_path / "file").touch()
        with pytest.raises(InputError):
            compare(config(), [REFERENCE], out=tmp_path / "file" / "x" if below else tmp_path / "file")

    @pytest.mark.parametrize(
        "names, sets",
        [
            (["nope"], []),
            ([REFERENCE], ["method.nope=1"]),
            ([methods.DEFAULT], ["method.clusters=5"]),
            ([REFERENCE], ["task.partition=classes:11"]),
            ([REFERENCE], ["task.model=nope"]),
            ([REFERENCE], ["task.dataset=gaussian", "task.distributions=iid", "task.model=cnn"]),
        ],
    )
    def test_bad_input_writes_nothing(self, tmp_path, names, sets):
        with pytest.raises(InputError):
            compare(config(*sets), names, out=tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_no_seed(self):
        with pytest.raises(InputError, match="no seed"):
            compare(config(), [REFERENCE], [])


def test_the_package_attribute_is_the_function():
    assert compared is api.compare
