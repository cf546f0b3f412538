"""Strategic clients: training costs them something, and tokens are worth something to them.

Every round each client picks one action, by Hedge over what each of them can be expected to bring:

- `train`: bid, and train honestly when it gets a seat.
- `return`, `replay`, `noise`: bid, and send the model as it came; the step that the model made since the
  client last saw it, once more; that step with noise of the same length. None of them costs anything.
- `buy`: bid, and do not answer when it gets a seat.
- `abstain`: do not bid.

The gain of a round is value·(tokens/price) + 40·(change of its own score) − cost·(models trained). A client
learns it from its next preference query, which tells it its balance. Without a seat all ways to bid bring the
same; what a seat brings under an action is the mean of what it brought under it so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipfl.client.memory import ClientMemory
from ipfl.client.runner import TRAIN, Delivery, Job, Runner
from ipfl.config.run_config import Action, StrategyConfig
from ipfl.core import ClientId, Record, Vector, stream
from ipfl.core.records import BUDGET_SPENT
from ipfl.stress.attackers import PREFERENCE
from ipfl.stress.runner_wrapper import RunnerWrapper
from ipfl.stress.seen_models import SECOND_MEMORY, last_step, with_seen

LEARNING_RATE = 0.5
FIRST_TRAINING_GAIN = 4.0
"""Gain that training is thought to have at first: clients join to train, and learn whether it pays."""
EXPLORATION = 0.05
"""Share of the rounds in which an action is picked at random."""
SCORE_VALUE = 40.0
"""What a change of a client's own score by 1 is worth to it."""
MEAN_ROUNDS = 10
"""Newest rounds that count in a mean, about."""
LAST_ROUNDS = 5
"""Rounds over which `honest_share` is the mean."""


def choice_probabilities(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Hedge: (1 − ε)·softmax(rate·gains) + ε/number of actions."""
    weights = np.exp(LEARNING_RATE * (gains - gains.max()))
    return np.asarray((1 - EXPLORATION) * weights / weights.sum() + EXPLORATION / len(gains))


@dataclass
class Experience:
    """What a client has learned so far, by action; kept in its memory as facts."""

    gains: list[float]
    """Summed expected gain of every action."""
    seat_gain: list[float]
    """Mean of what a seat brought under every action: value·earned − cost."""
    seats: list[int]
    """Seats had under every action."""
    bid_gain: float = 0.0
    """Mean of what bidding brought beside that: models, less their price."""
    bids: int = 0
    """Rounds in which it bid."""

    def expected(self, actions: Sequence[Action]) -> list[float]:
        """What every action can be expected to bring in a round; 0 for not bidding."""
        tried = [mean for mean, count in zip(self.seat_gain, self.seats, strict=True) if count]
        guess = float(np.mean(tried)) if tried else 0.0
        share = sum(self.seats) / max(1, self.bids)
        of_seat = [m if count else guess for m, count in zip(self.seat_gain, self.seats, strict=True)]
        return [
            0.0 if action == "abstain" else self.bid_gain + share * mean
            for action, mean in zip(actions, of_seat, strict=True)
        ]

    def learn(self, action: int, bid_gain: float, seat_gain: float | None) -> None:
        """Takes in a round in which the client bid.

        Args:
            action: What it did.
            bid_gain: What bidding brought beside the seat.
            seat_gain: What the seat brought; None: it had none.
        """
        self.bids += 1
        self.bid_gain += (bid_gain - self.bid_gain) / min(self.bids, MEAN_ROUNDS)
        if seat_gain is not None:
            self.seats[action] += 1
            self.seat_gain[action] += (seat_gain - self.seat_gain[action]) / min(
                self.seats[action], MEAN_ROUNDS
            )


class Strategic(RunnerWrapper[Runner]):
    """A runner whose clients decide in every round what to do."""

    def __init__(self, inner: Runner, config: StrategyConfig, seed: int):
        super().__init__(inner)
        self.config, self.seed = config, seed

    def deliver(self, job: Job) -> Iterator[Delivery]:
        """What the client does about a preference query or a training; everything else as it is."""
        if job.is_evaluation or job.client < 0 or job.action not in (PREFERENCE, TRAIN):
            yield from self.inner.deliver(job)
        elif job.action == PREFERENCE:
            yield self._prefer(job)
        else:
            yield from self._train(job)

    def _prefer(self, job: Job) -> Delivery:
        """Learns what the last action brought, picks the next one, and bids or not."""
        honest = self.inner.run(job)
        if BUDGET_SPENT in honest.facts:
            return Delivery(job, honest)
        mine = self.memory.load(job.client + SECOND_MEMORY)
        known = mine.facts
        hits, n = honest.facts["hits"], honest.facts["n"]
        score = max(hits) / max(n, 1) if hits else known.get("score", 0.0)
        experience = self._experience(known, score, job.record.facts)
        probability = choice_probabilities(np.array(experience.gains))
        rng = stream(self.seed, "strategy", job.round, job.client)
        action = int(rng.choice(len(probability), p=probability))
        bids = [] if self.config.actions[action] == "abstain" else honest.facts["bids"]
        facts = {
            **asdict(experience),
            "score": score,
            "balance": job.record.facts["balance"],
            "log": [*known.get("log", ()), [job.round, action]],
            "placed": len(bids),
            "seated": 0,
            "trained": 0,
        }
        params = with_seen(mine, job.record.params)
        self.memory.save(job.client + SECOND_MEMORY, Record(params, facts), job.round)
        return Delivery(job, replace(honest, facts={**honest.facts, "bids": bids}))

    def _experience(self, known: Mapping[str, Any], score: float, account: Mapping[str, Any]) -> Experience:
        """What the client has learned, the last round included."""
        count = len(self.config.actions)
        if "log" not in known:
            first = [FIRST_TRAINING_GAIN if action == "train" else 0.0 for action in self.config.actions]
            return Experience(first, [0.0] * count, [0] * count)
        names = Experience.__dataclass_fields__
        experience = Experience(**{name: copy(known[name]) for name in names})
        action = known["log"][-1][1]
        tokens = self.config.value * (account["balance"] - known["balance"]) / account["price"]
        change = SCORE_VALUE * (score - known["score"])
        if known["seated"]:
            paid = self.config.value * known["placed"]
            experience.learn(action, change - paid, tokens + paid - self.config.cost_or_0 * known["trained"])
        elif known["placed"]:
            experience.learn(action, change + tokens, None)
        expected = experience.expected(self.config.actions)
        experience.gains = [gain + more for gain, more in zip(experience.gains, expected, strict=True)]
        return experience

    def _train(self, job: Job) -> Iterator[Delivery]:
        """Trains, or pretends to."""
        mine = self.memory.load(job.client + SECOND_MEMORY)
        log = mine.facts.get("log", ())
        action: Action = self.config.actions[log[-1][1]] if log else "train"
        if log:
            trained = len(job.record.params) if action == "train" else 0
            facts = {**mine.facts, "seated": 1, "trained": trained}
            self.memory.save(job.client + SECOND_MEMORY, Record(mine.params, facts), job.round)
        if action == "train":
            yield from self.inner.deliver(job)
        elif action in ("buy", "abstain"):
            yield Delivery(job, None)
        else:
            reply = {
                name: self._pretend(action, job, name, model, last_step(mine, name, model))
                for name, model in job.record.params.items()
            }
            yield Delivery(job, Record(reply, {"n": len(self._data(job.client, job.round))}))

    def _pretend(
        self, action: Action, job: Job, name: str, model: Vector, step: NDArray[np.float64]
    ) -> Vector:
        """An update that cost nothing."""
        if action == "return":
            return model
        if action == "noise":
            noise = stream(self.seed, "strategy noise", job.round, job.client, name).standard_normal(
                model.size
            )
            step = step + noise * (np.linalg.norm(step) / np.linalg.norm(noise))
        return np.asarray(model + step, np.float32)

    def _data(self, client: ClientId, round: int) -> Any:
        return self.task.data.parts(client, round).train


def strategy_report(
    config: StrategyConfig, memory: ClientMemory, clients: Sequence[ClientId]
) -> Mapping[str, Any]:
    """For `summary.json`: what the clients did, by round.

    Returns:
        `honest_share`: share of `train` among all actions of the last five rounds in which anybody chose;
        `shares`: by round, the share of every action.
    """
    logs = [memory.load(client + SECOND_MEMORY).facts.get("log", ()) for client in clients]
    rounds: dict[int, list[int]] = {}
    for round, action in (entry for log in logs for entry in log):
        rounds.setdefault(round, []).append(action)
    shares = {
        round: [chosen.count(action) / len(chosen) for action in range(len(config.actions))]
        for round, chosen in sorted(rounds.items())
    }
    last = list(shares.values())[-LAST_ROUNDS:]
    honest = config.actions.index("train")
    return {
        "actions": list(config.actions),
        "honest_share": float(np.mean([row[honest] for row in last])) if last else None,
        "shares": [[round, *row] for round, row in shares.items()],
    }
