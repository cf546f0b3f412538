"""FedAvg as one writes it first, in PyTorch alone: what all others are measured beside. And PFLlib's loop.

    python benchmarks/plain_loop.py plain|pfllib '{"clients": 4, …}'   # JSON: a `Work`

PFLlib's loop is written down from its description: an object per client with a model and an optimizer of its
own, a `DataLoader` of float tensors that shuffles and drops the last, smaller batch, parameters copied one
by one to the client before and summed one by one on the server after training, a learning-rate schedule that
is made but not used.

Needs PyTorch and NumPy only, so that it also runs in the environments of other frameworks.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

CLASSES, LR = 10, 0.01
Data = tuple[Any, Any]
"""Images (n, height, width, channels) in bytes, and their classes."""


@dataclass(frozen=True)
class Work:
    """What a round is: so many clients, one epoch each."""

    clients: int
    samples: int
    shape: tuple[int, int, int]
    batch: int
    rounds: int = 3
    """That are timed, after one that is not."""

    @classmethod
    def read(cls, text: str) -> Work:
        """From JSON."""
        given = json.loads(text)
        return cls(**given | {"shape": tuple(given["shape"])})

    def data(self, client: int) -> Data:
        """Random images of one client."""
        rng = np.random.default_rng(client)
        images = rng.integers(0, 256, (self.samples, *self.shape), dtype=np.uint8)
        return images, rng.integers(0, CLASSES, self.samples)


class PlainCNN(nn.Module):
    """The paper's network as it is usually written: pooling after the ReLU."""

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        height, width, channels = shape
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 64, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(64 * (height // 4) * (width // 4), 128)
        self.out = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.conv3(x)).flatten(1)
        return self.out(torch.relu(self.hidden(x)))  # type: ignore[no-any-return]


def as_tensors(data: Data) -> tuple[Tensor, Tensor]:
    """Bytes, channels first; classes."""
    x, y = data
    return torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(y)


def as_floats(x: Tensor) -> Tensor:
    """From −1 to 1."""
    return x.float().div(127.5).sub(1)


def train_plainly(model: nn.Module, data: Data, batch: int) -> None:
    """One epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    x, y = as_tensors(data)
    order = torch.randperm(len(y))
    for first in range(0, len(y), batch):
        chosen = order[first : first + batch]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(as_floats(x[chosen])), y[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def plain_round(model: nn.Module, clients: list[Data], batch: int) -> None:
    """FedAvg as in a tutorial: copy the model, train it, average the state dicts."""
    states = []
    for data in clients:
        local = copy.deepcopy(model)
        train_plainly(local, data, batch)
        states.append(local.state_dict())
    mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    model.load_state_dict(mean)


class PFLlibClient:
    """A client with everything of its own."""

    def __init__(self, model: nn.Module, data: Data, batch: int):
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.99)
        self.loss = nn.CrossEntropyLoss()
        x, y = as_tensors(data)
        self.points = list(zip(as_floats(x), y, strict=True))
        self.batch = batch

    def train(self) -> None:
        """One epoch."""
        self.model.train()
        for x, y in DataLoader(self.points, self.batch, drop_last=True, shuffle=True):  # type: ignore[arg-type]
            loss = self.loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def pfllib_round(model: nn.Module, clients: list[PFLlibClient]) -> None:
    """Parameters go to every client one by one, and are summed one by one."""
    for client in clients:
        for old, new in zip(client.model.parameters(), model.parameters(), strict=True):
            old.data = new.data.clone()
        client.train()
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter.data)
    for client in clients:
        for total, own in zip(model.parameters(), client.model.parameters(), strict=True):
            total.data += own.data.clone() / len(clients)


def timed_rounds(work: Work, play: Callable[[], object]) -> list[float]:
    """Seconds of each round by the clock, the first one left out."""
    seconds = []
    for _ in range(work.rounds + 1):
        begun = time.perf_counter()
        play()
        seconds.append(time.perf_counter() - begun)
    return seconds[1:]


def main() -> None:
    """Prints the seconds of each round as JSON."""
    torch.set_num_threads(1)
    work = Work.read(sys.argv[2])
    model, data = PlainCNN(work.shape), [work.data(client) for client in range(work.clients)]
    if sys.argv[1] == "pfllib":
        clients = [PFLlibClient(model, one, work.batch) for one in data]
        print(json.dumps(timed_rounds(work, lambda: pfllib_round(model, clients))))
    else:
        print(json.dumps(timed_rounds(work, lambda: plain_round(model, data, work.batch))))


if __name__ == "__main__":
    main()
