"""Who says what in a secure sum: a node signs what it says, and checks what others say.

The keys of the others are in a list (`peers.txt` in the node's folder), which comes from the operator of the
node, not from the server. A node signs with the key that it also signs receipts with, because messages cannot
read its own one; the key that it is registered with vouches for it (`ipfl.ledger.receipts`). What is signed
names the run, the attempt, the sum, its step and the client, so that it cannot be used for anything else:
keys in the first step, and in the last but one the list of those that delivered.

The server checks the signed keys against its accounts: a client that signs nothing is left out by itself, and
does not make all others refuse the sum.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipfl.client.sum_plan import SUM_KEYS
from ipfl.core import ClientId
from ipfl.errors import InputError
from ipfl.ledger.canonical import canonical
from ipfl.ledger.receipts import RECEIPT_KEY_FILE, VOUCHER_FILE, Voucher
from ipfl.ledger.signing import SigningKey, is_signed_by
from ipfl.system.files import remove, write_json

KNOWN_KEYS_FILE = "peers.json"
"""In a node's memory folder: the keys of all clients, as the operator of the node has listed them."""
HasKey = Callable[[ClientId, str], bool]
"""Whether a public key, as OpenSSH writes it, is that of a client's node."""


def keep_known_keys(memory: Path, keys: Mapping[ClientId, str] | None) -> None:
    """Puts the operator's list where messages find it; None: there is none."""
    if keys is None:
        remove(memory / KNOWN_KEYS_FILE)
    else:
        write_json(memory / KNOWN_KEYS_FILE, {str(client): key for client, key in keys.items()})


@dataclass(frozen=True)
class NodeIdentity:
    """A `SumIdentity`: what a node signs with, and whom it knows."""

    key: SigningKey
    voucher: Voucher
    known: Mapping[ClientId, str]
    """Public key of each client's node, as OpenSSH writes it, without a comment."""
    attempt: str
    """Run and attempt."""

    @classmethod
    def load(cls, memory: Path, attempt: str) -> NodeIdentity | None:
        """What is in a node's memory folder; None: `ipfl deploy node` has not started this node.

        Raises:
            InputError: The node has a key, but its operator has not said which keys the others have.
        """
        if not (memory / VOUCHER_FILE).is_file():
            return None
        try:
            listed = json.loads((memory / KNOWN_KEYS_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(
                "this node takes part in no secure sum: it has no list of the other nodes' keys "
                "(peers.txt in its folder), and the server could put itself between them"
            ) from None
        return cls(
            SigningKey.read(memory / RECEIPT_KEY_FILE),
            Voucher(**json.loads((memory / VOUCHER_FILE).read_text(encoding="utf-8"))),
            {int(client): str(key) for client, key in listed.items()},
            attempt,
        )

    def sign(self, step: str, client: ClientId, session: str, said: Sequence[str]) -> str:
        """The proof that the client says this in a step of this sum."""
        signature = self.key.sign(_signed_content(self.attempt, step, client, session, said))
        return json.dumps(
            {"public_key": self.key.public, "signature": signature, "voucher": vars(self.voucher)}
        )

    def check(self, step: str, client: ClientId, session: str, said: Sequence[str], proof: str) -> None:
        """Accepts what another node has signed.

        Raises:
            InputError: It is not the node that this one's operator knows as the client's.
        """
        if client not in self.known:
            raise InputError(f"client {client} is not in the list of keys that this node has (peers.txt)")
        message = _signed_content(self.attempt, step, client, session, said)
        _check_signed(message, client, proof, lambda _, key: key == self.known[client])


def check_sum_keys(
    attempt: str, client: ClientId, session: str, keys: Sequence[str], proof: str, has_key: HasKey
) -> None:
    """Accepts what a node has signed of its keys.

    Args:
        attempt: Run and attempt.
        client: Whose keys they are said to be.
        session: Which sum.
        keys: The keys.
        proof: What came with them.
        has_key: Who is known.

    Raises:
        InputError: It is not what the client's node has signed.
    """
    _check_signed(_signed_content(attempt, SUM_KEYS, client, session, keys), client, proof, has_key)


def _check_signed(message: bytes, client: ClientId, proof: str, has_key: HasKey) -> None:
    try:
        content = json.loads(proof)
        public_key, signature = str(content["public_key"]), str(content["signature"])
        voucher = Voucher(str(content["voucher"]["node_key"]), str(content["voucher"]["signature"]))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InputError(f"client {client} has signed nothing in this step of the sum") from error
    if not has_key(client, voucher.node_key):
        raise InputError(f"what client {client} says is signed by another node than the one that is known")
    if not voucher.is_valid(public_key) or not is_signed_by(public_key, message, signature):
        raise InputError(f"what client {client} is said to say in the sum is not what it has signed")


def _signed_content(attempt: str, step: str, client: ClientId, session: str, said: Sequence[str]) -> bytes:
    content = {"ipfl": step, "attempt": attempt, "client": client, "sum": session, "said": list(said)}
    return canonical(content).encode()
