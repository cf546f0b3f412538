"""The benchmarks: the committed page is made of the committed figures, and each part of it can be made."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import bank
import bench
import plain_loop
import report

HERE = Path(bench.__file__).parent


def test_every_part_has_a_section():
    assert list(bench.PARTS) == list(report.SECTIONS)


def test_a_busy_machine_is_marked():
    # Two cores: 3.5 processes that want one are more than a part of its own needs.
    part = {"date": "2026-01-01", "seconds": 3.0, "rows": []}
    assert "busy" in report.conditions({**part, "load": [3.6, 1.0]}, cores=2)
    assert "busy" not in report.conditions({**part, "load": [3.5, 9.0]}, cores=2)


def test_only_the_page_is_made_anew(tmp_path):
    (tmp_path / bench.RESULTS).write_text((HERE / bench.RESULTS).read_text())
    bench.main(["--page", "--out", str(tmp_path)])
    assert (tmp_path / bench.PAGE).read_text() == (HERE / bench.PAGE).read_text()


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["rounds"])
    assert ended.value.code == 2
    assert "no such part: rounds" in capsys.readouterr().err


def test_a_market_and_its_posting():
    # 200 clients, everyone bids for 4 of 16 clusters: a bid and a fee each, and rewards; half get a seat.
    found = bank.market(200, 4)
    assert found["transfers"] > 2 * 4 * 0.9 * 200
    posted = bank.post(60)
    assert posted["rows"] > 2 * 0.9 * 60


@pytest.mark.parametrize("kind", ["plain", "pfllib"])
def test_the_loops_beside_ours_train(kind):
    # Two clients with the same two images of two classes: after some rounds the network tells them apart.
    torch.manual_seed(0)
    images = np.stack([np.zeros((8, 8, 1)), np.full((8, 8, 1), 255)]).astype(np.uint8)
    data = (np.tile(images, (5, 1, 1, 1)), np.tile([3, 7], 5))
    model = plain_loop.PlainCNN((8, 8, 1))
    clients = [plain_loop.PFLlibClient(model, data, 5) for _ in range(2)]
    for _ in range(60):
        if kind == "plain":
            plain_loop.plain_round(model, [data, data], 5)
        else:
            plain_loop.pfllib_round(model, clients)
    scores = model(plain_loop.as_floats(plain_loop.as_tensors(data)[0]))
    assert scores.argmax(1).tolist() == [3, 7] * 5


@pytest.mark.slow
def test_a_part_is_measured_and_the_others_stay(tmp_path):
    kept = json.loads((HERE / bench.RESULTS).read_text())
    (tmp_path / bench.RESULTS).write_text(json.dumps(kept))
    bench.main(["bank", "--quick", "--out", str(tmp_path)])
    found = json.loads((tmp_path / bench.RESULTS).read_text())
    assert [row["bids"] for row in found["parts"]["bank"]["rows"] if "bids" in row] == list(bank.BIDS)
    for name in set(kept["parts"]) - {"bank"}:
        assert found["parts"][name] == kept["parts"][name]
    assert (tmp_path / bench.PAGE).read_text() == report.page(found)
