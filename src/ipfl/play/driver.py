"""Drives one round: carries its asks to the engine, checks the replies, counts what travels.

Every reply goes through the boundary here, once (`ipfl.core.replies`), whatever engine brought it. What does
not hold never reaches a method, and becomes an event about its client.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import TypeVar

from ipfl.core import (
    EMPTY,
    Ask,
    Bytes,
    ClientId,
    Engine,
    Event,
    PhaseReplies,
    Record,
    Replies,
    Round,
    holdout_distribution,
)
from ipfl.core.records import BUDGET_SPENT, PRIVACY_LOSS, Fact, split_privacy_facts
from ipfl.core.replies import (
    DivergedReplyError,
    InvalidReplyError,
    NonNegative,
    ReplySchema,
    check_content,
    check_form,
)
from ipfl.core.rounds import SERVER_FAULTS

S = TypeVar("S")
MIN_DIVERGED = 2
"""Replies that must have diverged before it is said that all did."""
PRIVACY_FACTS = ReplySchema({PRIVACY_LOSS: NonNegative, BUDGET_SPENT: bool})
BUDGET_TEXT = "did not answer: its privacy budget is spent"


@dataclass
class Traffic(Bytes):
    """What travelled in a round, seen from the server, and what did not arrive or was not valid."""

    silent: set[ClientId] = field(default_factory=set)
    """Clients that were asked and did not answer."""
    invalid: dict[ClientId, str] = field(default_factory=dict)
    """Clients (or the server's own holdouts) with an invalid reply, and what was wrong with it."""
    diverged: dict[str, int] = field(default_factory=dict)
    """Actions whose replies were all of models that diverged, and how many there were."""
    limited: dict[ClientId, str] = field(default_factory=dict)
    """Clients whose replies count for less than they said, and what they said."""
    epsilon: dict[ClientId, float] = field(default_factory=dict)
    """ε so far of the clients that said so."""
    spent: set[ClientId] = field(default_factory=set)
    """Clients that did not answer because their privacy budget is spent."""

    def take_privacy(self, client: ClientId, told: Mapping[str, Fact]) -> None:
        """Notes what a client says of its privacy.

        Raises:
            InvalidReplyError: It is no such thing.
        """
        if not told:
            return
        PRIVACY_FACTS.check(EMPTY, Record({}, {BUDGET_SPENT: False, **told}))
        self.epsilon[client] = float(told[PRIVACY_LOSS])
        if told.get(BUDGET_SPENT):
            self.spent.add(client)

    def events(self) -> list[Event]:
        """What a person should know of it."""
        return [
            *(Event("diverged", None, _all_diverged(*found)) for found in self.diverged.items()),
            *(Event("no_answer", client, "did not answer") for client in sorted(self.silent)),
            *(Event("budget_spent", client, BUDGET_TEXT) for client in sorted(self.spent)),
            *(Event("weight_limited", client, text) for client, text in sorted(self.limited.items())),
            *(_invalid_reply(client, reason) for client, reason in sorted(self.invalid.items())),
        ]


def _all_diverged(action: str, clients: int) -> str:
    return f"in phase {action!r}, the models of all {clients} clients that answered diverged: lower train.lr"


def _invalid_reply(client: ClientId, reason: str) -> Event:
    """About a client, or about the server itself, which answers for its own holdouts."""
    distribution, text = holdout_distribution(client), f"sent an invalid reply ({reason})"
    if distribution is None:
        return Event("invalid_reply", client, text)
    return Event("invalid_reply", None, f"the server's own holdout of distribution {distribution} {text}")


def exchange(
    ask: Ask, engine: Engine, round: int, traffic: Traffic, max_weight: float | None = None
) -> Replies:
    """One phase: asks, and returns the valid replies in ascending client id.

    Args:
        ask: The method's.
        engine: Asks the clients.
        round: Number of the round.
        traffic: Where it is counted.
        max_weight: A reply weighs at most so many times the median of all; None: whatever its sender says.
    """
    valid = _ask(ask, engine, round, traffic)
    if max_weight is not None and ask.expects.weight is not None and valid:
        _limit_weights(valid, ask.expects.weight, max_weight, traffic)
    return valid


def _limit_weights(valid: PhaseReplies, weight: str, most: float, traffic: Traffic) -> None:
    """Makes no reply weigh more than so many times the median, and notes whose did.

    Of an even number the lower median: up to half of the replies cannot raise it.
    """
    median = median_low(reply.facts[weight] for reply in valid.values())
    limit = int(most * median)
    for client, reply in valid.items():
        if (said := reply.facts[weight]) > limit:
            valid[client] = replace(reply, facts={**reply.facts, weight: limit})
            text = f"said that it has {said} samples and counts as {limit}, {most:g} times the median"
            traffic.limited[client] = text


def _ask(ask: Ask, engine: Engine, round: int, traffic: Traffic) -> PhaseReplies:
    told = len(engine.events)
    replies = engine.ask(ask, round)
    valid: dict[ClientId, Record] = {}
    diverged: dict[ClientId, str] = {}
    for client, sent in ask.to.items():  # once: a message may be made from disk when it is looked at
        reply = replies.get(client)
        if client >= 0:
            traffic.down += sent.nbytes
        if reply is None:
            if client >= 0:
                traffic.silent.add(client)
            continue
        try:
            check_form(reply, ask.expects.limits(sent))
            traffic.up += reply.nbytes if client >= 0 else 0
            reply, about_privacy = split_privacy_facts(reply)
            traffic.take_privacy(client, about_privacy)
            if client in traffic.spent:
                continue
            check_content(ask.expects, sent, reply)
            valid[client] = reply
        except DivergedReplyError as error:
            (diverged if client >= 0 else traffic.invalid)[client] = str(error)
        except InvalidReplyError as error:
            traffic.invalid[client] = str(error)
    # One client that diverged may have broken data; where all did, the fault is not theirs.
    is_everywhere = len(diverged) >= MIN_DIVERGED and len(diverged) == len(replies)
    if is_everywhere:
        traffic.diverged[ask.action] = len(diverged)
    else:
        traffic.invalid |= diverged
    arrived = PhaseReplies(sorted(valid.items()))
    faults = (event.client for event in engine.events[told:] if event.kind in SERVER_FAULTS)
    arrived.server_faults = frozenset(client for client in faults if client is not None)
    if is_everywhere:
        arrived.server_faults |= frozenset(diverged)
    return arrived


def drive(
    phases: Generator[Ask, Replies, Round[S]],
    engine: Engine,
    round: int,
    traffic: Traffic,
    max_weight: float | None = None,
) -> Round[S]:
    """Runs a method's round to its end.

    Args:
        phases: What `Method.round` returned.
        engine: Asks the clients.
        round: Its number.
        traffic: Where it is counted.
        max_weight: As for `exchange`.
    """
    try:
        ask = next(phases)
        while True:
            ask = phases.send(exchange(ask, engine, round, traffic, max_weight))
    except StopIteration as end:
        finished: Round[S] = end.value
        return finished
