"""A comparison of two methods whose runs are made up, for tests of tables and plots."""

from __future__ import annotations

from ipfl.config.whole_config import Config
from ipfl.methods import REFERENCE
from ipfl.play.metrics import Evaluation
from ipfl.results.result import Result
from ipfl.study.comparison import Comparison, MethodRuns


def made_up_result(name, seed, by_round, reference=None):
    """A run whose evaluations are given: round → accuracy of clients 0, 1, ….

    10 rounds in 5 s make 0.5 s a round; 80 kB up over 10 rounds and 4 clients make 2 kB each.
    """
    evaluations = {
        r: Evaluation(r, dict(enumerate(accuracies)), {}, None, None) for r, accuracies in by_round.items()
    }
    last = evaluations[max(evaluations)]
    summary = {
        "method": name, "dataset": "toy", "partition": "10:90", "clients": 4, "clusters": None, "rounds": 10,
        "seed": seed, **last.figures(reference), "left": 0, "bytes_up": 80_000, "bytes_down": 40,
        "seconds": 5.0, "last_step_seconds": None, "interrupted": False,
    }  # fmt: skip
    return Result(summary, [], evaluations, None)


class NamedMethod:
    def __init__(self, name):
        self.name = name


def comparison_of(**entries):
    return Comparison(Config(), (0, 1), entries)


def two_methods():
    """Reference 50 % everywhere; the other gains +10, +20, 0 and −10 points: mean 5, two opt-outs."""
    rho = dict.fromkeys(range(4), 0.5)
    entries = {REFERENCE: MethodRuns(NamedMethod(REFERENCE)), "other": MethodRuns(NamedMethod("other"))}
    for seed in (0, 1):
        entries[REFERENCE].results[seed] = made_up_result(REFERENCE, seed, {4: [0.3] * 4, 9: [0.5] * 4})
        entries["other"].results[seed] = made_up_result(
            "other", seed, {2: [0.2] * 4, 9: [0.6, 0.7, 0.5, 0.4]}, rho
        )
    return comparison_of(**entries)
