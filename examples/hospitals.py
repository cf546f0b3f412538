"""A consortium of eight hospitals: tables that must stay where they are, and two kinds of patients.

    python examples/hospitals.py --out .

In the city a high pressure is the risk, in the country a low age. A single hospital has too few rows to tell
that from the other values that it measures, and one model for all mixes the two up.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import ipfl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, default=30)
parser.add_argument("--out", type=Path, default=Path())
given = parser.parse_args()

rng = np.random.default_rng(1)
tables = []
for number in range(8):
    kind, rows = "city" if number < 4 else "country", [60, 80, 100, 150][number % 4]
    age, pressure = rng.normal(60, 12, rows), rng.normal(135, 18, rows)
    risk = (pressure - 135) / 18 if kind == "city" else (60 - age) / 12
    values = {f"blood_{value}": rng.normal(size=rows) for value in range(12)}  # that say nothing
    outcome = np.where(risk + 0.3 * rng.normal(size=rows) > 0, "ill", "healthy")
    visits = {"age": age, "pressure": pressure, "sex": rng.choice(["f", "m"], rows), **values}
    tables.append(pd.DataFrame({"hospital": f"{kind} {number % 4 + 1}", **visits, "outcome": outcome}))

task = ipfl.Task.from_dataframe(pd.concat(tables), client="hospital", target="outcome")
config = ipfl.RunConfig(rounds=given.rounds)
compared = ipfl.compare(task, ["ipfl-plus", "fedavg", "local"], seeds=3, config=config)
looks = {
    "local": ("alone", "#999999"),
    "fedavg": ("one model for all", "#D55E00"),
    "ipfl-plus": ("IP-FL", "#0072B2"),
}
hospitals = sorted(task.client_names, key=task.client_names.get)

figure = Figure(figsize=(8, 4.2), layout="constrained")
axes = figure.subplots()
for shift, (label, (name, colour)) in zip((-0.27, 0, 0.27), looks.items(), strict=True):
    runs = compared.entries[label].results.values()
    accuracy = [100 * np.mean([run.accuracies[hospital] for run in runs]) for hospital in hospitals]
    axes.bar(np.arange(len(hospitals)) + shift, accuracy, 0.25, color=colour, label=name)
    print(f"{name}: {np.mean(accuracy):.1f} %")
rows = [task.data.sizes(hospital)["train"] for hospital in hospitals]
names = [task.client_names[hospital] for hospital in hospitals]
axes.set_xticks(range(len(names)), [f"{name}\n{n} rows" for name, n in zip(names, rows, strict=True)])
axes.set(ylabel="accuracy on own test rows, %", ylim=(0, 100))
axes.grid(axis="y", color="#dddddd")
axes.set_axisbelow(True)
figure.suptitle("Eight hospitals, three ways to learn (mean of 3 seeds)")
figure.legend(loc="outside lower center", ncols=3, frameon=False)
figure.savefig(given.out / "hospitals.png", dpi=150)
