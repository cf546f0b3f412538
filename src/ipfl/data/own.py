"""Your own clients: a list of arrays, dicts or torch data sets becomes a federation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.core import stream
from ipfl.data.dataset import Dataset, features, labels
from ipfl.data.distributions import Distribution
from ipfl.data.federation import Federation, Share, probe_size, same
from ipfl.data.formats import class_count
from ipfl.errors import InputError

Arrays = tuple[NDArray[Any], NDArray[np.int64]]


def _arrays(data: Any, where: str) -> Arrays:
    """Points and labels of a pair (x, y), or of a map-style data set that yields such pairs."""
    if isinstance(data, tuple):
        if len(data) != 2:
            raise InputError(f"{where}: expected a pair (x, y), got {len(data)} things")
        try:
            x, y = (np.asarray(part) for part in data)
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{where}: expected a pair of arrays (x, y) ({reason})") from error
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        try:
            pairs = [data[position] for position in range(len(data))]
            x = np.stack([np.asarray(pair[0]) for pair in pairs])
            y = np.array([int(pair[1]) for pair in pairs])
        except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{where}: expected a data set of pairs (x, y) ({reason})") from error
    else:
        raise InputError(f"{where}: expected (x, y), a dict with train and test, or a data set of pairs")
    points = features(x, where)
    return points, labels(y, len(points), f"{where}, labels")


def _pools(data: Any, test_share: float, seed: int, client: int) -> tuple[Arrays, Arrays]:
    """Training and test points of one client; the test points are held out if it brings none."""
    where = f"client {client}"
    if isinstance(data, Mapping):
        if "train" not in data or set(data) - {"train", "test"}:
            raise InputError(f"{where}: a dict has train, and may have test; got {sorted(map(str, data))}")
        if "test" in data:
            return _arrays(data["train"], where), _arrays(data["test"], where)
        data = data["train"]
    x, y = _arrays(data, where)
    order = stream(seed, "data", "own", "test", client).permutation(len(y))
    cut = max(1, round(test_share * len(y)))
    return (x[order[cut:]], y[order[cut:]]), (x[order[:cut]], y[order[:cut]])


def _together(name: str, found: list[tuple[Arrays, Arrays]], classes: int | None) -> Dataset:
    shapes = {(part[0].shape[1:], part[0].dtype) for pair in found for part in pair}
    if len(shapes) > 1:
        raise InputError(
            f"{name}: clients differ in the shape or type of a point: {sorted(map(str, shapes))}"
        )
    train, test = zip(*found, strict=True)
    y_train = np.concatenate([y for _, y in train])
    y_test = np.concatenate([y for _, y in test])
    if classes is None:
        classes = class_count(np.concatenate([y_train, y_test]), name)
    return Dataset(
        name=name,
        x_train=np.concatenate([x for x, _ in train]),
        y_train=y_train,
        x_test=np.concatenate([x for x, _ in test]),
        y_test=y_test,
        classes=classes,
    )


def from_clients(
    clients: Sequence[Any],
    *,
    name: str = "own",
    classes: int | None = None,
    distribution: Sequence[int] | None = None,
    probe: float = 0.2,
    test_share: float = 0.25,
    unseen: Collection[int] = (),
    seed: int = 0,
) -> Federation:
    """A federation of your own clients; client i is position i in the list.

    Images are (height, width, channels), in that order: uint8 from 0 to 255, or float, kept as float32
    and used as it is. Move the channels of torch images last, `x.transpose(0, 2, 3, 1)`. Anything else is
    a vector of features.

    Args:
        clients: Each one a pair of arrays (x, y); a dict with `train` and, if it has its own, `test`, of
            pairs or data sets; or a map-style torch data set that yields (x, y).
        name: For reports.
        classes: Number of classes; None: the highest label plus one.
        distribution: Hidden distribution of each client, from 0 on, if known: only for metrics.
        probe: Share of the training points held back to score models.
        test_share: Share held out as test points where a client brings none.
        unseen: Clients that are not trained with.
        seed: Draws what is held out.

    Raises:
        InputError: When a client's data does not fit, or it has fewer than two training points.
    """
    if not clients:
        raise InputError("there are no clients")
    if not (0 < probe < 1 and 0 < test_share < 1):
        raise InputError("probe and test_share must be between 0 and 1")
    kinds = [0] * len(clients) if distribution is None else [int(kind) for kind in distribution]
    if len(kinds) != len(clients) or sorted(set(kinds)) != list(range(len(set(kinds)))):
        raise InputError(
            f"distribution: expected 0, 1, … without gaps, one for each of {len(clients)} clients"
        )
    held_back = set(unseen)
    if not held_back <= set(range(len(clients))) or len(held_back) == len(clients):
        raise InputError(f"unseen: expected some, not all, of the clients 0 to {len(clients) - 1}")
    found = [_pools(data, test_share, seed, client) for client, data in enumerate(clients)]
    base = _together(name, found, classes)
    shares: list[Share] = []
    tested: list[list[NDArray[np.int64]]] = [[] for _ in range(max(kinds) + 1)]
    first_train = first_test = 0
    for client, ((_, y_train), (_, y_test)) in enumerate(found):
        if len(y_train) < 2:
            raise InputError(f"client {client} has {len(y_train)} training points, but needs at least 2")
        order = first_train + stream(seed, "data", "own", client).permutation(len(y_train))
        test = np.arange(first_test, first_test + len(y_test))
        cut = int(probe_size(len(y_train), probe))
        held = same(order[:cut], kinds[client])
        shares.append(Share(same(order[cut:], kinds[client]), held, held, same(test, kinds[client])))
        tested[kinds[client]].append(test)
        first_train, first_test = first_train + len(y_train), first_test + len(y_test)
    return Federation(
        base,
        partition="own",
        changes=[Distribution() for _ in tested],
        shares=shares,
        holdouts=[same(np.concatenate(pool), k) for k, pool in enumerate(tested)],
        unseen=held_back,
    )
