"""Keys, and what they sign: Ed25519, in PEM files that openssl reads and writes too.

By default the key is `signing.key` in the folder that holds the run's folder: beside the run, not in it, so
that a run that is passed on does not bring its key along. Only its owner can read it (mode 0600).
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ipfl.core.replies import printable
from ipfl.errors import InputError
from ipfl.ledger.canonical import canonical
from ipfl.system.files import refuse_special_file

if TYPE_CHECKING:  # importing it takes a moment, and most commands need no key
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "signing.key"
PUBLIC_KEY = re.compile(r"[0-9a-f]{64}")
"""A public key as text: its 32 bytes in hex."""


@dataclass(frozen=True)
class SigningKey:
    """A private key."""

    private: Ed25519PrivateKey

    @cached_property
    def public(self) -> str:
        """The public key as text."""
        return self.private.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> str:
        """The signature of a message, in hex. The same message always has the same one."""
        return self.private.sign(message).hex()

    @classmethod
    def read(cls, path: Path) -> SigningKey:
        """Reads a PEM file.

        Raises:
            InputError: It holds no Ed25519 key, or others can read it.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        refuse_special_file(path)
        try:
            is_open_to_others = bool(path.stat().st_mode & 0o077)
            private = load_pem_private_key(path.read_bytes(), None)
        except OSError as error:
            raise InputError(f"cannot read the signing key {path}: {error.strerror}") from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InputError(f"{path} is no signing key: {' '.join(str(error).split())[:100]}") from error
        if is_open_to_others:
            raise InputError(f"{path} can be read by others: chmod 600 {path}")
        if not isinstance(private, Ed25519PrivateKey):
            raise InputError(f"{path} is no Ed25519 key; make one: openssl genpkey -algorithm ed25519")
        return cls(private)

    @classmethod
    def read_or_make(cls, path: Path) -> SigningKey:
        """Reads the key, or makes one there if there is none.

        Raises:
            InputError: There is something else, or nothing can be written there.
        """
        if not path.exists():
            try:
                _make_key(path)
            except FileExistsError:
                pass  # another run was faster
            except OSError as error:
                raise InputError(f"cannot make a signing key {path}: {error.strerror}") from error
        return cls.read(path)


def _make_key(path: Path) -> None:
    """Writes a new key whole or not at all, never over another one, and never readable by others."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(text)
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)


class RoundHead(BaseModel):
    """What is signed of a round; its subclasses say more of it. All fields but the last two are signed."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    ipfl: str = "round"
    """What this is."""
    begun: str
    """Hash of the run's name and header, with which its chain begins."""
    round: int
    hash: str
    """The round's hash, which covers all rounds before it."""
    public_key: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """None: nobody signed it."""
    signature: str | None = Field(None, pattern="^[0-9a-f]{128}$")

    def message(self) -> bytes:
        """The bytes that are signed."""
        return canonical(self.model_dump(mode="json", exclude={"public_key", "signature"})).encode()

    def signed(self, key: SigningKey | None) -> Self:
        """The same with a signature; without a key, as it is."""
        if key is None:
            return self
        return self.model_copy(update={"public_key": key.public, "signature": key.sign(self.message())})

    def is_true(self) -> bool:
        """Whether the signature, if there is one, is that of the public key."""
        if self.public_key is None:
            return self.signature is None
        return is_signed_by(self.public_key, self.message(), self.signature or "")

    @classmethod
    def parse(cls, content: Any) -> Self:
        """What was signed, from its JSON, with a true signature.

        Raises:
            InputError: It is something else, or its signature is false.
        """
        what = cls.model_fields["ipfl"].default
        try:
            found = cls.model_validate_json(json.dumps(content))
            if found.ipfl != what:
                raise ValueError(f"it is a {found.ipfl}")
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            where = printable(".".join(map(str, detail["loc"])))
            raise InputError(f"this is no {what}: {where}: {detail['msg']}") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"this is no {what}: {printable(repr(error))}") from error
        if not found.is_true():
            raise InputError(f"the signature of the {what} is false")
        return found


def read_public_key(given: str) -> str:
    """A public key as text, given as such or as a PEM file of a public or private key.

    Raises:
        InputError: It is neither.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if PUBLIC_KEY.fullmatch(given):
        return given
    path = Path(given)
    refuse_special_file(path)
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"a public key is 64 hex digits or a PEM file, not {given!r:.80}") from error
    if b"PRIVATE KEY" in content:
        return SigningKey.read(path).public
    try:
        public = load_pem_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path} is no public key: {' '.join(str(error).split())[:100]}") from error
    if not isinstance(public, Ed25519PublicKey):
        raise InputError(f"{path} is no Ed25519 key")
    return public.public_bytes_raw().hex()


def is_signed_by(public: str, message: bytes, signature: str) -> bool:
    """Whether the signature of a message was made with the private key of this public key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True
