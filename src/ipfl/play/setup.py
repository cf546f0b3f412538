"""From task and config to what a method knows before the first round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipfl.client.memory import ClientMemory
from ipfl.config.run_config import RunConfig
from ipfl.core import ClientId, ClientModels, Method, Setup, TaskFacts, holdout_id, stream
from ipfl.errors import InputError
from ipfl.methods import check_parts
from ipfl.training.task import Task


def make_setup(
    task: Task,
    method: Method[Any],
    config: RunConfig,
    server_memory: ClientMemory,
    balances: Mapping[ClientId, int] | None = None,
    planned_rounds: int | None = None,
) -> Setup:
    """What a method may know before the first round.

    Args:
        task: Data and model.
        method: What is run.
        config: How it is run.
        server_memory: Where the server keeps models of single clients.
        balances: Tokens that clients bring along from an earlier run.
        planned_rounds: How many rounds the run was begun with; None: those of the config.
    """
    if planned_rounds is not None:
        config = config.model_copy(update={"rounds": planned_rounds})
    network = task.network(config.seed)
    check_parts(method, network)
    params = network.read()
    try:
        features: int | None = network.classifier.in_features
    except InputError:
        features = None

    def make_store() -> ClientModels:
        from ipfl.methods.shared.client_model_store import ClientModelStore

        return ClientModelStore(server_memory)

    holdouts = tuple(holdout_id(d) for d in task.holdouts)
    setup = Setup(
        params=params,
        clients=task.data.clients,
        per_round=trainings_per_round(method, config, len(task.data.clients)),
        seed=config.seed,
        task=TaskFacts(task.data.classes, task.target.kind, features, holdouts),
        config=config,
        make_params=lambda n: task.network(int(stream(config.seed, "start", n).integers(2**31))).read(),
        find_part=lambda name: network.part(name).of(params),
        make_client_models=make_store,
    )
    if not balances:
        return setup
    from ipfl.market.market_rows import MarketSetup

    return MarketSetup(**vars(setup), balances=balances)


def trainings_per_round(method: Method[Any], config: RunConfig, clients: int) -> int:
    """As the config says; else half of the clients, or as many as all models together need to move.

    Raises:
        InputError: Too few for any model to move.
    """
    clusters, fewest = getattr(method, "clusters", 1), config.aggregate.fewest
    needed = fewest * clusters if fewest > 1 and isinstance(clusters, int) else fewest
    found = config.train.per_round or max(clients // 2, min(needed, clients))
    if min(found, clients) < fewest:
        raise InputError(
            f"a model moves only if {fewest} clients deliver (aggregate.min_providers), "
            f"and a round asks {min(found, clients)}: no model would ever move"
        )
    return found
