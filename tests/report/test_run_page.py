"""Runs read back from folders, and the page about them."""

import json
import re
import shutil

import pytest
from tests.html_pages import Checker
from tests.small_runs import SMALL
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app
from ipfl.errors import InputError
from ipfl.play.metrics import mean_and_std
from ipfl.report.figure_list import available_figures
from ipfl.report.run_page import write_page
from ipfl.report.run_set import find_results, read_run_set
from ipfl.study.comparison import compare


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A comparison of two methods with two seeds, in a folder of results."""
    folder = tmp_path_factory.mktemp("results")
    config = ipfl.Config(rounds=4, task=ipfl.TaskConfig(**SMALL), evaluate=ipfl.EvaluateConfig(every=2))
    done = compare(config, ["ipfl-plus", "fedavg"], [0, 1], out=folder / "small", workers=0)
    return folder, done


class TestReading:
    def test_what_is_read_is_what_was_run(self, place):
        folder, done = place
        read = read_run_set(folder / "small")
        assert list(read.runs) == list(done.entries) == ["ipfl-plus", "fedavg"]
        assert read.reference == "fedavg"
        for name, entry in done.entries.items():
            for seed, run in entry.results.items():
                assert read.runs[name][seed].evaluations == run.evaluations
                again = read.runs[name][seed].history
                assert json.dumps(again, sort_keys=True) == json.dumps(run.history, sort_keys=True)
                gains = read.pma(name).get(seed)
                assert (None if gains is None else mean_and_std(gains)) == run.summary["pma"]
        assert "pma" in available_figures(read)

    def test_a_single_run(self, place):
        """Without a reference nobody gains over it."""
        read = read_run_set(place[0] / "small/ipfl-plus/seed-1")
        assert {name: list(seeds) for name, seeds in read.runs.items()} == {"ipfl-plus": [1]}
        assert read.pma("ipfl-plus") == {}

    def test_folders(self, place):
        folder = place[0]
        assert find_results(folder) == [folder / "small"]
        assert find_results(folder / "small/ipfl-plus") == [
            folder / "small/ipfl-plus/seed-0",
            folder / "small/ipfl-plus/seed-1",
        ]

    @pytest.mark.parametrize(
        ("file", "damage"),
        [
            ("summary.json", "{"),
            ("summary.json", "[]"),
            ("summary.json", '{"method": 3}'),
            ("metrics.jsonl", "nonsense\n"),
            ("metrics.jsonl", "[1]\n"),
            ("metrics.jsonl", '{"round": 0, "bids": [[1]]}\n'),
            ("metrics.jsonl", '{"round": 0, "evaluation": {"clients": [1], "personalized": ["x"]}}\n'),
        ],
    )
    def test_damaged_files_are_refused(self, place, tmp_path, file, damage):
        shutil.copytree(place[0] / "small/ipfl-plus/seed-0", tmp_path / "run")
        (tmp_path / "run" / file).write_text(damage)
        with pytest.raises(InputError):
            read_run_set(tmp_path / "run")


@pytest.fixture(scope="module")
def page(place, tmp_path_factory):
    """Of a copy whose names are hostile."""
    folder = tmp_path_factory.mktemp("page") / "<script>alert(1)</script>"
    shutil.copytree(place[0] / "small", folder)
    summary = json.loads((folder / "ipfl-plus/seed-0/summary.json").read_text())
    summary["config"]["method"]["name"] = "</pre><img src=x>"
    summary["dataset"] = "<i>digits"
    (folder / "ipfl-plus/seed-0/summary.json").write_text(json.dumps(summary))
    (folder / "ipfl-plus").rename(folder / "<b>ipfl&")
    file = folder.parent / "page.html"
    done = CliRunner().invoke(app, ["report", str(folder), "--out", str(file)])
    assert done.exit_code == 0, done.output
    assert done.output.strip() == str(file)
    return file.read_text()


class TestPage:
    def test_is_whole_loads_nothing_and_escapes_everything(self, page):
        checker = Checker()
        checker.feed(page)
        assert checker.open == []
        assert checker.loaded == []
        assert len(checker.ids) == len(set(checker.ids))
        assert {"script", "img", "i", "b"}.isdisjoint(checker.tags)
        assert "default-src 'none'" in page
        assert "http" not in re.sub(r'http://www\.w3\.org/\S+?"|http-equiv', "", page)

    def test_holds_figures_tables_tokens_and_config(self, page):
        assert page.count("<svg") >= 8
        assert "&lt;b&gt;ipfl&amp;" in page
        for text in (
            "opt-outs",
            "own model %",
            "rounds = 4",
            "What clients gain over fedavg",
            "reference",
        ):
            assert text in page, text
        assert page.count("<title>") > 10  # values under the mouse

    def test_commands_refuse_what_is_no_run(self, tmp_path):
        for command, folder in (("report", tmp_path), ("report", tmp_path / "absent"), ("plot", tmp_path)):
            done = CliRunner().invoke(app, [command, str(folder)])
            assert done.exit_code == 2
            assert done.stderr.count("\n") == 1

    def test_several_results_are_sections(self, place, tmp_path):
        page = write_page(place[0] / "small/ipfl-plus", tmp_path / "new/page.html").read_text()
        assert re.findall(r'<a href="#(part-\d)">(.*?)</a>', page) == [
            ("part-0", "seed-0"),
            ("part-1", "seed-1"),
        ]
        checker = Checker()
        checker.feed(page)
        assert len(checker.ids) == len(set(checker.ids))

    @pytest.mark.parametrize(("command", "out"), [("plot", "figures"), ("plot", "."), ("report", "a.html")])
    def test_nothing_is_written_into_a_run(self, place, command, out):
        run = place[0] / "small/ipfl-plus/seed-0"
        done = CliRunner().invoke(app, [command, str(run), "--out", str(run / out)])
        assert done.exit_code == 2
        assert "only what the run wrote" in done.output

    def test_plot(self, place, tmp_path):
        run = str(place[0] / "small/ipfl-plus/seed-0")
        done = CliRunner().invoke(
            app, ["plot", run, "--figure", "tokens", "--out", str(tmp_path), "--format", "svg"]
        )
        assert done.exit_code == 0, done.output
        assert [file.name for file in tmp_path.iterdir()] == ["tokens.svg"]
