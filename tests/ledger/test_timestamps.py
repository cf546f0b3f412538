"""Time stamps of an authority of our own, made by openssl: nothing is asked over a network."""

from __future__ import annotations

import base64
import json
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from tests.small_runs import run_small, small_task

from ipfl.errors import InputError
from ipfl.keep.run_audit import Audit
from ipfl.ledger.anchors import append_head, newest_head
from ipfl.ledger.store import RunStore
from ipfl.ledger.timestamps import STAMP, ask_over_http, stamp_times, stamped

CONFIG = """
[tsa]
default_tsa = own
[own]
serial = {folder}/serial
signer_cert = {folder}/tsa.pem
signer_key = {folder}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha384, sha512
accuracy = secs:1
ess_cert_id_chain = no
ess_cert_id_alg = sha256
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[stamping]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = critical, timeStamping
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


class Authority:
    """A certificate authority, and a time stamping authority that it vouches for."""

    def __init__(self, folder):
        self.folder, self.certificate = folder, folder / "ca.pem"
        folder.mkdir()
        (folder / "serial").write_text("01\n")
        new = ("req", "-new", "-newkey", "rsa:2048", "-nodes", "-config", "openssl.cnf")
        (folder / "openssl.cnf").write_text(
            "[req]\ndistinguished_name = dn\n[dn]\n" + CONFIG.format(folder=folder)
        )
        own = ("-x509", "-days", "30", "-subj", "/CN=Test authority", "-extensions", "ca")
        self.openssl(*new, *own, "-keyout", "ca.key", "-out", "ca.pem")
        self.openssl(*new, "-subj", "/CN=Test stamps", "-keyout", "tsa.key", "-out", "tsa.csr")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30")
        more = ("-extfile", "openssl.cnf", "-extensions", "stamping")
        self.openssl("x509", "-req", "-in", "tsa.csr", *signed, *more, "-out", "tsa.pem")

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def ask(self, request: bytes) -> bytes:
        (self.folder / "request.tsq").write_bytes(request)
        self.openssl("ts", "-reply", "-config", "openssl.cnf", "-queryfile", "request.tsq", "-out", "a.tsr")
        return (self.folder / "a.tsr").read_bytes()


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority") / "own")


@pytest.fixture(scope="module")
def anchored(authority, tmp_path_factory):
    """A run of two rounds, and an anchor with a stamp of its newest head."""
    folder = tmp_path_factory.mktemp("run")
    run_small(small_task(clients=3, samples=8, test_samples=4), "ipfl-plus", folder / "run", rounds=2)
    with RunStore.open(folder / "run") as store:
        append_head(folder / "heads.jsonl", stamped(newest_head(store), authority.ask))
    return folder / "run", folder / "heads.jsonl"


def finding(run, anchor, certificate):
    with RunStore.open(run) as store:
        audit = Audit(store, run, None, None, anchor, certificate)
        found = audit.finding()
        return str(found) if found else audit.report()


def test_a_stamp_says_when_the_head_was_there(anchored, authority):
    run, anchor = anchored
    (time,) = stamp_times(anchor, "run", authority.certificate).values()
    assert abs(datetime.now(UTC) - time) < timedelta(minutes=10)
    assert any(
        line.startswith("round 1 was there at ") for line in finding(run, anchor, authority.certificate)
    )


def test_a_changed_head_is_not_what_was_stamped(anchored, authority, tmp_path):
    run, anchor = anchored
    head = json.loads(anchor.read_text())
    (tmp_path / "heads.jsonl").write_text(json.dumps({**head, "accounts": "00"}) + "\n")
    assert "time stamp of round 1 is false" in finding(run, tmp_path / "heads.jsonl", authority.certificate)


@pytest.mark.parametrize("stamp", ["", "!", base64.b64encode(b"no stamp").decode(), 5])
def test_what_is_no_stamp(anchored, authority, tmp_path, stamp):
    head = json.loads(anchored[1].read_text())
    (tmp_path / "heads.jsonl").write_text(json.dumps({**head, STAMP: stamp}) + "\n")
    with pytest.raises(InputError, match="is false"):
        stamp_times(tmp_path / "heads.jsonl", "run", authority.certificate)


def test_the_stamp_of_another_authority(anchored, tmp_path):
    other = Authority(tmp_path / "other")
    assert "is false" in finding(*anchored, other.certificate)


def test_an_anchor_without_stamps(anchored, authority, tmp_path):
    head = json.loads(anchored[1].read_text())
    del head[STAMP]
    (tmp_path / "heads.jsonl").write_text(json.dumps(head) + "\n")
    assert "no time stamp" in finding(anchored[0], tmp_path / "heads.jsonl", authority.certificate)


@pytest.mark.parametrize("answer", [b"", b"no answer", b"\x30\x03\x02\x01\x02"])
def test_an_authority_that_gives_none(anchored, answer):
    with RunStore.open(anchored[0]) as store, pytest.raises(InputError, match="gave no time stamp"):
        stamped(newest_head(store), lambda request: answer)


def test_an_answer_to_another_request_is_refused(anchored, authority):
    with RunStore.open(anchored[0]) as store:
        head, answers = newest_head(store), []
        stamped(head, lambda request: answers.append(authority.ask(request)) or answers[0])
        with pytest.raises(InputError, match="gave no time stamp"):
            stamped(head, lambda request: answers[0])


@pytest.mark.parametrize("url", ["ftp://x", "nothing", "http://127.0.0.1:9/"])
def test_an_authority_that_cannot_be_asked(url):
    with pytest.raises(InputError, match="authority"):
        ask_over_http(url)(b"")
