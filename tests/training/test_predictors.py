"""What clients can deploy, scored by hand: mixtures of models, and nearest prototypes.

Softmax regression with one feature has the vector (w_0, w_1, b_0, b_1); with weights 0 its class
probabilities are those of the biases alone: b = (ln p, ln (1 − p)) gives (p, 1 − p).
"""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.federation import points

from ipfl.data.federated import Samples
from ipfl.results.client_model import make_model
from ipfl.results.model_files import export_model
from ipfl.training.architectures import model_factory
from ipfl.training.network import Network, build_network
from ipfl.training.sgd import Mixture, NearestPrototype, evaluate


@pytest.fixture
def network() -> Network:
    return build_network(model_factory("softmax"), (1,), 2, 0)


def always(p: float) -> np.ndarray:
    """A model that gives class 0 the probability p, whatever it sees."""
    return np.array([0, 0, np.log(p), np.log(1 - p)], np.float32)


class TestMixture:
    def test_probabilities_are_mixed_not_parameters(self, network):
        # 0.75·0.9 + 0.25·0.1 = 0.7 for class 0, so 0.3 for class 1: two points of class 0, one of class 1.
        # Mixing the parameters instead would give odds 9^(0.75 − 0.25) = 3, that is 0.75.
        score = evaluate(
            network, Mixture((always(0.9), always(0.1)), (0.75, 0.25)), points((1, 0), (2, 0), (3, 1))
        )
        assert score.hits == 2
        assert score.soft == pytest.approx(0.7 + 0.7 + 0.3)
        assert score.loss == pytest.approx(-2 * np.log(0.7) - np.log(0.3))

    def test_many_batches(self, network):
        # 600 points are three batches; 400 of them are of class 0.
        many = Samples(np.zeros((600, 1), np.float32), np.repeat([0, 1], [400, 200]))
        score = evaluate(network, Mixture((always(0.9), always(0.5)), (0.5, 0.5)), many)
        assert (score.n, score.hits) == (600, 400)
        assert score.soft == pytest.approx(400 * 0.7 + 200 * 0.3)


class TestNearestPrototype:
    def test_the_nearest_wins(self, network):
        # The features of softmax regression are its inputs. Prototypes 1 and 5: the border is at 3.
        # At x = 2 the squared distances are 1 and 9: p_0 = 1/(1 + e^(1 − 9)).
        deployed = NearestPrototype(always(0.5), np.array([[1], [5]], np.float32))
        score = evaluate(network, deployed, points((2, 0), (2.9, 0), (3.1, 0), (9, 1)))
        assert score.hits == 3
        assert evaluate(network, deployed, points((2, 0))).soft == pytest.approx(1 / (1 + np.exp(-8)))

    def test_a_class_without_a_prototype_is_never_predicted(self, network):
        deployed = NearestPrototype(always(0.5), np.array([[100], [np.nan]], np.float32))
        score = evaluate(network, deployed, points((0, 1), (0, 0)))
        assert (score.hits, score.soft) == (1, 1)


def test_saved_with_the_names_of_the_module(network, tmp_path):
    def save(predictor, path):
        export_model(make_model(network, predictor, "float32"), path)

    save(always(0.5), tmp_path / "one")
    one = load_file(tmp_path / "one")
    assert set(one) == {"1.weight", "1.bias"}
    save(Mixture((always(0.5), always(0.9)), (0.25, 0.75)), tmp_path / "mixture")
    mixture = load_file(tmp_path / "mixture")
    assert set(mixture) == {
        "weights",
        *(f"model_{k}.1.{part}" for k in (0, 1) for part in ("weight", "bias")),
    }
    assert mixture["weights"].tolist() == [0.25, 0.75]
    assert mixture["model_1.1.bias"].tolist() == always(0.9)[2:].tolist()
    save(NearestPrototype(always(0.5), np.eye(2, 1, dtype=np.float32)), tmp_path / "prototypes")
    assert load_file(tmp_path / "prototypes")["prototypes"].tolist() == [[1], [0]]
