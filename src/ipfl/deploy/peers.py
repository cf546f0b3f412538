"""The list of all clients' public keys that each node has (`peers.txt`): a client and its key on each line.

It protects nodes from the server, so it belongs to the operator of the node, who compares it with the other
nodes. `ipfl deploy init` writes the first one; `ipfl deploy peers` prints what the server has registered.
"""

from __future__ import annotations

from pathlib import Path

from ipfl.core import ClientId
from ipfl.deploy.credentials import fingerprint
from ipfl.deploy.registry import Registry
from ipfl.errors import InputError
from ipfl.system.files import refuse_special_file

HEADING = """\
# Public keys of all clients. In a secure sum this node works with these and no others, whatever the server
# says. Ask the operators of the other nodes whether these are theirs: ssh-keygen -lf key.pub shows it.
"""


def peers_text(registry: Registry) -> str:
    """The list of all accounts, each with its fingerprint as a comment."""
    lines = (f"{one.client} {_without_comment(one.key)} {one.fingerprint}" for one in registry.accounts)
    return HEADING + "".join(f"{line}\n" for line in lines)


def read_peers(path: Path) -> dict[ClientId, str] | None:
    """The key of each client, without comments; None if there is no such file.

    Raises:
        InputError: A line is not a client and a key, or a client has two.
    """
    refuse_special_file(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    found: dict[ClientId, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        client, _, key = line.partition(" ")
        if not client.isdecimal() or int(client) in found:
            raise InputError(
                f"{path}, line {number}: a client that is not in the list yet, and its public key"
            )
        try:
            fingerprint(key.strip().encode())
        except InputError as error:
            raise InputError(f"{path}, line {number}: {error}") from error
        found[int(client)] = _without_comment(key)
    return found


def _without_comment(key: str) -> str:
    """The type and the key itself."""
    return " ".join(key.split()[:2])
