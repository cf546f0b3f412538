"""Federated data of your own clients, given as a list of arrays, dicts or torch data sets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.core import stream
from ipfl.data.dataset import Dataset, check_features, check_targets, count_targets
from ipfl.data.distributions import Distribution
from ipfl.data.federated import Allocation, ClientPoints, PartitionedDataset, PoolPoints
from ipfl.data.targets import TARGETS, TargetKind
from ipfl.errors import InputError, unknown

Pair = tuple[NDArray[Any], NDArray[Any]]
"""Points and their targets."""


def from_clients(
    clients: Sequence[Any],
    *,
    name: str = "own",
    classes: int | None = None,
    predict: TargetKind = "classes",
    distribution: Sequence[int] | None = None,
    probe: float = 0.2,
    test_share: float = 0.25,
    unseen: Collection[int] = (),
    seed: int = 0,
) -> PartitionedDataset:
    """Makes federated data of your own clients; client i is position i in the list.

    Images are (height, width, channels), in that order: uint8 from 0 to 255, or float, kept as float32
    and used as it is. Move the channels of torch images last, `x.transpose(0, 2, 3, 1)`. Sequences are
    (steps, features). Anything else is a vector of features, or of token ids.

    Args:
        clients: Each one a pair of arrays (x, y); a dict with `train` and, if it has its own, `test`, of
            pairs or data sets; or a map-style torch data set that yields (x, y).
        name: For reports.
        classes: Number of classes; None: the highest label plus one. Labels or numbers are counted.
        predict: What y holds: `classes`, a class of each point; `multilabel`, 0 and 1, (n, labels);
            `regression`, numbers, (n,) or (n, outputs).
        distribution: Hidden distribution of each client, from 0 on, if known: only for metrics.
        probe: Share of the training points held back to score models.
        test_share: Share of the points that become test points where a client has none of its own.
        unseen: Clients that are not trained with.
        seed: Draws which points are held back.

    Raises:
        InputError: A client's data does not fit, or it has fewer than two training points.
    """
    if not clients:
        raise InputError("there are no clients")
    if not (0 < probe < 1 and 0 < test_share < 1):
        raise InputError("probe and test_share must be between 0 and 1")
    if predict not in TARGETS:
        raise unknown("predict", predict, TARGETS)
    known = _check_distribution(distribution, len(clients))
    if not set(unseen) <= set(range(len(clients))) or len(set(unseen)) == len(clients):
        raise InputError(f"unseen: expected some, not all, of the clients 0 to {len(clients) - 1}")
    data = [_read_client(given, predict, test_share, seed, client) for client, given in enumerate(clients)]
    return PartitionedDataset(
        _join(name, data, classes, predict),
        partition="own",
        distributions=[Distribution() for _ in range(max(known) + 1)],
        allocation=_allocate(data, known, probe, seed),
        unseen=set(unseen),
    )


def _check_distribution(distribution: Sequence[int] | None, clients: int) -> list[int]:
    """The hidden distribution of each client; 0 for all if it is not known."""
    known = [0] * clients if distribution is None else [int(number) for number in distribution]
    if len(known) != clients or sorted(set(known)) != list(range(len(set(known)))):
        raise InputError(f"distribution: expected 0, 1, … without gaps, one for each of {clients} clients")
    return known


def _read_client(
    given: Any, target: TargetKind, test_share: float, seed: int, client: int
) -> tuple[Pair, Pair]:
    """Training and test points of one client; if it has no test points, some are held back for that."""
    name = f"client {client}"
    if isinstance(given, Mapping):
        if "train" not in given or set(given) - {"train", "test"}:
            raise InputError(f"{name}: a dict has train, and may have test; got {sorted(map(str, given))}")
        if "test" in given:
            return _read_pair(given["train"], target, name), _read_pair(given["test"], target, name)
        given = given["train"]
    x, y = _read_pair(given, target, name)
    order = stream(seed, "data", "own", "test", client).permutation(len(y))
    cut = max(1, round(test_share * len(y)))
    return (x[order[cut:]], y[order[cut:]]), (x[order[:cut]], y[order[:cut]])


def _read_pair(given: Any, target: TargetKind, name: str) -> Pair:
    """Points and labels of a pair (x, y), or of a map-style data set that yields such pairs."""
    if isinstance(given, tuple):
        if len(given) != 2:
            raise InputError(f"{name}: expected a pair (x, y), got a tuple of {len(given)}")
        try:
            x, y = (np.asarray(array) for array in given)
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{name}: expected a pair of arrays (x, y) ({reason})") from error
    elif hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        try:
            pairs = [given[position] for position in range(len(given))]
            x = np.stack([np.asarray(pair[0]) for pair in pairs])
            y = np.array([int(pair[1]) if target == "classes" else np.asarray(pair[1]) for pair in pairs])
        except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{name}: expected a data set of pairs (x, y) ({reason})") from error
    else:
        raise InputError(f"{name}: expected (x, y), a dict with train and test, or a data set of pairs")
    points = check_features(x, name)
    return points, check_targets(y, len(points), target, f"{name}, labels")


def _join(
    name: str, data: list[tuple[Pair, Pair]], classes: int | None, target: TargetKind = "classes"
) -> Dataset:
    """One data set with the points of all clients, one client after the other."""
    if len({x.dtype for pools in data for x, _ in pools} - {np.dtype(np.uint8)}) > 1:
        # Whole numbers at some clients and others elsewhere are all features.
        data = [tuple((_as_float(x), y) for x, y in pools) for pools in data]  # type: ignore[misc]
    kinds = {(x.shape[1:], x.dtype) for pools in data for x, _ in pools}
    if len(kinds) > 1:
        raise InputError(f"{name}: clients differ in the shape or type of a point: {sorted(map(str, kinds))}")
    widths = {y.shape[1:] for pools in data for _, y in pools}
    if len(widths) > 1:
        raise InputError(f"{name}: clients differ in the shape of a target: {sorted(widths)}")
    train, test = zip(*data, strict=True)
    y_train = np.concatenate([y for _, y in train])
    y_test = np.concatenate([y for _, y in test])
    if classes is None or target != "classes":
        classes = count_targets(np.concatenate([y_train, y_test]), target, name)
    return Dataset(
        name=name,
        x_train=np.concatenate([x for x, _ in train]),
        y_train=y_train,
        x_test=np.concatenate([x for x, _ in test]),
        y_test=y_test,
        classes=classes,
        target=target,
    )


def _as_float(x: NDArray[Any]) -> NDArray[Any]:
    return x if x.dtype == np.uint8 else x.astype(np.float32)


def _allocate(data: list[tuple[Pair, Pair]], distribution: list[int], probe: float, seed: int) -> Allocation:
    """Each client keeps its own points: where they lie in the joined data set, and which become probe."""
    clients: list[ClientPoints] = []
    tests: list[list[NDArray[np.int64]]] = [[] for _ in range(max(distribution) + 1)]
    first_train = first_test = 0
    for client, ((_, y_train), (_, y_test)) in enumerate(data):
        if len(y_train) < 2:
            raise InputError(f"client {client} has {len(y_train)} training points, but needs at least 2")
        train = first_train + stream(seed, "data", "own", client).permutation(len(y_train))
        test = np.arange(first_test, first_test + len(y_test))
        clients.append(ClientPoints.of_one_distribution(train, test, distribution[client], probe))
        tests[distribution[client]].append(test)
        first_train, first_test = first_train + len(y_train), first_test + len(y_test)
    holdouts = [
        PoolPoints.of_one_distribution(np.concatenate(found), number) for number, found in enumerate(tests)
    ]
    return Allocation(clients, holdouts)
