"""The default market against clients that do not train: by agreement they contribute nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
import pytest
from tests.federation import Answer, Played
from tests.methods.ipfl_plus.scripted import (
    HONEST,
    moved,
    no_bid,
    play,
    setup,
    unless,
)

from ipfl.core import Record
from ipfl.methods.ipfl_plus.ipfl_plus import IPFL
from ipfl.methods.ipfl_plus.market_state import MarketState
from ipfl.methods.ipfl_plus.updates import ClusterUpdates, collect_updates


class TestRecords:
    """What keeps an update out of the mean is the client's record, not one round."""

    def step_after(self, record: float, way: float) -> float:
        """How far the model goes if clients 0, 1 and 2 go one step, and client 3 `way` of it.

        Client 3 has trained nine times before, with this mean contribution.
        """
        method_ = IPFL(clusters=1)
        state = method_.init(setup(size=64))
        omega, records = np.zeros_like(state.omega), np.full_like(state.record, np.nan)
        omega[3], records[3] = 9, record
        state = replace(state, omega=omega, record=records)
        step = np.random.default_rng(0).normal(size=64).astype(np.float32)
        models = tuple(state.models[0] + step * share for share in (1, 1, 1, way))
        updates = ClusterUpdates.of(state.models[0], (0, 1, 2, 3), models, np.ones(4))
        with pytest.raises(StopIteration) as done:  # nothing is asked of anybody
            next(method_.aggregate_and_appraise(state, {0: updates}))
        moved = done.value.value.shared.models[0] - state.models[0]
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
        state = replace(IPFL(clusters=len(steps)).init(setup(10, size=10)), usual_length=usual)
        seats, replies = np.zeros((10, len(steps)), bool), {}
        for k, lengths in enumerate(steps):
            for client, length in lengths.items():
                seats[client, k] = True
                step = length * np.eye(10, dtype=np.float32)[client]  # each its own way: no copies
                count = 100 if client in liars else 10
                replies[client] = Record({f"cluster_{k}": state.models[k] + step}, {"n": count})
        updates, _ = collect_updates(state, seats, replies, IPFL().guards)
        return list(updates.values())

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
        method_ = IPFL()
        state, done, _ = play(method_, 8, HONEST | {"train": train_}, size=self.SIZE)
        lazy = [row for one in done for row in one.done.market.contributions if row.client in (0, 1)]
        assert lazy
        assert {row.psi for row in lazy} == {0}
        assert not [row for one in done for row in moved(one, "reward") if row[0] in (0, 1)]
        assert (state.earned[2:] > 0).all()
        self.replay(method_, state, done)

    def replay(self, method_: IPFL, state: MarketState, done: list[Played]) -> None:
        """The record gives the same transfers, and others if all were rewarded."""
        lines = [{"seats": one.done.seats, **one.done.market.line()} for one in done]
        rules = method_.rules(state)
        replay = method_.replay(rules, range(8))
        for line in lines:
            replayed = replay.round(line)
            assert replayed.complaint is None
            assert replayed.transfers == line["transfers"]
        trusting = method_.replay({**rules, "positive": False}, range(8))
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

        method_ = IPFL()
        state = method_.init(setup(size=self.SIZE))
        script = HONEST | {"train": self.updates(again)}
        cheated = []
        for number in range(8):
            models = {f"cluster_{k}": model for k, model in enumerate(state.models)}
            state, (one,), _ = play(method_, 1, script, state=state, first=number)
            before.update(models)
            if number:
                cheated += [row.psi for row in one.done.market.contributions if row.client in (0, 1)]
        assert cheated
        assert max(cheated) <= 0
        assert (state.earned[[0, 1]] == 0).all()

    def test_copies_earn_nothing(self):
        # Client 1 sends what client 0 sends, which is what an honest client would.
        def copy(client: int, ask: Record) -> Record:
            models = {}
            for name, model in ask.params.items():
                step = np.random.default_rng(9).normal(size=self.SIZE) + 1
                models[name] = (model + step).astype(np.float32)
            return Record(models, {"n": 10})

        state = IPFL(clusters=1).init(replace(setup(size=self.SIZE), per_round=8))
        script = HONEST | {"train": self.updates(copy), "preference": no_bid}
        _, (first,), _ = play(IPFL(clusters=1), 1, script, state=state)
        own = {row.client: row.psi for row in first.done.market.contributions}
        assert own[1] == 0
        assert own[0] != 0

    def test_the_server_remembers_directions_and_the_last_five_steps(self):
        script = HONEST | {"train": self.updates(lambda client, ask: Record(ask.params, {"n": 10}))}
        state, _, _ = play(IPFL(), 8, script, size=self.SIZE)
        assert [len(steps) for steps in state.last_steps] == [5, 5]
        assert all(direction is not None and direction.any() for direction in state.directions)

    def test_private_updates_are_not_taken_for_noise(self):
        """With noise for privacy all updates look untrained: only where that is declared do models move."""
        rng = np.random.default_rng(1)

        def noise(client: int, ask: Record) -> Record:
            moved = {
                name: (m + rng.normal(size=self.SIZE)).astype(np.float32) for name, m in ask.params.items()
            }
            return Record(moved, {"n": 10})

        method_ = IPFL()
        before = method_.init(setup(8, size=self.SIZE))
        steps = {}
        for declared in (False, True):
            state = replace(before, is_noisy=declared)
            after, done, _ = play(method_, 1, HONEST | {"train": noise}, state=state)
            steps[declared] = [float(np.abs(m).max()) for m in after.models]
            earned = [row.psi for row in done[0].done.market.contributions]
            assert any(psi > 0 for psi in earned) == declared
        assert max(steps[False]) == 0
        assert min(steps[True]) > 0
