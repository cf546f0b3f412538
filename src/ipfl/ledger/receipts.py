"""Receipts: a node signs what it was told of its account, so that it cannot deny later that it was told.

A statement (`ipfl.ledger.statements`) proves what the server said. The receipt for it proves that the node
has it: the node signs the head and the account of the statement with a key of its own, Ed25519, and the key
that it is registered with vouches for that key. Server and node both keep it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipfl.core.replies import printable
from ipfl.errors import InputError
from ipfl.ledger.canonical import canonical
from ipfl.ledger.signing import PUBLIC_KEY, SigningKey, is_signed_by
from ipfl.ledger.statements import Account, LedgerHead, Statement, parse_account, parse_head
from ipfl.system.files import write_json

RECEIPT_FORMAT = 1
RECEIPT_KEY_FILE = "receipt.key"
"""In a node's memory folder: what it signs receipts with. Messages may use it, unlike the node's own key."""
VOUCHER_FILE = "receipt-voucher.json"
"""Beside it: the signature of the node's own key."""


@dataclass(frozen=True)
class Voucher:
    """The key that a node is registered with says: this other key signs receipts for me."""

    node_key: str
    """Public key of the node, as OpenSSH writes it."""
    signature: str

    @staticmethod
    def message(public_key: str) -> bytes:
        """What the node's key signs."""
        return canonical({"ipfl": "receipt key", "public_key": public_key}).encode()

    @classmethod
    def make(cls, private_key: bytes, public_key: str) -> Voucher:
        """Signs with a node's key, an ECDSA key in OpenSSH's format."""
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        node = serialization.load_ssh_private_key(private_key, None)
        if not isinstance(node, ec.EllipticCurvePrivateKey):
            raise InputError("a node's key must be an ECDSA key")
        line = node.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        return cls(line.decode(), node.sign(cls.message(public_key), ec.ECDSA(hashes.SHA256())).hex())

    def is_valid(self, public_key: str) -> bool:
        """Whether the node's key has signed this."""
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            node = serialization.load_ssh_public_key(self.node_key.encode())
            if not isinstance(node, ec.EllipticCurvePublicKey):
                return False
            node.verify(bytes.fromhex(self.signature), self.message(public_key), ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
            return False
        return True


@dataclass(frozen=True)
class Receipt:
    """That a node was told what its account is after a round."""

    head: LedgerHead
    account: Account
    public_key: str
    signature: str
    voucher: Voucher | None = None
    """None: the node was not started by `ipfl deploy node`, and nobody vouches for its key."""

    @staticmethod
    def message(head: LedgerHead, account: Account) -> bytes:
        """What the node signs."""
        return canonical({"ipfl": "receipt", "head": head.content(), "account": account._asdict()}).encode()

    @classmethod
    def make(cls, told: Statement, key: SigningKey, voucher: Voucher | None) -> Receipt:
        """Signs that a statement was received."""
        signature = key.sign(cls.message(told.head, told.account))
        return cls(told.head, told.account, key.public, signature, voucher)

    def to_json(self) -> dict[str, Any]:
        """The receipt as it travels and is kept."""
        return {
            "ipfl": "receipt",
            "format": RECEIPT_FORMAT,
            "head": self.head.content(),
            "account": self.account._asdict(),
            "public_key": self.public_key,
            "signature": self.signature,
            "voucher": None if self.voucher is None else vars(self.voucher),
        }

    def is_for(self, told: Mapping[str, Any]) -> bool:
        """Whether it is the receipt for a statement, given as JSON."""
        return bool(told["head"] == self.head.content() and told["account"] == self.account._asdict())

    def __str__(self) -> str:
        client, balance, _ = self.account
        when = "at the opening" if self.head.round < 0 else f"after round {self.head.round}"
        vouched = "" if self.voucher is None else printable(self.voucher.node_key, 400)
        key = f"its key is {vouched}" if vouched else "nobody vouches for its key"
        run = printable(self.head.run)
        return f"run {run}: client {client} was told that it has {balance} tokens {when}; {key}"


def read_receipt(content: Any, public_key: str | None = None) -> Receipt:
    """A receipt from its JSON, with signatures that are true.

    Args:
        content: The JSON.
        public_key: The node's key for receipts, if it is known.

    Raises:
        InputError: It is none, or a signature is false.
    """
    try:
        if content["ipfl"] != "receipt" or content["format"] != RECEIPT_FORMAT:
            raise ValueError("another kind or format")
        key, voucher = content["public_key"], content["voucher"]
        if not PUBLIC_KEY.fullmatch(key):
            raise ValueError("the public key")
        receipt = Receipt(
            parse_head(content["head"]),
            parse_account(content["account"]),
            key,
            str(content["signature"]),
            None if voucher is None else Voucher(str(voucher["node_key"]), str(voucher["signature"])),
        )
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InputError(f"this is no receipt: {' '.join(repr(error).split())[:120]}") from error
    if not is_signed_by(key, Receipt.message(receipt.head, receipt.account), receipt.signature):
        raise InputError("the signature of the receipt is false")
    if public_key not in (None, key):
        raise InputError(f"the receipt is not signed by the key {public_key}")
    if receipt.voucher is not None and not receipt.voucher.is_valid(key):
        raise InputError("the node's key does not vouch for the key of the receipt")
    return receipt


def prepare_receipt_key(memory: Path, node_key: Path) -> None:
    """Makes the key that a node signs receipts with, if it has none, and vouches for it.

    Args:
        memory: The node's memory folder.
        node_key: File of the private key that the node is registered with.
    """
    key = SigningKey.read_or_make(memory / RECEIPT_KEY_FILE)
    voucher = Voucher.make(node_key.read_bytes(), key.public)
    write_json(memory / VOUCHER_FILE, vars(voucher))
