"""The right to see: the operator everything, a client its own page.

Without `--auth` everybody who can reach the console is the operator; it then listens on this machine only.

The operator's token is a secret in a file. A client's token names the run, by the hash that its ledger begins
with, and the client, with a code that only the holder of that secret can compute: there is no list of tokens
to keep or to lose, and with a new secret all old ones are void. Tokens travel in the header `Authorization`
or in a cookie, never in an address.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from fastapi import HTTPException

from ipfl.errors import InputError

COOKIE = "ipfl_console"
TOKEN_BYTES = 32
MIN_LENGTH = 32


@dataclass(frozen=True)
class Identity:
    """The one who asks."""

    is_operator: bool
    run: str | None = None
    """Of a client: the hash that its run's ledger begins with. Another run in the same place has another."""
    place: str | None = None
    """The place of that run when the token was made: its key in addresses."""
    client: int | None = None


class AccessTokens:
    """Makes and checks tokens."""

    def __init__(self, secret: str):
        self._secret = secret.encode()

    @classmethod
    def load(cls, path: Path) -> AccessTokens:
        """Reads the operator's token from its file; makes one if there is no file.

        Raises:
            InputError: The file cannot be used, or others can read it.
        """
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(file, "w") as new:
                    new.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
            if path.stat().st_mode & 0o077:
                raise InputError(f"others can read the operator's token: chmod 600 {path}")
            secret = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot use the operator's token in {path}: {error}") from error
        if len(secret) < MIN_LENGTH or not secret.isascii() or not secret.isprintable() or "." in secret:
            raise InputError(f"{path} holds no token: delete it, and a new one is made")
        return cls(secret)

    def client_token(self, run: str, place: str, client: int) -> str:
        """The token that opens one client's page, wherever the run is."""
        named = f"{run} {place}"
        encoded = base64.urlsafe_b64encode(named.encode()).decode().rstrip("=")
        return f"{client}.{encoded}.{self._code(named, client)}"

    def _code(self, named: str, client: int) -> str:
        message = f"client\0{named}\0{client}".encode()
        code = hmac.new(self._secret, message, hashlib.sha256).digest()
        return base64.urlsafe_b64encode(code).decode().rstrip("=")

    def identify(self, token: str) -> Identity | None:
        """Whose token it is; None: nobody's. Takes the same time however much of it is right."""
        if hmac.compare_digest(token.encode(), self._secret):
            return Identity(is_operator=True)
        client_text, _, rest = token.partition(".")
        encoded, _, code = rest.partition(".")
        if not (client_text.isascii() and client_text.isdigit() and len(client_text) < 11):
            return None
        try:
            named = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
        except ValueError:
            return None
        client = int(client_text)
        if not hmac.compare_digest(code.encode(), self._code(named, client).encode()):
            return None
        run, _, place = named.partition(" ")
        return Identity(is_operator=False, run=run, place=place, client=client)


class SignInNeeded(HTTPException):
    """Nobody is signed in, or with a token that is not valid."""

    def __init__(self) -> None:
        super().__init__(401, "sign in with a token", {"WWW-Authenticate": "Bearer"})
