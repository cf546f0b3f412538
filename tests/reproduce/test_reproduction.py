"""The command, from the first run to the table."""

import json
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.reproduce.small_experiment import record
from typer.testing import CliRunner

from ipfl.cli import app
from ipfl.reproduce import experiments
from ipfl.reproduce import results_file as records
from ipfl.reproduce.paper_tables import BEGIN_MARK, END_MARK, document_text, write_document
from ipfl.reproduce.results_file import read_experiment_record

ROOT = Path(__file__).parents[2]


def command(*arguments, code=0):
    done = CliRunner().invoke(app, ["reproduce", *arguments])
    assert done.exit_code == code, done.output
    return done


def run(folder, *arguments, code=0):
    places = ["--out", str(folder / "results"), "--runs", str(folder / "runs"), "--workers", "0", "--quiet"]
    return command(*arguments, *places, code=code)


def run_folders(folder):
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/summary.json")}


def test_runs_are_played_once_and_shared(tiny, tmp_path):
    listed = run(tmp_path, "tiny", "--scale", "smoke", "--seeds", "0", "--dry-run").stdout.splitlines()
    assert listed == ["fedavg, 10:90, seed 0", "ditto, 10:90, seed 0"]
    assert not (tmp_path / "results").exists()
    run(tmp_path, "tiny", "--scale", "smoke", "--seeds", "0")
    assert not run(tmp_path, "tiny", "--scale", "smoke", "--seeds", "0", "--dry-run").stdout
    first = run_folders(tmp_path)
    assert len(first) == 2
    for folder in (tmp_path / "runs").iterdir():
        if folder.is_dir():
            assert {file.name for file in folder.iterdir()} == {"summary.json", "metrics.jsonl"}
    run(tmp_path, "other", "tiny", "--scale", "smoke", "--seeds", "2")
    second = run_folders(tmp_path)
    assert len(second) == 4, "two methods, two seeds; the other table has no run of its own"
    assert {key: second[key] for key in first} == first
    # Numbers stay when they were played with a seed that is not asked for now, and need no folder of runs.
    (tmp_path / "runs").rename(tmp_path / "gone")
    run(tmp_path, "tiny", "--scale", "smoke", "--seeds", "1,1")
    record = read_experiment_record(tmp_path / "results", "tiny", "smoke")
    assert record.seeds == [0, 1]
    assert not run_folders(tmp_path)
    assert record.columns["10:90"].config["task"]["clients"] == 4
    assert record.machine["cores"] >= 1
    written = json.loads((tmp_path / "results/tiny/smoke.json").read_text())
    assert set(written["columns"]["10:90"]["runs"]) == {"ditto", "fedavg"}


def test_runs_of_another_commit_are_refused_unless_allowed(tiny, tmp_path, monkeypatch):
    run(tmp_path, "other", "--scale", "smoke")
    before = run_folders(tmp_path)
    monkeypatch.setattr("ipfl.reproduce.reproduction.is_this_code", lambda record: False)
    refused = run(tmp_path, "other", "--scale", "smoke", code=2)
    (line,) = refused.stderr.splitlines()
    assert "is of commit" in line
    assert "--other-commit" in line
    run(tmp_path, "other", "--scale", "smoke", "--other-commit", "use")
    assert run_folders(tmp_path) == before
    run(tmp_path, "other", "--scale", "smoke", "--other-commit", "replay")
    after = run_folders(tmp_path)
    assert after.keys() == before.keys()
    assert after != before


def test_seeds_of_other_code_are_not_dropped(tiny, tmp_path, monkeypatch):
    run(tmp_path, "tiny", "--scale", "smoke", "--seeds", "2")
    before = read_experiment_record(tmp_path / "results", "tiny", "smoke").columns["10:90"].runs
    monkeypatch.setattr("ipfl.reproduce.reproduction.is_this_code", lambda record: False)
    refused = run(tmp_path, "tiny", "--scale", "smoke", "--seeds", "2,2", code=2)
    (line,) = refused.stderr.splitlines()
    assert "tiny has seeds 0, 1 of other code" in line
    assert "--other-commit" in line
    for choice in ("use", "replay"):
        run(tmp_path, "tiny", "--scale", "smoke", "--seeds", "2,2", "--other-commit", choice)
        after = read_experiment_record(tmp_path / "results", "tiny", "smoke")
        assert after.seeds == [0, 1, 2]
        for label, runs in before.items():
            assert {seed: after.columns["10:90"].runs[label][seed] for seed in runs} == runs


def test_some_methods_can_be_played_again(tiny, tmp_path, monkeypatch):
    run(tmp_path, "tiny", "--scale", "smoke")
    before, folders = read_experiment_record(tmp_path / "results", "tiny", "smoke"), run_folders(tmp_path)
    monkeypatch.setattr("ipfl.reproduce.results_file.is_same_code", lambda commit: False)
    run(tmp_path, "tiny", "--scale", "smoke", "--methods", "ditto", "--other-commit", "replay")
    after = read_experiment_record(tmp_path / "results", "tiny", "smoke")
    runs, old = after.columns["10:90"].runs, before.columns["10:90"].runs
    assert runs["fedavg"] == old["fedavg"], "what was found for the others stays"
    assert runs["ditto"][0].key == old["ditto"][0].key
    again = run_folders(tmp_path)
    changed = {key for key in again if again[key] != folders[key]}
    assert changed == {runs["ditto"][0].key}
    refused = run(tmp_path, "tiny", "--scale", "smoke", "--methods", "dito", code=2)
    assert "unknown method 'dito'" in refused.stderr
    # So it does if its settings have changed since, and with them its key.
    file = tmp_path / "results/tiny/smoke.json"
    file.write_text(file.read_text().replace(runs["fedavg"][0].key, "0" * 16))
    run(tmp_path, "tiny", "--scale", "smoke", "--methods", "ditto", "--other-commit", "use")
    last = read_experiment_record(tmp_path / "results", "tiny", "smoke").columns["10:90"].runs
    assert last["fedavg"][0].personalized == runs["fedavg"][0].personalized


def test_seeds_that_a_method_lacks_wait_for_it(tiny, tmp_path):
    """Half of the second seed is played first: the table has it when the other half is there."""

    def written(*arguments):
        run(tmp_path, "tiny", "--scale", "smoke", *arguments)
        found = read_experiment_record(tmp_path / "results", "tiny", "smoke")
        return found.seeds, {label: list(of) for label, of in found.columns["10:90"].runs.items()}

    written("--seeds", "0")
    assert written("--seeds", "2", "--methods", "ditto") == ([0], {"ditto": [0], "fedavg": [0]})
    first = run_folders(tmp_path)
    assert written("--seeds", "2") == ([0, 1], {"ditto": [0, 1], "fedavg": [0, 1]})
    again = run_folders(tmp_path)
    assert {key: again[key] for key in first} == first, "nothing is played twice"


def test_a_run_of_this_code_counts_more_than_one_of_another(monkeypatch):
    monkeypatch.setattr(records, "is_this_code", lambda one: one.seed == 1)
    old, new = record(seed=0), record(seed=1)
    assert records.prefer_this_code(old, new) is new
    assert records.prefer_this_code(new, old) is new
    assert records.prefer_this_code(old, None) is old
    assert records.prefer_this_code(None, None) is None


def test_code_above_the_round_loop_may_differ(monkeypatch):
    commit = records.source_commit()
    if commit is None:
        pytest.skip("not in a git repository")
    assert records.is_this_code(record(commit=commit))
    assert not records.is_this_code(record(commit="0" * 40))
    assert not records.is_this_code(record(commit=None))
    # Of an installed package, whose commit nobody knows, the version tells.
    monkeypatch.setattr(records, "source_commit", lambda: None)
    assert not records.is_this_code(record(commit=None))
    assert records.is_this_code(record(commit=None, version=version("ipfl")))


def test_tuned_settings_are_used_and_shown(tiny, tmp_path):
    run(tmp_path, "tune", "tiny", "--scale", "smoke")
    tuning = json.loads((tmp_path / "results/tiny/smoke-tuning.json").read_text())
    assert tuning["seeds"] == [100]
    grid = tuning["methods"]["ditto"]["grid"]
    assert len(grid) == 4
    best = max(grid, key=lambda point: point["mean"])
    assert tuning["methods"]["ditto"]["chosen"] == best["settings"]
    run(tmp_path, "tiny", "other", "--scale", "smoke", "--seeds", "0")
    for name in ("tiny", "other"):
        used = read_experiment_record(tmp_path / "results", name, "smoke").columns
        (ditto,) = next(iter(used.values())).runs["ditto"].values()
        assert ditto.settings == {"train.batch_size": 7, **best["settings"]}
    text = document_text(tmp_path / "results", "smoke")
    assert "tuned on 10:90, seeds 100: " in text
    assert f"`lam = {best['settings']['lam']}`" in text
    refused = run(tmp_path, "tune", "tiny", "--scale", "smoke", "--seeds", "3-4", code=2)
    assert "seeds from 100 on" in refused.stderr


def test_a_point_of_the_grid_that_fails_is_not_chosen(tiny, tmp_path):
    def set_factors(factors):
        path = tmp_path / "experiments/common.toml"
        path.write_text(re.sub("lr_factors = .*", f"lr_factors = {factors}", path.read_text()))
        experiments.read_common.cache_clear()

    set_factors([1.0, 1e38])
    done = run(tmp_path, "tune", "tiny", "--scale", "smoke")
    assert done.stderr.count("not chosen: ") == 3, "two points of Ditto, one of FedAvg"
    chosen = json.loads((tmp_path / "results/tiny/smoke-tuning.json").read_text())["methods"]
    assert chosen["fedavg"]["chosen"]["train.lr"] == 0.1
    # Nothing is left of a method if all its points fail.
    set_factors([1e38])
    done = run(tmp_path, "tune", "tiny", "--scale", "smoke", code=1)
    assert done.stderr.count("error: ") == 3


def test_some_methods_can_be_tuned_again(tiny, tmp_path):
    path = tmp_path / "results/tiny/smoke-tuning.json"
    run(tmp_path, "tune", "tiny", "--scale", "smoke")
    found = json.loads(path.read_text())
    forgotten = {label: entry | {"chosen": None, "grid": []} for label, entry in found["methods"].items()}
    path.write_text(json.dumps(found | {"methods": forgotten}))
    run(tmp_path, "tune", "tiny", "--scale", "smoke", "--methods", "ditto")
    again = json.loads(path.read_text())["methods"]
    assert again == forgotten | {"ditto": found["methods"]["ditto"]}
    refused = run(tmp_path, "tune", "tiny", "--scale", "smoke", "--seeds", "2", "--methods", "ditto", code=2)
    assert "were tuned on seeds [100]" in refused.stderr
    refused = run(tmp_path, "tune", "tiny", "--scale", "smoke", "--methods", "dito", code=2)
    assert "unknown method to tune 'dito'" in refused.stderr
    assert "ditto" in refused.stderr


def test_the_document_has_ours_beside_the_printed_numbers(tiny, tmp_path):
    run(tmp_path, "tiny", "--scale", "smoke", "--seeds", "2")
    document = tmp_path / "results.md"
    document.write_text(f"before\n{BEGIN_MARK}\nold\n{END_MARK}\nafter\n")
    command("tables", "--results", str(tmp_path / "results"), "--document", str(document), "--scale", "smoke")
    text = document.read_text()
    assert text.startswith(f"before\n{BEGIN_MARK}\n\nWhat stands first.")
    assert text.endswith(f"{END_MARK}\nafter\n")
    assert "old" not in text
    assert "| 85.8 ± 4.8 |" in text
    assert "| ditto | 2 | " in text
    assert re.search(r"^- accuracy, %: ditto: \*?\*?[12] of 2.* against FedAvg$", text, re.M)
    assert re.search(r"^\| \[tiny\]\(#tiny\) \| 10:90 \| accuracy, % \| .* against FedAvg \|$", text, re.M)
    assert "No result is committed yet (`ipfl reproduce other`)." in text
    assert (tmp_path / "img/reproduce/tiny-10-90-ablation.png").exists()
    command("tables", "--document", str(tmp_path / "none.md"), code=2)
    rows = command("list", "--out", str(tmp_path / "results")).stdout.splitlines()
    assert [row.split()[-3:] for row in rows if " tiny " in row] == [["smoke:", "2", "seeds"]]
    assert [row.split()[-1] for row in rows if " other " in row] == ["–"]


def test_the_committed_document_is_what_the_generator_makes(tmp_path, monkeypatch):
    # Which pictures there are is compared; to draw them all takes most of a minute, and others draw some.
    monkeypatch.setattr("ipfl.reproduce.pictures.make_figure", lambda figure, shown: None)
    monkeypatch.setattr("ipfl.figure_style.save_figure", lambda figure, file: None)
    document = tmp_path / "results.md"
    document.write_text((ROOT / "docs/results.md").read_text())
    for file in write_document(document, ROOT / "experiments/results", "cpu"):
        assert (ROOT / "docs" / file.relative_to(tmp_path)).exists(), f"{file.name}: run `make tables`"
    assert document.read_text() == (ROOT / "docs/results.md").read_text(), "run `make tables`"


@pytest.mark.parametrize("arguments", [["nothing"], ["drift", "--seeds", "x"], ["drift", "--seeds", "5-1"]])
def test_bad_input_is_one_line(arguments, tmp_path):
    done = run(tmp_path, *arguments, code=2)
    assert len(done.stderr.splitlines()) == 1


def test_clients_leave_when_the_reference_is_better(tiny, tmp_path):
    run(tmp_path, "leaving", "--scale", "smoke")
    before = run_folders(tmp_path)
    record = read_experiment_record(tmp_path / "results", "leaving", "smoke")
    runs = record.columns[""].runs
    assert runs["fedavg"][0].left == 0
    assert runs["ditto:lam=1000"][0].left > 0, "held so near to the global model, it is no better on goal"
    run(tmp_path, "leaving", "--scale", "smoke", "--seeds", "0,1")
    assert len(run_folders(tmp_path)) == 2 * len(before)


@pytest.mark.slow
def test_an_experiment_of_the_paper(tmp_path):
    run(tmp_path, "joining-clients", "--scale", "smoke", "--seeds", "0")
    record = read_experiment_record(tmp_path / "results", "joining-clients", "smoke")
    assert not record.failures
    # Six clients, of which a fifth joins in round 1: round(1.2) = 1.
    (fedavg,) = record.columns["10:90"].runs["fedavg"].values()
    assert [point[3] for point in fedavg.curve] == [5, 6]
