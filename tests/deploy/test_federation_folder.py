"""The folder of a federation, and the commands that need no running server."""

from __future__ import annotations

import importlib.util
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ipfl.cli import app
from ipfl.config.whole_config import Config
from ipfl.deploy.credentials import fingerprint, write_key_pair
from ipfl.deploy.federation_folder import NodeFolder, ServerFolder, create_folder
from ipfl.deploy.local_federation import trial_config
from ipfl.deploy.node.supernode import KeyRefusedError, connection_error, prepare_node
from ipfl.deploy.registry import Registry
from ipfl.deploy.settings_files import NodeSettings, ServerConfig, ServerSettings
from ipfl.engines import NEEDS_LOCAL_ENGINE
from ipfl.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ServerFolder:
    return create_folder(
        tmp_path_factory.mktemp("deploy") / "site",
        nodes=2,
        hosts=["fl.example.org"],
        ports=(9555, 9556),
    )


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and all that a command printed."""
    done = CliRunner().invoke(app, ["deploy", *arguments])
    return done.exit_code, done.output


def test_a_folder_has_all_that_server_and_nodes_need(folder: ServerFolder) -> None:
    folder.check()
    assert ServerSettings.load(folder.settings_file) == ServerSettings(
        bind="0.0.0.0", port=9555, run_port=9556
    )
    registry = Registry.load(folder.accounts_file)
    assert registry.clients() == (0, 1)
    for client in (0, 1):
        node = folder.node_folder(client)
        assert registry.clients_by_key()[fingerprint(node.public_key.read_bytes())] == client
        assert node.ca_certificate.read_bytes() == folder.ca_certificate.read_bytes()
        settings = NodeSettings.load(node.settings_file)
        assert (settings.server, settings.client) == ("fl.example.org:9555", client)
    assert Config.load(folder.config_file).build_method().name == Config().method.name


def test_private_keys_are_private_and_nowhere_else(folder: ServerFolder) -> None:
    private = [path for path in folder.root.rglob("*") if path.name in ("key", "server.key")]
    assert len(private) == 3
    secrets = [path.read_text().splitlines()[1] for path in private]
    for path in folder.root.rglob("*"):
        if path.is_file() and path not in private:
            assert not any(secret in path.read_text() for secret in secrets)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in private)


def test_the_app_has_its_components_and_settings(folder: ServerFolder) -> None:
    described = tomllib.loads((folder.app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert set(described["components"]) == {"serverapp", "clientapp"}
    assert list(described["config"]) == list(ServerConfig.model_fields)
    assert ServerConfig.read(described["config"] | {"out": "x"}) == ServerConfig(out=Path("x"))


def test_every_command_of_the_readme_exists(folder: ServerFolder) -> None:
    readme = (folder.root / "README.md").read_text()
    used = {line.split("ipfl deploy ")[1].split()[0] for line in readme.split("`") if "ipfl deploy " in line}
    assert used == {"server", "node", "run", "register"}
    for word in used:
        assert run(word, "--help")[0] == 0
    assert "PRIVATE KEY" not in readme


def test_a_folder_in_use_is_not_overwritten(folder: ServerFolder) -> None:
    before = folder.accounts_file.read_bytes()
    code, output = run("init", str(folder.root))
    assert code == 2
    assert "exists already: keys in use are not overwritten" in output
    assert folder.accounts_file.read_bytes() == before


def test_nodes_and_runs_have_different_ports(tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text("port = 9093\n")
    with pytest.raises(InputError, match="port and run_port must differ"):
        ServerSettings.load(tmp_path / "server.toml")


def test_accounts_are_added_and_get_new_keys_while_no_server_runs(tmp_path: Path) -> None:
    site = create_folder(tmp_path / "site", nodes=1)
    names = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        names.append(write_key_pair(tmp_path / name))
    code, output = run("register", str(site.root), str(tmp_path / "a" / "key.pub"))
    assert (code, output) == (0, f"client 1: key {names[0]}; the server registers it when it starts\n")
    code, output = run("register", str(site.root), str(tmp_path / "b" / "key.pub"), "--client", "1")
    assert code == 2
    assert f"client 1 has an account with key {names[0]} already; --replace" in output
    code, output = run("register", str(site.root), str(tmp_path / "b/key.pub"), "--client", "1", "--replace")
    assert code == 0
    registry = Registry.load(site.accounts_file)
    assert registry.clients() == (0, 1)
    assert registry.clients_by_key()[names[1]] == 1
    assert names[0] not in registry.clients_by_key()
    code, output = run("register", str(site.root), str(tmp_path / "a" / "key"))
    assert code == 2
    assert "is a private key" in output


def test_commands_name_the_missing_file(tmp_path: Path) -> None:
    code, output = run("server", str(tmp_path))
    assert (code, "has no ca.crt: not a folder that ipfl deploy init has written" in output) == (2, True)
    code, output = run("node", str(tmp_path))
    assert (code, "node.toml: No such file or directory" in output) == (2, True)


def test_a_node_checks_its_folder_before_it_connects(tmp_path: Path) -> None:
    node = create_folder(tmp_path / "site", nodes=1).node_folder(0)
    with pytest.raises(InputError, match=r"there is no .*data\.npz: put the node's data there"):
        prepare_node(node)
    (node.root / "data.npz").touch()
    settings = prepare_node(node)
    assert settings.data == node.root / "data.npz"
    assert settings.memory.is_dir()
    node.private_key.chmod(0o644)
    with pytest.raises(InputError, match=r"can be read by others: chmod 600"):
        prepare_node(node)
    node.private_key.unlink()
    with pytest.raises(InputError, match="has no key: copy the whole folder"):
        prepare_node(NodeFolder(node.root))


def test_connection_errors_name_the_cause() -> None:
    name = "SHA256:abc"
    refused = connection_error("[code: 2004] Failed to activate SuperNode.", name, "fl:1")
    assert isinstance(refused, KeyRefusedError)
    assert "not registered there (ipfl deploy register)" in str(refused)
    assert "fl:1 is not the server of this node's ca.crt" in str(
        connection_error("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", name, "fl:1")
    )
    assert "could not connect to fl:1: something else" in str(
        connection_error("something\n else", name, "fl:1")
    )


def test_without_flower_every_command_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flwr" else found(name))
    for arguments in (["init", "x"], ["server", "x"], ["node", "x"], ["run", "x"], ["try"]):
        code, output = run(*arguments)
        assert code == 2
        assert output == 'error: flwr is not installed; install the extra with: pip install "ipfl[flower]"\n'


def test_a_trial_has_as_many_clients_as_nodes(tmp_path: Path) -> None:
    config = trial_config(None, ["train.lr=0.5"], 4, 7)
    assert (config.task.clients, config.rounds, config.train.lr) == (4, 7, 0.5)
    (tmp_path / "my.toml").write_text("rounds = 9\n[task]\nclients = 20\nunseen = 5\n")
    config = trial_config(tmp_path / "my.toml", [], 4, None)
    assert (config.task.clients, config.task.unseen, config.rounds) == (4, 0, 9)
    code, output = run("try", "--nodes", "1", "--out", str(tmp_path / "out"))
    assert (code, "method.clusters = 2, but there are only 1 clients" in output) == (2, True)
    code, output = run("try", "--nodes", "1", "--set", "method.clusters=1", "--out", str(tmp_path / "out"))
    assert (code, "a model moves only if 2 clients deliver" in output) == (2, True)
    assert not (tmp_path / "out").exists()


def test_runs_are_numbered(tmp_path: Path) -> None:
    folder = ServerFolder(tmp_path)
    assert folder.next_run_folder() == tmp_path / "runs/run-1"
    (tmp_path / "runs/run-1").mkdir(parents=True)
    assert folder.next_run_folder() == tmp_path / "runs/run-2"


@pytest.mark.parametrize(
    ("options", "bind", "said"),
    [
        ([], "127.0.0.1", "listen on 127.0.0.1 only"),
        (["--host", "10.0.0.1"], "0.0.0.0", "listen on all interfaces, port 9092: everybody who reaches it"),
    ],
)
def test_init_says_who_reaches_the_server_and_no_secret(
    tmp_path: Path, options: list[str], bind: str, said: str
) -> None:
    code, output = run("init", str(tmp_path / "site"), "--nodes", "1", *options)
    assert (code, said in output, "README.md" in output) == (0, True, True)
    folder = ServerFolder(tmp_path / "site")
    settings = ServerSettings.load(folder.settings_file)
    assert settings == ServerSettings(bind=bind)
    assert not any(line in output for line in folder.node_folder(0).private_key.read_text().splitlines())


@pytest.mark.parametrize(
    ("config", "refusal"),
    [
        ("[adversary]\nshare = 0.5\n", NEEDS_LOCAL_ENGINE),
        ("[faults]\nbroken = 0.1\n", NEEDS_LOCAL_ENGINE),
        ("round = 3\n", "unknown key 'round'"),
    ],
)
def test_a_config_that_nodes_cannot_play_is_refused_before_anything_is_started(
    tmp_path: Path, config: str, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*arguments: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", start)
    site = create_folder(tmp_path / "site", nodes=1)
    site.config_file.write_text(config)
    for arguments in (
        ["run", str(site.root)],
        ["try", "--config", str(site.config_file), "--out", str(tmp_path / "out")],
    ):
        code, output = run(*arguments)
        assert (code, refusal in output) == (2, True), output
    assert not site.runs.exists()
    assert not (tmp_path / "out").exists()
