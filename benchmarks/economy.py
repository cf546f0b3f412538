"""The economy of IP-FL alone: who runs out of tokens in a long run, and how unequal wealth becomes.

    python benchmarks/economy.py [--clients 100] [--rounds 500] [--clusters 2 4] [--set rule=paper]

The rounds are IP-FL's own (`IPFLPlus.round`): auction, scheduler, payments, settlement, access. Only the
learning is left out. Clients have a quality that stays, spread evenly from 0 to 1, and a cluster that suits
them. Scores of the models rise as in training, with the noise of 20 points. The contribution of an update is
0.1 + 0.5·quality plus normal noise of 0.2, so that some updates of the worst clients count for nothing. One
update in fifty does not come. Half of the clients get a seat in every round.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.config.run_config import RunConfig
from ipfl.core import Ask, ClientId, Record, Roster, Setup, TaskFacts, Vector, stream
from ipfl.market.market_stats import gini, rank_correlation
from ipfl.methods.ipfl_plus.contribution import Contributions, Psi
from ipfl.methods.ipfl_plus.guards import GuardName, Guards
from ipfl.methods.ipfl_plus.importance import choose_bids, mean_returns, relative_importance
from ipfl.methods.ipfl_plus.ipfl_plus import IPFLPlus
from ipfl.methods.ipfl_plus.payment import Payment
from ipfl.methods.ipfl_plus.run_facts import RunFacts
from ipfl.methods.ipfl_plus.sharing import Sharing, SharingRecord
from ipfl.methods.ipfl_plus.updates import Clusters, Updates

POINTS = 20
"""On which a client scores models."""
LOST = 0.02
"""Share of the updates that do not come."""
LEARNING_ROUNDS = 20.0
"""Time in which the models become good."""


class KeptModels(dict[ClientId, Vector]):
    """Models of clients that stopped paying, in memory."""

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Whose models are there."""
        return tuple(sorted(self))

    def put(self, vectors: Mapping[ClientId, Vector], round: int) -> KeptModels:
        """With these models as well."""
        return KeptModels({**self, **vectors})


@dataclass(frozen=True)
class Population:
    """The clients, and what happens to them by chance."""

    quality: NDArray[np.float64]
    clusters: int
    seed: int

    @classmethod
    def make(cls, clients: int, clusters: int, seed: int) -> Population:
        """Qualities from 0 to 1, in every cluster alike."""
        return cls(stream(seed, "quality").permutation(np.linspace(0, 1, clients)), clusters, seed)

    def scores(self, round: int) -> NDArray[np.float64]:
        """(N, K) of the models on each client's points: good with its own, half as good with the others."""
        own = np.arange(len(self.quality))[:, None] % self.clusters == np.arange(self.clusters)
        mean = 0.1 + 0.7 * (1 - math.exp(-round / LEARNING_ROUNDS))
        return stream(self.seed, "scores", round).binomial(POINTS, np.where(own, mean, mean / 2)) / POINTS

    def contributions(self, round: int) -> NDArray[np.float32]:
        """(N, 1) ψ of every client's update; NaN: it does not come."""
        rng = stream(self.seed, "contributions", round)
        psi = 0.1 + 0.5 * self.quality + 0.2 * rng.normal(size=len(self.quality))
        return np.where(rng.random(len(psi)) < LOST, np.nan, psi)[:, None].astype(np.float32)


class DrawnContributions(Contributions):
    """Contributions as they were sent: models are single numbers, and an update is its own contribution."""

    def compare(self, updates: Updates, *, clip: bool, is_noisy: bool) -> Psi:
        """ψ of every provider."""
        return {k: np.array([model[0] for model in found.models]) for k, found in updates.items()}


class StillModels(Sharing):
    """Models that stay 0."""

    def move(
        self, clusters: Clusters, record: SharingRecord, updates: Updates, run: RunFacts, *, clip: bool
    ) -> tuple[Clusters, SharingRecord]:
        """Nothing moves."""
        return clusters, record


ONLY_CLAIMS: tuple[GuardName, ...] = ("copies", "lengths", "counts", "clip", "noise")
"""Guards that are left out: they look at updates, which are no models here."""


def make_method(clusters: int, **payment: Any) -> IPFLPlus:
    """IP-FL without the learning; the settings are those of its payment."""
    return IPFLPlus(
        clusters=clusters,
        payment=Payment(**payment),
        contribution=DrawnContributions(),
        guards=Guards(leave_out=ONLY_CLAIMS),
        sharing=StillModels(),
    )


class Economy:
    """A market whose clients are a population instead of a federation."""

    def __init__(self, method: IPFLPlus, population: Population, rounds: int):
        self.method, self.population = method, population
        clients = len(population.quality)
        self.roster = Roster(tuple(range(clients)))
        start = Setup(
            params=np.zeros(1, np.float32),
            clients=self.roster.clients,
            per_round=max(1, clients // 2),
            seed=population.seed,
            task=TaskFacts(2),
            config=RunConfig(rounds=rounds),
            make_client_models=KeptModels,
        )
        self.state = method.init(start)
        self.known: dict[ClientId, NDArray[np.float64]] = {}
        self.round = 0

    def play(self) -> dict[str, float]:
        """The next round; returns its figures."""
        phases = self.method.round(self.state, self.roster, self.round)
        try:
            ask = next(phases)
            while True:
                ask = phases.send(self.answer(ask))
        except StopIteration as end:
            self.state = end.value.state
            self.round += 1
            return {"seats": len(end.value.seats), **end.value.market.economy}

    def answer(self, ask: Ask) -> dict[ClientId, Record]:
        """What the population replies to a query for preferences, a training, or a question for accuracy."""
        if ask.action == "preference":
            scores = self.population.scores(self.round)
            return {client: self.bid(client, ask.to[client], scores[client]) for client in sorted(ask.to)}
        if ask.action == "appraise":
            means = {f"cluster_{k}": mean for k, mean in enumerate(self.state.preferences.means.tolist())}
            return {
                client: Record({}, {name: [POINTS * means[name], POINTS] for name in sent.params})
                for client, sent in ask.to.items()
            }
        psi = self.population.contributions(self.round)
        there = [client for client in sorted(ask.to) if not np.isnan(psi[client, 0])]
        return {
            client: Record(dict.fromkeys(ask.to[client].params, psi[client]), {"n": POINTS})
            for client in there
        }

    def bid(self, client: ClientId, sent: Record, scores: NDArray[np.float64]) -> Record:
        """As an honest client does (`Importance.bid`)."""
        if sent.params:
            self.known[client] = relative_importance(scores, np.asarray(sent.facts["means"]))
        bids = []
        if client in self.known:
            returns = mean_returns(sent.facts["seats"], sent.facts["net"], self.method.payment.price)
            bids = choose_bids(self.known[client], None, returns)
        hits = (POINTS * scores).tolist() if sent.params else []
        return Record({}, {"bids": bids, "hits": hits, "n": POINTS})


@dataclass(frozen=True)
class Outcome:
    """What became of the tokens."""

    broke: float
    """Largest share of clients that could not pay one price, after any round."""
    gini: float
    """Of the balances at the end."""
    poorest: float
    """In prices, like the next."""
    richest: float
    correlation: float | None
    """Rank correlation of what clients have with their quality."""
    seats: int
    """Fewest seats that were dealt in a round."""


def simulate(clients: int, clusters: int, rounds: int, seed: int = 0, **settings: Any) -> Outcome:
    """Plays an economy to its end; settings are those of the payment."""
    method = make_method(clusters, **settings)
    population = Population.make(clients, clusters, seed)
    economy = Economy(method, population, rounds)
    figures = [economy.play() for _ in range(rounds)]
    balances = economy.state.accounts.balances
    return Outcome(
        max(one["broke"] for one in figures) / clients,
        gini(balances),
        float(balances.min() / method.payment.price),
        float(balances.max() / method.payment.price),
        rank_correlation(balances.astype(np.float64), population.quality),
        int(min(one["seats"] for one in figures)),
    )


def main() -> None:
    """Prints a line for each number of clusters."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--clusters", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of the payment")
    options = parser.parse_args()
    settings: dict[str, Any] = {}
    for pair in options.set:
        name, _, value = pair.partition("=")
        try:
            settings[name] = json.loads(value)
        except json.JSONDecodeError:
            settings[name] = value
    print("clusters  broke at most  Gini   poorest  richest (prices)  ρ(tokens, quality)  seats at least")
    for clusters in options.clusters:
        end = simulate(options.clients, clusters, options.rounds, options.seed, **settings)
        correlation = math.nan if end.correlation is None else end.correlation
        print(
            f"{clusters:8}  {end.broke:13.1%}  {end.gini:.2f}  {end.poorest:8.1f}  {end.richest:16.1f}"
            f"  {correlation:18.2f}  {end.seats:14}"
        )


if __name__ == "__main__":
    main()
