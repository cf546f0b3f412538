"""Federated data of your own clients: arrays, data sets of torch or Hugging Face, or dicts of these.

They come as a list, as a dict by the clients' names, or from a generator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.config.task_section import TargetKind
from ipfl.core import stream
from ipfl.data.dataset import (
    Dataset,
    check_features,
    check_labels,
    check_one_each,
    check_targets,
    count_targets,
)
from ipfl.data.distributions import Distribution
from ipfl.data.federated import Allocation, ClientPoints, PartitionedDataset, PoolPoints
from ipfl.data.own.column_data import class_labels, has_columns, read_columns
from ipfl.data.own.table_encoding import number_together
from ipfl.data.target_kinds import TARGET_KINDS
from ipfl.errors import InputError, unknown

Pair = tuple[NDArray[Any], NDArray[Any]]
"""Points and their targets."""
Pools = tuple[Pair, Pair]
"""Training and test points of a client."""
OWN_TEST_SHARE = 0.25
"""Share of the points that become test points where a client has none of its own."""


def from_clients(
    clients: Iterable[Any] | Mapping[Any, Any],
    *,
    target: str | None = None,
    features: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    name: str = "own",
    classes: int | None = None,
    predict: TargetKind = "classes",
    distribution: Sequence[int] | None = None,
    probe: float = 0.2,
    unseen: Collection[int] = (),
    seed: int = 0,
) -> PartitionedDataset:
    """Makes federated data of your own clients; client i is position i in the list, dict or generator.

    Images are (height, width, channels), in that order: uint8 from 0 to 255, or float, kept as float32
    and used as it is. Images with their channels first, as PyTorch has them, are recognised and turned.
    Sequences are (steps, features). Anything else is a vector of features, or of token ids.

    Args:
        clients: Each one a pair of arrays (x, y); a map-style torch data set that yields (x, y); a data set
            with columns, such as `datasets.Dataset`; or a dict with `train` and, if it has its own, `test`,
            of these; without `test`, a quarter of its points is held back. In a dict of clients the keys are
            their names; a list or a generator may hold pairs (name, client). Labels are numbers from 0 on, or
            texts.
        target: Of data sets with columns: the label's; None: the only one of classes, or `label`.
        features: Of data sets with columns: those to learn from; empty: all others.
        class_names: Names of the classes; None: as the labels or the data sets say, if they do.
        name: For reports.
        classes: Number of classes; None: the highest label plus one. Labels or numbers are counted.
        predict: What y holds: `classes`, a class of each point; `multilabel`, 0 and 1, (n, labels);
            `regression`, numbers, (n,) or (n, outputs).
        distribution: Hidden distribution of each client, from 0 on, if known: only for metrics.
        probe: Share of the training points held back to score models.
        unseen: Clients that are not trained with.
        seed: Draws which points are held back.

    Raises:
        InputError: A client's data does not fit, or it has fewer than two training points.
    """
    listed, names = _list_clients(clients)
    _check_choices(probe, predict, set(unseen), len(listed))
    known = _check_distribution(distribution, len(listed))
    pools: list[Pools] = []
    for number, one in enumerate(listed):
        label = f"client {names[number] if names else number}"
        pools.append(_read_client(one, _Columns(target, tuple(features), predict, label), seed, number))
    if predict == "classes":
        pools, found = _number_labels(pools, classes)
        class_names = class_names or found or _declared_classes(listed[0], target)
    return PartitionedDataset(
        _join(name, pools, classes, class_names, names, predict),
        partition="own",
        distributions=[Distribution() for _ in range(max(known) + 1)],
        allocation=_allocate(pools, known, probe, seed),
        unseen=set(unseen),
    )


def _list_clients(given: Iterable[Any] | Mapping[Any, Any]) -> tuple[list[Any], list[str] | None]:
    """The clients in their order, and their names if they have any."""
    if hasattr(given, "iloc"):
        raise InputError("this is a table: Task.from_dataframe(table, client=…, target=…) takes it")
    if has_columns(given):
        raise InputError(
            "this is one data set: Task.from_huggingface(data, client=…) divides it into clients"
        )
    if isinstance(given, Mapping):
        if given and set(given) <= {"train", "test"}:
            raise InputError("this is the data of one client: put all clients into a list, or a dict by name")
        given = [(str(name), one) for name, one in given.items()]
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InputError(f"expected a list, a dict or a generator of clients, not {type(given).__name__}")
    clients = list(given)
    if not clients:
        raise InputError("there are no clients")
    if not all(_is_named(one) for one in clients):
        return clients, None
    names = [name for name, _ in clients]
    if len(set(names)) != len(names):
        raise InputError(f"expected a different name for each of {len(clients)} clients")
    return [client for _, client in clients], names


def _is_named(given: Any) -> bool:
    """True for a pair of a name and a client, as generators of named clients yield."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)


@dataclass(frozen=True)
class _Columns:
    """A reader of one client's data, and the client's name in messages."""

    target: str | None
    features: tuple[str, ...]
    predict: TargetKind
    client: str


def _declared_classes(given: Any, target: str | None) -> Sequence[str] | None:
    """Names of the classes, as a data set with columns says them."""
    given = given["train"] if isinstance(given, Mapping) else given
    return class_labels(given, target, "client 0") if has_columns(given) else None


def _number_labels(pools: list[Pools], classes: int | None) -> tuple[list[Pools], tuple[str, ...] | None]:
    """All clients' labels, numbered together where they are texts; and these texts."""
    y = [pair[1] for one in pools for pair in one]
    if not any(labels.dtype.kind in "USO" for labels in y):
        return pools, None
    if classes is not None:
        raise InputError("labels are texts: with a number of classes given, expected whole numbers from 0 on")
    numbers, texts = number_together(y)
    found = iter(numbers)
    return [((train[0], next(found)), (test[0], next(found))) for train, test in pools], texts


def _check_choices(probe: float, predict: str, unseen: set[int], clients: int) -> None:
    """Refuses what cannot be chosen, such as a federation of which all clients are unseen."""
    if not 0 < probe < 1:
        raise InputError("probe must be between 0 and 1")
    if predict not in TARGET_KINDS:
        raise unknown("predict", predict, TARGET_KINDS)
    if not unseen <= set(range(clients)) or len(unseen) == clients:
        raise InputError(f"unseen: expected some, not all, of the clients 0 to {clients - 1}")


def _check_distribution(distribution: Sequence[int] | None, clients: int) -> list[int]:
    """The hidden distribution of each client; 0 for all if it is not known."""
    known = [0] * clients if distribution is None else [int(number) for number in distribution]
    if len(known) != clients or sorted(set(known)) != list(range(len(set(known)))):
        raise InputError(f"distribution: expected 0, 1, … without gaps, one for each of {clients} clients")
    return known


def _read_client(given: Any, columns: _Columns, seed: int, client: int) -> Pools:
    """Training and test points of one client; if it has no test points, some are held back for that."""
    name = columns.client
    if isinstance(given, Mapping):
        if "train" not in given or set(given) - {"train", "test"}:
            raise InputError(f"{name}: a dict has train, and may have test; got {sorted(map(str, given))}")
        train = _read_pair(given["train"], columns)
        test = _read_pair(given["test"], columns) if "test" in given else None
    else:
        train, test = _read_pair(given, columns), None
    x, y = train
    if test is None:
        order = stream(seed, "data", "own", "test", client).permutation(len(y))
        cut = max(1, round(OWN_TEST_SHARE * len(y)))
        (x, y), test = (x[order[cut:]], y[order[cut:]]), (x[order[:cut]], y[order[:cut]])
    if len(y) < 2:
        raise InputError(f"{name} has {len(y)} training points, but needs at least 2")
    return (x, y), test


def _read_pair(given: Any, columns: _Columns) -> Pair:
    """Points and labels of a pair (x, y), of a data set with columns, or of one that yields pairs."""
    name = columns.client
    if isinstance(given, tuple):
        if len(given) != 2:
            raise InputError(f"{name}: expected a pair (x, y), got a tuple of {len(given)}")
        try:
            x, y = (np.asarray(array) for array in given)
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{name}: expected a pair of arrays (x, y) ({reason})") from error
    elif has_columns(given):
        x, y = read_columns(given, columns.target, columns.features, name)
    elif hasattr(given, "iloc"):
        raise InputError(
            f"{name} is a table: put all into one, with a column for the client, for Task.from_dataframe"
        )
    elif hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        try:
            pairs = [given[position] for position in range(len(given))]
            x = np.stack([np.asarray(pair[0]) for pair in pairs])
            y = np.array([_label(pair[1], columns.predict) for pair in pairs])
        except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{name}: expected a data set of pairs (x, y) ({reason})") from error
    else:
        raise InputError(f"{name}: expected (x, y), a dict with train and test, or a data set of pairs")
    points = check_features(x, name)
    if columns.predict != "classes":
        return points, check_targets(y, len(points), columns.predict, f"{name}, labels")
    check_one_each(y, len(points), f"{name}, labels")
    return points, y if y.dtype.kind in "USO" else check_labels(y, len(points), f"{name}, labels")


def _label(given: Any, predict: TargetKind) -> Any:
    """The label of one point of a data set of pairs."""
    if predict != "classes":
        return np.asarray(given)
    return given if isinstance(given, str) else int(given)


def _join(
    name: str,
    data: list[Pools],
    classes: int | None,
    class_names: Sequence[str] | None,
    names: Sequence[str] | None,
    target: TargetKind,
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
    if classes is None and class_names:
        classes = len(class_names)
    if classes is None or target != "classes":
        classes = count_targets(np.concatenate([y_train, y_test]), target, name)
    return Dataset(
        name=name,
        x_train=np.concatenate([x for x, _ in train]),
        y_train=y_train,
        x_test=np.concatenate([x for x, _ in test]),
        y_test=y_test,
        classes=classes,
        group_train=_owners(train),
        group_test=_owners(test),
        group_names=tuple(names) if names else None,
        class_names=tuple(class_names) if class_names else None,
        target=target,
    )


def _owners(pool: Sequence[Pair]) -> NDArray[np.int64]:
    """The client of each point, in the order in which they are joined."""
    return np.repeat(np.arange(len(pool)), [len(y) for _, y in pool])


def _as_float(x: NDArray[Any]) -> NDArray[Any]:
    return x if x.dtype == np.uint8 else x.astype(np.float32)


def _allocate(data: list[Pools], distribution: list[int], probe: float, seed: int) -> Allocation:
    """Each client keeps its own points: where they lie in the joined data set, and which become probe."""
    clients: list[ClientPoints] = []
    tests: list[list[NDArray[np.int64]]] = [[] for _ in range(max(distribution) + 1)]
    first_train = first_test = 0
    for client, ((_, y_train), (_, y_test)) in enumerate(data):
        train = first_train + stream(seed, "data", "own", client).permutation(len(y_train))
        test = np.arange(first_test, first_test + len(y_test))
        clients.append(ClientPoints.of_one_distribution(train, test, distribution[client], probe))
        tests[distribution[client]].append(test)
        first_train, first_test = first_train + len(y_train), first_test + len(y_test)
    holdouts = [
        PoolPoints.of_one_distribution(np.concatenate(found), number) for number, found in enumerate(tests)
    ]
    return Allocation(clients, holdouts, groups=range(len(data)))
