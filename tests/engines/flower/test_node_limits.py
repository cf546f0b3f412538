"""What a node insists on: runs that protect its data less are refused, and go on without it."""

import numpy as np
import pytest
from tests.engines.flower.loopback import Loopback

from ipfl.config.train_section import PrivacyConfig
from ipfl.deploy.federation_folder import create_folder
from ipfl.deploy.node.supernode import prepare_node
from ipfl.deploy.server_app import run_server
from ipfl.deploy.settings_files import ServerConfig
from ipfl.engines.flower.node_app import NodeApp
from ipfl.engines.flower.node_limits import NodeLimits
from ipfl.errors import InputError


@pytest.mark.parametrize(
    ("limits", "privacy", "why"),
    [
        ({"least_noise": 0.5}, {"noise": 0.5}, ""),
        ({"least_noise": 0.5}, {}, "privacy.noise = 0, this node wants 0.5 or more"),
        ({"most_epsilon": 8}, {"noise": 1.0, "epsilon": 8.0}, ""),
        ({"most_epsilon": 8}, {"noise": 1.0, "epsilon": 8.1}, "this node wants 8 or less"),
        ({"most_epsilon": 8}, {"noise": 1.0}, "no privacy.epsilon at delta = 1e-05"),
        # A budget means something only with a small delta.
        ({"most_epsilon": 8}, {"noise": 1.0, "epsilon": 8.0, "delta": 0.5}, "or less at 1e-05 or less"),
    ],
)
def test_limits(limits, privacy, why):
    if not why:
        NodeLimits(**limits).check(PrivacyConfig(**privacy))
        return
    with pytest.raises(InputError, match="the run protects too little") as refused:
        NodeLimits(**limits).check(PrivacyConfig(**privacy))
    assert why in str(refused.value)


def test_a_registered_node_refuses_a_run_and_the_others_play_it(tmp_path):
    folder, grid = create_folder(tmp_path / "federation", nodes=3), Loopback()
    folder.config_file.write_text('rounds = 1\n[task]\nmodel = "softmax"\n[method]\nname = "fedavg"\n')
    x, y = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32), np.arange(30) % 3
    for client in range(3):
        node = folder.node_folder(client)
        np.savez(node.root / "data.npz", x=x, y=y)
        if client == 2:
            text = node.settings_file.read_text()
            node.settings_file.write_text(text.replace("least_noise = 0.0", "least_noise = 0.5"))
        settings = prepare_node(node)
        config = {"client": client, "data": str(settings.data), "memory": str(settings.memory)}
        grid.join(10 + client, NodeApp(), node.public_key.read_bytes(), **config, **settings.limits())
    values = {"config": folder.config_file, "out": folder.runs / "run-1", "registry": folder.accounts_file}
    settings = {key: str(value) for key, value in values.items()} | {"nodes": 2, "wait": 0.0}
    (line,) = run_server(grid, ServerConfig.read(settings)).history
    assert [(event.kind, event.client) for event in line["events"]] == [
        ("node_refused", None),
        ("not_connected", 2),
    ]
    assert sorted(seat.client for seat in line["seats"] if seat.delivered) == [0, 1]
