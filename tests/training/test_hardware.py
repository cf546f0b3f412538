"""Devices and precisions: what goes to a device and when, what bf16 changes, how `auto` is settled.

No GPU is needed: PyTorch's `meta` device computes shapes only, but it refuses whatever a GPU would refuse:
operations on tensors of two devices, and it has nothing to read back.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from tests.federation import client
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import ipfl
from ipfl.config.train_section import TrainConfig
from ipfl.data.federated import Samples
from ipfl.errors import InputError
from ipfl.keep.run_folder import RunOutput
from ipfl.methods.clusters.fedem import weighted_loss
from ipfl.methods.one_model.fedavg import FedAvg
from ipfl.methods.one_model.perfedavg import meta_gradient
from ipfl.methods.personal.fedproto import PrototypeObjective
from ipfl.study.comparison import compare, read_plan
from ipfl.training import hardware
from ipfl.training.architectures import CNN, model_factory
from ipfl.training.hardware import decide_hardware, find_device, prepare_network
from ipfl.training.network import Network, build_network
from ipfl.training.sgd import Pull, evaluate, losses, mean_gradient, mean_loss, sgd
from ipfl.training.task import Task

META = torch.device("meta")


def images(n: int) -> Samples:
    rng = np.random.default_rng(0)
    return Samples(rng.integers(0, 256, (n, 8, 8, 1), dtype=np.uint8), rng.integers(0, 3, n))


def cnn() -> Network:
    return build_network(CNN, (8, 8, 1), 3, 0)


class Transfers(TorchDispatchMode):
    """Counts what goes from the CPU to the `meta` device, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        given = [one for one in args if isinstance(one, torch.Tensor)]
        is_sent = isinstance(made, torch.Tensor) and made.device == META
        self.sizes += [one.numel() for one in given if is_sent and one.device.type == "cpu"]
        return made


@pytest.fixture
def on_meta(monkeypatch) -> Network:
    """A network on a device that computes nothing; what is read from it at the very end is zeros."""
    network = cnn()
    network.move(META)
    monkeypatch.setattr(network, "read", lambda: np.zeros(network.size, np.float32))
    return network


class TestTransfers:
    def test_data_and_model_go_once_and_orders_once_an_epoch(self, on_meta):
        start, samples = np.zeros(on_meta.size, np.float32), images(10)
        with Transfers() as sent:
            settings = TrainConfig(batch_size=4, epochs=3, momentum=0.5, weight_decay=0.1)
            sgd(on_meta, start, samples, settings, np.random.default_rng(0), pull=Pull(start, 0.1))
        # 10 images of 8 × 8 and their labels, the model, the anchor of the pull; 3 orders of 10.
        assert sorted(sent.sizes) == sorted([640, 10, on_meta.size, on_meta.trained, 10, 10, 10])

    def test_a_client_s_points_go_once_in_a_phase(self):
        me = client((2, 0), (3, 1), epochs=2)
        counted = []
        me.network.put = lambda array: counted.append(array.size) or torch.tensor(array)
        for _ in range(3):
            me.train(np.zeros(2, np.float32))
            me.score(np.zeros(2, np.float32), "train")
            me.gradient(np.zeros(2, np.float32), "train")
        # x and y once; then an order of 2 for each of 3 × 2 epochs.
        assert counted == [2, 2] + [2] * 6


class TestNothingMixesDevices:
    @pytest.mark.parametrize(
        "objective",
        [
            lambda network: mean_loss,
            lambda network: weighted_loss(np.ones(10), network),
            lambda network: partial(meta_gradient, alpha=0.1, hessian=False),
        ],
        ids=["mean loss", "weighted loss", "meta gradient"],
    )
    def test_training(self, on_meta, objective):
        start, rng = np.zeros(on_meta.size, np.float32), np.random.default_rng(0)
        trained = sgd(on_meta, start, images(10), TrainConfig(), rng, objective=objective(on_meta))
        assert trained.shape == start.shape

    def test_prototypes_are_on_the_device(self, on_meta):
        objective = PrototypeObjective(np.zeros((3, 128), np.float32), 1.0, on_meta)
        assert objective.prototypes.device == objective.known.device == META

    def test_counters_move_too(self):
        network = Network(nn.Sequential(nn.Linear(1, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), (1,))
        network.move(META)
        assert {tensor.device for tensor in network.module.state_dict().values()} == {META}


class TestMove:
    def test_the_parameters_come_along(self):
        network = cnn()
        before = network.read()
        network.move(torch.device("cpu"))
        assert network.read().tobytes() == before.tobytes()
        network.load(before + 1)
        assert network.module.out.bias.tolist() == (before[-3:] + 1).tolist(), "still views of the vector"


class TestBf16:
    def train(self, precision: str, **settings) -> tuple[Network, np.ndarray]:
        network = cnn()
        prepare_network(network, TrainConfig(precision=precision))
        rng = np.random.default_rng(0)
        return network, sgd(network, network.read(), images(40), TrainConfig(epochs=1, **settings), rng)

    def test_twice_the_same_and_near_to_float32(self):
        (_, once), (_, again), (_, exact) = (self.train(p) for p in ("bf16", "bf16", "float32"))
        assert once.tobytes() == again.tobytes()
        assert once.dtype == np.float32
        start = cnn().read()
        moved, error = np.linalg.norm(exact - start), np.linalg.norm(once - exact)
        # 8 bits of mantissa: errors of about 2⁻⁸ at each of five layers, forward and back.
        assert 0 < error < 0.1 * moved

    def test_what_is_computed_in_training(self):
        network, _ = self.train("bf16")
        seen = []
        network.module.conv2.register_forward_hook(lambda *given: seen.append(given[2].dtype))
        network.module.train()
        batch = network.inputs(network.put(images(4).x))
        assert network.forward(batch).dtype == torch.float32
        assert [found.dtype for found in network.features(batch)] == [torch.float32] * 2
        assert seen == [torch.bfloat16] * 2
        assert network.flat.dtype == network.grad.dtype == torch.float32

    def test_scores_and_gradients_of_the_market_are_of_full_precision(self):
        network, params = self.train("bf16")
        exact = cnn()
        for computed in (evaluate, mean_gradient, losses):
            one, other = computed(network, params, images(20)), computed(exact, params, images(20))
            assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other


class TestFindDevice:
    @pytest.fixture
    def machine(self, monkeypatch):
        def has(cuda: int = 0, mps: bool = False) -> None:
            monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
            monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

        return has

    @pytest.mark.parametrize(
        ("name", "cuda", "mps", "found"),
        [
            ("auto", 0, False, "cpu"),
            ("auto", 2, False, "cuda"),
            ("auto", 0, True, "mps"),
            ("auto", 1, True, "cuda"),
            ("cuda:1", 2, False, "cuda:1"),
        ],
    )
    def test_found(self, machine, name, cuda, mps, found):
        machine(cuda, mps)
        assert str(find_device(name)) == found

    @pytest.mark.parametrize(
        ("name", "cuda", "reason"),
        [
            ("cuda", 0, "'cuda', but this machine has no CUDA devices"),
            ("cuda:2", 2, "'cuda:2', but this machine has 2 CUDA devices"),
            ("mps", 2, "'mps', but this machine has none"),
        ],
    )
    def test_unavailable(self, machine, name, cuda, reason):
        machine(cuda)
        with pytest.raises(InputError, match=reason) as error:
            find_device(name)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "", "cuda:0\n"])
    def test_no_such_name(self, name):
        with pytest.raises(InputError, match="device"):
            TrainConfig.of({"device": name})

    def test_a_run_says_so_before_it_starts(self, machine, tmp_path):
        machine()
        config = ipfl.RunConfig(rounds=1, train=TrainConfig(device="cuda"))
        with pytest.raises(InputError, match="no CUDA devices"):
            ipfl.run(Task.load(clients=2), FedAvg(), config, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()


class TestSettle:
    TASK = Task(Task.load(clients=2).data, model_factory("softmax"))

    @pytest.mark.parametrize(("can", "chosen"), [(True, "bf16"), (False, "float32")])
    def test_the_processor_says_what_it_can(self, monkeypatch, can, chosen):
        monkeypatch.setattr(hardware, "has_bf16", lambda: can)
        assert decide_hardware(TrainConfig(precision="auto")).precision == chosen
        assert decide_hardware(TrainConfig(precision="float32")).precision == "float32"

    def test_not_measured_on_a_gpu(self, monkeypatch):
        monkeypatch.setattr(hardware, "find_device", lambda name: torch.device("cuda"))
        settled = decide_hardware(TrainConfig(precision="auto", device="auto"))
        assert (settled.precision, settled.device) == ("float32", "cuda")

    def test_what_is_not_settled_does_not_run(self):
        with pytest.raises(ValueError, match="not settled"):
            prepare_network(cnn(), TrainConfig(precision="auto"))

    def test_it_is_recorded_and_a_resumed_run_keeps_to_it(self, monkeypatch, tmp_path):
        monkeypatch.setattr(hardware, "has_bf16", lambda: True)
        config = ipfl.RunConfig(rounds=1, train=TrainConfig(precision="auto", epochs=1))
        engine = ipfl.local_engine(workers=0)
        first = ipfl.run(self.TASK, FedAvg(), config, engine=engine, out=tmp_path / "run")
        assert first.summary["config"]["train"]["precision"] == "bf16"
        monkeypatch.setattr(hardware, "has_bf16", lambda: False)
        again = RunOutput(tmp_path / "run", resume=True)
        resumed = ipfl.run(self.TASK, FedAvg(), config, engine=engine, out=again)
        assert resumed.summary["config"]["train"] == first.summary["config"]["train"]

    def test_a_comparison_settles_it_for_all_runs(self, monkeypatch, tmp_path):
        answers = iter([True, False, False])
        monkeypatch.setattr(hardware, "has_bf16", lambda: next(answers))
        config = ipfl.Config.load(
            None, ["rounds=1", "train.precision=auto", "task.clients=2", "task.samples=8"]
        )
        done = compare(config, ["fedavg"], seeds=2, out=tmp_path, workers=0)
        runs = [result for entry in done.entries.values() for result in entry.results.values()]
        assert [run.summary["config"]["train"]["precision"] for run in runs] == ["bf16", "bf16"]
        assert read_plan(tmp_path).config.train.precision == "bf16", "for a resume on another machine"
