"""Comparisons: the reference first, PMA against it, failures noted, folders kept tidy."""

import json

import numpy as np
import pytest
from pydantic.dataclasses import dataclass
from tests.failing_methods import Broken, Stopped, add_methods
from tests.study.small_study import OTHERS, Log, config, contents

from ipfl import api, methods
from ipfl import compare as compared
from ipfl.errors import InputError
from ipfl.keep.file_names import COMPARISON_FILE, PLAN_FILE
from ipfl.methods import REFERENCE, method_class
from ipfl.study.comparison import compare, read_plan

OTHER = OTHERS[0]


@dataclass(frozen=True)
class Same(method_class(REFERENCE)):
    """The reference under another name: PMA must be 0 for every client."""

    name = "same"


@pytest.fixture
def stand_ins(monkeypatch):
    add_methods(monkeypatch, Same, Broken, Stopped)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "out"
    return compare(config("seed=5"), [OTHER], range(5, 7), out=out, workers=0), out


def written(folder):
    return json.loads((folder / COMPARISON_FILE).read_text())


class TestRuns:
    def test_the_reference_is_added_and_each_run_has_a_folder(self, done):
        comparison, out = done
        assert list(comparison.entries) == [OTHER, REFERENCE]
        for name in (OTHER, REFERENCE):
            for seed in (5, 6):
                summary = json.loads((out / name / f"seed-{seed}" / "summary.json").read_text())
                assert (summary["method"], summary["seed"], summary["config"]["seed"]) == (name, seed, seed)
        assert {path.name for path in out.iterdir() if path.is_file()} == {COMPARISON_FILE, PLAN_FILE}

    def test_json_has_means_over_seeds(self, done):
        comparison, out = done
        content, results = written(out), comparison.entries[OTHER].results
        assert (content["seeds"], content["reference"], content["interrupted"]) == ([5, 6], REFERENCE, False)
        assert content["config"]["rounds"] == 2
        figures = content["methods"][OTHER]
        mean = np.mean([one.personalized_accuracy for one in results.values()])
        assert figures["personalized_accuracy"]["mean"] == pytest.approx(mean)
        assert figures["seeds"]["6"]["opt_outs"] == results[6].summary["opt_outs"]
        # 2 rounds, 4 clients
        assert figures["seeds"]["5"]["bytes_down_per_client_round"] == results[5].summary["bytes_down"] / 8
        assert content["methods"][REFERENCE]["pma"] is None

    def test_pma_is_measured_against_the_reference_of_the_same_seed(self, done):
        entries = done[0].entries
        for seed in (5, 6):
            ours, theirs = (entries[name].results[seed].last.personalized for name in (OTHER, REFERENCE))
            gains = [ours[client] - theirs[client] for client in ours]
            summary = entries[OTHER].results[seed].summary
            assert summary["pma"]["mean"] == pytest.approx(np.mean(gains))
            assert summary["opt_outs"] == sum(gain <= 0 for gain in gains)
        first, second = entries[REFERENCE].results.values()
        assert first.last.personalized != second.last.personalized, "seeds change the data"


@pytest.mark.usefixtures("stand_ins")
class TestOrder:
    def test_reference_runs_first_but_is_shown_where_it_was_asked_for(self):
        log = Log()
        names = ["same", OTHER, REFERENCE, OTHER]
        comparison = compare(config(), names, [3, 4], workers=0, make_observer=log)
        assert list(comparison.entries) == ["same", OTHER, REFERENCE]
        labels = [f"{name}, seed {seed}" for seed in (3, 4) for name in (REFERENCE, "same", OTHER)]
        assert log.begun == [(label, number, 6) for number, label in enumerate(labels, 1)]

    def test_any_method_or_variant_can_be_the_reference(self, tmp_path):
        log, label = Log(), f"{methods.DEFAULT}:clusters=1"
        comparison = compare(
            config(), [REFERENCE], reference=label, out=tmp_path, workers=0, make_observer=log
        )
        assert [name for name, *_ in log.begun] == [label, REFERENCE], "the reference first"
        assert list(comparison.entries) == [REFERENCE, label]
        ours, theirs = (comparison.entries[name].results[0] for name in (REFERENCE, label))
        assert ours.summary["pma"]["mean"] == pytest.approx(
            ours.personalized_accuracy - theirs.personalized_accuracy
        )
        assert theirs.summary["pma"] is None
        assert (ours.summary["reference"], theirs.summary["reference"]) == (methods.DEFAULT, None)
        assert written(tmp_path)["reference"] == read_plan(tmp_path).reference == label

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
        figures = written(tmp_path / "out")["methods"]["broken"]
        assert figures["failures"]["1"] == "RuntimeError: out of luck"
        assert figures["personalized_accuracy"] is None


class TestResume:
    def test_the_same_as_without_the_interruption(self, done, tmp_path):
        """Of four runs, two were finished, one had a round done and one was not begun."""
        out = tmp_path / "out"
        given = {"out": out, "workers": 0}
        begun = compare(config("seed=5"), [OTHER], range(5, 7), **given, make_observer=Log(stop_in=3))
        assert begun.interrupted is written(out)["interrupted"] is True
        assert begun.entries[REFERENCE].failures == {6: "interrupted after 1 rounds"}
        assert set(begun.entries[OTHER].results) == {5}
        assert len(list(out.glob("*/seed-*"))) == 3
        plan = read_plan(out)
        assert plan == (config("seed=5"), [OTHER, REFERENCE], [5, 6], REFERENCE)
        finished = compare(plan.config, plan.methods, plan.seeds, **given, resume=True)
        assert not finished.interrupted
        assert contents(out) == contents(done[1])

    def test_a_row_with_the_last_step(self, tmp_path):
        """Its rounds are FedAvg's, its clients' models are not; what it took is said, and an interruption
        changes none of it."""
        adapted, out = f"{REFERENCE}+adapt", tmp_path / "out"
        whole = compare(config(), [adapted, OTHER], workers=0)
        given = {"out": out, "workers": 0}
        assert compare(config(), [adapted, OTHER], **given, make_observer=Log(stop_in=3)).interrupted
        plan = read_plan(out)
        resumed = compare(plan.config, plan.methods, plan.seeds, **given, resume=True)
        runs = {label: entry.results[0] for label, entry in resumed.entries.items()}
        assert np.array_equal(runs[adapted].models["global"], runs[REFERENCE].models["global"])
        assert runs[adapted].accuracies != runs[REFERENCE].accuracies
        assert runs[adapted].accuracies == whole.entries[adapted].results[0].accuracies
        figures = written(out)["methods"]
        assert figures[adapted]["last_step_passes"] >= 15  # five epochs of three passes
        assert figures[adapted]["last_step_seconds"] > 0
        assert figures[REFERENCE]["last_step_passes"] is None

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


class TestFolder:
    def test_a_comparison_is_not_overwritten_unasked(self, tmp_path):
        compare(config(), [OTHER], out=tmp_path, workers=0)
        before = (tmp_path / COMPARISON_FILE).read_bytes()
        with pytest.raises(InputError, match="already holds a run"):
            compare(config(), [REFERENCE], out=tmp_path, workers=0)
        assert (tmp_path / COMPARISON_FILE).read_bytes() == before
        (tmp_path / OTHER / "seed-0" / "notes.txt").write_text("in the old run's folder")
        (tmp_path / "mine.txt").write_text("not ours")
        compare(config(), [REFERENCE], out=tmp_path, overwrite=True, workers=0)
        assert {OTHER, "mine.txt"} & {path.name for path in tmp_path.iterdir()} == {"mine.txt"}

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_single_run_is_never_overwritten(self, tmp_path, overwrite):
        (tmp_path / "metrics.jsonl").touch()
        with pytest.raises(InputError, match="already holds a run; choose another folder"):
            compare(config(), [REFERENCE], out=tmp_path, overwrite=overwrite)

    @pytest.mark.parametrize("place", ["file", "file/x"])
    def test_a_file_in_the_way(self, tmp_path, place):
        (tmp_path / "file").touch()
        with pytest.raises(InputError):
            compare(config(), [REFERENCE], out=tmp_path / place)

    @pytest.mark.parametrize(
        "names, sets, more",
        [
            (["nope"], [], {}),
            ([REFERENCE], [], {"reference": "nope"}),
            ([REFERENCE], [], {"seeds": []}),
            ([REFERENCE], ["method.nope=1"], {}),
            ([methods.DEFAULT], ["method.clusters=5"], {}),
            ([REFERENCE], ["aggregate.min_providers=2", "train.per_round=1"], {}),
            ([REFERENCE], ["task.partition=classes:11"], {}),
            ([REFERENCE], ["task.model=nope"], {}),
            ([REFERENCE], ["task.model=os:getcwd"], {}),
        ],
    )
    def test_bad_input_writes_nothing(self, tmp_path, names, sets, more):
        with pytest.raises(InputError):
            compare(config(*sets), names, out=tmp_path / "out", **more)
        assert not (tmp_path / "out").exists()


def test_the_package_attribute_is_the_function():
    assert compared is api.compare
