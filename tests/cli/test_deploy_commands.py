"""Numbers that are given to `ipfl deploy`: each has a lower and an upper limit, told on one line."""

from __future__ import annotations

import pytest
from tests.cli.test_cli import ipfl, refused

from ipfl.cli import deploy_commands as deploy
from ipfl.config.sections import MAX_INT32
from ipfl.deploy.registry import NodeAccount
from ipfl.engines.flower import run_settings

HUGE = "1" + "0" * 30
INIT, RUN, TRY = ["init", "site"], ["run", "site"], ["try"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        *[(command, "--nodes", value) for command in (INIT, RUN, TRY) for value in ("0", HUGE)],
        (INIT, "--nodes", "1001"),
        (TRY, "--nodes", "129"),
        *[(command, "--rounds", str(2**31)) for command in (RUN, TRY)],
        *[
            (RUN, option, value)
            for option in ("--wait", "--deadline")
            for value in ("-1", "2592001", "inf", "nan")
        ],
        (RUN, "--classes", str(2**16 + 1)),
        (["register", "site", "key.pub"], "--client", str(2**31 - 1)),
    ],
)
def test_a_number_out_of_range(command, option, value, tmp_path):
    told = refused("deploy", *command, option, value)
    assert option in told
    assert value in told
    assert not [*tmp_path.iterdir()]


def test_more_nodes_than_accounts_never_come(tmp_path):
    assert ipfl("deploy", "init", "site", "--nodes", 2).exit_code == 0
    assert "--nodes 3" in (told := refused("deploy", "run", "site", "--nodes", 3))
    assert "accounts for 2 nodes only" in told


def test_limits_are_those_of_the_modules_behind():
    """They are written down twice, because `--help` must not import these modules."""
    assert (deploy.MAX_ROUNDS, deploy.MAX_CLASSES) == (MAX_INT32, run_settings.MAX_CLASSES)
    limits = NodeAccount.model_fields["client"].metadata
    assert [limit.le for limit in limits if hasattr(limit, "le")] == [deploy.MAX_CLIENT]
