"""What a method is. It is written once, without I/O, and runs on every engine.

A round is a generator: it yields one `Ask` per phase and is sent the replies; an engine only moves records.
Toy example, a whole method:

    @dataclass(frozen=True)
    class Mean(Method[Vector]):
        name, summary = "mean", "everyone trains, and the mean is the next model"

        def init(self, setup):
            return setup.params

        def round(self, state, roster, round):
            to = {client: self.offer(state, client) for client in roster.clients}
            replies = yield Ask("train", to, ReplySchema(vectors={"model": len(state)}))
            models = [reply.params["model"] for reply in replies.values()]
            seats = tuple(Seat(client, NO_CLUSTER, "random", client in replies) for client in to)
            return Round(mean(models) if models else state, seats)

        def on_train(self, ask, mine, me):
            return Record({"model": me.train(ask.params["model"])}), mine

        def offer(self, state, client):
            return Record({"model": state})

        def personalize(self, offer, mine, me):
            return offer.params["model"]

State goes in and comes out; nothing is kept on `self`. Randomness comes only from `stream(...)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar, runtime_checkable

from ipfl.core.records import ClientId, Fact, Record, Replies, Vector
from ipfl.core.replies import Ask
from ipfl.core.rounds import Round

if TYPE_CHECKING:
    from ipfl.config.run_config import RunConfig

S = TypeVar("S")
Phases = Generator[Ask, Replies, Round[S]]
"""What `Method.round` is: it yields one ask per phase, is sent the valid replies, and returns the round."""
NEWCOMER: ClientId = 2**31 - 1
"""Id of a client that the server has never met, for `Method.offer`."""


class ClientModels(Protocol):
    """Models that the server keeps of single clients (`ipfl.methods.shared.client_model_store`)."""

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Whose models are there, ascending."""
        ...

    def put(self, vectors: Mapping[ClientId, Vector], round: int) -> Self:
        """The store with these models instead of those clients' earlier ones."""
        ...

    def get(self, client: ClientId, default: Vector) -> Vector:
        """The client's model, or another one if there is none."""
        ...

    def __getitem__(self, client: ClientId) -> Vector: ...
    def __contains__(self, client: ClientId) -> bool: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class TaskFacts:
    """What the server knows of the task, and no point of it."""

    outputs: int
    """Of the model: the number of classes, labels or numbers that are predicted."""
    target: str = "classes"
    """What is predicted: `classes`, `multilabel` or `regression`."""
    features: int | None = None
    """Numbers that go into the model's last linear layer; None: it has none."""
    holdouts: tuple[ClientId, ...] = ()
    """Ids of the server's own holdouts (`holdout_id`), empty if it has none."""


@dataclass(frozen=True)
class Setup:
    """What the server knows before the first round. Nothing here comes from a client's data."""

    params: Vector
    """Initial parameters; all models of a method start here, so that they can be mixed."""
    clients: tuple[ClientId, ...]
    per_round: int
    """Client trainings per round, the budget that all methods share."""
    seed: int
    task: TaskFacts
    config: RunConfig
    """How the run is played: its rounds, training, aggregation and so on."""
    make_params: Callable[[int], Vector] | None = None
    """Other random initial parameters, by number."""
    find_part: Callable[[str], Vector] | None = None
    """The initial parameters of a part of the network, by its name (`ipfl.training.parts`)."""
    make_client_models: Callable[[], ClientModels] | None = None
    """Makes an empty store on disk, for methods that keep models of single clients on the server."""

    def client_model_store(self) -> ClientModels:
        """The empty store, for methods that cannot do without."""
        if self.make_client_models is None:
            raise ValueError("this setup has no store for models of single clients")
        return self.make_client_models()

    def part(self, name: str) -> Vector:
        """The initial parameters of a part of the network.

        Raises:
            InputError: It has no such part.
        """
        if self.find_part is None:
            raise ValueError("this setup knows of no parts of the network")
        return self.find_part(name)

    def start(self, number: int) -> Vector:
        """Initial parameters for the model of that number, for methods whose models must not start alike."""
        if number == 0:
            return self.params
        if self.make_params is None:
            raise ValueError("this setup has no other initial parameters")
        return self.make_params(number)


@dataclass(frozen=True)
class Roster:
    """Who can be asked in this round, in ascending id."""

    clients: tuple[ClientId, ...]


class Method(ABC, Generic[S]):
    """A federated learning method: server side (`init`, `round`, `offer`) and client side (`on_*`).

    Subclasses are frozen pydantic dataclasses whose fields are the hyper-parameters, each with a
    default and a description. To add one: a file in `methods/`, see CONTRIBUTING.md.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `ipfl methods`: what it does, and whose paper it is."""
    needs_probe: ClassVar[bool] = True
    """Whether clients must score models on points that they never train on: `probe`, or `goal`, which mostly
    holds the same points. If not, they can train on these as well (`train.use_probe`)."""
    needs_parts: ClassVar[tuple[str, ...]] = ()
    """Parts that a network must have for it (`ipfl.training.parts`)."""
    gives_one_network: ClassVar[bool] = True
    """Whether `personalize` gives a network's parameters, which a client can take further (`[adapt]`)."""
    needs_classes: ClassVar[bool] = False
    """Whether it works with classes alone, and not with several labels per point or with numbers."""

    @abstractmethod
    def init(self, setup: Setup) -> S:
        """State before round 0."""

    @abstractmethod
    def round(self, state: S, roster: Roster, round: int) -> Phases[S]:
        """One round. Yields an ask per phase, is sent the valid replies, returns the next state."""

    @abstractmethod
    def offer(self, state: S, client: ClientId) -> Record:
        """What any client, seen or not, is sent to obtain its model."""

    @abstractmethod
    def personalize(self, offer: Record, mine: Record, me: Any) -> Any:
        """What this client would predict with now, from the offer and what it remembers; changes nothing.

        Args:
            offer: What the server offers it.
            mine: What it remembers.
            me: Its data and its workspace, an `ipfl.client.client.Client`.

        Returns:
            An `ipfl.training.predictors.Predictor`.
        """

    def models(self, state: S) -> Mapping[str, Vector]:
        """Server models by name (`global`, or `cluster_0`, `cluster_1`, …) for evaluation and export."""
        return {}


@runtime_checkable
class HasClusters(Protocol):
    """A method that knows which cluster its clients belong to."""

    def preferences(self, state: Any) -> Mapping[ClientId, int]:
        """Preferred cluster of each client as far as the server knows it."""
        ...


@runtime_checkable
class HasBooks(Protocol):
    """A method that reports more of its rounds than seats and events, such as a market."""

    def opening_transfers(self, state: Any) -> tuple[Any, ...]:
        """Rows that stand before round 0."""
        ...

    def roll_back(self, state: Any, market: Any) -> Any:
        """What is recorded of a round below the quorum, instead of what it reported itself.

        Args:
            state: The state before the round, which stays.
            market: What the round reported.
        """
        ...


@runtime_checkable
class HasReport(Protocol):
    """A method with more to say in `summary.json`."""

    def report(self, state: Any) -> Mapping[str, Fact]:
        """What else the summary of a finished run should say; JSON-able."""
        ...
