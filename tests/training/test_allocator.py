"""The allocator's setting: it saves page faults and changes no bit."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ipfl.training import hardware

TRAIN = """
import hashlib, resource
import numpy as np
from ipfl.training.hardware import keep_freed_memory
from ipfl.training.architectures import CNN
from ipfl.training.network import build_network
from ipfl.config.train_section import TrainConfig
from ipfl.training.sgd import one_thread, sgd
from ipfl.data.federated import Samples

rng = np.random.default_rng(0)
samples = Samples(rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, 60))
network = build_network(CNN, (32, 32, 3), 10, 0)
start = network.read()
for is_kept in (False, True):
    assert not is_kept or keep_freed_memory()
    with one_thread():
        model = sgd(network, start, samples, TrainConfig(batch_size=50, epochs=1), np.random.default_rng(0))
    for _ in range(2):  # the first makes the pages, the second may find them
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.ones(2**23)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    print(hashlib.sha256(model.tobytes()).hexdigest(), faults)
"""


@pytest.mark.skipif(not hardware.keep_freed_memory(), reason="another allocator than glibc's")
def test_fewer_page_faults_and_the_same_bits():
    command = [sys.executable, "-c", TRAIN]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert told[0] == told[2], "the same model"
    # A block of 64 MB, more than glibc ever keeps by itself: 16,384 pages of 4 kB, or 32 huge ones of 2 MB.
    assert int(told[1]) >= 32 > int(told[3])


@pytest.mark.parametrize("platform", ["darwin", "linux"])  # and musl, which has no gnu_get_libc_version
def test_another_allocator(monkeypatch, platform):
    monkeypatch.setattr(hardware.sys, "platform", platform)
    monkeypatch.setattr(hardware.ctypes, "CDLL", lambda _: object())
    assert not hardware.keep_freed_memory()
