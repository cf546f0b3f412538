"""Adapters of a language model: a tiny one, made here at random and saved as a user's would be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.federation import run_here

import ipfl
from ipfl.config.train_section import TrainConfig
from ipfl.errors import InputError

STEPS, WIDTH, RANK = 6, 16, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=STEPS,
        hidden_dropout_prob=0.0,
    )
    place = tmp_path_factory.mktemp("model")
    BertForSequenceClassification(config).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def task(folder):
    rng = np.random.default_rng(0)
    clients = [(rng.integers(1, 20, (20, STEPS)), np.arange(20) % 2) for _ in range(4)]
    return ipfl.Task.from_clients(clients, model=f"hf:{folder}")


class TestVector:
    def test_only_what_is_trained_is_in_it(self, task):
        network = task.network(0)
        # Query and value of one layer: rank·WIDTH down and up each; the classification layer WIDTH·2 + 2.
        assert network.size == network.trained == 2 * 2 * RANK * WIDTH + 2 * WIDTH + 2
        assert all("lora" in slot.name or "modules_to_save" in slot.name for slot in network.slots)
        assert network.part("adapters").size == network.part("body").size == 2 * 2 * RANK * WIDTH
        assert network.part("head").size == WIDTH * 2 + 2

    def test_the_seed_decides_it(self, task):
        one, same, other = (task.network(seed).read() for seed in (0, 0, 1))
        assert one.tobytes() == same.tobytes() != other.tobytes()

    def test_the_frozen_model_is_shared_and_stays(self, task):
        one, other = task.network(0).module, task.network(1).module
        frozen = [p for p in one.parameters() if not p.requires_grad]
        assert {p.data_ptr() for p in frozen} == {
            p.data_ptr() for p in other.parameters() if not p.requires_grad
        }
        before = [p.clone() for p in frozen]
        result = run_here(task, ipfl.method("fedavg"), rounds=1, train=TrainConfig(lr=0.5, weight_decay=0.1))
        assert all(torch.equal(p, q) for p, q in zip(before, frozen, strict=True))
        start = task.network(0).read()
        assert np.abs(result.models["global"] - start).max() > 0

    def test_padding_is_not_attended_to(self, task):
        module = task.network(0).module.eval()
        tokens = torch.tensor([[5, 6, 7, 0, 0, 0], [5, 6, 7, 8, 8, 8]])
        with torch.no_grad():
            whole, short = module(tokens), module(tokens[:1, :3])
        torch.testing.assert_close(whole[:1], short)
        assert not torch.allclose(whole[0], whole[1])


def test_adapters_travel_and_are_paid_for(task, tmp_path):
    """A market of adapters: models of their length travel, tokens move, and the file names their tensors."""
    result = run_here(
        task, ipfl.method("ipfl-plus"), rounds=3, out=tmp_path / "run", train=TrainConfig(lr=0.05)
    )
    size = task.network(0).size
    assert all(len(model) == size for model in result.models.values())
    assert any(line["transfers"] for line in result.history)
    trainings = sum(seat.delivered for line in result.history for seat in line["seats"])
    # Facts are a few bytes beside the vectors; a whole model would be 4 bytes times its parameters each time.
    assert 4 * size * trainings <= result.summary["bytes_up"] < 4 * size * trainings + 4096 * trainings
    from safetensors.torch import load_file

    assert set(load_file(tmp_path / "run/model/cluster_0.safetensors")) == {
        slot.name for slot in task.network(0).slots
    }


def test_what_cannot_be_loaded(tmp_path):
    tokens = [(np.ones((8, STEPS), np.int64), np.arange(8) % 2)]
    with pytest.raises(InputError, match=r"model 'hf:.*' cannot be loaded: there is no such folder"):
        ipfl.Task.from_clients(tokens, model=f"hf:{tmp_path / 'nothing'}").network(0)
    images = [(np.ones((8, 4, 4, 1), np.uint8), np.arange(8) % 2)]
    with pytest.raises(InputError, match="needs token ids"):
        ipfl.Task.from_clients(images, model="hf:some/model").network(0)
