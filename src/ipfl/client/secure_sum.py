"""The client's side of a secure sum: replies leave it masked, so that the server learns their sum alone.

A sum has four or five steps, the protocol of Bonawitz et al. (Practical Secure Aggregation, CCS 2017) with
the neighbours of Bell et al. (Secure Single-Server Aggregation, CCS 2020):

1. `sum_keys`: a client tells its public keys;
2. `sum_shares`: it shares its secrets among its neighbours, sealed for each of them;
3. the method's own action: it answers as always, and what leaves it is masked;
4. `sum_agree`, between nodes that know each other's keys: it signs the list of those that delivered;
5. `sum_open`: it gives the server its shares of the own masks of those that delivered, and of the pair keys
   of those that did not: never both of one client.

A node that knows the other nodes' keys (`SumIdentity`) signs its own keys of a sum, and checks those of its
neighbours: a server that exchanges keys for its own, or invents clients, gets nothing. It opens a sum only
over a list that a quorum of its neighbours has signed too: two quorums have a node in common that is honest,
and it signs one list alone, so there is one sum. Without such keys, the server is trusted to pass on keys as
they are, and to tell everyone the same list; see docs/privacy.md. `ipfl.play.summed_replies` is its side.
On a node every step is answered once, and never in another order.
"""

from __future__ import annotations

import json
import secrets as system_random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ipfl.client.runner import ClientRunner, Delivery, Job, Runner
from ipfl.client.runner_wrapper import RunnerWrapper
from ipfl.client.sum_plan import (
    MASKED,
    MIN_CLIENTS,
    SUM_AGREE,
    SUM_KEYS,
    SUM_OPEN,
    SUM_PLAN,
    SUM_SHARES,
    SumPlan,
)
from ipfl.core import EMPTY, ClientId, Record, stream
from ipfl.core.masks import (
    SEED_BYTES,
    Secrets,
    own_mask,
    pair_masks,
    seal,
    split_secret,
    unseal,
)
from ipfl.core.method import Method, Weigh, sums_of
from ipfl.core.records import BUDGET_SPENT, split_privacy_facts
from ipfl.core.ring import LIMBS, RING_MASK, to_vector
from ipfl.errors import InputError
from ipfl.system.files import make_folder, remove, write_json

NO_SHARE = "00" * SEED_BYTES
"""In place of a share that could not be unsealed."""
ONLY_SUMS = 'privacy.secure_sum = "all" leaves the server nothing but sums'
"""How it is said why something is refused."""
PROOFS = "proofs"
"""The fact that has what clients have signed: of their keys, in the order of the plan; of who delivered, in
that of a client's shares, and empty where one has signed nothing."""


class SumIdentity(Protocol):
    """A node that can prove what it says in a sum, and check what others say."""

    def sign(self, step: str, client: ClientId, session: str, said: Sequence[str]) -> str:
        """The proof that the client says this in a step of this sum: its keys, or what it agrees to."""

    def check(self, step: str, client: ClientId, session: str, said: Sequence[str], proof: str) -> None:
        """Accepts a proof of another node.

        Raises:
            InputError: It does not come from the node that this one knows as the client's.
        """


class SumMemory:
    """Secrets of a client between the steps of a sum.

    In a simulation they follow from the run's seed, and nothing is kept. On a node they come from the
    operating system and are in a file, which also says which step is next: none is answered twice.
    """

    def __init__(self, folder: Path, seed: int, *, is_seeded: bool):
        self.folder, self.seed, self.is_seeded = folder, seed, is_seeded

    def begin(self, client: ClientId, session: str) -> Secrets:
        """New secrets, for the first step."""
        if self.is_seeded:
            return Secrets.of(stream(self.seed, "secure sum", session, client).bytes(32))
        seed = system_random.token_bytes(32)
        make_folder(self.folder)
        self.folder.chmod(0o700)
        self._save(client, {"session": session, "seed": seed.hex(), "step": SUM_KEYS, "plan": ""})
        return Secrets.of(seed)

    def go_on(
        self, client: ClientId, step: str, after: str, plan: SumPlan, delivered: Iterable[ClientId] = ()
    ) -> Secrets | None:
        """The secrets for a further step; None: it is not its turn, or the plan has changed.

        Args:
            client: Whose.
            step: Which step.
            after: The one that must have been answered last.
            plan: What the server says of the sum. Keys must stay those that secrets were shared under, and
                after the masked reply all must be as it was then.
            delivered: Who is said to have delivered. What was agreed to is what is opened.
        """
        if self.is_seeded:
            return self.begin(client, plan.session)
        try:
            known = json.loads(self._file(client).read_text())
        except (FileNotFoundError, ValueError):
            return None
        if (known["session"], known["step"]) != (plan.session, after):
            return None
        seen = {SUM_KEYS: "", SUM_SHARES: plan.of_keys().digest(), MASKED: plan.digest()}
        if known["plan"] != seen.get(after, plan.agreement(delivered)):
            return None
        if step == SUM_OPEN:
            remove(self._file(client))
        else:
            next_seen = plan.agreement(delivered) if step == SUM_AGREE else plan.digest()
            self._save(client, {**known, "step": step, "plan": next_seen})
        return Secrets.of(bytes.fromhex(known["seed"]))

    def _save(self, client: ClientId, known: Mapping[str, str]) -> None:
        write_json(self._file(client), dict(known))

    def _file(self, client: ClientId) -> Path:
        return self.folder / f"{client}.json"


class SummingRunner(RunnerWrapper[Runner]):
    """A runner from which summed replies leave masked; everything else is done by the runner inside.

    Args:
        inner: Plays the clients.
        weigh: What vectors count, by the actions whose replies are summed.
        seed: Of the run.
        is_seeded: Whether secrets follow from the run's seed: for simulations and tests.
        identity: Signs keys and checks those of others; None: the server is trusted with that.
    """

    def __init__(
        self,
        inner: Runner,
        weigh: Mapping[str, Weigh],
        seed: int,
        *,
        is_seeded: bool,
        identity: SumIdentity | None = None,
    ):
        super().__init__(inner)
        self.weigh, self.identity = weigh, identity
        self._secrets = SumMemory(inner.memory.folder.with_name("sums"), seed, is_seeded=is_seeded)

    def run(self, job: Job) -> Record:
        """The client's reply."""
        for delivery in self.deliver(job):
            if delivery.job == job and delivery.reply is not None:
                return delivery.reply
        return EMPTY

    def deliver(self, job: Job) -> Iterator[Delivery]:
        """Everything that leaves the client; where sums are taken, nothing does without a mask."""
        if job.action in (SUM_KEYS, SUM_SHARES, SUM_AGREE, SUM_OPEN):
            yield Delivery(job, self._step(job))
        elif job.action not in self.weigh or job.client < 0:
            yield from self.inner.deliver(job)
        elif SUM_PLAN not in job.record.facts:  # a server that asks for the plain reply does not get it
            yield Delivery(job, EMPTY)
        else:
            yield from self._deliver_masked(job)

    def _step(self, job: Job) -> Record:
        """A step beside the method's action; an empty reply where the server asks for what it must not."""
        plan, client = SumPlan.read(job.record.facts[SUM_PLAN]), job.client
        if job.action == SUM_KEYS:
            keys = self._secrets.begin(client, plan.session).public
            proof = "" if self.identity is None else self.identity.sign(SUM_KEYS, client, plan.session, keys)
            return Record({}, {"keys": keys, "proof": proof})
        if job.action == SUM_SHARES:
            return self._share(client, plan, job.record.facts[PROOFS])
        if job.action == SUM_AGREE:
            return self._agree(client, plan, set(job.record.facts["delivered"]))
        return self._open(client, plan, job.record)

    def _share(self, client: ClientId, plan: SumPlan, proofs: Sequence[str]) -> Record:
        """Shares of both secrets, sealed for each holder; the client keeps its own in the same way."""
        secrets, keys = self._secrets.go_on(client, SUM_SHARES, SUM_KEYS, plan), plan.keys or {}
        if secrets is None or len(keys) < MIN_CLIENTS or keys.get(client) != secrets.public:
            return EMPTY
        holders = plan.holders_of_shares(client)
        if not len(holders) / 2 < plan.threshold <= len(holders) or len(proofs) != len(keys):
            return EMPTY
        if self.identity is not None:
            for (other, of_other), proof in zip(keys.items(), proofs, strict=True):
                self.identity.check(SUM_KEYS, other, plan.session, of_other, proof)
        own_shares = split_secret(secrets.own_seed, plan.threshold, len(holders))
        pair_shares = split_secret(secrets.pair_seed, plan.threshold, len(holders))
        sealed = [
            seal(secrets, _key(plan, holder, 1), own + pair, _context(plan, client, holder))
            for holder, own, pair in zip(holders, own_shares, pair_shares, strict=True)
        ]
        return Record({}, {"sealed": sealed})

    def _deliver_masked(self, job: Job) -> Iterator[Delivery]:
        plan = SumPlan.read(job.record.facts[SUM_PLAN])
        facts = {name: fact for name, fact in job.record.facts.items() if name != SUM_PLAN}
        plain = replace(job, record=Record(job.record.params, facts))
        for delivery in self.inner.deliver(plain):
            if delivery.job is not plain or delivery.reply is None:  # late: its masks are gone
                yield replace(delivery, reply=None)
            else:
                yield replace(delivery, job=job, reply=self._masked(job, plan, delivery.reply))

    def _masked(self, job: Job, plan: SumPlan, reply: Record) -> Record:
        """A reply as the server may see it; not a number where it cannot be summed."""
        reply, about_privacy = split_privacy_facts(reply)
        if BUDGET_SPENT in about_privacy:
            return Record({}, about_privacy)
        layout, client, held = plan.layout, job.client, plan.holders or {}
        if layout is None or not held.keys() >= layout.vectors.keys() or not plan.is_sound():
            return EMPTY
        secrets = self._secrets.go_on(client, MASKED, SUM_SHARES, plan)
        others = [one for one in plan.neighbours(client) if one in plan.members]
        if secrets is None or len(others) + 1 < plan.threshold:
            return EMPTY
        if any((client in held[name]) != (name in reply.params) for name in layout.vectors):
            return EMPTY  # who is said to send a vector must send it, or it would not hide the others
        try:
            elements = layout.pack(reply, self.weigh[job.action](reply))
        except (ValueError, TypeError, KeyError):  # diverged, or broken on purpose; it says nothing else
            return Record({MASKED: np.full(LIMBS * layout.size, np.nan, np.float32)}, about_privacy)
        keys = {other: _key(plan, other, 0) for other in others}
        elements = elements + own_mask(secrets.own_seed, layout.size)
        # Bound to the whole plan: clients that were told different ones have masks that do not cancel.
        elements = elements + pair_masks(secrets.pair_seed, client, keys, plan.digest(), layout.size)
        return Record({MASKED: to_vector(elements & RING_MASK)}, about_privacy)

    def _agree(self, client: ClientId, plan: SumPlan, delivered: set[ClientId]) -> Record:
        """The client's signature under the list of those that delivered: in a sum it signs one list alone."""
        if self.identity is None or client not in delivered or not plan.may_open(delivered, client):
            return EMPTY
        if self._secrets.go_on(client, SUM_AGREE, MASKED, plan, delivered) is None:
            return EMPTY
        said = [plan.agreement(delivered)]
        return Record({}, {"proof": self.identity.sign(SUM_AGREE, client, plan.session, said)})

    def _open(self, client: ClientId, plan: SumPlan, record: Record) -> Record:
        """Shares for the server: of own masks of those that delivered, of pair keys of those that did not."""
        delivered, sealed = set(record.facts["delivered"]), record.facts["sealed"]
        others = plan.holders_left(client)
        if client not in delivered or not plan.may_open(delivered, client) or len(sealed) != len(others):
            return EMPTY
        if self.identity is not None:
            proofs = dict(zip(others, record.facts.get(PROOFS, ()), strict=False))
            _check_agreement(self.identity, plan, delivered, proofs)
        after = MASKED if self.identity is None else SUM_AGREE
        secrets = self._secrets.go_on(client, SUM_OPEN, after, plan, delivered)
        if secrets is None:
            return EMPTY
        shares = []
        for owner, text in zip(others, sealed, strict=True):
            both = unseal(secrets, _key(plan, owner, 1), text, _context(plan, owner, client))
            start = 0 if owner in delivered else SEED_BYTES
            shares.append(NO_SHARE if both is None else both[start : start + SEED_BYTES].hex())
        return Record({}, {"shares": shares})


def with_secure_sums(
    runner: ClientRunner, outside: Runner | None = None, identity: SumIdentity | None = None
) -> Runner:
    """The runner as `privacy.secure_sum` says: as it is, or with masks around all that is summed.

    Args:
        runner: Plays the clients.
        outside: The same with attackers or faults around it; None: there are none.
        identity: Signs the node's keys and checks those of others; None: the server is trusted with that.
    """
    weigh = summed_actions(runner)
    outside = outside or runner
    if not weigh:
        return outside
    return SummingRunner(outside, weigh, runner.seed, is_seeded=runner.is_seeded, identity=identity)


def summed_actions(runner: ClientRunner) -> Mapping[str, Weigh]:
    """The actions whose replies are summed, by the settings of the run.

    Raises:
        InputError: All were to be summed, and the method sends single replies: a server that says so lies.
    """
    wanted, sums = runner.privacy.secure_sum, sums_of(runner.method)
    if wanted == "off":
        return {}
    if wanted == "all":
        refuse_single_replies(runner.method)
    return dict(sums.gradients) | (dict(sums.updates) if wanted == "all" else {})


def refuse_single_replies(method: Method[Any]) -> None:
    """Says what a method needs single replies for, if it does.

    Raises:
        InputError: It does, so that sums are not enough.
    """
    sums = sums_of(method)
    if reason := sums.needs_single:
        hint = ' ("gradients" is possible)' if sums.gradients else ""
        raise InputError(f"{ONLY_SUMS}, and {method.name} needs single replies for {reason}{hint}")


def _check_agreement(
    identity: SumIdentity, plan: SumPlan, delivered: set[ClientId], proofs: Mapping[ClientId, str]
) -> None:
    """Accepts a list of who delivered that as many have signed as it takes to open a sum.

    Raises:
        InputError: They are fewer: the server may have told others another list.
    """
    agreed, reason = 0, ""
    for other, proof in proofs.items():
        try:
            identity.check(SUM_AGREE, other, plan.session, [plan.agreement(delivered)], proof)
            agreed += 1
        except InputError as error:
            reason = f" ({error})"
    if agreed < plan.threshold:
        raise InputError(
            f"the sum is not opened: {agreed} nodes have signed the list of who delivered that this one was "
            f"told, and it takes {plan.threshold}{reason}"
        )


def _key(plan: SumPlan, client: ClientId, number: int) -> str:
    return (plan.keys or {})[client][number]


def _context(plan: SumPlan, owner: ClientId, holder: ClientId) -> str:
    """What sealed shares belong to: they fit nowhere else."""
    return f"{plan.session}/{owner}/{holder}"
