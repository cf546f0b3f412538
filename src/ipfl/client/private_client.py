"""A client whose replies are noisy: the one place through which everything private leaves.

A method works with a `PrivateClient` as with any other. What it gets from `train` (by DP-SGD), `score` and
`gradient` is noisy already, and so is all that it makes of that, such as bids. Everything else that it may
look at (points, labels, losses of points) is watched, and so is what it remembers of it. After such a look,
nothing leaves but `n`, the size of a part, which is no secret.

Training is that of Abadi et al., Deep Learning with Differential Privacy, CCS 2016: the loop is that of all
training (`ipfl.training.sgd.sgd`); its objective sums clipped gradients of single points with noise, and
every point is in a batch with the same chance, as the accountant assumes.

So a method that tells more than noise can protect is stopped by what it does, not by its name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap

from ipfl.client.client import Client, Part, TrainingInput
from ipfl.client.privacy_accountant import Releases
from ipfl.config.train_section import PrivacyConfig
from ipfl.core import Fact, Record, Vector
from ipfl.data.federated import Samples
from ipfl.errors import InputError
from ipfl.training.losses import own_losses, soft_scores
from ipfl.training.network import Network, Points
from ipfl.training.sgd import Batch, Objective, Predictor, Score, evaluate, losses, predicted_outputs

MAX_LOSS = 5.0
"""The loss of a point counts up to this in a sum that leaves the client: what one point can change."""
GRADIENT_CHUNK = 32
"""Points whose gradients are in memory at once."""
HAS_LOOKED = "looked"
"""Marks what a client remembers of its points without noise."""


class WatchedSamples(Samples):
    """Samples that say when they are looked at; how many there are is no secret."""

    def __init__(self, samples: Samples, on_look: Callable[[], None]):
        object.__setattr__(self, "_samples", samples)
        object.__setattr__(self, "_on_look", on_look)

    def __len__(self) -> int:
        return len(self.__dict__["_samples"])

    def __getattribute__(self, name: str) -> Any:
        if name in ("x", "y"):
            self._on_look()
            return getattr(self._samples, name)
        return super().__getattribute__(name)


@dataclass
class PhaseLog:
    """What happened at a client between an ask and its reply."""

    releases: Releases = field(default_factory=Releases)
    has_looked: bool = False
    """Whether anything was seen without noise."""


class NoisyScore(Score):
    """A score each of whose numbers is noised when it is first looked at, and counted then."""

    def __init__(
        self, n: int, true: Mapping[str, Callable[[], float]], noised: Callable[[float, float], float]
    ):
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "_known", {})
        object.__setattr__(self, "_true", true)
        object.__setattr__(self, "_noised", noised)

    def __getattribute__(self, name: str) -> Any:
        if name not in ("hits", "soft", "loss"):
            return super().__getattribute__(name)
        known: dict[str, float] = self._known
        if name not in known:
            most = MAX_LOSS if name == "loss" else 1.0
            known[name] = (
                min(max(self._noised(self._true[name](), most), 0.0), most * self.n) if self.n else 0.0
            )
        return known[name]


def point_gradients(network: Network, batch: Batch) -> Tensor:
    """(n, trained): the gradient of each point's loss at the network's parameters.

    Raises:
        InputError: The model mixes the points of a batch, as batch normalization does.
    """
    module = network.module
    trained = {name: one.detach() for name, one in module.named_parameters() if one.requires_grad}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return network.loss.mean(functional_call(module, parameters, (x[None],)).float(), y[None])

    try:
        found = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(
            trained, batch.inputs, batch.labels
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:120]
        raise InputError(
            f"[privacy] needs a model whose points do not mix (no batch norm): {reason}"
        ) from error
    whole = torch.zeros(len(batch), network.trained, device=network.device)
    for slot in network.slots:
        if slot.name in found:
            part = found[slot.name]
            if part.dim() == 5:  # convolution weights lie channels-last in the vector
                part = part.permute(0, 1, 3, 4, 2)
            whole[:, slot.start : slot.stop] = part.reshape(len(batch), -1)
    return whole


def clipped_sum(network: Network, batch: Batch, clip: float) -> Tensor:
    """(trained,): the sum of the points' gradients, none of them longer than `clip`.

    One that is no number counts as 0: in the sum it would show through all noise.
    """
    total = torch.zeros(network.trained, device=network.device)
    for start in range(0, len(batch), GRADIENT_CHUNK):
        gradients = point_gradients(network, batch[start : start + GRADIENT_CHUNK])
        gradients = gradients.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        lengths = gradients.norm(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
        total += (clip / lengths).clamp(max=1) @ gradients
    return total


class NoisyGradient:
    """Objective: the clipped gradients of a batch with noise, divided by the expected size of a batch."""

    def __init__(self, clip: float, deviation: float, batch_size: float, rng: np.random.Generator):
        self.clip, self.deviation, self.batch_size, self.rng = clip, deviation, batch_size, rng

    def __call__(self, network: Network, batch: Batch) -> None:
        """Adds it to the network's gradient; of an empty batch, the noise alone."""
        noise = self.rng.normal(0, self.deviation, network.trained).astype(np.float32)
        network.grad.add_((clipped_sum(network, batch, self.clip) + network.put(noise)) / self.batch_size)


class PoissonBatches:
    """Every point is in each batch with the same chance; the number of batches is fixed."""

    def __init__(self, points: int, batch_size: int):
        self.rate = min(1.0, batch_size / max(points, 1))
        self.steps = math.ceil(points / batch_size)
        """In an epoch."""

    def __call__(self, rng: np.random.Generator, points: int) -> Iterator[NDArray[np.intp]]:
        """The batches of an epoch."""
        for _ in range(self.steps):
            yield np.flatnonzero(rng.random(points) < self.rate)


@dataclass(frozen=True)
class PrivateClient(Client):
    """A client that sends nothing about single points; see the module's docstring."""

    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    noise: np.random.Generator = field(default_factory=np.random.default_rng)
    log: PhaseLog = field(default_factory=PhaseLog)

    @classmethod
    def of(
        cls, me: Client, privacy: PrivacyConfig, noise: np.random.Generator, mine: Record
    ) -> PrivateClient:
        """A client as it works under `[privacy]`.

        Args:
            me: The same without protection.
            privacy: How much.
            noise: Where its noise comes from.
            mine: What it remembers.
        """
        own = {name: getattr(me, name) for name, one in Client.__dataclass_fields__.items() if one.init}
        return cls(**own, privacy=privacy, noise=noise, log=PhaseLog(has_looked=HAS_LOOKED in mine.facts))

    def _look(self) -> None:
        self.log.has_looked = True

    def noised(self, value: float, sensitivity: float) -> float:
        """A number as it may leave, counted.

        Args:
            value: The exact one.
            sensitivity: By how much one point can change it.
        """
        self.log.releases[self.privacy.noise, 1.0] += 1
        return float(value + self.noise.normal(0, self.privacy.noise * sensitivity))

    def _unwatched(self, part: Part, limit: int | None = None) -> Points:
        """The points, for what becomes noisy here."""
        if (part, limit) not in self._points:
            self._points[part, limit] = self.network.points(Client.data(self, part, limit))
        return self._points[part, limit]

    def data(self, part: Part, limit: int | None = None) -> Samples:
        """The samples of one part; to look at one of them is noticed."""
        return WatchedSamples(super().data(part, limit), self._look)

    def points(self, part: Part, limit: int | None = None) -> Points:
        """The same on the network's device."""
        self._look()
        return self._unwatched(part, limit)

    def _training_input(self, on: Samples | None, objective: Objective | None, epochs: int) -> TrainingInput:
        """What a training works with: clipped gradients of the points, and noise in every step."""
        if objective is not None:
            raise InputError(
                "[privacy] needs the ordinary loss, whose gradient is a sum over points: "
                "this method trains on another one"
            )
        if ":" in (self.settings.augment or ""):
            raise InputError("[privacy] needs to know that train.augment mixes no points")
        points = self._unwatched("train") if on is None else self.network.points(on)
        batches, privacy = PoissonBatches(len(points), self.settings.batch_size), self.privacy
        size = batches.rate * len(points)
        noisy = NoisyGradient(privacy.clip, privacy.noise * privacy.clip, size, self.noise)
        self.log.releases[privacy.noise, batches.rate] += batches.steps * epochs
        # Who is in a batch must be as secret as the noise.
        return TrainingInput(replace(points, draw=batches), self.noise, noisy, hides_statistics=True)

    def score(self, predictor: Predictor, part: Part, limit: int | None = None) -> Score:
        """How a model does on one part, with noise on each number that is looked at."""
        points = self._unwatched(part, limit)

        def hits() -> float:
            return evaluate(self.network, predictor, points).hits

        def soft() -> float:
            # Point by point: one score that is no number would show through the noise on the sum.
            outputs = predicted_outputs(self.network, predictor, points)
            lost = own_losses(self.network.target, outputs, points.y)
            return float(soft_scores(lost).clamp(max=1).sum())

        def loss() -> float:
            if not isinstance(predictor, np.ndarray):
                raise InputError("[privacy] has no bound for the summed loss of a mixture")
            found = losses(self.network, predictor, points)
            return float(np.clip(np.nan_to_num(found, nan=MAX_LOSS), 0, MAX_LOSS).sum())

        return NoisyScore(len(points), {"hits": hits, "soft": soft, "loss": loss}, self.noised)

    def losses(self, params: Vector, part: Part, limit: int | None = None) -> NDArray[np.float64]:
        """Cross entropy of every point of one part: a look at the points."""
        self._look()
        return losses(self.network, params, self._unwatched(part, limit))

    def gradient(self, params: Vector, on: Part | Samples) -> Vector:
        """Gradient of the mean loss, of points that are clipped one by one, with noise."""
        points = self.network.points(on) if isinstance(on, Samples) else self._unwatched(on)
        self.network.load(params)
        self.network.module.eval()
        batch = Batch(self.network.inputs(points.x), points.y, self.network.put(np.arange(len(points))))
        total = clipped_sum(self.network, batch, self.privacy.clip).cpu().numpy().astype(np.float64)
        total += self.noise.normal(0, self.privacy.noise * self.privacy.clip, total.size)
        whole = np.zeros(self.network.size, np.float32)
        whole[: self.network.trained] = total / max(len(points), 1)
        self.log.releases[self.privacy.noise, 1.0] += 1
        return whole

    def protect(self, reply: Record) -> Record:
        """The reply of the method's client side, if it may leave.

        Raises:
            InputError: It holds something that was made of points without noise.
        """
        if not self.log.has_looked:
            return reply
        sizes = self._sizes()
        exact = [*reply.params, *(k for k, fact in reply.facts.items() if k != "n" or fact not in sizes)]
        if exact:
            raise InputError(
                f"[privacy] cannot protect {exact[0]!r}, which clients of this method send: "
                "it is made of single points outside of training"
            )
        return reply

    def _sizes(self) -> set[Fact]:
        """What `n` may be: the size of a part, or 1 where all clients weigh the same."""
        return {1, *(len(getattr(self.parts, part)) for part in ("train", "probe", "goal"))}

    def remember(self, remembered: Record, mine: Record) -> Record:
        """What the client remembers, marked if it was made without noise."""
        if remembered is mine or not self.log.has_looked or HAS_LOOKED in remembered.facts:
            return remembered
        return replace(remembered, facts={**remembered.facts, HAS_LOOKED: True})


def noise_path(ask: Record) -> int:
    """A number of what was asked, for the noise of its answer: two asks must not share it."""
    digest = hashlib.blake2b(digest_size=4)
    for name in sorted(ask.params):
        digest.update(name.encode() + ask.params[name].tobytes())
    digest.update(repr(sorted((key, repr(value)) for key, value in ask.facts.items())).encode())
    return int.from_bytes(digest.digest())
