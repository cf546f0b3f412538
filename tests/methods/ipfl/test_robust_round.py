"""A robust round of IP-FL against scripted clients: what is asked, who earns, what the ledger can prove."""

from __future__ import annotations

import numpy as np
import pytest
from tests.methods.ipfl.scripted import HONEST, SIZE, play, setup

from ipfl.core import Record
from ipfl.errors import InputError
from ipfl.methods.ipfl.method import IPFL
from ipfl.methods.ipfl.replay import MarketReplay


def grow(client, ask):
    """Gradients that call for growth. All grow, each its own way; client 0 returns what it was sent."""
    assert ask.facts == {"gradient": True}
    own = np.zeros(SIZE, np.float32)
    own[client % SIZE] = client
    models = {name: model + (1 + own if client else own) for name, model in ask.params.items()}
    gradients = {f"gradient_{name}": -np.ones(SIZE, np.float32) for name in ask.params}
    return Record({**models, **gradients}, {"n": 10})


class TestRound:
    def test_the_gradient_travels_with_the_update_and_is_not_asked_for_again(self):
        _, _, engine = play(IPFL(robust=True), 1, HONEST | {"train": grow})
        assert engine.actions == ["train", "appraise"]
        assert all(record.facts == {"gradient": False} for record in engine.asks[1].to.values())

    def test_rounds_that_are_not_robust_ask_for_no_gradient(self):
        _, _, engine = play(IPFL(), 1)
        assert all(record.facts == {} for record in engine.asks[0].to.values())

    def test_a_free_rider_earns_nothing_and_the_ledger_replays(self):
        script = HONEST | {"train": grow}
        method = IPFL(robust=True)
        _, done, _ = play(method, 8, script)
        rounds = [one for one in done if any(seat.client == 0 for seat in one.done.seats)]
        assert rounds
        for one in rounds:
            assert {row.psi for row in one.done.market.contributions if row.client == 0} == {0}
            assert not [row for row in one.done.market.transfers if row.kind == "reward" and row.target == 0]
        lines = [{"seats": one.done.seats, **one.done.market.line()} for one in done]
        replay = MarketReplay(method.rules(), range(8))
        for line in lines:
            replayed = replay.round(line)
            assert replayed.complaint is None
            assert replayed.transfers == line["transfers"]
        trusting = MarketReplay({**method.rules(), "positive": False}, range(8))
        assert [trusting.round(line).transfers for line in lines] != [line["transfers"] for line in lines]

    @pytest.mark.parametrize("setting", [{"incentive": False}, {"contribution": "exact"}])
    def test_what_a_robust_market_cannot_do_without(self, setting):
        with pytest.raises(InputError, match="robust = true needs"):
            IPFL(robust=True, **setting).init(setup())

    def test_the_accuracy_of_a_cluster_is_the_median_claim(self):
        # Three sit in each cluster. One claims a million of a million points, the others say 5 of 10.
        seats = play(IPFL(), 1)[1][0].done.seats
        boasters = {min(seat.client for seat in seats if seat.cluster == k) for k in (0, 1)}

        def boast(client, ask):
            return Record(
                {}, {name: [1e6, 1e6] if client in boasters else [5.0, 10.0] for name in ask.params}
            )

        _, (first,), _ = play(IPFL(robust=True), 1, HONEST | {"train": grow, "appraise": boast})
        assert first.done.market.cluster_probe_accuracy == ((0, 0.5), (1, 0.5))
