"""An experiment that takes a second: two methods, four clients, one round; and what is kept of a run."""

from ipfl.reproduce.results_file import RunRecord

COMMON = """
order = []
introduction = "What stands first."
[names]
fedavg = "FedAvg"
[settings.ditto]
"train.batch_size" = 7
[grid]
lr_factors = [1.0, 2.0]
[grid.main]
ditto = { key = "lam", values = [0.1, 1.0] }
fedavg = { key = "train.momentum", values = [0.0] }
[tasks.tiny]
differs = "it is tiny"
smoke = { rounds = 1, "task.clients" = 4, "task.samples" = 20, "task.model" = "softmax", "train.lr" = 0.1 }
cpu = {}
paper = {}
"""
TINY = """
title = "A tiny table"
place = "tab:tiny"
claim = "Ditto is best."
task = "tiny"
ours = ["ditto"]
reference = "fedavg"
measures = ["accuracy", "pma"]
figures = ["ablation"]
[columns]
"10:90" = {}
[printed."10:90"]
accuracy = { ditto = "85.8 ± 4.8" }
"""
OTHER = """
title = "Another table with the same run"
place = "in the text"
task = "tiny"
ours = ["ditto"]
tuning = "tiny"
"""
LEAVING = """
title = "Clients leave"
place = "in the text"
task = "tiny"
ours = ["ditto:lam=1000"]
reference = "fedavg"
measures = ["there"]
config = { rounds = 2, "evaluate.every" = 1, "clients.leave" = true, "clients.grace" = 0 }
"""


def write_experiments(folder):
    folder.mkdir(exist_ok=True)
    for name, text in (("common", COMMON), ("tiny", TINY), ("other", OTHER), ("leaving", LEAVING)):
        (folder / f"{name}.toml").write_text(text)
    return folder


def record(key="k", **changes):
    """The numbers that are kept of a run of two clients."""
    content = {
        "key": key,
        "seed": 0,
        "settings": {},
        "commit": None,
        "version": "0",
        "rounds": 4,
        "seconds": 8.0,
        "bytes_up": 16_000_000,
        "bytes_down": 0,
        "clients": [0, 1],
        "personalized": [0.5, 0.9],
        "goal": 0.6,
        "unseen": [],
        "cluster_accuracy": None,
        "purity": None,
        "left": 0,
        "curve": [],
    }
    return RunRecord(**{**content, **changes})
