"""The same rounds in pfl's simulation (Apple); runs in an environment of its own, see `frameworks`.

build/bench-envs/pfl/bin/python benchmarks/pfl_loop.py '{"clients": 4, …}'
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from plain_loop import LR, PlainCNN, Work, as_floats, as_tensors


class Model(PlainCNN):
    """The network with what pfl asks of one."""

    def loss(self, x: Tensor, y: Tensor, **_: Any) -> Tensor:
        """What is made small."""
        return nn.functional.cross_entropy(self(as_floats(x)), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, **_: Any) -> dict[str, Any]:
        """Nothing is evaluated in these rounds."""
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """When each round ended."""

    def __init__(self) -> None:
        self.ended = [time.perf_counter()]

    def after_central_iteration(
        self, metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        """A lap."""
        self.ended.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    """Prints the seconds of each round as JSON."""
    torch.set_num_threads(1)
    work = Work.read(sys.argv[1])
    users = list(range(work.clients))
    data = {user: PyTorchTensorDataset(as_tensors(work.data(user))) for user in users}
    federated = FederatedDataset(data.__getitem__, get_user_sampler("minimize_reuse", users))
    network = Model(work.shape)
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    rounds = work.rounds + 2  # pfl evaluates in its first round, and once more after the last
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, 10**9, work.clients, None),
        SimulatedBackend(federated, federated),
        model,
        NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=LR),
        callbacks=[clock],
    )
    laps = [end - begin for begin, end in zip(clock.ended, clock.ended[1:], strict=False)]
    print(json.dumps(laps[2 : work.rounds + 2] or laps[1:]))


if __name__ == "__main__":
    main()
