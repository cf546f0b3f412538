"""One round of `ipfl` with 4 clients and 2 clusters, worked out on paper and played through the driver.

Price τ_p = 10, η = 1/2, γ = 0.2. Clients 2 and 3 bring 12 and 15 tokens along, the others open with 100: 227
in all. Four seats in round 3, two for each cluster. One of them is for N_r = ⌈4·1/4⌉ = 1 explorer, who in odd
rounds is cluster 0's. So N_p = 1, 2 and N_r = 1, 0.

Bids (P_B, most wanted first), and ψ as it is known:

    client   bids     ψ in 0   in 1
    0        [0]      0.1      –
    1        [0, 1]   0.3      −0.2
    2        [1]      –        –        never trained: counts as 0
    3        [1]      –        0.5

Seats. S_0 = 1, 0: N_p = 1 seats client 1. The explorer of cluster 0 must be client 0, whose bid there is
paid: 2 and 3 have 2 and 5 tokens left. S_1 = 3, 2, 1: N_p = 2 seats 3 and 2. The bid of client 1 for cluster
1 is refunded.

    auction    balances 90, 80, 2, 5    escrow 20, 30
    seats      balances 90, 90, 2, 5    pools  20, 20

Training. Both models are (0, 0). What comes back, and its mean by samples:

    cluster 0   client 0: (4, 0) of 10, client 1: (0, 4) of 30 samples    M_0 = (1, 3)
    cluster 1   client 2: (2, 0) of 20, client 3: (0, 2) of 20            M_1 = (1, 1)

Profiler. Gradients at M_k: clients 0 and 2 say (−1, 0), clients 1 and 3 (0, −1), each of as many points.

    g_0 = (10·(−1, 0) + 30·(0, −1))/40 = (−1/4, −3/4), λ = 1/4, 3/4
    ψ_0 = 1/4·(1/4·(4 − 1) + 3/4·(0 − 3)) = −0.375    ψ_1 = 3/4·(1/4·(0 − 1) + 3/4·(4 − 3)) = 0.375
    g_1 = (−1/2, −1/2), λ = 1/2, 1/2
    ψ_2 = 1/2·(1/2·(2 − 1) + 1/2·(0 − 1)) = 0         ψ_3 = 0

Accuracies. Cluster 0: 6 of 10 and 27 of 30, 33/40 = 0.825; best before 0.75, a gain of a tenth, half of γ:
U_0 = 1/2·(0.2 − 0.1)/0.2 = 1/4. Cluster 1: 10 and 20 of 20, 0.75; best before 0.8, no gain: U_1 = η = 1/2.

Reimbursement. Cluster 0: 5 of 20 tokens to payers 0 and 1: 3 and 2, the odd one to the lowest id. Cluster 1:
10 of 20 to payers 2 and 3, 5 each.

Reward by rank. Cluster 0: 15 tokens, client 1 above client 0: 10 and 5. Cluster 1: 10 tokens, ψ are equal
and Ω decides: client 3 trained there before, so 2/3 and 1/3 of 10 for clients 3 and 2 are 7 and 3.

    balances 90 + 3 + 5 = 98, 90 + 2 + 10 = 102, 2 + 5 + 3 = 10, 5 + 5 + 7 = 17    (sum 227)
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.federation import Played, ScriptedEngine, play_round, setup

from ipfl.core import Record
from ipfl.ledger.verify import ReplayedRound
from ipfl.market.market_rows import Transfer
from ipfl.methods.ipfl import IPFL, IPFLState

NAN = np.nan
BIDS = {0: [0], 1: [0, 1], 2: [1], 3: [1]}
TRAINED = {0: ("cluster_0", (4, 0), 10), 1: ("cluster_0", (0, 4), 30), 2: ("cluster_1", (2, 0), 20)}
TRAINED[3] = ("cluster_1", (0, 2), 20)
HITS = {0: 6.0, 1: 27.0, 2: 10.0, 3: 20.0}
METHOD = IPFL(price=10, opening=100, eta=0.5, gamma=0.2, explore=0.25, explore_floor=0.25)


def prefer(client: int, ask: Record) -> Record:
    return Record({}, {"bids": BIDS[client], "hits": [], "n": 10})


def train(client: int, ask: Record) -> Record:
    name, model, samples = TRAINED[client]
    assert {*ask.params} == {name}
    return Record({name: np.array(model, np.float32)}, {"n": samples})


def appraise(client: int, ask: Record) -> Record:
    name, _, points = TRAINED[client]
    gradient = np.array([[-1, 0], [0, -1]][client % 2], np.float32)
    return Record({name: gradient}, {name: [HITS[client], float(points)]})


SCRIPT = {"preference": prefer, "train": train, "appraise": appraise}


def before() -> IPFLState:
    """The state before round 3."""
    start = METHOD.init(setup(4, 4, balances={2: 12, 3: 15}))
    psi = np.array([[0.1, NAN], [0.3, -0.2], [NAN, NAN], [NAN, 0.5]])
    omega = np.isfinite(psi).astype(np.int64)
    return dataclasses.replace(start, psi=psi, omega=omega, best=np.array([0.75, 0.8]))


@pytest.fixture(scope="module")
def played() -> Played:
    return play_round(METHOD, before(), ScriptedEngine(SCRIPT), 4, round=3)


def test_seats(played: Played) -> None:
    assert played.seats == [
        (1, 0, "performance", True),
        (0, 0, "random", True),
        (2, 1, "performance", True),
        (3, 1, "performance", True),
    ]


def test_what_is_asked(played: Played) -> None:
    assert played.engine.actions == ["preference", "train", "appraise"]
    query = played.engine.asks[0].to
    assert {*query} == {0, 1, 2, 3}
    assert [query[i].facts["balance"] for i in range(4)] == [100, 100, 12, 15]


def test_models(played: Played) -> None:
    assert [model.tolist() for model in played.state.models] == [[1, 3], [1, 1]]


def test_every_transfer(played: Played) -> None:
    bids = [("bid", 0, -2, 10, 0, 0), ("bid", 1, -2, 10, 0, 1), ("bid", 1, -4, 10, 1, 1)]
    bids += [("bid", 2, -4, 10, 1, 2), ("bid", 3, -4, 10, 1, 3)]
    fees = [("fee", -2, -3, 10, 0, 0), ("fee", -2, -3, 10, 0, 1)]
    fees += [("fee", -4, -5, 10, 1, 2), ("fee", -4, -5, 10, 1, 3)]
    back = [("refund", -4, 1, 10, 1, 1)]
    first = [("reimbursement", -3, 0, 3, 0, 0), ("reimbursement", -3, 1, 2, 0, 1)]
    first += [("reward", -3, 0, 5, 0, 0), ("reward", -3, 1, 10, 0, 1)]
    second = [("reimbursement", -5, 2, 5, 1, 2), ("reimbursement", -5, 3, 5, 1, 3)]
    second += [("reward", -5, 2, 3, 1, 2), ("reward", -5, 3, 7, 1, 3)]
    expected = [Transfer(*row) for row in (*bids, *fees, *back, *first, *second)]
    assert list(played.done.market.transfers) == expected


def test_what_is_remembered(played: Played) -> None:
    state = played.state
    assert state.accounts.balances.tolist() == [98, 102, 10, 17]
    assert state.accounts.net.tolist() == [[-2, 0], [2, 0], [0, -2], [0, 2]]
    assert state.accounts.earned.tolist() == [5, 10, 3, 7]
    np.testing.assert_allclose(state.psi, [[-0.375, NAN], [0.375, -0.2], [NAN, 0], [NAN, 0]])
    assert state.omega.tolist() == [[2, 0], [2, 1], [0, 1], [0, 2]]
    np.testing.assert_allclose(state.best, [0.825, 0.8])
    assert METHOD.preferences(state) == {0: 0, 1: 0, 2: 1, 3: 1}


def test_what_is_reported(played: Played) -> None:
    market = played.done.market
    assert [(row.client, row.cluster, row.psi, row.omega) for row in market.contributions] == [
        (0, 0, pytest.approx(-0.375), 2),
        (1, 0, pytest.approx(0.375), 2),
        (2, 1, 0, 1),
        (3, 1, 0, 2),
    ]
    assert [figure.value for figure in market.cluster_probe_accuracy] == pytest.approx([0.825, 0.75])
    assert [figure.value for figure in market.best_before] == [0.75, 0.8]
    assert [figure.value for figure in market.reimbursed_share] == pytest.approx([0.25, 0.5])
    assert [(bid.client, bid.cluster, bid.rank) for bid in market.bids] == [
        (0, 0, 0),
        (1, 0, 0),
        (1, 1, 1),
        (2, 1, 0),
        (3, 1, 0),
    ]
    assert market.economy["empty_seats"] == 0


@pytest.mark.parametrize("sent", [None, Record({"cluster_0": np.ones(2, np.float32)}, {"n": 0})])
def test_a_client_that_does_not_deliver_pays_nevertheless(sent: Record | None) -> None:
    # Client 1 is silent, or says that it has no samples: M_0 = (4, 0), client 0 is alone and ψ = 0.
    # Acc_0 = 0.6: no gain, half of 20 back to both payers, 5 each, and the other 10 to client 0. Balances
    # 90 + 5 + 10 and 90 + 5.
    silent = {**SCRIPT, "train": lambda client, ask: sent if client == 1 else train(client, ask)}
    done = play_round(METHOD, before(), ScriptedEngine(silent), 4, round=3)
    assert done.state.models[0].tolist() == [4, 0]
    assert done.state.accounts.balances.tolist() == [105, 95, 10, 17]
    # Lost at the server itself: the price comes back, client 0 pays 10, gets 5 back and earns 5.
    lost = play_round(METHOD, before(), ScriptedEngine(SCRIPT, lost=[1]), 4, round=3)
    assert lost.state.accounts.balances.tolist() == [100, 100, 10, 17]
    assert [seat.client for seat in lost.done.seats if seat.excused] == [1]


def test_without_incentives_all_is_given_back() -> None:
    method = dataclasses.replace(METHOD, incentive=False)
    state = before()
    done = play_round(method, state, ScriptedEngine({**SCRIPT, "train": echo}), 4, round=3)
    assert done.engine.actions == ["train"]
    assert done.state.accounts.balances.tolist() == state.accounts.balances.tolist()
    kinds = {transfer.kind for transfer in done.done.market.transfers}
    assert kinds == {"bid", "fee", "refund"}
    assert done.done.market.contributions == ()
    assert {len(bids) for bids in bids_by_client(done).values()} == {1}


def echo(client: int, ask: Record) -> Record:
    return Record(ask.params, {"n": 10})


def bids_by_client(done: Played) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for bid in done.done.market.bids:
        found.setdefault(bid.client, []).append(bid.cluster)
    return found


@pytest.mark.parametrize("incentive", [True, False])
def test_the_replay_of_its_record_moves_the_same_tokens(incentive: bool) -> None:
    """Four rounds from the opening on, by the record alone."""
    method = dataclasses.replace(METHOD, incentive=incentive)
    state = method.init(setup(4, 4, balances={2: 12, 3: 15}))
    replay = method.replay(method.rules(state), range(4))
    assert replay.opening() == ReplayedRound(method.opening_transfers(state))
    script = {**SCRIPT, "train": echo, "appraise": all_right}
    for round in range(4):
        done = play_round(method, state, ScriptedEngine(script), 4, round).done
        line = {**done.market.line(), "seats": done.seats}
        assert replay.round(line) == ReplayedRound(tuple(done.market.transfers))
        state = done.state
    assert replay.accounts.balances.tolist() == state.accounts.balances.tolist()


def all_right(client: int, ask: Record) -> Record:
    gradients = {name: np.full_like(model, client + 1.0) for name, model in ask.params.items()}
    return Record(gradients, {name: [5.0 + client, 10.0] for name in ask.params})
