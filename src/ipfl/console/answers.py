"""The shapes of the console's answers: what the pages show and the JSON API returns.

Accuracies, PMA and participation are shares from 0 to 1; tokens are whole numbers; rounds count from 0, and
−1 is the opening.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from ipfl.market.market_rows import TransferKind

State = Literal["running", "finished", "unfinished", "unreadable"]


class MeanStd(BaseModel):
    """Mean and standard deviation over clients."""

    mean: float
    std: float


class RunRow(BaseModel):
    """A run in the list of runs."""

    key: str = Field(description="what addresses name the run by")
    name: str
    state: State
    problem: str | None = Field(None, description="why the run cannot be read, and what to do")
    method: str = ""
    dataset: str = ""
    partition: str = ""
    seed: int | None = None
    clients: int = 0
    clusters: str = ""
    done: int = Field(0, description="rounds that are committed")
    rounds: int = Field(0, description="rounds that the run was begun with")
    accuracy: MeanStd | None = Field(None, description="personalized accuracy at the last evaluation")
    pma: MeanStd | None = Field(None, description="gain over the reference; null without one")
    participation: float | None = None
    evaluated: int | None = Field(None, description="round of the last evaluation")
    tokens: int | None = Field(None, description="tokens issued; null without a market")
    updated: float | None = Field(None, description="when its files changed last, in seconds since 1970")


class RunPage(BaseModel):
    """A part of the list of runs."""

    total: int
    offset: int
    runs: list[RunRow]


class RunDetail(RunRow):
    """A run with what was set, and what it cost."""

    head: str = Field(description="newest hash of the chain")
    reference: str | None = Field(None, description="key of the run that PMA is measured against")
    has_market: bool
    seconds: float | None = Field(None, description="time taken, once the run has ended")
    bytes_up: int | None = None
    bytes_down: int | None = None
    settings: dict[str, str] = Field(description="dotted key → value, where it is not the default")


class Series(BaseModel):
    """Figures over rounds: columns of the same length, null where a round has no value."""

    round: list[int]
    columns: dict[str, list[float | None]]


class HeatMap(BaseModel):
    """Accuracy of every server model on every hidden distribution."""

    round: int | None
    models: list[str]
    distributions: list[str]
    accuracy: list[list[float]] = Field(description="[distribution][model]")


class FlowLink(BaseModel):
    """Clients that preferred one cluster in a round, and one in a later round."""

    from_round: int
    from_cluster: int
    to_round: int
    to_cluster: int
    clients: int


class Flow(BaseModel):
    """Moves of clients between clusters."""

    rounds: list[int]
    links: list[FlowLink]


class ClusterRound(BaseModel):
    """The auction and the pool of one cluster in one round."""

    cluster: int
    bids: int = 0
    paid: int = Field(0, description="tokens that clients paid into the pool")
    added: int = Field(0, description="tokens that the issuer added to the pool, for updates that earn")
    refunded: int = 0
    reimbursed: int = 0
    rewarded: int = 0
    seats: int = 0
    by_lot: int = Field(0, description="of the seats, those given at random")
    delivered: int = 0


class Participant(BaseModel):
    """A client in the auction of one cluster in one round."""

    client: int
    name: str | None = None
    cluster: int
    wish: int | None = Field(None, description="rank among the client's own bids, 1 = most wanted")
    seat: Literal["performance", "random"] | None = None
    why: str = Field(description="why it has a seat, or none")
    delivered: bool | None = None
    psi: float | None = None
    place: int | None = Field(None, description="rank of its contribution in the cluster, 1 = best")
    of: int | None = None
    paid: int = 0
    refunded: int = 0
    reimbursed: int = 0
    earned: int = 0


class RoundEvent(BaseModel):
    """Something a person should know."""

    kind: str
    client: int | None
    name: str | None = None
    text: str


class RoundDetail(BaseModel):
    """One round: auction, pools, seats and events."""

    round: int
    rolled_back: bool
    clusters: list[ClusterRound]
    total: int = Field(description="participants in all")
    offset: int
    participants: list[Participant]
    events: list[RoundEvent] = Field(description="the first of them")
    event_count: int


class ClientRow(BaseModel):
    """A client in the list of a run's clients."""

    client: int
    name: str | None = Field(None, description="where the clients of the run have names")
    issued: int
    paid: int
    refunded: int
    reimbursed: int
    earned: int
    balance: int


class ClientPage(BaseModel):
    """A part of the list of a run's clients."""

    total: int
    offset: int
    clients: list[ClientRow]


class Wish(BaseModel):
    """A client's newest bid for a cluster."""

    cluster: int
    rank: int = Field(description="1 = most wanted")
    score: float | None


class ClientDetail(BaseModel):
    """One client's account, wishes and accuracy."""

    run: str
    client: int
    name: str | None = Field(None, description="where the clients of the run have names")
    account: ClientRow | None = Field(None, description="null without a market")
    wishes: list[Wish]
    accuracy: float | None = None
    threshold: float | None = Field(None, description="accuracy that the reference gives this client")
    verdict: str = Field(description="stay or leave, in words")
    gains: bool | None = Field(None, description="whether it is better off than with the reference")
    statement: str | None = Field(
        None, description="of which round its statement of account is, and who signed it; null: there is none"
    )
    has_model: bool = Field(False, description="whether its model can be downloaded")


class Movement(BaseModel):
    """One round of a client in words, and its balance after it."""

    round: int
    change: int
    balance: int
    words: str


class MovementPage(BaseModel):
    """A part of a client's movements, the newest first."""

    movements: list[Movement]
    before: int | None = Field(description="pass as `before` for older ones; null: there are none")


class TransferRow(BaseModel):
    """One transfer."""

    round: int
    sequence: int
    kind: TransferKind
    source: str
    target: str
    amount: int
    cluster: int | None
    client: int
    name: str | None = Field(None, description="of the client, where clients have names")
    reason: str


class TransferPage(BaseModel):
    """A part of a run's transfers in the order posted."""

    total: int
    offset: int
    transfers: list[TransferRow]


class ComparedRun(BaseModel):
    """One run among those compared."""

    run: RunRow
    convergence: Series
    pma: list[float] = Field(description="gain of each client over the reference, ascending")
    mean_pma: float | None = None
    share_gaining: float | None = Field(None, description="share of clients with a gain above 0")


class ComparedRuns(BaseModel):
    """Runs side by side."""

    reference: str
    runs: list[ComparedRun]
    warnings: list[str]


class News(BaseModel):
    """The version of what a page shows; another one: load it again."""

    version: str = Field(description="another one after every change")
    is_last: bool = Field(description="whether nothing more is to come")


class Problem(BaseModel):
    """The reason why a request was refused."""

    detail: str


class Token(BaseModel):
    """A token that opens one client's page."""

    token: str
