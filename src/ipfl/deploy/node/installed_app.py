"""The Flower app that a node's operator has installed: the only one that the node runs.

With each message, a server says which app is to reply, and sends it: plain Flower installs and imports that
code, whatever it is. Here the node's own folder has the app (`app` in node.toml). It is imported once, when
the worker starts; what the server sends is compared with it by its SHA-256, and never unpacked, installed or
imported.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ipfl.engines.flower.flwr_internals import bundle_app, load_client_app, pin_client_app
from ipfl.errors import InputError

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp


class ForeignAppError(RuntimeError):
    """The server wants another app to run than the one that is installed on this node."""


def app_hash(folder: Path) -> str:
    """SHA-256 of the app in a folder, as Flower computes it: of the bundle that it makes of the files.

    Raises:
        InputError: It is not a Flower app.
    """
    try:
        return hashlib.sha256(bundle_app(folder)).hexdigest()
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder} is not a Flower app: {error}") from error


@dataclass(frozen=True)
class InstalledApp:
    """An app that was imported from a folder of this machine."""

    client_app: ClientApp
    hash: str

    @classmethod
    def load(cls, folder: Path) -> InstalledApp:
        """Imports the ClientApp that the app's pyproject.toml names.

        Raises:
            InputError: It is not a Flower app, or cannot be imported.
        """
        from flwr.clientapp import ClientApp

        digest = app_hash(folder)
        try:
            found = load_client_app(folder)
        except Exception as error:  # importing runs the operator's code, which may raise anything
            raise InputError(f"the app in {folder} cannot be loaded: {error}") from error
        if not isinstance(found, ClientApp):
            raise InputError(f"the app in {folder} has no ClientApp, but a {type(found).__name__}")
        return cls(found, digest)

    def check(self, content: bytes) -> None:
        """Compares an app that the server sent.

        Raises:
            ForeignAppError: It is another one.
        """
        sent = hashlib.sha256(content).hexdigest()
        if sent != self.hash:
            raise ForeignAppError(
                f"refused: the server runs app {sent[:16]}…, and the operator of this node has installed "
                f"{self.hash[:16]}…"
            )

    def pin(self) -> None:
        """From now on, every task in this process and its forks runs this app, or is refused."""
        pin_client_app(self.client_app, self.check)
