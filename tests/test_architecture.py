"""docs/architecture.md: its packages, layers, files, names and walks are those of the code."""

import ast
import dataclasses
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from tests.reproduce.small_experiment import write_experiments
from tests.test_docs import ROOT, SOURCE, section, text
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app
from ipfl.core import Record
from ipfl.market.market_rows import Bid
from ipfl.reproduce import experiments
from ipfl.reproduce.paper_tables import BEGIN_MARK, END_MARK

PAGE = "docs/architecture.md"


def defined_names(path):
    """Names that a file, or the files of a folder, define: functions, classes, constants, `Class.member`."""
    found = set()
    for file in [path] if path.is_file() else path.glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            found |= set(_names_of(node))
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                found |= {f"{node.name}.{name}" for name in _names_of(member)}
    return found


def _names_of(node):
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def code_of(part):
    """(file or folder, names) of every "`file`: `name`, `name`" in a part of a document."""
    path, name = r"`((?:\w+/)*(?:\w+/|\w+\.py))`", r"`[\w.]+`"
    found = re.findall(rf"{path}: ({name}(?:, {name})*)", re.sub(r"\n *", " ", part))
    return [(file, re.findall(r"[\w.]+", names)) for file, names in found]


def is_part_of(wanted, value, depth=5):
    """Whether a value is one that is wanted, or has one among its items or fields."""
    if wanted(value):
        return True
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    elif isinstance(value, dict):
        parts = [*value.values()]
    else:
        parts = value if isinstance(value, list | tuple) else []
    return depth > 0 and any(is_part_of(wanted, part, depth - 1) for part in parts)


class Trace:
    """Files and functions of ours that are called, all of them or those that have something in hand."""

    def __init__(self, wanted=None, within=None, until=None):
        """Only while `within` runs, and until `until` has returned with something that is wanted."""
        self.wanted, self.within, self.until = wanted, within, until
        self.found, self.depth = set(), 0

    def __enter__(self):
        sys.setprofile(self.note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def note(self, frame, event, returned):
        code = frame.f_code
        if not code.co_filename.startswith(f"{SOURCE}/") or event not in ("call", "return"):
            return
        name = code.co_qualname
        if name == self.within:
            self.depth += 1 if event == "call" else -1
        if self.within is None or self.depth or name == self.within:
            sys.setprofile(None)
            if self.wanted is None or self.is_in_hand(frame, event, returned):
                self.found.add((str(Path(code.co_filename).relative_to(SOURCE)), name))
            sys.setprofile(self.note)
        if name == self.until and event == "return" and any(name == seen for _, seen in self.found):
            sys.setprofile(None)

    def is_in_hand(self, frame, event, returned):
        """Whether one of the arguments, or what is returned, is or holds what is wanted."""
        if event == "return":
            return is_part_of(self.wanted, returned)
        code = frame.f_code
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return any(is_part_of(self.wanted, frame.f_locals.get(name)) for name in arguments if name != "self")


def is_bid(value):
    return isinstance(value, Bid) or (isinstance(value, Record) and "bids" in value.facts)


def play(method, place, trace):
    task = ipfl.Task.load(clients=6, samples=20, model="softmax")
    with trace:
        engine = ipfl.local_engine(workers=0)
        ipfl.run(task, ipfl.method(method), ipfl.RunConfig(rounds=2), engine=engine, out=place)
    return trace.found


def trace_a_bid(place):
    return play("ipfl-plus", place / "run", Trace(wanted=is_bid, until="RunStore.commit_round"))


def trace_a_training(place):
    return play("fedavg", place / "run", Trace(within="drive"))


def trace_a_table(place):
    """Of a small experiment that is played and written down."""
    folder, document = write_experiments(place / "experiments"), place / "results.md"
    experiments.experiments_folder = lambda: folder
    document.write_text(f"{BEGIN_MARK}\n{END_MARK}\n")
    results = ["--scale", "smoke", "--out", str(place / "results"), "--runs", str(place / "runs")]
    table = ["--scale", "smoke", "--results", str(place / "results"), "--document", str(document)]
    with Trace() as trace:
        for command in (["tiny", *results, "--seeds", "2", "--workers", "0", "--quiet"], ["tables", *table]):
            assert CliRunner().invoke(app, ["reproduce", *command]).exit_code == 0
    return trace.found


def in_a_fresh_process(trace, place):
    """What a trace finds where no other test has loaded anything that switches profile functions off."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(trace, place).result()


class TestPackages:
    def test_the_table_shows_the_packages_of_the_source_tree(self):
        told = re.findall(r"^\| `(\w+)/` \|", section(PAGE, "The packages"), re.M)
        assert sorted(told) == sorted(file.parent.name for file in SOURCE.glob("*/__init__.py"))

    def test_layers_are_those_of_the_linter(self):
        (layers,) = re.findall(r"^layers = \[\n(.*?)^\]", text("pyproject.toml"), re.M | re.S)
        (shown,) = re.findall(r"```text\n(.*?)```", section(PAGE, "The packages"), re.S)
        assert shown.splitlines() == re.findall(r'"(.*)"', layers.replace("ipfl.", ""))


class TestNames:
    def test_files_that_are_named_exist(self):
        named = re.findall(r"`((?:\w+/)*(?:\w+/|\w+\.(?:py|md|toml)))`", text(PAGE))
        assert len(named) > 100
        for name in named:
            assert (SOURCE / name).exists() or (ROOT / name).exists(), name

    def test_names_exist_in_the_files_that_are_named(self):
        named = code_of(text(PAGE))
        assert sum(len(names) for _, names in named) > 80
        for file, names in named:
            assert not set(names) - defined_names(SOURCE / file), file


class TestWalks:
    """Every file on the way has its row, and the functions that a row names are called."""

    def rows(self, heading):
        table = re.findall(r"^\| \d+ \| .*?\|", section(PAGE, heading), re.M)
        steps = code_of("\n".join(table))
        assert len(steps) == len(table) == len({file for file, _ in steps})
        return dict(steps)

    @pytest.mark.parametrize(
        ("heading", "trace"),
        [("The walk of a bid", trace_a_bid), ("The walk of a training", trace_a_training)],
    )
    def test_of_a_round(self, heading, trace, tmp_path):
        rows, found = self.rows(heading), in_a_fresh_process(trace, tmp_path)
        assert {*rows} == {file for file, _ in found}
        assert {(file, name) for file, names in rows.items() for name in names} <= found

    def test_a_bid_crosses_few_files(self):
        assert len(self.rows("The walk of a bid")) <= 18

    def test_of_a_table(self, tmp_path):
        rows, found = self.rows("The walk of a table"), in_a_fresh_process(trace_a_table, tmp_path)
        assert {(file, name) for file, names in rows.items() for name in names} <= found
        ours = {file for file, _ in found if file.split("/")[0] in ("reproduce", "study")}
        beside = {"reproduce/pictures.py", "study/method_labels.py", "study/run_processes.py"}
        assert ours - beside <= {*rows}
