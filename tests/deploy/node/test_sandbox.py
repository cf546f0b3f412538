"""What a message can touch on its node: the sandbox, the installed app, the modules that a config names."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

import ipfl.engines.flower.node_app
from ipfl.deploy.federation_folder import NodeFolder, create_folder
from ipfl.deploy.node.installed_app import ForeignAppError, InstalledApp, app_hash
from ipfl.deploy.node.sandbox import Sandbox, landlock_version, refuse_system_calls
from ipfl.deploy.node.supernode import prepare_node
from ipfl.errors import InputError
from ipfl.system import plugins
from ipfl.system.plugins import allow_modules, load_callable

needs_landlock = pytest.mark.skipif(landlock_version() == 0, reason="the kernel has no Landlock")


def in_child(work: Callable[[], object]) -> str:
    """What `work` returned, or the error that it raised, in a process of its own."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            text = str(work())
        except BaseException as error:
            text = type(error).__name__
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return answer.read()


def in_child_is_filtered() -> bool:
    return in_child(refuse_system_calls) == "True"


@pytest.fixture
def node(tmp_path: Path) -> NodeFolder:
    node = create_folder(tmp_path / "site", nodes=1).node_folder(0)
    (node.root / "data.npz").write_bytes(b"data")
    return node


@needs_landlock
def test_a_message_reads_the_data_and_not_the_key(node: NodeFolder) -> None:
    settings = prepare_node(node)
    listener = socket.create_server(("127.0.0.1", 0))
    other = socket.create_server(("127.0.0.1", 0))
    sandbox = Sandbox.for_python((settings.data,), (settings.memory,), (listener.getsockname()[1],))

    def inside(work: Callable[[], object]) -> str:
        return in_child(lambda: (sandbox.enter(), work())[1])

    assert inside(settings.data.read_bytes) == "b'data'"
    for secret in (node.private_key, node.settings_file, Path("/etc/shadow")):
        assert inside(secret.read_bytes) == "PermissionError", secret
    assert inside(lambda: list(node.root.iterdir())) == "PermissionError"
    assert inside(lambda: settings.data.write_bytes(b"")) == "PermissionError"
    assert inside(lambda: (settings.memory / "x").write_bytes(b"abc")) == "3"
    assert inside(lambda: (settings.memory / "x").rename(settings.memory / "y")) != "PermissionError"
    assert inside(lambda: os.link(settings.memory / "y", node.root / "y")) == "PermissionError"
    assert inside(lambda: socket.create_connection(listener.getsockname()).close()) == "None"
    assert inside(lambda: socket.create_connection(other.getsockname())) == "PermissionError"
    assert inside(lambda: socket.create_server(("127.0.0.1", 0))) == "PermissionError"
    assert inside(lambda: os.kill(os.getppid(), 0)) == "PermissionError"
    parent = os.getpid()
    assert inside(lambda: Path(f"/proc/{parent}/environ").read_bytes()) == "PermissionError"
    # Children and programs that it starts have no more rights than itself.
    cat = [shutil.which("cat") or "cat", str(node.private_key)]
    assert inside(lambda: subprocess.run(cat, capture_output=True, check=False).returncode) == "1"


@pytest.mark.skipif(not in_child_is_filtered(), reason="the kernel has no filters of system calls")
def test_a_message_changes_no_modes_and_reaches_no_sockets_of_others(node: NodeFolder) -> None:
    """Landlock allows both: the same user may change the modes of its files, and a socket is no open file."""
    key, own = node.private_key, node.root / "memory" / "own"
    own.parent.mkdir()
    own.write_bytes(b"")
    listener, datagrams = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    place, mailbox = str(node.root / "s"), str(node.root / "d")
    listener.bind(place)
    listener.listen()
    datagrams.bind(mailbox)

    def chmod_by_descriptor() -> None:
        with own.open("rb") as file:
            os.fchmod(file.fileno(), 0o777)

    def connect() -> None:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(place)

    def send_from_a_pair() -> int:
        left, _right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        return left.sendto(b"x", mailbox)

    def talk_to_itself() -> bytes:
        left, right = socket.socketpair()
        left.send(b"x")
        return right.recv(1)

    attacks = {
        "chmod": lambda: key.chmod(0o644),
        "chmod without following": lambda: os.chmod("key", 0o644, dir_fd=os.open(node.root, os.O_RDONLY)),
        "fchmod": chmod_by_descriptor,
        "chown": lambda: os.chown(key, os.getuid(), os.getgid()),
        "lchown": lambda: os.lchown(key, os.getuid(), os.getgid()),
        "attributes": lambda: os.setxattr(own, "user.x", b"x"),
        "connect": connect,
        "datagram": send_from_a_pair,
        "program": lambda: subprocess.run(["chmod", "644", str(key)], check=True, stderr=subprocess.DEVNULL),
    }
    for name, attack in attacks.items():
        assert "Error" not in in_child(attack), name  # without the filter each one does what it wants
        key.chmod(0o600)
        told = in_child(lambda attack=attack: (refuse_system_calls(), attack()))  # type: ignore[misc]
        assert told in ("PermissionError", "CalledProcessError"), name
        assert stat.S_IMODE(key.stat().st_mode) == 0o600, name
    assert in_child(lambda: (refuse_system_calls(), talk_to_itself())[1]) == "b'x'"
    assert in_child(lambda: (refuse_system_calls(), own.write_bytes(b"abc"))[1]) == "3"


@pytest.mark.slow
@needs_landlock
def test_a_key_where_python_imports_from_is_noticed(node: NodeFolder) -> None:
    command = [sys.executable, "-m", "ipfl.deploy.node.node_worker", "127.0.0.1:9", str(node.root)]
    (node.root / "flwr").mkdir()
    (node.root / "flwr" / "worker.secret").write_bytes(b"x" * 32)
    path = os.pathsep.join([str(node.root), *filter(None, sys.path)])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"error: {node.private_key} is in a folder from which Python imports" in done.stderr


def test_the_hash_is_the_one_that_flower_sends(node: NodeFolder) -> None:
    app = prepare_node(node).app
    assert app_hash(app) == hashlib.sha256(build_fab_from_disk(app)).hexdigest()
    server = node.root.parent.parent / "app"
    assert app_hash(server) == app_hash(app)  # a federation's nodes are given the app of their server
    with pytest.raises(InputError, match="is not a Flower app"):
        app_hash(node.root / "memory")


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> object:
    """Flower's module that runs tasks; what a test replaces in it is put back."""
    module = import_module("flwr.supernode.runtime.run_clientapp")
    for name in ("install_from_fab", "get_load_client_app_fn"):
        monkeypatch.setattr(module, name, getattr(module, name))
    return module


def test_only_the_installed_app_runs(node: NodeFolder, runtime: object, tmp_path: Path) -> None:
    folder = prepare_node(node).app
    installed = InstalledApp.load(folder)
    assert installed.client_app is ipfl.engines.flower.node_app.app
    installed.pin()
    runtime.install_from_fab(build_fab_from_disk(folder), skip_prompt=True)  # type: ignore[attr-defined]
    loader = runtime.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)  # type: ignore[attr-defined]
    # Whatever name the server gives the app.
    assert loader("../evil", "1", "0" * 64) is installed.client_app
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    (other / "more.py").write_text("raise SystemExit('this was imported')\n")
    with pytest.raises(ForeignAppError, match="refused: the server runs app"):
        runtime.install_from_fab(build_fab_from_disk(other), skip_prompt=True)  # type: ignore[attr-defined]
    assert not (node.flower_home / "apps").exists()


def test_an_app_that_cannot_be_loaded_is_an_input_error(node: NodeFolder) -> None:
    description = node.app / "pyproject.toml"
    good = description.read_text()
    description.write_text(good.replace("ipfl.engines.flower.node_app:app", "no_such_module:app"))
    with pytest.raises(InputError, match=r"cannot be loaded: .*no_such_module"):
        InstalledApp.load(node.app)
    description.write_text(good.replace("ipfl.engines.flower.node_app:app", "ipfl.errors:InputError"))
    with pytest.raises(InputError, match="has no ClientApp"):
        InstalledApp.load(node.app)


def test_a_server_cannot_name_modules_that_the_node_does_not_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_allowed_modules", None)
    assert load_callable("json:dumps", "model")
    allow_modules(["json", "my_package"])
    assert load_callable("json.encoder:JSONEncoder", "model")
    for reference in ("subprocess:run", "jsonschema:validate", "my_packages:f", ":f"):
        with pytest.raises(InputError, match=r"does not allow its module \(`modules` in node\.toml\)"):
            load_callable(reference, "model")
    allow_modules([])
    with pytest.raises(InputError, match="does not allow its module"):
        load_callable("json:dumps", "model")
