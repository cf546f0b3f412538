"""The walk of a table in docs/architecture.md is the one that a table takes."""

import re
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.reproduce.small_experiment import write_experiments
from tests.test_docs import SOURCE, code_of, section
from typer.testing import CliRunner

from ipfl.cli import app
from ipfl.reproduce import experiments
from ipfl.reproduce.paper_tables import BEGIN_MARK, END_MARK


def called_functions(place: Path) -> set[tuple[str, str]]:
    """Files and functions of ours that a small experiment and its table call."""
    called = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(f"{SOURCE}/"):
            called.add((str(Path(frame.f_code.co_filename).relative_to(SOURCE)), frame.f_code.co_qualname))

    folder, document = write_experiments(place / "experiments"), place / "results.md"
    experiments.experiments_folder = lambda: folder
    document.write_text(f"{BEGIN_MARK}\n{END_MARK}\n")
    results = ["--scale", "smoke", "--out", str(place / "results"), "--runs", str(place / "runs")]
    table = ["--scale", "smoke", "--results", str(place / "results"), "--document", str(document)]
    sys.setprofile(note)
    try:
        for command in (["tiny", *results, "--seeds", "2", "--workers", "0", "--quiet"], ["tables", *table]):
            assert CliRunner().invoke(app, ["reproduce", *command]).exit_code == 0
    finally:
        sys.setprofile(None)
    return called


def test_the_walk_of_a_table_is_what_the_code_does(tmp_path):
    part = section("docs/architecture.md", "The walk of a table")
    steps = code_of("\n".join(re.findall(r"^\| \d+ \| .*?\|", part, re.M)))
    files = [file for file, _ in steps]
    assert len(files) == len(set(files))
    assert f": {len(files)} files," in part
    # A process of its own: what other tests have loaded may switch profile functions off.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        called = pool.submit(called_functions, tmp_path).result()
    assert {(file, name) for file, names in steps for name in names} <= called
    ours = {file for file, _ in called if file.split("/")[0] in ("reproduce", "study")}
    beside = {"reproduce/pictures.py", "study/method_labels.py", "study/run_processes.py"}
    assert ours - beside <= set(files)
