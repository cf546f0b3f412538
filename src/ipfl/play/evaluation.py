"""When to evaluate, on whom, and the evaluation itself (run by the engine, like any other phase)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipfl.client.runner import (
    ASSESS,
    EVALUATE,
    LAST_STEP,
    WANTED_METRICS,
    WANTED_MODELS,
)
from ipfl.config.run_config import EvaluateConfig
from ipfl.config.train_section import AdaptConfig
from ipfl.core import (
    Ask,
    ClientId,
    Engine,
    Event,
    HasClusters,
    Method,
    Record,
    Replies,
    cluster_name,
    stream,
)
from ipfl.core.replies import Count, NonNegative, Number, ReplySchema, Whole, list_of
from ipfl.errors import NotSupportedError
from ipfl.play.driver import Traffic, exchange
from ipfl.play.metrics import Evaluation, is_separated, mean_and_std, purity
from ipfl.training.task import Task

ROUNDS_TO_SEPARATE = 5
"""Shorter runs are not blamed for clusters that have not separated."""


def _expect_scores(sent: Record) -> dict[str, Any]:
    expected: dict[str, Any] = {"n": Whole, "hits": NonNegative, "goal_n": Whole, "goal_hits": NonNegative}
    if wanted := sent.facts.get(WANTED_METRICS):
        expected["metrics"] = list_of(Number | None, len(wanted))
    if models := sent.facts.get(WANTED_MODELS):
        expected["model_hits"] = list_of(NonNegative | None, len(models))
    if sent.facts.get(LAST_STEP):
        expected["last_step"] = list_of(NonNegative | None, 2)
    return expected | ({"global_hits": NonNegative} if "global" in sent.params else {})


def _are_possible(facts: Mapping[str, Any]) -> bool:
    """Whether there are no more hits than points."""
    of_models = (hits for hits in facts.get("model_hits", ()) if hits is not None)
    most = max(facts["hits"], facts.get("global_hits", 0), *of_models)
    return bool(most <= facts["n"] and facts["goal_hits"] <= facts["goal_n"])


SCORES = ReplySchema(_expect_scores, rule=_are_possible)
"""Hits of a client's predictor among `n` test points and among `goal_n` points of its goal; hits of the model
`global`, if it was sent, among the test points; the metrics that are wanted, and the hits of the models that
are; passes and seconds of the last step."""


def _hit_rates(replies: Replies, key: str, points: str = "n") -> dict[ClientId, float]:
    """Hits per point of those that have points."""
    return {
        c: r.facts[key] / r.facts[points] for c, r in replies.items() if key in r.facts and r.facts[points]
    }


def _last_step_cost(replies: Sequence[Record]) -> dict[str, float]:
    """Means over the clients that said what their last step took."""
    said = [found for reply in replies if None not in (found := reply.facts.get("last_step", [None]))]
    if not said:
        return {}
    passes, seconds = np.mean(said, axis=0).tolist()
    return {"last_step_passes": passes, "last_step_seconds": seconds}


def _separation(
    asked: Mapping[ClientId, Record], replies: Replies, preferred: Mapping[ClientId, int]
) -> dict[ClientId, float]:
    """Accuracy of the preferred cluster's model minus the mean of the others', by client.

    On test points, which nobody chose the cluster by: on others, the preferred one would look better than it
    is. Clients that were not asked for it, or keep it to themselves, are not there.
    """
    found = {}
    for client, reply in replies.items():
        names, n = asked[client].facts.get(WANTED_MODELS, ()), reply.facts["n"]
        hits = dict(zip(names, reply.facts.get("model_hits", ()), strict=True))
        own = hits.pop(cluster_name(preferred[client]), None) if hits else None
        if own is not None and None not in hits.values() and n:
            found[client] = (own - sum(hits.values()) / len(hits)) / n
    return found


def _not_separated(separation: Mapping[ClientId, float]) -> Event:
    figure = mean_and_std(separation) or {"mean": 0.0, "std": 0.0}
    gain = f"{100 * figure['mean']:+.1f} ± {100 * figure['std']:.1f} points"
    text = (
        "the clusters have not separated: the model of the cluster that a client prefers is no better for it "
        f"than the others ({gain} over {len(separation)} clients). Either all data is of one kind, or "
        "telling kinds apart takes more rounds or more points"
    )
    return Event("not_separated", None, text)


class Evaluator:
    """Evaluates the state of a method when it is due.

    Args:
        task: Data and model.
        method: Whose states.
        config: When, and on whom.
        seed: Of the run.
        decides: Whether something depends on evaluations before the last, such as who leaves. If not, clients
            take their last step for the last one alone.
        adapt: The last step at the clients.
    """

    def __init__(
        self,
        task: Task,
        method: Method[Any],
        config: EvaluateConfig,
        seed: int,
        *,
        decides: bool = False,
        adapt: AdaptConfig | None = None,
    ):
        self.task, self.method, self.config, self.seed = task, method, config, seed
        self.adapt = adapt or AdaptConfig()
        self.decides = decides
        self.clients = self._choose()
        self.metrics = self._choose_metrics()

    def _choose_metrics(self) -> tuple[str, ...]:
        """What is reported beside the accuracy; for classes nothing, unless the config says so."""
        if self.config.metrics is None and self.task.target.kind == "classes":
            return ()
        from ipfl.client.prediction_metrics import choose_metrics

        return choose_metrics(self.config.metrics, self.task.target)

    def _choose(self) -> tuple[ClientId, ...]:
        everyone = self.task.data.clients
        if self.config.clients is None or self.config.clients >= len(everyone):
            return everyone
        chosen = stream(self.seed, "evaluated").choice(everyone, self.config.clients, replace=False)
        return tuple(sorted(int(client) for client in chosen))

    def is_due(self, round: int) -> bool:
        """Whether this round is evaluated if it is not the last one."""
        return (round + 1) % self.config.every == 0

    def __call__(self, engine: Engine, state: Any, round: int, *, last: bool = False) -> Evaluation:
        """Evaluates on the chosen clients; after the last round on the unseen ones as well.

        Args:
            engine: Asks the clients.
            state: Of the method.
            round: That was played.
            last: Whether it is the last one.
        """
        data = self.task.data
        offers = {client: self.method.offer(state, client) for client in self.clients}
        if last and data.unseen:
            offers |= self._offers_to_unseen(engine, state)
        preferred = self.method.preferences(state) if last and isinstance(self.method, HasClusters) else {}
        names = [*self.method.models(state)] if preferred else []
        asked = {
            client: self._with_wishes(offer, names if client in preferred else [], last=last)
            for client, offer in offers.items()
        }
        replies = self._ask(Ask(EVALUATE, asked, SCORES), engine, round)
        separation = _separation(asked, replies, preferred)
        if separation and round + 1 >= ROUNDS_TO_SEPARATE and not is_separated(list(separation.values())):
            engine.events.append(_not_separated(separation))
        accuracy, shared = _hit_rates(replies, "hits"), _hit_rates(replies, "global_hits")
        goal = _hit_rates(replies, "goal_hits", "goal_n")
        majority = {client: data.majority(client, round) for client in data.clients}
        personalized = {c: value for c, value in accuracy.items() if c not in data.unseen}
        models = self.method.models(state)
        cluster_accuracy = self._assess(engine, models, round)
        return Evaluation(
            round=round,
            personalized=personalized,
            shared={c: value for c, value in shared.items() if c not in data.unseen},
            cluster_accuracy=cluster_accuracy,
            assessed=() if cluster_accuracy is None else tuple(models),
            purity=self._purity(state, majority),
            unseen={c: value for c, value in accuracy.items() if c in data.unseen},
            goal={c: value for c, value in goal.items() if c in personalized},
            separation=separation,
            **_last_step_cost([reply for client, reply in replies.items() if client in personalized]),
            metrics={
                name: {c: replies[c].facts["metrics"][place] for c in personalized}
                for place, name in enumerate(self.metrics)
            },
        )

    def _with_wishes(self, offer: Record, names: Sequence[str], *, last: bool) -> Record:
        """The offer, with what is to be reported beside the hits of the client's predictor."""
        models = [name for name in names if name in offer.params]
        wishes: dict[str, Any] = {WANTED_METRICS: list(self.metrics)} if self.metrics else {}
        if self.adapt.is_on and (last or self.decides):
            wishes[LAST_STEP] = True
        if len(models) > 1:
            wishes[WANTED_MODELS] = models
        return Record(offer.params, {**offer.facts, **wishes}) if wishes else offer

    @staticmethod
    def _ask(ask: Ask, engine: Engine, round: int) -> Replies:
        """The valid replies; an evaluation is no part of the round's traffic."""
        traffic = Traffic()
        replies = exchange(ask, engine, round, traffic)
        traffic.silent.clear()  # the engine has an event, if there is something to report
        engine.events += traffic.events()
        return replies

    def _purity(self, state: Any, majority: Mapping[ClientId, int | None]) -> float | None:
        if self.task.data.distributions < 2 or not isinstance(self.method, HasClusters):
            return None
        return purity(self.method.preferences(state), majority)

    def _offers_to_unseen(self, engine: Engine, state: Any) -> dict[ClientId, Record]:
        try:
            return {client: self.method.offer(state, client) for client in self.task.data.unseen}
        except NotSupportedError as error:
            text = f"unseen clients are not evaluated: {error}"
            engine.events.append(Event("not_evaluated", None, text))
            return {}

    def _assess(self, engine: Engine, models: Mapping[str, Any], round: int) -> list[list[float]] | None:
        """Accuracy of every server model on every distribution: [distribution][model]."""
        if not models or not self.task.data.distributions:
            return None
        record = Record(models, {"limit": self.config.holdout})
        schema = ReplySchema({"n": Count, "hits": list_of(NonNegative, len(models))})
        to = dict.fromkeys(range(self.task.data.distributions), record)
        replies = self._ask(Ask(ASSESS, to, schema), engine, round)
        if len(replies) < self.task.data.distributions:  # a worker died; rows would be misnumbered
            return None
        return [[hits / reply.facts["n"] for hits in reply.facts["hits"]] for reply in replies.values()]
