"""Own clients: arrays, dicts and torch data sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.later import Later

from ipfl.data.own.own_clients import from_clients
from ipfl.errors import InputError

pd = Later("pandas")


def client(start: int, n: int = 20) -> tuple[Any, Any]:
    """Points start, start + 1, … in one feature; labels alternate."""
    return np.arange(start, start + n, dtype=np.float64)[:, None], np.arange(n) % 2


def values(samples: Any) -> set[float]:
    return set(samples.x[:, 0].tolist())


def test_pairs_get_a_test_split_and_keep_their_points() -> None:
    data = from_clients([client(0), client(100)], distribution=[0, 1])
    # 20 points: 5 test (a quarter), 15 training, of which 0.2 · 15 = 3 probe
    assert data.sizes(0) == {"train": 12, "probe": 3, "goal": 3, "test": 5}
    parts = data.parts(1)
    together = [values(parts.train), values(parts.probe), values(parts.test)]
    assert set.union(*together) == set(range(100, 120))
    assert sum(map(len, together)) == 20
    assert (data.majority(0), data.majority(1), data.distributions) == (0, 1, 2)
    assert values(data.holdout(1)) == values(parts.test)
    assert data.partition == "own"
    assert data.input_shape == (1,)


def test_dict_with_its_own_test_points_and_unseen() -> None:
    data = from_clients([{"train": client(0), "test": client(50, 4)}, {"train": client(100)}], unseen=[1])
    assert values(data.parts(0).test) == {50, 51, 52, 53}
    assert len(data.parts(0).train) == 16
    assert (data.clients, data.unseen) == ((0,), (1,))
    assert data.majority(0) is None


def test_torch_data_set() -> None:
    x, y = client(7, 8)
    data = from_clients([torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))])
    parts = data.parts(0)
    assert values(parts.train) | values(parts.probe) | values(parts.test) == set(range(7, 15))
    assert parts.train.x.dtype == np.float32


def test_same_seed_same_split() -> None:
    one, other = from_clients([client(0)], seed=4), from_clients([client(0)], seed=4)
    assert one.parts(0).test.x.tobytes() == other.parts(0).test.x.tobytes()
    assert values(from_clients([client(0)], seed=5).parts(0).test) != values(one.parts(0).test)


@pytest.mark.parametrize(
    "clients, more, says",
    [
        ([], {}, "no clients"),
        ([client(0), (np.zeros((5, 2)), np.arange(5))], {}, "differ in the shape"),
        ([(np.zeros((5, 2)),)], {}, "pair"),
        ([5], {}, "expected"),
        ([[1, 2, 3]], {}, "pairs"),
        ([(np.full((5, 2), np.nan), np.arange(5))], {}, "client 0 .*not finite"),
        ([(np.zeros((5, 2)), np.arange(4))], {}, "one label for each"),
        ([{"test": client(0)}], {}, "a dict has train"),
        ([client(0, 2)], {}, "client 0 has 1 training points"),
        ([client(0)], {"distribution": [1]}, "without gaps"),
        ([client(0)], {"unseen": [0]}, "not all"),
        ([client(0)], {"unseen": [3]}, "not all"),
        ([client(0)], {"probe": 1.0}, "between 0 and 1"),
        ([client(0)], {"classes": 1}, "classes = 1"),
    ],
)
def test_what_does_not_fit_is_refused(clients: list[Any], more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        from_clients(clients, **more)


class TestNames:
    def test_dict_generator_and_list_of_names(self) -> None:
        named = from_clients({"Bern": client(0), "Basel": client(100)})
        pairs = from_clients((name, client(start)) for name, start in (("Bern", 0), ("Basel", 100)))
        for data in (named, pairs):
            assert data.client_names == {0: "Bern", 1: "Basel"}
            assert values(data.parts(1).train) <= set(range(100, 120))
        assert from_clients([client(0)]).client_names == {}
        assert from_clients({0: client(0), 1: client(1)}).client_names == {}  # says no more than the ids

    def test_texts_as_labels(self) -> None:
        x, y = client(0)
        data = from_clients([(x, np.where(y, "no", "yes")), (x, np.full(20, "maybe"))])
        assert data.class_names == ("maybe", "no", "yes")
        parts = data.parts(0)
        assert (parts.train.y == np.where(parts.train.x[:, 0] % 2, 1, 2)).all()

    @pytest.mark.parametrize(
        "clients, more, says",
        [
            ({"train": client(0), "test": client(0)}, {}, "the data of one client"),
            (5, {}, "a list, a dict or a generator of clients, not int"),
            ("abc", {}, "not str"),
            ([("Bern", client(0)), ("Bern", client(1))], {}, "a different name for each of 2 clients"),
            ({"a\nb": client(0)}, {}, "printable"),
            ({"Bern": client(0, 2)}, {}, "client Bern has 1 training points"),
            ([(client(0)[0], np.full(20, "x"))], {"classes": 2}, "labels are texts"),
        ],
    )
    def test_refused(self, clients: Any, more: dict[str, Any], says: str) -> None:
        with pytest.raises(InputError, match=says):
            from_clients(clients, **more)

    def test_tables_are_refused(self) -> None:
        table = pd.DataFrame({"a": [1]})
        with pytest.raises(InputError, match="from_dataframe"):
            from_clients(table)
        with pytest.raises(InputError, match="client 0 is a table"):
            from_clients([table])


@pytest.mark.parametrize(
    "shape, known",
    [((3, 16, 20), (16, 20, 3)), ((2, 6, 6), (6, 6, 2)), ((16, 20, 3), (16, 20, 3)), ((3, 3, 3), (3, 3, 3))],
)
def test_channels_first_are_recognised(shape: tuple[int, ...], known: tuple[int, ...]) -> None:
    x = np.arange(8 * np.prod(shape), dtype=np.float32).reshape(8, *shape)
    data = from_clients([{"train": (x, np.arange(8) % 2), "test": (x, np.arange(8) % 2)}])
    assert data.input_shape == known
    turned = x if shape == known else np.moveaxis(x, 1, -1)
    assert (data.parts(0).test.x == turned).all()
