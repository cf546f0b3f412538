"""The cryptography of secure sums: keys, masks and shares (Bonawitz et al. 2017; Bell et al. 2020).

A vector of ring elements is hidden by masks that cancel in the sum: one for each pair of neighbours, which
both make from a common secret, and one of the client's own. What the server needs to take away masks that do
not cancel, because somebody dropped out, is shared among the neighbours (Shamir), so that enough of them can
give it to the server, and fewer cannot. Key agreement, ciphers and secret sharing are those of the packages
cryptography and pycryptodome; nothing here invents any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ipfl.core.ring import RING_MASK, Ring
from ipfl.errors import InputError

SEED_BYTES = 16
"""Of a secret that is shared: what Shamir's scheme of pycryptodome takes."""
KEY_BYTES = 32
SEALED_BYTES = 2 * SEED_BYTES + 16
"""Two shares and the tag that proves them."""


@dataclass(frozen=True)
class Secrets:
    """What a client keeps to itself in one sum."""

    own_seed: bytes
    """Of the mask that is its own."""
    pair_seed: bytes
    """Of the key that masks with others are agreed upon with."""
    sealing_seed: bytes
    """Of the key that shares are sent under."""

    @classmethod
    def of(cls, seed: bytes) -> Secrets:
        """All secrets of a sum from one random seed."""
        return cls(*(_derive(seed, name, SEED_BYTES) for name in ("own mask", "pair key", "sealing key")))

    @property
    def public(self) -> list[str]:
        """What everyone is told: two public keys, and a fingerprint of the own mask's seed."""
        keys = (_private_key(seed) for seed in (self.pair_seed, self.sealing_seed))
        return [*(key.public_key().public_bytes_raw().hex() for key in keys), seed_fingerprint(self.own_seed)]


def seed_fingerprint(seed: bytes) -> str:
    """By which a seed that was put together from shares is recognised."""
    return hashlib.sha256(b"ipfl own mask" + seed).hexdigest()


def has_public_key(pair_seed: bytes, key: str) -> bool:
    """Whether this is the seed behind a public key."""
    return bool(_private_key(pair_seed).public_key().public_bytes_raw().hex() == key)


def is_usable_key(key: str) -> bool:
    """Whether a secret can be agreed upon with this public key; some are made so that none can."""
    try:
        _agree(bytes(KEY_BYTES - 1) + b"\1", key)
    except ValueError:
        return False
    return True


def own_mask(own_seed: bytes, size: int) -> Ring:
    """The mask that a client puts on its vector beside those of its pairs."""
    return _expand(_derive(own_seed, "own", KEY_BYTES), size)


def pair_masks(
    pair_seed: bytes, client: int, others: Mapping[int, str], context: str, size: int
) -> NDArray[np.uint64]:
    """The sum of a client's masks with others: what it adds, they take away.

    Args:
        pair_seed: The client's.
        client: Its id.
        others: Public keys of the others, by id.
        context: What both must agree on, or their masks do not cancel.
        size: Elements of the vector.
    """
    total = np.zeros(size, np.uint64)
    for other, key in others.items():
        mask = _expand(_derive(_agree(_scalar(pair_seed), key), f"pair {context}", KEY_BYTES), size)
        total = (total + mask if client < other else total - mask) & RING_MASK
    return total


def seal(secrets: Secrets, key: str, content: bytes, context: str) -> str:
    """Shares for one neighbour, which nobody else can read or change."""
    sealed: bytes = _box(secrets, key, context).encrypt(bytes(12), content, context.encode())
    return sealed.hex()


def unseal(secrets: Secrets, key: str, sealed: str, context: str) -> bytes | None:
    """What a neighbour sealed; None if it is not what it should be."""
    from cryptography.exceptions import InvalidTag

    try:
        content: bytes = _box(secrets, key, context).decrypt(
            bytes(12), bytes.fromhex(sealed), context.encode()
        )
    except (InvalidTag, ValueError):
        return None
    return content if len(content) == 2 * SEED_BYTES else None


def split_secret(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Shamir's shares of a secret, of which `threshold` are enough."""
    if count == 1 or threshold == 1:
        return [secret] * count
    return [bytes(share) for _, share in _shamir().split(threshold, count, secret)]


def combine_shares(shares: Mapping[int, bytes], threshold: int) -> bytes | None:
    """The secret, from shares by their position; None if there are too few.

    Args:
        shares: Position of the holder, from 0, and its share.
        threshold: How many are needed.
    """
    if len(shares) < threshold:
        return None
    chosen = sorted(shares.items())[:threshold]
    if threshold == 1:
        return chosen[0][1]
    return bytes(_shamir().combine([(position + 1, share) for position, share in chosen]))


def neighbours(order: Sequence[int], client: int, most: int) -> list[int]:
    """Those whose masks a client's is paired with, ascending: all others, or the nearest on a ring.

    Args:
        order: All clients of the sum, as they stand on the ring.
        client: Whose neighbours.
        most: How many at most; even.
    """
    if len(order) - 1 <= most:
        return sorted(other for other in order if other != client)
    place, half = order.index(client), most // 2
    return sorted(order[(place + step) % len(order)] for step in range(-half, half + 1) if step)


def _derive(secret: bytes, purpose: str, length: int) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length, salt=None, info=f"ipfl secure sum: {purpose}".encode()).derive(secret)


def _scalar(seed: bytes) -> bytes:
    return _derive(seed, "private key", KEY_BYTES)


def _private_key(seed: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(_scalar(seed))


def _agree(scalar: bytes, key: str) -> bytes:
    """The secret that two have in common (X25519).

    Raises:
        ValueError: There is none with such a key.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    public = X25519PublicKey.from_public_bytes(bytes.fromhex(key))
    return X25519PrivateKey.from_private_bytes(scalar).exchange(public)


def _box(secrets: Secrets, key: str, context: str) -> Any:
    """An authenticated cipher for one message from one client to another; its key is used once."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    common = _agree(_scalar(secrets.sealing_seed), key)
    return ChaCha20Poly1305(_derive(common, f"shares {context}", KEY_BYTES))


def _expand(key: bytes, size: int) -> NDArray[np.uint64]:
    """So many random ring elements from a key (ChaCha20)."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(stream, "<u8").astype(np.uint64) & RING_MASK


def _shamir() -> Any:
    try:
        from Crypto.Protocol.SecretSharing import Shamir
    except ImportError as error:
        raise InputError(
            "privacy.secure_sum needs the package pycryptodome: pip install 'ipfl[privacy]'"
        ) from error
    return cast(Any, Shamir)
