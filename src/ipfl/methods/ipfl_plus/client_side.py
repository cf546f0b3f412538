"""What a client of IP-FL does: state its preferences, train, appraise, personalize (Algorithm 2).

Each `on_<action>` returns (reply, what to remember).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ipfl.client.client import Client, Part
from ipfl.client.own_points import OwnPoints
from ipfl.core import Record, Vector, cluster_name
from ipfl.core.vectors import mix
from ipfl.methods.ipfl_plus.ipfl_settings import WITH_PROBE, IPFLSettings
from ipfl.methods.ipfl_plus.mixing import mixing_weights
from ipfl.methods.ipfl_plus.personalization import mix_on_evidence
from ipfl.methods.ipfl_plus.preferences import choose_bids, importance_weights, mean_returns
from ipfl.methods.shared.initial_clustering import count_confusion
from ipfl.training.sgd import Score


class ClientSide(IPFLSettings):
    """The client side of IP-FL."""

    def on_preference(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Algorithm 2, ClientPreferences: importance weights on `probe`, bids most wanted first.

        A client that is sent no models, because it did not pay, bids by what it last answered.
        """
        clusters: list[int] = ask.facts["clusters"]
        limit: int = ask.facts["points"]
        importance = np.asarray(ask.facts["importance"])
        hits, n = np.zeros(0), 0
        if ask.params:
            hits, n = self._hits(ask, me, "probe", limit)
            importance = importance_weights(hits / max(n, 1), np.asarray(ask.facts["means"]))
        returns = mean_returns(ask.facts["seats"], ask.facts["net"], self.price)
        order = choose_bids(importance, self.threshold, returns, self.feedback) if importance.any() else []
        bids = [clusters[position] for position in order]
        return Record({}, {"bids": bids, "hits": hits.tolist(), "n": n}), mine

    def on_train(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Trains the model of every cluster the client has a seat in.

        Later in a run also on the points that it scores models on, if `train.use_probe` says so: other
        methods have them from the beginning.
        """
        points, everything = me.data("train"), None
        if ask.facts.get(WITH_PROBE) and me.settings.use_probe:
            points = everything = points.joined(me.data("probe"))
        params = {k: me.train(model, on=everything) for k, model in ask.params.items()}
        return Record(params, {"n": len(points)}), mine

    def on_appraise(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Accuracy of the aggregated models on `probe`, and the gradient of the loss there if asked for."""
        scores = {k: me.score(model, "probe") for k, model in ask.params.items()}
        wanted = ask.params.items() if ask.facts["gradient"] else ()
        facts = {k: [score.hits, float(score.n)] for k, score in scores.items()}
        return Record({k: me.gradient(model, "probe") for k, model in wanted}, facts), mine

    def on_loss(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """Summed loss and soft hits of each model on `probe`, for values of coalitions."""
        scores = [me.score(model, "probe") for model in ask.params.values()]
        facts = {"loss": [s.loss for s in scores], "soft": [s.soft for s in scores], "n": scores[0].n}
        return Record({}, facts), mine

    def on_confusion(self, ask: Record, mine: Record, me: Client) -> tuple[Record, Record]:
        """True positives, false positives and false negatives per class of each model (server's holdout)."""
        return count_confusion(ask, me), mine

    def personalize(self, offer: Record, mine: Record, me: Client) -> Vector:
        """Eq. personalized_model: P_i = Σ_k υ_ik ω_k, with υ from `goal`."""
        hits, n = self._hits(offer, me, "goal", self.preference_samples)
        importance = importance_weights(hits / max(n, 1), np.asarray(offer.facts["means"]))
        models = [offer.params[cluster_name(k)] for k in offer.facts["clusters"]]
        if self.mix == "evidence":
            points = OwnPoints.of(me, self.preference_samples)
            # Not where `goal` is something else than what clients train on.
            is_trained = me.settings.use_probe and self.hold_back < 1 and len(points.trained) > 0
            return mix_on_evidence(models, importance, points, me, is_trained=is_trained)

        def score(shares: NDArray[np.float64]) -> float:
            if shares.max() == 1:  # a single model: scored already
                return float(hits[shares.argmax()])
            return self._points(me.score(mix(models, shares), "goal", self.preference_samples))

        return mix(models, mixing_weights(importance, self.mix, score))

    def _hits(self, ask: Record, me: Client, part: Part, limit: int) -> tuple[NDArray[np.float64], int]:
        """n_ik for every cluster k, and the number of points."""
        models = [ask.params[cluster_name(k)] for k in ask.facts["clusters"]]
        scores = [me.score(model, part, limit) for model in models]
        return np.array([self._points(score) for score in scores]), scores[0].n

    def _points(self, score: Score) -> float:
        return score.soft if self.hits == "soft" else score.hits
