"""Names in src/ipfl: a name at the top of a module means one thing in the whole package."""

import ast
from collections import defaultdict
from pathlib import Path

import ipfl

PACKAGE = Path(ipfl.__file__).parent

SAME_MEANING = {
    # A limit of the module's own, with the same meaning everywhere.
    "EXIT_SECONDS": "how long a process may take to end by itself",
    "LOCK_SECONDS": "how long a lock is waited for",
    "MAX_CLASSES": "classes of a task at most; the command line repeats it, as flwr takes long to import",
    "MAX_EVENTS": "events that are shown",
    "POLL_SECONDS": "time between two looks whether something has happened",
    # A command, a page or a route of the API is called like the function that does its work.
    "compare": "several methods on the same task",
    "list_clients": "the clients of a run",
    "list_runs": "the runs of a folder",
    "run": "one method on one task",
    "tune": "every method of an experiment on the same grid",
    "verify": "checks a run",
    # What frameworks look for.
    "app": "Typer, Flower and FastAPI",
    "main": "entry points",
    "router": "FastAPI",
    # Type variables, and functions of one module that have a twin in another.
    "S": "a method's state",
    "_play": "plays a run in a process of its own",
    "_run_folders": "folders with a run in them",
}


def names_of(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {
                name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
            }
    return {name for name in found if not name.startswith("__")}


def test_a_name_at_the_top_of_a_module_means_one_thing():
    modules = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for name in names_of(ast.parse(path.read_text())):
            modules[name].add(str(path.relative_to(PACKAGE)))
    assert len(modules) > 1000
    twice = {name: sorted(found) for name, found in modules.items() if len(found) > 1}
    assert {name: found for name, found in twice.items() if name not in SAME_MEANING} == {}
    assert SAME_MEANING.keys() - twice.keys() == set()  # nothing is excused for good


def test_names_of_a_module():
    text = "A, B = 1, 2\nC: int = 3\n__all__ = []\ndef d():\n    E = 4\nclass F:\n    g = 5\n"
    assert names_of(ast.parse(text)) == {"A", "B", "C", "d", "F"}
