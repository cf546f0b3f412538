"""Activity from a phone at the waist: 30 people, 6 activities; 6 of the people never take part in training.

    python examples/wearables.py --out .

Each person moves in an own way. Who gains by a model of its own, and what do people get that come later?
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import ipfl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, default=30)
parser.add_argument("--out", type=Path, default=Path())
given = parser.parse_args()
try:
    task = ipfl.Task.load(dataset="har", partition="natural", unseen=6)
except ipfl.InputError as error:
    raise SystemExit(f"this example needs the data set har: {error}") from error

config = ipfl.RunConfig(rounds=given.rounds, train=ipfl.TrainConfig(lr=0.05))
compared = ipfl.compare(task, ["ipfl-plus", "fedavg", "local"], config=config)
looks = {
    "local": ("alone", "#999999", "s"),
    "fedavg": ("one model for all", "#D55E00", "v"),
    "ipfl-plus": ("IP-FL", "#0072B2", "o"),
}
last = {label: entry.results[0].last for label, entry in compared.entries.items()}
# People in the order of what one model for all gives them, newcomers apart.
known, new = ((getattr(last["fedavg"], part)) for part in ("personalized", "unseen"))
people = [*sorted(known, key=known.get), *sorted(new, key=new.get)]

figure = Figure(figsize=(8, 4.6), layout="constrained")
axes = figure.subplots()
for label, (name, colour, marker) in looks.items():
    newcomers = {} if label == "local" else last[label].unseen  # who trains alone has nothing for newcomers
    accuracy = {**last[label].personalized, **newcomers}
    shown = [(place, 100 * accuracy[one]) for place, one in enumerate(people) if one in accuracy]
    axes.plot(*zip(*shown, strict=True), marker, color=colour, label=name, alpha=0.8)
    later = f", newcomers {np.mean(list(newcomers.values())):.1%}" if newcomers else ""
    print(f"{name}: {np.mean(list(last[label].personalized.values())):.1%}{later}")
axes.axvspan(len(known) - 0.5, len(people) - 0.5, color="#eeeeee", zorder=0)
axes.text(len(people) - 0.7, 3, "never took part", ha="right", color="#555555")
axes.set_xticks(range(len(people)), [str(person) for person in people], fontsize=7)
axes.set(xlabel="person", ylabel="accuracy on own test data, %", ylim=(0, 104), xlim=(-1, len(people)))
axes.grid(axis="y", color="#dddddd")
figure.suptitle("Activity recognition, person by person")
figure.legend(loc="outside lower center", ncols=3, frameon=False)
figure.savefig(given.out / "wearables.png", dpi=150)
