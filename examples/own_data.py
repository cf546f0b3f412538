"""Your own data and network in 15 lines: twelve sensors, half of which were mounted upside down.

python examples/own_data.py --out .
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import ipfl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--out", type=Path, default=Path())
given = parser.parse_args()

# The 15 lines: arrays of every client, a network, a run, and how good everybody's model is.
rng, sensors = np.random.default_rng(0), {}
for number in range(12):
    x = rng.uniform(-1, 1, (120, 2)).astype(np.float32)
    y = (x[:, 1] > np.sin(3 * x[:, 0]) / 2).astype(int)
    sensors[f"sensor {number}"] = (x if number < 6 else -x, y)


def network(shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """Takes points of this shape, and returns a score for each class."""
    return torch.nn.Sequential(torch.nn.Linear(shape[0], 32), torch.nn.ReLU(), torch.nn.Linear(32, classes))


task = ipfl.Task.from_clients(sensors, model=network)
config = ipfl.RunConfig(rounds=given.rounds, train=ipfl.TrainConfig(epochs=5))
result = ipfl.run(task, ipfl.method("ipfl-plus", clusters=2), config)
for client, accuracy in result.accuracies.items():
    print(f"{task.client_names[client]}: {accuracy:.0%}")

# The picture: what each client's own model says everywhere, and the client's points.
grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 60, dtype=np.float32)] * 2), axis=-1)
figure = Figure(figsize=(8, 6.4), layout="constrained")
for client, axes in enumerate(figure.subplots(3, 4, sharex=True, sharey=True).flat):
    said = result.predict(client, grid.reshape(-1, 2)).reshape(60, 60)
    axes.imshow(said, extent=(-1, 1, -1, 1), origin="lower", cmap="coolwarm", alpha=0.35, vmin=0, vmax=1)
    x, y = sensors[f"sensor {client}"]
    axes.scatter(x[:, 0], x[:, 1], c=y, cmap="coolwarm", s=6)
    axes.set_title(f"sensor {client}: {result.accuracies[client]:.0%}", fontsize=10)
figure.suptitle("What the model of each sensor says (areas), its points, and its accuracy")
figure.savefig(given.out / "own_data.png", dpi=150)
