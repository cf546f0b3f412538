"""The page about the results of experiments."""

import pytest
from tests.html_pages import Checker
from typer.testing import CliRunner

from ipfl.cli import app
from ipfl.reproduce.paper_page import experiment_files, inline_html


@pytest.fixture
def results(tiny, tmp_path):
    """Two experiments with a run of each method."""
    places = [
        "--out",
        str(tmp_path / "results"),
        "--runs",
        str(tmp_path / "runs"),
        "--workers",
        "0",
        "--quiet",
    ]
    command = ["reproduce", "tiny", "other", "--scale", "smoke", *places]
    assert CliRunner().invoke(app, command).exit_code == 0
    return tmp_path / "results"


def page(results, tmp_path):
    file = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(results), "--out", str(file)])
    assert done.exit_code == 0, done.output
    assert done.output.strip() == str(file)
    text = file.read_text()
    checker = Checker()
    checker.feed(text)
    assert checker.open == checker.loaded == []
    assert len(checker.ids) == len(set(checker.ids))
    return text


def test_all_experiments_of_a_folder(results, tmp_path):
    text = page(results, tmp_path)
    assert "What stands first." in text
    assert text.index('<section id="other">') < text.index('<section id="tiny">')
    assert '<a href="#tiny">tiny</a>' in text, "from the table of all tables"
    assert "The paper: Ditto is best." in text
    assert "<code>tab:tiny</code>" in text
    assert '<td class="number">85.8 ± 4.8</td>' in text, "the printed number"
    assert "Methods side by side" in text
    assert text.count("<svg") == 1, "one of the two has a figure"
    assert "clients = 4" in text, "the config"
    assert "nothing was tuned" in text


@pytest.mark.parametrize("place", ["tiny", "tiny/smoke.json"])
def test_one_experiment(results, tmp_path, place):
    text = page(results / place, tmp_path)
    assert "<h1>A tiny table</h1>" in text
    assert "<section" in text
    assert "another table" not in text.lower()


def test_the_largest_of_several_scales(results, tmp_path):
    smoke = results / "tiny/smoke.json"
    (results / "tiny/cpu.json").write_text(smoke.read_text().replace('"scale": "smoke"', '"scale": "cpu"'))
    text = page(results / "tiny", tmp_path)
    assert "Scale cpu: it is tiny." in text
    assert "Scale smoke" not in text


def test_what_is_not_of_an_experiment_is_refused_in_one_line(tmp_path):
    other = tmp_path / "else" / "cpu.json"
    other.parent.mkdir()
    other.write_text("{}")
    done = CliRunner().invoke(app, ["report", str(other)])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert experiment_files(tmp_path / "none") == []


def test_markdown_in_a_line():
    assert inline_html("`a < b`, **1 of 2**, *level*, 2 * 3 * 4") == (
        "<code>a &lt; b</code>, <strong>1 of 2</strong>, <em>level</em>, 2 * 3 * 4"
    )
    assert (
        inline_html("[here](#there) [away](https://there)")
        == '<a href="#there">here</a> [away](https://there)'
    )
