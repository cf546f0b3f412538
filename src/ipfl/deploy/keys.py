"""Keys of nodes: ECDSA on P-384 in OpenSSH's format, as `ssh-keygen -t ecdsa -b 384` writes them.

A key is who a node is. Its name in logs and books is its fingerprint, which says nothing secret.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ipfl.deploy.secrets import write_secret
from ipfl.errors import InputError

PRIVATE, PUBLIC = "key", "key.pub"


def write_key_pair(folder: Path) -> str:
    """Makes a key pair in `folder`, the private key with mode 0600; returns the fingerprint."""
    pair = ec.generate_private_key(ec.SECP384R1())
    write_secret(
        folder / PRIVATE,
        pair.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    line = pair.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / PUBLIC).write_bytes(line + b"\n")
    return fingerprint(line)


def read_public_key(path: Path) -> bytes:
    """The one line of a public key file, checked.

    Raises:
        InputError: There is no such file, or it holds something else.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read public key {path}: {error.strerror}") from error
    if b"PRIVATE KEY" in content:
        raise InputError(f"{path} is a private key, which stays on its node: give the .pub file")
    try:
        fingerprint(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return content.strip()


def fingerprint(public: bytes) -> str:
    """Name of a public key, given as an OpenSSH line or as PEM (as Flower reports a node's key).

    Raises:
        InputError: It is not an ECDSA key on a NIST curve, which is all that Flower accepts.
    """
    try:
        key = (
            serialization.load_pem_public_key(public)
            if public.lstrip().startswith(b"-----")
            else serialization.load_ssh_public_key(public)
        )
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError("not a public key in OpenSSH's or PEM format") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not key.curve.name.startswith("secp"):
        raise InputError("not an ECDSA key on a NIST curve (make one with: ssh-keygen -t ecdsa -b 384)")
    # The digest of OpenSSH's own encoding: `ssh-keygen -lf key.pub` shows the same.
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
