"""Certificates and node keys: TLS clients and ssh-keygen accept them."""

from __future__ import annotations

import base64
import hashlib
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ipfl.deploy.credentials import (
    fingerprint,
    read_node_public_key,
    write_certificates,
    write_key_pair,
    write_private_file,
)
from ipfl.errors import InputError


def handshake(server: Path, authority: Path, name: str) -> None:
    """A TLS connection to a server with this folder's certificate, by a client that trusts `authority`."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(server / "server.crt", server / "server.key")
    ours = ssl.create_default_context(cafile=str(authority))
    left, right = socket.socketpair()

    def accept() -> None:
        try:
            theirs.wrap_socket(right, server_side=True).close()
        except OSError:  # the client refused the certificate
            right.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        ours.wrap_socket(left, server_hostname=name).close()
    finally:
        left.close()
        thread.join()


def test_a_client_with_our_authority_trusts_the_server_under_every_name(tmp_path: Path) -> None:
    write_certificates(tmp_path, ["fl.example.org", "192.0.2.7"])
    for name in ("localhost", "127.0.0.1", "fl.example.org", "192.0.2.7"):
        handshake(tmp_path, tmp_path / "ca.crt", name)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, tmp_path / "ca.crt", "other.example.org")


def test_the_server_cannot_sign_certificates_of_others(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    server = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign


@pytest.mark.parametrize("host", ["", "a b", "-x.org", "x..org", "http://x.org"])
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(InputError, match="neither a host name nor an IP address"):
        write_certificates(tmp_path, [host])
    assert not list(tmp_path.iterdir())


def test_a_key_in_use_is_never_overwritten(tmp_path: Path) -> None:
    write_key_pair(tmp_path)
    with pytest.raises(FileExistsError):
        write_private_file(tmp_path / "key", b"")


def test_a_fingerprint_names_the_key_in_both_formats(tmp_path: Path) -> None:
    """As `ssh-keygen -lf` has it: SHA-256 of the key's bytes in OpenSSH's file, base64 without padding."""
    name = write_key_pair(tmp_path)
    line = (tmp_path / "key.pub").read_bytes()
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    assert name == "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
    private = serialization.load_ssh_private_key((tmp_path / "key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    pem = private.public_key().public_bytes(  # as Flower reports a node's key
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert fingerprint(pem) == name
    assert fingerprint(line.strip() + b" somebody@somewhere\n") == name


def test_files_that_are_no_public_key_are_refused_with_the_reason(tmp_path: Path) -> None:
    write_key_pair(tmp_path)
    with pytest.raises(InputError, match=r"is a private key, which stays on its node: give the \.pub file"):
        read_node_public_key(tmp_path / "key")
    with pytest.raises(InputError, match="No such file"):
        read_node_public_key(tmp_path / "absent.pub")
    (tmp_path / "text.pub").write_text("hello")
    with pytest.raises(InputError, match=r"text\.pub: not a public key"):
        read_node_public_key(tmp_path / "text.pub")
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    line = other.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (tmp_path / "ed25519.pub").write_bytes(line)
    with pytest.raises(InputError, match="not an ECDSA key on a NIST curve"):
        read_node_public_key(tmp_path / "ed25519.pub")
