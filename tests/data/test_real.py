"""The real data sets, where a folder with them is at hand; the formats are covered without it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ipfl.data import DATASETS, load_dataset

FOLDER = Path(os.environ.get("IPFL_DATA") or Path(__file__).parents[3] / "shared" / "data")
at_hand = pytest.mark.skipif(
    not (FOLDER / "cifar10.npz").is_file(), reason=f"no data folder: set IPFL_DATA (looked in {FOLDER})"
)


@at_hand
@pytest.mark.parametrize("name", ["cifar10", "emnist", "har"])
def test_real_data_is_as_listed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPFL_DATA", str(FOLDER))
    data = load_dataset(name)
    assert (data.classes, data.x_train.shape[1:]) == (DATASETS[name].classes, DATASETS[name].shape)
    assert set(np.unique(data.y_train).tolist()) == set(range(data.classes))
