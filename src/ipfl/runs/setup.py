"""From task and config to what a method knows before the first round."""

from __future__ import annotations

from ipfl.client.memory import ClientMemory
from ipfl.client.task import Task
from ipfl.core import Setup, holdout_id, stream
from ipfl.errors import InputError
from ipfl.methods.client_model_store import ClientModelStore
from ipfl.runs.accounts import CarriedAccounts
from ipfl.runs.config import RunConfig


def make_setup(
    task: Task,
    config: RunConfig,
    server_memory: ClientMemory,
    carried: CarriedAccounts | None = None,
    planned_rounds: int | None = None,
) -> Setup:
    """What a method may know before the first round.

    Args:
        task: Data and model.
        config: How it is run.
        server_memory: Where the server keeps models of single clients.
        carried: Accounts of earlier runs; None: all are opened anew.
        planned_rounds: How many rounds the run was begun with; None: those of the config.
    """
    network = task.network(config.seed)
    try:
        features: int | None = network.classifier.in_features
    except InputError:
        features = None
    return Setup(
        params=network.read(),
        clients=task.data.clients,
        per_round=config.train.per_round or max(1, len(task.data.clients) // 2),
        rounds=config.rounds if planned_rounds is None else planned_rounds,
        classes=task.data.classes,
        seed=config.seed,
        target=task.target.kind,
        epochs=config.train.epochs,
        features=features,
        holdouts=tuple(holdout_id(d) for d in task.holdouts),
        make_params=lambda n: task.network(int(stream(config.seed, "start", n).integers(2**31))).read(),
        aggregate=config.aggregate,
        client_models=ClientModelStore(server_memory),
        noise=config.privacy.noise,
        balances={} if carried is None else carried.brought(task.data.clients),
    )
