"""Properties of every federation (no point twice, exact mixtures, same seed same bytes), and the errors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipfl.config.task_section import TaskConfig
from ipfl.data import Dataset, PartitionedDataset, federate
from ipfl.data.distributions import make_distributions
from ipfl.data.federated import PoolPoints
from ipfl.errors import InputError


def numbered(train: int = 400, test: int = 100, classes: int = 10, **more: Any) -> Dataset:
    """Images 4 × 4 whose first two bytes spell their number, so that a point can be followed."""

    def pool(size: int) -> tuple[Any, Any]:
        x = np.zeros((size, 4, 4, 1), dtype=np.uint8)
        x[:, 0, 0, 0], x[:, 0, 1, 0] = np.arange(size) // 256, np.arange(size) % 256
        return x, np.arange(size) % classes

    return Dataset("numbered", *pool(train), *pool(test), classes, **more)


def people() -> Dataset:
    return numbered(group_train=np.arange(400) % 20, group_test=np.arange(100) % 20)


def rows() -> Dataset:
    x, y = np.zeros((40, 3), np.float32), np.arange(40) % 2
    return Dataset("rows", x, y, x, y, 2)


def nothing() -> None:
    """No data set."""


def made(seed: int = 0, **task: Any) -> PartitionedDataset:
    found = federate(
        TaskConfig(**{"dataset": f"{__name__}:numbered", "samples": 20, "clients": 10, **task}), seed
    )
    assert isinstance(found, PartitionedDataset)
    return found


PEOPLE = f"{__name__}:people"
NATURAL = {"distributions": "natural", "partition": "natural"}


def totals(data: PartitionedDataset) -> list[int]:
    """How many points each client has to train and to decide on."""
    return [len(points.train) + len(points.probe) for points in data.allocation.clients]


def mix(*parts: PoolPoints, of: int = 2) -> list[int]:
    return np.bincount(np.concatenate([part.distribution for part in parts]), minlength=of).tolist()


tasks = st.fixed_dictionaries(
    {
        "distributions": st.sampled_from(["rotated", "rotated:4", "permuted:3", "halves", "groups:4", "iid"]),
        "partition": st.sampled_from(["10:90", "30:70", "linear", "random", "classes:3", "dirichlet:0.2"]),
        "clients": st.integers(1, 9),
        "samples": st.one_of(st.none(), st.integers(5, 12)),
        "sizes": st.sampled_from(["equal", "unequal"]),
        "swap_test_mix": st.booleans(),
        "server_samples": st.integers(0, 5),
        "probe": st.sampled_from([0.1, 0.2, 0.5]),
        "test_samples": st.sampled_from([3, 20, 1000]),
    }
).filter(
    lambda t: (
        not (t["partition"][0] in "cd" and (t["distributions"][0] in "hg" or t["swap_test_mix"]))
        and not (t["swap_test_mix"] and t["distributions"] == "iid")
    )
)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(tasks, st.integers(0, 5))
def test_no_training_point_is_used_twice_and_parts_have_their_sizes(task: dict[str, Any], seed: int) -> None:
    data = made(seed, **task)
    used: list[int] = []
    for client, points in enumerate(data.allocation.clients):
        goal = [] if points.goal is points.probe else points.goal.index.tolist()
        used += points.train.index.tolist() + points.probe.index.tolist() + goal
        total = len(points.train) + len(points.probe)
        assert len(points.train) >= 1
        assert len(points.probe) == min(max(1, int(task["probe"] * total + 0.5)), total - 1)
        assert len(points.goal) == len(points.probe)
        assert 1 <= len(points.test) <= task["test_samples"]
        assert len(set(points.test.index.tolist())) == len(points.test)
        parts, sizes = data.parts(client), data.sizes(client)
        assert {name: len(getattr(parts, name)) for name in sizes} == sizes
    used += [int(i) for points in data.allocation.server for i in points.index]
    assert not [i for i, times in Counter(used).items() if times > 1]
    if task["samples"] is not None:
        assert sum(totals(data)) == task["samples"] * task["clients"]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tasks, st.integers(0, 5))
def test_same_seed_same_bytes(task: dict[str, Any], seed: int) -> None:
    one, other = made(seed, **task), made(seed, **task)
    for client in one.clients:
        for name in ("train", "probe", "goal", "test"):
            a, b = getattr(one.parts(client), name), getattr(other.parts(client), name)
            assert a.x.tobytes() == b.x.tobytes()
            assert a.y.tobytes() == b.y.tobytes()


@pytest.mark.parametrize("kind", ["rotated", "halves", "permuted"])
def test_ten_ninety_is_exact(kind: str) -> None:
    # 20 samples: 18 own + 2 others; probe 0.2 · 20 = 4: 3.6 + 0.4 gives 4 + 0; test 100 at 90 : 10
    # from halves: 50 test points per half, so 50/0.9 = 55 points, 49.5 + 5.5: 50 + 5 by the tie to the left
    data = made(distributions=kind)
    assert [mix(s.train, s.probe) for s in data.allocation.clients[:2]] == [[18, 2], [2, 18]]
    assert mix(data.allocation.clients[0].probe) == [4, 0]
    assert mix(data.allocation.clients[0].test) == ([50, 5] if kind == "halves" else [90, 10])
    assert [data.majority(i) for i in range(4)] == [0, 1, 0, 1]


def test_swap_test_mix_swaps_test_and_goal_only() -> None:
    # train 18 : 2, goal 4 at 10 : 90 is 0.4 + 3.6: 0 + 4; test 20 at 10 : 90 is 2 + 18
    data = made(distributions="halves", swap_test_mix=True, test_samples=20)
    points = data.allocation.clients[0]
    assert mix(points.train, points.probe) == [18, 2]
    assert mix(points.goal) == [0, 4]
    assert mix(points.test) == [2, 18]
    assert set(data.parts(0).goal.y.tolist()) <= set(range(5, 10))


def test_classes_per_client() -> None:
    data = made(distributions="iid", partition="classes:4")
    parts = data.parts(3)
    y = np.concatenate([parts.train.y, parts.probe.y])
    assert sorted(Counter(y.tolist()).values()) == [5, 5, 5, 5]  # 20 samples over 4 classes
    assert set(parts.test.y.tolist()) == set(y.tolist())
    assert data.majority(3) is None


def test_rotation_turns_the_image_and_nothing_else() -> None:
    data = made(distributions="rotated", partition="0:100")
    upright, turned = data.parts(0).train.x, data.parts(1).train.x
    # the number stands in the top row; a quarter turn counter-clockwise moves it to the left column
    assert upright[:, 1:].max() == 0
    assert upright[:, 0, :2].max() > 0
    assert turned[:, :, 1:].max() == 0
    assert turned[:, 2:, 0].max() > 0


def test_permuted_labels_are_derangements_of_each_other() -> None:
    found = make_distributions("permuted:4", numbered(), 7)
    maps = [one.change_labels(np.arange(10)) for one in found]
    assert maps[0].tolist() == list(range(10))
    for i, one in enumerate(maps):
        assert sorted(one.tolist()) == list(range(10))
        assert all((one != other).all() for other in maps[:i])


def test_emnist_halves_are_lower_then_upper_case_and_groups_are_thirteen() -> None:
    letters = numbered(520, 104, classes=52, first_half=tuple(range(26, 52)))
    lower, upper = make_distributions("halves", letters, 0)
    assert lower.classes == tuple(range(26, 52))
    assert upper.classes == tuple(range(26))
    groups = [one.classes for one in make_distributions("groups", letters, 0)]
    assert groups == [tuple(range(start, start + 13)) for start in (0, 13, 26, 39)]


def test_all_there_is_in_equal_shares() -> None:
    # 400 points, 3 clients: 133 each; with 2 · 50 at the server: 100 each
    assert totals(made(clients=3, samples=None)) == [133] * 3
    assert totals(made(clients=3, samples=None, server_samples=50)) == [100] * 3
    # halves of 200 at 10 : 90, one client: 0.9 · s ≤ 200, so 222 (199.8 rounds to 200)
    assert totals(made(clients=1, samples=None, distributions="halves")) == [222]


def test_unseen_are_balanced_and_keep_their_ids() -> None:
    data = made(unseen=4)
    assert len(data.unseen) == 4
    assert sorted(data.clients + data.unseen) == list(range(10))
    # a plain draw of 4 from 5 + 5 is 2 : 2 with C(5,2)²/C(10,4) = 0.48, in all 8 seeds once in 380
    for seed in range(8):
        assert sorted(i % 2 for i in made(seed, unseen=4).unseen) == [0, 0, 1, 1]
    assert len(data.parts(data.unseen[0]).train) == 16


def test_drift_swaps_the_data_of_pairs() -> None:
    # round(0.4 · 10) = 4 clients, two pairs across distributions
    data = made(drift_round=3, drift_share=0.4, unseen=2)
    assert data.drift is not None
    partner = data.drift.partner
    assert len(partner) == 4
    assert not set(partner) & set(data.unseen)
    for one, other in partner.items():
        assert partner[other] == one
        assert data.majority(one, 2) != data.majority(one, 3) == data.majority(other, 0)
        assert data.parts(one, 3).test.x.tobytes() == data.parts(other, 2).test.x.tobytes()
        assert data.parts(one, 2).train.x.tobytes() != data.parts(one, 3).train.x.tobytes()
    stays = next(i for i in data.clients if i not in partner)
    assert data.parts(stays, 3).train.x.tobytes() == data.parts(stays, 0).train.x.tobytes()


def test_server_and_test_pool_per_distribution() -> None:
    data = made(distributions="halves", server_samples=7)
    own = data.server_holdout(1)
    assert own is not None
    assert len(own) == 7
    assert set(own.y.tolist()) <= set(range(5, 10))
    assert sorted(data.holdout(0).y.tolist()) == sorted(list(range(5)) * 10)
    assert made().server_holdout(0) is None


def test_natural_clients_are_people() -> None:
    # 20 people with 20 training and 5 test points each; person g has the numbers g, g + 20, …
    data = made(dataset=PEOPLE, **NATURAL, samples=10)
    people = []
    for points in data.allocation.clients:
        (person,) = {int(i) % 20 for i in np.concatenate([points.train.index, points.probe.index])}
        assert {int(i) % 20 for i in points.test.index} == {person}
        assert (len(points.train), len(points.probe), len(points.test)) == (8, 2, 5)
        people.append(person)
    assert len(set(people)) == 10
    assert (data.distributions, data.majority(0)) == (1, None)


def test_natural_takes_all_people_in_their_order_and_says_how_many() -> None:
    data = made(dataset=PEOPLE, partition="natural", clients=None)
    assert len(data.clients) == 20
    assert data.notes == ("numbered: 20 clients, all there are",)
    # Point p belongs to person p mod 20, who is client p mod 20.
    for client in data.clients:
        assert set((data.allocation.clients[client].train.index % 20).tolist()) == {client}
    assert made(dataset=PEOPLE, partition="natural", clients=5).notes == ()
    with pytest.raises(InputError, match="unseen = 20 of 20 clients"):
        made(dataset=PEOPLE, partition="natural", clients=None, unseen=20)


def test_natural_server_has_points_of_nobody() -> None:
    data = made(dataset=PEOPLE, **NATURAL, samples=10, server_samples=30)
    used = {int(i) for s in data.allocation.clients for i in np.concatenate([s.train.index, s.probe.index])}
    assert not used & {int(i) for i in data.allocation.server[0].index}
    assert len(data.allocation.server[0]) == 30


@pytest.mark.parametrize(
    "task, says",
    [
        ({"samples": 50}, "500 training points are needed, there are 400"),
        ({"samples": 38, "server_samples": 20}, "380 .* there are 360 besides the server's 40"),
        (
            {"distributions": "halves", "partition": "0:100", "clients": 1, "samples": 250},
            "of distribution 0",
        ),
        (
            {"distributions": "iid", "partition": "dirichlet:1", "samples": 50},
            "500 training points are needed",
        ),
        ({"samples": 1}, "at least 2"),
        ({"samples": 4, "sizes": "unequal"}, "at least 5"),
        ({"unseen": 10}, "no client is left"),
        ({"distributions": "natural", "partition": "10:90"}, "natural is needed in both"),
        ({"partition": "natural", "distributions": "iid"}, "natural is needed in both"),
        ({"partition": "natural"}, "does not say whose points they are"),
        (NATURAL, "whose points they are"),
        (
            {"dataset": PEOPLE, "distributions": "natural", "partition": "natural", "clients": 21},
            "has 20",
        ),
        ({"distributions": "halves", "partition": "classes:2"}, "chooses classes"),
        ({"distributions": "groups", "partition": "dirichlet:1"}, "chooses classes"),
        ({"distributions": "iid", "partition": "classes:11"}, "the data has 10 classes"),
        ({"distributions": "iid", "drift_round": 2}, "at least two distributions"),
        ({"distributions": "iid", "swap_test_mix": True}, "two or more"),
        ({"distributions": "rotated:5"}, "2 to 4"),
        ({"distributions": "permuted:11"}, "2 to 10"),
        ({"distributions": "groups:x"}, "whole number"),
        ({"distributions": "halves:2"}, "takes no number"),
        ({"distributions": "rotate"}, "did you mean 'rotated'"),
        ({"dataset": "digitz"}, "did you mean 'digits'"),
        ({"dataset": f"{__name__}:rows", "distributions": "rotated"}, "needs square images"),
        ({"dataset": f"{__name__}:nothing"}, "returned NoneType"),
    ],
)
def test_what_does_not_go_together_says_so_in_one_line(task: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        made(**task)
    assert "\n" not in str(caught.value)
