"""Certificates, node keys and other files that prove who somebody is.

- TLS: a certificate authority of our own, and the SuperLink's certificate, which nodes check against it. The
  authority's private key signs this one certificate and is not kept. Renewing the certificate means a new
  authority, whose `ca.crt` every node needs.
- A node is identified by its key: ECDSA on P-384 in OpenSSH's format, as `ssh-keygen -t ecdsa -b 384` writes
  it. Logs and messages name a key by its fingerprint, which is not secret.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ipfl.errors import InputError
from ipfl.system.files import refuse_special_file

PRIVATE_KEY_FILE, PUBLIC_KEY_FILE = "key", "key.pub"
VALIDITY_DAYS = 825
"""How long a certificate is valid: the maximum that common TLS libraries accept."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
"""Names that the certificate always covers: the server's own processes connect to these."""
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")


def subject_alternative_name(host: str) -> x509.GeneralName:
    """The entry for a host in a certificate: an IP address or a host name.

    Raises:
        InputError: It is neither.
    """
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not HOST_NAME.fullmatch(host):
            raise InputError(f"{host!r} is neither a host name nor an IP address") from None
        return x509.DNSName(host)


def write_certificates(folder: Path, hosts: Sequence[str] = ()) -> None:
    """Writes ca.crt, server.crt and server.key (mode 0600) for a SuperLink that is reached under `hosts`."""
    names = [subject_alternative_name(host) for host in dict.fromkeys([*LOOPBACK_NAMES, *hosts])]
    authority_key = ec.generate_private_key(ec.SECP384R1())
    authority_name = _common_name("ipfl certificate authority")
    authority = (
        _certificate_builder(authority_name, authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    server_key = ec.generate_private_key(ec.SECP384R1())
    server = (
        _certificate_builder(_common_name("ipfl server"), authority_name, server_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA384())
    )
    (folder / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    write_private_file(
        folder / "server.key",
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A node's clock may be a little behind.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALIDITY_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def write_key_pair(folder: Path) -> str:
    """Makes a key pair in `folder`, the private key with mode 0600; returns the fingerprint."""
    pair = ec.generate_private_key(ec.SECP384R1())
    write_private_file(
        folder / PRIVATE_KEY_FILE,
        pair.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        ),
    )
    line = pair.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / PUBLIC_KEY_FILE).write_bytes(line + b"\n")
    return fingerprint(line)


def read_node_public_key(path: Path) -> bytes:
    """Reads and checks a public key file, and returns its line.

    Raises:
        InputError: The file does not exist, or is not a public key.
    """
    refuse_special_file(path)
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
    """The SHA-256 fingerprint of a public key in OpenSSH's format or in PEM (as Flower reports a node's key).

    Raises:
        InputError: It is not an ECDSA key on a NIST curve; Flower accepts no others.
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
    # Computed from OpenSSH's encoding, so that `ssh-keygen -lf key.pub` shows the same.
    line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def write_private_file(path: Path, content: bytes) -> None:
    """Creates a file that only its owner can read (mode 0600), from the first byte on.

    Raises:
        FileExistsError: There is such a file already.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)


def write_random_secret(path: Path) -> None:
    """Replaces the file by one with a new random secret, by which two processes authenticate each other."""
    path.unlink(missing_ok=True)
    write_private_file(path, secrets.token_bytes(32))
