"""Guards by hand: copies, extremes, sample counts, noise; and rounds with clients that cheat."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.federation import Answer, Played
from tests.methods.ipfl_plus.scripted import HONEST, moved, no_bid, play, setup, unless

from ipfl.config.sections import AggregateConfig
from ipfl.core import Record
from ipfl.methods.ipfl_plus.contribution import agreement, contributions_by_agreement
from ipfl.methods.ipfl_plus.guards import (
    GuardName,
    GuardRecord,
    Guards,
    find_originals,
    is_above_noise,
    is_too_long,
    median_length,
    usual_length_after,
)
from ipfl.methods.ipfl_plus.ipfl_plus import IPFLPlus
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.ipfl_plus.state import MarketState
from ipfl.methods.ipfl_plus.updates import ClusterUpdates, read_updates

EVERY_GUARD: tuple[GuardName, ...] = get_args(GuardName)
ALL_GUARDS = Guards()


def only(*names: GuardName) -> Guards:
    """These guards alone."""
    return Guards(leave_out=tuple(name for name in EVERY_GUARD if name not in names))


def screen(found: ClusterUpdates, guards: Guards = ALL_GUARDS) -> ClusterUpdates:
    """One cluster's updates, nothing else being known."""
    return guards.screen_cluster(found)


def updates(steps: list[list[float]] | np.ndarray, counts: list[float] | None = None) -> ClusterUpdates:
    """Updates from the model (1, 1, …), of 10 samples each if nothing else is said."""
    before = np.ones(len(steps[0]), np.float32)
    models = tuple((before + np.array(step)).astype(np.float32) for step in steps)
    n = len(models)
    weights = np.array(counts or [10.0] * n)
    return ClusterUpdates.of(before, tuple(range(n)), models, weights)


def originals(steps: np.ndarray) -> list[int]:
    """For every update the one that it is a copy of."""
    return find_originals(steps @ steps.T).tolist()


def too_long(steps: np.ndarray, *usual: float) -> np.ndarray:
    """Whether updates are too long."""
    return is_too_long(np.linalg.norm(steps, axis=1), *usual)


class TestScreen:
    def test_copies_count_once(self):
        # The second is the first at cosine 1/√(1 + 0.01²) > 0.95, and the fourth the third, twice as long.
        steps = [[1, 0], [1, 0.01], [0.6, 0.8], [1.2, 1.6]]
        assert originals(np.array(steps)) == [0, 0, 2, 2]
        assert screen(updates(steps)).is_fair.tolist() == [True, False, True, False]

    def test_copies_with_noise_of_a_quarter(self):
        # Cosines 1/(1 + ¼²) = 0.94 of the first two, 0 of all other pairs: over max(0.85, (1 + 0)/2).
        steps = np.array([[1.0, 0.25, 0, 0, 0], [1, 0, 0.25, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])
        assert originals(steps) == [0, 0, 2, 3]
        # There are but these two: they may be alike by chance.
        assert originals(steps[:2]) == [0, 1]

    def test_where_all_are_alike_nobody_copies(self):
        # All cosines are 1/(1 + ¼²) = 0.94, under (1 + 0.94)/2; the fifth is the first once more.
        steps = np.hstack([np.ones((4, 1)), np.eye(4) / 4])
        assert originals(steps) == [0, 1, 2, 3]
        assert originals(np.vstack([steps, steps[0]])) == [0, 1, 2, 3, 0]

    def test_the_way_back_is_no_copy(self):
        assert originals(np.array([[1.0, 0], [-1, 0]])) == [0, 1]

    def test_updates_of_length_0_are_not_copies_of_each_other(self):
        # They have no direction; that they contribute nothing is for others to say.
        assert originals(np.zeros((3, 2))) == [0, 1, 2]

    def test_much_longer_than_the_others(self):
        # Lengths 1, 1, 1, 3 and 3.1: three medians are 3.
        steps = [[1, 0], [0, 1], [-1, 0], [0, -3], [2.0, 2.37]]
        assert too_long(np.array(steps)).tolist() == [False] * 4 + [True]
        assert not screen(updates(steps)).is_fair[4]

    def test_usual_length(self):
        # The median of 1, 2 and 3 is 2; then 0.8·2 + 0.2·3. Who does not move does not count.
        first = median_length([np.array([1.0, 3, 0]), np.array([2.0, 0])])
        assert first == usual_length_after(float("nan"), first) == 2
        assert usual_length_after(2.0, 3.0) == pytest.approx(2.2)
        # Nobody moved: it stays as it was.
        assert usual_length_after(2.0, median_length([np.zeros(2)])) == 2
        # Most of a round attacked: 10 counts as twice 2.
        assert usual_length_after(2.0, 10.0) == pytest.approx(0.8 * 2 + 0.2 * 4)

    def test_free_riders_do_not_make_honest_updates_too_long(self):
        # The median is taken of those that are updates at all: 1.
        assert not too_long(np.array([[0.0, 0], [0, 0], [0, 0], [1, 0], [0, 1]])).any()
        assert not too_long(np.zeros((2, 2))).any()

    def test_claimed_samples_count_up_to_twice_the_median(self):
        # 10, 20, 30 and 1000: the median is 25.
        found = screen(updates([[1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, 0, 0]], [10, 20, 30, 1000]))
        assert found.weights.tolist() == [10, 20, 30, 50]

    def test_guards_work_one_by_one(self):
        # The second is a copy of the first, the third too long, and claims too many samples.
        found = updates([[1, 0], [1, 0.01], [0, -9], [-1, 0], [0, 1]], [10, 10, 1000, 10, 10])
        fair = {guard: (~screen(found, only(guard)).is_fair).nonzero()[0].tolist() for guard in EVERY_GUARD}
        assert {guard: rows for guard, rows in fair.items() if rows} == {"copies": [1], "lengths": [2]}
        limited = {g for g in EVERY_GUARD if screen(found, only(g)).weights[2] < 1000}
        assert limited == {"counts"}


rows = arrays(np.float64, st.tuples(st.integers(1, 8), st.just(3)), elements=st.floats(-4, 4, width=32))


@given(rows)
def test_whatever_comes_the_mean_is_a_model_no_further_away_than_three_medians(steps):
    found = screen(updates(steps))
    kept = found.only(found.is_fair)
    model = kept.mean(AggregateConfig(), clip=True)
    assert model.dtype == np.float32
    assert np.isfinite(model).all()
    lengths = found.products.lengths
    typical = np.median(lengths[lengths > 0]) if lengths.any() else 0.0
    assert np.linalg.norm(model - found.before) <= 3 * typical + 1e-5


@pytest.mark.parametrize(
    ("psi", "expected"),
    [
        ([1.0, 0.8, 0.6, 0.02], [True, True, True, False]),  # median 0.7, a tenth of it 0.07
        ([0.5, 0.0, -0.2], [True, False, False]),  # median 0: above 0
        ([-0.1, -0.3], [False, False]),  # a negative median is no limit below 0
        ([np.nan, 0.4], [True, True]),  # what is unknown may be good
        ([np.nan, 0.4, 0.01], [True, True, False]),  # median 0.205
        ([np.nan], [True]),
        ([], []),
    ],
)
def test_small_beside_the_median_is_noise(psi, expected):
    assert is_above_noise(np.array(psi)).tolist() == expected


def test_a_cluster_whose_updates_are_all_unfair_has_no_contributions_and_no_steps():
    # The first is ten times as long as the median, the others are copies of it: none of them counts.
    found = screen(updates([[10, 0], [1, 0], [1, 0]]))
    assert not found.is_fair.any()
    nobody = found.only(found.is_fair)
    assert nobody.products.among.shape == (0, 0)
    shares = nobody.shares(clip=True)
    assert contributions_by_agreement(nobody.products, shares).tolist() == []
    assert nobody.mean(AggregateConfig()).tolist() == [1, 1]


def test_two_long_reversed_updates_are_no_majority_beside_three():
    # Weights of 1/5 and M = (0.5, 0). As they are sent, those that go the right way are beside 0.5 + (1 + 1 −
    # 2.5 − 2.5)/5 = −0.1 of it and would count as wrong. Clipped to the median length 1: 0.5 + (2 − 2)/5, and
    # the reversed ones are beside 0.5 + (3 − 1)/5, against which they go.
    models = tuple(np.array(step, np.float32) for step in ([1, 0], [1, 0], [1, 0], [-2.5, 0], [-2.5, 0]))
    direction, weights = np.array([0.5, 0], np.float32), np.full(5, 10.0)
    found = ClusterUpdates.of(np.zeros(2, np.float32), tuple(range(5)), models, weights, (), direction)
    as_sent = agreement(found.products, found.shares(clip=False), with_direction=True)
    np.testing.assert_allclose(as_sent, [-1, -1, -1, -1, -1])
    np.testing.assert_allclose(found.shares(clip=True), [0.2, 0.2, 0.2, 0.08, 0.08])
    psi = contributions_by_agreement(found.products, found.shares(clip=True), is_noisy=True)
    np.testing.assert_allclose(psi, [1, 1, 1, -1, -1])


class TestRecords:
    """What keeps an update out of the mean is the client's record, not one round."""

    def step_after(self, record: float, way: float) -> float:
        """How far the model goes if clients 0, 1 and 2 go one step, and client 3 `way` of it.

        Client 3 has trained nine times before, with this mean contribution.
        """
        omega, records = np.zeros((8, 1), int), np.full((8, 1), np.nan)
        omega[3], records[3] = 9, record
        step = np.random.default_rng(0).normal(size=64)
        found = {0: updates([step * share for share in (1, 1, 1, way)])}
        psi = {0: contributions_by_agreement(found[0].products, np.full(4, 1 / 4))}
        facts = RunFacts.of(setup(), holds_back=True)
        kept, _ = Guards().drop_noise(found, psi, GuardRecord(records), facts, omega)
        moved = kept[0].mean(AggregateConfig()) - kept[0].before
        return float(moved @ step / (step @ step))

    def test_one_bad_round_does_not_count(self):
        # Contributions 1, 1, 1, −1; record 0.9·0.8 − 0.1·1 = 0.62, over a tenth of the median: (3 − 1)/4.
        assert self.step_after(0.8, -1) == pytest.approx(0.5, abs=1e-5)

    def test_nor_does_one_good_one(self):
        # 0.9·(−0.3) + 0.1·1 = −0.17: left out, the mean of the others is 1.
        assert self.step_after(-0.3, 0.5) == pytest.approx(1.0, abs=1e-5)

    def test_who_is_new_is_judged_by_the_round(self):
        assert self.step_after(np.nan, -1) == pytest.approx(1.0, abs=1e-5)
        assert self.step_after(np.nan, 0.5) == pytest.approx((3 + 0.5) / 4, abs=1e-5)


class TestMostOfACluster:
    """Most of a cluster's updates may come from attackers, and still be too long, or claim too much."""

    def screened(
        self, steps: list[dict[int, float]], *, usual: float = np.nan, liars: Collection[int] = ()
    ) -> list[ClusterUpdates]:
        """Each cluster's updates; `steps` are their lengths by client. All claim 10 samples, liars 100."""
        state = IPFLPlus(clusters=len(steps)).init(setup(10, size=10))
        seats, replies = np.zeros((10, len(steps)), bool), {}
        for k, lengths in enumerate(steps):
            for client, length in lengths.items():
                seats[client, k] = True
                step = length * np.eye(10, dtype=np.float32)[client]  # each its own way: no copies
                count = 100 if client in liars else 10
                replies[client] = Record({f"cluster_{k}": state.clusters.models[k] + step}, {"n": count})
        found, _ = read_updates(state.run, state.clusters, seats, replies)
        screened, _ = Guards().screen(found, replace(state.guards, usual_length=usual))
        return list(screened.values())

    def fair(self, steps: list[dict[int, float]], usual: float = np.nan) -> list[list[bool]]:
        """Which of each cluster's updates count."""
        return [found.is_fair.tolist() for found in self.screened(steps, usual=usual)]

    def test_the_other_clusters_tell_in_the_very_first_round(self):
        # Cluster 1 has a median of 10. That of all ten is 1: its double counts, and three of that are 6.
        found = self.fair([dict.fromkeys(range(5), 1.0), {5: 1, 6: 1, 7: 10, 8: 10, 9: 10}])
        assert found == [[True] * 5, [True, True, False, False, False]]

    def test_where_there_are_no_others_the_earlier_rounds_do(self):
        # The median is 10. Usual is 1.5: its double counts, and three of that are 9.
        alone = {5: 1.0, 6: 1.0, 7: 10.0, 8: 10.0, 9: 10.0}
        assert self.fair([alone]) == [[True] * 5]
        assert self.fair([alone], usual=1.5) == [[True, True, False, False, False]]

    def test_a_usual_length_of_long_ago_does_not_make_room(self):
        # First updates were 5 long, those of today are 1: 3·2·5 = 30 would let the attackers pass.
        steps = [dict.fromkeys(range(5), 1.0), {5: 1.0, 6: 1.0, 7: 10.0, 8: 10.0, 9: 10.0}]
        assert self.fair(steps, usual=5.0)[1] == [True, True, False, False, False]

    def test_a_cluster_whose_model_changed_is_left_in_peace(self):
        # All updates to cluster 1 are 8 long, beyond 3·2·1: its own median counts.
        steps = [dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5, 8), 8.0)]
        assert self.fair(steps, usual=1.0) == [[True] * 5, [True] * 3]

    def test_samples_that_most_of_a_cluster_claim(self):
        # Cluster 1 has a median of 100 samples, all ten updates one of 10: its double counts.
        steps = [dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5, 10), 1.0)]
        first, second = self.screened(steps, liars={7, 8, 9})
        assert first.weights.tolist() == [10] * 5
        assert second.weights.tolist() == [10, 10, 20, 20, 20]


class TestRobust:
    """The default market: contributions by agreement, updates screened."""

    SIZE = 64

    def updates(self, lazy: Callable[[int, Record], Record]) -> Answer:
        """All go a new common way in every round, and each its own; clients 0 and 1 are lazy."""
        rng = np.random.default_rng(0)
        ways: dict[bytes, np.ndarray] = {}

        def grow(client: int, ask: Record) -> Record:
            models = {}
            for name, model in ask.params.items():
                way = ways.setdefault(model.tobytes(), rng.normal(size=self.SIZE))
                step = way + 0.8 * np.random.default_rng(client).normal(size=self.SIZE)
                models[name] = (model + step).astype(np.float32)
            return Record(models, {"n": 10})

        return unless({0, 1}, grow, lazy)

    def test_who_returns_the_model_earns_nothing(self):
        train_ = self.updates(lambda client, ask: Record(ask.params, {"n": 10}))
        method_ = IPFLPlus()
        state, done, _ = play(method_, 8, HONEST | {"train": train_}, size=self.SIZE)
        lazy = [row for one in done for row in one.done.market.contributions if row.client in (0, 1)]
        assert lazy
        assert {row.psi for row in lazy} == {0}
        assert not [row for one in done for row in moved(one, "reward") if row[0] in (0, 1)]
        assert (state.accounts.earned[2:] > 0).all()
        assert [len(steps) for steps in state.clusters.last_steps] == [5, 5], "the last five are remembered"
        assert all(direction is not None and direction.any() for direction in state.clusters.directions)
        self.replay(method_, state, done)

    def replay(self, method_: IPFLPlus, state: MarketState, done: list[Played]) -> None:
        """The record gives the same transfers, and others by the printed rule."""
        lines = [{"seats": one.done.seats, **one.done.market.line()} for one in done]
        rules = method_.rules(state)
        replay = method_.replay(rules, range(8))
        for line in lines:
            replayed = replay.round(line)
            assert replayed.complaint is None
            assert replayed.transfers == line["transfers"]
        trusting = method_.replay({**rules, "settlement": "printed"}, range(8))
        assert [trusting.round(line).transfers for line in lines] != [line["transfers"] for line in lines]

    def test_who_replays_the_last_step_earns_nothing_with_noise_or_without(self):
        # Clients 0 and 1 send the last step of the cluster's model once more, client 1 with as much noise.
        before: dict[str, np.ndarray] = {}
        noise = np.random.default_rng(3)

        def again(client: int, ask: Record) -> Record:
            models = {}
            for name, model in ask.params.items():
                step = model - before.get(name, np.zeros(self.SIZE, np.float32))
                rough = noise.normal(size=self.SIZE)
                rough *= np.linalg.norm(step) / np.linalg.norm(rough) * client
                models[name] = (model + step + rough).astype(np.float32)
            return Record(models, {"n": 10})

        method_ = IPFLPlus()
        state = method_.init(setup(size=self.SIZE))
        script = HONEST | {"train": self.updates(again)}
        cheated = []
        for number in range(8):
            models = {f"cluster_{k}": model for k, model in enumerate(state.clusters.models)}
            state, (one,), _ = play(method_, 1, script, state=state, first=number)
            before.update(models)
            if number:
                cheated += [row.psi for row in one.done.market.contributions if row.client in (0, 1)]
        assert cheated
        assert max(cheated) <= 0
        assert (state.accounts.earned[[0, 1]] == 0).all()

    def test_copies_earn_nothing(self):
        # Client 1 sends what client 0 sends, which is what an honest client would.
        def copy(client: int, ask: Record) -> Record:
            models = {}
            for name, model in ask.params.items():
                step = np.random.default_rng(9).normal(size=self.SIZE) + 1
                models[name] = (model + step).astype(np.float32)
            return Record(models, {"n": 10})

        state = IPFLPlus(clusters=1).init(replace(setup(size=self.SIZE), per_round=8))
        script = HONEST | {"train": self.updates(copy), "preference": no_bid}
        _, (first,), _ = play(IPFLPlus(clusters=1), 1, script, state=state)
        own = {row.client: row.psi for row in first.done.market.contributions}
        assert own[1] == 0
        assert own[0] != 0

    def test_private_updates_are_not_taken_for_noise(self):
        """With noise for privacy all updates look untrained: only where that is declared do models move."""
        rng = np.random.default_rng(1)

        def noise(client: int, ask: Record) -> Record:
            moved = {
                name: (m + rng.normal(size=self.SIZE)).astype(np.float32) for name, m in ask.params.items()
            }
            return Record(moved, {"n": 10})

        method_ = IPFLPlus()
        before = method_.init(setup(8, size=self.SIZE))
        steps = {}
        for declared in (False, True):
            state = replace(before, run=replace(before.run, is_noisy=declared))
            after, done, _ = play(method_, 1, HONEST | {"train": noise}, state=state)
            steps[declared] = [float(np.abs(m).max()) for m in after.clusters.models]
            earned = [row.psi for row in done[0].done.market.contributions]
            assert any(psi > 0 for psi in earned) == declared
        assert max(steps[False]) == 0
        assert min(steps[True]) > 0
