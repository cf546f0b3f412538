"""The same rounds in Flower's own simulation; runs in an environment of its own, see `frameworks`.

build/bench-envs/flower/bin/python benchmarks/flower_loop.py '{"clients": 4, …}'
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cache
from typing import Any

if __name__ == "__main__":  # the processes of the simulation import this module, and inherit these
    os.environ |= {"IPFL_BENCH_WORK": sys.argv[1], "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

from plain_loop import PlainCNN, Work, train_plainly

WORK = Work.read(os.environ["IPFL_BENCH_WORK"])
STARTED: list[float] = []
ENDED: list[float] = []


@cache
def data_of(client: int) -> Any:
    """Made once in each process of the simulation."""
    return WORK.data(client)


def arrays_of(model: torch.nn.Module) -> list[Any]:
    """What Flower sends."""
    return [value.numpy() for value in model.state_dict().values()]


class Client(NumPyClient):
    """The plain loop's training."""

    def __init__(self, client: int):
        self.client = client

    def fit(self, parameters: list[Any], config: Any) -> tuple[list[Any], int, dict[str, Any]]:
        """One epoch."""
        torch.set_num_threads(1)
        model = PlainCNN(WORK.shape)
        names = model.state_dict().keys()
        model.load_state_dict({n: torch.tensor(v) for n, v in zip(names, parameters, strict=True)})
        train_plainly(model, data_of(self.client), WORK.batch)
        return arrays_of(model), WORK.samples, {}


class TimedFedAvg(FedAvg):
    """Notes when each round begins and ends."""

    def configure_fit(self, *given: Any, **more: Any) -> Any:
        """The beginning of a round."""
        STARTED.append(time.perf_counter())
        return super().configure_fit(*given, **more)

    def aggregate_fit(self, *given: Any, **more: Any) -> Any:
        """The end of a round."""
        result = super().aggregate_fit(*given, **more)
        if result[0] is None:
            raise RuntimeError("no client delivered")
        ENDED.append(time.perf_counter())
        return result


def make_client(context: Context) -> Any:
    """The client of a node."""
    return Client(int(context.node_config["partition-id"])).to_client()


def make_server(context: Context) -> ServerAppComponents:
    """FedAvg among all clients, without evaluation."""
    strategy = TimedFedAvg(
        fraction_fit=1.0,
        fraction_evaluate=0.0,
        accept_failures=False,
        min_fit_clients=WORK.clients,
        min_available_clients=WORK.clients,
        initial_parameters=ndarrays_to_parameters(arrays_of(PlainCNN(WORK.shape))),
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=WORK.rounds + 1))


def main() -> None:
    """Prints the seconds of each round as JSON."""
    run_simulation(
        ServerApp(server_fn=make_server),
        ClientApp(client_fn=make_client),
        num_supernodes=WORK.clients,
        backend_config={
            "init_args": {"num_cpus": 1, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    print(json.dumps([end - begin for begin, end in zip(STARTED, ENDED, strict=True)][1:]))


if __name__ == "__main__":
    import flower_loop

    flower_loop.main()
