"""Plays clients: finds a client's data and memory, calls the method's `on_<action>`, keeps what it remembers.

A runner is used in the server's process, in a worker process, or on a Flower node. Two actions belong to the
evaluator instead of a method: `EVALUATE` (a client's personalized model on its test data) and `ASSESS` (a
server model on the test pool of one distribution). Everything else is refused, and so is `ASSESS` where the
data is somebody's own: it tells about single points exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ipfl.client.client import Client
from ipfl.client.memory import ClientMemory
from ipfl.config.train_section import AdaptConfig, PrivacyConfig, TrainConfig
from ipfl.core import ClientId, Fact, Method, Record, holdout_distribution, stream
from ipfl.data.federated import Parts, Samples
from ipfl.errors import InputError
from ipfl.training.hardware import keep_freed_memory, prepare_network
from ipfl.training.network import Network, Points
from ipfl.training.sgd import Predictor, Score, evaluate, predicted_outputs, score_outputs
from ipfl.training.task import Task

TRAIN = "train"
EVALUATE = "evaluate"
ASSESS = "assess"
WANTED_METRICS = "evaluate_metrics"
"""Fact beside an offer to be evaluated: names of the metrics to report. No method sees it."""
WANTED_MODELS = "evaluate_models"
"""Likewise: names of the offered models whose own hits are to be reported."""
LAST_STEP = "evaluate_last_step"
"""Likewise: that the client takes its last step first (`[adapt]`), and says what that took. Not sent where a
run in progress is only looked at."""
FOR_EVALUATOR = (WANTED_METRICS, WANTED_MODELS, LAST_STEP)

Disguise = Callable[[Client], Client]
"""Changes what a client works with, before the method sees it."""


@dataclass(frozen=True)
class Job:
    """A client's part in one phase."""

    action: str
    round: int
    client: ClientId
    record: Record
    """What the server sent."""
    after_training: bool = False
    """Whether training was asked for earlier in this round, of any client."""
    number: int = 0
    """Of the ask that it belongs to, counted by the engine."""

    @property
    def is_evaluation(self) -> bool:
        """Whether the evaluator asks, and not the method."""
        return self.action in (EVALUATE, ASSESS)


@dataclass(frozen=True)
class Delivery:
    """What leaves a client."""

    job: Job
    """What it answers; perhaps an earlier job than the current one."""
    reply: Record | None
    """None: no answer."""
    is_last: bool = True
    """Whether nothing more comes of the current job."""
    is_late: bool = False
    """Whether the reply will come too late."""


class CrashError(Exception):
    """The process that plays the client is to be killed, unless it is the server's own."""


class ClientFailedError(RuntimeError):
    """A client's code raised; carries its traceback."""


def actions_of(method: Method[Any]) -> frozenset[str]:
    """The actions that the client side of a method answers: those with an `on_<action>`."""
    return frozenset(name.removeprefix("on_") for name in dir(type(method)) if name.startswith("on_"))


class Runner(Protocol):
    """What an engine needs of a place where clients are played."""

    task: Task
    """Whose data, which model."""
    memory: ClientMemory
    """The clients' memories."""
    network: Network
    """The workspace."""

    def run(self, job: Job) -> Record:
        """The client's reply."""
        ...

    def deliver(self, job: Job) -> Iterator[Delivery]:
        """Everything that leaves the client because of a job, in order."""
        ...


class ClientRunner:
    """Runs the client side of a method, one client at a time, in one workspace.

    Args:
        task: Data and model.
        method: Whose client side.
        settings: Of the training.
        seed: Of the run.
        memory: What the clients remember.
        privacy: What replies may reveal (see `runner_under`); None: everything.
        adapt: The last step at the clients; None: there is none.
        is_seeded: Whether noise follows from the run's seed, which everyone knows: for simulations and tests.
            Otherwise it comes from the operating system, evaluations are noisy too, and nobody's test data
            is assessed.
    """

    def __init__(
        self,
        task: Task,
        method: Method[Any],
        settings: TrainConfig,
        seed: int,
        memory: ClientMemory,
        privacy: PrivacyConfig | None = None,
        adapt: AdaptConfig | None = None,
        *,
        is_seeded: bool = True,
    ):
        self.task, self.method, self.settings, self.seed = task, method, settings, seed
        self.memory = memory
        self.privacy, self.is_seeded = privacy or PrivacyConfig(), is_seeded
        self.adapt = adapt or AdaptConfig()
        self.network: Network = task.network(seed)
        self.initial = self.network.read()
        self._is_started = False

    @property
    def actions(self) -> frozenset[str]:
        """All that is answered. Under `[privacy]`, what each may reveal is said in docs/privacy.md."""
        return actions_of(self.method) | ({EVALUATE, ASSESS} if self.is_seeded else {EVALUATE})

    def deliver(self, job: Job) -> Iterator[Delivery]:
        """The reply, once."""
        yield Delivery(job, self.run(job))

    def run(self, job: Job, disguise: Disguise | None = None) -> Record:
        """The client's reply; `disguise` changes what it works with.

        Raises:
            InputError: The action is none of those that are answered.
        """
        if job.action not in self.actions:
            raise InputError(f"clients of {self.method.name} do not answer {job.action[:50]!r}")
        self._start()
        if job.action == ASSESS:
            return self._assess(job.client, job.record)
        parts = self._parts(job.client, job.round)
        mine = self.memory.load(job.client)
        me = self._client(job, parts)
        if job.action == EVALUATE:
            return self._evaluate(me, job, mine, parts.test)
        reply, remembered = self._answer(job, me, mine, disguise)
        if remembered is not mine:
            self.memory.save(job.client, remembered, job.round)
        return reply

    def _answer(self, job: Job, me: Client, mine: Record, disguise: Disguise | None) -> tuple[Record, Record]:
        """What the method's client side replies, and what it remembers."""
        me = me if disguise is None else disguise(me)
        answer: tuple[Record, Record] = getattr(self.method, f"on_{job.action}")(job.record, mine, me)
        return answer

    def personalize(self, client: ClientId, round: int, offer: Record) -> Predictor:
        """What the client predicts with after that round, to the last bit what the evaluator scored."""
        self._start()
        me = self._client(Job(EVALUATE, round, client, offer), self._parts(client, round))
        return self._predictor(self.adapt, offer, self.memory.load(client), me)[0]

    def _predictor(
        self, adapt: AdaptConfig, offer: Record, mine: Record, me: Client
    ) -> tuple[Predictor, list[float]]:
        """What the client predicts with; passes and seconds of its last step."""
        if not adapt.is_on:
            predictor: Predictor = self.method.personalize(offer, mine, me)
            return predictor, [0.0, 0.0]
        from ipfl.client.last_step import personalized

        is_member = me.id not in self.task.data.unseen
        found = personalized(self.method, adapt, offer, mine, me, is_member=is_member)
        return found.predictor, [float(found.passes), found.seconds]

    def _client(self, job: Job, parts: Parts) -> Client:
        """The client's side of a job."""
        # The evaluator alone sees the test data; a method gets the other three parts.
        hidden = replace(parts, test=parts.test[:0])
        return Client(
            id=job.client,
            round=job.round,
            action=job.action,
            seed=self.seed,
            classes=self.task.data.classes,
            parts=hidden,
            network=self.network,
            settings=self.settings.at_round(job.round),
            initial=self.initial,
        )

    def _start(self) -> None:
        """Prepares the process, before its first job: here, because a GPU cannot be used across a fork."""
        if self._is_started:
            return
        keep_freed_memory()
        prepare_network(self.network, self.settings)
        self._is_started = True

    def _parts(self, client: ClientId, round: int) -> Parts:
        """A client's data; for the server's own holdouts (negative ids) the holdout is every part."""
        distribution = holdout_distribution(client)
        if distribution is None:
            parts = self.task.data.parts(client, round)
            if self.settings.use_probe and not self.method.needs_probe:
                parts = replace(parts, train=parts.train.joined(parts.probe))
            return parts
        holdout = self.task.data.server_holdout(distribution)
        if holdout is None:
            raise ValueError(f"the server has no holdout of distribution {distribution}")
        return Parts(holdout, holdout, holdout, holdout)

    def _evaluate(self, me: Client, job: Job, mine: Record, test: Samples) -> Record:
        """Hits of what the client would predict with now, and of the model `global` if there is one.

        Those on `goal` are what the client itself could know, for its decisions (`clients.leave`).
        """
        offer = job.record
        wanted, models = offer.facts.get(WANTED_METRICS, []), offer.facts.get(WANTED_MODELS, [])
        with_last_step = bool(offer.facts.get(LAST_STEP))
        offer = Record(offer.params, {k: fact for k, fact in offer.facts.items() if k not in FOR_EVALUATOR})
        predictor, cost = self._predictor(self.adapt if with_last_step else AdaptConfig(), offer, mine, me)
        points, goal = self.network.points(test), me.parts.goal
        own = self.network.points(goal)
        score, metrics = self._measure(predictor, points, test, wanted)
        facts: dict[str, Fact] = {
            "n": len(test),
            "hits": score.hits,
            "goal_n": len(goal),
            "goal_hits": evaluate(self.network, predictor, own).hits if len(goal) else 0,
        }
        if with_last_step:
            facts["last_step"] = cost
        if wanted:
            facts["metrics"] = metrics
        if models:
            facts["model_hits"] = [evaluate(self.network, offer.params[name], points).hits for name in models]
        shared = offer.params.get("global")
        if shared is not None:
            same = shared is predictor
            facts["global_hits"] = facts["hits"] if same else evaluate(self.network, shared, points).hits
        return Record({}, facts)

    def _measure(
        self, predictor: Predictor, points: Points, test: Samples, wanted: list[str]
    ) -> tuple[Score, list[float | None]]:
        """The score on test points and the metrics that are wanted, from one pass."""
        if not wanted or not len(test):
            return evaluate(self.network, predictor, points), [None] * len(wanted)
        from ipfl.client.prediction_metrics import Predictions, measure_predictions

        outputs = predicted_outputs(self.network, predictor, points)
        given = Predictions(self.network.target, outputs.cpu().double().numpy(), test.y)
        return score_outputs(self.network, outputs, points), measure_predictions(wanted, given)

    def _assess(self, distribution: int, models: Record) -> Record:
        """Hits of every server model on `limit` test points of one distribution, the same in all rounds.

        They are chosen by the run's seed: a pool may be ordered, such as by writer.
        """
        holdout = self.task.data.holdout(distribution)
        order = stream(self.seed, "holdout", distribution).permutation(len(holdout))
        chosen = order[: int(models.facts["limit"])]
        points = self.network.points(holdout[chosen])
        hits = [evaluate(self.network, model, points).hits for model in models.params.values()]
        return Record({}, {"n": len(points), "hits": hits})


def runner_under(privacy: PrivacyConfig | None) -> type[ClientRunner]:
    """What plays clients under this section: with noise, or as it is."""
    if privacy is None or not privacy.is_on:
        return ClientRunner
    from ipfl.client.private_runner import PrivateRunner

    return PrivateRunner
