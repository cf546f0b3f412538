"""Time stamps (RFC 3161): an authority that the operator does not control signs when a head was there.

A stamp is kept in an anchor (`ipfl.ledger.anchors`), in the line of the head that it is about. Whoever has
the authority's certificate can check it, without asking anybody.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ipfl.errors import InputError
from ipfl.ledger.anchors import read_heads
from ipfl.ledger.canonical import canonical
from ipfl.ledger.findings import Finding

STAMP = "timestamp"
"""Key of the stamp in the line of a head: the authority's answer, in Base64."""
ANSWER_SECONDS = 30.0
MAX_ANSWER_BYTES = 2**16
AskAuthority = Callable[[bytes], bytes]
"""Sends a request to an authority, and returns its answer."""


def ask_over_http(url: str) -> AskAuthority:
    """Asks the authority at an address."""

    def ask(request: bytes) -> bytes:
        from urllib.error import URLError
        from urllib.request import Request, urlopen

        if not url.startswith(("http://", "https://")):
            raise InputError(f"an authority has an address that begins with http, not {url!r:.80}")
        message = Request(url, request, {"Content-Type": "application/timestamp-query"})
        try:
            with urlopen(message, timeout=ANSWER_SECONDS) as answer:
                content: bytes = answer.read(MAX_ANSWER_BYTES)
        except (URLError, OSError, ValueError) as error:
            raise InputError(f"the authority {url} does not answer: {error}") from error
        return content

    return ask


def stamped(head: Mapping[str, Any], ask: AskAuthority) -> dict[str, Any]:
    """A head with the stamp of an authority.

    Raises:
        InputError: The authority gave none.
    """
    client = _client()
    request = (
        client.TimestampRequestBuilder().data(_stamped_content(head)).cert_request(cert_request=True).build()
    )
    answer = ask(request.as_bytes())
    try:
        found = client.decode_timestamp_response(answer)
        if found.status not in (0, 1) or found.tst_info.nonce != request.nonce:
            raise ValueError(f"status {found.status}, {found.status_string}")
    except ValueError as error:
        raise InputError(f"the authority gave no time stamp: {' '.join(str(error).split())[:120]}") from error
    return {**head, STAMP: base64.b64encode(answer).decode()}


def stamp_times(anchor: Path, run: str, certificate: Path) -> dict[int, datetime]:
    """When the rounds of a run were stamped, by round, all stamps being true.

    Args:
        anchor: The file with the heads.
        run: Name of the run.
        certificate: The authority's own certificate, or that of who vouches for it, in PEM.

    Raises:
        InputError: A stamp is false or cannot be read.
    """
    times = {}
    for head in read_heads(anchor, run):
        if STAMP in head:
            plain = {name: value for name, value in head.items() if name != STAMP}
            try:
                times[int(head["round"])] = _check(plain, head[STAMP], certificate)
            except (ValueError, TypeError, KeyError, binascii.Error) as error:
                reason = " ".join(str(error).split())[:120]
                raise InputError(f"the time stamp of round {head.get('round')} is false: {reason}") from error
    return times


def stamp_findings(anchor: Path, run: str, certificate: Path) -> Iterator[Finding]:
    """What is wrong with the stamps of an anchor."""
    try:
        times = stamp_times(anchor, run, certificate)
    except InputError as error:
        yield Finding(None, None, str(error))
        return
    if not times:
        yield Finding(None, None, f"the anchor {anchor} has no time stamp of run {run!r}")


def _stamped_content(head: Mapping[str, Any]) -> bytes:
    return canonical(dict(head)).encode()


def _check(head: Mapping[str, Any], stamp: str, certificate: Path) -> datetime:
    """When a head was stamped.

    Raises:
        ValueError: It was not, or not by this authority.
    """
    client = _client()
    from cryptography.x509 import load_pem_x509_certificates

    answer = client.decode_timestamp_response(base64.b64decode(stamp, validate=True))
    try:
        roots = load_pem_x509_certificates(certificate.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {certificate}: {error.strerror}") from error
    builder = client.VerifierBuilder()
    for root in roots:
        builder = builder.add_root_certificate(root)
    try:
        builder.build().verify_message(answer, _stamped_content(head))
    except client.VerificationError as error:
        raise ValueError(str(error)) from error
    time: datetime = answer.tst_info.gen_time
    return time


def _client() -> Any:
    try:
        import rfc3161_client
    except ImportError as error:
        raise InputError('time stamps need the extra: pip install "ipfl[timestamps]"') from error
    return rfc3161_client
