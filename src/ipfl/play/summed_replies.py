"""The server's side of a secure sum: asks after which it knows the sum of the replies and no reply.

See `ipfl.client.secure_sum` for the protocol. Every ask goes through the boundary like any other. Clients
that drop out before they deliver are left out of the sum. If too few are left to open it, nobody counts as
having delivered, and the round is below its quorum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipfl.client.secure_sum import NO_SHARE, ONLY_SUMS, PROOFS, refuse_single_replies
from ipfl.client.sum_plan import (
    MASKED,
    MAX_NEIGHBOURS,
    MIN_CLIENTS,
    SUM_AGREE,
    SUM_KEYS,
    SUM_OPEN,
    SUM_PLAN,
    SUM_SHARES,
    SumPlan,
)
from ipfl.config.run_config import RunConfig
from ipfl.core import (
    EMPTY,
    Ask,
    ClientId,
    Event,
    Method,
    PhaseReplies,
    Record,
    Replies,
    server_faults,
    stream,
)
from ipfl.core.masks import (
    KEY_BYTES,
    SEALED_BYTES,
    SEED_BYTES,
    combine_shares,
    has_public_key,
    is_usable_key,
    own_mask,
    pair_masks,
    seed_fingerprint,
)
from ipfl.core.method import sums_of
from ipfl.core.replies import ReplySchema, hex_text, list_of, text_up_to
from ipfl.core.ring import LIMBS, RING_MASK, Ring, SumLayout, expected_vectors, from_vector
from ipfl.errors import InputError

MAX_PROOF = 2048
"""Characters of what a node says of its keys: two signatures and two public keys have about 900."""
Exchange = Callable[[Ask], Replies]
"""One phase through the boundary."""


@dataclass(frozen=True)
class SecureSums:
    """Which replies of a run are summed, and how many clients a sum needs."""

    actions: frozenset[str]
    quorum: float
    seed: int

    @classmethod
    def plan(cls, method: Method[Any], config: RunConfig, per_round: int) -> SecureSums | None:
        """What a config asks for; None: replies are not summed.

        Raises:
            InputError: The method or the server needs single replies, or there are too few clients.
        """
        wanted, sums = config.privacy.secure_sum, sums_of(method)
        if wanted == "off":
            return None
        if wanted == "gradients" and not sums.gradients:
            hint = ': use "all"' if not sums.needs_single else ""
            raise InputError(
                f'privacy.secure_sum = "gradients" has no effect on {method.name}, which asks for none{hint}'
            )
        if wanted == "all":
            _refuse_single(method, config)
        if per_round < MIN_CLIENTS:
            raise InputError(
                f"privacy.secure_sum needs {MIN_CLIENTS} clients in a round at least: "
                f"train.per_round is {per_round}"
            )
        actions = {*sums.gradients, *(sums.updates if wanted == "all" else ())}
        return cls(frozenset(actions), config.privacy.sum_quorum, config.seed)

    def is_summed(self, ask: Ask) -> bool:
        """Whether the replies to an ask are summed; the server's own holdouts never are."""
        return ask.action in self.actions and bool(ask.to) and min(ask.to) >= 0


def _refuse_single(method: Method[Any], config: RunConfig) -> None:
    """Says what would need single replies, if anything does."""
    refuse_single_replies(method)
    rule = config.aggregate
    if rule.rule != "mean" or rule.clip is not None:
        setting = f"aggregate.rule = {rule.rule!r}" if rule.rule != "mean" else "aggregate.clip"
        raise InputError(f"{ONLY_SUMS}, and {setting} needs single updates")


class FailedSumError(Exception):
    """Too few clients are left for a sum, or what they sent does not fit together."""


def sum_replies(
    ask: Ask, sums: SecureSums, round: int, number: int, exchange: Exchange
) -> tuple[PhaseReplies, list[Event]]:
    """Asks, and returns who delivered, with the sum of their replies, and what a person should know.

    Args:
        ask: The method's.
        sums: How sums are taken in this run.
        round: Number of the round.
        number: Of the sum in this round.
        exchange: Carries an ask through the boundary.
    """
    replies = PhaseReplies()

    def ask_clients(step: Ask) -> Replies:
        found = exchange(step)
        replies.server_faults |= server_faults(found)
        return found

    try:
        _SecureSum(ask, sums, round, number, ask_clients).run(replies)
    except FailedSumError as error:
        replies.clear()
        text = f"the secure sum of {ask.action!r} was not opened: {error}"
        return replies, [Event("sum_failed", None, text)]
    return replies, []


class _SecureSum:
    """One sum, step by step."""

    def __init__(self, ask: Ask, sums: SecureSums, round: int, number: int, exchange: Exchange):
        self.ask, self.exchange = ask, exchange
        self.sums = sums
        self.session = f"{round}/{number}/{ask.action}"
        self.order: list[ClientId] = (
            stream(sums.seed, "sum order", round, number).permutation(sorted(ask.to)).tolist()
        )
        self.proofs: Mapping[ClientId, str] = {}
        self.sealed: Mapping[ClientId, list[str]] = {}

    def run(self, replies: PhaseReplies) -> None:
        """All steps; fills in who delivered, and the sum."""
        plan = self._share_secrets(self._exchange_keys())
        plan, masked = self._collect(plan)
        delivered = set(masked)
        if not all(plan.may_open(delivered, client) for client in delivered) or not delivered:
            raise FailedSumError(f"{len(delivered)} of {len(self.ask.to)} clients delivered")
        shares = self._open(plan, delivered, self._agree(plan, delivered))
        assert plan.layout is not None
        total = np.zeros(plan.layout.size, np.uint64)
        for elements in masked.values():
            total = total + elements
        total = total - self._left_over(plan, delivered, shares)
        replies.update(dict.fromkeys(sorted(masked), EMPTY))
        replies.total = plan.layout.unpack(total & RING_MASK)

    def _exchange_keys(self) -> SumPlan:
        plan = SumPlan(self.session)
        schema = ReplySchema({"keys": list_of(hex_text(KEY_BYTES), 3), "proof": text_up_to(MAX_PROOF)})
        record = Record({}, {SUM_PLAN: plan.text()})
        replies = self.exchange(Ask(SUM_KEYS, dict.fromkeys(self.ask.to, record), schema))
        keys = {client: list(replies[client].facts["keys"]) for client in self.order if client in replies}
        keys = {client: found for client, found in keys.items() if all(map(is_usable_key, found[:2]))}
        plan = replace(plan, keys=keys)
        self.proofs = {client: replies[client].facts["proof"] for client in keys}
        self._need(keys, MIN_CLIENTS)
        holders = min(len(keys), MAX_NEIGHBOURS + 1)
        return replace(plan, threshold=max(holders // 2 + 1, math.ceil(round(self.sums.quorum * holders, 9))))

    def _share_secrets(self, plan: SumPlan) -> SumPlan:
        keys = plan.keys or {}
        text = plan.text()
        count = min(len(keys), MAX_NEIGHBOURS + 1)
        schema = ReplySchema({"sealed": list_of(hex_text(SEALED_BYTES), count)})
        record = Record({}, {SUM_PLAN: text, PROOFS: [self.proofs[client] for client in keys]})
        replies = self.exchange(Ask(SUM_SHARES, dict.fromkeys(sorted(keys), record), schema))
        self.sealed = {client: reply.facts["sealed"] for client, reply in replies.items()}
        self._need(self.sealed, max(MIN_CLIENTS, plan.threshold))
        return replace(plan, members=tuple(sorted(self.sealed)))

    def _collect(self, plan: SumPlan) -> tuple[SumPlan, Mapping[ClientId, Ring]]:
        """The method's own ask, to those that shared their secrets; masked replies come back."""
        to = {client: self.ask.to[client] for client in plan.members}
        held: dict[str, list[ClientId]] = {}
        for client, sent in to.items():
            for name in expected_vectors(self.ask, sent):
                held.setdefault(name, []).append(client)
        # What fewer would have a part in is not summed: their sum would tell too much.
        held = {name: clients for name, clients in held.items() if len(clients) >= MIN_CLIENTS}
        layout = SumLayout.of(Ask(self.ask.action, to, self.ask.expects), held)
        plan = replace(plan, holders=held, layout=layout)
        text = plan.text()
        schema = ReplySchema(vectors={MASKED: LIMBS * layout.size})
        records = {c: Record(sent.params, {**sent.facts, SUM_PLAN: text}) for c, sent in to.items()}
        replies = self.exchange(Ask(self.ask.action, records, schema))
        return plan, {client: from_vector(reply.params[MASKED]) for client, reply in replies.items()}

    def _agree(self, plan: SumPlan, delivered: set[ClientId]) -> Mapping[ClientId, str]:
        """What clients sign of the list of those that delivered; nothing where no client signs anything."""
        if not any(self.proofs.values()):
            return dict.fromkeys(delivered, "")
        record = Record({}, {SUM_PLAN: plan.text(), "delivered": sorted(delivered)})
        schema = ReplySchema({"proof": text_up_to(MAX_PROOF)})
        replies = self.exchange(Ask(SUM_AGREE, dict.fromkeys(sorted(delivered), record), schema))
        self._need(replies, plan.threshold)
        return {client: reply.facts["proof"] for client, reply in replies.items()}

    def _open(
        self, plan: SumPlan, delivered: set[ClientId], agreed: Mapping[ClientId, str]
    ) -> Mapping[ClientId, Mapping[int, bytes]]:
        """Shares by their owner and the holder's position, from those that agreed and are still there."""
        records: dict[ClientId, Record] = {}
        owners: dict[ClientId, list[ClientId]] = {}
        text, told = plan.text(), sorted(delivered)
        for client in sorted(agreed):
            owners[client] = plan.holders_left(client)
            sealed = [self.sealed[o][plan.holders_of_shares(o).index(client)] for o in owners[client]]
            facts = {SUM_PLAN: text, "delivered": told, "sealed": sealed}
            if any(agreed.values()):
                facts[PROOFS] = [agreed.get(owner, "") for owner in owners[client]]
            records[client] = Record({}, facts)

        def expected(sent: Record) -> dict[str, Any]:
            return {"shares": list_of(hex_text(SEED_BYTES), len(sent.facts["sealed"]))}

        replies = self.exchange(Ask(SUM_OPEN, records, ReplySchema(expected)))
        found: dict[ClientId, dict[int, bytes]] = {}
        for client, reply in replies.items():
            for owner, share in zip(owners[client], reply.facts["shares"], strict=True):
                if share != NO_SHARE:
                    place = plan.holders_of_shares(owner).index(client)
                    found.setdefault(owner, {})[place] = bytes.fromhex(share)
        return found

    def _left_over(
        self, plan: SumPlan, delivered: set[ClientId], shares: Mapping[ClientId, Mapping[int, bytes]]
    ) -> Ring:
        """The masks that do not cancel: own ones of those that delivered, pairs with those that did not."""
        assert plan.layout is not None
        assert plan.keys is not None
        size, total = plan.layout.size, np.zeros(plan.layout.size, np.uint64)
        for client in sorted(delivered):
            seed = combine_shares(shares.get(client, {}), plan.threshold)
            if seed is None or seed_fingerprint(seed) != plan.keys[client][2]:
                raise FailedSumError(f"the mask of client {client} could not be put together")
            total = total + own_mask(seed, size)
        for client in sorted(set(plan.members) - delivered):
            others = {o: plan.keys[o][0] for o in plan.neighbours(client) if o in delivered}
            if not others:
                continue
            seed = combine_shares(shares.get(client, {}), plan.threshold)
            if seed is None or not has_public_key(seed, plan.keys[client][0]):
                raise FailedSumError(f"the key of client {client}, which left, could not be put together")
            # What the others have added of their masks with it is what it would have taken away.
            total = total - pair_masks(seed, client, others, plan.digest(), size)
        return total & RING_MASK

    def _need(self, answered: Mapping[ClientId, Any], count: int) -> None:
        if len(answered) < count:
            raise FailedSumError(f"{len(answered)} of {len(self.ask.to)} clients are left, it needs {count}")
