"""The contract between methods, engines and the round loop; the bottom of the package.

What belongs here: the types that travel (`records`), what a round reports (`rounds`), what a method and an
engine are (`method`, `engine`), what a valid reply is (`replies`), random streams, and arithmetic on
parameter vectors. Nothing here knows of tokens, keys or folders. Everything may import this package; it
imports nothing of `ipfl` but `ipfl.errors`.

The names below are all that most modules need.
"""

from ipfl.core.engine import Bytes, Engine
from ipfl.core.method import (
    NEWCOMER,
    ClientModels,
    HasBooks,
    HasClusters,
    HasReport,
    Method,
    Phases,
    Roster,
    Setup,
    TaskFacts,
)
from ipfl.core.records import (
    EMPTY,
    ClientId,
    Fact,
    PhaseReplies,
    Record,
    Replies,
    Vector,
    cluster_name,
    holdout_distribution,
    holdout_id,
    server_faults,
)
from ipfl.core.replies import Ask
from ipfl.core.rounds import (
    NO_CLUSTER,
    Event,
    Round,
    Seat,
    is_below_quorum,
)
from ipfl.core.streams import stream

__all__ = [
    "EMPTY",
    "NEWCOMER",
    "NO_CLUSTER",
    "Ask",
    "Bytes",
    "ClientId",
    "ClientModels",
    "Engine",
    "Event",
    "Fact",
    "HasBooks",
    "HasClusters",
    "HasReport",
    "Method",
    "PhaseReplies",
    "Phases",
    "Record",
    "Replies",
    "Roster",
    "Round",
    "Seat",
    "Setup",
    "TaskFacts",
    "Vector",
    "cluster_name",
    "holdout_distribution",
    "holdout_id",
    "is_below_quorum",
    "server_faults",
    "stream",
]
