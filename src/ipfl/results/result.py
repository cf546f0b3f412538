"""The result of a run: its summary, its history, everyone's models; and observers of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ipfl.core import ClientId, Vector
from ipfl.errors import InputError, NotSupportedError, unknown
from ipfl.play.metrics import Evaluation

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

    from ipfl.market.market_rows import Transfer
    from ipfl.results.client_model import ClientModel
    from ipfl.results.finished import FinishedRun
    from ipfl.results.result_models import PlayedRun

    ModelSource: TypeAlias = PlayedRun | FinishedRun

NO_ROUND_COUNTED = "no round counted: too few clients delivered in each of them"
"""Of a run that came to its end for nothing."""
Line = dict[str, Any]
"""A line of `metrics.jsonl`, with typed rows (`ipfl.market.market_rows.ROW_TYPES`)."""


class Observer(Protocol):
    """Told how a run goes on: a progress bar, a logger, a test."""

    def start(self, method: str, rounds: int) -> None:
        """The first round is about to begin."""

    def round(self, line: Mapping[str, Any]) -> None:
        """A round is over; `line` is what `metrics.jsonl` says of it."""

    def finish(self) -> None:
        """The run is over, however it ended."""


@dataclass(frozen=True, repr=False)
class Result:
    """A finished (or interrupted) run, just played or read from its folder (`ipfl.load`)."""

    summary: dict[str, Any]
    history: list[Line]
    """A line per round."""
    evaluations: dict[int, Evaluation]
    """By round."""
    state: Any
    """The state of the method's server side; None if the run was read from its folder."""
    models: Mapping[str, Vector] = field(default_factory=dict)
    """The server's models as flat vectors in a layout of our own; `model` makes ordinary modules of them."""
    opening: tuple[Transfer, ...] = ()
    """Transfers of tokens before round 0."""
    source: ModelSource | None = field(default=None, compare=False)
    """The source of models; None: there are none any more."""

    @property
    def last(self) -> Evaluation | None:
        """The evaluation after the last round."""
        return self.evaluations[max(self.evaluations)] if self.evaluations else None

    @property
    def personalized_accuracy(self) -> float | None:
        """Mean accuracy over clients of their personalized models, after the last round."""
        figure = self.summary["personalized_accuracy"]
        return None if figure is None else float(figure["mean"])

    @property
    def accuracies(self) -> Mapping[ClientId, float]:
        """Accuracy of each client's own model after the last round; empty if nothing was evaluated."""
        return {} if self.last is None else self.last.personalized

    def evaluation_at(self, round: int) -> Evaluation | None:
        """The newest evaluation up to that round."""
        known = [r for r in self.evaluations if r <= round]
        return self.evaluations[max(known)] if known else None

    def reference(self, round: int) -> Mapping[ClientId, float] | None:
        """Accuracies ρ_i for PMA: those of the newest evaluation up to that round."""
        evaluation = self.evaluation_at(round)
        return None if evaluation is None else evaluation.personalized

    def model(self, which: ClientId | str) -> ClientModel:
        """A client's model, or one of the server's, as an ordinary `nn.Module` that takes raw points.

        It takes a batch of points as they were given to the run and returns class scores; what happens to
        points before they reach the network is inside. Of a method that mixes models or compares prototypes,
        it does that. `state_dict()` loads into the plain network.

        Args:
            which: A client's id or name, or the name of a server model, such as `"cluster_0"` or `"global"`.

        Raises:
            InputError: There is no such client or model.
            NotSupportedError: There is, but not here: such as on the client's own node.
        """
        from ipfl.results.client_model import make_model

        source = self._models()
        is_the_server_s = isinstance(which, str) and which in self.models
        predictor = self.models[str(which)] if is_the_server_s else source.predictor(self._client(which))
        return make_model(source.network, predictor, self.summary.get("input_dtype"))

    def predict(self, which: ClientId | str, x: ArrayLike | Tensor | pd.DataFrame) -> NDArray[Any]:
        """The predictions of a model for raw points: a class, labels, or numbers for each.

        Of a run on a table, rows with its columns (a DataFrame) are points as well. Classes are numbers,
        whose names are `class_names`. For many calls, keep `model(which)`: here it is made anew each time.
        """
        from ipfl.results.client_model import class_scores, decide

        model = self.model(which)
        return decide(class_scores(model, self._points(which, x)), model.target)

    def predict_proba(
        self, which: ClientId | str, x: ArrayLike | Tensor | pd.DataFrame
    ) -> NDArray[np.float32]:
        """(n, classes): the probabilities of the classes for raw points."""
        from ipfl.results.client_model import class_scores, probabilities

        model = self.model(which)
        return probabilities(class_scores(model, self._points(which, x)), model.target)

    def _points(self, which: ClientId | str, x: Any) -> Any:
        """Rows of a table as points; everything else is points already."""
        if not hasattr(x, "columns"):
            return x
        client = which if isinstance(which, str) else self.client_names.get(which)
        return self._models().task.points(x, client if client in self.client_ids else None)

    def personalize(self, x: NDArray[Any], y: NDArray[Any]) -> ClientModel:
        """The model that a new client would get, from some labelled points of its own.

        Raises:
            NotSupportedError: The method has no model for clients that it has never met.
        """
        from ipfl.results.client_model import make_model

        source = self._models()
        return make_model(source.network, source.personalize(x, y), self.summary.get("input_dtype"))

    def _models(self) -> ModelSource:
        if self.source is None:
            raise NotSupportedError(
                "the models of this run ended with the process that played it: "
                "give it a folder (out), or play it in this process (workers=0)"
            )
        return self.source

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, by the numbers that `predict` returns; where they have none, the numbers."""
        named = self.summary.get("class_names")
        return list(named or map(str, range(self.summary["classes"])))

    @property
    def client_names(self) -> Mapping[ClientId, str]:
        """Names of the clients by id; empty if they have none."""
        return {client: name for name, client in self.client_ids.items()}

    @property
    def client_ids(self) -> Mapping[str, ClientId]:
        """Ids of the clients that have names, by name."""
        return {name: int(client) for client, name in (self.summary.get("client_names") or {}).items()}

    def _client(self, which: ClientId | str) -> ClientId:
        """The id of a client."""
        if isinstance(which, str):
            if which not in self.client_ids:
                raise unknown("model", which, [*self.models, *self.client_ids])
            return self.client_ids[which]
        clients = self._models().clients
        if which not in clients:
            raise InputError(f"there is no client {which!r}; there are {_clients_text(clients)}")
        return int(which)

    def clients(self) -> pd.DataFrame:
        """A row for each client: accuracies after the last round, trainings, tokens. Needs pandas."""
        from ipfl.results.frames import client_frame

        return client_frame(self)

    def rounds(self) -> pd.DataFrame:
        """A row for each round: who trained, accuracies if it was evaluated, bytes, events. Needs pandas."""
        from ipfl.results.frames import round_frame

        return round_frame(self)

    def ledger(self) -> pd.DataFrame:
        """A row for each movement of tokens, those of round −1 before the first round. Needs pandas."""
        from ipfl.results.frames import ledger_frame

        return ledger_frame(self)

    def _facts(self) -> dict[str, str]:
        """The facts that are shown first."""
        summary = self.summary
        measure = "score" if _is_regression(summary) else "accuracy"
        facts = {
            "method": summary.get("method"),
            "data": _joined(*dict.fromkeys([summary.get("dataset"), summary.get("partition")])),
            "clients": summary.get("clients"),
            "rounds": f"{summary.get('rounds')}{' (interrupted)' if summary.get('interrupted') else ''}",
            "seed": summary.get("seed"),
            measure: percent_and_spread(summary.get("personalized_accuracy")),
            **{
                name: mean_and_spread(figure["mean"], figure["std"])
                for name, figure in (summary.get("metrics") or {}).items()
                if figure
            },
            "global model": percent_and_spread(summary.get("global_accuracy")),
            "unseen clients": percent_and_spread(summary.get("unseen_accuracy")),
            "PMA": percent_and_spread(summary.get("pma")),
            "models": _joined(*self.models),
        }
        return {name: str(fact) for name, fact in facts.items() if fact not in (None, "")}

    def __repr__(self) -> str:
        lines = (f"  {name:<15}{fact}" for name, fact in self._facts().items())
        return "\n".join(["Result", *lines])


MAX_NAMES_PER_LINE = 8
"""Names that a line of text has at most."""


def _joined(*names: Any) -> str:
    known = [str(name) for name in names if name is not None]
    return ", ".join(known[:MAX_NAMES_PER_LINE] + (["…"] if len(known) > MAX_NAMES_PER_LINE else []))


def _clients_text(clients: tuple[ClientId, ...]) -> str:
    if clients == tuple(range(len(clients))):
        return f"0 to {len(clients) - 1}"
    return _joined(*clients)


def _is_regression(summary: Mapping[str, Any]) -> bool:
    """True if numbers are predicted: their score is no share of right answers."""
    return bool((summary.get("target") or {}).get("kind") == "regression")


def mean_and_spread(mean: float, spread: float) -> str:
    """`6.092 ± 0.41`, `1205 ± 230`: figures that are no shares, in the units of the data."""
    return f"{_short(mean, 4)} ± {_short(spread, 2)}"


def _short(number: float, digits: int) -> str:
    """With so many digits; all of them before the point, as long as that is readable."""
    return f"{number:.0f}" if 10**digits <= abs(number) < 1e9 else f"{number:.{digits}g}"


def percent_and_spread(figure: Mapping[str, float] | None) -> str | None:
    """`85.0 % ± 3.1`: mean and standard deviation over clients."""
    return None if figure is None else f"{100 * figure['mean']:.1f} % ± {100 * figure['std']:.1f}"
