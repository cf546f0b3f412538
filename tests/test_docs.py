"""The documents say what is there: all hyper-parameters, keys and files, and nothing that is gone."""

import ast
import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import typer
from safetensors import safe_open
from tests.template import TEMPLATE
from typer.testing import CliRunner

import ipfl
from ipfl.cli import app
from ipfl.config.whole_config import Config
from ipfl.market.market_rows import ROW_TYPES
from ipfl.methods import METHODS, method_fields

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/ipfl"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
COMMANDS_OF_TRAINING = re.findall(r"^\$ (ipfl run .*)$", (ROOT / "docs/training.md").read_text(), re.M)
SMALL = ["--set", "task.clients=8", "--set", "task.model=softmax", "--workers", "0", "--quiet"]


def text(name):
    return (ROOT / name).read_text()


def section(document, heading):
    """What stands under a heading, up to the next one of any depth."""
    (found,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text(document), re.M | re.S)
    return found


def first_column(part):
    """The names in the first column of the tables in a part of a document."""
    return re.findall(r"^\| `([\w-]+)` \|", part, re.M)


def listed(part):
    """The names that the lines of a list begin with."""
    lines = re.findall(r"^- (`[^:]+`):", part, re.M)
    return [name for line in lines for name in re.findall(r"`([^`]+)`", line)]


def named(part):
    """The names in a part of a document."""
    return {*re.findall(r"`(\w+)`", part)}


def invoke(*arguments):
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with `runs/mine`, as in the documents but small, and a comparison in `runs/compare`.

    Also `runs/printed`, of the paper's method.
    """
    folder = tmp_path_factory.mktemp("docs")
    invoke("run", *SMALL, "--rounds", "5", "--out", str(folder / "runs/mine"))
    invoke("run", *SMALL, "--rounds", "2", "--method", "ipfl", "--out", str(folder / "runs/printed"))
    invoke(
        "compare", *SMALL, "--set", "rounds=1", "--methods", "local", "--out", str(folder / "runs/compare")
    )
    return folder


@pytest.fixture(scope="module")
def summary(place):
    return json.loads((place / "runs/mine/summary.json").read_text())


@pytest.fixture(scope="module")
def lines(place):
    return [json.loads(line) for line in (place / "runs/mine/metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def compared(place):
    return json.loads((place / "runs/compare/compare.json").read_text())


class TestGuide:
    def test_every_hyperparameter_has_its_advice_once(self):
        assert first_column(section("docs/ipfl.md", "Settings of `ipfl`")) == [*method_fields("ipfl")]

    def test_it_is_short(self):
        assert len(text("docs/ipfl.md").split()) <= 1500

    def test_kinds_of_transfers(self):
        from ipfl.market.market_rows import TransferKind

        told = set(first_column(section("docs/ipfl.md", "Accounts")))
        assert told == {*get_args(TransferKind)} - {"open"}  # the text says why: it is in no line

    def test_numbers_of_accounts(self):
        from ipfl.market.bank import account_name

        said = section("docs/ipfl.md", "Accounts").replace("−", "-").replace("\n", " ")
        assert "-1 is the issuer; -2, -4, -6, … are the escrows" in said
        assert "-3, -5, -7, … their pools" in said
        assert account_name(-1) == "issuer"
        assert [account_name(a) for a in (-2, -4, -6)] == ["escrow 0", "escrow 1", "escrow 2"]
        assert [account_name(a) for a in (-3, -5, -7)] == ["pool 0", "pool 1", "pool 2"]


class TestLedger:
    def test_the_worked_example(self, tmp_path, monkeypatch):
        """Its commands run as they stand, on a smaller task, and print what is shown, but for the numbers."""
        monkeypatch.chdir(tmp_path)
        part = section("docs/ledger.md", "A worked example")
        printed = []
        for line in "".join(re.findall(r"```console\n(.*?)```", part, re.S)).splitlines():
            command, _, file = line.removeprefix("$ ipfl ").partition(" > ")
            if "HASH" in command:
                command = command.replace("HASH", re.search(r"hash (\w+)", "".join(printed))[1])
            words = shlex.split(command)
            done = CliRunner().invoke(app, [*words, *(SMALL if words[0] == "run" else ())])
            assert done.exit_code == 0, done.output
            printed.append(done.stdout)
            if file:
                Path(file).write_text(done.stdout)
        shown = "".join(re.findall(r"```text\n(.*?)```", part, re.S)).splitlines()
        for line in shown[:-1]:
            pattern = re.escape(line).replace("…", r"\w+")
            pattern = re.sub(r"\b(\d+)(?=\\? (files|tokens))", r"\\d+", pattern)
            pattern = re.sub(r"[0-9a-f]{8}(?=\\w)", "", pattern)
            assert re.search(pattern, "".join(printed)), line
        # Who makes it say that is in tests/ledger/test_statements.py.
        assert shown[-1].startswith("error: the ledger of runs/mine denies this: it says ")

    def test_accounts_that_outlive_a_run(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (commands,) = re.findall(
            r"```console\n(.*?)```", section("docs/ledger.md", "Accounts that outlive a run"), re.S
        )
        for line in commands.splitlines():
            invoke(*shlex.split(line.removeprefix("$ ipfl ")), *SMALL, "--set", "rounds=1")
        invoke("ledger", "verify", "runs/tuesday")
        assert json.loads((tmp_path / "runs/club.accounts.json").read_text())["run"] == "tuesday"


class TestCommands:
    def test_they_run_as_they_stand(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        commands = "".join(re.findall(r"```console\n(.*?)```", text("docs/commands.md"), re.S)).splitlines()
        assert len(commands) >= 8
        for line in commands:
            command, _, file = line.removeprefix("$ ipfl ").partition("#")[0].partition(">")
            words = shlex.split(command)
            fast = ["--workers", "0", "--quiet"] if words[0] == "run" else []
            fast += ["--set", "task.model=softmax"] if fast and "--resume" not in words else []
            done = CliRunner().invoke(app, [*words, *fast])
            assert done.exit_code == 0, done.output
            if file:
                assert json.loads(done.stdout)["summary"]["rounds"] == 3
        assert list(Path("runs/tensorboard/three").glob("*tfevents*"))

    def test_every_command_is_told(self):
        """Of those that look at runs or begin something; the others have documents of their own."""
        for name in ("list", "show", "new", "run"):
            assert f"ipfl {name} " in text("docs/commands.md")


class TestFiles:
    def test_summary(self, place, summary):
        told = section("docs/files.md", "summary.json")
        assert {*listed(told)} <= {*summary} <= named(told)
        told = section("docs/files.md", "report of ipfl")
        printed = json.loads((place / "runs/printed/summary.json").read_text())["report"]
        assert {*summary["report"], *printed} <= named(told)

    def test_metrics(self, lines):
        told = listed(section("docs/files.md", "metrics.jsonl"))
        assert sorted(told) == sorted({key for line in lines for key in line})
        assert named(section("docs/files.md", "evaluation")) == {*lines[-1]["evaluation"]}

    def test_comparison(self, compared):
        assert {*compared} <= named(section("docs/files.md", "compare.json"))
        for one in compared["methods"].values():
            assert named(section("docs/files.md", "methods of compare.json")) == {*one, "std"}

    def test_files_of_a_run(self, place):
        """The default method's run, and a short one of a method that keeps models of single clients."""
        told = listed(section("docs/files.md", "The files of a run"))
        fedfomo = place / "runs/fedfomo"
        invoke("run", *SMALL, "--set", "rounds=1", "--set", "method.name=fedfomo", "--out", str(fedfomo))
        found = [
            str(file.relative_to(run))
            for run in (place / "runs/mine", fedfomo)
            for file in run.rglob("*")
            if file.is_file()
        ]
        general = (
            (r"^model/.*\.", "model/*."),
            (r"/(round|vectors)-\d+", r"/\1-R"),
            (r"^(memory|client_models)/\d+/\d+", r"\1/N/R"),
        )
        for pattern, stands_for in general:
            found = [re.sub(pattern, stands_for, file) for file in found]
        assert set(found) == set(told)

    def test_files_of_a_comparison(self, place):
        said = section("docs/files.md", "compare.json")
        for file in (place / "runs/compare").iterdir():
            assert file.is_dir() or f"`{file.name}`" in said, file.name

    def test_facts_in_the_offer(self, place):
        for run in ("mine", "printed"):
            with safe_open(place / f"runs/{run}/offer.safetensors", framework="numpy") as opened:
                facts = json.loads(opened.metadata()["facts"])
            assert facts
            for key in facts:
                assert f"`{key}`" in section("docs/files.md", "Model files")

    def test_rows_of_metrics(self):
        """The fields of every kind of row, in their order, wherever a table shows them."""
        told = {
            (key, tuple(fields.split(", ")))
            for document in ("docs/files.md", "docs/ipfl.md")
            for key, fields in re.findall(r"^(?:\| |- )`(\w+)`(?: \||:) `\[([^`]+)\]`", text(document), re.M)
            if key in ROW_TYPES
        }
        letters = {"ψ": "psi", "Ω": "omega"}
        named = {(key, tuple(letters.get(field, field) for field in fields)) for key, fields in told}
        figures = {"accuracy": "value", "share": "value"}
        for key, fields in named:
            assert tuple(figures.get(field, field) for field in fields) == ROW_TYPES[key]._fields, key
        assert {key for key, _ in named} == set(ROW_TYPES)

    def test_kinds_of_events(self):
        """All kinds of the code."""
        calls = [
            node
            for file in SOURCE.rglob("*.py")
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith(("Event", "_add_event", "_leave_out"))
        ]
        kinds = {
            part.value
            for call in calls
            if call.args and not isinstance(call.args[0], ast.Name)
            for part in ast.walk(call.args[0])
            if isinstance(part, ast.Constant)
        }
        assert named(section("docs/files.md", "events")) == kinds


@pytest.fixture(scope="module")
def training_folder(tmp_path_factory):
    """A folder with the `mine.py` of docs/training.md."""
    folder = tmp_path_factory.mktemp("training")
    mine, *_ = re.findall(r"```python\n(.*?)```", text("docs/training.md"), re.S)
    (folder / "mine.py").write_text(mine)
    return folder


class TestTraining:
    """The examples of docs/training.md, small: every option of the training is tried out."""

    @pytest.mark.parametrize(
        "command", [line for line in COMMANDS_OF_TRAINING if "hf:" not in line and "cifar10" not in line]
    )
    def test_commands_run(self, command, training_folder, monkeypatch, tmp_path):
        monkeypatch.chdir(training_folder)
        _, *words = shlex.split(command)
        short = ["--set", "rounds=1", "--set", "method.name=fedavg", "--out", str(tmp_path / "run")]
        invoke(*words, *SMALL, *short)

    def test_flip_crop_runs(self):
        """The command needs a data set that is not here; the option is tried on another one."""
        task = ipfl.Task.load(clients=2, samples=10, model="softmax")
        config = ipfl.RunConfig(rounds=1, train=ipfl.TrainConfig(augment="flip_crop"))
        result = ipfl.run(task, ipfl.method("fedavg"), config, engine=ipfl.local_engine(workers=0))
        assert result.summary["config"]["train"]["augment"] == "flip_crop"

    def test_python_examples_run(self, capsys):
        _, *examples = re.findall(r"```python\n(.*?)```", text("docs/training.md"), re.S)
        for example in examples:
            exec(example.replace("ipfl.RunConfig(rounds=10", "ipfl.RunConfig(rounds=3"), {})
        (mae,) = capsys.readouterr().out.splitlines()
        assert float(mae.split()[0]) < 100

    def test_metrics_are_in_the_summary(self, training_folder, monkeypatch):
        folder = training_folder
        monkeypatch.chdir(folder)
        (settings,) = re.findall(r"```toml\n(.*?)```", text("docs/training.md"), re.S)
        (folder / "metrics.toml").write_text(settings)
        invoke("run", "metrics.toml", *SMALL, "--set", "task.clients=6", "--out", "runs/metrics")
        summary = json.loads((folder / "runs/metrics/summary.json").read_text())
        names = Config.load(folder / "metrics.toml").evaluate.metrics
        assert set(summary["metrics"]) == set(names) == set(summary["metrics_per_client"])
        assert set(summary["metrics_per_client"]["macro_f1"]) == {str(client) for client in range(6)}

    def test_tables_name_what_is_there(self):
        from ipfl.client.prediction_metrics import METRICS
        from ipfl.training.architectures import MODELS

        assert first_column(section("docs/training.md", "Metrics")) == list(METRICS)
        assert set(first_column(section("docs/training.md", "Models"))) == set(MODELS) - {"auto"}


class TestMethods:
    def test_every_method_has_its_row(self):
        assert sorted(first_column(text("docs/methods.md"))) == sorted(METHODS)


class TestAll:
    def test_paths_that_are_named_exist(self):
        for document in DOCUMENTS:
            for name in re.findall(
                r"`((?:src|tests|docs|experiments|benchmarks)/[^`*]*)`", document.read_text()
            ):
                if name != "src/ipfl/methods/finetuned.py":  # what CONTRIBUTING.md teaches to write
                    assert (ROOT / name).exists(), f"{document.name}: {name}"

    @pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
    def test_commands_could_be_typed(self, document):
        """Options exist, settings are valid, variants can be built; make targets are there."""
        targets = re.search(r"^\.PHONY: (.+)$", text("Makefile"), re.M)[1].split()
        for block in re.findall(r"```console\n(.*?)```", document.read_text(), re.S):
            for line in block.splitlines():
                program, *words = shlex.split(line.removeprefix("$ ").split(">")[0], comments=True)
                if program == "make":
                    assert words[0] in targets
                elif (
                    program == "ipfl" and TEMPLATE not in line
                ):  # `tests/test_api.py` runs the template's own
                    check(words)

    def test_in_text_commands_could_be_typed(self):
        pattern = re.compile(r"`ipfl ((?:run|compare|data) [^`…]*)`")
        commands = [found for document in DOCUMENTS for found in pattern.findall(document.read_text())]
        assert len(commands) > 10
        for command in commands:
            if TEMPLATE not in command:
                check(shlex.split(command.replace("DIR", "runs/dir")))


@cache
def command_line():
    """Made of the signatures of all commands, which takes 50 ms."""
    return typer.main.get_command(app)


def check(words):
    """Parses a command as the command line would, and builds what it would run."""
    name, *rest = words
    context = command_line().commands[name].make_context(name, rest)
    if name in ("run", "compare"):
        config = Config.load(None, context.params["sets"] or ())
        wanted = context.params.get("methods")
        config.build_methods(wanted.split(",") if wanted else [config.method.name])
