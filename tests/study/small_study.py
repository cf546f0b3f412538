"""A comparison that takes a second, its contents for comparing two of them, and observers that note runs."""

import json

from tests.play.killed_runs import run_contents

from ipfl.config.whole_config import Config
from ipfl.keep.file_names import COMPARISON_FILE
from ipfl.methods import DEFAULT, METHODS, REFERENCE

OTHERS = [name for name in METHODS if name not in (REFERENCE, DEFAULT)][:2]


def config(*sets):
    tiny = ["rounds=2", "task.model=softmax", "task.clients=4", "evaluate.every=1"]
    return Config.load(None, [*tiny, *sets])


def figures(folder):
    """`compare.json` without the times."""
    compared = json.loads((folder / COMPARISON_FILE).read_text())
    for entry in compared["methods"].values():
        for one in (entry, *entry["seeds"].values()):
            del one["seconds_per_round"], one["last_step_seconds"]
    return compared


def contents(folder):
    """All that must be equal of a comparison: its runs, and its figures as text, so in the same order."""
    runs = sorted(path.parent for path in folder.glob("*/seed-*/summary.json"))
    return json.dumps(figures(folder)), {str(run.relative_to(folder)): run_contents(run) for run in runs}


class Log:
    """Makes observers that note runs; that of the run `stop_in` presses Ctrl-C after the first round."""

    def __init__(self, stop_in=None):
        self.begun, self.told, self.stop_in = [], {}, stop_in

    def __call__(self, label, number, total):
        self.begun.append((label, number, total))
        return Noting(self.told.setdefault(label, []), self.stop_in in (label, number))


class Noting:
    def __init__(self, told, stops):
        self.told, self.stops = told, stops

    def start(self, method, rounds):
        self.told.append(("start", method, rounds))

    def round(self, line):
        self.told.append(("round", line["round"]))
        if self.stops:
            raise KeyboardInterrupt

    def finish(self):
        self.told.append(("finish",))
